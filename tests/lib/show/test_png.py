"""Stored pictures have few colours: nobody sees it, and the same figure always gives the same bytes."""

import io
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from lib.show.explore import explore
from lib.show.style import COLORS, PALETTE, new_figure, png
from support.n03.figures import draw_mechanism
from support.n05.figures import HOLDERS_CONTROLS, draw_holders
from support.n11.figures import BACKWARD_CONTROLS, draw_backward
from support.n14.figures import INTERLEAVING_CONTROLS, draw_interleaving
from support.n14.solved import fill_holes, forwards_ahead
from tests.sizes import size
from tools.project import ROOT


def every_color() -> Figure:
    """A bar in each colour of the house style: none may be taken for another."""
    figure, axes = new_figure(5, 2)
    axes.bar(range(len(PALETTE)), 1, color=list(PALETTE.values()))
    return figure


def grey_picture() -> Figure:
    """An image of 256 greys, the hardest case."""
    figure, axes = new_figure(4, 4)
    axes.imshow(np.arange(256).reshape(16, 16), cmap="gray")
    return figure


ours = partial(draw_interleaving, forwards_ahead, fill_holes)
EXPLORED = {draw_backward: BACKWARD_CONTROLS, draw_holders: HOLDERS_CONTROLS, ours: INTERLEAVING_CONTROLS}
CHOSEN = size(suite=[ours], prove=[*EXPLORED])
FIGURES: list[Callable[[], Figure]] = [every_color, grey_picture, draw_mechanism]
FIGURES += [lambda draw=draw, controls=EXPLORED[draw]: explore(draw, **controls).figure for draw in CHOSEN]


def dots(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)


@pytest.mark.costly
@pytest.mark.parametrize("draw", FIGURES)
def test_fills_keep_their_colours_and_hardly_any_dot_differs_by_much(draw: Callable[[], Figure]) -> None:
    stored = png(draw())
    live = png(draw(), colors=None)
    full = dots(live)
    few = dots(stored)
    values, number = np.unique(full.reshape(-1, 3), axis=0, return_counts=True)
    fills = np.argsort(-number)[:16]  # and none so rare as the soft edge of a letter is
    for fill in values[fills[number[fills] > 0.001 * number.sum()]]:
        assert abs(few[(full == fill).all(axis=2)] - fill).max() <= 8
    paper = (full == 255).all(axis=2)
    assert (few[paper] == 255).all()
    difference = abs(few - full).max(axis=2)  # of 255
    assert difference.max() <= 64
    assert (difference > 16).mean() < 0.01
    assert len(Image.open(io.BytesIO(stored)).getcolors()) <= COLORS
    assert len(stored) < len(live) / 2


@pytest.mark.costly
def test_a_figure_gives_the_same_bytes_in_another_process() -> None:
    program = "from support.n03.figures import draw_mechanism; from lib.show.style import png; import sys;"
    program += "sys.stdout.buffer.write(png(draw_mechanism()))"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, cwd=ROOT / "notebooks"
    ).stdout
    assert said == png(draw_mechanism())
