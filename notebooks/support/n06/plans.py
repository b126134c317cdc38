"""The plan of a step of notebook 06: when each bucket leaves and arrives, as α and bandwidth predict it."""

from __future__ import annotations

from collections.abc import Sequence

from lib.timeline import Span, Trace

LANES = ("computes", "network")


def plan(
    layers: int, per_bucket: Sequence[int], network: float, latency: float, afterwards: bool = False
) -> Trace:
    """Return the spans of one rank's step: a layer's backward takes one tick, the network does one bucket at a time.

    per_bucket: layers in each bucket; the last number holds for all that follow. network: ticks to all-reduce one
    layer's gradient. latency: ticks that every call costs besides.
    """
    spans = [
        Span(LANES[0], f"layer {layer}", tick, tick + 1, "backward")
        for tick, layer in enumerate(reversed(range(layers)))
    ]
    free = 0.0
    there = 0
    number = 0
    while there < layers:
        size = min(per_bucket[min(number, len(per_bucket) - 1)], layers - there)
        there += size
        start = max(free, float(layers if afterwards else there))
        free = start + latency + size * network
        spans.append(Span(LANES[1], f"bucket {number}", start, free, "transfer"))
        number += 1
    return Trace([*spans, Span(LANES[0], "step", free, free + 0.5, "step")], LANES)
