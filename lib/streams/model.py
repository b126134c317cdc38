"""Predict what streams can hide, from the seconds of copies and computing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lib._values import integer
from lib.timeline import Trace, Work, play

COPY_IN, COMPUTE, COPY_OUT = LANES = ("copy in", "compute", "copy out")


def predict_chunks(
    chunks: int,
    copy_in: float,
    compute: float,
    copy_out: float,
    *,
    depth: int = 2,
    overhead: float = 0.0,
    rows: int | None = None,
) -> Trace:
    """Predict a StreamPipeline: lanes "copy in", "compute", "copy out", spans C0 F0 D0, C1 F1 D1, …

    copy_in, compute, copy_out: seconds of the whole tensor; a chunk takes its share of them, by its rows if `rows` are
    given, and `overhead` seconds on top in each lane: what a launch costs however small it is. The waits are those of
    `StreamPipeline`, [1] to [4]. Not in the model: copies that slow each other or the computing. Raises ValueError.
    """
    chunks, depth = integer("chunks", chunks, at_least=1), integer("depth", depth, at_least=1)
    if rows is not None:
        chunks = min(chunks, integer("rows", rows, at_least=1))
    seconds = [_seconds(*pair) for pair in zip(LANES, (copy_in, compute, copy_out), strict=True)]
    overhead = _seconds("overhead", overhead)
    tasks = []
    for i in range(chunks):
        share = 1 / chunks if rows is None else (rows // chunks + (i < rows % chunks)) / rows
        into, work, out = (part * share + overhead for part in seconds)
        read, fetched = ([f"{letter}{i - depth}"] if i >= depth else [] for letter in "FD")
        tasks += [
            Work(COPY_IN, f"C{i}", into, read, "copy"),  # [2] the buffer has been read
            Work(COMPUTE, f"F{i}", work, [f"C{i}", *fetched]),  # [1] the data are there, [4] that result was fetched
            Work(COPY_OUT, f"D{i}", out, [f"F{i}"], "copy"),  # [3] the result is there
        ]
    return play(tasks, LANES)


def predict_prefetch(batches: int, copy: float, compute: float, *, depth: int = 2, ahead: bool = True) -> Trace:
    """Predict a DevicePrefetcher: lanes "copy" and "compute"; ahead=False for copies on the computing stream.

    copy, compute: seconds of a batch. The host takes no time here, and the loader always has a batch. Raises
    ValueError.
    """
    batches, depth = integer("batches", batches, at_least=1), integer("depth", depth, at_least=1)
    copy, compute = _seconds("copy", copy), _seconds("compute", compute)
    tasks = []
    for i in range(batches):
        # ahead: the host launches copy i once computation i - 2 · depth is done, the last it waited for
        before = i - (2 * depth if ahead else 1)
        tasks.append(Work("copy", f"C{i}", copy, [f"F{before}"] if before >= 0 else [], "copy"))
        tasks.append(Work("compute", f"F{i}", compute, [f"C{i}"]))
    return play(tasks, ("copy", "compute"))


def best_chunks(
    copy_in: float, compute: float, copy_out: float, overhead: float, *, depth: int = 2, most: int = 64
) -> int:
    """Return the number of chunks, 1 to `most`, with the shortest predicted time; the smallest of equals."""
    times: Sequence[float] = [
        predict_chunks(chunks, copy_in, compute, copy_out, depth=depth, overhead=overhead).makespan
        for chunks in range(1, integer("most", most, at_least=1) + 1)
    ]
    least = min(times)
    return 1 + next(k for k, time in enumerate(times) if time <= least * (1 + 1e-12))


def overlap_share(trace: Trace, kind_a: str = "copy", kind_b: str = "compute") -> float:
    """Return the overlapped time / the smaller of the two: 1.0 if the shorter kind of work is hidden wholly.

    0.0 where one of the kinds takes no time.
    """
    smaller = min(trace.active(kind_a), trace.active(kind_b))
    return trace.overlap(kind_a, kind_b) / smaller if smaller else 0.0


def _seconds(name: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a number of seconds, 0 or more, not {value!r}")
    return float(value)
