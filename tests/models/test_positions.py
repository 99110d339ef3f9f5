"""Positions against their formulas and timm's."""

from math import cos, sin

import pytest
import torch
from timm.layers import gen_relative_position_index
from timm.models.beit import Beit
from torch import Tensor

from alltokens.models.config import LayerScale, LinearStem, ViTConfig
from alltokens.models.positions import relative_entries, relative_pairs, sinusoids
from alltokens.models.vit import VisionTransformer

CPU = torch.device("cpu")


@pytest.mark.parametrize("width", [2, 8, 9])
def test_sinusoids_follow_the_formula(width: int) -> None:
    table = sinusoids(torch.arange(20, dtype=torch.float64), width)
    assert table.shape == (20, width)
    for place in range(20):
        for channel in range(width):
            pair = channel // 2
            wave = cos if channel % 2 else sin
            expected = wave(place / 10000 ** (2 * pair / width))
            assert table[place, channel].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 4e-3)])
def test_a_model_adds_sinusoids_as_precise_as_its_tokens(dtype: torch.dtype, error: float) -> None:
    config = ViTConfig(width=8, depth=1, heads=2, positions="sinusoidal", image_size=(160, 160))
    positions = VisionTransformer(config).positions
    found = positions.of_tokens(torch.zeros(1, 100, 8, dtype=dtype))
    expected = sinusoids(torch.arange(1, 101, dtype=torch.float64), 8)
    assert found.dtype == dtype
    assert (found[0].double() - expected).abs().max() < error
    class_position = positions.of_class(torch.zeros(1, 1, 8, dtype=dtype))
    assert class_position[0, 0].tolist() == [0.0, 1.0] * 4


@pytest.mark.parametrize("grid", [(1, 1), (1, 4), (2, 3), (5, 2)])
def test_relative_pairs_are_timms(grid: tuple[int, int]) -> None:
    assert torch.equal(relative_pairs(grid, 0, CPU), gen_relative_position_index(grid))
    assert torch.equal(relative_pairs(grid, 1, CPU), gen_relative_position_index(grid, class_token=True))


@pytest.mark.parametrize("grid", [(1, 1), (2, 3)])
def test_the_table_has_a_row_for_each_pair_and_none_to_spare(grid: tuple[int, int]) -> None:
    for class_tokens, with_class in ((0, False), (1, True), (2, True)):
        used = relative_pairs(grid, class_tokens, CPU).unique()
        assert torch.equal(used, torch.arange(relative_entries(grid, with_class)))


def test_a_second_class_token_reads_the_same_rows_as_the_first() -> None:
    one, two = relative_pairs((2, 3), 1, CPU), relative_pairs((2, 3), 2, CPU)
    assert torch.equal(two[1:, 1:], one)
    assert torch.equal(two[0, 2:], one[0, 1:])
    assert torch.equal(two[2:, 0], one[1:, 0])
    assert two[:2, :2].unique().tolist() == [one[0, 0].item()]


def beit_weights(beit: Beit) -> dict[str, Tensor]:
    """A BEiT's tensors under our names."""
    theirs = beit.state_dict()
    state = {"class_tokens": theirs["cls_token"][0]}
    for kind in ("weight", "bias"):
        state[f"stem.0.{kind}"] = theirs[f"patch_embed.proj.{kind}"]
        state |= {f"{name}.{kind}": theirs[f"{name}.{kind}"] for name in ("norm", "head")}
    for place in range(len(beit.blocks)):
        block = {key.removeprefix(f"blocks.{place}."): value for key, value in theirs.items()}
        attention, mlp = f"blocks.{place}.attention", f"blocks.{place}.mlp"
        query, value = block["attn.q_bias"], block["attn.v_bias"]
        state |= {
            f"{attention}.input.weight": block["attn.qkv.weight"],
            f"{attention}.input.bias": torch.cat((query, torch.zeros_like(query), value)),
            f"{attention}.operation.table": block["attn.relative_position_bias_table"],
            f"{attention}.output.weight": block["attn.proj.weight"],
            f"{attention}.output_bias": block["attn.proj.bias"],
            f"{attention}.gain.weight": block["gamma_1"],
            f"{mlp}.input.weight": block["mlp.fc1.weight"],
            f"{mlp}.input.bias": block["mlp.fc1.bias"],
            f"{mlp}.output.weight": block["mlp.fc2.weight"],
            f"{mlp}.output_bias": block["mlp.fc2.bias"],
            f"{mlp}.gain.weight": block["gamma_2"],
        }
        for kind in ("weight", "bias"):
            state[f"{attention}.norm.{kind}"] = block[f"norm1.{kind}"]
            state[f"{mlp}.norm.{kind}"] = block[f"norm2.{kind}"]
    return state


def test_relative_positions_answer_as_timms_beit_on_a_rectangle() -> None:
    beit = Beit(
        img_size=(8, 12),
        patch_size=4,
        num_classes=5,
        global_pool="token",
        embed_dim=8,
        depth=2,
        num_heads=2,
        qkv_bias=True,
        init_values=1.0,
        use_abs_pos_emb=False,
        use_rel_pos_bias=True,
    )
    beit = beit.double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in beit.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    config = ViTConfig(
        width=8,
        depth=2,
        heads=2,
        stem=LinearStem(patch=4),
        positions="relative",
        residual=LayerScale(initial=1.0),
        image_size=(8, 12),
        classes=5,
    )
    model = VisionTransformer(config).double().eval()
    model.load_state_dict(beit_weights(beit))
    images = torch.randn(2, 3, 8, 12, generator=generator).double()
    assert torch.allclose(model(images).image_logits, beit(images), rtol=0, atol=1e-10)
