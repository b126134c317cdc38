"""The exercises of notebook 01 solved: the notebook goes on with these where the reader's answer is not right yet."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any


class OneProcessLoader:
    """A DataLoader of one process, whose batches are made of the items that lists of indices name."""

    def __init__(self, dataset: Any, batches: Any, collate: Callable[[list[Any]], Any]) -> None:
        self.dataset = dataset
        self.batches = batches
        self.collate = collate

    def __iter__(self) -> Iterator[Any]:
        for indices in self.batches:
            yield self.collate([self.dataset[index] for index in indices])

    def __len__(self) -> int:
        return len(self.batches)


def predict_epoch(
    loads: Sequence[float],
    workers: int,
    cores: float,
    read: float,
    send: float,
    receive: float,
    step: float,
    prefetch: int = 2,
) -> float:
    """Return the seconds of an epoch; `loads` has the seconds of each batch, the others are seconds a batch."""
    batches = len(loads)
    if workers == 0:
        alone = sum(loads) + batches * (read + step)
        return max(alone, (sum(loads) + batches * step) / cores)
    loaded = dict[int, float]()
    taken = dict[int, float]()
    done = {-1: 0.0}
    for b in range(batches):
        begun = max(loaded.get(b - workers, 0), taken.get(b - workers * prefetch, 0))
        loaded[b] = begun + read + loads[b] + send
        taken[b] = max(loaded[b], done[b - 1]) + receive
        done[b] = taken[b] + step
    busy = sum(loads) + batches * (send + receive + step)
    return max(done[batches - 1], busy / cores)


def sendable(error: Exception) -> Exception:
    """Return an error that pickle carries there and back: itself, otherwise a RuntimeError with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def work(dataset: Any, collate: Any, orders: Any, results: Any) -> None:
    """Load what is ordered until None comes."""
    while (order := orders.get()) is not None:
        number, indices = order
        try:
            results.put((number, collate([dataset[index] for index in indices]), None))
        except Exception as error:
            results.put((number, None, sendable(error)))


def send_home(team: Any, orders: Any, results: Any, missing: Any) -> None:
    """End the workers, after what they have still been ordered to send."""
    for _ in missing:
        results.get()
    for queue, worker in zip(orders, team, strict=True):
        queue.put(None)
        worker.join()


def load_in_order(
    work: Any,
    dataset: Any,
    batches: Any,
    collate: Any,
    workers: int = 1,
    prefetch: int = 2,
    context: Any = None,
) -> Any:
    """Yield the collated batches of one epoch, loaded by workers of `context`, in the order of `batches`."""
    todo = enumerate(batches)  # this may raise: then no worker has been started
    results = context.Queue()
    orders = [context.Queue() for _ in range(workers)]
    team = [context.Process(target=work, args=(dataset, collate, queue, results)) for queue in orders]
    for worker in team:
        worker.start()
    early = dict[int, Any]()
    missing = set[int]()

    def hand_out(count: int | None) -> None:
        for number, indices in islice(todo, count):
            orders[number % workers].put((number, indices))
            missing.add(number)

    try:
        hand_out(workers * prefetch)
        for number in range(len(batches)):
            while number not in early:
                arrived, *early[arrived] = results.get()
                missing.remove(arrived)
            batch, error = early.pop(number)
            hand_out(1)
            if error is not None:
                raise error
            yield batch
    finally:
        send_home(team, orders, results, missing)


def three_times(
    loader: Any, step: Callable[[Any], object], clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float, float]:
    """Return seconds a batch: of the step on batches that are kept, of the loader alone, of both together."""

    def pace(batches: Iterable[Any], use: Callable[[Any], object]) -> float:
        begun = 0.0
        count = 0
        for count, batch in enumerate(batches):
            use(batch)
            if count == 0:
                begun = clock()
        return (clock() - begun) / count

    kept = list(islice(loader, 8))
    alone = pace(loader, lambda batch: None)  # to its end: then workers that stay have nothing left to load
    return pace(kept, step), alone, pace(loader, step)


def pin_stage(results: Any, data: Any, pin: Callable[[Any], Any]) -> None:
    """Hand on what arrives until None comes, each batch pinned; an error of `pin` is that of its batch."""
    while (message := results.get()) is not None:
        number, batch, error = message
        if error is None:
            try:
                batch = pin(batch)
            except Exception as failed:
                batch = None
                error = failed
        data.put((number, batch, error))
