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
    axes: Axes,
    predicted: Sequence[float],
    measured: Sequence[float] | None,
    color: str,
    *,
    across: bool = False,
    write: Callable[[float], str] = "{:.0f}".format,
) -> None:
    """Draw measured bars filled inside the outlines of predicted ones, with the number at the end of each.

    measured: None where there is nothing but a prediction. across: the bars lie, the first on top.
    """
    draw: Any = axes.barh if across else axes.bar
    thick = "height" if across else "width"
    places = range(len(predicted))
    if measured is not None:
        draw(places, measured, color=color, label="measured", **{thick: 0.5})
    # an outline in its own colour would not be seen within a longer measured bar
    edge = color if measured is None else INK
    outline: Any = {"facecolor": "none", "edgecolor": edge, "linewidth": 1.6, "zorder": 3, thick: 0.7}
    draw(places, predicted, label="predicted", **outline)
    for place, expected in enumerate(predicted):
        found = expected if measured is None else measured[place]
        end = max(expected, found)
        text = write(found)
        if across:
            beside(axes, (end, place), text, (5, 0), ha="left", color=INK)
        else:
            beside(axes, (place, end), text, (0, 7), ha="center", color=INK)
    if across:
        axes.invert_yaxis()


def legend_pair(measured: bool, color: str = MUTED) -> list[Patch]:
    """Return the legend's entries: an outline is predicted, and (if anything was `measured`) filled is measured."""
    entries = [Patch(facecolor=PAPER, edgecolor=color, linewidth=1.6, label="predicted")]
    if measured:
        entries.append(Patch(facecolor=color, label="measured"))
    return entries


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
