"""Figures of notebook 06: the all-reduce runs while backward still computes.

plan           a model of one step: layers are ready from the last to the first, buckets of them go to the network
draw_overlap   that model as a timeline, in ticks: an outline, since it is predicted
draw_buckets   the same measured in real ranks
hidden_share   how much of the all-reduce ran while its rank was still in backward
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from lib._units import format_share
from lib.show.explore import steps, switch, whole
from lib.show.timeline import draw_timeline
from lib.timeline import Span, Trace

LANES = ("computes", "network")

OVERLAP_CONTROLS = {
    "layers": whole(2, 12, 8, "layers"),
    "per_bucket": whole(1, 12, 2, "layers in a bucket"),
    "network": steps((0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0), 0.8, "all-reduce of one layer, ticks"),
    "latency": steps((0.0, 0.2, 0.5, 1.0), 0.2, "all-reduce, each call, ticks"),
    "afterwards": switch(False, "wait until backward has ended"),
}


def plan(layers: int, per_bucket: int, network: float, latency: float, afterwards: bool = False) -> Trace:
    """Return the spans of one rank's step: a layer's backward takes one tick, the network does one bucket at a time.

    network: ticks to all-reduce one layer's gradient. latency: ticks that every call costs besides.
    """
    spans = [
        Span(LANES[0], f"layer {layer}", tick, tick + 1, "backward")
        for tick, layer in enumerate(reversed(range(layers)))
    ]
    free = 0.0
    for number, first in enumerate(range(0, layers, per_bucket)):
        size = min(per_bucket, layers - first)
        start = max(free, float(layers if afterwards else first + size))
        free = start + latency + size * network
        spans.append(Span(LANES[1], f"bucket {number}", start, free, "transfer"))
    return Trace([*spans, Span(LANES[0], "step", free, free + 0.5, "step")], LANES)


def draw_overlap(*, layers: int, per_bucket: int, network: float, latency: float, afterwards: bool) -> Figure:
    """Draw the predicted timeline of a step: what the bucket size, the network and waiting do to its end."""
    trace = plan(layers, per_bucket, network, latency, afterwards)
    late = trace.only(kind="step").start - layers
    calls = len(trace.only(kind="transfer"))
    return draw_timeline(
        predicted=trace,
        title=f"{calls} bucket{'s' * (calls != 1)}: {format_share(hidden_share(trace))} of the all-reduce is hidden, "
        f"step() waits {late:.1f} ticks",
        unit="clock",
    )


def hidden_share(trace: Trace) -> float:
    """Return which share of the time in all-reduce its rank was still in backward; 0 if there was no all-reduce.

    trace: of one rank. All-reduces that run side by side count each for itself.
    """
    end = max(span.end for span in trace.only(kind="backward"))
    reduces = trace.only(kind="transfer").spans
    total = sum(span.duration for span in reduces)
    inside = sum(max(0.0, min(span.end, end) - span.start) for span in reduces)
    return inside / total if total else 0.0


def of_rank(trace: Trace, rank: int) -> Trace:
    """Return one rank's lanes of a measured trace: what it computes, then its buckets. Raises ValueError if none."""
    mine = sorted(
        (lane for lane in trace.lanes if lane.startswith(f"rank {rank} ")), key=lambda lane: (len(lane), lane)
    )
    lanes = [lane for lane in mine if lane.endswith(LANES[0])] + [lane for lane in mine if "bucket" in lane]
    if not lanes:
        raise ValueError(f"no rank {rank} in this trace; its lanes are {', '.join(trace.lanes) or 'none'}")
    return Trace(trace.only(lane=lanes).spans, lanes)


def order_holds(trace: Trace, ranks: Sequence[int]) -> dict[str, bool]:
    """Say which statements about the order hold in every rank of a measured trace."""
    begun = most = before = True
    for rank in ranks:
        own = of_rank(trace, rank)
        end = max(span.end for span in own.only(kind="backward"))
        reduces, (step,) = own.only(kind="transfer").spans, own.only(kind="step")
        begun &= reduces[0].start < end
        most &= sum(span.start < end for span in reduces) >= len(reduces) - 1 > 0
        before &= max(span.end for span in reduces) <= step.start
    return {
        "the first all-reduce begins before backward has ended": begun,
        "all but the last begin before backward has ended": most,
        "all have ended when step() begins": before,
    }


def draw_buckets(trace: Trace, rank: int = 0) -> Figure:
    """Draw a measured step of one rank: lanes "rank r computes" and "rank r bucket 0", "rank r bucket 1" …"""
    own = of_rank(trace, rank).from_zero()
    calls = len(own.only(kind="transfer"))
    (step,) = own.only(kind="step")
    rest = sum(span.end > step.start for span in own.only(kind="transfer"))
    return draw_timeline(
        own,
        title=f"{calls} buckets: {format_share(hidden_share(own))} of the all-reduce time lies in backward, "
        f"{rest or 'none'} in step()",
        unit="ms",
    )
