"""Records against loops written from the layout's definition, in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alltokens.labels.record import decode_records, encode, first_damaged, record_dtype
from alltokens.labels.score_map import ScoreMap, ScoreMaps

from .stores import map_of

WHOLE = torch.eye(2, 3)


def test_a_record_of_an_18_by_18_map_has_5196_bytes():
    dtype = record_dtype(1000, 5, 324)
    assert dtype.itemsize == 12 + 5184
    assert dtype.names == ("height", "width", "lowest", "highest", "classes", "roots", "normalizer")
    assert [dtype.fields[name][1] for name in dtype.names] == [0, 2, 4, 8, 12, 12 + 3240, 12 + 4860]
    assert record_dtype(65_536, 5, 324) == dtype
    assert record_dtype(65_537, 5, 324)["classes"].base == np.dtype("<u4")


def expected_bytes(score_map: ScoreMap, cells: int, id_bytes: int) -> bytes:
    """The layout's definition, byte by byte."""
    k, h, w = score_map.logits.shape
    normalizer = score_map.normalizer.double().flatten().tolist()
    low, high = (np.float32(end) for end in (min(normalizer), max(normalizer)))
    ids, roots, levels = b"", b"", b""
    for cell in range(h * w):
        for rank in range(k):
            ids += int(score_map.classes[rank, cell // w, cell % w]).to_bytes(id_bytes, "little")
            logit = float(score_map.logits[rank, cell // w, cell % w])
            roots += bytes([min(max(round(255 * math.sqrt(math.exp(logit - normalizer[cell]))), 1), 255)])
        levels += bytes([round(255 * (normalizer[cell] - low) / (high - low)) if high > low else 0])
    unused = cells - h * w
    sizes = h.to_bytes(2, "little") + w.to_bytes(2, "little") + low.tobytes() + high.tobytes()
    return sizes + ids + bytes(unused * k * id_bytes) + roots + bytes(unused * k) + levels + bytes(unused)


@pytest.mark.parametrize(("classes", "id_bytes"), [(1000, 2), (100_000, 4)])
def test_bytes_are_those_of_the_definition(classes: int, id_bytes: int) -> None:
    maps = [map_of(row) for row in range(5)]
    records = encode(ScoreMaps.stack(maps), record_dtype(classes, 3, 7))
    assert [record.tobytes() for record in records] == [expected_bytes(m, 7, id_bytes) for m in maps]


def test_maps_of_several_grids_come_back_padded() -> None:
    maps = ScoreMaps.stack([map_of(row) for row in range(5)])
    decoded = decode_records(encode(maps, record_dtype(7, 3, 6)), WHOLE)
    assert decoded.classes.dtype == torch.int32
    assert decoded.logits.dtype == decoded.normalizer.dtype == torch.float32
    assert torch.equal(decoded.classes, maps.classes.int())
    assert torch.equal(decoded.grids, maps.grids)
    assert torch.equal(decoded.views, maps.views)
    assert torch.equal(decoded.logits != 0, maps.logits != 0)
    probabilities, expected = ((m.logits - m.normalizer[:, None]).exp() for m in (decoded, maps))
    # A root is off by half a step at most, or by a whole one where it would have been zero.
    assert (probabilities.sqrt() - expected.sqrt()).abs().max() <= 1 / 255
    spread = maps.normalizer.flatten(1).amax(1) - maps.normalizer.flatten(1).amin(1)
    assert ((decoded.normalizer - maps.normalizer).abs().flatten(1).amax(1) <= spread / 510 + 1e-5).all()


def test_a_batch_decodes_as_its_records_do_alone() -> None:
    records = encode(ScoreMaps.stack([map_of(row) for row in range(70)]), record_dtype(7, 3, 6))
    together = decode_records(records, WHOLE)
    for row in range(70):
        alone, (h, w) = decode_records(records[row : row + 1], WHOLE), together.grids[row].tolist()
        for name in ("classes", "logits", "normalizer"):
            whole = getattr(together, name)[row]
            assert torch.equal(whole[..., :h, :w], getattr(alone, name)[0])
            assert whole.count_nonzero() == whole[..., :h, :w].count_nonzero()


def test_what_lies_in_the_padding_does_not_matter() -> None:
    maps = ScoreMaps.stack([map_of(row) for row in range(5)])
    dtype = record_dtype(7, 3, 6)
    outside = torch.ones_like(maps.normalizer, dtype=torch.bool)
    for image, (h, w) in enumerate(maps.grids.tolist()):
        outside[image, :h, :w] = False
    dirty = ScoreMaps(
        maps.classes.masked_fill(outside[:, None], 6),
        maps.logits.masked_fill(outside[:, None], torch.nan),
        maps.normalizer.masked_fill(outside, torch.inf),
        maps.views,
        maps.grids,
    )
    assert encode(dirty, dtype).tobytes() == encode(maps, dtype).tobytes()


def test_an_image_without_labels_is_a_record_of_zeros() -> None:
    dtype = record_dtype(7, 3, 6)
    unlabelled = ScoreMaps(
        torch.zeros(1, 3, 1, 1, dtype=torch.int64),
        torch.zeros(1, 3, 1, 1),
        torch.zeros(1, 1, 1),
        torch.eye(2, 3)[None],
        torch.zeros(1, 2, dtype=torch.int64),
    )
    records = encode(unlabelled, dtype)
    assert records.tobytes() == bytes(dtype.itemsize)
    decoded = decode_records(records, WHOLE)
    assert decoded.grids.tolist() == [[0, 0]]
    assert decoded.classes.shape == (1, 3, 1, 1)
    assert not decoded.logits.any()


def one_cell(logits: list[float], ids: list[int] | None = None) -> ScoreMap:
    values = torch.tensor(logits)[:, None, None]
    names = torch.tensor(ids or list(range(len(logits))))[:, None, None]
    return ScoreMap(names, values, values.logsumexp(0))


def there_and_back(maps: list[ScoreMap], classes: int) -> ScoreMaps:
    cells = max(score_map.normalizer.numel() for score_map in maps)
    dtype = record_dtype(classes, len(maps[0].classes), cells)
    return decode_records(encode(ScoreMaps.stack(maps), dtype), WHOLE)


def test_one_normalizer_in_all_cells_is_exact() -> None:
    flat = ScoreMap(torch.zeros(1, 2, 2, dtype=torch.int64), torch.full((1, 2, 2), 0.3), torch.full((2, 2), 1.7))
    assert torch.equal(there_and_back([flat], 9).normalizer, torch.full((1, 2, 2), 1.7))


@pytest.mark.parametrize("logits", [[52.0, 51.0], [3e4, -3e4], [-50.0, -52.0], [0.0, -200.0]])
def test_huge_logits_keep_their_probabilities(logits: list[float]) -> None:
    decoded = there_and_back([one_cell(logits)], 2)
    got = (decoded.logits - decoded.normalizer[:, None]).flatten().double().exp()
    expected = torch.tensor(logits, dtype=torch.float64).softmax(0)
    assert (got.sqrt() - expected.sqrt()).abs().max() < 0.0045


def test_a_certain_class_has_all_the_probability() -> None:
    decoded = there_and_back([one_cell([20.0])], 2)
    assert torch.equal(decoded.logits[:, 0], decoded.normalizer)


@pytest.mark.parametrize(("classes", "ids"), [(65_536, [65_535, 32_768]), (100_000, [99_999, 65_536])])
def test_the_highest_class_ids_are_kept(classes: int, ids: list[int]) -> None:
    decoded = there_and_back([one_cell([1.0, 0.0], ids)], classes)
    assert decoded.classes.flatten().tolist() == ids


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_maps_of_any_float_are_taken(dtype: torch.dtype) -> None:
    exact = map_of(0)
    maps = ScoreMap(exact.classes, exact.logits.to(dtype), exact.normalizer.to(dtype))
    decoded = there_and_back([maps], 7)
    assert (decoded.logits[0] - exact.logits).abs().max() < 0.3


@pytest.mark.parametrize("bad", [-torch.inf, torch.inf, torch.nan])
def test_logits_that_are_not_finite_are_a_bug(bad: float) -> None:
    maps = ScoreMaps.stack([map_of(0)])
    maps.logits[0, 2, 1, 1] = bad
    with pytest.raises(AssertionError, match="must be finite"):
        encode(maps, record_dtype(7, 3, 6))


def test_a_map_larger_than_the_record_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="more than the 5 cells"):
        encode(ScoreMaps.stack([map_of(0)]), record_dtype(7, 3, 5))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_map_comes_back_within_the_steps(data: st.DataObject) -> None:
    h, w, k = (data.draw(st.integers(1, 4)) for _ in range(3))
    classes = k + data.draw(st.integers(0, 5))
    scale = data.draw(st.sampled_from([0.0, 0.01, 1.0, 10.0, 300.0]))
    seed = data.draw(st.integers(0, 2**31))
    dense = scale * torch.randn(classes, h, w, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    score_map = ScoreMap.from_dense(dense, k)
    decoded = there_and_back([score_map], classes)
    assert torch.equal(decoded.classes[0], score_map.classes.int())
    got = (decoded.logits[0] - decoded.normalizer[0]).double().exp()
    expected = (score_map.logits - score_map.normalizer).exp()
    assert (got.sqrt() - expected.sqrt()).abs().max() <= 1 / 255 + 1e-4
    spread = score_map.normalizer.max() - score_map.normalizer.min()
    assert (decoded.normalizer[0] - score_map.normalizer).abs().max() <= spread / 510 + 1e-4


@pytest.mark.parametrize(
    ("field", "value"),
    [("height", 7), ("height", 0), ("width", 65_535), ("lowest", np.nan), ("highest", np.inf), ("lowest", 1e9)],
)
def test_a_record_that_no_writer_makes_is_found(field: str, value: float) -> None:
    records = encode(ScoreMaps.stack([map_of(row) for row in range(5)]), record_dtype(7, 3, 6))
    assert first_damaged(records, 7) is None
    records[field][3] = value
    assert first_damaged(records, 7) == 3


def test_a_class_that_does_not_exist_is_found() -> None:
    records = encode(ScoreMaps.stack([map_of(row) for row in range(5)]), record_dtype(7, 3, 6))
    records["classes"][2, 1, 0] = 7
    assert first_damaged(records, 7) == 2
    assert first_damaged(records, 8) is None


def test_records_of_random_bytes_decode_to_finite_maps_or_are_found() -> None:
    dtype, chance = record_dtype(65_536, 3, 6), np.random.default_rng(0)
    for _ in range(300):
        records = np.frombuffer(chance.bytes(dtype.itemsize), dtype).copy()
        records["height"], records["width"] = chance.integers(0, 4, 2)
        if first_damaged(records, 65_536) is None:
            decoded = decode_records(records, WHOLE)
            assert decoded.logits.isfinite().all()
            assert decoded.normalizer.isfinite().all()


def test_a_record_takes_whatever_grid_fits_its_cells() -> None:
    with torch.inference_mode():
        wide = ScoreMap.from_dense(torch.randn(4, 1, 6), 2)
        tall = ScoreMap.from_dense(torch.randn(4, 6, 1), 2)
        decoded = there_and_back([wide, tall], 4)
    assert decoded.normalizer.shape == (2, 6, 6)
    assert torch.equal(decoded.classes[0, :, :1], wide.classes.int())
    assert torch.equal(decoded.classes[1, :, :, :1], tall.classes.int())
