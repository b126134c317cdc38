"""Every interactive figure of every notebook, built from the cells that its call needs: its start and its corners draw.

Here lies all that can be asked of any explorer; whether its live controls work is tried in a browser, and what a figure
says is for the tests of its room.
"""

import ast
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lib.show.explore import Control, Explorer, explore, switch, whole
from lib.show.style import alt_text, describe, new_figure
from tests.browser.needed import shows
from tests.pictures import corners
from tests.sizes import size
from tools.needed import needed_sources
from tools.project import ROOT
from tools.statements import read_statements

#: Frames of one explorer: its start, each control one step on, the lowest and the highest ends, and others by lot.
FRAMES = size(suite=5, prove=60)
WIDEST = 9.6  # inches of a figure
SMALLEST = 9  # points of a text
DOTS_PER_INCH = 40


#: Explorers with a known fault, and which: whoever repairs one is told so by the test.
FAULTS: dict[str, str] = {}


@dataclass(frozen=True)
class Shown:
    number: str
    above: tuple[str, ...]
    call: str

    def build(self) -> Explorer:
        space: dict[str, Any] = {}
        *needed, _ = needed_sources([*self.above, self.call], self.call.__eq__).values()
        for statement in needed:
            exec(statement, space)
        return eval(self.call, space)


def code_of(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@cache
def all_shown() -> tuple[Shown, ...]:
    """Return every call of `explore` in the notebooks."""
    return tuple(_shown())


def _shown() -> Iterator[Shown]:
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        code = code_of(path)
        for k, source in enumerate(code):
            statements = [statement.text for statement in read_statements([source])] if shows(source) else []
            for j, statement in enumerate(statements):
                for node in ast.walk(ast.parse(statement)):
                    if isinstance(node, ast.Call) and ast.unparse(node.func) == "explore":
                        yield Shown(path.name[:2], (*code[:k], *statements[:j]), ast.unparse(node))


def picture(figure: Figure) -> bytes:
    """Return a figure's dots; savefig would draw them twice, as it does with any figure that has a layout engine."""
    figure.set_dpi(DOTS_PER_INCH)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return bytes(canvas.buffer_rgba())


def neighbour(control: Control) -> Any:
    place = control.options.index(control.value)
    return (control.options[place + 1 :] or control.options[place - 1 :])[0]


def complaints(explorer: Explorer) -> Iterator[str]:
    """Say what is wrong with an explorer; two frames with the same alt text must be the same picture."""
    start = explorer.figure
    told = {alt_text(explorer.figure): (explorer.figure, picture(explorer.figure))}
    if small := [t.get_text() for axes in start.axes for t in axes.texts if t.get_fontsize() < SMALLEST]:
        yield f"too small to read: {small}"
    if picture(explorer.draw(**explorer.values)) != told[alt_text(start)][1]:
        yield "another picture of the same settings"
    moved = [{**explorer.values, name: neighbour(control)} for name, control in explorer.controls.items()]
    first = [dict(explorer.values), *moved]
    others = [values for values in corners(explorer, max(2, FRAMES - len(first))) if values not in first]
    for number, values in enumerate(first + others):
        try:
            figure = explorer.draw(**values) if number else start
        except Exception as error:
            yield f"{values}: {type(error).__name__}: {error}"
            continue
        words = alt_text(figure)
        if words.startswith("Figure: "):  # what alt_text makes up of titles
            yield f"{values}: nobody described it"
        if figure.get_figwidth() > WIDEST:
            yield f"{values}: {figure.get_figwidth()} inches wide"
        other, drawn = told.setdefault(words, (figure, b""))
        if other is not figure and not drawn:
            drawn = picture(other)  # kept: drawn once more it may differ, where a layout engine moves things
            told[words] = (other, drawn)
        if other is not figure and picture(figure) != drawn:
            yield f"{values}: another picture, the same alt text"
        elif other is start and 0 < number <= len(moved):
            yield f"{values}: this control changes nothing"


def cases() -> Iterator[Any]:
    """Yield the calls; the one whose frames make a plan of 512 ranks each takes seconds."""
    for shown in all_shown():
        marks = [pytest.mark.costly] if "draw_plans" in shown.call else []
        yield pytest.param(shown, marks=marks, id=f"{shown.number} {shown.call.split(',')[0]}")


@pytest.mark.parametrize("shown", cases())
def test_an_explorer_draws_its_start_and_corners_and_each_control_is_seen_and_told(shown: Shown) -> None:
    explorer = shown.build()
    known = FAULTS.get(f"{shown.number} {getattr(explorer.draw, '__name__', '')}")
    found = list(complaints(explorer))
    assert [text for text in found if known is None or known not in text] == []
    assert known is None or found, "repaired: take it out of FAULTS"


CALLS = itertools.count()


def draw_faulty(count: int, fault: bool, what: str) -> Figure:
    if fault and what == "KeyError":
        raise KeyError(count)
    figure, axes = new_figure(12 if fault and "inches" in what else 4, 1)
    axes.bar(range(3), [count, 1, 2 + (fault and "same alt text" in what)])
    axes.text(0, 0, "small", fontsize=5 if "small" in what else 10)
    axes.set_xlabel(str(next(CALLS)) if what == "another picture" else "")
    words = f"{count} bars, {fault}" if "same alt" not in what and "nothing" not in what else f"{count} bars"
    return figure if fault and what == "nobody described" else describe(figure, words)


@pytest.mark.parametrize(
    "what",
    ["", "KeyError", "inches wide", "same alt text", "small", "nobody described", "changes nothing", "another picture"],
)
def test_each_fault_of_an_explorer_is_found(what: str) -> None:
    faulty = explore(
        lambda **values: draw_faulty(**values, what=what), count=whole(1, 3, 1, "n"), fault=switch(False, "")
    )
    found = list(complaints(faulty))
    assert any(what in text for text in found) if what else found == []


def draw_restless(count: int) -> Figure:
    """Draw what its second drawing would change, as a layout engine may; from 2 on, any count is the same picture."""
    figure, axes = new_figure(4, 1)
    axes.bar(range(2), [min(count, 2), 1])
    figure.canvas.mpl_connect("draw_event", lambda _: axes.set_xlim(0, 9))
    return describe(figure, f"{min(count, 2)} bars")


def test_every_picture_is_drawn_once_however_many_it_is_compared_with() -> None:
    assert picture(figure := draw_restless(2)) != picture(figure)
    assert list(complaints(explore(draw_restless, count=whole(1, 5, 1, "n")))) == []


def test_every_call_is_found() -> None:
    code = {path.name[:2]: code_of(path) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
    calls = [call for each in code.values() for call in shows("\n".join(each))]
    assert len(all_shown()) == len(calls) > 0
