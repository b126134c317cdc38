"""Figures of notebook 08: why micro-batches, the clock table and its bubble, two laws of time, GPipe beside 1F1B."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lib.schedules import Action
from lib.schedules.simulate import KINDS
from lib.show.charts import beside, log2_axis, row_bars
from lib.show.explore import steps, whole
from lib.show.lanes import bar, idle, lane_rows
from lib.show.schedule_table import draw_ranks, stuck
from lib.show.sheet import Cell, arrow, cell_axes, draw_cell, label_row, write
from lib.show.style import (
    BLUE,
    GREY,
    IDLE,
    INK,
    MUTED,
    RED,
    color_of,
    describe,
    headline,
    new_figure,
    rank_color,
    styled,
    title,
)
from lib.text import format_share, format_time, plural
from lib.timeline import Trace, Work, play
from support.n08.runs import ClockCycles, Simulate, as_schedule, run_of
from support.n08.solved import Ends, Orders

Live: TypeAlias = Callable[[Orders], Sequence[int]]

# --- one device, model parallelism and micro-batches on one time axis

THREE_WAYS_CONTROLS = {
    "micro_batches": whole(1, 8, 4, "m · micro-batches"),
    "partitions": whole(1, 4, 3, "n · partitions"),
}


def three_ways(micro_batches: int, partitions: int) -> dict[str, Trace]:
    """Return the forward pass of one batch for each way; labels are micro-batch (or "all") and partition: "3 1"."""
    m = micro_batches
    pieces = range(partitions)
    devices = [f"device {j}" for j in pieces]
    alone = [Work("device 0", f"all {j}", m) for j in pieces]
    parallel = [Work(devices[j], f"all {j}", m, [f"all {j - 1}"] if j else []) for j in pieces]
    piped = [Work(devices[j], f"{i} {j}", 1, [f"{i} {j - 1}"] if j else []) for i in range(m) for j in pieces]
    return {
        "One device": play(alone),
        "Model parallelism": play(parallel, devices),
        "Micro-batches": play(piped, devices),
    }


@styled
def draw_three_ways(micro_batches: int, partitions: int) -> Figure:
    """Draw the three ways below each other: colour is the piece of the model, the number the micro-batch."""
    ways = three_ways(micro_batches, partitions)
    ticks = micro_batches * partitions
    lanes = [len(trace.lanes) for trace in ways.values()]
    shape: Any = {"rows": 3, "sharex": True, "height_ratios": [n + 0.9 for n in lanes]}
    figure, panels = new_figure(9, 1.7 + 0.34 * sum(lanes), **shape)
    said = []
    for axes, (way, trace) in zip(panels, ways.items(), strict=True):
        _draw_way(axes, trace, ticks)
        said.append(f"{way}: {plural(trace.makespan, 'tick')}, {format_share(trace.bubble)} idle")
        axes.set_title(said[-1], fontsize=11, pad=5)
    panels[-1].set_xlabel("time (ticks: one micro-batch in one partition)")
    speed = ticks / ways["Micro-batches"].makespan
    sizes = f"{plural(partitions, 'device')}, {plural(micro_batches, 'micro-batch', 'micro-batches')}"
    finding = f"{sizes}: {speed:.2f} × as fast as one device"
    if partitions > 1:
        finding += "; model parallelism: 1.00 ×"
    headline(figure, finding)
    return describe(figure, f"{finding}. {'; '.join(said)}.")


def _draw_way(axes: Axes, trace: Trace, ticks: int) -> None:
    for row, lane in enumerate(trace.lanes):
        idle(axes, row, [(0, trace.makespan)])
        for span in trace.only(lane=lane):
            text, piece = span.label.split()
            if text == "all" and span.duration * 7.4 / ticks > 1.3:  # inches
                text = "the whole batch"
            bar(axes, row, span.start, span.duration, rank_color(int(piece)), text, size=10, linewidth=1.5)
    lane_rows(axes, trace.lanes, 0, ticks)
    axes.set_xticks(range(0, ticks + 1, 1 if ticks <= 16 else 4))


# --- pairs (micro-batch, partition), and the clock table made of their diagonals

DIAGONALS_CONTROLS = {
    "micro_batches": whole(1, 7, 4, "m · micro-batches"),
    "partitions": whole(1, 4, 3, "n · partitions"),
    "clock": whole(0, 9, 2, "k · clock"),
}


@styled
def draw_diagonals(clock_cycles: ClockCycles, micro_batches: int, partitions: int, clock: int) -> Figure:
    """Draw all pairs with their clock, and the table by clock; `clock` stands out (at most the last)."""
    m = micro_batches
    n = partitions
    table = [list(pairs) for pairs in clock_cycles(m, n)]
    clocks = len(table)
    clock = min(clock, clocks - 1)
    now = sorted(table[clock], reverse=True)
    rows = max(m, n)
    figure, (left, right) = new_figure(9, 1.75 + 0.5 * rows, cols=2, width_ratios=[n + 1.4, clocks + 1.7])
    _number_grid(left, n, m, rows, "partition j", "micro-batch i")
    _number_grid(right, clocks, n, rows, "clock k", "partition j")
    for k, pairs in enumerate(table):
        for i, j in pairs:
            look: Any = {"color": rank_color(j), "mark": "plain" if k == clock else "faded"}
            draw_cell(left, j, i, Cell(k, **look))
            draw_cell(right, k, j, Cell(i, **look))
    for i, j in now:
        for di, dj in ((0, -1), (-1, 0)):  # the input; the device, which is busy with the one before
            if i + di >= 0 and j + dj >= 0:
                arrow(left, (j + dj, i + di), (j, i), gap=(15, 14), zorder=5)
    right.add_patch(Rectangle((clock - 0.5, -0.5), 1, n, facecolor="none", edgecolor=INK, lw=1.6, zorder=4))
    left.set_title("number: the earliest clock of the pair", fontsize=11, pad=4)
    right.set_title("number: the micro-batch", fontsize=11, pad=4)
    finding = f"Clock {clock} of 0 … {clocks - 1}: pairs (i, j) with i + j = {clock}: {_written(now)}"
    headline(figure, finding)
    return describe(
        figure,
        f"{finding}. A grid of {m} micro-batches by {n} partitions, each with its earliest clock i + j, and a table "
        f"of {clocks} clocks. Arrows lead to a pair from the partition before and from the micro-batch before.",
    )


def _number_grid(axes: Axes, columns: int, lines: int, rows: int, across: str, down: str) -> None:
    """Prepare axes for a grid of cells with numbers along both sides, and what these count."""
    cell_axes(axes, columns=columns, rows=rows, left=1.3, top=1.2)
    write(axes, (columns - 1) / 2, -1.3, across, size=11, color=MUTED)
    write(axes, -1.45, (lines - 1) / 2, down, size=11, color=MUTED, rotation=90)
    for x in range(columns):
        write(axes, x, -0.75, str(x), color=MUTED)
    for y in range(lines):
        write(axes, -0.85, y, str(y), color=MUTED)


def _written(pairs: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"({i}, {j})" for i, j in pairs)


def early(clocks: Sequence[Iterable[tuple[int, int]]]) -> set[tuple[int, int, int]]:
    """Return (clock, i, j) of each pair that runs before its input (i, j - 1) has been there for a whole clock."""
    done: set[tuple[int, int]] = set()
    found = set()
    for k, clock in enumerate(clocks):
        pairs = list(clock)
        found |= {(k, i, j) for i, j in pairs if j and (i, j - 1) not in done}
        done.update(pairs)
    return found


@styled
def draw_clocks(clocks: Iterable[Iterable[tuple[int, int]]]) -> Figure:
    """Draw a list of clocks, each a list of pairs (micro-batch, partition): a row a partition, what is early red."""
    table = [list(clock) for clock in clocks]
    wrong = early(table)
    partitions = 1 + max((j for clock in table for _, j in clock), default=0)
    figure, axes = new_figure(9, 1.25 + 0.5 * partitions)
    cell_axes(axes, columns=max(len(table), 6), rows=partitions, left=2.2, top=0.6)
    axes.set_anchor("W")
    write(axes, -0.75, -0.75, "clock k", color=MUTED, ha="right")
    for j in range(partitions):
        label_row(axes, j, f"partition {j}")
    for k, clock in enumerate(table):
        write(axes, k, -0.75, str(k), color=MUTED)
        for i, j in clock:
            is_early = (k, i, j) in wrong
            draw_cell(axes, k, j, Cell(f"{i}!" if is_early else i, color=RED if is_early else rank_color(j)))
    if wrong:
        write(axes, len(table), (partitions - 1) / 2, "! its input is not there yet", ha="left", color=MUTED)
    when = f"{len(wrong)} of them run before their" if wrong else "each runs after its"
    finding = f"{len(table)} clocks, {sum(map(len, table))} pairs: {when} input is there"
    title(axes, finding)
    said = "; ".join(f"clock {k}: {_written(clock)}" for k, clock in enumerate(table))
    return describe(figure, f"{finding}. Pairs (micro-batch, partition) by clock: {said}.")


# --- the bubble: the idle cells of the table, counted, and their share over m and n

BUBBLE_CONTROLS = {
    "micro_batches": whole(1, 12, 4, "m · micro-batches"),
    "partitions": whole(1, 6, 4, "n · partitions"),
}


def idle_share(clock_cycles: ClockCycles, micro_batches: int, partitions: int) -> float:
    """Count the share of idle cells in the clock table."""
    clocks = [len(list(clock)) for clock in clock_cycles(micro_batches, partitions)]
    return 1 - sum(clocks) / (len(clocks) * partitions)


@styled
def draw_bubble(clock_cycles: ClockCycles, micro_batches: int, partitions: int) -> Figure:
    """Draw the clock table with its idle cells hatched, and the idle share over m for several n."""
    m = micro_batches
    n = partitions
    busy = [{j: i for i, j in pairs} for pairs in clock_cycles(m, n)]
    clocks = len(busy)
    share = partial(idle_share, clock_cycles)
    figure, (table, plot) = new_figure(9, 4.1, cols=2, width_ratios=[1.15, 1])
    cell_axes(table, columns=clocks, rows=max(n, 3) + 0.6, left=1.0, top=0.6)
    for k, done in enumerate(busy):
        for j in range(n):
            if j in done:
                draw_cell(table, k, j, Cell(done[j], color=rank_color(j)), font=11 if clocks < 12 else 9)
            else:
                idle(table, j, [(k - 0.44, 0.88)], height=0.88)
    write(table, (clocks - 1) / 2, -0.95, "clock", color=MUTED)
    write(table, -1.15, (n - 1) / 2, "partition", color=MUTED, rotation=90)
    for j in range(n):
        write(table, -0.75, j, str(j), color=MUTED)
    formula = f"idle: (n − 1) / (m + n − 1) = {n - 1} / {clocks}"
    write(table, (clocks - 1) / 2, max(n, 3) - 0.1, formula, size=11)
    _draw_shares(plot, m, n, share)
    idle_cells = n * clocks - sum(map(len, busy))
    finding = f"m = {m}, n = {n}: {idle_cells} of {n * clocks} cells are idle, {format_share(share(m, n))}"
    headline(figure, finding)
    return describe(
        figure,
        f"{finding}; each partition waits {n - 1} of {clocks} clocks, before its first and after its last micro-batch. "
        "Beside it the idle share over m from 1 to 64 for n = 2, 4, 8, 16: it falls with m and rises with n.",
    )


def _draw_shares(axes: Axes, m: int, n: int, share: Callable[[int, int], float]) -> None:
    several = [2**k for k in range(7)]
    for partitions in sorted({2, 4, 8, 16, n}):
        color, ink, width, weight = (INK, INK, 2.2, "bold") if partitions == n else (GREY, MUTED, 1.2, None)
        shares = [100 * share(count, partitions) for count in several]
        axes.plot(several, shares, "o-", color=color, lw=width, ms=3.5)
        look: Any = {"ha": "right", "fontsize": 9.5, "color": ink, "weight": weight}
        beside(axes, (1, shares[0]), f"n = {partitions}", (-9, 0), **look)
    axes.plot([m], [100 * share(m, n)], "o", color=rank_color(5), ms=10, zorder=5)
    log2_axis(axes, several)
    axes.set(ylim=(-3, 100), xlim=(0.42, 75), xlabel="m · micro-batches, doubling", ylabel="idle, %")


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
    held = {name: live(each) for name, each in orders.items()} if live else {}
    counts = [len(run.trace.lanes) for run in runs.values()]
    end = max(run.trace.end for run in runs.values())
    most = max((max(peaks, default=1) for peaks in held.values()), default=1)
    shape: Any = {"width_ratios": [8.2, 1], "height_ratios": [count + 0.4 for count in counts]}
    height = 1.6 + 0.38 * sum(counts) + 0.42 * (len(counts) > 1) * len(counts)
    figure, grid = new_figure(9, height, rows=len(runs), cols=2, squeeze=False, sharex="col", **shape)
    said = []
    for (axes, memory), (name, run) in zip(grid, runs.items(), strict=True):
        draw_ranks(axes, run.schedule, run.trace, run.waits, end, 0.38)
        peaks = held.get(name, [])
        row_bars(memory, peaks, [str(peak) for peak in peaks], color=GREY)
        memory.set(ylim=(len(run.trace.lanes) - 0.5, -0.5), xlim=(0, most * 1.62))
        took = f"{plural(round(run.trace.end, 2), 'tick')}, {format_share(run.trace.bubble)} idle"
        said.append(f"{name}: {took}" + (f", holds {', '.join(map(str, peaks))}" if peaks else ""))
        if runs.keys() - {name}:
            axes.set_title(said[-1], fontsize=11, pad=5)
        for wait in run.waits if arrows else ():
            span = next((span for span in run.trace if wait.needed and span.label == str(wait.needed)), None)
            if span:
                place = span.end, run.trace.lanes.index(span.lane)
                arrow(axes, place, (wait.end, wait.rank), color=RED, gap=(0, 3), head=15, width=2, zorder=6)
    grid[-1][0].set_xlabel("time (ticks)")
    heading: Any = {"fontsize": 10, "fontweight": "normal", "color": MUTED, "pad": 4}
    grid[0][1].set_title("activations\nheld" if held else "", **heading)
    kinds = [Patch(facecolor=color_of(kind), label=f"{kind[0].upper()} {kind}") for kind in KINDS.values()]
    figure.legend(handles=[*kinds[:2], Patch(**IDLE, label="idle")], loc="outside lower left", ncols=4)
    finding = title or _finding({name: run.trace.end for name, run in runs.items()}, held)
    headline(figure, finding)
    return describe(figure, f"{finding}. {'. '.join(said)}.")


def _finding(ends: Mapping[str, float], held: Mapping[str, Sequence[int]]) -> str:
    (first, end), *others = sorted(ends.items(), key=lambda pair: round(pair[1], 9))
    speed = "Equally long" if others and others[-1][1] - end < 1e-9 else f"{first} ends first"
    return (
        f"{speed}; most activations held: {', '.join(f'{name} {max(each)}' for name, each in held.items())}"
    )


PAIR_CONTROLS = {
    "micro_batches": whole(1, 12, 8, "m · micro-batches"),
    "partitions": whole(1, 6, 4, "n · ranks"),
    "backward": steps((1, 1.5, 2, 3), 2, "backward, ticks"),
    "message": steps((0, 0.1, 0.25, 0.5, 1), 0.1, "message, ticks"),
    "slow": steps((1, 1.25, 1.5, 2), 1, "rank 0 takes, × as long"),
}


def draw_pair(
    makers: Mapping[str, Callable[[int, int], Orders]],
    simulate: Simulate,
    live: Live,
    /,
    micro_batches: int,
    partitions: int,
    backward: float,
    message: float,
    slow: float,
) -> Figure:
    """Draw the orders of several makers with the same costs; rank 0 takes `slow` times as long for each task."""
    orders = {name: make(micro_batches, partitions) for name, make in makers.items()}
    factor = [slow] + [1.0] * (partitions - 1)
    costs: Any = {"forward": factor, "backward": [backward * each for each in factor], "message": message}
    figure = draw_runs(orders, simulate, live, **costs)
    sizes = f"m = {micro_batches}, n = {partitions}, backward {backward:g}, message {message:g}"
    return describe(figure, f"{figure.get_label()} ({sizes}, rank 0 takes {slow:g} × as long.)")


# --- the two laws of time


def draw_two_laws(
    ticks: Sequence[float], micro_batches: int, clock_cycles: ClockCycles, simulate: Simulate
) -> Figure:
    """Draw the forward pass of unequal partitions by both laws, one below the other on one time axis."""
    ends = Ends()
    borders = [0.0]
    for clock in clock_cycles(micro_batches, len(ticks)):
        pairs = list(clock)
        ends |= {("F", i, j): borders[-1] + ticks[j] for i, j in pairs}
        borders.append(borders[-1] + max(ticks[j] for _, j in pairs))
    first, second = ([[("F", i) for i in range(micro_batches)]] * len(ticks) for _ in "12")
    late = borders[-1] - max(simulate(second, {"F": ticks}, 0).values())
    figure = draw_runs(
        {"Clock by clock": first, "Data flow": second},
        lambda orders, *known: ends if orders is first else simulate(orders, *known),
        title=f"A clock ends with its slowest task, and that costs {plural(round(late, 9), 'tick')} here",
        forward=ticks,
    )
    figure.legends[0].remove()
    upper, _, lower, _ = figure.axes
    for border in borders[1:-1]:
        upper.axvline(border, color=INK, linewidth=1.3, linestyle=(0, (4, 3)), zorder=4)
    for axes in (upper, lower):
        axes.set_yticks(
            range(len(ticks)), [f"rank {j}: {plural(each, 'tick')}" for j, each in enumerate(ticks)]
        )
    lower.set_xlabel("time (ticks) · dashed: the end of a clock")
    return describe(
        figure, f"{figure.get_label()} Ranks take {', '.join(f'{t:g}' for t in ticks)} ticks a task."
    )


# --- a step over m, predicted and measured


@styled
def draw_steps(predicted: Mapping[int, float], measured: Mapping[int, float]) -> Figure:
    """Draw seconds of a step over m: predicted as a line with open marks, measured filled; each with its least."""
    figure, axes = new_figure(9, 3.9)
    best = {}
    looks: Any = {"predicted": {"ls": "--", "mfc": "none", "color": INK}, "measured": {"color": BLUE}}
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
            color = color_of(KINDS[action.op]) if slot < done or mark == "faded" else RED
            draw_cell(axes, *place[action], Cell(f"{action.op}{action.micro_batch}", color=color, mark=mark))
    edges = []
    for head, need in waiting:
        arrow(axes, place[head], place[need], gap=17, width=2, zorder=5)
        edges.append(f"{_name(head)} waits for {_name(need)}")
        if heads.get(need.stage, need) != need:  # it stands behind the task at which its rank is stuck
            look: Any = {"bend": -0.6 if need.stage else 0.6, "linestyle": (0, (3, 1.5))}
            arrow(axes, place[need], place[heads[need.stage]], gap=17, width=2, zorder=5, **look)
            edges.append(f"{_name(need)} stands behind {_name(heads[need.stage])}")
    words = "full: waits for it · dashed: stands behind it in its rank's order · pale: never done, too"
    write(axes, -0.44, high * len(rows) - 0.7, words, ha="left", color=MUTED)
    headline(figure, f"A ring of {len(edges)} arrows: each task waits for the next one, for ever")
    return describe(figure, f"A ring of {len(edges)} arrows: {'; '.join(edges)}.")


def _name(action: Action) -> str:
    return f"{action.op}{action.micro_batch} on rank {action.stage}"
