"""The batches of epochs, made by worker processes whose number changes nothing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from alltokens.data.batch import Batch
from alltokens.data.memory import Memory
from alltokens.data.order import Share, epoch_order
from alltokens.data.samples import EvaluationSamples, TrainSamples
from alltokens.errors import UserError, require
from alltokens.workers import begin_worker

CPU = torch.device("cpu")


class TrainLoader:
    """A process's share of one epoch after the other; workers may stay, as each takes some 50 ms to start and end."""

    def __init__(
        self, samples: TrainSamples, share: Share, workers: int = 0, device: torch.device = CPU, stay: bool = True
    ) -> None:
        assert share.drop_last, "batches of training are whole"
        self.samples, self.share = samples, share
        count = share.batches(len(samples.source))
        self.loader = Loader(partial(train_batch, samples, share.repeats), min(workers, count), device, stay)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Its batches from `first` on; pinned where they are for a GPU."""
        order = order_of(len(self.samples.source), self.samples.seed, epoch, self.share.repeats)
        return self.loader.batches([(epoch, places) for places in self.share.places(len(order), first)])

    def close(self) -> None:
        """Let the workers end, once no epoch is left that was begun and not closed."""
        del self.loader


order_of = lru_cache(maxsize=1)(epoch_order)
"""That of the epoch asked for last; forked workers find the one of their first epoch made."""


def train_batch(samples: TrainSamples, repeats: int, epoch: int, places: range, memory: Memory | None) -> Batch:
    """The samples of some places of an epoch."""
    order = order_of(len(samples.source), samples.seed, epoch, repeats)
    return samples.batch(epoch, order, places, memory)


def train_batches(
    samples: TrainSamples, share: Share, epoch: int, first: int = 0, workers: int = 0, device: torch.device = CPU
) -> Iterator[Batch]:
    """A process's share of one epoch's batches from `first` on; workers end with the iterator, or when it is closed."""
    return TrainLoader(samples, share, workers, device, stay=False).epoch(epoch, first)


def evaluation_batches(
    samples: EvaluationSamples, share: Share, workers: int = 0, device: torch.device = CPU
) -> Iterator[Batch]:
    """A process's share of all images, in as many batches as every other process has; its last may be empty."""
    assert not share.drop_last, "every image is evaluated"
    places = share.places(len(samples.source))
    loader = Loader(samples.batch, min(workers, len(places)), device, stay=False)
    return loader.batches([(own,) for own in places])


PREFETCHED = 2
"""Batches that a worker makes ahead."""
TURNS = PREFETCHED + 1
"""Of a worker's memory: torch asks for a batch more when it hands on one, which is copied before the next is."""


@dataclass(frozen=True)
class WholeBatches:
    """A data set for torch's loader whose items are whole batches."""

    make: Callable[..., Batch]
    """Is called with what an item is asked for by, and the memory for it."""
    turns: list[Memory] = field(default_factory=lambda: [Memory(shared=True) for _ in range(TURNS)])
    """What a worker writes its batches to."""

    def __getitem__(self, wanted: tuple[Any, ...]) -> Batch | UserError:
        """A mistake is handed over as it is: torch would bury its sentence in a worker's traceback."""
        try:
            return self.make(*wanted, self.memory())
        except UserError as error:
            return error

    def memory(self) -> Memory | None:
        """Of a worker, what its next batch is written to."""
        if get_worker_info() is None:
            return None
        self.turns.append(self.turns.pop(0))
        self.turns[-1].used = 0
        return self.turns[-1]


class Loader:
    """Batches in the order they are asked for, by workers that end with the last of them or, if they stay, with it."""

    def __init__(self, make: Callable[..., Batch], workers: int, device: torch.device, stay: bool) -> None:
        require(workers >= 0, f"workers must be at least 0; got workers={workers}")
        self.wanted: list[tuple[Any, ...]] = []
        self.loader = DataLoader[Batch | UserError](
            cast(Dataset[Batch | UserError], WholeBatches(make)),
            batch_size=None,
            sampler=self.wanted,
            num_workers=workers,
            prefetch_factor=PREFETCHED if workers else None,
            persistent_workers=stay and workers > 0,
            pin_memory=device.type == "cuda",
            worker_init_fn=begin_worker,
            # torch draws a seed for its workers; from the global state, the model's randomness would depend on it.
            generator=torch.Generator(),
        )

    def batches(self, wanted: Sequence[tuple[Any, ...]]) -> Iterator[Batch]:
        """Batches until there is a mistake, which is raised."""
        self.wanted[:] = wanted
        for item in self.loader:
            if isinstance(item, UserError):
                raise item
            # A worker uses its memory again; what is pinned is a copy already.
            yield item.with_each(torch.clone) if self.loader.num_workers and not self.loader.pin_memory else item
