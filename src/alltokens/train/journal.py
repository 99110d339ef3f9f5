"""What a run reports: a line of JSON each time in metrics.jsonl, and the same for TensorBoard and Weights & Biases."""

import errno
import json
import os
import secrets
from pathlib import Path
from typing import Any

from alltokens.errors import UserError, require
from alltokens.files import write_atomically
from alltokens.train.machine import Boards

Report = dict[str, int | float | str]
WANDB_ID = "wandb_id"


class Journal:
    """Appends to a run's metrics, after as many bytes as its checkpoint knows of."""

    def __init__(self, path: str | Path, known: int = 0) -> None:
        self.path = Path(path)
        content = self.path.read_bytes() if self.path.exists() else b""
        if known and content[known - 1 : known] != b"\n":
            raise UserError(
                f"'{self.path}' is not the file that the checkpoint knows: no line ends at byte {known} of its "
                f"{len(content)}; put back the run's own, or train in another folder"
            )
        self.file = self.path.open("ab", buffering=0)
        # What was reported after the checkpoint is reported again by the run that goes on from it.
        self.file.truncate(known)

    def report(self, values: Report) -> None:
        """Append one line, for readers to see at once."""
        try:
            line = json.dumps(values, allow_nan=False).encode() + b"\n"
        except ValueError as error:
            raise UserError(f"only finite numbers can be reported; got {values}") from error
        try:
            # A disk that fills up takes a part of the line before it fails.
            full = self.file.write(line) < len(line)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            full = True
        require(not full, f"cannot write '{self.path}': the disk is full; free some space and run again")

    def size(self) -> int:
        """Bytes that are on the disk for good: what a checkpoint is to know."""
        os.fsync(self.file.fileno())
        return self.path.stat().st_size

    def close(self) -> None:
        """Nothing more is reported."""
        self.file.close()


def read_reports(path: str | Path) -> list[Report]:
    """All reports; a last line that is still being written is left out."""
    lines = Path(path).read_bytes().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


class TensorBoard:
    """The numbers of reports as TensorBoard's curves."""

    def __init__(self, folder: str | Path, step: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                "TensorBoard needs the package tensorboard; install it with pip install 'alltokens[tensorboard]'"
            ) from error
        # Of a run that goes on, TensorBoard forgets what lies after the step.
        self.writer: Any = SummaryWriter(str(folder), purge_step=step or None)

    def report(self, step: int, values: Report) -> None:
        """One point of every curve."""
        for name, value in values.items():
            if not isinstance(value, str):
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still in memory."""
        self.writer.close()


class WeightsAndBiases:
    """The numbers of reports in a project of Weights & Biases; without a connection wandb keeps them in the folder."""

    def __init__(self, folder: Path, project: str) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError(
                "Weights & Biases needs the package wandb; install it with pip install 'alltokens[wandb]'"
            ) from error
        path = folder / WANDB_ID
        if not path.exists():
            name = secrets.token_hex(8).encode()
            write_atomically(path, lambda file: file.write(name))
        # By the id in the run's folder, a run that goes on is the same run there.
        try:
            self.run: Any = wandb.init(
                project=project, name=folder.name, id=path.read_text(), resume="allow", dir=str(folder)
            )
        except wandb.Error as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise UserError(f"Weights & Biases refuses the run: {reason}; log in, or set WANDB_MODE=offline") from error

    def report(self, step: int, values: Report) -> None:
        """One point of every curve; of a step that was reported before a stop, wandb keeps the first."""
        self.run.log(values, step=step)

    def close(self) -> None:
        """Send, or write, what is still in memory."""
        self.run.finish()


def open_boards(boards: Boards, folder: Path, step: int) -> list[TensorBoard | WeightsAndBiases]:
    """All that are asked for, of a run that is at this step."""
    found: list[TensorBoard | WeightsAndBiases] = []
    if boards.tensorboard:
        found.append(TensorBoard(folder / "tensorboard", step))
    if boards.wandb is not None:
        found.append(WeightsAndBiases(folder, boards.wandb))
    return found
