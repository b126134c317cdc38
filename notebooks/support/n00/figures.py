"""Figures of notebook 00, start here: a training step that ranks share, and the map of the course."""

from __future__ import annotations

from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.show.explore import steps, whole
from lib.show.lanes import BARS, draw_timeline, lay_out
from lib.show.sheet import box, write
from lib.show.style import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, alt_text, describe, new_figure, styled
from lib.text import plural
from lib.timeline import Trace, Work, play

# ---- One training step that several ranks share, in ticks, and what it costs when one of them is slow.

TICKS = {"load": 1.0, "forward": 1.0, "backward": 2.0, "mean": 0.5, "step": 0.5}
"""What a rank does in a step, and for how long; backward is about two forwards."""

SHARED_STEP_CONTROLS = dict(
    ranks=whole(1, 8, 4, "ranks"),
    slow=steps((1.0, 1.5, 2.0, 3.0, 4.0), 2.0, "the last rank computes … times as long"),
    count=whole(1, 3, 1, "training steps"),
)


def shared_step(ranks: int, slow: float, count: int = 1) -> Trace:
    """Predict `count` training steps of so many ranks, of which the last takes `slow` times as long to compute.

    Forward and backward are slow, the rest is not. The mean begins when the last gradient is there. Data flow.
    """
    names = [f"rank {rank}" for rank in range(ranks)]
    work = []
    for number in range(count):
        for part, ticks in TICKS.items():
            for rank, name in enumerate(names):
                slower = slow if rank == ranks - 1 and part in ("forward", "backward") else 1.0
                after = [f"backward {number} of {name}" for name in names] if part == "mean" else []
                work.append(Work(name, f"{part} {number} of {name}", ticks * slower, after, part))
    spans = (replace(span, label=" ".join(span.label.split()[:2])) for span in play(work, names))
    return Trace(spans, names)


def draw_shared_step(ranks: int, slow: float, count: int) -> Figure:
    """Draw `shared_step` as a timeline with its idle time dotted."""
    trace = shared_step(ranks, slow, count)
    alike = shared_step(ranks, 1.0, count).makespan
    taken = f"{plural(ranks, 'rank')}, {plural(count, 'step')}: {trace.makespan:g} ticks"
    if slow == 1:
        finding = f"{taken}; all are equally fast, and nobody waits"
    elif ranks == 1:
        finding = f"{taken} instead of {alike:g}; one rank waits for nobody"
    else:
        waiting = "the other waits" if ranks == 2 else f"the {ranks - 1} others wait"
        finding = f"{taken} instead of {alike:g}: {waiting} for the slow one, {trace.bubble:.0%} idle"
    figure = draw_timeline(predicted=trace, title=finding, unit="clock", bubbles=True)
    figure.axes[0].set_xlabel("time (ticks)")  # this notebook has no clock yet, and one word for its unit
    return describe(figure, alt_text(figure).replace(" clocks", " ticks"))


@styled
def draw_both(measured: Trace, predicted: Trace, title: str) -> Figure:
    """Draw `draw_timeline`'s picture of both traces, each on grey only up to its own end: busy shares refer to that."""
    figure = draw_timeline(measured, predicted, title=title)
    axes, layout = figure.axes[0], lay_out(measured, predicted, None, None)
    for name, trace in layout.traces.items():
        end = trace.end * layout.per_second
        for row in range(len(layout.rows)):
            place = (row + BARS[name][0] - 0.04, BARS[name][1] + 0.08)
            axes.broken_barh([(end, layout.end - end)], place, color=PAPER, lw=0, zorder=0.5)
    return figure


# ---- The map of the course: two tracks that meet, drawn as a railway plan.


@dataclass(frozen=True)
class Stop:
    """One notebook: its number, its name in two lines at most, its place on the map (column, row), its track."""

    number: int
    name: str
    at: tuple[float, float]
    track: str


COURSE: tuple[Stop, ...] = (
    Stop(0, "start\nhere", (0, 1.5), "both"),
    Stop(1, "loading\npipeline", (1, 3), "data"),
    Stop(2, "samplers", (2, 3), "data"),
    Stop(3, "distributed\nsampler", (3, 3), "data"),
    Stop(4, "contiguous\nshards", (4, 3), "data"),
    Stop(5, "rank\ndataset", (5, 3), "data"),
    Stop(6, "data\nparallel", (6, 3), "data"),
    Stop(7, "micro-\nbatches", (1, 0), "pipeline"),
    Stop(8, "pipeline\nclock", (2, 0), "pipeline"),
    Stop(9, "tasks,\nworkers", (3, 0), "pipeline"),
    Stop(10, "check-\npointing", (4, 0), "pipeline"),
    Stop(11, "backward\norder", (5, 0), "pipeline"),
    Stop(12, "GPipe", (6, 0), "pipeline"),
    Stop(13, "CUDA\nstreams", (7, 1.5), "both"),
    Stop(14, "schedules", (8, 1.5), "both"),
    Stop(15, "scale\nout", (9, 1.5), "both"),
)

COLOR = {"data": ORANGE, "pipeline": BLUE, "both": GREEN}
_WIDE, _HIGH = 0.86, 0.94


@styled
def draw_course() -> Figure:
    """Draw the map: two tracks that start together and meet at the end."""
    figure, axes = new_figure(9, 3.1)
    order = {
        "data": [stop for stop in COURSE if stop.track in ("data", "both")],
        "pipeline": [stop for stop in COURSE if stop.track in ("pipeline", "both")],
    }
    for track, stops in order.items():
        axes.plot(
            *zip(*(stop.at for stop in stops), strict=True),
            color=COLOR[track],
            linewidth=5,
            alpha=0.35,
            solid_joinstyle="round",
            zorder=1,
        )
    for stop in COURSE:
        _draw_stop(axes, stop)
    for y, track, asked in (
        (2.05, "Data track", "How does training data reach many ranks?"),
        (0.95, "Pipeline track", "How does one model run on many devices?"),
    ):
        axes.text(0.75, y + 0.17, track, ha="left", va="center", fontsize=11, weight="bold")
        axes.text(0.75, y - 0.22, asked, ha="left", va="center", fontsize=11, color=MUTED)
    axes.set(xlim=(-0.5, 9.5), ylim=(-0.6, 3.6))
    axes.set_axis_off()
    words = (
        f"Map of the course: {len(COURSE)} notebooks. The data track runs 00 to 06, the pipeline track 00 and "
        f"07 to 12; both meet in 13, 14 and 15."
    )
    return describe(figure, words)


def _draw_stop(axes: Axes, stop: Stop) -> None:
    color, (x, y) = COLOR[stop.track], stop.at
    ink = PAPER if stop.track != "data" else INK
    box(axes, x, y, _WIDE, _HIGH, face=color, edge=color, line=1.6, radius=0.12, mutation_aspect=1.6)
    write(axes, x, y + 0.18, f"{stop.number:02d}", size=12, color=ink, weight="bold", zorder=3)
    write(axes, x, y - 0.2, stop.name, size=9, color=ink, zorder=3, linespacing=0.95)
