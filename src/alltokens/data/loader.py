"""The batches of epochs, made by worker processes whose number changes nothing."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from queue import Empty, Queue
from threading import Event, Thread
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from alltokens.data.batch import Batch
from alltokens.data.memory import Memory, PinnedMemory
from alltokens.data.order import Share, epoch_order
from alltokens.data.parcel import Parcel
from alltokens.data.samples import EvaluationSamples, TrainSamples
from alltokens.errors import UserError, require
from alltokens.workers import begin_worker, end_workers_at_exit

CPU = torch.device("cpu")


def train_batches(
    samples: TrainSamples, share: Share, epochs: range, first: int = 0, workers: int = 0, device: torch.device = CPU
) -> Generator[Batch]:
    """A process's share of epochs one after the other, without a pause between them, the first one from `first` on.

    Batches are pinned where they are for a GPU. Workers end with the iterator, or when it is closed.
    """
    assert share.drop_last, "batches of training are whole"
    images = len(samples.source)
    left = len(epochs) * share.batches(images) - first
    wanted = (
        (epoch, places)
        for place, epoch in enumerate(epochs)
        for places in share.places(images, first if place == 0 else 0)
    )
    return batches(partial(train_batch, samples, share.repeats), wanted, min(workers, left), device)


def train_batch(samples: TrainSamples, repeats: int, epoch: int, places: range, memory: Memory | None) -> Batch:
    """The samples of some places of an epoch."""
    return samples.batch(epoch, order_of(len(samples.source), samples.seed, epoch, repeats), places, memory)


order_of = lru_cache(maxsize=1)(epoch_order)
"""That of the epoch asked for last: a worker goes from one to the next."""


def evaluation_batches(
    samples: EvaluationSamples, share: Share, workers: int = 0, device: torch.device = CPU
) -> Generator[Batch]:
    """A process's share of all images, in as many batches as every other process has; its last may be empty."""
    assert not share.drop_last, "every image is evaluated"
    wanted = [(places,) for places in share.places(len(samples.source))]
    return batches(samples.batch, wanted, min(workers, len(wanted)), device)


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

    def __getitem__(self, wanted: tuple[Any, ...]) -> Batch | Parcel | UserError:
        """A mistake is handed over as it is: torch would bury its sentence in a worker's traceback."""
        memory = self.memory()
        try:
            batch = self.make(*wanted, memory)
        except UserError as error:
            return error
        return batch if memory is None else Parcel.of(batch, memory)

    def memory(self) -> Memory | None:
        """Of a worker, what its next batch is written to."""
        if get_worker_info() is None:
            return None
        self.turns.append(self.turns.pop(0))
        self.turns[-1].used = 0
        return self.turns[-1]


def batches(
    make: Callable[..., Batch], wanted: Iterable[tuple[Any, ...]], workers: int, device: torch.device
) -> Generator[Batch]:
    """Batches in the order they are asked for."""
    require(workers >= 0, f"workers must be at least 0; got workers={workers}")
    loader = DataLoader[Batch | Parcel | UserError](
        cast(Dataset[Batch | Parcel | UserError], WholeBatches(make)),
        batch_size=None,
        sampler=wanted,
        num_workers=workers,
        prefetch_factor=PREFETCHED if workers else None,
        worker_init_fn=begin_worker,
        # torch draws a seed for its workers; from the global state, the model's randomness would depend on it.
        generator=torch.Generator(),
    )
    if device.type != "cuda":
        return handed_on(loader, None)
    # torch would pin all that its workers made ahead, in pieces of many sizes; each new one holds a GPU up.
    found = handed_on(loader, PinnedMemory(device))
    return fetched_ahead(found) if workers else found


def handed_on(loader: DataLoader[Batch | Parcel | UserError], pinned: PinnedMemory | None) -> Generator[Batch]:
    """Batches until there is a mistake, which is raised."""
    end_workers_at_exit()
    try:
        for item in loader:
            match item:
                case UserError():
                    raise item
                case Parcel():
                    # A worker uses its memory again.
                    yield item.copy(pinned).opened()
                case Batch():
                    yield item.pin_memory() if pinned else item
    except (ConnectionError, EOFError) as error:
        # Now and then it is this, and not torch's own watch, that tells of it.
        raise RuntimeError("DataLoader worker was killed, perhaps for want of memory; try fewer workers") from error


AHEAD = 2
"""Batches that are fetched before they are asked for."""
PATIENCE = 20.0
"""Seconds that a batch under way is waited for when no more are wanted; torch takes up to 5 to see that a worker was
killed, and as many to end the others."""


def fetched_ahead(batches: Generator[Batch]) -> Generator[Batch]:
    """The same; a thread copies the next ones to memory of their own."""
    # One more is in the thread's hands.
    fetched, is_closed = Queue[Batch | Exception | None](AHEAD - 1), Event()

    def fetch() -> None:
        try:
            for batch in batches:
                fetched.put(batch)
                if is_closed.is_set():
                    return
            fetched.put(None)
        except Exception as error:
            fetched.put(error)

    # A daemon, as Python waits for others at its exit: a worker may be stuck in reading a file.
    thread = Thread(target=fetch, daemon=True)
    try:
        # The first by this thread: workers are begun with it, and take the one that begins them for their main thread.
        yield from islice(batches, 1)
        thread.start()
        while (batch := fetched.get()) is not None:
            if isinstance(batch, Exception):
                try:
                    raise batch
                finally:
                    del batch  # It would keep this frame, which would keep it, and with it the workers.
            yield batch
    finally:
        is_closed.set()
        empty(fetched)
        if thread.ident is not None:
            thread.join(PATIENCE)
        if not thread.is_alive():
            empty(fetched)
            batches.close()


def empty(queue: Queue[Any]) -> None:
    """Let go of all that is in it, which makes room for who waits to put more in."""
    try:
        while True:
            queue.get_nowait()
    except Empty:
        pass
