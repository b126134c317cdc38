"""A pipeline run clock by clock, predicted: the slowest task of a clock decides when the next one begins.

clock_trace     the prediction as a Trace
draw_clock_run  the same as a timeline with the clocks marked: what the explorer wraps
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from lib._units import format_share
from lib.figures.task_scene import pairs_at
from lib.show.explore import whole
from lib.show.style import INK, describe, styled
from lib.show.timeline import draw_timeline
from lib.timeline import Span, Trace

CLOCK_RUN_CONTROLS = {
    "micro_batches": whole(1, 8, 4, "m · micro-batches"),
    "first": whole(1, 6, 2, "partition 0 · ticks"),
    "second": whole(1, 6, 2, "partition 1 · ticks"),
    "third": whole(1, 6, 2, "partition 2 · ticks"),
}


def clock_trace(micro_batches: int, seconds: Sequence[float]) -> Trace:
    """Return the spans of a forward pass in which partition j takes seconds[j]; all of a clock start together."""
    now, spans = 0.0, []
    for k in range(micro_batches + len(seconds) - 1):
        pairs = pairs_at(k, micro_batches, len(seconds))
        spans += [Span(f"partition {j}", f"F{i}", now, now + seconds[j], "forward") for i, j in pairs]
        now += max(seconds[j] for _, j in pairs)
    return Trace(spans, [f"partition {j}" for j in range(len(seconds))])


@styled
def draw_clock_run(micro_batches: int, first: int, second: int, third: int) -> Figure:
    """Draw three partitions with these times; dashed lines part the clocks."""
    seconds = (first, second, third)
    trace = clock_trace(micro_batches, seconds)
    alone = micro_batches * sum(seconds)
    starts = sorted({span.start for span in trace})
    clocks = f"{len(starts)} clock{'s' * (len(starts) > 1)}"
    finding = f"{clocks}, {trace.makespan:g} ticks instead of {alone}: {alone / trace.makespan:.2f} × as fast"
    if seconds.count(max(seconds)) == 1:
        finding += f"; partition {seconds.index(max(seconds))} decides"
    figure = draw_timeline(trace, unit="clock", bubbles=True, title=finding)
    axes = figure.axes[0]
    for start in starts:
        axes.axvline(start, color=INK, linewidth=1, linestyle=(0, (3, 3)), zorder=3)
    axes.set_xlabel("time (ticks)")
    facts = f"Partition times {first}, {second}, {third} ticks, {micro_batches} micro-batches"
    return describe(figure, f"{finding}. {facts}; idle {format_share(trace.bubble)}.")
