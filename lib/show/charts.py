"""What curves and bars have in common: powers of two, words beside a point, predicted beside measured, rows of bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.patches import Patch

from lib.show.style import INK, MUTED, PAPER


def log2_axis(axes: Axes, values: Iterable[float], words: Callable[[Any], str] = str) -> None:
    """Make the horizontal axis one of powers of two; each of `values` is written below it."""
    marks = list(values)
    axes.set_xscale("log", base=2)
    axes.set_xticks(marks, [words(mark) for mark in marks])


def beside(axes: Axes, at: tuple[float, float], text: str, offset: tuple[float, float] = (8, 0), **look: Any) -> None:
    """Write words `offset` points away from a place in the data; further keywords go to `Axes.annotate`."""
    axes.annotate(text, at, offset, **{"textcoords": "offset points", "va": "center", "fontsize": 10, **look})


def bars(
    axes: Axes, predicted: Sequence[float], measured: Sequence[float] | None, color: str, *, across: bool = False,
    write: Callable[[float], str] = "{:.0f}".format,
) -> None:  # fmt: skip
    """Draw measured bars filled inside the outlines of predicted ones, with the number at the end of each.

    measured: None where there is nothing but a prediction. across: the bars lie, the first on top.
    """
    draw: Any = axes.barh if across else axes.bar
    thick = "height" if across else "width"
    places = range(len(predicted))
    if measured is not None:
        draw(places, measured, color=color, label="measured", **{thick: 0.5})
    edge = color if measured is None else INK  # within a longer measured bar it must still be seen
    outline: Any = {"facecolor": "none", "edgecolor": edge, "linewidth": 1.6, "zorder": 3, thick: 0.7}
    draw(places, predicted, label="predicted", **outline)
    for place, expected in enumerate(predicted):
        found = expected if measured is None else measured[place]
        end, text = max(expected, found), write(found)
        at, offset, align = ((end, place), (5, 0), "left") if across else ((place, end), (0, 7), "center")
        beside(axes, at, text, offset, ha=align, color=INK)
    if across:
        axes.invert_yaxis()


def legend_pair(measured: bool, color: str = MUTED) -> list[Patch]:
    """Return the legend's entries: an outline is predicted, and (if anything was `measured`) filled is measured."""
    entries = [Patch(facecolor=PAPER, edgecolor=color, linewidth=1.6, label="predicted")]
    return [*entries, Patch(facecolor=color, label="measured")] if measured else entries


def row_bars(
    axes: Axes, values: Sequence[float], words: Sequence[str], names: Sequence[str] = (), color: Any = MUTED
) -> BarContainer:
    """Draw a lying bar for each row, the first on top, words at its end, its name before it; return the bars.

    No ticks, no spines: the words are the numbers. color: of all bars, or a list of them.
    """
    drawn = axes.barh(range(len(values)), values, height=0.62, color=color)
    for row, (value, text) in enumerate(zip(values, words, strict=True)):
        beside(axes, (value, row), text, (3, 0), va="center_baseline")
    axes.set(xticks=[], ylim=(max(1, len(values)) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), names, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    return drawn
