"""What streams can hide, predicted from the seconds of copies and computing (notebooks 11, 13)."""

from __future__ import annotations

import math

from lib.arguments import integer
from lib.timeline import Trace, Work, play

LANES = ("copy in", "compute", "copy out")
COPY_IN, COMPUTE, COPY_OUT = LANES


def predict_chunks(
    chunks: int,
    copy_in: float,
    compute: float,
    copy_out: float,
    *,
    depth: int = 2,
    overhead: float = 0.0,
    launch: float = 0.0,
    rows: int | None = None,
) -> Trace:
    """Predict a StreamPipeline: lanes "copy in", "compute", "copy out", spans C0 F0 D0, C1 F1 D1, …

    copy_in, compute, copy_out: seconds of the whole tensor; a chunk takes its share of them, by its rows if `rows` are
    given, and `overhead` seconds on top in each lane: what an operation costs the device however small it is. launch:
    seconds in which the host launches a chunk's three; it runs ahead, so they are hidden until they are the limit. The
    waits are those of `StreamPipeline`, [1] to [4]. Not in the model: copies that slow each other or the computing.
    Raises ValueError.
    """
    chunks = integer("chunks", chunks, at_least=1)
    depth = integer("depth", depth, at_least=1)
    if rows is not None:
        chunks = min(chunks, integer("rows", rows, at_least=1))
    seconds = [_seconds(*pair) for pair in zip(LANES, (copy_in, compute, copy_out), strict=True)]
    overhead = _seconds("overhead", overhead)
    launch = _seconds("launch", launch)
    tasks = []
    for i in range(chunks):
        share = 1 / chunks
        if rows is not None:
            of_chunk = rows // chunks + (i < rows % chunks)  # the first ones have one more
            share = of_chunk / rows
        into, work, out = (part * share + overhead for part in seconds)
        read = [f"F{i - depth}"] if i >= depth else []
        fetched = [f"D{i - depth}"] if i >= depth else []
        # The host launches and goes on to the next: it waits for nothing. [2] The buffer has been read; [1] the data
        # are there, [4] the result that lay in this place was fetched; [3] the result is there.
        tasks.append(Work("host", f"launch {i}", launch))
        tasks.append(Work(COPY_IN, f"C{i}", into, [f"launch {i}", *read], "copy"))
        tasks.append(Work(COMPUTE, f"F{i}", work, [f"C{i}", *fetched]))
        tasks.append(Work(COPY_OUT, f"D{i}", out, [f"F{i}"], "copy"))
    return play(tasks, LANES).only(lane=LANES)


def predict_prefetch(
    batches: int, copy: float, compute: float, *, depth: int = 2, ahead: bool = True
) -> Trace:
    """Predict a DevicePrefetcher: lanes "copy" and "compute"; ahead=False for copies on the computing stream.

    copy, compute: seconds of a batch. The host takes no time here, and the loader always has a batch. Raises
    ValueError.
    """
    batches = integer("batches", batches, at_least=1)
    depth = integer("depth", depth, at_least=1)
    copy = _seconds("copy", copy)
    compute = _seconds("compute", compute)
    tasks = []
    for i in range(batches):
        # ahead: the host launches copy i once computation i - 2 · depth is done, the last it waited for
        before = i - (2 * depth if ahead else 1)
        needed = [f"F{before}"] if before >= 0 else []
        tasks.append(Work("copy", f"C{i}", copy, needed, "copy"))
        tasks.append(Work("compute", f"F{i}", compute, [f"C{i}"]))
    return play(tasks, ("copy", "compute"))


def best_chunks(
    copy_in: float, compute: float, copy_out: float, overhead: float, *, depth: int = 2, most: int = 64
) -> int:
    """Return the number of chunks, 1 to `most`, with the shortest predicted time; the smallest of equals."""
    most = integer("most", most, at_least=1)
    times = {}
    for chunks in range(1, most + 1):
        times[chunks] = predict_chunks(
            chunks, copy_in, compute, copy_out, depth=depth, overhead=overhead
        ).makespan
    least = min(times.values())
    # equal but for rounding counts as equal
    return next(chunks for chunks, seconds in times.items() if seconds <= least * (1 + 1e-12))


def _seconds(name: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a number of seconds, 0 or more, not {value!r}")
    return float(value)
