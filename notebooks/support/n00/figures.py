"""Figures of notebook 00, start here: a step that ranks share, a month that devices share, the map of the course."""

from __future__ import annotations

from math import isclose

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.show.charts import beside, log2_axis
from lib.show.explore import choice, steps, switch, whole
from lib.show.lanes import BARS, draw_timeline, lay_out
from lib.show.sheet import box, write
from lib.show.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    alt_text,
    describe,
    new_figure,
    styled,
    title,
)
from lib.text import plural
from lib.timeline import Trace
from support import course
from support.course import DATA, PIPELINE, START, TOGETHER, Chapter
from support.n00.days import BATCHES, MONTH, SAME_BATCH, days
from support.n00.shared_step import as_profiled, shared_step

# ---- One training step that several ranks share, in ticks: what it costs when one of them is slow, or messages are.

SHARED_STEP_CONTROLS = dict(
    ranks=whole(1, 8, 4, "ranks"),
    slow=steps((1.0, 1.5, 2.0, 3.0, 4.0), 2.0, "last rank slower (×)"),
    message=steps((0.0, 0.5, 1.0, 2.0, 4.0), 0.0, "ticks that messages take"),
    inside=switch(False, "as a profiler draws it"),
)


def draw_shared_step(ranks: int, slow: float, message: float, inside: bool) -> Figure:
    """Draw `shared_step` as a timeline with its idle time dotted, or with the wait as a part of the mean."""
    trace = shared_step(ranks, slow, message)
    alike = shared_step(ranks, 1.0, message).makespan
    taken = f"{plural(ranks, 'rank')}: {trace.makespan:g} ticks"
    if slow > 1:
        taken += f" instead of {alike:g}"
    finding = f"{taken}; {_who_waits(trace, slow, message)}"
    if inside:
        finding += ", drawn as part of the mean" if trace.bubble else "; no wait to be drawn"
    shown = as_profiled(trace) if inside else trace
    figure = draw_timeline(predicted=shown, title=finding, unit="clock", bubbles=shown.bubble > 0)
    figure.axes[0].set_xlabel("time (ticks)")  # this notebook has no clock yet, and one word for its unit
    return describe(figure, alt_text(figure).replace(" clocks", " ticks"))


def _who_waits(trace: Trace, slow: float, message: float) -> str:
    """Say who waits in a shared step, for whom and for what, and which share of the ranks' time."""
    ranks = len(trace.lanes)
    if ranks == 1:
        return "one rank waits for nobody"
    if not trace.bubble:
        return "all are equally fast, and nobody waits"
    if slow == 1:
        return f"all wait for messages, {trace.bubble:.0%} idle"
    waiting, everybody = (
        ("the other waits", "both") if ranks == 2 else (f"the {ranks - 1} others wait", "all")
    )
    idle = f"{trace.bubble:.0%} idle"
    also = f"and {everybody} for messages, {idle}" if message else idle
    return f"{waiting} for the slow one, {also}"


# ---- A month of training on several devices.

DAYS_CONTROLS = dict(
    devices=steps((2, 4, 8, 16, 32, 64), 8, "devices"),
    message=steps((0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2), 0.1, "messages (of a step)"),
    batch=choice(BATCHES, SAME_BATCH, "batch"),
    hidden=switch(False, "messages travel during backward"),
    update=steps((0.0, 0.01), 0.0, "step proper (of a step)"),
)
_DEVICES = (1, 2, 4, 8, 16, 32, 64)


@styled
def draw_days(devices: int, message: float, batch: str, hidden: bool, update: float) -> Figure:
    """Draw the days of a month's training over the number of devices, beside a month divided by that number."""
    taken = [days(count, message, batch=batch, hidden=hidden, update=update) for count in _DEVICES]
    shared = [MONTH / count for count in _DEVICES]
    here = taken[_DEVICES.index(devices)]
    without_messages = days(devices, 0.0, batch=batch, hidden=hidden, update=update)
    figure, axes = new_figure(9, 3.6)
    axes.plot(_DEVICES, shared, "--", color=MUTED, label="a month divided by their number")
    axes.plot(_DEVICES, taken, "o-", color=BLUE, label="with what is not shared")
    axes.plot([devices], [here], "o", color=ORANGE, markersize=11, zorder=5)
    beside(axes, (devices, here), f"{_in_days(here)}", offset=(12, 10), weight="bold")
    log2_axis(axes, _DEVICES)
    axes.set_yscale("log", base=2)
    axes.set_yticks([0.5, 1, 2, 4, 8, 16, 30], ["½", "1", "2", "4", "8", "16", "30"])
    axes.set(xlabel="devices", ylabel="days", ylim=(0.4, 40))
    axes.legend(loc="lower left")
    alone = MONTH / devices
    digits = 3
    compared = ""
    if not isclose(here, alone):
        digits = 4 if _in_days(here) == _in_days(alone) else 3
        compared = f", not {_in_days(alone, digits)}"
    if isclose(here, without_messages):
        compared += "; messages cost no time"
    proper = f" and a step proper of {update:.1%}" if update else ""
    finding = (
        f"{devices} devices, messages of {message:.1%} of a step{proper}: {_in_days(here, digits)}{compared}"
    )
    title(axes, finding)
    how = f"batch: {batch}, messages {'during' if hidden else 'after'} backward"
    points = ", ".join(f"{count}: {_in_days(time)}" for count, time in zip(_DEVICES, taken, strict=True))
    return describe(figure, f"{finding}; {how}. Days by number of devices: {points}.")


def _in_days(time: float, digits: int = 3) -> str:
    return f"{time:.{digits}g} days"


# ---- What was measured beside what was predicted.


@styled
def draw_both(measured: Trace, predicted: Trace, finding: str) -> Figure:
    """Draw `draw_timeline`'s picture of both traces, each on grey only up to its own end: busy shares refer to that."""
    figure = draw_timeline(measured, predicted, title=finding)
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
