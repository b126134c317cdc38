"""Figures of notebook 08: why micro-batches, the clock table, its bubble, the best m, a table placed by hand."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib._values import format_share, format_time, plural
from lib.pipeline import clock_cycles
from lib.schedules import Action, Schedule, gpipe, simulate, waits_for
from lib.schedules.simulate import KINDS
from lib.show.charts import beside, log2_axis, row_bars
from lib.show.explore import bundle, choice, steps, whole
from lib.show.schedules import MAKERS, draw_ranks, draw_schedules, facts, held, make
from lib.show.sheet import Cell, arrow, cell_axes, draw_cell, label_row, write
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MUTED,
    PAPER,
    RED,
    color_of,
    describe,
    headline,
    new_figure,
    rank_color,
    source_note,
    styled,
    title,
)
from lib.show.timeline import bar, idle, lane_rows
from lib.timeline import Trace, Work, play
from support.n08.hover import hovering
from support.n08.runs import Board

# --- one device, model parallelism and micro-batches on one time axis

THREE_WAYS_CONTROLS = {
    "micro_batches": whole(1, 8, 4, "m · micro-batches"),
    "partitions": whole(1, 4, 3, "n · partitions"),
}


def three_ways(micro_batches: int, partitions: int) -> dict[str, Trace]:
    """Return the forward pass of one batch as a Trace for each way; a micro-batch takes a tick in a partition.

    A span's label is the micro-batch (or "all") and the partition: "all 0", "3 1".
    """
    m, pieces = micro_batches, range(partitions)
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
    figure, panels = new_figure(
        9, 1.7 + 0.34 * sum(lanes), rows=3, sharex=True, height_ratios=[n + 0.9 for n in lanes]
    )
    said = []
    for axes, (way, trace) in zip(panels, ways.items(), strict=True):
        _draw_way(axes, trace, ticks)
        said.append(f"{way}: {plural(trace.makespan, 'tick')}, {format_share(trace.bubble)} idle")
        axes.set_title(said[-1], fontsize=11, pad=5)
    panels[-1].set_xlabel("time (ticks: one micro-batch in one piece of the model)")
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
def draw_diagonals(micro_batches: int, partitions: int, clock: int) -> Figure:
    """Draw all pairs with their earliest clock, and the table by clock; `clock` stands out (at most the last)."""
    m, n, clocks = micro_batches, partitions, micro_batches + partitions - 1
    clock = min(clock, clocks - 1)
    now = [(clock - j, j) for j in range(n) if 0 <= clock - j < m]
    rows = max(m, n)
    figure, (left, right) = new_figure(9, 1.75 + 0.5 * rows, cols=2, width_ratios=[n + 1.4, clocks + 1.7])
    _number_grid(left, n, m, rows, "partition j", "micro-batch i")
    _number_grid(right, clocks, n, rows, "clock k", "partition j")
    for i in range(m):
        for j in range(n):
            look: Any = {"color": rank_color(j), "mark": "plain" if (i, j) in now else "faded"}
            draw_cell(left, j, i, Cell(i + j, **look))
            draw_cell(right, i + j, j, Cell(i, **look))
    for i, j in now:
        for di, dj in ((0, -1), (-1, 0)):  # the input; the device, which is busy with the one before
            if i + di >= 0 and j + dj >= 0:
                arrow(left, (j + dj, i + di), (j, i), gap=(15, 14), zorder=5)
    right.add_patch(Rectangle((clock - 0.5, -0.5), 1, n, facecolor="none", edgecolor=INK, lw=1.6, zorder=4))
    left.set_title("earliest clock of each pair", fontsize=11, pad=4)
    right.set_title("who computes which micro-batch", fontsize=11, pad=4)
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
    cell_axes(axes, columns=max(len(table), 8), rows=partitions, left=2.2, top=0.6)
    axes.set_anchor("W")
    write(axes, -0.75, -0.75, "clock", color=MUTED, ha="right")
    for j in range(partitions):
        label_row(axes, j, f"partition {j}")
    for k, clock in enumerate(table):
        write(axes, k, -0.75, str(k), color=MUTED)
        for i, j in clock:
            is_early = (k, i, j) in wrong
            draw_cell(axes, k, j, Cell(f"{i}!" if is_early else i, color=RED if is_early else rank_color(j)))
    late = f"{len(wrong)} of them run before their input is there"
    order = late if wrong else "each runs after its input is there"
    finding = f"{len(table)} clocks, {sum(map(len, table))} pairs: {order}"
    title(axes, finding)
    said = "; ".join(f"clock {k}: {_written(clock)}" for k, clock in enumerate(table))
    return describe(figure, f"{finding}. Pairs (micro-batch, partition) by clock: {said}.")


# --- the bubble: the idle cells of the table, counted, and their share over m and n

BUBBLE_CONTROLS = {
    "micro_batches": whole(1, 12, 4, "m · micro-batches"),
    "partitions": whole(1, 6, 4, "n · partitions"),
}


def idle_share(micro_batches: int, partitions: int) -> float:
    """Count the share of idle cells in the clock table."""
    clocks = [len(clock) for clock in clock_cycles(micro_batches, partitions)]
    return 1 - sum(clocks) / (len(clocks) * partitions)


@styled
def draw_bubble(micro_batches: int, partitions: int) -> Figure:
    """Draw the clock table with its idle cells hatched, and the idle share over m for several n."""
    m, n, clocks = micro_batches, partitions, micro_batches + partitions - 1
    figure, (table, plot) = new_figure(9, 4.1, cols=2, width_ratios=[1.15, 1])
    cell_axes(table, columns=clocks, rows=max(n, 3) + 0.6, left=1.0, top=0.6)
    for k in range(clocks):
        for j in range(n):
            if 0 <= k - j < m:
                draw_cell(table, k, j, Cell(k - j, color=rank_color(j)), font=11 if clocks < 12 else 9)
            else:
                idle(table, j, [(k - 0.44, 0.88)], height=0.88)
    write(table, (clocks - 1) / 2, -0.95, "clock", color=MUTED)
    write(table, -1.15, (n - 1) / 2, "partition", color=MUTED, rotation=90)
    for j in range(n):
        write(table, -0.75, j, str(j), color=MUTED)
    formula = f"idle: (n − 1) / (m + n − 1) = {n - 1} / {clocks}"
    write(table, (clocks - 1) / 2, max(n, 3) - 0.1, formula, size=11)
    _draw_shares(plot, m, n)
    idle_cells = f"{n * (n - 1)} of {n * clocks} cells are idle, {format_share(idle_share(m, n))}"
    finding = f"m = {m}, n = {n}: {idle_cells}"
    headline(figure, finding)
    return describe(
        figure,
        f"{finding}; each partition waits {n - 1} of {clocks} clocks: two triangles, before the first and after the "
        f"last micro-batch. Beside it the idle share over m from 1 to 64 for n = 2, 4, 8, 16: it falls with m and "
        "rises with n.",
    )


def _draw_shares(axes: Axes, m: int, n: int) -> None:
    several = [2**k for k in range(7)]
    for partitions in sorted({2, 4, 8, 16, n}):
        color, ink, width, weight = (INK, INK, 2.2, "bold") if partitions == n else (GREY, MUTED, 1.2, None)
        shares = [100 * idle_share(count, partitions) for count in several]
        axes.plot(several, shares, "o-", color=color, lw=width, ms=3.5)
        look: Any = {"ha": "right", "fontsize": 9.5, "color": ink, "weight": weight}
        beside(axes, (1, shares[0]), f"n = {partitions}", (-9, 0), **look)
    axes.plot([m], [100 * idle_share(m, n)], "o", color=rank_color(5), ms=10, zorder=5)
    log2_axis(axes, several)
    axes.set(ylim=(-3, 100), xlim=(0.42, 75), xlabel="m · micro-batches", ylabel="idle, %")


# --- the best number of micro-batches: the bubble wants many, operators want large ones; from a measured speed

BEST_M_CONTROLS = {"partitions": steps((2, 4, 8, 16, 32), 4, "n · partitions")}


def task_seconds(record: Mapping[str, Any]) -> dict[int, float]:
    """Return the seconds of one micro-batch by its number of rows; record as `chunk_speed` returns it."""
    return {size: size / speed for size, speed in zip(record["size"], record["rows_per_second"], strict=True)}


def step_seconds(record: Mapping[str, Any], partitions: int) -> dict[int, float]:
    """Return the seconds of a step by m: m + n - 1 clocks, each as long as a micro-batch of rows / m took.

    A partition is taken to be as large as the model that was measured.
    """
    rows = record["rows"]
    times = {rows // size: seconds for size, seconds in task_seconds(record).items()}
    return {m: (m + partitions - 1) * seconds for m, seconds in sorted(times.items())}


def best_m(record: Mapping[str, Any], partitions: int) -> int:
    """Return the m whose step is shortest."""
    times = step_seconds(record, partitions)
    return min(times, key=lambda m: times[m])


@styled
def draw_best_m(record: Mapping[str, Any], partitions: int, note: str = "") -> Figure:
    """Draw a step over m as the measured task times predict it, and as it would be if small operators were free."""
    times, best = step_seconds(record, partitions), best_m(record, partitions)
    alone, most = task_seconds(record)[record["rows"]], max(times)
    taken = {m: 1e3 * seconds for m, seconds in times.items()}  # ms
    free = {m: 1e3 * (m + partitions - 1) * alone / m for m in times}
    over, lower, upper = list(times), list(free.values()), list(taken.values())
    figure, axes = new_figure(9, 3.9 + 0.3 * bool(note))
    axes.plot(over, lower, "--", color=GREY, label="if small operators cost nothing more")
    axes.fill_between(over, lower, upper, color=RED, alpha=0.13, lw=0, label="what small operators cost")
    axes.plot(over, upper, "o-", color=BLUE, label="with the measured times")
    axes.plot([best], [taken[best]], "o", ms=13, mfc="none", mec=INK, mew=2)
    bold: Any = {"ha": "center", "va": "baseline", "fontsize": 11, "weight": "bold"}
    beside(axes, (best, taken[best]), f"m = {best}", (0, 14), **bold)
    log2_axis(axes, times)
    axes.set_yscale("log")
    axes.set_ylim(min(*lower, taken[best]) / 1.6, None)
    marks = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
    marks = [value for value in marks if min(lower) / 1.6 <= value <= max(upper)]
    axes.set_yticks(marks, [f"{value:g}" for value in marks])
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set(xlabel=f"m · micro-batches of a batch of {record['rows']} rows", ylabel="one step, ms")
    axes.legend(loc="upper center")
    ends = f"m = 1 takes {times[1] / times[best]:.1f} × as long, m = {most} {times[most] / times[best]:.0f} ×"
    headline(figure, f"{partitions} partitions: m = {best} is best here; {ends}")
    if note:
        source_note(figure, note)
    return describe(
        figure,
        f"Time of a step over m from 1 to {most}, predicted from measured task times, for {partitions} partitions: it "
        f"falls while the bubble shrinks, and rises where operators become too small. Best: m = {best}, "
        f"{format_time(times[best])}.",
    )


# --- any schedule, any size, any costs

SCHEDULE_CONTROLS = {
    "maker": choice(tuple(MAKERS), "interleaved 1F1B", "schedule"),
    "micro_batches": whole(1, 12, 8, "m · micro-batches"),
    "partitions": whole(1, 6, 4, "n · ranks"),
    "stages": whole(1, 3, 2, "v · stages per rank"),
    "backward": steps((1, 1.5, 2, 3), 2, "backward : forward"),
    "communicate": steps((0, 0.25, 0.5, 1), 0, "communication, ticks"),
    "slow": steps((1, 1.25, 1.5, 2), 1, "slowest rank, ×"),
}


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

    def costs(table: Schedule) -> dict[str, Any]:
        v = max(1, table.stages // partitions)
        ranks = [table.rank_of[stage] for stage in range(table.stages)]
        each = [(slow if rank == partitions // 2 else 1.0) / v for rank in ranks]
        return {"forward": each, "backward": [backward * cost for cost in each], "communicate": communicate}

    schedule, changed = make(maker, micro_batches, partitions, stages)
    batches = 2 if maker == "PipeDream" else 1
    m, v = schedule.micro_batches // batches, schedule.stages // partitions
    baseline = gpipe(m, partitions)
    gpipe_end = batches * simulate(baseline, **costs(baseline)).makespan
    sizes = (
        f"m = {m}, n = {partitions}" + (f", v = {v}" if v > 1 else "") + (f" ({changed})" if changed else "")
    )
    finding = f"{maker}, {sizes}: {facts(schedule, simulate(schedule, **costs(schedule)))}"
    figure = draw_schedules([schedule], title=finding, until=gpipe_end, **costs(schedule))
    axes = figure.axes[0]
    axes.axvline(gpipe_end, color=INK, linewidth=1.3, linestyle=(0, (4, 3)), zorder=4)
    axes.set_xlabel(f"time (ticks) · dashed: the end of GPipe, {round(gpipe_end, 2):g}")
    held_by = ", ".join(f"{peak:g}" for peak in held(schedule))
    how = f"Backward {backward:g} ticks, communication {communicate:g}, slowest rank {slow:g} times"
    text = f"{finding}. {how}. GPipe takes {round(gpipe_end, 2):g} ticks. Held by rank: {held_by}."
    return describe(figure, text)


# --- a schedule table that is filled action by action, and the buttons for it: place a schedule yourself


@styled
def draw_board(board: Board) -> Figure:
    """Draw the table so far, and ticks and held activations beside those of GPipe and 1F1B."""
    scores, verdict = board.scores(), board.verdict()
    end = max(board.trace.end, 1.08 * max(score.ticks for score in scores[1:]))
    figure, (upper, lower) = new_figure(
        9, 2.9 + 0.42 * board.partitions, rows=2, height_ratios=[board.partitions, 2.4]
    )
    waits = waits_for(board.schedule, board.forward, board.backward) if board.moves else []
    gaps = [wait for wait in waits if wait.needed or not board.left]  # the rest may still be filled
    draw_ranks(upper, board.schedule, board.trace, gaps, end, 0.42)
    upper.set_xlabel("time (ticks)")
    lower.axis("off")
    columns = lower.get_subplotspec().subgridspec(1, 3, wspace=0.1)
    names = ["yours so far" if board.left else "yours", "GPipe", "1F1B"]
    numbers: tuple[tuple[str, list[tuple[float, str]]], ...] = (
        ("ticks", [(score.ticks, f"{score.ticks:g}") for score in scores]),
        ("idle", [(100 * score.idle, format_share(score.idle)) for score in scores]),
        ("activations held", [(score.held, str(score.held)) for score in scores]),
    )
    for column, (what, pairs) in enumerate(numbers):
        axes = figure.add_subplot(columns[column])
        values, words = zip(*pairs, strict=True)
        bars = row_bars(axes, values, words, () if column else names, [INK, GREY, GREY])
        if board.left:
            bars[0].set(facecolor=PAPER, edgecolor=INK, linewidth=1.4)  # not yet final: an outline
        axes.set_xlim(0, 1.25 * max(*values, 1))
        axes.set_title(what, fontsize=10, fontweight="normal", color=MUTED, pad=3)
    headline(figure, verdict)
    table = "; ".join(board.schedule.to_text().splitlines())
    return describe(figure, f"{verdict}. {'; '.join(map(str, scores))}. The table: {table}.")


class PlaceIt:
    """Hold a Board and show it: `press` is a click on an action, `undo` and `clear` go back.

    `board` is the table so far, `message` the answer to the last move. A still page shows the picture as it is now.
    """

    def __init__(self, board: Board) -> None:
        self.board, self.figure = board, draw_board(board)
        self.message, self.refused = "Click on an action: it goes to the end of its rank's row.", False
        self._show: Callable[[bool], None] = lambda changed: None  # until there is a widget

    def press(self, action: Action | str) -> None:
        """Place an action at the end of its rank's row, or say why that can't be."""
        if reason := self.board.refusal(action):
            self._answer(self.board, f"Refused: {reason}.", refused=True)
        else:
            board = self.board.place(action)
            self._answer(board, f"Placed {action}." + ("" if board.left else f" {board.verdict()}."))

    def undo(self) -> None:
        """Take the last move back."""
        said = f"Took back {self.board.moves[-1]}." if self.board.moves else "There is nothing to take back."
        self._answer(self.board.undo(), said)

    def clear(self) -> None:
        """Take all moves back."""
        self._answer(replace(self.board, moves=()), "Empty.")

    def _answer(self, board: Board, message: str, refused: bool = False) -> None:
        changed, self.board, self.message, self.refused = board is not self.board, board, message, refused
        if changed:
            self.figure = draw_board(board)
        self._show(changed)

    def _said(self) -> str:
        look = f"border-left:5px solid {RED if self.refused else GREEN};padding:4px 12px;background:#f6f8fa;color:{INK}"
        return (
            f'<div class="idt-answer" role="status" style="{look};font-size:14px;line-height:1.5">'
            f"{html.escape(self.message)}</div>"
        )

    @cached_property
    def widget(self) -> Any:
        """The ipywidgets box: a row of buttons for each rank, the answer, the picture. Made once."""
        import ipywidgets

        def button(text: str, width: str, click: Callable[[], None], **layout: str) -> Any:
            made = ipywidgets.Button(description=text, layout=ipywidgets.Layout(width=width, **layout))
            made.on_click(lambda _: click())
            return made

        frame, answer = ipywidgets.HTML(hovering(self.figure)), ipywidgets.HTML(self._said())
        buttons: dict[Action, Any] = {}
        rows = []
        for rank in range(self.board.partitions):
            mine = {
                a: button(str(a), "52px", partial(self.press, a), margin="1px")
                for a in self.board.actions(rank)
            }
            name = ipywidgets.HTML(f"<b>rank {rank}</b>", layout=ipywidgets.Layout(width="60px"))
            rows.append(
                ipywidgets.HBox([name, *mine.values()], layout=ipywidgets.Layout(flex_flow="row wrap"))
            )
            buttons |= mine

        def show(changed: bool) -> None:
            if changed:
                frame.value = hovering(self.figure)
            answer.value = self._said()  # last: who reads it, may look at the picture
            for action, made in buttons.items():  # the colour of its kind, until the action is placed
                placed = action in self.board.moves
                made.style.button_color = "#e3e6ea" if placed else color_of(KINDS[action.op])
                made.style.text_color = MUTED if placed else PAPER

        self._show = show
        show(changed=False)
        back = ipywidgets.HBox([button("Undo", "80px", self.undo), button("Clear", "80px", self.clear)])
        box = ipywidgets.VBox([*rows, back, answer, frame])
        box.add_class("idt-place")
        return box

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle(self.figure, self.widget)


def place_it(micro_batches: int = 4, partitions: int = 3, moves: Sequence[str] = ()) -> PlaceIt:
    """Show a table to be filled by clicks, with some moves made. Raises IllegalMoveError for a wrong one."""
    return PlaceIt(Board(micro_batches, partitions).place(*moves))
