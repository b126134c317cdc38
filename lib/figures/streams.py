"""What a CUDA stream orders: launches on the CPU, kernels on the device, drawn from a small model of both.

A launch takes time on the CPU and returns; its kernel starts when it is launched and the stream is free. One stream
runs in order of launch; two streams run side by side (if the device has room); an event lets one wait for the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch

from lib.show.explore import switch, whole
from lib.show.sheet import write
from lib.show.style import (
    HATCH,
    INK,
    MUTED,
    PAPER,
    TRACK,
    describe,
    new_figure,
    rank_color,
    styled,
    title,
)
from lib.show.timeline import bar, draw_timeline
from lib.timeline import Span, Trace

LANES = ("thread 0", "thread 1", "stream 0", "stream 1")
KERNELS = 4  # of A, and of B

STREAMS_CONTROLS = {
    "streams": whole(1, 2, 2, "streams"),
    "threads": whole(1, 2, 1, "launching threads"),
    "kernel": whole(1, 6, 3, "kernel · ticks"),
    "launch": whole(1, 4, 1, "launch · ticks"),
    "waits": switch(False, "B0 waits for A1 (event)"),
}


def simulate_streams(
    streams: int,
    threads: int = 1,
    *,
    kernel: float,
    launch: float,
    kernels: int = KERNELS,
    waits: bool = False,
) -> Trace:
    """Return the launches (kind "launch", lanes "thread t") and kernels (kind "compute", lanes "stream s"), in ticks.

    Labels are A0, A1, … and B0, B1, …; one thread launches all of A, then all of B, two threads one sequence each. With
    one stream, kernels run in order of launch. waits: B0 starts after A1 (a wait for an event in the stream).
    """
    launches = []
    for t, names in enumerate(("AB",) if threads == 1 else ("A", "B")):
        sequence = [f"{name}{number}" for name in names for number in range(kernels)]
        launches += [
            Span(f"thread {t}", label, c * launch, (c + 1) * launch, "launch")
            for c, label in enumerate(sequence)
        ]
    # two threads that launch into one stream at the same moment: A comes first
    queue, free, ran = (
        sorted(launches, key=lambda span: (span.end, span.label)),
        [0.0] * streams,
        [],
    )
    ends: dict[str, float] = {}
    for span in _after_its_event(queue) if waits else queue:
        s = 0 if streams == 1 else "AB".index(span.label[0])
        event = ends["A1"] if waits and span.label == "B0" else 0.0
        start = max(span.end, free[s], event)
        ends[span.label] = free[s] = start + kernel
        ran.append(Span(f"stream {s}", span.label, start, free[s]))
    lanes = [f"thread {t}" for t in range(threads)] + [f"stream {s}" for s in range(streams)]
    return Trace(launches + ran, lanes)


def _after_its_event(queue: list[Span]) -> list[Span]:
    """Move A's first two kernels before B in the queue: an event must be recorded before anything can wait for it."""
    first = [span for span in queue if span.label in ("A0", "A1")]
    return first + [span for span in queue if span not in first]


def draw_two_streams(measured: Mapping[int, Trace] | None, recorded: str | None = None) -> Figure:
    """Draw kernels A and B in one stream and in two, measured on a GPU (by number of streams) or only predicted."""

    def rows(traces: Mapping[int, Trace]) -> Trace:
        names = {1: ("one stream",), 2: ("two: stream 0", "two: stream 1")}
        spans = [
            Span(
                names[streams][int(span.lane[-1])],
                span.label,
                span.start - trace.start,
                span.end - trace.start,
            )
            for streams, trace in traces.items()
            for span in trace
        ]
        return Trace(spans, [*names[1], *names[2]])

    # a launch takes next to no time here: these kernels are long
    model = {
        n: simulate_streams(n, kernel=1, launch=1e-3).only(kind="compute", lane=LANES[2:][:n]) for n in (1, 2)
    }
    if not measured:
        return draw_timeline(
            predicted=rows(model), unit="kernel", title="No GPU and no recording yet: predicted only"
        )
    one, two = (measured[n].makespan for n in (1, 2))
    predicted = rows(model).scale(one / rows(model).only(lane="one stream").makespan)
    finding = f"Two streams: the same kernels in {two / one:.2f} of the time of one"
    return draw_timeline(rows(measured), predicted, title=finding, recorded=recorded)


@styled
def draw_streams(streams: int, threads: int, kernel: int, launch: int, waits: bool) -> Figure:
    """Draw the launches of A0 … A3 and B0 … B3 and when their kernels run."""
    trace = simulate_streams(streams, threads, kernel=kernel, launch=launch, waits=waits)
    figure, axes = new_figure(9, 3.9)
    y = {lane: row + 0.5 * (row > 1) for row, lane in enumerate(LANES)}
    y["thread 0"] += 0.5 * (threads == 1)  # one of two rows: in the middle
    y["stream 0"] += 0.5 * (streams == 1)
    launched = {span.label: span for span in trace if span.kind == "launch"}
    for lane in LANES:
        if lane not in trace.lanes:
            continue
        axes.axhspan(y[lane] - 0.34, y[lane] + 0.34, color=TRACK, zorder=0)
        for span in trace.only(lane=lane):
            _bar(axes, span, y[lane])
            if span.kind == "compute":
                come = launched[span.label]
                ends = ((come.end, y[come.lane] + 0.34), (span.start, y[lane] - 0.34))
                line = ConnectionPatch(
                    *ends, "data", color=rank_color("AB".index(span.label[0])), linewidth=0.9, zorder=0.5
                )
                axes.add_artist(line)
    for text, where in (("CPU: launches", 0.5), ("device: kernels", 3.0)):
        place = axes.get_yaxis_transform()
        axes.text(1.012, where, text, transform=place, va="center", color=MUTED, rotation=-90, fontsize=10)
    longest = 2 * KERNELS * (6 if kernel > 3 or launch > 3 else 3) + 8
    axes.set(xlim=(-0.2, max(longest, trace.end + 0.5)), ylim=(4.1, -0.6), xlabel="time (ticks)")
    axes.set_yticks([y[lane] for lane in trace.lanes], trace.lanes, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    kernels = [span for span in trace if span.kind == "compute"]
    side = _side_by_side(kernels)
    title(axes, _finding(trace, streams, threads, kernel, launch, waits, side))
    order = " ".join(span.label for span in sorted(kernels, key=lambda span: span.start))
    how = f"{streams} streams, launching threads: {threads}; ticks a kernel: {kernel}, a launch: {launch}"
    said = f"{axes.get_title('left')}. {how}. Kernels start in the order {order}; the last ends at {trace.end:g}."
    return describe(figure, said)


def _side_by_side(kernels: list[Span]) -> float:
    both = [Trace(span for span in kernels if span.label[0] == name) for name in "AB"]
    merged = Trace(
        [Span("", span.label, span.start, span.end, span.label[0]) for trace in both for span in trace]
    )
    return merged.overlap("A", "B")


def _finding(
    trace: Trace, streams: int, threads: int, kernel: int, launch: int, waits: bool, side: float
) -> str:
    done = f"done at {trace.end:g}"
    if streams == 1:
        return f"One stream runs one kernel at a time, in order of launch: {done}"
    why = (
        "B waits for A1"
        if waits
        else "B's launches come late"
        if threads == 1
        else "both are launched at once"
    )
    if launch >= kernel and threads == 1 and not waits:
        why = "launching, not computing, takes the time"
    return f"Two streams, side by side for {side:g} ticks ({why}): {done}"


def _bar(axes: Axes, span: Span, y: float) -> None:
    color = rank_color("AB".index(span.label[0]))
    launch = span.kind == "launch"
    look: Any = {"height": 0.68, "linewidth": 1.2, "zorder": 2}
    if not launch:
        bar(axes, y, span.start, span.duration, color, span.label, **look)
        return
    hatched = span.duration > 1
    look |= {"edgecolor": color, "hatch": HATCH["wait"] if hatched else None}
    bar(axes, y, span.start, span.duration, PAPER, **look)
    behind = {"boxstyle": "square,pad=0.1", "facecolor": PAPER, "edgecolor": "none"} if hatched else None
    middle = (span.start + span.end) / 2
    write(axes, middle, y, span.label, size=9, va="center_baseline", bbox=behind, zorder=3)
