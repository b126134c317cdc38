"""Figures of the same parts look the same, and a part that differs in anything an eye may see makes another look."""

import threading

import pytest
from matplotlib.ticker import FuncFormatter

from lib.show.style import new_figure, title
from tools.site.fingerprint import fingerprint


def draw(high=3, *, color="red", width=1.0, hatch=None, said="a", unit="s", limit=9, zorder=1, marker="o", size=9):
    figure, (left, right) = new_figure(6, 3, cols=2)
    left.bar(range(3), [1, 2, high], color=color, linewidth=width, hatch=hatch)
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value} {unit}"))
    right.plot([1, high], [2, 2], marker=marker, zorder=zorder)
    right.text(1, 1, said, fontsize=size)
    right.set_ylim(0, limit)
    title(left, "a finding")
    return figure


CHANGES = [
    {"high": 4},
    {"color": "blue"},
    {"width": 2.0},
    {"hatch": "//"},
    {"said": "b"},
    {"unit": "ms"},
    {"limit": 8},
    {"zorder": 3},
    {"marker": "x"},
    {"size": 10},
]


def test_the_same_parts_look_the_same():
    draw()  # what matplotlib works out once is there from here on
    assert fingerprint(draw()) == fingerprint(draw()) != ""


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_looks_different(change):
    assert fingerprint(draw(**change)) != fingerprint(draw())


def test_a_figure_that_holds_what_cannot_be_compared_looks_like_none():
    figure = draw()
    figure.axes[0].patches[0].lock = threading.Lock()
    assert fingerprint(figure) == ""
