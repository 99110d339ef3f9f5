"""Score maps keep what is needed to rebuild probabilities, and refuse what is not a score map."""

import pytest
import torch

from alltokens.errors import UserError
from alltokens.labels.score_map import ScoreMap, ScoreMaps


def parts(**changed: torch.Tensor) -> dict[str, torch.Tensor]:
    """Fields of a small score map, some of them changed."""
    ids = torch.tensor([[[0, 1]], [[2, 3]]])
    return {"classes": ids, "logits": ids.float(), "normalizer": torch.full((1, 2), 4.0)} | changed


def test_the_highest_logits_of_each_cell_are_kept() -> None:
    logits = torch.randn(12, 3, 4)
    score_map = ScoreMap.from_dense(logits, top_k=4)
    for row in range(3):
        for column in range(4):
            ranked = sorted(range(12), key=lambda c: -logits[c, row, column].item())
            assert score_map.classes[:, row, column].tolist() == ranked[:4]
            assert torch.equal(score_map.logits[:, row, column], logits[ranked[:4], row, column])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_probabilities_can_be_rebuilt(dtype: torch.dtype) -> None:
    logits = (5 * torch.randn(12, 3, 4)).to(dtype)
    score_map = ScoreMap.from_dense(logits)
    rebuilt = (score_map.logits - score_map.normalizer).exp()
    torch.testing.assert_close(rebuilt.double(), logits.double().softmax(0).topk(5, 0).values, rtol=1e-5, atol=1e-7)


def test_an_annotator_sees_the_whole_image_unless_said_otherwise() -> None:
    assert torch.equal(ScoreMap(**parts()).view, torch.eye(2, 3))


def test_a_batch_is_stacked_and_moved() -> None:
    score_map = ScoreMap(**parts())
    batch = ScoreMaps.stack([score_map, score_map]).to("cpu")
    for stacked, single in (
        (batch.classes, score_map.classes),
        (batch.logits, score_map.logits),
        (batch.normalizer, score_map.normalizer),
        (batch.views, score_map.view),
    ):
        assert torch.equal(stacked, torch.stack([single, single]))
    assert ScoreMaps.stack([score_map]).to("meta").views.is_meta


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"logits": torch.zeros(2, 2, 2)},
            "a score map needs classes [k, h, w], logits [k, h, w], normalizer [h, w] and view [2, 3]; "
            "got (2, 1, 2), (2, 2, 2), (1, 2), (2, 3)",
        ),
        (
            {"normalizer": torch.zeros(2)},
            "a score map needs classes [k, h, w], logits [k, h, w], normalizer [h, w] and view [2, 3]; "
            "got (2, 1, 2), (2, 1, 2), (2,), (2, 3)",
        ),
        (
            {"view": torch.eye(3)},
            "a score map needs classes [k, h, w], logits [k, h, w], normalizer [h, w] and view [2, 3]; "
            "got (2, 1, 2), (2, 1, 2), (1, 2), (3, 3)",
        ),
        ({"classes": torch.zeros(2, 1, 2)}, "class ids of a score map must be integers; got torch.float32"),
        ({"classes": torch.tensor([[[0, 1]], [[-2, 3]]])}, "class ids of a score map must be at least 0; got -2"),
        (
            {"classes": torch.tensor([[[0, 3]], [[2, 3]]])},
            "a class may appear once in a cell of a score map; got class 3 twice",
        ),
        (
            {"logits": torch.full((2, 1, 2), float("nan"))},
            "the logits of a score map must be finite numbers; got nan",
        ),
        (
            {"normalizer": torch.full((1, 2), float("inf"))},
            "the normalizer of a score map must be finite numbers; got inf",
        ),
        (
            {"view": torch.full((2, 3), float("-inf"))},
            "the view of a score map must be finite numbers; got -inf",
        ),
        (
            {"view": torch.ones(2, 3)},
            "the view of a score map must not fold its canvas into a line; got [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]",
        ),
    ],
)
def test_what_is_not_a_score_map_is_refused(changed: dict[str, torch.Tensor], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        ScoreMap(**parts(**changed))
    assert str(error.value) == sentence


@pytest.mark.parametrize("top_k", [0, 4])
def test_no_more_classes_are_kept_than_there_are(top_k: int) -> None:
    with pytest.raises(UserError) as error:
        ScoreMap.from_dense(torch.zeros(3, 2, 2), top_k)
    assert str(error.value) == f"top_k must be between 1 and the 3 classes; got top_k={top_k}"


@pytest.mark.parametrize(
    ("logits", "got"),
    [(torch.zeros(3, 2), "torch.float32 (3, 2)"), (torch.zeros(3, 2, 2, dtype=torch.int64), "torch.int64 (3, 2, 2)")],
)
def test_dense_logits_are_floats_with_three_dimensions(logits: torch.Tensor, got: str) -> None:
    with pytest.raises(UserError) as error:
        ScoreMap.from_dense(logits)
    assert str(error.value) == f"dense logits must be floats [classes, h, w]; got {got}"


def test_a_batch_pads_the_smaller_maps() -> None:
    maps = [ScoreMap.from_dense(torch.randn(6, h, w)) for h, w in ((2, 4), (3, 1))]
    batch = ScoreMaps.stack(maps)
    assert batch.grids.tolist() == [[2, 4], [3, 1]]
    assert batch.logits.shape == (2, 5, 3, 4)
    torch.testing.assert_close(batch.logits[0, :, :2, :4], maps[0].logits)
    torch.testing.assert_close(batch.classes[1, :, :3, :1], maps[1].classes)
    assert batch.normalizer[1, :, 1:].eq(0).all()


def test_a_batch_has_one_k_and_a_map() -> None:
    maps = [ScoreMap.from_dense(torch.randn(6, 2, 2), top_k) for top_k in (2, 3)]
    with pytest.raises(UserError) as error:
        ScoreMaps.stack(maps)
    sentence = "a batch needs at least one score map, and one k for all of them; got k = 2 and k = 3"
    assert str(error.value) == sentence
    with pytest.raises(UserError) as error:
        ScoreMaps.stack([])
    assert str(error.value) == "a batch needs at least one score map, and one k for all of them; got none"
