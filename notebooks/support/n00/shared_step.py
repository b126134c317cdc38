"""A training step that ranks share, predicted in ticks: what it costs when one of them is slow, or messages are."""

from __future__ import annotations

from dataclasses import replace

from lib.timeline import Trace, Work, play

TICKS = {"load": 1.0, "forward": 1.0, "backward": 2.0, "mean": 0.5, "step": 0.5}
"""What a rank does in a step, and for how long; backward is about two forwards."""

_NETWORK = "network"  # a lane of its own, which is not shown


def shared_step(ranks: int, slow: float = 1.0, message: float = 0.0) -> Trace:
    """Predict a training step of so many ranks, of which the last takes `slow` times as long to compute.

    Forward and backward are slow, the rest is not. Messages travel for `message` ticks after the last backward, if
    there is more than one rank; no rank is busy with them, and each begins the mean when they are there. Data flow.
    """
    names = [f"rank {rank}" for rank in range(ranks)]
    backwards = [f"backward of {name}" for name in names]
    work = []
    for part, ticks in TICKS.items():
        if part == "mean":
            work.append(Work(_NETWORK, _NETWORK, message * (ranks > 1), backwards))
        for rank, name in enumerate(names):
            slower = slow if rank == ranks - 1 and part in ("forward", "backward") else 1.0
            after = [_NETWORK] if part == "mean" else []
            work.append(Work(name, f"{part} of {name}", ticks * slower, after, part))
    spans = (replace(span, label=span.kind) for span in play(work, names) if span.lane != _NETWORK)
    return Trace(spans, names)


def as_profiled(trace: Trace) -> Trace:
    """Return the step as a profiler shows it: a rank is in the mean from the end of its backward on, waiting or not."""
    came = {span.lane: span.end for span in trace if span.kind == "backward"}
    spans = (replace(span, start=came[span.lane]) if span.kind == "mean" else span for span in trace)
    return Trace(spans, trace.lanes)
