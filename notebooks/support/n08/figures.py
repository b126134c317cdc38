"""Figures of notebook 08, the pipeline clock."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lib._values import format_share, format_time, integer
from lib.pipeline import clock_cycles
from lib.schedules import Action, Schedule, ScheduleError, gpipe, live_activations, one_f_one_b, waits_for
from lib.schedules.simulate import KINDS, simulate
from lib.schedules.table import validate
from lib.show.charts import log2_axis
from lib.show.explore import bundle, hovering, steps, whole
from lib.show.schedules import draw_ranks
from lib.show.sheet import Cell, Mark, arrow, cell_axes, draw_cell
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MUTED,
    PAPER,
    RED,
    alt_text,
    color_of,
    describe,
    headline,
    new_figure,
    png,
    rank_color,
    shown_size,
    source_note,
    styled,
    title,
)
from lib.show.timeline import bar, idle, lane_rows
from lib.timeline import Span, Trace
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

# ---- Figures of notebook 08, forward only: why micro-batches, which pair runs when.
#
# draw_three_ways  one device, model parallelism and micro-batches on one time axis
# draw_diagonals   pairs (micro-batch, partition) and the clock table made of their diagonals
# draw_clocks      any list of clocks as a table; what runs before its input is there is red

THREE_WAYS_CONTROLS = {
    "micro_batches": whole(1, 8, 4, "m · micro-batches"),
    "partitions": whole(1, 4, 3, "n · partitions"),
}
DIAGONALS_CONTROLS = {
    "micro_batches": whole(1, 7, 4, "m · micro-batches"),
    "partitions": whole(1, 4, 3, "n · partitions"),
    "clock": whole(0, 9, 2, "k · clock"),
}


# ---- three ways


def three_ways(micro_batches: int, partitions: int) -> dict[str, Trace]:
    """Return the forward pass of one batch as a Trace for each way; a micro-batch takes a tick in a partition."""
    m, n = micro_batches, partitions
    names = [f"device {j}" for j in range(n)]
    alone = [Span("device 0", "all", j * m, (j + 1) * m, str(j)) for j in range(n)]
    parallel = [Span(names[j], "all", j * m, (j + 1) * m, str(j)) for j in range(n)]
    piped = [
        Span(names[j], str(i), k, k + 1, str(j))
        for k, clock in enumerate(clock_cycles(m, n))
        for i, j in clock
    ]
    return {
        "One device": Trace(alone),
        "Model parallelism": Trace(parallel, names),
        "Micro-batches": Trace(piped, names),
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
        _way(axes, trace, ticks)
        facts = f"{trace.makespan:g} tick{'s' * (trace.makespan != 1)}, {format_share(trace.bubble)} idle"
        axes.set_title(f"{way}: {facts}", fontsize=11, pad=5)
        said.append(f"{way}: {facts}")
    panels[-1].set_xlabel("time (ticks: one micro-batch in one piece of the model)")
    speed = ticks / ways["Micro-batches"].makespan
    devices = f"{partitions} device{'s' * (partitions > 1)}"
    parts = f"{micro_batches} micro-batch{'es' * (micro_batches > 1)}"
    finding = f"{devices}, {parts}: {speed:.2f} × as fast as one device"
    if partitions > 1:
        finding += "; model parallelism: 1.00 ×"
    headline(figure, finding)
    return describe(figure, f"{finding}. {'; '.join(said)}.")


def _way(axes: Axes, trace: Trace, ticks: int) -> None:
    for row, lane in enumerate(trace.lanes):
        idle(axes, row, [(0, trace.makespan)])
        for span in trace.only(lane=lane):
            color = rank_color(int(span.kind))
            text = (
                "the whole batch" if span.label == "all" and span.duration * 7.4 / ticks > 1.3 else span.label
            )
            bar(axes, row, span.start, span.duration, color, text, size=10, linewidth=1.5)
    lane_rows(axes, trace.lanes, 0, ticks)
    axes.set_xticks(range(0, ticks + 1, 1 if ticks <= 16 else 4))


# ---- the clock table


@styled
def draw_diagonals(micro_batches: int, partitions: int, clock: int) -> Figure:
    """Draw all pairs with their earliest clock, and the table by clock; `clock` stands out (at most the last)."""
    m, n = micro_batches, partitions
    clock = min(clock, m + n - 2)
    now = [(clock - j, j) for j in range(n) if 0 <= clock - j < m]
    rows = max(m, n)
    figure, (left, right) = new_figure(9, 1.75 + 0.5 * rows, cols=2, width_ratios=[n + 1.4, m + n + 0.7])
    cell_axes(left, columns=n, rows=rows, left=1.3, top=1.2)
    cell_axes(right, columns=m + n - 1, rows=rows, left=1.3, top=1.2)
    for axes, across, down in ((left, "partition j", "micro-batch i"), (right, "clock k", "partition j")):
        columns, lines = (n, m) if axes is left else (m + n - 1, n)
        axes.text((columns - 1) / 2, -1.3, across, ha="center", va="center", fontsize=11, color=MUTED)
        axes.text(
            -1.45, (lines - 1) / 2, down, rotation=90, ha="center", va="center", fontsize=11, color=MUTED
        )
        for x in range(columns):
            axes.text(x, -0.75, str(x), ha="center", va="center", fontsize=10, color=MUTED)
        for y in range(lines):
            axes.text(-0.85, y, str(y), ha="center", va="center", fontsize=10, color=MUTED)
    for i, j in _pairs(m, n):
        hue = rank_color(j)
        mark: Mark = "plain" if (i, j) in now else "faded"
        draw_cell(left, j, i, Cell(i + j, color=hue, mark=mark))
        draw_cell(right, i + j, j, Cell(i, color=hue, mark=mark))
    for i, j in now:
        for di, dj in ((0, -1), (-1, 0)):  # the input; the device, which is busy with the one before
            if i + di >= 0 and j + dj >= 0:
                arrow(left, (j + dj, i + di), (j, i), gap=(15, 14), zorder=5)
    right.add_patch(Rectangle((clock - 0.5, -0.5), 1, n, facecolor="none", edgecolor=INK, lw=1.6, zorder=4))
    left.set_title("earliest clock of each pair", fontsize=11, pad=4)
    right.set_title("who computes which micro-batch", fontsize=11, pad=4)
    pairs = ", ".join(f"({i}, {j})" for i, j in now)
    finding = f"Clock {clock} of 0 … {m + n - 2}: pairs (i, j) with i + j = {clock}: {pairs}"
    headline(figure, finding)
    return describe(
        figure,
        f"{finding}. A grid of {m} micro-batches by {n} partitions, each with its earliest clock i + j, and a table "
        f"of {m + n - 1} clocks. Arrows lead to a pair from the partition before and from the micro-batch before.",
    )


def _pairs(m: int, n: int) -> Iterator[tuple[int, int]]:
    return ((i, j) for i in range(m) for j in range(n))


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
    """Draw a list of clocks, each a list of pairs (micro-batch, partition), as a table: a row a partition."""
    table = [list(clock) for clock in clocks]
    wrong = early(table)
    partitions = 1 + max((j for clock in table for _, j in clock), default=0)
    figure, axes = new_figure(9, 1.25 + 0.5 * partitions)
    cell_axes(axes, columns=max(len(table), 8), rows=partitions, left=2.2, top=0.6)
    axes.set_anchor("W")
    axes.text(-0.85, -0.75, "clock", ha="right", va="center", fontsize=10, color=MUTED)
    for j in range(partitions):
        axes.text(-0.85, j, f"partition {j}", ha="right", va="center_baseline", fontsize=10, color=INK)
    for k, clock in enumerate(table):
        axes.text(k, -0.75, str(k), ha="center", va="center", fontsize=10, color=MUTED)
        for i, j in clock:
            is_early = (k, i, j) in wrong
            draw_cell(axes, k, j, Cell(f"{i}!" if is_early else i, color=RED if is_early else rank_color(j)))
    pairs = sum(map(len, table))
    finding = f"{len(table)} clocks, {pairs} pairs: " + (
        f"{len(wrong)} of them run before their input is there"
        if wrong
        else "each runs after its input is there"
    )
    title(axes, finding)
    said = [f"clock {k}: " + ", ".join(f"({i}, {j})" for i, j in clock) for k, clock in enumerate(table)]
    return describe(figure, f"{finding}. Pairs (micro-batch, partition) by clock: {'; '.join(said)}.")


# ---- The bubble of the clock table: its idle cells, counted, and their share over m and n.

BUBBLE_CONTROLS = {
    "micro_batches": whole(1, 12, 4, "m · micro-batches"),
    "partitions": whole(1, 6, 4, "n · partitions"),
}


def idle_share(micro_batches: int, partitions: int) -> float:
    """Count the share of idle cells in the clock table."""
    busy = sum(len(clock) for clock in clock_cycles(micro_batches, partitions))
    clocks = sum(1 for _ in clock_cycles(micro_batches, partitions))
    return 1 - busy / (clocks * partitions)


@styled
def draw_bubble(micro_batches: int, partitions: int) -> Figure:
    """Draw the clock table with its idle cells hatched, and the idle share over m for several n."""
    m, n = micro_batches, partitions
    figure, (table, plot) = new_figure(9, 4.1, cols=2, width_ratios=[1.15, 1])
    clocks = m + n - 1
    cell_axes(table, columns=clocks, rows=max(n, 3) + 0.6, left=1.0, top=0.6)
    for k in range(clocks):
        for j in range(n):
            if 0 <= k - j < m:
                draw_cell(table, k, j, Cell(k - j, color=rank_color(j)), font=11 if clocks < 12 else 9)
            else:
                idle(table, j, [(k - 0.44, 0.88)], height=0.88)
    table.text((clocks - 1) / 2, -0.95, "clock", ha="center", va="center", fontsize=10, color=MUTED)
    table.text(
        -1.15, (n - 1) / 2, "partition", rotation=90, ha="center", va="center", fontsize=10, color=MUTED
    )
    for j in range(n):
        table.text(-0.75, j, f"{j}", ha="center", va="center", fontsize=10, color=MUTED)
    waits = f"each partition waits {n - 1} of {clocks} clocks"
    formula = f"idle: (n − 1) / (m + n − 1) = {n - 1} / {clocks}"
    table.text((clocks - 1) / 2, max(n, 3) - 0.1, formula, ha="center", va="center", fontsize=11)
    _curves(plot, m, n)
    share = idle_share(m, n)
    finding = f"m = {m}, n = {n}: {n * (n - 1)} of {n * clocks} cells are idle, {format_share(share)}"
    headline(figure, finding)
    return describe(
        figure,
        f"{finding}; {waits}: two triangles, before the first and after the last micro-batch. Beside it the idle share "
        f"over m from 1 to 64 for n = 2, 4, 8, 16: it falls with m and rises with n.",
    )


def _curves(axes: Axes, m: int, n: int) -> None:
    several = [2**k for k in range(7)]
    for partitions in sorted({2, 4, 8, 16, n}):
        shares = [100 * idle_share(count, partitions) for count in several]
        chosen = partitions == n
        axes.plot(several, shares, "o-", color=INK if chosen else GREY, lw=2.2 if chosen else 1.2, ms=3.5)
        axes.annotate(
            f"n = {partitions}",
            (1, shares[0]),
            (-9, 0),
            textcoords="offset points",
            va="center",
            ha="right",
            fontsize=9.5,
            color=INK if chosen else MUTED,
            weight="bold" if chosen else "normal",
        )
    axes.plot([m], [100 * idle_share(m, n)], "o", color=rank_color(5), ms=10, zorder=5)
    log2_axis(axes, several)
    axes.set(ylim=(-3, 100), xlim=(0.42, 75), xlabel="m · micro-batches", ylabel="idle, %")


# ---- The best number of micro-batches: the bubble wants many, operators want large ones; from a measured speed.
#
# step_seconds  the time of a step for every m, from a measurement of `support.runs`
# draw_best_m   that time over m, with its two halves: work that shrinks, and a fixed cost that grows

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
    times = step_seconds(record, partitions)
    best, whole = best_m(record, partitions), task_seconds(record)[record["rows"]]
    free = {m: (m + partitions - 1) * whole / m for m in times}
    figure, axes = new_figure(9, 3.9 + 0.3 * bool(note))
    axes.plot(
        list(free),
        [1e3 * t for t in free.values()],
        "--",
        color=GREY,
        label="if small operators cost nothing more",
    )
    axes.fill_between(
        list(times), [1e3 * free[m] for m in times], [1e3 * t for t in times.values()], color=RED, alpha=0.13, lw=0,
        label="what small operators cost",
    )  # fmt: skip
    axes.plot(
        list(times), [1e3 * t for t in times.values()], "o-", color=BLUE, label="with the measured times"
    )
    axes.plot([best], [1e3 * times[best]], "o", ms=13, mfc="none", mec=INK, mew=2)
    axes.annotate(
        f"m = {best}",
        (best, 1e3 * times[best]),
        (0, 14),
        textcoords="offset points",
        ha="center",
        weight="bold",
    )
    log2_axis(axes, times)
    axes.set_yscale("log")
    axes.set_ylim(1e3 * min(min(free.values()), times[best]) / 1.6, None)
    low, high = 1e3 * min(free.values()), 1e3 * max(times.values())
    marks = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
    marks = [value for value in marks if low / 1.6 <= value <= high]
    axes.set_yticks(marks, [f"{value:g}" for value in marks])
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set(xlabel=f"m · micro-batches of a batch of {record['rows']} rows", ylabel="one step, ms")
    axes.legend(loc="upper center")
    most = max(times)
    finding = (
        f"{partitions} partitions: m = {best} is best here; m = 1 takes {times[1] / times[best]:.1f} × as long, "
        f"m = {most} {times[most] / times[best]:.0f} ×"
    )
    headline(figure, finding)
    if note:
        source_note(figure, note)
    return describe(
        figure,
        f"Time of a step over m from 1 to {most}, predicted from measured task times, for {partitions} partitions: it "
        f"falls while the bubble shrinks, and rises where operators become too small. Best: m = {best}, "
        f"{format_time(times[best])}.",
    )


# ---- A schedule table that is filled action by action: what may come next, why not, and how good it has become.
#
# board = Board(4, 3).place("0F0").place("1F0")
# board.refusal("1B0")     "1B0 needs 2B0, …", or "" for a legal move
# board.scores()           yours, GPipe and 1F1B: ticks, idle share, activations held


class IllegalMoveError(ValueError):
    """A move that the table can't take; its text is the reason, in a sentence."""


@dataclass(frozen=True)
class Score:
    """Hold what a schedule costs: ticks, idle share, and the most activations that a rank holds."""

    name: str
    ticks: float
    idle: float
    held: int

    def __str__(self) -> str:
        return f"{self.name}: {self.ticks:g} ticks, {format_share(self.idle)} idle, holds at most {self.held}"


@dataclass(frozen=True)
class Board:
    """Hold the moves made so far, for `micro_batches` on `partitions` ranks of one stage each. Immutable.

    A forward takes `forward` ticks, a backward `backward`. Each action stands behind the earlier ones of its rank, and
    starts as soon as what it needs is there: nobody places idle time.
    """

    micro_batches: int
    partitions: int
    forward: float = 1.0
    backward: float = 2.0
    moves: tuple[Action, ...] = ()

    def __post_init__(self) -> None:
        integer("micro_batches", self.micro_batches, at_least=1)
        integer("partitions", self.partitions, at_least=1)

    @cached_property
    def schedule(self) -> Schedule:
        """The table so far: stage j is on rank j."""
        return self._table(self.moves)

    def _table(self, moves: Iterable[Action]) -> Schedule:
        rows: list[list[Action]] = [[] for _ in range(self.partitions)]
        for action in moves:
            rows[action.stage].append(action)
        return Schedule("yours", rows)

    @cached_property
    def trace(self) -> Trace:
        """The simulated run of the table so far."""
        if not self.moves:
            return Trace((), [f"rank {rank}" for rank in range(self.partitions)])
        return simulate(self.schedule, self.forward, self.backward)

    def actions(self, rank: int) -> list[Action]:
        """Return all that a rank has to do sometime: its forwards, then its backwards."""
        return [Action(op, rank, i) for op in ("F", "B") for i in range(self.micro_batches)]

    @property
    def left(self) -> int:
        """How many actions are still to be placed; 0 when the table is complete."""
        return 2 * self.micro_batches * self.partitions - len(self.moves)

    def refusal(self, action: Action | str) -> str:
        """Say in a sentence why an action can't come next, or "" if it can. Raises ValueError for what is no action."""
        action = Action.parse(action) if isinstance(action, str) else action
        if action.op in "IW":
            return f"{action} is half of a backward; here a backward is whole, {action.stage}B{action.micro_batch}"
        if action.stage >= self.partitions:
            return f"{action} is for stage {action.stage}, but the last stage is {self.partitions - 1}"
        size = {"stages": self.partitions, "micro_batches": self.micro_batches}
        try:
            validate(self._table((*self.moves, action)), complete=False, **size)
        except ScheduleError as error:
            return error.reason
        return ""

    def place(self, *actions: Action | str) -> Board:
        """Return the board with further moves. Raises IllegalMoveError with the reason for the first that can't be."""
        board = self
        for action in actions:
            if reason := board.refusal(action):
                raise IllegalMoveError(reason)
            board = board._with((*board.moves, Action.parse(str(action))))
        return board

    def undo(self) -> Board:
        """Return the board without the last move; an empty one as it is."""
        return self._with(self.moves[:-1])

    def _with(self, moves: tuple[Action, ...]) -> Board:
        return Board(self.micro_batches, self.partitions, self.forward, self.backward, moves)

    def scores(self) -> list[Score]:
        """Return the score of this table (as far as it is filled), of GPipe and of 1F1B, with the same costs."""
        sizes = (self.micro_batches, self.partitions)
        found = [_score("yours", self.schedule, self.trace)]
        for name, schedule in (("GPipe", gpipe(*sizes)), ("1F1B", one_f_one_b(*sizes))):
            found.append(_score(name, schedule, simulate(schedule, self.forward, self.backward)))
        return found

    def verdict(self) -> str:
        """Say in a sentence how the table compares; while it is not complete, how much is left."""
        yours, gpipe_score, best = self.scores()
        if self.left:
            return f"{len(self.moves)} of {len(self.moves) + self.left} actions placed"
        later = yours.ticks - best.ticks
        speed = (
            "as fast as GPipe and 1F1B"
            if later == 0
            else f"{abs(later):g} ticks {'slower' if later > 0 else 'faster'} than GPipe and 1F1B"
        )
        if yours.held <= best.held:
            memory = "holds no more than 1F1B" if yours.held == best.held else "holds less than 1F1B"
        else:
            memory = "holds as much as GPipe" if yours.held == gpipe_score.held else "holds more than 1F1B"
        most = f"{yours.held} activation{'s' * (yours.held > 1)}"
        return f"Complete: {speed}, and {memory}: at most {most} a rank"


def _score(name: str, schedule: Schedule, trace: Trace) -> Score:
    return Score(name, trace.end, trace.bubble, max(live_activations(schedule)))


# ---- Place a schedule yourself: a button for each action, an answer to each move, a score beside GPipe's and 1F1B's.
#
# draw_board  the table so far as a timeline, and the scores: a pure function of a Board
# PlaceIt     the buttons over it; the game itself is in place_board


@styled
def draw_board(board: Board) -> Figure:
    """Draw the table so far, and ticks and held activations beside those of GPipe and 1F1B."""
    scores = board.scores()
    end = max(board.trace.end, 1.08 * max(score.ticks for score in scores[1:]))
    figure, panels = new_figure(
        9, 2.9 + 0.42 * board.partitions, rows=2, height_ratios=[board.partitions, 2.4]
    )
    waits = waits_for(board.schedule, board.forward, board.backward) if board.moves else []
    idle = [
        wait for wait in waits if wait.needed is not None or not board.left
    ]  # the rest may still be filled
    draw_ranks(panels[0], board.schedule, board.trace, idle, end, 0.42)
    panels[0].set_xlabel("time (ticks)")
    panels[1].axis("off")
    lower = panels[1].get_subplotspec().subgridspec(1, 3, wspace=0.1)
    columns = [figure.add_subplot(lower[k]) for k in range(3)]
    shown = "{:g}".format
    _bars(columns[0], "ticks", scores, [score.ticks for score in scores], shown, board.left)
    _bars(
        columns[1],
        "idle",
        scores,
        [100 * score.idle for score in scores],
        lambda v: format_share(v / 100),
        board.left,
    )
    _bars(columns[2], "activations held", scores, [score.held for score in scores], shown, board.left)
    for axes in columns[1:]:
        axes.set_yticks([])
    headline(figure, board.verdict())
    table = "; ".join(board.schedule.to_text().splitlines())
    said = "; ".join(map(str, scores))
    return describe(figure, f"{board.verdict()}. {said}. The table: {table}.")


def _bars(
    axes: Axes, what: str, scores: Sequence[Score], values: Sequence[float], shown: Any, left: int
) -> None:
    names = [f"{score.name} so far" if k == 0 and left else score.name for k, score in enumerate(scores)]
    colors = [INK if k == 0 else GREY for k in range(len(scores))]
    bars = axes.barh(range(len(scores)), values, height=0.62, color=colors)
    if left:
        bars[0].set(facecolor=PAPER, edgecolor=INK, linewidth=1.4)  # not yet final: an outline
    most = max(*values, 1)
    for k, value in enumerate(values):
        axes.text(value + 0.03 * most, k, shown(value), va="center_baseline", fontsize=10)
    axes.set(ylim=(len(scores) - 0.4, -0.6), xlim=(0, 1.25 * most), xticks=[])
    axes.set_yticks(range(len(scores)), names, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title(what, fontsize=10, fontweight="normal", color=MUTED, pad=3)


class PlaceIt:
    """Hold a Board and show it: `press` is a click on an action, `undo` and `clear` go back.

    `board` is the table so far, `message` the answer to the last move. A still page shows the picture as it is now.
    """

    def __init__(self, board: Board) -> None:
        self.start = self.board = board
        self.message = "Click on an action: it goes to the end of its rank's row."
        self.refused = False
        self.figure = draw_board(board)
        self._box: Any = None
        self._show: Any = None

    def press(self, action: Action | str) -> None:
        """Place an action at the end of its rank's row, or say why that can't be."""
        action = Action.parse(str(action))
        if reason := self.board.refusal(action):
            self._answer(self.board, f"Refused: {reason}.", refused=True)
        else:
            board = self.board.place(action)
            self._answer(board, f"Placed {action}." if board.left else f"Placed {action}. {board.verdict()}.")

    def undo(self) -> None:
        """Take the last move back."""
        said = f"Took back {self.board.moves[-1]}." if self.board.moves else "There is nothing to take back."
        self._answer(self.board.undo(), said)

    def clear(self) -> None:
        """Take all moves back."""
        self._answer(
            Board(self.board.micro_batches, self.board.partitions, self.board.forward, self.board.backward),
            "Empty.",
        )

    def _answer(self, board: Board, message: str, refused: bool = False) -> None:
        changed, self.board, self.message, self.refused = board is not self.board, board, message, refused
        if changed:
            self.figure = draw_board(board)
        if self._show is not None:
            self._show(changed)

    def _frame(self) -> str:
        width, _ = shown_size(self.figure)
        picture = base64.b64encode(png(self.figure)).decode()
        image = (
            f'<img class="idt-frame" alt="{html.escape(alt_text(self.figure))}" '
            f'src="data:image/png;base64,{picture}" style="width:{width}px;max-width:100%;background:white">'
        )
        return hovering(image, self.figure)

    def _said(self) -> str:
        edge = RED if self.refused else GREEN
        return (
            f'<div class="idt-answer" role="status" style="border-left:5px solid {edge};padding:4px 12px;'
            f'background:#f6f8fa;color:{INK};font-size:14px;line-height:1.5">{html.escape(self.message)}</div>'
        )

    @property
    def widget(self) -> Any:
        """The ipywidgets box: a row of buttons for each rank, the answer, the picture. Made once."""
        if self._box is None:
            self._box = self._widget()
        return self._box

    def _widget(self) -> Any:
        import ipywidgets

        frame, answer = ipywidgets.HTML(self._frame()), ipywidgets.HTML(self._said())
        buttons: dict[Action, Any] = {}
        rows = []
        small = ipywidgets.Layout(width="52px", margin="1px")
        for rank in range(self.board.partitions):
            row = [ipywidgets.HTML(f"<b>rank {rank}</b>", layout=ipywidgets.Layout(width="60px"))]
            for action in self.board.actions(rank):
                button = ipywidgets.Button(description=str(action), layout=small)
                button.on_click(lambda _, action=action: self.press(action))
                row.append(button)
                buttons[action] = button
            rows.append(ipywidgets.HBox(row, layout=ipywidgets.Layout(flex_flow="row wrap")))
        steps = []
        for name, back in (("Undo", self.undo), ("Clear", self.clear)):
            step = ipywidgets.Button(description=name, layout=ipywidgets.Layout(width="80px"))
            step.on_click(lambda _, back=back: back())
            steps.append(step)

        def show(changed: bool) -> None:
            if changed:
                frame.value = self._frame()
            answer.value = self._said()  # last: who reads it, may look at the picture
            _color(buttons, self.board)

        self._show = show
        _color(buttons, self.board)
        box = ipywidgets.VBox([*rows, ipywidgets.HBox(steps), answer, frame])
        box.add_class("idt-place")
        return box

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle(self.figure, self.widget)


def _color(buttons: dict[Action, Any], board: Board) -> None:
    """Give a button the colour of its kind until its action is placed."""
    for action, button in buttons.items():
        placed = action in board.moves
        button.style.button_color = "#e3e6ea" if placed else color_of(KINDS[action.op])
        button.style.text_color = MUTED if placed else PAPER


def place_it(micro_batches: int = 4, partitions: int = 3, moves: Sequence[str] = ()) -> PlaceIt:
    """Show a table to be filled by clicks, with some moves made. Raises IllegalMoveError for a wrong one."""
    return PlaceIt(Board(micro_batches, partitions).place(*moves))
