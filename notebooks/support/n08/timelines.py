"""Timelines of notebook 08: orders run by the reader's simulate, two laws of time, round trips, rings.

A row is a rank; a colour is a kind of task: forward, backward, recompute; red can't be.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from string import digits
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lib.schedules import Action
from lib.show.charts import log2_axis, row_bars
from lib.show.explore import steps, whole
from lib.show.lanes import FONT, idle, lane_bars, lane_rows, ticks
from lib.show.schedule_table import stuck
from lib.show.sheet import Cell, arrow, cell_axes, draw_cell, label_row, write
from lib.show.style import (
    GREY,
    IDLE,
    INK,
    MUTED,
    RED,
    color_of,
    describe,
    headline,
    new_figure,
    styled,
)
from lib.text import format_share, format_time, plural
from lib.timeline import Span, Trace
from support.n08.runs import KIND_OF, ClockCycles, Simulate, TimedRun, as_schedule, run_of
from support.n08.solved import Ends, Orders

Live: TypeAlias = Callable[[Orders], Sequence[int]]


# --- orders, run by the reader's simulate


@styled
def draw_runs(
    orders: Mapping[str, Orders],
    simulate: Simulate,
    live: Live | None = None,
    /,
    arrows: bool = False,
    title: str = "",
    **costs: Any,
) -> Figure:
    """Draw runs on one time axis, by name, and what ranks hold by `live`; costs as `run_of` takes them.

    arrows: from the end of the task that is waited for to the end of the idle time. title: the finding, if it is not
    who ends first and what is held.
    """
    runs = {name: run_of(each, simulate, **costs) for name, each in orders.items()}
    held = {name: [int(peak) for peak in live(each)] for name, each in orders.items()} if live else {}
    counts = [len(run.trace.lanes) for run in runs.values()]
    end = max(run.trace.end for run in runs.values())
    most = max((max(peaks, default=1) for peaks in held.values()), default=1)
    shape: Any = {"width_ratios": [8.2, 1], "height_ratios": [count + 0.4 for count in counts]}
    height = 1.6 + 0.38 * sum(counts) + 0.42 * (len(counts) > 1) * len(counts)
    figure, grid = new_figure(9, height, rows=len(runs), cols=2, squeeze=False, sharex="col", **shape)
    said = []
    for (axes, memory), (name, run) in zip(grid, runs.items(), strict=True):
        draw_rows(axes, run, end)
        peaks = held.get(name, [])
        row_bars(memory, peaks, [str(peak) for peak in peaks], color=GREY)
        memory.set(ylim=(len(run.trace.lanes) - 0.5, -0.5), xlim=(0, most * 1.62))
        took = f"{plural(round(run.trace.end, 2), 'tick')}, {format_share(run.trace.bubble)} idle"
        said.append(f"{name}: {took}" + (f", holds {', '.join(map(str, peaks))}" if peaks else ""))
        if runs.keys() - {name}:
            axes.set_title(said[-1], fontsize=11, pad=5)
        if arrows:
            _draw_waits(axes, run)
    grid[-1][0].set_xlabel("time (ticks)")
    heading: Any = {"fontsize": 10, "fontweight": "normal", "color": MUTED, "pad": 4}
    grid[0][1].set_title("activations\nheld" if held else "", **heading)
    figure.legend(handles=_legend(run.trace for run in runs.values()), loc="outside lower left", ncols=4)
    finding = title or _finding({name: run.trace.end for name, run in runs.items()}, held)
    headline(figure, finding)
    return describe(figure, f"{finding}. {'. '.join(said)}.")


def draw_rows(axes: Axes, run: TimedRun, end: float) -> None:
    """Draw a row for each rank: its idle times dotted, its tasks in the colour of their kind; end: of the axis."""
    points = 72 * 6.9 / end  # about how wide a tick comes out

    def fits(text: str, span: Span) -> bool:
        return len(text) * FONT * 0.66 <= span.duration * points - 1.2

    # F0; else 0 everywhere
    whole_names = all(fits(span.label.lstrip(digits), span) for span in run.trace)
    for rank, lane in enumerate(run.trace.lanes):
        idle(axes, rank, [(wait.start, wait.end - wait.start) for wait in run.waits if wait.rank == rank])
        spans = run.trace.only(lane=lane).spans
        names = [span.label.lstrip(digits) for span in spans]
        texts = names if whole_names else [name[1:] for name in names]
        texts = [text if fits(text, span) else "" for text, span in zip(texts, spans, strict=True)]
        places = [(span.start, span.duration) for span in spans]
        lane_bars(axes, rank, places, [color_of(span.kind) for span in spans], texts)
    lane_rows(axes, run.trace.lanes, 0, end * 1.004)
    axes.set_xticks([value for value, _ in ticks(0, end, whole=end >= 4)])


def _draw_waits(axes: Axes, run: TimedRun) -> None:
    """Draw an arrow from the end of what is waited for to the end of each wait."""
    spans = {span.label: span for span in run.trace}
    for wait in run.waits:
        if wait.needed:
            needed = spans[wait.needed]
            place = needed.end, run.trace.lanes.index(needed.lane)
            arrow(axes, place, (wait.end, wait.rank), gap=(0, 3), head=15, width=2, zorder=6)


def _legend(traces: Iterable[Trace]) -> list[Patch]:
    """Return what explains the colours of these traces, and the dots."""
    found = {kind for trace in traces for kind in trace.kinds}
    kinds = [(letter, kind) for letter, kind in KIND_OF.items() if kind in found]
    return [
        *(Patch(facecolor=color_of(kind), label=f"{letter} {kind}") for letter, kind in kinds),
        Patch(**IDLE, label="idle"),
    ]


def _finding(ends: Mapping[str, float], held: Mapping[str, Sequence[int]]) -> str:
    (first, end), *others = sorted(ends.items(), key=lambda pair: round(pair[1], 9))
    speed = "Equally long" if others and others[-1][1] - end < 1e-9 else f"{first} ends first"
    if not held:
        return speed
    return (
        f"{speed}; most activations held: {', '.join(f'{name} {max(each)}' for name, each in held.items())}"
    )


PAIR_CONTROLS = {
    "micro_batches": whole(1, 12, 8, "m · micro-batches"),
    "partitions": whole(1, 6, 4, "n · ranks"),
    "backward": steps((1, 1.5, 2, 3), 2, "backward, ticks"),
    "message": steps((0, 0.1, 0.5, 1, 1.5, 2), 0.1, "message, ticks"),
    "further": whole(0, 2, 0, "further ahead, per rank behind"),
    "slower": whole(-1, 5, -1, "slow rank, × 1.25 (−1: none)"),
}


def going_further(orders: Orders, further: int) -> list[list[tuple[Any, int]]]:
    """Let rank j do so many more forwards before its first backward for each rank behind it, the rest in turn."""
    changed = []
    for j, order in enumerate(orders):
        order = list(order)
        ahead = next((place for place, (kind, _) in enumerate(order) if kind == "B"), len(order))
        ahead += further * (len(orders) - 1 - j)
        forwards = [task for task in order if task[0] == "F"]
        backwards = [task for task in order if task[0] == "B"]
        row = forwards[:ahead]
        for i, back in enumerate(backwards):
            row += [back, *forwards[ahead + i : ahead + i + 1]]
        changed.append(row)
    return changed


def draw_pair(
    makers: Mapping[str, Callable[[int, int], Orders]],
    simulate: Simulate,
    live: Live,
    /,
    micro_batches: int,
    partitions: int,
    backward: float,
    message: float,
    further: int,
    slower: int,
) -> Figure:
    """Draw the orders of two makers with the same costs.

    further: as in going_further, of the second maker. slower: a rank that takes 1.25 times as long for each task, at
    most the last; -1 for none.
    """
    (first, make), (second, other) = makers.items()
    orders = {first: make(micro_batches, partitions)}
    name = f"{second}, further" if further else second
    orders[name] = going_further(other(micro_batches, partitions), further)
    slower = min(slower, partitions - 1)
    factor = [1.0] * partitions
    if slower >= 0:
        factor[slower] = 1.25
    speeds = f"rank {slower} takes 1.25 × as long" if slower >= 0 else "equal ranks"
    costs: Any = {"forward": factor, "backward": [backward * each for each in factor], "message": message}
    figure = draw_runs(orders, simulate, live, **costs)
    sizes = f"m = {micro_batches}, n = {partitions}, backward {backward:g}, message {message:g}, further {further}"
    return describe(figure, f"{figure.get_label()} ({sizes}, {speeds}.)")


# --- the round trip of one micro-batch

TRIP_CONTROLS = {
    "partitions": whole(1, 6, 4, "n · ranks"),
    "rank": whole(0, 5, 0, "j · rank"),
    "backward": steps((1, 1.5, 2, 3), 2, "backward, ticks"),
    "message": steps((0, 0.5, 1, 1.5, 2), 0, "message, ticks"),
}


@styled
def draw_round_trip(
    simulate: Simulate, /, partitions: int, rank: int, backward: float, message: float
) -> Figure:
    """Draw the way of one micro-batch alone, there and back, and how much of it rank j is without it."""
    n = partitions
    j = min(rank, n - 1)
    orders = [[("F", 0), ("B", 0)] for _ in range(n)]
    run = run_of(orders, simulate, backward=backward, message=message)
    figure, axes = new_figure(9, 1.85 + 0.42 * n)
    draw_rows(axes, run, run.trace.end)
    spans = {span.label: span for span in run.trace}
    way = [spans[f"{k}F0"] for k in range(n)] + [spans[f"{k}B0"] for k in reversed(range(n))]
    lanes = list(run.trace.lanes)
    for one, other in pairwise(way):
        if one.lane != other.lane:
            places = (one.end, lanes.index(one.lane)), (other.start, lanes.index(other.lane))
            arrow(axes, *places, gap=(0, 1), head=12, width=1.6, zorder=6)
    start = spans[f"{j}F0"].start
    end = spans[f"{j}B0"].end
    axes.add_patch(
        Rectangle((start, j - 0.47), end - start, 0.94, facecolor="none", edgecolor=INK, lw=2.2, zorder=7)
    )
    axes.set_xlabel(f"time (ticks) · framed: from the start of F0 to the end of B0 on rank {j}")
    figure.legend(handles=_legend([run.trace]), loc="outside lower left", ncols=4)
    away = round(end - start, 9)
    own = 1 + backward
    finding = (
        f"Rank {j}: {plural(away, 'tick')} there and back, of which its own work is {plural(own, 'tick')}"
    )
    headline(figure, finding)
    sizes = f"n = {n}, backward {backward:g}, message {message:g}, rank slider {rank}"
    return describe(figure, f"{finding} ({sizes}).")


# --- four ways: time and memory of rank 0

FOUR_CONTROLS = {
    "micro_batches": steps((4, 8, 16, 32), 8, "m · micro-batches"),
    "partitions": steps((2, 4, 8), 4, "n · ranks"),
    "inside": steps((2, 4, 7, 17, 34), 7, "an activation, in inputs"),
    "message": steps((0, 0.5, 1), 0, "message, ticks"),
}


@styled
def draw_four(
    ways: Mapping[str, Callable[[int, int], Orders]],
    simulate: Simulate,
    live: Live,
    /,
    micro_batches: int,
    partitions: int,
    inside: int,
    message: float,
) -> Figure:
    """Draw how long each way takes, and how much rank 0 holds, in inputs of a micro-batch.

    What recomputes holds the input of each micro-batch, and the whole activation of one.
    """
    figure, (time, memory) = new_figure(9, 2.5, cols=2)
    times = {}
    holds = {}
    for name, make in ways.items():
        orders = make(micro_batches, partitions)
        recomputes = any(kind == "R" for kind, _ in orders[0])
        times[name] = round(run_of(orders, simulate, message=message).trace.end, 2)
        count = live(orders)[0]
        holds[name] = count + inside - 1 if recomputes else count * inside
    row_bars(time, list(times.values()), [f"{each:g}" for each in times.values()], list(ways), GREY)
    row_bars(memory, list(holds.values()), [str(each) for each in holds.values()], color=GREY)
    time.set(xlim=(0, 1.15 * max(times.values())))
    memory.set(xlim=(0, 1.2 * max(holds.values())))
    heading: Any = {"fontsize": 11, "pad": 4}
    time.set_title("one step, ticks", **heading)
    memory.set_title("rank 0 holds, in inputs", **heading)
    fastest = [name for name, took in times.items() if took == min(times.values())]
    smallest = [name for name, size in holds.items() if size == min(holds.values())]
    finding = f"Fastest: {' and '.join(fastest)}; least memory: {' and '.join(smallest)}"
    headline(figure, finding)
    said = [
        f"{name}: {plural(times[name], 'tick')}, rank 0 holds {plural(holds[name], 'input')}" for name in ways
    ]
    settings = f"m = {micro_batches}, n = {partitions}, an activation is {inside} inputs, message {message:g}"
    return describe(figure, f"{finding} ({settings}). {'; '.join(said)}.")


# --- the two laws of time


TWO_LAWS_CONTROLS = {
    "first": whole(1, 4, 3, "rank 0, ticks"),
    "second": whole(1, 4, 1, "rank 1, ticks"),
    "third": whole(1, 4, 3, "rank 2, ticks"),
    "micro_batches": whole(1, 8, 4, "m · micro-batches"),
}


def draw_two_laws(
    clock_cycles: ClockCycles,
    simulate: Simulate,
    /,
    first: float,
    second: float,
    third: float,
    micro_batches: int,
) -> Figure:
    """Draw the forward pass of three partitions by both laws, one below the other on one time axis."""
    times = [first, second, third]
    ends = Ends()
    borders = [0.0]
    for clock in clock_cycles(micro_batches, len(times)):
        pairs = list(clock)
        ends |= {("F", i, j): borders[-1] + times[j] for i, j in pairs}
        borders.append(borders[-1] + max(times[j] for _, j in pairs))
    by_clock = [[("F", i) for i in range(micro_batches)] for _ in times]
    by_data = copy.deepcopy(by_clock)
    late = borders[-1] - max(simulate(by_data, {"F": times}, 0).values())
    figure = draw_runs(
        {"Clock by clock": by_clock, "Data flow": by_data},
        lambda orders, *known: ends if orders is by_clock else simulate(orders, *known),
        title=f"A clock ends with its slowest task, and that costs {plural(round(late, 9), 'tick')} here",
        forward=times,
    )
    figure.legends[0].remove()
    upper, _, lower, _ = figure.axes
    for border in borders[1:-1]:
        upper.axvline(border, color=INK, linewidth=1.3, linestyle=(0, (4, 3)), zorder=4)
    for axes in (upper, lower):
        names = [f"rank {j}: {plural(each, 'tick')}" for j, each in enumerate(times)]
        axes.set_yticks(range(len(times)), names)
    lower.set_xlabel("time (ticks) · dashed: the end of a clock")
    sizes = ", ".join(f"{each:g}" for each in times)
    return describe(figure, f"{figure.get_label()} Ranks take {sizes} ticks a task, m = {micro_batches}.")


# --- a step over m, predicted and measured


@styled
def draw_steps(predicted: Mapping[int, float], measured: Mapping[int, float]) -> Figure:
    """Draw seconds of a step over m: predicted as a line with open marks, measured filled; each with its least."""
    figure, axes = new_figure(9, 3.9)
    best = {}
    looks: Any = {"predicted": {"ls": "--", "mfc": "none", "color": MUTED}, "measured": {"color": INK}}
    for (name, look), times in zip(looks.items(), (predicted, measured), strict=True):
        m = best[name] = min(times, key=lambda m: times[m])
        axes.plot(list(times), [1e3 * t for t in times.values()], marker="o", label=name, **look)
        axes.plot([m], [1e3 * times[m]], "o", ms=14, mfc="none", mec=look["color"], mew=2)
    log2_axis(axes, predicted)
    axes.set(xlabel="m · micro-batches", ylabel="one step, ms", ylim=(0, None))
    axes.legend(loc="upper center")
    finding = (
        f"One step on two ranks is shortest at m = {best['measured']}; predicted: m = {best['predicted']}"
    )
    headline(figure, finding)
    pairs = "; ".join(f"m = {m}: {format_time(predicted[m])}, {format_time(measured[m])}" for m in predicted)
    return describe(figure, f"{finding}. Predicted and measured: {pairs}.")


# --- ranks that wait for each other


@styled
def draw_ring(orders: Orders) -> Figure:
    """Draw orders as they are written; where ranks are stuck, an arrow leads to what each task there waits for."""
    schedule = as_schedule(orders)
    high = 1.9
    waiting = stuck(schedule)
    heads = {action.stage: action for action, _ in waiting}
    needed = {need for _, need in waiting}
    rows = [schedule.actions(rank) for rank in range(len(orders))]
    figure, axes = new_figure(9, 1.4 + 1.3 * len(rows))
    cell_axes(axes, columns=max(8, *map(len, rows)), rows=high * len(rows), left=1.6, top=0.3)
    axes.set_anchor("W")
    place = {action: (slot, high * rank) for rank, row in enumerate(rows) for slot, action in enumerate(row)}
    for rank, row in enumerate(rows):
        label_row(axes, high * rank, f"rank {rank}")
        done = row.index(heads[rank]) if rank in heads else len(row)
        for slot, action in enumerate(row):
            mark: Any = "plain" if slot < done or action in needed or slot == done else "faded"
            color = color_of(KIND_OF[action.op]) if slot < done or mark == "faded" else RED
            draw_cell(axes, *place[action], Cell(f"{action.op}{action.micro_batch}", color=color, mark=mark))
    edges = []
    for head, need in waiting:
        arrow(axes, place[head], place[need], gap=17, width=2, zorder=5)
        edges.append(f"{_name(head)} waits for {_name(need)}")
        if heads.get(need.stage, need) != need:  # it stands behind the task at which its rank is stuck
            look: Any = {"bend": -0.6 if need.stage else 0.6, "linestyle": (0, (3, 1.5))}
            arrow(axes, place[need], place[heads[need.stage]], gap=17, width=2, zorder=5, **look)
            edges.append(f"{_name(need)} stands behind {_name(heads[need.stage])}")
    words = "full: waits for it · dashed: stands behind it in its rank's order · pale: never done either"
    write(axes, -0.44, high * len(rows) - 0.7, words, ha="left", color=MUTED)
    headline(figure, f"A ring of {len(edges)} arrows: each task waits for the next one, for ever")
    return describe(figure, f"A ring of {len(edges)} arrows: {'; '.join(edges)}.")


def _name(action: Action) -> str:
    return f"{action.op}{action.micro_batch} on rank {action.stage}"
