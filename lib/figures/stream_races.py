"""A StreamPipeline without one of its waits: the race, and what the result holds in orders that are then allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.experiments.stream_programs import damaged, outcomes, run_chunks
from lib.figures.cuda_streams import arrow_pairs, draw_rows, race_words, seconds_of, told
from lib.show.explore import whole
from lib.show.style import INK, PAPER, RED, TRACK, describe, new_figure, styled, title
from lib.streams.operations import Operation, waits
from lib.streams.races import find_races

WAIT_COUNT = len(waits(run_chunks()))
REMOVED_CONTROLS = {"removed": whole(0, WAIT_COUNT, 5, "wait removed")}
SHOWN = 16


@styled
def draw_removed(removed: int) -> Figure:
    """Draw the pipeline of 4 chunks without one wait: the race, and the results of orders that are now allowed."""
    every, removed = run_chunks(), max(0, min(removed, WAIT_COUNT))
    operations = damaged(removed - 1 if removed else None)
    races, pair = find_races(operations), None
    figure, (axes, grid) = new_figure(9, 5.2, rows=2, height_ratios=[1.35, 1])
    if removed:
        number = waits(every)[removed - 1]
        a, b = next(pair for pair in arrow_pairs(every) if pair not in arrow_pairs_kept(operations, number))
        pair = (a - (a > number), b - (b > number))
    lanes = ("copy in", "compute", "copy out")
    spans = draw_rows(axes, operations, seconds_of(), races, lanes=lanes, missing=pair)
    found, truth = outcomes(operations, 4), ["0", "1", "2", "3"]
    wrong = [result for result in found if result != truth]
    shown = found[:SHOWN]
    if wrong and all(result == truth for result in shown):
        shown[-1] = wrong[0]
    _draw_outcomes(grid, shown, truth)
    if pair:
        first, second = (spans[k].label for k in pair)
        finding = f"{second} does not wait for {first}: a wrong result in {len(wrong)} of {len(found)} allowed orders"
    else:
        finding = f"With all {WAIT_COUNT} waits the result is right in all of {len(found)} allowed orders"
    title(axes, finding)
    words = "Whose data each chunk's place of the result holds in the end"
    grid.set_title(words, fontsize=11, weight="normal", loc="left")
    such = "; ".join(" ".join(result) for result in (wrong or found)[:2])
    return describe(figure, f"{finding}. {told(spans)} {race_words(races)}. Results such as {such}.")


def arrow_pairs_kept(operations: Sequence[Operation], number: int) -> set[tuple[int, int]]:
    """Return the arrows that are left, in the numbers of the whole list, from which operation `number` was taken."""
    return {(a + (a >= number), b + (b >= number)) for a, b in arrow_pairs(operations)}


def _draw_outcomes(axes: Axes, results: Sequence[Sequence[str]], truth: Sequence[str]) -> None:
    """Draw a column of cells per order."""
    for x, result in enumerate(results):
        for y, (got, right) in enumerate(zip(result, truth, strict=True)):
            bad = got != right
            cell = (x - 0.44, y - 0.42), 0.88, 0.84
            axes.add_patch(Rectangle(*cell, facecolor=RED if bad else TRACK, edgecolor=PAPER))
            look: dict[str, Any] = {"weight": "bold", "color": PAPER} if bad else {"color": INK}
            axes.text(x, y, got, ha="center", va="center", fontsize=11, **look)
    axes.set(xlim=(-0.6, SHOWN - 0.4), ylim=(len(truth) - 0.4, -0.6))
    axes.set_xlabel(f"{SHOWN} of the orders in which the streams may get on, drawn at random")
    axes.set_yticks(range(len(truth)), [f"chunk {name}" for name in truth], color=INK)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
