"""Notebook 13: the reference answers, and the famous wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Prefetch = Callable[[Iterable[Any], Any], Iterator[Any]]
ChunksFor = Callable[[float, float, float, float], float]

# ---- exercise 2: how many chunks


def true_chunks(copy_in: float, compute: float, copy_out: float, overhead: float) -> int:
    """Return where the two parts that depend on the count are equal: what is not hidden, and the launches."""
    lanes = (copy_in, compute, copy_out)
    return max(1, round(math.sqrt((sum(lanes) - max(lanes)) / overhead)))


def all_lanes(copy_in: float, compute: float, copy_out: float, overhead: float) -> int:
    """Count the slowest lane among what is not hidden."""
    return max(1, round(math.sqrt((copy_in + compute + copy_out) / overhead)))


def only_copies(copy_in: float, compute: float, copy_out: float, overhead: float) -> int:
    """Take for granted that computing is the slowest."""
    return max(1, round(math.sqrt((copy_in + copy_out) / overhead)))


def no_root(copy_in: float, compute: float, copy_out: float, overhead: float) -> int:
    """Make a launch as long as what is not hidden: but there is a launch for each chunk."""
    lanes = (copy_in, compute, copy_out)
    return max(1, round((sum(lanes) - max(lanes)) / overhead))


def one(copy_in: float, compute: float, copy_out: float, overhead: float) -> int:
    """Overlap nothing."""
    return 1


def very_many(copy_in: float, compute: float, copy_out: float, overhead: float) -> int:
    """Overlap all, at any price."""
    return 256


# ---- exercise 3: the prefetcher


def _prefetch(
    batches: Iterable[Any], gpu: Any, hand_over: Callable[[Any, Any, Any], Any], *, drop_last: bool = False
) -> Iterator[Any]:
    side, ready = gpu.new_stream("copy"), None
    for x in batches:
        with gpu.use_stream(side):
            coming = x.to("cuda", non_blocking=True), side.record_event()
        if ready is not None:
            yield hand_over(gpu, side, ready)
        ready = coming
        del coming
    if ready is not None and not drop_last:
        yield hand_over(gpu, side, ready)


def _wait_and_record(gpu: Any, side: Any, ready: tuple[Any, Any]) -> Any:
    gpu.current_stream().wait_event(ready[1])
    ready[0].record_stream(gpu.current_stream())
    return ready[0]


def true_prefetch(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Copy one ahead, wait for the batch's own event, tell the allocator."""
    return _prefetch(batches, gpu, _wait_and_record)


def no_wait(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Hand over what may still be on its way."""

    def hand_over(gpu: Any, side: Any, ready: tuple[Any, Any]) -> Any:
        ready[0].record_stream(gpu.current_stream())
        return ready[0]

    return _prefetch(batches, gpu, hand_over)


def no_record(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Leave the allocator in the dark."""

    def hand_over(gpu: Any, side: Any, ready: tuple[Any, Any]) -> Any:
        gpu.current_stream().wait_event(ready[1])
        return ready[0]

    return _prefetch(batches, gpu, hand_over)


def waits_for_all(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Wait for the stream, in which the next copy is already."""

    def hand_over(gpu: Any, side: Any, ready: tuple[Any, Any]) -> Any:
        gpu.current_stream().wait_stream(side)
        ready[0].record_stream(gpu.current_stream())
        return ready[0]

    return _prefetch(batches, gpu, hand_over)


def drops_last(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Stop when the loader does, with a batch in the hand."""
    return _prefetch(batches, gpu, _wait_and_record, drop_last=True)


def nothing_ahead(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Copy on a side stream, but only when the batch is asked for."""
    side = gpu.new_stream("copy")
    for x in batches:
        with gpu.use_stream(side):
            y = x.to("cuda", non_blocking=True)
        gpu.current_stream().wait_stream(side)
        y.record_stream(gpu.current_stream())
        yield y


def same_stream(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Copy ahead, in the stream that computes."""
    ready = None
    for x in batches:
        coming = x.to("cuda", non_blocking=True)
        if ready is not None:
            yield ready
        ready = coming
    if ready is not None:
        yield ready


def host_waits(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Let the host wait for the copy."""

    def hand_over(gpu: Any, side: Any, ready: tuple[Any, Any]) -> Any:
        ready[1].synchronize()
        ready[0].record_stream(gpu.current_stream())
        return ready[0]

    return _prefetch(batches, gpu, hand_over)
