"""All that a run needs to go on as if it had never stopped: a folder written whole, of tensors and JSON alone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from alltokens.errors import UserError
from alltokens.files import tidy_folder, verify, whole_folder, write_atomically, write_checksum, write_folder
from alltokens.models.factory import open_model
from alltokens.models.usage import Usage
from alltokens.models.weights import Model, save_model
from alltokens.train.sharding import Tensors, sharded_like

MODEL, TENSORS, COUNTERS = "model.safetensors", "training.safetensors", "training.json"
FILES = MODEL, TENSORS, COUNTERS
GROUP = "group "
"""Before the number of a group of parameters, in place of a parameter's name."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """Where a run stands between two steps."""

    model: Model
    """The model to use: with averaged weights, where they are averaged."""
    weights: Tensors
    """What is trained, as the objective's state dict."""
    optimizer: Tensors
    """From `optimizer_tensors`."""
    counters: dict[str, int | float | str]
    """Steps, epochs, the journal's size and the like."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint, usage: Usage | None = None) -> None:
    """Write the folder; whatever interrupts that, the earlier one or this one is there afterwards, whole.

    Renaming over a folder that is not empty takes two steps on every file system, where exchanging two folders in one
    and links instead of folders do not work on all of them. A kill between the two leaves the earlier folder under
    another name, which `load_checkpoint` knows and the next save puts right. Only one process may save.
    """
    tidy_folder(folder)

    def fill(temporary: Path) -> None:
        save_model(checkpoint.model, temporary / MODEL, usage)
        write_checksum(temporary / MODEL)
        write_atomically(temporary / TENSORS, lambda file: file.write(save(flat(checkpoint))), checksum=True)
        text = json.dumps(checkpoint.counters, indent=2, allow_nan=False) + "\n"
        write_atomically(temporary / COUNTERS, lambda file: file.write(text.encode()), checksum=True)

    write_folder(folder, fill)


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read what `save_checkpoint` wrote, on the CPU."""
    whole = whole_folder(folder)
    if whole is None:
        raise UserError(f"there is no checkpoint '{folder}'")
    try:
        for name in FILES:
            verify(whole / name)
        model, counters = open_model(whole / MODEL), json.loads((whole / COUNTERS).read_bytes())
    except UserError as error:
        raise UserError(f"cannot go on from the checkpoint '{folder}': {error}") from error
    tensors = load_file(whole / TENSORS)
    return Checkpoint(
        model=model,
        weights=below("weights", tensors),
        optimizer=below("optimizer", tensors),
        counters=counters,
    )


def flat(checkpoint: Checkpoint) -> Tensors:
    """All tensors but the model's under names that say what they are of."""
    parts = {"weights": checkpoint.weights, "optimizer": checkpoint.optimizer}
    return {
        f"{part}/{name}": tensor.detach().cpu().contiguous()
        for part, tensors in parts.items()
        for name, tensor in tensors.items()
    }


def below(part: str, tensors: Tensors) -> Tensors:
    """The tensors of one part, under their own names."""
    return {name.removeprefix(f"{part}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{part}/")}


def optimizer_tensors(optimizer: torch.optim.Optimizer, module: nn.Module) -> Tensors:
    """The optimizer's memory by the names of the module's parameters; LAMB has some for each group as well."""
    tensors: Tensors = {}
    for name, parameter in module.named_parameters():
        tensors |= {f"{name}/{slot}": value for slot, value in tensors_in(optimizer.state.get(parameter, {})).items()}
    for place, group in enumerate(optimizer.param_groups):
        tensors |= {f"{GROUP}{place}/{slot}": value for slot, value in tensors_in(group).items()}
    return tensors


def restore_optimizer(optimizer: torch.optim.Optimizer, module: nn.Module, tensors: Tensors) -> None:
    """Give a fresh optimizer of the same config the memory of another."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    places = [f"{GROUP}{place}" for place in range(len(optimizer.param_groups))]
    known = {*names.values(), *places}
    for key in tensors:
        if key.rpartition("/")[0] not in known:
            raise UserError(f"the checkpoint's optimizer has '{key}', of no parameter here; train the model it is of")
    # torch's own way in, because it knows which tensors a fused step wants on the device.
    state = optimizer.state_dict()
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    slots = {place: memory_of(parameter, names[parameter], tensors) for place, parameter in enumerate(trained)}
    state["state"] = {place: values for place, values in slots.items() if values}
    for place, group in zip(places, state["param_groups"], strict=True):
        group |= copied(place, tensors)
    optimizer.load_state_dict(state)


def tensors_in(state: Mapping[str, object]) -> Tensors:
    """What is to be kept of an optimizer's state; the rest is its config."""
    return {slot: value for slot, value in state.items() if isinstance(value, Tensor)}


def memory_of(parameter: nn.Parameter, name: str, tensors: Tensors) -> Tensors:
    """What an optimizer remembers of a parameter, sharded and laid out as it is; a count of steps has another shape."""
    memory = copied(name, tensors)
    for slot, tensor in memory.items():
        if tensor.shape == parameter.shape:
            memory[slot] = torch.empty_like(parameter, dtype=tensor.dtype).copy_(sharded_like(tensor, parameter))
    return memory


def copied(part: str, tensors: Tensors) -> Tensors:
    """The optimizer works in place, and not on the checkpoint."""
    return {slot: tensor.clone() for slot, tensor in below(part, tensors).items()}
