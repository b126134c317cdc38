"""Figures of notebook 00, start here: a training step that ranks share, and the map of the course."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.show.explore import steps, whole
from lib.show.lanes import BARS, draw_timeline, lay_out
from lib.show.sheet import box, write
from lib.show.style import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, alt_text, describe, new_figure, styled
from lib.text import plural
from lib.timeline import Trace, Work, play
from support import course
from support.course import DATA, PIPELINE, START, TOGETHER, Chapter

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
    axes = figure.axes[0]
    layout = lay_out(measured, predicted, None, None)
    for name, trace in layout.traces.items():
        end = trace.end * layout.per_second
        for row in range(len(layout.rows)):
            place = (row + BARS[name][0] - 0.04, BARS[name][1] + 0.08)
            axes.broken_barh([(end, layout.end - end)], place, color=PAPER, lw=0, zorder=0.5)
    return figure


# ---- The map of the course: two tracks that meet, drawn as a railway plan.


COLOR = {START: GREEN, DATA: ORANGE, PIPELINE: BLUE, TOGETHER: GREEN}
ROW = {START: 1.5, DATA: 3.0, PIPELINE: 0.0, TOGETHER: 1.5}
_WIDE = 0.86
_HIGH = 0.94
_COLUMN = 0.9  # inches


@styled
def draw_course() -> Figure:
    """Draw the map: two tracks that start together and meet at the end."""
    column = course.columns()
    places = {chapter.number: (column[chapter.number], ROW[chapter.track]) for chapter in course.COURSE}
    last = max(column.values())
    figure, axes = new_figure(_COLUMN * (last + 1), 3.1)
    for track in (DATA, PIPELINE):
        axes.plot(
            *zip(*(places[chapter.number] for chapter in course.stops(track)), strict=True),
            color=COLOR[track],
            linewidth=5,
            alpha=0.35,
            solid_joinstyle="round",
            zorder=1,
        )
    for chapter in course.COURSE:
        _draw_stop(axes, chapter, places[chapter.number])
    for y, name, asked in (
        (2.05, "Data track", "How does training data reach many ranks?"),
        (0.95, "Pipeline track", "How does one model run on many devices?"),
    ):
        axes.text(0.75, y + 0.17, name, ha="left", va="center", fontsize=11, weight="bold")
        axes.text(0.75, y - 0.22, asked, ha="left", va="center", fontsize=11, color=MUTED)
    axes.set(xlim=(-0.5, last + 0.5), ylim=(-0.6, 3.6))
    axes.set_axis_off()
    data = course.numbers([*course.on(START), *course.on(DATA)], " to ")
    pipeline = course.numbers([*course.on(START), *course.on(PIPELINE)], " to ")
    both = course.enumerated([chapter.label for chapter in course.on(TOGETHER)])
    words = (
        f"Map of the course: {len(course.COURSE)} notebooks. The data track runs {data}, "
        f"the pipeline track {pipeline}; both meet in {both}."
    )
    return describe(figure, words)


def _draw_stop(axes: Axes, chapter: Chapter, place: tuple[float, float]) -> None:
    x, y = place
    color = COLOR[chapter.track]
    ink = INK if chapter.track is DATA else PAPER
    box(axes, x, y, _WIDE, _HIGH, face=color, edge=color, line=1.6, radius=0.12, mutation_aspect=1.6)
    write(axes, x, y + 0.18, chapter.label, size=12, color=ink, weight="bold", zorder=3)
    write(axes, x, y - 0.2, chapter.short, size=9, color=ink, zorder=3, linespacing=0.95)
