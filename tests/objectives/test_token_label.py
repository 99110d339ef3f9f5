"""Token labeling: losses and gradients beside loops over images, tokens and classes, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import alltokens
from alltokens.augment.finish import FinishConfig
from alltokens.errors import UserError
from alltokens.objectives.finishing import normalize
from alltokens.objectives.mixing import MixConfig, draw_mix
from alltokens.objectives.token_label import TokenLabelConfig, TokenLabeling, participants
from alltokens.plain import from_plain, to_plain

from ..kinds import KINDS, lively
from .batches import RECTANGLE, a_batch, a_model, check_by_hand, check_split

MIXES = {
    "token": MixConfig(),
    "cutmix": MixConfig(kind="cutmix"),
    "mixup": MixConfig(kind="mixup", alpha=0.8),
    "cutmix or mixup": MixConfig(kind="cutmix_or_mixup", mixup_alpha=0.8),
    "token and mixup": MixConfig(kind="token_and_mixup", mixup_alpha=0.8),
    "none": MixConfig(kind="none"),
    "some": MixConfig(probability=0.5),
}
MIX = pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)


@MIX
@pytest.mark.parametrize("kind", ["square", "rectangle"])
def test_the_loss_is_the_images_plus_half_the_mean_of_its_tokens(kind: str, mix: MixConfig) -> None:
    model = a_model(kind)
    check_by_hand(TokenLabeling(model, TokenLabelConfig(mix=mix)), a_batch(model))


@pytest.mark.parametrize("mix", [MIXES[name] for name in ("token", "cutmix or mixup", "token and mixup")], ids=str)
@pytest.mark.parametrize("kind", ["timm/test_vit", "timm/test_resnet"])
def test_models_of_timms_are_mixed_before_the_embedding(kind: str, mix: MixConfig) -> None:
    model = a_model(kind)
    check_by_hand(TokenLabeling(model, TokenLabelConfig(mix=mix)), a_batch(model, 4))


@pytest.mark.parametrize(
    "fields",
    [
        {"beta": 2.0},
        {"smoothing": 0.0},
        {"smoothing": 0.3, "rule": "probabilities"},
        {"participation": 0.3},
        {"participation": 0.3, "mix": MIXES["cutmix or mixup"]},
        {"finish": FinishConfig(erase=1.0)},
    ],
    ids=str,
)
def test_every_field_counts(fields: dict[str, Any]) -> None:
    model = a_model("rectangle")
    batch = a_batch(model)
    changed = TokenLabeling(model, TokenLabelConfig(**fields))
    check_by_hand(changed, batch)
    assert abs(changed(batch).total - TokenLabeling(model)(batch).total) > 1e-4


@pytest.mark.parametrize("rule", ["zero_fill", "probabilities"])
@pytest.mark.parametrize("choice", ["score_map", "blend"])
def test_the_image_may_be_compared_with_its_score_map(choice: str, rule: str) -> None:
    model = a_model("rectangle")
    config = TokenLabelConfig(image_target=choice, rule=rule)
    check_by_hand(TokenLabeling(model, config), a_batch(model, whole_views=True))


@MIX
@pytest.mark.parametrize("kind", ["rectangle", "timm/test_vit"])
def test_a_batch_has_the_mean_of_the_losses_and_gradients_of_its_halves(kind: str, mix: MixConfig) -> None:
    model = a_model(kind)
    config = TokenLabelConfig(mix=mix, participation=0.5, image_target="blend", finish=FinishConfig(erase=0.5))
    check_split(TokenLabeling(model, config), a_batch(model))


def test_mixing_the_targets_is_unmixing_the_logits() -> None:
    model = a_model("rectangle")
    batch = a_batch(model, whole_views=True)
    mix = draw_mix(MixConfig(), batch.seeds, model, token_targets=True)
    targets = alltokens.token_targets(batch.score_maps, batch.views, model.config.grid, model.config.classes)
    logits = torch.randn(8, 24, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    unmixed = alltokens.token_cross_entropy(mix.boxes.swap(logits), targets)
    torch.testing.assert_close(mix.token_loss(logits, targets), unmixed, rtol=1e-12, atol=0)
    assert abs(alltokens.token_cross_entropy(logits, targets) - unmixed) > 1e-3


def test_images_without_any_label_count_with_a_token_loss_of_0() -> None:
    model = a_model("rectangle")
    batch, config = a_batch(model, 4), TokenLabelConfig(mix=MixConfig(kind="none"))
    maps = batch.score_maps
    without = replace(maps, grids=maps.grids * torch.tensor([[1], [1], [0], [0]]))
    losses = TokenLabeling(model, config)(replace(batch, score_maps=without))
    first = TokenLabeling(model, config)(a_batch(model, 4))
    assert 0 < losses.parts["token"] < first.parts["token"]
    nothing = replace(maps, grids=maps.grids * 0)
    assert TokenLabeling(model, config)(replace(batch, score_maps=nothing)).parts["token"] == 0


@pytest.mark.parametrize(("share", "count"), [(0.2, 5), (0.5, 12), (0.99, 24), (0.001, 1)])
def test_as_many_tokens_participate_as_the_share_says_each_as_often(share: float, count: int) -> None:
    found = participants(torch.arange(4000), 24, share)
    assert found.sum(1).unique().tolist() == [count]
    # Five standard errors of a share among this many.
    torch.testing.assert_close(found.float().mean(0), torch.full((24,), count / 24), rtol=0, atol=0.04)


def test_all_tokens_participate_unless_told_otherwise() -> None:
    assert participants(torch.arange(3), 24, 1.0) is None


@pytest.mark.parametrize("kind", ["rectangle", "timm/test_resnet"])
def test_evaluation_neither_mixes_nor_erases(kind: str) -> None:
    model = a_model(kind)
    batch = a_batch(model, 3)
    config = TokenLabelConfig(finish=FinishConfig(erase=1.0))
    torch.testing.assert_close(
        TokenLabeling(model, config).evaluate(batch), model(normalize(batch.images, FinishConfig()).double())
    )


def test_the_losses_say_what_they_consist_of_and_parts_carry_no_graph() -> None:
    model = a_model("rectangle")
    losses = TokenLabeling(model, TokenLabelConfig(beta=0.25))(a_batch(model))
    assert list(losses.parts) == ["image", "token"]
    assert losses.total.requires_grad
    assert not any(part.requires_grad for part in losses.parts.values())
    assert losses.total == losses.parts["image"] + 0.25 * losses.parts["token"]


def test_half_precision_logits_are_summed_in_float32() -> None:
    model = lively(RECTANGLE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = TokenLabeling(model)(a_batch(model, dtype=torch.float32))
    assert losses.total.dtype == torch.float32


@pytest.mark.parametrize(
    "kind", [name for name, kind in KINDS.items() if kind.prediction_heads == ["head", "token_head"]]
)
def test_gradients_reach_every_parameter(kind: str) -> None:
    model = lively(KINDS[kind])
    TokenLabeling(model)(a_batch(model)).total.backward()
    assert [name for name, each in model.named_parameters() if each.grad is None or not each.grad.any()] == []


def test_a_config_is_the_same_after_a_file() -> None:
    config = TokenLabelConfig(participation=0.5, mix=MIXES["cutmix or mixup"])
    assert from_plain(TokenLabelConfig, to_plain(config)) == config


def sentence(action: Any) -> str:
    with pytest.raises(UserError) as error:
        action()
    return str(error.value)


def test_a_batch_without_score_maps_is_refused() -> None:
    model = a_model("rectangle")
    batch = replace(a_batch(model), score_maps=None)
    assert sentence(lambda: TokenLabeling(model)(batch)) == (
        "these targets need score maps; got a batch without them, give a label store"
    )


@pytest.mark.parametrize("kind", ["rectangle", "timm/test_vit"])
def test_a_model_without_a_token_head_is_refused(kind: str) -> None:
    assert sentence(lambda: TokenLabeling(a_model(kind, token_head=False))) == (
        "token labels need a model with a token head, as lvvit_s has; got one without"
    )


def test_a_model_with_a_distillation_head_is_refused() -> None:
    assert sentence(lambda: TokenLabeling(lively(KINDS["cait distilled"]))) == (
        "token labels train no distillation head; got a model with distillation_token=True, build it without"
    )


def test_another_module_is_refused() -> None:
    assert sentence(lambda: TokenLabeling(nn.Linear(2, 2))) == (
        "objectives train what alltokens.create_model builds; got a Linear"
    )


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (
            {"beta": 0.0},
            "beta must be above 0, or the token head would not be trained; got beta=0.0; ReLabel is Classification "
            "with image_target=score_map",
        ),
        ({"smoothing": 1.0}, "smoothing must be at least 0 and below 1; got smoothing=1.0"),
        ({"participation": 0.0}, "participation must be above 0 and at most 1; got participation=0.0"),
        ({"participation": 1.5}, "participation must be above 0 and at most 1; got participation=1.5"),
    ],
)
def test_a_config_says_what_is_wrong_with_it(field: dict[str, Any], expected: str) -> None:
    assert sentence(lambda: TokenLabelConfig(**field)) == expected
