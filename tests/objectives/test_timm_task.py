"""Token labeling as a task of timm's: its loss against the dense formula in float64, and timm's own uses of a task."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from timm.task import load_task_ema_checkpoint, resume_task_checkpoint
from timm.utils import CheckpointSaver
from torch import Tensor, distributed, nn
from torch.nn import functional as F

import alltokens
from alltokens.augment.finish import FinishConfig
from alltokens.errors import UserError
from alltokens.models.vit import VisionTransformer
from alltokens.objectives.mixing import MixConfig
from alltokens.objectives.timm_task import TokenLabelTask
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.plain import to_plain

from ..kinds import KINDS, TINY, images_for, lively
from ..labels.score_maps import cell_average, dense_logits, dense_probabilities, random_maps, turned_views

CONFIG = replace(TINY, token_head=True, token_weight=0.5)
GRID, CLASSES, BATCH = CONFIG.grid, CONFIG.classes, 4
TOKENS = GRID[0] * GRID[1]
IMAGES, LABELS = images_for(CONFIG, BATCH), torch.tensor([0, 3, 1, 4])
BOTH_HEADS = ["head", "token_head"]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def task_of(model: nn.Module, config: TokenLabelConfig | None = None) -> TokenLabelTask:
    return TokenLabelTask(model, seeded(), config, verbose=False)


def target_of(dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """Class labels, score maps and views of four images, some tokens without a label."""
    return LABELS, random_maps(BATCH, 3, 4, 6, CLASSES, dtype), turned_views(dtype)


def through_timm() -> nn.Module:
    """The same architecture as timm builds it."""
    torch.manual_seed(0)
    return timm.create_model("alltokens_vit", config=to_plain(CONFIG))


def mixed_by_hand(per_token: Tensor, mix: alltokens.TokenMix) -> Tensor:
    """The tokens [b, n, ...] of a mix with one mask, one after the other."""
    out = per_token.clone()
    for image in range(BATCH):
        for token in range(TOKENS):
            if mix.swapped[0, token // GRID[1], token % GRID[1]]:
                out[image, token] = per_token[BATCH - 1 - image, token]
    return out


def image_target_by_hand(choice: str, target: Any) -> Tensor:
    """One image after the other; its view is the whole image where the score map counts."""
    labels, maps, _ = target
    mapped = dense_logits(maps, CLASSES).mean((2, 3)).softmax(-1)
    rows = []
    for label, row in zip(labels, mapped, strict=True):
        share = {"class_label": 0.0, "score_map": 1.0, "blend": row[label]}[choice]
        rows.append(share * row + (1 - share) * F.one_hot(label, CLASSES))
    return torch.stack(rows)


def dense_formula(model: VisionTransformer, images: Tensor, target: Any, config: TokenLabelConfig) -> dict[str, Tensor]:
    """The cross-entropy of the image plus beta times the mean of the labelled tokens', dense and written out."""
    _, maps, views = target
    mix = alltokens.TokenMix.draw(BATCH, GRID, seeded())
    assert 0 < mix.swapped.sum() < TOKENS
    tokens = mixed_by_hand(model.embed(images).flatten(1, 2), mix)
    image_logits, token_logits, _ = model.classify(model.encode(tokens.unflatten(1, GRID)))
    assert token_logits is not None

    def smoothed(targets: Tensor) -> Tensor:
        return targets * (1 - config.smoothing) + config.smoothing / CLASSES

    if config.rule == "zero_fill":
        mean, labelled = cell_average(dense_logits(maps, CLASSES), views, GRID)
        token_targets = mean.softmax(-1)
    else:
        token_targets, labelled = cell_average(dense_probabilities(maps, CLASSES), views, GRID)
    token_losses = -(mixed_by_hand(smoothed(token_targets), mix) * token_logits.log_softmax(-1)).sum(-1)
    token_loss = token_losses[mixed_by_hand(labelled, mix)].mean()

    kept = 1 - mix.swapped.double().mean()
    image_targets = smoothed(image_target_by_hand(config.image_target, target))
    image_targets = kept * image_targets + (1 - kept) * image_targets.flip(0)
    image_loss = -(image_targets * image_logits.log_softmax(-1)).sum(-1).mean()
    loss = image_loss + config.beta * token_loss
    return {"loss": loss, "output": image_logits, "image_loss": image_loss, "token_loss": token_loss}


def check_against_dense(config: TokenLabelConfig | None, target: Any) -> None:
    model = lively(CONFIG).double()
    ours = task_of(model, config)(IMAGES.double(), target)
    theirs = dense_formula(model, IMAGES.double(), target, config or TokenLabelConfig())
    # The labels' one-hot targets are float32.
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad(answer["loss"], [*model.parameters()]) for answer in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_the_loss_is_that_of_the_image_plus_half_that_of_the_tokens() -> None:
    check_against_dense(None, target_of(torch.float64))


@pytest.mark.parametrize(
    "config",
    [
        TokenLabelConfig(beta=2.0, smoothing=0.0),
        TokenLabelConfig(rule="probabilities"),
        TokenLabelConfig(smoothing=0.3),
    ],
)
def test_every_field_of_the_config_counts(config: TokenLabelConfig) -> None:
    check_against_dense(config, target_of(torch.float64))


@pytest.mark.parametrize("choice", ["score_map", "blend"])
def test_the_image_may_be_compared_with_its_score_map(choice: str) -> None:
    labels, maps, _ = target_of(torch.float64)
    whole = torch.eye(2, 3, dtype=torch.float64).repeat(BATCH, 1, 1)
    check_against_dense(TokenLabelConfig(image_target=choice), (labels, maps, whole))


def test_a_model_from_timm_has_the_loss_of_the_model_in_it() -> None:
    model = through_timm()
    from_timm, ours = (task_of(each)(IMAGES, target_of()) for each in (model, model.model))
    torch.testing.assert_close(from_timm, ours, rtol=0, atol=0)


def test_every_step_draws_another_mix() -> None:
    task = task_of(lively(CONFIG))
    assert len({float(task(IMAGES, target_of())["loss"].detach()) for _ in range(3)}) == 3


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.prediction_heads == BOTH_HEADS])
def test_gradients_reach_every_parameter(kind: str) -> None:
    model = lively(KINDS[kind])
    task_of(model)(IMAGES, target_of())["loss"].backward()
    assert [name for name, each in model.named_parameters() if each.grad is None or not each.grad.any()] == []


def test_steps_on_a_batch_lower_its_loss() -> None:
    task = task_of(through_timm())
    optimizer = create_optimizer_v2(task.get_trainable_module(), opt="adamw", lr=1e-2, weight_decay=0.05)
    losses = []
    for _ in range(30):
        task.generator.manual_seed(3)
        loss = task(IMAGES, target_of())["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_half_precision_logits_are_summed_in_float32() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        answer = task_of(lively(CONFIG))(IMAGES, target_of())
    assert answer["output"].dtype == torch.bfloat16
    assert {answer[name].dtype for name in ("loss", "image_loss", "token_loss")} == {torch.float32}


def test_what_timm_evaluates_is_the_model_as_it_was_handed_in() -> None:
    model = through_timm()
    task = task_of(model).eval()
    assert task.get_eval_model() is model
    assert not model.training
    assert task.train().get_eval_model().training
    with torch.no_grad():
        scores = model.model.eval()(IMAGES).scores(0.5)
        torch.testing.assert_close(task.eval().get_eval_model()(IMAGES), scores)


def test_moving_the_task_moves_the_model() -> None:
    task = task_of(through_timm()).to(torch.float64)
    assert task.dtype == torch.float64
    assert {each.dtype for each in task.get_eval_model().parameters()} == {torch.float64}


def test_the_average_of_weights_is_a_model_too() -> None:
    task = task_of(through_timm())
    task.setup_ema(decay=0.5)
    before = task.get_eval_model().get_classifier().weight.detach().clone()
    with torch.no_grad():
        task.get_eval_model().get_classifier().weight.add_(1.0)
    task.update_ema()
    average = task.get_eval_model(ema=True)
    torch.testing.assert_close(average.get_classifier().weight, before + 0.5)
    assert average(IMAGES).shape == (BATCH, CLASSES)


def test_checkpoints_of_timm_hold_the_model_alone_and_resume(tmp_path: Path) -> None:
    task, fresh = task_of(through_timm()), task_of(through_timm())
    for each in (task, fresh):
        each.setup_ema()
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.add_(0.1)
    optimizer = torch.optim.SGD(task.get_trainable_module().parameters(), lr=0.1)
    saver = CheckpointSaver(task.get_trainable_module(), optimizer, checkpoint_dir=tmp_path, task=task)
    saver._save(tmp_path / "last.pth.tar", epoch=2)
    stored = torch.load(tmp_path / "last.pth.tar")
    assert set(stored["state_dict"]) == set(stored["state_dict_ema"]) == set(through_timm().state_dict())
    assert resume_task_checkpoint(fresh, tmp_path / "last.pth.tar") == 3
    load_task_ema_checkpoint(fresh, tmp_path / "last.pth.tar")
    torch.testing.assert_close(dict(fresh.named_parameters()), dict(task.named_parameters()))


def test_positions_and_class_tokens_are_not_decayed() -> None:
    module = task_of(through_timm()).get_trainable_module()
    assert module.no_weight_decay() == {"model.model.class_tokens", "model.model.positions.table"}
    assert module.no_weight_decay() < dict(module.named_parameters()).keys()
    assert task_of(lively(CONFIG)).get_trainable_module().no_weight_decay() == set()


def test_layer_decay_groups_the_parameters_of_the_task_as_those_of_the_model() -> None:
    model = through_timm()
    of_model, of_task = (
        {
            id(parameter): group["lr_scale"]
            for group in param_groups_layer_decay(module)
            for parameter in group["params"]
        }
        for module in (model, task_of(model).get_trainable_module())
    )
    assert of_task == of_model
    assert len(set(of_model.values())) == CONFIG.depth + 2


def test_gradients_are_clipped_for_all_parameters_or_for_those_of_no_head() -> None:
    model = lively(CONFIG)
    task = task_of(model)
    heads = {*model.head.parameters(), *model.token_head.parameters()}
    assert set(task.get_clip_parameters()) == set(model.parameters())
    assert set(task.get_clip_parameters(exclude_head=True)) == set(model.parameters()) - heads


@pytest.fixture
def one_process() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_it_trains_under_ddp_with_the_same_gradients(one_process: None) -> None:
    plain, wrapped = task_of(through_timm()), task_of(through_timm())
    assert wrapped.prepare_distributed() is wrapped
    for task in (plain, wrapped):
        with task.no_sync():
            task(IMAGES, target_of())["loss"].backward()
        task(IMAGES, target_of())["loss"].backward()
    ours, theirs = ([each.grad for each in task.get_clip_parameters()] for task in (wrapped, plain))
    torch.testing.assert_close(ours, theirs)
    assert set(wrapped.get_checkpoint_state()["state_dict"]) == set(through_timm().state_dict())


@pytest.mark.parametrize(("verbose", "lines"), [(True, 1), (False, 0)])
def test_it_tells_its_config_to_the_log_where_asked(
    verbose: bool, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        task = TokenLabelTask(lively(CONFIG), seeded(), verbose=verbose)
    assert caplog.messages == [f"TokenLabelTask: {task.config}"] * lines


def test_a_model_without_an_embedding_to_mix_after_is_refused() -> None:
    with pytest.raises(UserError) as error:
        task_of(alltokens.create_model("timm/resnet18", classes=5, image_size=32))
    assert str(error.value) == (
        "MixToken needs a model that can embed, encode and classify: a VisionTransformer of alltokens, built "
        "directly or by timm.create_model; got a TimmClassifier"
    )


@pytest.mark.parametrize("dropped", [False, True])
def test_a_model_without_a_token_head_is_refused(dropped: bool) -> None:
    model = through_timm() if dropped else lively(TINY)
    if dropped:
        model.reset_classifier(0)
    with pytest.raises(UserError) as error:
        task_of(model)
    assert str(error.value) == ("token labels need a model with a token head, as lvvit_s has; got one without")


def test_a_model_with_a_distillation_head_is_refused() -> None:
    with pytest.raises(UserError) as error:
        task_of(lively(KINDS["cait distilled"]))
    assert str(error.value) == (
        "token labels train no distillation head; got a model with distillation_token=True, build it without"
    )


def test_layer_decay_is_refused_for_a_model_that_knows_no_layers() -> None:
    with pytest.raises(UserError, match=r"^layer decay needs a model from timm.create_model; got a VisionTransformer$"):
        param_groups_layer_decay(task_of(lively(CONFIG)).get_trainable_module())


@pytest.mark.parametrize(
    ("target", "got"),
    [(LABELS, "Tensor"), ((LABELS,), "(Tensor)"), ((LABELS, LABELS, [1.0]), "(Tensor, Tensor, list)")],
)
def test_a_target_without_score_maps_is_refused(target: Any, got: str) -> None:
    with pytest.raises(UserError) as error:
        task_of(lively(CONFIG))(IMAGES, target)
    assert str(error.value) == f"the target must be (class labels, ScoreMaps, views [b, 2, 3]); got {got}"


@pytest.mark.parametrize(
    ("name", "value"),
    [("participation", 0.5), ("finish", FinishConfig(erase=0.0)), ("mix", MixConfig(alpha=0.8))],
)
def test_fields_that_would_have_no_effect_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UserError) as error:
        task_of(lively(CONFIG), TokenLabelConfig(**{name: value}))
    assert str(error.value) == (
        f"{name} has no effect on the task for timm; got {value}, leave it out or train with TokenLabeling"
    )
