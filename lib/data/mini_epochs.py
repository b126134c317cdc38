"""The loaders of an epoch, a mini-epoch each: new workers for new rows.

A worker process holds the dataset as it was when the worker started. A dataset that loads other rows, or is told
another epoch, changes in the main process only; persistent workers would go on with what they have. So a mini-epoch
gets a loader and workers of its own, and they end before its rows are freed. What persistent_workers=True then still
spares is starting them again when one loader is iterated twice.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch.utils.data import DataLoader

from lib._arguments import integer
from lib.data.datasets import RankDataset
from lib.data.meta import Packed


def mini_epoch_loaders(
    dataset: RankDataset,
    epoch: int,
    *,
    batch_size: int,
    num_workers: int = 0,
    prefetch: bool = False,
    **loader_arguments: Any,
) -> Iterator[DataLoader[Any]]:
    """Yield a DataLoader for each mini-epoch of an epoch that has rows; its rows are loaded, in this process, by then.

        for loader in mini_epoch_loaders(dataset, epoch, batch_size=256, num_workers=2):
            for batch in loader: …

    Take the next loader when done with the last: its workers end, its rows are let go, and it raises RuntimeError if it
    is used again. An epoch that a loaded state has begun goes on where it was left. No shuffle=True is needed; with it,
    a state is right only at the start of a mini-epoch.

    prefetch: read the next rows in a thread, from when the loader is first iterated on; the price is a second payload.
    loader_arguments: as of torch's DataLoader. Leaving the loop early ends workers and thread. Raises ValueError.
    """
    epoch = integer("epoch", epoch, at_least=0)
    batch_size = integer("batch_size", batch_size, at_least=1)
    num_workers = integer("num_workers", num_workers, at_least=0)

    def make(start: Callable[[], None], wait: Callable[[], None]) -> _Loader:
        return _Loader(
            start, wait, dataset, batch_size=batch_size, num_workers=num_workers, **loader_arguments
        )

    return _loaders(dataset, epoch, make, prefetch)


def _loaders(
    dataset: RankDataset,
    epoch: int,
    make: Callable[[Callable[[], None], Callable[[], None]], _Loader],
    prefetch: bool,
) -> Iterator[DataLoader[Any]]:
    dataset.set_epoch(epoch)
    todo = [k for k in range(dataset.first_mini_epoch, dataset.mini_epochs) if dataset.turns(k)]
    ahead = _Ahead(dataset)
    try:
        for mini_epoch, following in zip(todo, [*todo[1:], None], strict=False):
            if dataset.epoch != epoch:
                raise RuntimeError(
                    f"the dataset was set to epoch {dataset.epoch} while epoch {epoch} was dealt"
                )
            packed = ahead.take()
            if packed is None:
                dataset.load(mini_epoch)
            else:
                dataset.swap(mini_epoch, packed)
                del packed  # else the rows would stay until the next ones have come

            def start(following: int | None = following) -> None:
                if prefetch and following is not None:
                    ahead.start(following)

            loader = make(start, ahead.wait)
            try:
                yield loader
            finally:
                loader.end()
    finally:
        ahead.stop()


class _Ahead:
    """Read at most one mini-epoch in a thread."""

    def __init__(self, dataset: RankDataset) -> None:
        self._dataset, self._stopped = dataset, threading.Event()
        self._pool: ThreadPoolExecutor | None = None
        self._future: Future[Packed] | None = None

    def start(self, mini_epoch: int) -> None:
        if self._future is None:
            self._pool = self._pool or ThreadPoolExecutor(1, "mini-epoch")
            self._future = self._pool.submit(self._dataset.read, mini_epoch, self._check)

    def _check(self) -> None:
        if self._stopped.is_set():
            raise RuntimeError("the loop over the mini-epochs has ended")

    def wait(self) -> None:
        """Return when no thread is at work: a process that forks then copies no lock that one holds."""
        if self._future is not None:
            self._future.exception()

    def take(self) -> Packed | None:
        future, self._future = self._future, None
        return None if future is None else future.result()

    def stop(self) -> None:
        self._stopped.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


class _Loader(DataLoader[Any]):
    """A DataLoader that can be ended, workers and all; `start` is called when its workers run, `wait` before."""

    def __init__(
        self, start: Callable[[], None], wait: Callable[[], None], *args: Any, **arguments: Any
    ) -> None:
        super().__init__(*args, **arguments)
        self._start, self._wait, self._ended = start, wait, False
        self._last: Callable[[], Any] = lambda: None

    def __iter__(self) -> Any:
        self._refuse_if_ended()
        self._wait()
        iterator = super().__iter__()
        self._last = weakref.ref(iterator)
        self._start()
        return self._batches(iterator)

    def _batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for batch in iterator:
            yield batch
            self._refuse_if_ended()

    def _refuse_if_ended(self) -> None:
        if self._ended:
            raise RuntimeError(
                "the mini-epoch of this loader is over and its rows are gone; take the next loader"
            )

    def end(self) -> None:
        self._ended = True
        iterator = self._last()
        if hasattr(iterator, "_shutdown_workers"):  # torch does it only when the iterator is collected
            iterator._shutdown_workers()
        self._iterator = None
