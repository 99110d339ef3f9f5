"""A run that goes on from a checkpoint is the run that never stopped, and no checkpoint is ever half there."""

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from alltokens.errors import UserError
from alltokens.export.hub import write_hub
from alltokens.export.scores import record
from alltokens.models.factory import open_model
from alltokens.models.timm_model import TimmClassifier, TimmConfig
from alltokens.models.vit import VisionTransformer
from alltokens.train.average import Average
from alltokens.train.checkpoint import (
    Checkpoint,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
)
from alltokens.train.optimizer import OptimizerConfig, build_optimizer

from ..faults import calls_of, needs_strace, run_with_fault
from ..kinds import DROPPING, KINDS, TINY, images_for

FILES = sorted(
    name + suffix
    for name in ("model.safetensors", "training.safetensors", "training.json")
    for suffix in ("", ".sha256")
)
# A batch norm has a count among its buffers, and drop path draws random numbers.
CONFIG = replace(DROPPING, stem=KINDS["lvvit"].stem)


class Run:
    """A small training run: an objective, its optimizer and the average of its model."""

    def __init__(self, config: OptimizerConfig, seed: int) -> None:
        torch.manual_seed(seed)
        self.objective = nn.ModuleDict({"model": VisionTransformer(CONFIG)})
        self.optimizer = build_optimizer(self.objective, config, 8)
        self.average = Average(self.objective["model"])
        self.step = 0

    def train(self, steps: int) -> None:
        model = self.objective["model"]
        for _ in range(steps):
            torch.manual_seed(self.step)
            self.optimizer.zero_grad()
            model(images_for(CONFIG, seed=self.step)).image_logits.square().sum().backward()
            self.optimizer.step()
            self.average.update(0.9)
            self.step += 1

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            model=self.average.module,
            weights=self.objective.state_dict(),
            optimizer=optimizer_tensors(self.optimizer, self.objective),
            counters={"step": self.step, "loss": 0.1 + 0.2, "run": "a"},
        )

    def resume(self, checkpoint: Checkpoint) -> None:
        self.objective.load_state_dict(checkpoint.weights)
        self.average.module.load_state_dict(checkpoint.model.state_dict())
        restore_optimizer(self.optimizer, self.objective, checkpoint.optimizer)
        self.step = checkpoint.counters["step"]


def tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """All of a checkpoint's, to compare."""
    found = {f"model {name}": value for name, value in checkpoint.model.state_dict().items()}
    parts = {"weights": checkpoint.weights, "optimizer": checkpoint.optimizer}
    return found | {f"{part} {name}": value for part, values in parts.items() for name, value in values.items()}


def same(one: Checkpoint, other: Checkpoint) -> bool:
    first, second = tensors(one), tensors(other)
    return (
        one.counters == other.counters
        and first.keys() == second.keys()
        and all(value.dtype == second[name].dtype and torch.equal(value, second[name]) for name, value in first.items())
    )


OPTIMIZERS = {
    "adamw": OptimizerConfig(),
    "adamw with layer decay": OptimizerConfig(layer_decay=0.7),
    "sgd": OptimizerConfig(kind="sgd"),
    "sgd without momentum": OptimizerConfig(kind="sgd", momentum=0.0),
    "lamb": OptimizerConfig(kind="lamb"),
}


@pytest.mark.parametrize("config", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_resumed_run_ends_bit_identical_to_one_without_a_stop(tmp_path, config):
    whole = Run(config, seed=0)
    whole.train(2)
    save_checkpoint(tmp_path / "last", whole.checkpoint())
    whole.train(3)
    resumed = Run(config, seed=1)
    resumed.train(1)
    # The optimizer's memory is replaced, whatever it was.
    resumed.resume(load_checkpoint(tmp_path / "last"))
    resumed.train(3)
    assert same(resumed.checkpoint(), whole.checkpoint())


def test_a_resumed_run_does_not_write_into_the_checkpoint_it_came_from(tmp_path):
    run = Run(OptimizerConfig(), seed=0)
    run.train(1)
    save_checkpoint(tmp_path / "last", run.checkpoint())
    loaded = load_checkpoint(tmp_path / "last")
    run.resume(loaded)
    run.train(1)
    assert same(loaded, load_checkpoint(tmp_path / "last"))


def test_a_checkpoint_before_the_first_step_is_one_too(tmp_path):
    run = Run(OptimizerConfig(kind="lamb"), seed=0)
    save_checkpoint(tmp_path / "last", run.checkpoint())
    run.train(2)
    wanted = run.checkpoint()
    other = Run(OptimizerConfig(kind="lamb"), seed=1)
    other.resume(load_checkpoint(tmp_path / "last"))
    other.train(2)
    assert same(other.checkpoint(), wanted)


@pytest.fixture(scope="module")
def saved() -> list[Checkpoint]:
    """The same run, early and late."""
    run = Run(OptimizerConfig(), seed=0)
    found = []
    for _ in range(2):
        run.train(1)
        frozen = run.checkpoint()
        model = VisionTransformer(CONFIG)
        model.load_state_dict(frozen.model.state_dict())
        copy = {name: value.clone() for name, value in frozen.weights.items()}
        optimizer = {name: value.clone() for name, value in frozen.optimizer.items()}
        found.append(replace(frozen, model=model, weights=copy, optimizer=optimizer))
    return found


def test_what_is_saved_is_loaded(tmp_path, saved):
    save_checkpoint(tmp_path / "last", saved[0])
    assert same(load_checkpoint(tmp_path / "last"), saved[0])
    assert not same(saved[0], saved[1])


def test_a_folder_holds_a_model_tensors_and_counters_with_their_checksums(tmp_path, saved):
    save_checkpoint(tmp_path / "last", saved[0])
    assert sorted(path.name for path in (tmp_path / "last").iterdir()) == FILES
    assert json.loads((tmp_path / "last" / "training.json").read_text()) == {"step": 1, "loss": 0.1 + 0.2, "run": "a"}


def test_a_later_checkpoint_takes_the_place_of_an_earlier_one(tmp_path, saved):
    for checkpoint in saved:
        save_checkpoint(tmp_path / "last", checkpoint)
    assert same(load_checkpoint(tmp_path / "last"), saved[1])
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_the_model_in_it_is_opened_alone_and_through_timm(tmp_path):
    torch.manual_seed(0)
    model = VisionTransformer(TINY)
    empty = {"weights": {}, "optimizer": {}, "counters": {}}
    save_checkpoint(tmp_path / "last", Checkpoint(model=model, **empty))
    opened = open_model(tmp_path / "last" / "model.safetensors").eval()
    images = images_for(TINY)
    assert torch.equal(opened(images).image_logits, model.eval()(images).image_logits)
    write_hub(opened, record(opened, "tiny", 0.9), tmp_path / "hub")
    in_timm = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).eval()
    torch.testing.assert_close(in_timm(images), opened(images).image_logits, rtol=0, atol=1e-5)


def test_timms_models_are_kept_as_well(tmp_path):
    model = TimmClassifier(TimmConfig(name="test_resnet", classes=3, image_size=(32, 32), token_head=True))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    save_checkpoint(tmp_path / "last", Checkpoint(model=model, weights=state, optimizer={}, counters={"step": 0}))
    loaded = load_checkpoint(tmp_path / "last")
    assert loaded.model.config == model.config
    assert all(torch.equal(value, state[name]) for name, value in loaded.model.state_dict().items())


def test_no_checkpoint_is_one_sentence(tmp_path):
    with pytest.raises(UserError) as raised:
        load_checkpoint(tmp_path / "last")
    assert str(raised.value) == f"there is no checkpoint '{tmp_path}/last'"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_a_damaged_file_is_one_sentence(tmp_path, saved, name, damage):
    folder = tmp_path / "last"
    save_checkpoint(folder, saved[0])
    content = (folder / name).read_bytes()
    match damage:
        case "gone":
            (folder / name).unlink()
        case "cut":
            (folder / name).write_bytes(content[: len(content) // 2])
        case "changed":
            (folder / name).write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    sentence = "does not exist" if damage == "gone" else "is damaged"
    start = re.escape(f"cannot go on from the checkpoint '{folder}': '{folder}/{name.removesuffix('.sha256')}")
    with pytest.raises(UserError, match=rf"^{start}.*{sentence}"):
        load_checkpoint(folder)


def test_a_kill_between_the_renames_is_put_right_by_the_next_save(tmp_path, saved):
    save_checkpoint(tmp_path / "last", saved[0])
    (tmp_path / "last").rename(tmp_path / ".last.0123abcd.old")
    (tmp_path / ".last.0123abcd.part").mkdir()
    assert same(load_checkpoint(tmp_path / "last"), saved[0])
    save_checkpoint(tmp_path / "last", saved[1])
    assert same(load_checkpoint(tmp_path / "last"), saved[1])
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_memory_of_parameters_that_are_not_there_is_refused():
    module = nn.Linear(2, 2)
    optimizer = build_optimizer(module, OptimizerConfig(), 8)
    with pytest.raises(UserError) as raised:
        restore_optimizer(optimizer, module, {"other.weight/exp_avg": torch.zeros(2, 2)})
    assert str(raised.value) == (
        "the checkpoint's optimizer has 'other.weight/exp_avg', of no parameter here; train the model it is of"
    )


def test_an_optimizers_memory_is_laid_out_as_its_parameters_are():
    module = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = build_optimizer(module, OptimizerConfig(), 8)
    memory = torch.randn(4, 3, 3, 3)
    restore_optimizer(optimizer, module, {"weight/exp_avg": memory, "weight/step": torch.tensor(3.0)})
    restored = optimizer.state[module.weight]
    assert restored["exp_avg"].stride() == module.weight.stride() != memory.stride()
    assert restored["exp_avg"].equal(memory)
    assert restored["step"] == 3


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["signal=KILL", "error=ENOSPC", "error=EIO"])
def test_a_fault_at_every_call_of_a_save_leaves_the_earlier_or_the_later_checkpoint(tmp_path: Path, fault: str):
    torch.manual_seed(0)
    config = replace(TINY, width=8, heads=1, depth=1)
    earlier, later = (
        Checkpoint(
            model=(model := VisionTransformer(config)),
            weights=model.state_dict(),
            optimizer={"a/exp_avg": torch.randn(3)},
            counters={"step": step},
        )
        for step in (1, 2)
    )
    folder, kept = tmp_path / "run" / "last", tmp_path / "kept"
    folder.parent.mkdir()
    save_checkpoint(folder, earlier)
    shutil.copytree(folder.parent, kept)

    def save() -> None:
        save_checkpoint(folder, later)

    calls = calls_of(save)
    assert {"openat", "write", "fsync", "rename", "unlink", "mkdir", "unlinkat"} <= {name for name, _ in calls}
    found = set()
    for call in calls:
        shutil.rmtree(folder.parent)
        shutil.copytree(kept, folder.parent)
        status = run_with_fault(save, call, fault)
        assert status == -signal.SIGKILL if fault == "signal=KILL" else status in (0, 1)
        loaded = load_checkpoint(folder)
        step = loaded.counters["step"]
        assert same(loaded, later if step == 2 else earlier), call
        assert status != 0 or step == 2, call
        found.add(step)
        save()
        assert same(load_checkpoint(folder), later), call
        assert [path.name for path in folder.parent.iterdir()] == ["last"], call
        assert sorted(path.name for path in folder.iterdir()) == FILES, call
    assert found == {1, 2}
