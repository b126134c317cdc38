"""Any schedule as a timeline: a row a rank, bubbles hatched, and how many activations each rank holds at most.

draw_schedule    one schedule, simulated with given costs
draw_schedules   several below each other, on one time axis
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lib import schedules as makers
from lib._values import format_share
from lib.schedules import Action, Schedule, ScheduleError, live_activations, waits_for
from lib.schedules.simulate import KINDS, Cost, simulate
from lib.schedules.simulate import Idle as Wait
from lib.schedules.table import needs, validate
from lib.show.explore import choice, mark, steps, whole
from lib.show.sheet import Cell, arrow, cell_axes, draw_cell
from lib.show.style import (
    GREY,
    IDLE,
    INK,
    MUTED,
    PAPER,
    RED,
    color_of,
    describe,
    headline,
    ink_on,
    mixed,
    new_figure,
    styled,
)
from lib.show.timeline import FONT, LANE, idle, lane_rows, ticks
from lib.timeline import Span, Trace

# ---- Any schedule as a timeline: a row a rank, bubbles hatched, and how many activations each rank holds at most.
#
# draw_schedule    one schedule, simulated with given costs
# draw_schedules   several below each other, on one time axis

WORDS = {"F": "forward", "B": "backward", "I": "backward: input", "W": "backward: weights"}
NAMES = {
    "model_parallel": "model parallel",
    "gpipe": "GPipe",
    "one_f_one_b": "1F1B",
    "interleaved_one_f_one_b": "interleaved 1F1B",
    "looped_bfs": "looped BFS",
    "zero_bubble_h1": "zero bubble (ZB-H1)",
    "interleaved_zero_bubble": "interleaved zero bubble",
    "zbv": "ZB-V",
    "dualpipe_v": "DualPipeV",
    "pipedream": "PipeDream",
}  # what the makers' tables are called in pictures


def name_of(schedule: Schedule) -> str:
    """Return what a schedule is called in pictures: its name, or the usual spelling of a maker's."""
    return NAMES.get(schedule.name, schedule.name)


def held(schedule: Schedule) -> list[float]:
    """Return the most activations that each rank holds, in micro-batches: of v stages a rank, each counts 1/v."""
    share = len(schedule.ranks) / max(1, schedule.stages)
    return [round(peak * share, 2) for peak in live_activations(schedule)]


def goes_back(schedule: Schedule) -> bool:
    """Say whether there is any backward; a forward-only table keeps no activations."""
    return any(action.op != "F" for _, action in schedule)


def facts(schedule: Schedule, trace: Trace) -> str:
    """Say what a run of a schedule costs: "18 ticks, 33 % idle, holds at most 4"."""
    ended = round(trace.makespan, 2)
    said = f"{ended:g} tick{'s' * (ended != 1)}, {format_share(trace.bubble)} idle"
    return said + (f", holds at most {max(held(schedule)):g}" if goes_back(schedule) else "")


@styled
def draw_schedule(
    schedule: Schedule,
    *,
    forward: Cost = 1.0,
    backward: Cost = 2.0,
    weight: Cost | None = None,
    communicate: float = 0.0,
    title: str | None = None,
) -> Figure:
    """Draw the simulated run of a schedule; costs as `simulate` takes them. Raises ScheduleError if it can't run."""
    return draw_schedules(
        [schedule], forward=forward, backward=backward, weight=weight, communicate=communicate, title=title
    )


@styled
def draw_schedules(
    schedules: Sequence[Schedule],
    *,
    forward: Cost = 1.0,
    backward: Cost = 2.0,
    weight: Cost | None = None,
    communicate: float = 0.0,
    title: str | None = None,
    until: float = 0.0,
) -> Figure:
    """Draw the simulated runs of several schedules on one time axis, and what their ranks hold beside them.

    title: the finding; by default the facts of the only schedule, or which of several is fastest and which smallest.
    until: where the time axis ends, unless a schedule takes longer.
    Where the pointer is (`explore_hover`), an action says what it is, an idle time what it waits for.
    """
    traces = [simulate(schedule, forward, backward, weight, communicate) for schedule in schedules]
    waits = [waits_for(schedule, forward, backward, weight, communicate) for schedule in schedules]
    end = max(until, *(trace.end for trace in traces)) or 1.0
    counts = [len(schedule.ranks) for schedule in schedules]
    row = min(0.42, max(0.24, 4.4 / max(sum(counts), 1)))
    figure, grid = new_figure(
        9,
        1.55 + row * sum(counts) + 0.42 * len(counts) * (len(counts) > 1),
        rows=len(schedules),
        cols=2,
        squeeze=False,
        sharex="col",
        width_ratios=[8.2, 1],
        height_ratios=[n + 0.4 for n in counts],
    )
    most = max(max(held(schedule)) for schedule in schedules)
    said = []
    for (axes, memory), schedule, trace, waiting in zip(grid, schedules, traces, waits, strict=True):
        draw_ranks(axes, schedule, trace, waiting, end, row)
        _memory(memory, schedule, most)
        if len(schedules) > 1:
            axes.set_title(f"{name_of(schedule)}: {facts(schedule, trace)}", fontsize=11, pad=5)
        peaks = "; held by rank: " + ", ".join(f"{peak:g}" for peak in held(schedule))
        said.append(f"{name_of(schedule)}: {facts(schedule, trace)}{peaks * goes_back(schedule)}.")
    grid[-1][0].set_xlabel("time (ticks)")
    heading = "activations\nheld" * any(map(goes_back, schedules))
    grid[0][1].set_title(heading, fontsize=10, fontweight="normal", color=MUTED, pad=4)
    figure.legend(handles=_legend(schedules), loc="outside lower left", ncols=7, handlelength=1.1, columnspacing=1.3)
    finding = title or _finding(schedules, traces)
    headline(figure, finding)
    return describe(figure, f"{finding.rstrip('.')}. {' '.join(said)}")


def _finding(schedules: Sequence[Schedule], traces: Sequence[Trace]) -> str:
    if len(schedules) == 1:
        return f"{name_of(schedules[0])}: {facts(schedules[0], traces[0])}"
    names = [name_of(schedule) for schedule in schedules]
    ends, peaks = [trace.makespan for trace in traces], [max(held(schedule)) for schedule in schedules]
    if max(ends) - min(ends) < 1e-9:
        speed = f"{' and '.join(names)} take equally long"
    else:
        speed = f"{names[ends.index(min(ends))]} is fastest"
    if len(set(peaks)) == 1:
        return speed
    return f"{speed}; {names[peaks.index(min(peaks))]} holds at most {min(peaks):g}, not {max(peaks):g}"


def draw_ranks(axes: Axes, schedule: Schedule, trace: Trace, waits: Sequence[Wait], end: float, row: float) -> None:
    """Draw the rows of one run: idle times hatched, an action in the colour of its kind, shaded by its stage.

    end: of the time axis. row: the height of a row in inches (a label is left out where it would not fit).
    """
    points = 72 * 6.9 / end
    for rank, lane in enumerate(trace.lanes):
        mine = [wait for wait in waits if wait.rank == rank]
        idle(axes, rank, [(wait.start, wait.end - wait.start) for wait in mine])
        for wait in mine:
            words = f"idle for {round(wait.end - wait.start, 3):g}\n{wait}"
            mark(axes, (wait.start, wait.end, *_edges(rank)), words)
        stages = sorted({action.stage for action in schedule.actions(rank)})
        by_color: dict[str, list[Span]] = {}
        for span in trace.only(lane=lane):
            action = Action.parse(span.label)
            color = shade(action, stages.index(action.stage))
            by_color.setdefault(color, []).append(span)
            words = f"{action}\n{WORDS[action.op]} of micro-batch {action.micro_batch} at stage {action.stage}"
            when = f"{round(span.start, 3):g} – {round(span.end, 3):g}"
            mark(axes, (span.start, span.end, *_edges(rank)), f"{words}\n{when}")
            if row > 0.17:
                _label(axes, span, action, rank, len(stages) > 1, points, color)
        for color, spans in by_color.items():
            bars = [(span.start, span.duration) for span in spans]
            edge = PAPER if min(width for _, width in bars) * points > 3 else color
            axes.broken_barh(bars, (rank + LANE[0], LANE[1]), facecolors=color, edgecolors=edge, linewidth=0.9)
    lane_rows(axes, trace.lanes, 0, end * 1.004)
    axes.set_xticks([value for value, _ in ticks(0, end, whole=end >= 4)])


def _edges(rank: int) -> tuple[float, float]:
    return rank - 0.42, rank + 0.42


def shade(action: Action, place: int) -> str:
    """Return the colour of an action at its rank's stage number `place`: the first as it is, then pale, then dark."""
    color = color_of(KINDS[action.op])
    return (color, mixed(color, PAPER, 0.5), mixed(color, INK, 0.5))[min(place, 2)]


def _label(axes: Axes, span: Span, action: Action, rank: int, staged: bool, points: float, color: str) -> None:
    texts = (str(action) if staged else f"{action.op}{action.micro_batch}", str(action.micro_batch))
    room = span.duration * points - 1.2
    if text := next((text for text in texts if len(text) * FONT * 0.66 <= room), ""):
        center = (span.start + span.end) / 2
        look: Any = {"ha": "center", "va": "center_baseline", "fontsize": FONT, "color": ink_on(color)}
        axes.text(center, rank, text, clip_on=True, **look)


def _memory(axes: Axes, schedule: Schedule, most: float) -> None:
    peaks = held(schedule) if goes_back(schedule) else []
    axes.barh(range(len(peaks)), peaks, height=0.62, color=GREY)
    for rank, peak in enumerate(peaks):
        axes.text(peak + 0.06 * most, rank, f"{peak:g}", va="center_baseline", fontsize=10, color=INK)
        mark(
            axes,
            (0, most * 1.5, *_edges(rank)),
            f"rank {rank} holds at most {peak:g} activations (of micro-batches)",
        )
    axes.set(ylim=(len(schedule.ranks) - 0.5, -0.5), xlim=(0, most * 1.62), yticks=[], xticks=[])
    axes.spines[["left", "bottom"]].set_visible(False)


def _legend(schedules: Sequence[Schedule]) -> list[Patch]:
    ops = {action.op for schedule in schedules for _, action in schedule}
    patches = [Patch(facecolor=color_of(KINDS[op]), label=f"{op} {words}") for op, words in WORDS.items() if op in ops]
    if any(schedule.stages > len(schedule.ranks) for schedule in schedules):
        patches.append(Patch(facecolor=mixed(color_of("forward"), PAPER, 0.5), label="pale, dark: later stages"))
    return [*patches, Patch(**IDLE, label="idle")]


# ---- A schedule as it is written, a cell a slot; and if it can't run, where each rank is stuck, and what for.


@styled
def draw_refused(schedule: Schedule) -> Figure:
    """Draw a table as it is written, a cell a slot; if `validate` refuses it, its first illegal action is red.

    An arrow leads to each action at which a rank is stuck, from what it needs (if that is in the table).
    """
    slots = max(map(len, schedule.ranks))
    try:
        validate(schedule)
        error = None
    except ScheduleError as refused:
        error = refused
    figure, axes = new_figure(9, 1.25 + 0.26 * (error is not None) + 0.62 * len(schedule.ranks))
    cell_axes(axes, columns=max(slots, 8), rows=len(schedule.ranks) + 0.3, left=1.6, top=0.5)
    axes.set_anchor("W")
    places: dict[Action, tuple[int, int]] = {}
    for rank, cells in enumerate(schedule.ranks):
        axes.text(-0.8, rank, f"rank {rank}", ha="right", va="center_baseline", color=INK)
        for slot, action in enumerate(cells):
            if action is None:
                idle(axes, rank, [(slot - 0.44, 0.88)], height=0.88)
                continue
            places.setdefault(action, (slot, rank))
            wrong = error is not None and (error.rank, error.slot) == (rank, slot)
            color = RED if wrong else color_of(KINDS[action.op])
            draw_cell(axes, slot, rank, Cell(str(action), color=color, mark="plain" if wrong else "faded"), font=10)
    for action, needed in stuck(schedule):
        if needed in places and action in places:
            _needs(axes, places[needed], places[action])
    if error is not None:
        said = "arrows: from what is needed to where a rank is stuck"
        axes.text(-0.44, len(schedule.ranks) - 0.3, said, va="center", fontsize=10, color=MUTED)
    axes.text(-0.8, -0.75, "slot", ha="right", va="center", fontsize=9, color=MUTED)
    for slot in range(slots):
        axes.text(slot, -0.75, str(slot), ha="center", va="center", fontsize=9, color=MUTED)
    finding = f"{name_of(schedule)}: it can run" if error is None else f"{name_of(schedule)}: refused. {error}"
    headline(figure, finding)
    waits = "; ".join(f"{action} needs {needed}" for action, needed in stuck(schedule))
    table = "; ".join(schedule.to_text().splitlines())
    return describe(figure, f"{finding.rstrip('.')}. The table: {table}." + (f" Stuck: {waits}." if waits else ""))


def stuck(schedule: Schedule) -> list[tuple[Action, Action]]:
    """Return where each rank stops for ever, and what it needs there: pairs (action, needed); empty if all can run."""
    every = {action for _, action in schedule}
    rows = [schedule.actions(rank) for rank in range(len(schedule.ranks))]
    done: set[Action] = set()
    going = True
    while going:
        going = False
        for row in rows:
            while row and done.issuperset(needs(row[0], schedule.stages, every)):
                done.add(row.pop(0))
                going = True
    heads = [row[0] for row in rows if row]
    return [(head, need) for head in heads for need in needs(head, schedule.stages, every) if need not in done]


def _needs(axes: Axes, start: tuple[int, int], end: tuple[int, int]) -> None:
    bend = -0.45 if start[1] == end[1] else 0.12
    arrow(axes, start, end, width=1.8, head=14, bend=bend, gap=15, zorder=5)


# ---- The schedule explorer: any maker, any size, any costs; the timeline, its bubble, and what each rank holds.
#
# Every combination draws something: what a maker does not take is changed, and the title says so.

ONE_STAGE = {
    "model parallel": makers.model_parallel,
    "GPipe": makers.gpipe,
    "1F1B": makers.one_f_one_b,
    "zero bubble (ZB-H1)": makers.zero_bubble_h1,
    "PipeDream": makers.pipedream,
}
ANY_STAGES = {
    "interleaved 1F1B": makers.interleaved_one_f_one_b,
    "looped BFS": makers.looped_bfs,
    "interleaved zero bubble": makers.interleaved_zero_bubble,
}
TWO_STAGES = {"ZB-V": makers.zbv, "DualPipeV": makers.dualpipe_v}
MAKERS = tuple(NAMES.values())

SCHEDULE_CONTROLS = {
    "maker": choice(MAKERS, "interleaved 1F1B", "schedule"),
    "micro_batches": whole(1, 12, 8, "m · micro-batches"),
    "partitions": whole(1, 6, 4, "n · ranks"),
    "stages": whole(1, 3, 2, "v · stages per rank"),
    "backward": steps((1, 1.5, 2, 3), 2, "backward : forward"),
    "communicate": steps((0, 0.25, 0.5, 1), 0, "communication, ticks"),
    "slow": steps((1, 1.25, 1.5, 2), 1, "slowest rank, ×"),
}


def make(maker: str, micro_batches: int, partitions: int, stages: int = 1) -> tuple[Schedule, str]:
    """Return the schedule of that name, and what had to be changed for it (or nothing).

    PipeDream never flushes: it is made over two batches, so that one can see what happens between them.
    """
    m, n, v = micro_batches, partitions, stages
    if maker in ANY_STAGES:
        return Schedule(maker, ANY_STAGES[maker](m, n, v).ranks), ""
    if maker in TWO_STAGES:
        enough = max(m, 2 * n) if maker == "DualPipeV" else m
        said = [f"it takes m ≥ 2n, so m = {enough}"] * (enough > m) + ["always v = 2"] * (v != 2)
        return Schedule(maker, TWO_STAGES[maker](enough, n).ranks), ", ".join(said)
    said = ["always v = 1"] * (v != 1)
    if maker == "PipeDream":
        return Schedule(maker, ONE_STAGE[maker](2 * m, n).ranks), ", ".join(["two batches, no flush", *said])
    return Schedule(maker, ONE_STAGE[maker](m, n).ranks), ", ".join(said)


@styled
def draw_schedule_explorer(
    maker: str,
    micro_batches: int,
    partitions: int,
    stages: int,
    backward: float,
    communicate: float,
    slow: float,
) -> Figure:
    """Draw a schedule; a rank's forward of a micro-batch takes one tick, whatever the number of its stages.

    The rank in the middle is `slow` times as slow. A dashed line says when GPipe would end, with the same costs.
    """
    schedule, changed = make(maker, micro_batches, partitions, stages)
    costs = {"communicate": communicate}
    ours = {**_costs(schedule, backward, slow), **costs}
    trace = simulate(schedule, **ours)  # type: ignore[arg-type]
    several = 2 if maker == "PipeDream" else 1
    reference, _ = make("GPipe", schedule.micro_batches // several, partitions)
    gpipe_end = several * simulate(reference, **{**_costs(reference, backward, slow), **costs}).makespan  # type: ignore[arg-type]
    v = schedule.stages // partitions
    sizes = f"m = {schedule.micro_batches // several}, n = {partitions}" + (f", v = {v}" if v > 1 else "")
    finding = f"{maker}, {sizes}" + (f" ({changed})" if changed else "") + f": {facts(schedule, trace)}"
    figure = draw_schedules([schedule], **ours, title=finding, until=gpipe_end)  # type: ignore[arg-type]
    axes = figure.axes[0]
    axes.axvline(gpipe_end, color=INK, linewidth=1.3, linestyle=(0, (4, 3)), zorder=4)
    axes.set_xlabel(f"time (ticks) · dashed: the end of GPipe, {round(gpipe_end, 2):g}")
    held_by = ", ".join(f"{peak:g}" for peak in held(schedule))
    how = f"Backward {backward:g} ticks, communication {communicate:g}, slowest rank {slow:g} times"
    text = f"{finding}. {how}. GPipe takes {round(gpipe_end, 2):g} ticks. Held by rank: {held_by}."
    return describe(figure, text)


def _costs(schedule: Schedule, backward: float, slow: float) -> dict[str, list[float]]:
    ranks = len(schedule.ranks)
    v, middle = max(1, schedule.stages // ranks), ranks // 2
    factors = [(slow if schedule.rank_of[stage] == middle else 1.0) / v for stage in range(schedule.stages)]
    return {"forward": factors, "backward": [backward * factor for factor in factors]}
