"""The batches of an epoch, made by worker processes whose number changes nothing."""

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch.utils.data import DataLoader, Dataset

from alltokens.data.batch import Batch
from alltokens.data.order import Share, epoch_order
from alltokens.data.samples import EvaluationSamples, TrainSamples
from alltokens.errors import UserError, require

CPU = torch.device("cpu")


def train_batches(
    samples: TrainSamples, share: Share, epoch: int, first: int = 0, workers: int = 0, device: torch.device = CPU
) -> Iterator[Batch]:
    """A process's share of an epoch's batches from `first` on; pinned where they are for a GPU."""
    assert share.drop_last, "batches of training are whole"
    order = epoch_order(len(samples.source), samples.seed, epoch, share.repeats)
    return batches(partial(samples.batch, epoch, order), share.places(len(order), first), workers, device)


def evaluation_batches(
    samples: EvaluationSamples, share: Share, workers: int = 0, device: torch.device = CPU
) -> Iterator[Batch]:
    """A process's share of all images, in as many batches as every other process has; its last may be empty."""
    assert not share.drop_last, "every image is evaluated"
    return batches(samples.batch, share.places(len(samples.source)), workers, device)


@dataclass(frozen=True)
class WholeBatches:
    """A data set for torch's loader whose items are whole batches."""

    make: Callable[[range], Batch]
    places: Sequence[range]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> Batch | UserError:
        """A mistake is handed over as it is: torch would bury its sentence in a worker's traceback."""
        try:
            return self.make(self.places[number])
        except UserError as error:
            return error


def batches(
    make: Callable[[range], Batch], places: Sequence[range], workers: int, device: torch.device
) -> Iterator[Batch]:
    """The batches of these places in order; workers end with the iterator, or when it is closed."""
    require(workers >= 0, f"workers must be at least 0; got workers={workers}")
    loader = DataLoader[Batch | UserError](
        cast(Dataset[Batch | UserError], WholeBatches(make, places)),
        batch_size=None,
        num_workers=min(workers, len(places)),
        pin_memory=device.type == "cuda",
        worker_init_fn=leave_interrupts,
        # torch draws a seed for its workers; from the global state, the model's randomness would depend on it.
        generator=torch.Generator(),
    )
    return unwrapped(loader)


def unwrapped(loader: DataLoader[Batch | UserError]) -> Iterator[Batch]:
    """Batches until there is a mistake, which is raised."""
    for item in loader:
        if isinstance(item, UserError):
            raise item
        yield item


def leave_interrupts(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal; what becomes of the run is for the main one to say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
