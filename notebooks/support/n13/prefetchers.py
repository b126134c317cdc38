"""What notebook 13 measures beside your prefetcher: no copy ahead, no bound, blocks handed back by order."""

# mypy: allow-untyped-calls, allow-untyped-defs

from __future__ import annotations

import time
from itertools import chain


def loaded(batches, seconds):
    """Yield the batches as a loader that needs so many seconds for each."""
    for x in batches:
        time.sleep(seconds)
        yield x


def in_the_loop(batches, gpu):
    """Copy each batch where it is used: in the stream that computes."""
    for x in batches:
        yield x.to(gpu.device, non_blocking=True)


def without_a_bound(batches, gpu):
    """Copy one batch ahead, tell the allocator who reads it, and never let the host wait."""
    side = gpu.new_stream()
    ready = None
    for x in chain(batches, [None]):
        with gpu.use_stream(side):
            coming = None if x is None else (x.to(gpu.device, non_blocking=True), side.record_event())
        if ready is not None:
            gpu.current_stream().wait_event(ready[1])
            ready[0].record_stream(gpu.current_stream())
            yield ready[0]
        ready = coming
        del coming


def by_order(batches, gpu):
    """Copy one batch ahead; hold each until the copy stream waits for its reader, and never let the host wait."""
    side = gpu.new_stream()
    ready = None
    for x in chain(batches, [None]):
        with gpu.use_stream(side):
            coming = None if x is None else (x.to(gpu.device, non_blocking=True), side.record_event())
        if ready is not None:
            reader = gpu.current_stream()  # behind the yield it may be another one
            reader.wait_event(ready[1])
            try:
                yield ready[0]
            finally:  # also if the user leaves
                side.wait_stream(reader)
        ready = coming
        del coming
