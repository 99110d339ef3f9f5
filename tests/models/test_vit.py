"""The model as a whole: what it answers, refuses, drops and recomputes."""

from dataclasses import replace

import pytest
import torch
from timm.layers import calculate_drop_path_rates

from alltokens.errors import UserError
from alltokens.models.block import Branches
from alltokens.models.prediction import Prediction
from alltokens.models.vit import VisionTransformer, drop_path_rates, run_branches_one_by_one

from ..kinds import KINDS, TINY, answers, images_for, lively


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_a_prediction_with_the_heads_the_config_names(kind, training):
    config = KINDS[kind]
    h, w = config.grid
    prediction = lively(config).train(training)(images_for(config))
    assert type(prediction) is Prediction
    assert prediction.image_logits.shape == (2, 5)
    tokens, distillation = prediction.token_logits, prediction.distillation_logits
    assert (None if tokens is None else tokens.shape) == ((2, h * w, 5) if config.token_head else None)
    assert (None if distillation is None else distillation.shape) == ((2, 5) if config.distillation_token else None)


@pytest.mark.parametrize("kind", ["lvvit", "cait distilled", "late class token", "average pool", "local stem"])
@torch.no_grad()
def test_embedding_encoding_and_classifying_in_turn_is_the_forward_pass(kind):
    config = KINDS[kind]
    model, images = lively(config).eval(), images_for(config)
    grid = model.embed(images)
    assert grid.shape == (2, *config.grid, config.width)
    encoded = model.encode(grid)
    assert encoded.shape == (2, config.class_tokens + config.grid[0] * config.grid[1], config.width)
    for stepwise, whole in zip(model.classify(encoded), model(images), strict=True):
        torch.testing.assert_close(stepwise, whole, rtol=0, atol=0)


@torch.no_grad()
def test_an_embedded_grid_has_no_positions_yet():
    model = lively(TINY).eval()
    images = images_for(TINY)[:, :, :16, :16].repeat(1, 1, 2, 3)
    grid = model.embed(images)
    torch.testing.assert_close(grid, grid[:, :1, :1].expand_as(grid))


@pytest.mark.parametrize(
    ("shape", "got"), [((3, 32, 32), "3 x 32 x 32"), ((1, 32, 48), "1 x 32 x 48"), ((3, 48, 32), "3 x 48 x 32")]
)
def test_images_of_another_size_are_refused(shape, got):
    sentence = (
        rf"^images must be 3 x 32 x 48 \(channels x height x width\) for this model; got {got}; "
        r"set_image_size and set_channels change the model$"
    )
    with pytest.raises(UserError, match=sentence):
        lively(TINY)(torch.zeros(1, *shape))


@pytest.mark.parametrize("kind", ["parallel", "parallel cait", "parallel without bias", "parallel relative"])
@torch.no_grad()
def test_branches_answer_the_same_wide_and_one_by_one(kind):
    model = lively(KINDS[kind]).double().eval()
    images = images_for(KINDS[kind]).double()
    wide = answers(model, images)
    run_branches_one_by_one(model)
    torch.testing.assert_close(answers(model, images), wide, rtol=0, atol=1e-11)
    run_branches_one_by_one(model, False)
    torch.testing.assert_close(answers(model, images), wide, rtol=0, atol=0)


@pytest.mark.parametrize("depth", [1, 2, 12, 24])
def test_linear_drop_path_rises_as_timm_has_it(depth):
    config = replace(TINY, depth=depth, drop_path=0.3)
    assert drop_path_rates(config) == pytest.approx(calculate_drop_path_rates(0.3, depth))
    rates = [block.attention.drop_path for block in VisionTransformer(config).blocks]
    assert rates == [block.mlp.drop_path for block in VisionTransformer(config).blocks] == drop_path_rates(config)


def test_constant_drop_path_is_the_same_everywhere_but_in_class_attention():
    config = replace(KINDS["cait"], drop_path=0.3, drop_path_rule="constant")
    model = VisionTransformer(config)
    assert drop_path_rates(config) == [0.3, 0.3]
    assert {module.drop_path for module in model.blocks.modules() if isinstance(module, Branches)} == {0.3}
    assert {module.drop_path for module in model.class_blocks.modules() if isinstance(module, Branches)} == {0.0}


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("branches", [1, 3])
@torch.no_grad()
def test_drop_path_keeps_its_share_of_branches_and_scales_them(branches, one_by_one):
    config = replace(TINY, branches=branches, drop_path=0.25, drop_path_rule="constant", norm=TINY.norm)
    module = lively(config).double().blocks[0].mlp
    module.one_by_one = one_by_one
    x = torch.randn(1, 1, TINY.width, dtype=torch.float64)
    alone = [module.one(module.norm(x, branch), branch, None, None)[0, 0] / 0.75 for branch in range(branches)]
    torch.manual_seed(0)
    added = (module.train()(x.expand(4000, -1, -1)) - x)[:, 0]
    kept = torch.linalg.lstsq(torch.stack(alone, 1), added.T).solution
    assert (kept.round().clamp(0, 1) - kept).abs().max() < 1e-8
    # Four standard deviations of a share of 4000 draws.
    assert (kept.mean(1) - 0.75).abs().max() < 4 * (0.25 * 0.75 / 4000) ** 0.5
    if branches > 1:
        assert torch.corrcoef(kept).triu(1).abs().max() < 0.07


@torch.no_grad()
def test_nothing_is_dropped_in_evaluation():
    dropping = replace(TINY, drop_path=0.5, dropout=0.5, attention_dropout=0.5, head_dropout=0.5)
    images = images_for(TINY)
    torch.testing.assert_close(lively(dropping).eval()(images), lively(TINY).eval()(images), rtol=0, atol=0)


@pytest.mark.parametrize("field", ["drop_path", "dropout", "attention_dropout", "head_dropout"])
@pytest.mark.parametrize("kind", ["vit", "cait", "parallel"])
@torch.no_grad()
def test_each_kind_of_dropping_acts_in_training(kind, field):
    model = lively(replace(KINDS[kind], **{field: 0.5})).train()
    images = images_for(KINDS[kind])
    assert not torch.equal(model(images).image_logits, model(images).image_logits)


@torch.no_grad()
def test_dropout_after_positions_drops_its_share_and_scales_the_rest():
    model = lively(replace(TINY, dropout=0.25)).train()
    x = torch.ones(40, 100, TINY.width)
    dropped = model.dropout(x)
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("kind", ["vit", "parallel"])
@torch.no_grad()
def test_dropout_leaves_the_mean_of_a_branch(kind):
    """The last dropout of a branch is linear in what it drops, so its answers average to those without it."""
    module = lively(replace(KINDS[kind], dropout=0.3)).double().blocks[0].mlp
    module.operation.dropout.p = 0.0
    x = torch.randn(1, 1, TINY.width, dtype=torch.float64)
    expected = module.eval()(x)[0, 0]
    torch.manual_seed(0)
    draws = module.train()(x.expand(20000, -1, -1))[:, 0]
    error = (draws.mean(0) - expected).abs() / draws.std(0) * 20000**0.5
    assert error.max() < 5


@pytest.mark.parametrize("pooled", [False, True])
@torch.no_grad()
def test_head_dropout_falls_on_what_the_head_sees(pooled):
    """timm drops channels of the pooled token, not of the tokens before the pool."""
    kind = "average pool" if pooled else "vit"
    model = lively(replace(KINDS[kind], head_dropout=0.5)).train()
    model.head.weight.copy_(torch.eye(5, TINY.width))
    model.head.bias.zero_()
    logits = model.classify(torch.ones(500, 7, TINY.width)).image_logits
    assert logits.unique().tolist() == pytest.approx([0.0, 2.0])


@pytest.mark.parametrize("kind", ["vit", "cait", "parallel relative", "lvvit"])
def test_gradient_checkpointing_changes_neither_values_nor_gradients(kind):
    config = replace(KINDS[kind], drop_path=0.3, drop_path_rule="constant", attention_dropout=0.2)
    found = []
    for checkpointed in (False, True):
        model = lively(config).train()
        model.checkpoint_gradients = checkpointed
        torch.manual_seed(3)
        logits = model(images_for(config)).image_logits
        logits.square().sum().backward()
        found.append([logits, *(parameter.grad for parameter in model.parameters())])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_gradient_checkpointing_recomputes_the_blocks():
    model = lively(TINY)
    model.checkpoint_gradients = True
    calls = []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model(images_for(TINY)).image_logits.sum().backward()
    assert len(calls) == 2


def test_a_seed_gives_the_same_weights_again():
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(VisionTransformer(KINDS["cait"]).state_dict())
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())
