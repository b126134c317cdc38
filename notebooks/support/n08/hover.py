"""Words that appear where the pointer is: what a figure has marked, told in a live notebook.

    explore_hover(draw_schedules, **CONTROLS)          as `explore`, and the marked regions answer the pointer

An invisible box lies over each marked region, in shares of the figure; the still picture stays.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import NamedTuple

from matplotlib.figure import Figure

from lib.show.explore import Control, Explorer, frame, marks
from lib.show.style import INK, PAPER

STYLE = f"""
.idt-hover {{ position: relative; display: inline-block; max-width: 100%; line-height: 0; }}
.idt-spot {{ position: absolute; }}
.idt-spot:hover {{ outline: 2px solid {INK}; z-index: 2; }}
.idt-spot:hover::after {{ content: attr(data-tip); position: absolute; bottom: calc(100% + 6px); left: 0;
  width: max-content; max-width: 320px; padding: 6px 10px; border-radius: 6px; white-space: pre-line;
  background: {INK}; color: {PAPER}; font: 13px/1.4 system-ui, sans-serif; pointer-events: none; }}
.idt-spot.idt-end:hover::after {{ left: auto; right: 0; }}
"""


class Spot(NamedTuple):
    """Hold one region in shares of the figure, from its upper left corner, and what it tells."""

    left: float
    top: float
    width: float
    height: float
    words: str


def spots(figure: Figure) -> list[Spot]:
    """Return the regions of a figure, laid out as it is saved; none for a figure that marked nothing."""
    if marks(figure):
        figure.draw_without_rendering()  # now constrained layout has put the axes where they stay
    found = []
    for axes, (x0, x1, y0, y1), words in marks(figure):
        to_figure = axes.transData + figure.transFigure.inverted()
        (left, low), (right, high) = to_figure.transform([(x0, y0), (x1, y1)])
        low, high = sorted((float(low), float(high)))
        found.append(Spot(float(left), 1 - high, float(right - left), high - low, words))
    return found


def hovering(figure: Figure) -> str:
    """Return a figure as HTML for a live notebook, as `frame` does, with its marked regions over it."""
    areas = "".join(
        f'<span class="idt-spot{" idt-end" if spot.left > 0.6 else ""}" data-tip="{html.escape(spot.words)}" '
        f'style="left:{spot.left:.2%};top:{spot.top:.2%};width:{spot.width:.2%};height:{spot.height:.2%}"></span>'
        for spot in spots(figure)
    )
    return f'<style>{STYLE}</style><div class="idt-hover">{frame(figure)}{areas}</div>'


class HoverExplorer(Explorer):
    """An Explorer whose live picture answers the pointer."""

    def _frame(self) -> str:
        return hovering(self.figure)


def explore_hover(draw: Callable[..., Figure], /, **controls: Control) -> HoverExplorer:
    """Show `draw(**values)` as `explore` does; what its figure has marked is told where the pointer is."""
    return HoverExplorer(draw, controls)
