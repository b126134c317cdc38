"""The DataLoaders of an epoch, one a mini-epoch: new workers for new rows, and the next rows read ahead in a thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from torch.utils.data import DataLoader

from lib.arguments import integer
from lib.data.meta import Packed
from lib.data.rank_dataset import RankDataset


def mini_epoch_loaders(
    dataset: RankDataset, epoch: int, *, batch_size: int, num_workers: int = 0, prefetch: bool = False, **options: Any
) -> Iterator[DataLoader[Any]]:
    """Yield a DataLoader for each mini-epoch of an epoch that has rows; its rows are loaded, in this process, by then.

        for loader in mini_epoch_loaders(dataset, epoch, batch_size=256, num_workers=2):
            for batch in loader: …

    A worker holds the dataset as it was when the worker started; persistent ones would go on with the old rows. So each
    mini-epoch has workers of its own. (persistent_workers=True spares starting them again for a second pass over it.)

    Take the next loader when done with the last: its workers end, its rows are let go, and it raises RuntimeError if it
    is used again. An epoch that a loaded state has begun goes on where it was left. No shuffle=True is needed; with it,
    a state is right only at the start of a mini-epoch.

    A loader gives the rows that were loaded for it, or RuntimeError: when it is iterated, and without workers before
    each batch, it looks whether they are still those of the dataset (`load`, `set_epoch`, `load_state_dict` and another
    loop let them go); workers hold theirs. No loader is dealt after the epoch was set or a state loaded. Two loops at a
    time need two datasets.

    prefetch: read the next rows in a thread, from when the loader is first iterated on; the price is a second payload.
    options: as of torch's DataLoader. Leaving the loop early ends workers and thread. Raises ValueError.
    """
    # here, not in the generator: wrong arguments are refused at once
    if not hasattr(dataset, "turns"):
        raise TypeError(f"dataset must be a RankDataset, not {type(dataset).__name__}")
    epoch = integer("epoch", epoch, at_least=0, below=2**62)
    batch_size = integer("batch_size", batch_size, at_least=1)
    num_workers = integer("num_workers", num_workers, at_least=0)
    make = partial(_Loader, dataset, batch_size=batch_size, num_workers=num_workers, **options)
    return _loaders(dataset, epoch, make, prefetch)


def _loaders(dataset: RankDataset, epoch: int, make: Callable[..., _Loader], prefetch: bool) -> Iterator[_Loader]:
    dataset.set_epoch(epoch)
    deals = dataset.deals
    todo = [k for k in range(dataset.first_mini_epoch, dataset.mini_epochs) if dataset.turns(k)]
    ahead = _Ahead(dataset)
    try:
        for mini_epoch, following in zip(todo, [*todo[1:], None], strict=False):
            if dataset.deals != deals:
                raise RuntimeError(
                    f"the dataset was set to epoch {dataset.epoch} while epoch {epoch} was dealt, or given a state: "
                    "begin the loop again, and let another loop have a RankDataset of its own"
                )
            ahead.load(mini_epoch)
            loader = make(ahead=ahead, following=following if prefetch else None)
            try:
                yield loader
            finally:
                loader.end()
    finally:
        ahead.stop()


class _Ahead:
    """Read at most one mini-epoch in a thread."""

    def __init__(self, dataset: RankDataset) -> None:
        self._dataset = dataset
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1, "mini-epoch")  # has no thread before the first task
        self._future: Future[Packed] | None = None

    def start(self, mini_epoch: int | None) -> None:
        if self._future is None and mini_epoch is not None:
            self._future = self._pool.submit(self._dataset.read, mini_epoch, self._check)

    def _check(self) -> None:
        if self._stopped.is_set():
            raise RuntimeError("the loop over the mini-epochs has ended")

    def wait(self) -> None:
        """Return when no thread is at work: a process that forks then copies no lock that one holds."""
        if self._future is not None:
            self._future.exception()

    def load(self, mini_epoch: int) -> None:
        """Make the rows of a mini-epoch those in memory: the ones that were read ahead, if any were."""
        future = self._future
        self._future = None
        if future is None:
            self._dataset.load(mini_epoch)
        else:
            self._dataset.swap(mini_epoch, future.result())

    def stop(self) -> None:
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)


class _Loader(DataLoader[Any]):
    """A DataLoader that can be ended, workers and all; when its workers run, `following` is read ahead."""

    def __init__(self, dataset: RankDataset, *, ahead: _Ahead, following: int | None, **arguments: Any) -> None:
        super().__init__(dataset, **arguments)
        self._ahead = ahead
        self._following = following
        self._ended = False
        self._rows = weakref.ref(dataset.packed)  # not kept alive: what the dataset lets go is gone
        self._last: Callable[[], Any] = lambda: None

    def __iter__(self) -> Any:
        self._refuse_if_ended()
        self._refuse_if_changed()
        self._ahead.wait()
        iterator = super().__iter__()
        self._last = weakref.ref(iterator)
        self._ahead.start(self._following)
        return self._batches(iterator)

    def _batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        while True:
            self._refuse_if_ended()
            if self.num_workers == 0:
                self._refuse_if_changed()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            yield batch

    def _refuse_if_ended(self) -> None:
        if self._ended:
            raise RuntimeError("the mini-epoch of this loader is over and its rows are gone; take the next loader")

    def _refuse_if_changed(self) -> None:
        dataset = cast(RankDataset, self.dataset)
        if not dataset.holds(self._rows()):
            raise RuntimeError(
                f"the rows of this loader are gone: the dataset was set to epoch {dataset.epoch}, mini-epoch "
                f"{dataset.mini_epoch}, while they were used; let another loop have a RankDataset of its own"
            )

    def end(self) -> None:
        self._ended = True
        iterator = self._last()
        if hasattr(iterator, "_shutdown_workers"):  # torch does it only when the iterator is collected
            iterator._shutdown_workers()
        self._iterator = None
