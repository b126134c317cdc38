"""Figures of notebook 16, when it breaks: ranks that die, and what a way to deal the rows costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from matplotlib.figure import Figure

from lib.show import style
from lib.show.charts import beside
from lib.show.sheet import EDGE, LEFT, WIDTH, Cell, draw_cell, inch_sheet, name_rank, write
from lib.show.style import INK, MUTED, RED, describe, new_figure, styled, title
from lib.text import plural
from support.n16.runs import DealCompared, against_first
from support.training import Step, surviving

# ---- An epoch whose ranks die.
#
# An attempt is what one set of ranks did from its start to its end. It begins at the step that was saved
# last, so what the attempt before it did from that step on is lost with the weights, and is done again.


@styled
def draw_attempts(done: Iterable[Step], killed: Mapping[int, tuple[int, int]]) -> Figure:
    """Draw rank × step of every attempt, a cell with its number of rows; hatched: lost, and done again.

    killed: attempt -> (rank, step) that ended it.
    """
    done = list(done)
    attempts = sorted({step.attempt for step in done})
    counts = Counter(row for step in surviving(done) for row in step.rows)
    pitch = min(0.42, (WIDTH - LEFT - 0.1) / (1 + max(step.step for step in done)))
    worlds = [max(step.world_size for step in done if step.attempt == number) for number in attempts]
    height = 0.35 + sum(world * pitch + 0.42 for world in worlds)
    y = 0.3
    lost = set()
    figure, axes = inch_sheet(height)
    write(axes, EDGE, 0.08, "step", size=9.5, color=MUTED, ha="left")
    for place in range(1 + max(step.step for step in done)):
        write(axes, LEFT + (place + 0.5) * pitch, 0.08, str(place), size=9, color=MUTED)
    for number, world in zip(attempts, worlds, strict=True):
        end = min((step.step for step in done if step.attempt > number), default=None)
        for rank in range(world):
            name_rank(axes, y + (rank + 0.5) * pitch, rank)
        for step in (step for step in done if step.attempt == number):
            again = end is not None and step.step >= end
            lost |= {(number, step.step)} if again else set()
            spot = LEFT + (step.step + 0.5) * pitch, y + (step.rank + 0.5) * pitch
            cell = Cell(len(step.rows), step.rank, "padding" if again else "plain")
            draw_cell(axes, *spot, cell, size=0.88 * pitch, font=9)
        if number in killed:
            rank, step_of_death = killed[number]
            x = LEFT + (step_of_death + 0.5) * pitch
            middle = y + (rank + 0.5) * pitch
            write(axes, x, middle, "×", size=20, color=RED, weight="bold")
            write(axes, x + 0.6 * pitch, middle, "killed", color=RED, weight="bold", ha="left")
        if end is not None:
            x = LEFT + end * pitch
            bottom = y + world * pitch
            axes.plot([x, x], [y, bottom + 0.4], color=INK, linestyle="--", linewidth=1.2)
            where = x + 0.06, bottom + 0.2
            write(axes, *where, "goes on from the state saved here", size=9.5, color=MUTED, ha="left")
        y += world * pitch + 0.42
    rows = f"{len(counts):,} rows counted, {sum(count > 1 for count in counts.values())} of them twice"
    found = f"{plural(len(lost), 'step')} done again; {rows}"
    title(axes, f"{' → '.join(map(str, worlds))} ranks: {found}")
    said = [
        f"attempt {number}: {plural(world, 'rank')}, {len({s.step for s in done if s.attempt == number})} steps"
        + (f", rank {killed[number][0]} killed in step {killed[number][1]}" if number in killed else "")
        for number, world in zip(attempts, worlds, strict=True)
    ]
    return describe(figure, f"{'; '.join(said)}. {found}.")


# ---- What a way to deal the rows costs in accuracy: pairs of equal seeds.

Results: TypeAlias = Mapping[str, Sequence[Mapping[str, float]]]
"""By name of the deal, the first one being what all others are compared with: a result for each seed."""


def points(share: float) -> str:
    """Return a difference of shares in percentage points, signed: +0.31, −0.05."""
    text = f"{100 * share:+.2f}".replace("-", "−")
    return "0.00" if text in ("+0.00", "−0.00") else text


def statement(row: DealCompared, seeds: int) -> str:
    """Say what one comparison allows to say, and no more."""
    interval = f"{points(row.difference)} points ({points(row.low)} … {points(row.high)})"
    if not row.settled:
        worst = f"{100 * max(0.0, -row.low):.2f}"
        return f"{row.name}: {interval}, {seeds} seeds show no difference; a loss above {worst} is ruled out"
    doubt = "" if row.sure else ", but doubtful"  # among so many comparisons, one such may come by chance
    return f"{row.name}: {interval}, {'better' if row.difference > 0 else 'worse'}{doubt}"


def statements(results: Results) -> list[str]:
    """Return a statement for each deal but the first."""
    return [statement(row, len(results[row.name])) for row in against_first(results)[1:]]


@styled
def draw_losses(results: Results, source: str) -> Figure:
    """Draw the mean paired difference to the first deal for each other one, with its 95 % interval, logarithmically.

    The axis is linear within a point, so that a small loss beside a large one can still be seen.
    """
    first, *others = against_first(results)
    others.sort(key=lambda row: -row.difference)
    figure, axes = new_figure(9, 1.6 + 0.42 * len(others))
    for place, row in enumerate(others):
        color = RED if row.difference < 0 else style.GREEN
        if not row.settled:
            color = style.GREY
        axes.plot([100 * row.low, 100 * row.high], [place, place], color=color, linewidth=5, alpha=0.6)
        axes.plot(100 * row.difference, place, "D", color=color, markeredgecolor=INK, markersize=7)
        words = f"{points(row.difference)}  ({points(row.low)} … {points(row.high)})"
        beside(
            axes, (1.0, place), words, xycoords=("axes fraction", "data"), color=INK if row.settled else MUTED
        )
    axes.axvline(0, color=MUTED, linestyle="--", linewidth=1.3)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks([-30, -10, -3, -1, 0, 1], ["−30", "−10", "−3", "−1", "0", "1"])
    axes.set(
        xlim=(-45, 1.3),
        ylim=(len(others) - 0.5, -0.5),
        xlabel=f"points of test accuracy against {first.name}, same seed (stretched near 0)",
    )
    axes.set_yticks(range(len(others)), [row.name for row in others], color=INK)
    style.source_note(figure, source, recorded=True)
    seeds = len(results[first.name])
    worse = [row for row in others if row.settled and row.difference < 0]
    sure = [points(row.difference)[1:] for row in worse if row.sure]
    span = f" {sure[0]} to {sure[-1]} points" if len(sure) > 1 else " accuracy"
    doubtful = "".join(f"; {points(row.difference)} is doubtful" for row in worse if not row.sure)
    title(axes, f"{len(sure)} of {len(others)} ways lose{span}{doubtful}")
    said = "; ".join(statement(row, seeds) for row in others)
    return describe(figure, f"Test accuracy against {first.name}, {first.mean:.2%}: {said}. {source}")
