"""Any schedule as a timeline: a row a rank, bubbles hatched, and how many activations each rank holds at most."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lib.schedules import Action, Schedule, ScheduleError, live_activations, waits_for
from lib.schedules.legal import Turn, needs, playable, validate
from lib.schedules.makers import MAKERS
from lib.schedules.simulate import Idle, simulate
from lib.schedules.table import KINDS
from lib.show import style
from lib.show.charts import row_bars
from lib.show.lanes import FONT, LANE, idle, lane_rows, ticks
from lib.show.sheet import Cell, arrow, cell_axes, draw_cell, label_row, write
from lib.show.style import GREY, IDLE, INK, MUTED, PAPER, RED, color_of, ink_on, mixed
from lib.text import format_share, plural
from lib.timeline import Span, Trace

WORDS = {"F": "forward", "B": "backward", "I": "backward: input", "W": "backward: weights"}


def name_of(schedule: Schedule) -> str:
    """Return what a schedule is called in pictures: its name, or the usual spelling of a maker's."""
    for maker in MAKERS.values():
        if maker.make.__name__ == schedule.name:
            return maker.name
    return schedule.name


def held(schedule: Schedule) -> list[float]:
    """Return the most activations that each rank holds, in micro-batches: of v stages a rank, each counts 1/v."""
    share = len(schedule.ranks) / max(1, schedule.stages)
    return [round(peak * share, 2) for peak in live_activations(schedule)]


def goes_back(schedule: Schedule) -> bool:
    """Say whether there is any backward; a forward-only table keeps no activations."""
    return any(action.op != "F" for _, action in schedule)


def facts(schedule: Schedule, trace: Trace) -> str:
    """Say what a run of a schedule costs: "18 ticks, 33 % idle, holds at most 4"."""
    ticks_taken = plural(round(trace.makespan, 2), "tick")
    said = f"{ticks_taken}, {format_share(trace.bubble)} idle"
    if goes_back(schedule):
        said += f", holds at most {max(held(schedule)):g}"
    return said


# --- as a timeline


def draw_schedule(schedule: Schedule, *, title: str | None = None, **costs: Any) -> Figure:
    """Draw the simulated run of a schedule; costs as `simulate` takes them. Raises ScheduleError if it can't run."""
    return draw_schedules([schedule], title=title, **costs)


@style.styled
def draw_schedules(
    schedules: Sequence[Schedule], *, title: str | None = None, until: float = 0.0, **costs: Any
) -> Figure:
    """Draw the simulated runs of several schedules on one time axis, and what their ranks hold beside them.

    title: the finding; by default the facts of the only schedule, or which of several is fastest and which smallest.
    until: where the time axis ends, unless a schedule takes longer. costs: as `simulate` takes them.
    An action tells (`mark`) what it is, an idle time what it waits for.
    """
    traces = [simulate(schedule, **costs) for schedule in schedules]
    end = max(until, *(trace.end for trace in traces)) or 1.0
    counts = [len(schedule.ranks) for schedule in schedules]
    several = len(schedules) > 1
    row = min(0.42, max(0.24, 4.4 / max(sum(counts), 1)))
    height = 1.55 + row * sum(counts)
    if several:
        height += 0.42 * len(counts)
    shape: Any = {"width_ratios": [8.2, 1], "height_ratios": [count + 0.4 for count in counts]}
    figure, grid = style.new_figure(9, height, rows=len(schedules), cols=2, squeeze=False, sharex="col", **shape)
    most = max(max(held(schedule)) for schedule in schedules)
    said = []
    for (axes, memory), schedule, trace in zip(grid, schedules, traces, strict=True):
        draw_ranks(axes, schedule, trace, waits_for(schedule, **costs), end, row)
        peaks = held(schedule) if goes_back(schedule) else []
        words = [f"{peak:g}" for peak in peaks]
        row_bars(memory, peaks, words, color=GREY)
        memory.set(ylim=(len(schedule.ranks) - 0.5, -0.5), xlim=(0, most * 1.62))
        told = f"{name_of(schedule)}: {facts(schedule, trace)}"
        if several:
            axes.set_title(told, fontsize=11, pad=5)
        by_rank = f"; held by rank: {', '.join(words)}" if peaks else ""
        said.append(f"{told}{by_rank}.")
    grid[-1][0].set_xlabel("time (ticks)")
    heading = "activations\nheld" if any(map(goes_back, schedules)) else ""
    grid[0][1].set_title(heading, fontsize=10, fontweight="normal", color=MUTED, pad=4)
    patches = legend(schedules)
    columns = len(patches) if len(patches) < 6 else 3  # six don't fit beside each other
    look: Any = {"handlelength": 1.1, "columnspacing": 1.3}
    figure.legend(handles=patches, loc="outside lower left", ncols=columns, **look)
    finding = title or _finding(schedules, traces)
    style.headline(figure, finding)
    return style.describe(figure, f"{finding.rstrip('.')}. {' '.join(said)}")


def _finding(schedules: Sequence[Schedule], traces: Sequence[Trace]) -> str:
    if len(schedules) == 1:
        return f"{name_of(schedules[0])}: {facts(schedules[0], traces[0])}"
    names = [name_of(schedule) for schedule in schedules]
    ends = [trace.makespan for trace in traces]
    if max(ends) - min(ends) < 1e-9:
        speed = f"{' and '.join(names)} take equally long"
    else:
        speed = f"{names[ends.index(min(ends))]} is fastest"
    peaks = [max(held(schedule)) for schedule in schedules]
    if len(set(peaks)) == 1:
        return speed
    smallest = names[peaks.index(min(peaks))]
    return f"{speed}; {smallest} holds at most {min(peaks):g}, not {max(peaks):g}"


def draw_ranks(axes: Axes, schedule: Schedule, trace: Trace, gaps: Sequence[Idle], end: float, row: float) -> None:
    """Draw the rows of one run: idle times hatched, an action in the colour of its kind, shaded by its stage.

    end: of the time axis. row: the height of a row in inches (a label is left out where it would not fit).
    """
    points = 72 * 6.9 / end  # about how wide a tick comes out

    def fits(text: str, span: Span) -> bool:
        return len(text) * FONT * 0.66 <= span.duration * points - 1.2

    texts = _texts(schedule, trace, fits)
    for rank, lane in enumerate(trace.lanes):
        idle(axes, rank, [(gap.start, gap.end - gap.start) for gap in gaps if gap.rank == rank])
        stages = sorted({action.stage for action in schedule.actions(rank)})
        by_color: dict[str, list[Span]] = {}  # all of a colour are drawn at once
        for span in trace.only(lane=lane):
            action = Action.parse(span.label)
            color = shade(action, stages.index(action.stage))
            by_color.setdefault(color, []).append(span)
            text = texts[span.label]
            if row > 0.17 and fits(text, span):
                look: Any = {"va": "center_baseline", "clip_on": True}
                write(axes, (span.start + span.end) / 2, rank, text, size=FONT, color=ink_on(color), **look)
        for color, spans in by_color.items():
            narrowest = min(span.duration for span in spans) * points
            edge = PAPER if narrowest > 3 else color  # a white edge would hide what is narrower
            extents = [(span.start, span.duration) for span in spans]
            axes.broken_barh(extents, (rank + LANE[0], LANE[1]), facecolors=color, edgecolors=edge, linewidth=0.9)
    lane_rows(axes, trace.lanes, 0, end * 1.004)
    axes.set_xticks([value for value, _ in ticks(0, end, whole=end >= 4)])


def _texts(schedule: Schedule, trace: Trace, fits: Callable[[str, Span], bool]) -> dict[str, str]:
    """Return what is written on each span, by its label: one kind of text in a picture.

    2F0 where a rank has several stages, F0 where the row says the stage; the micro-batch alone, if that does not fit.
    """
    looped = schedule.stages > len(schedule.ranks)
    texts = {span.label: span.label if looped else span.label.lstrip("0123456789") for span in trace}
    if all(fits(texts[span.label], span) for span in trace):
        return texts
    return {label: str(Action.parse(label).micro_batch) for label in texts}


def shade(action: Action, place: int) -> str:
    """Return the colour of an action at its rank's stage number `place`: the first as it is, then pale, then dark."""
    color = color_of(KINDS[action.op])
    shades = (color, mixed(color, PAPER, 0.5), mixed(color, INK, 0.5))
    return shades[min(place, 2)]


def legend(schedules: Sequence[Schedule]) -> list[Patch]:
    """Return what explains the colours in the pictures of schedules."""
    ops = {action.op for schedule in schedules for _, action in schedule}
    patches = [Patch(facecolor=color_of(KINDS[op]), label=f"{op} {words}") for op, words in WORDS.items() if op in ops]
    if any(schedule.stages > len(schedule.ranks) for schedule in schedules):
        patches.append(Patch(facecolor=shade(Action("F", 0, 0), 1), label="pale colours: a rank's second stage"))
    return [*patches, Patch(**IDLE, label="idle")]


# --- as it is written; and if it can't run, where each rank is stuck, and what for


@style.styled
def draw_refused(schedule: Schedule) -> Figure:
    """Draw a table as it is written, a cell a slot; if `validate` refuses it, its first illegal action is red.

    An arrow leads to each action at which a rank is stuck, from what it needs (if that is in the table).
    """
    error = _refusal(schedule)
    slots = max(map(len, schedule.ranks))
    ranks = len(schedule.ranks)
    figure, axes = style.new_figure(9, 1.25 + (0.26 if error else 0) + 0.62 * ranks)
    cell_axes(axes, columns=max(slots, 8), rows=ranks + 0.3, left=1.6, top=0.5)
    axes.set_anchor("W")
    write(axes, -0.75, -0.75, "slot", size=9, color=MUTED, ha="right")
    for slot in range(slots):
        write(axes, slot, -0.75, str(slot), size=9, color=MUTED)
    places: dict[Action, tuple[int, int]] = {}
    for rank, cells in enumerate(schedule.ranks):
        label_row(axes, rank, f"rank {rank}")
        for slot, action in enumerate(cells):
            if action is None:
                idle(axes, rank, [(slot - 0.44, 0.88)], height=0.88)
                continue
            places.setdefault(action, (slot, rank))
            look: Any = {"color": color_of(KINDS[action.op]), "mark": "faded"}
            if error is not None and (error.rank, error.slot) == (rank, slot):
                look = {"color": RED}
            draw_cell(axes, slot, rank, Cell(str(action), **look), font=10)
    waiting = stuck(schedule)
    for action, needed in waiting:
        if needed in places and action in places:
            start = places[needed]
            end = places[action]
            same_rank = start[1] == end[1]
            bend = -0.45 if same_rank else 0.12
            arrow(axes, start, end, width=1.8, head=14, bend=bend, gap=15, zorder=5)
    if error is None:
        finding = f"{name_of(schedule)}: it can run"
    else:
        finding = f"{name_of(schedule)}: refused. {error}"
        explained = "arrows: from what is needed to where a rank is stuck"
        write(axes, -0.44, ranks - 0.3, explained, color=MUTED, ha="left")
    style.headline(figure, finding)
    said = f"{finding.rstrip('.')}. The table: {'; '.join(schedule.to_text().splitlines())}."
    if waiting:
        said += f" Stuck: {'; '.join(f'{action} needs {needed}' for action, needed in waiting)}."
    return style.describe(figure, said)


def _refusal(schedule: Schedule) -> ScheduleError | None:
    """Return why the table can't run, or None."""
    try:
        validate(schedule)
    except ScheduleError as error:
        return error
    return None


def stuck(schedule: Schedule) -> list[tuple[Action, Action]]:
    """Return where each rank stops for ever, and what it needs there: pairs (action, needed); empty if all can run."""
    every = {action for _, action in schedule}
    rows: list[deque[Turn]] = [deque() for _ in schedule.ranks]
    for rank, action in schedule:
        rows[rank].append(Turn(rank, 0, action, needs(action, schedule.stages, every)))
    done = {turn.action for turn in playable(rows)}
    heads = [row[0] for row in rows if row]  # what could be done is gone from the rows
    return [(head.action, need) for head in heads for need in head.needs if need not in done]


# --- any maker, any size: what a maker does not take is changed, and said


def make(name: str, micro_batches: int, partitions: int, stages: int = 1) -> tuple[Schedule, str]:
    """Return the schedule of that name, and what had to be changed for it (or nothing).

    One that never flushes is made over two batches, so that one can see what happens between them.
    """
    maker = MAKERS[name]
    m = micro_batches
    changed = []
    if not maker.flushes:
        m = 2 * micro_batches
        changed.append("two batches, no flush")
    if m < maker.fewest(partitions):
        m = maker.fewest(partitions)
        changed.append(f"it takes m ≥ {maker.micro_batches_per_rank}n, so m = {m}")
    made = maker.table(m, partitions, stages)
    always = made.stages // partitions
    if always != stages:
        changed.append(f"always v = {always}")
    return Schedule(name, made.ranks), ", ".join(changed)
