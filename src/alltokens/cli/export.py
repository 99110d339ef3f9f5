"""`alltokens export`: a model in a form that others load, checked against eager before it is kept."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional, UseCounterAction

from alltokens.cli.flags import parse
from alltokens.errors import UserError
from alltokens.export.hub import CONFIG_FILE, WEIGHTS_FILE, write_hub, write_timm
from alltokens.export.onnx import require_onnx, write_onnx
from alltokens.export.scores import Record, Written, record
from alltokens.export.torch_export import write_torch_export
from alltokens.models.factory import is_name, open_model
from alltokens.models.weights import Model, read_weights

Format = Literal["onnx", "torch-export", "timm", "hub"]

WRITERS: dict[Format, Callable[[Model, Record, Path], Written]] = {
    "onnx": write_onnx,
    "torch-export": write_torch_export,
    "timm": write_timm,
    "hub": write_hub,
}
WEIGHT_ENDINGS = {".safetensors", ".pt", ".pth", ".tar", ".bin", ".ckpt"}
ENDINGS: dict[Format, str] = {"onnx": ".onnx", "torch-export": ".pt2", "timm": ".timm.safetensors", "hub": "-hub"}


@dataclass(frozen=True)
class Flags:
    """A model in a form that others load: images in, evaluation scores out, for batches of any size.

    What is written is loaded back and its scores are compared with the model's own; it is kept if they agree.
    """

    model: Positional[str]
    """One of 'alltokens models', timm/NAME, or the path of a checkpoint."""
    format: Format
    """An ONNX file; a .pt2 file for torch; a weight file with timm's names; a folder that timm and the Hub take."""
    output: Path | None = None
    """Where to; None is the current folder, under the model's name."""
    name: str | None = None
    """Which model a checkpoint is of that does not say so itself."""
    crop_ratio: float | None = None
    """Side of the evaluation crop over the shorter side, which is recorded; None takes the run's, or the published."""
    overwrite: UseCounterAction[int] = 0
    """Replace what is there."""


def run(arguments: list[str]) -> None:
    """Write the model and print where, how large, and how far from eager."""
    flags = parse(Flags, arguments, "alltokens export")
    fresh = is_name(flags.model)
    if fresh and flags.name is not None:
        raise UserError(f"--name is for checkpoints, and '{flags.model}' is a model; got --name {flags.name}")
    name = model_name(flags.model, fresh)
    output = flags.output or Path(name + ENDINGS[flags.format])
    refuse_output(output, flags.format, bool(flags.overwrite))
    if flags.format == "onnx":
        require_onnx()
    model = open_model(flags.model, flags.name).float()
    usage = None if fresh else read_weights(flags.model).usage
    about = record(model, flags.name or name, flags.crop_ratio, usage)
    written = WRITERS[flags.format](model, about, output)
    print(f"wrote {output}, {size(output) / 1e6:.1f} MB")
    print(f"largest difference from eager: {written.difference:.1e}")
    for note in written.notes:
        print(note)
    if fresh:
        print("its weights are a fresh draw: give the path of a checkpoint for trained ones")


def model_name(source: str, is_known: bool) -> str:
    """The model's name, timm's without the prefix, or a checkpoint's without its endings."""
    path = Path(source)
    while not is_known and path.suffix in WEIGHT_ENDINGS:
        path = path.with_suffix("")
    return path.name


def refuse_output(output: Path, form: Format, overwrite: bool) -> None:
    """Raise unless the output can be put there, and nothing is lost by it."""
    folder = form == "hub"
    ending = Path(f"model{ENDINGS[form]}").suffix
    if ending and output.suffix != ending:
        raise UserError(f"--format {form} writes a {ending} file; got --output {output}")
    if not output.parent.is_dir():
        raise UserError(f"cannot write '{output}': '{output.parent}' is not a folder; create it first")
    if not output.exists():
        return
    if output.is_dir() != folder:
        kinds = ("a folder", "a file") if folder else ("a file", "a folder")
        raise UserError(f"--format {form} writes {kinds[0]}, but '{output}' is {kinds[1]}; give another --output")
    if not overwrite:
        raise UserError(f"'{output}' is there already; give --overwrite to replace it or another --output")
    others = sorted({path.name for path in output.iterdir()} - {CONFIG_FILE, WEIGHTS_FILE}) if folder else []
    if others:
        raise UserError(f"'{output}' holds more than an exported model ({others[0]}), so it is not replaced")


def size(output: Path) -> int:
    """Bytes of the file, or of the files in the folder."""
    return sum(path.stat().st_size for path in (output.iterdir() if output.is_dir() else [output]))
