"""The browser test itself notices a figure that stands still, fails or does not come back, and a cell that fails."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.browser.conftest import write
from tools.lab import LiveExplorer, Notebook, Server

DRAW = """
import ipywidgets
from lib.show.explore import explore, switch, whole
from lib.show.style import new_figure, title

def frame(text):
    figure, axes = new_figure(4, 2)
    title(axes, str(text))
    return figure
"""
FOLLOWS = 'explore(lambda n, on: frame((n, on)), n=whole(1, 5, 5, "n"), on=switch(True, "on"))'
STANDS_STILL = 'explore(lambda n: frame("always the same"), n=whole(1, 5, 2, "n"))'
FAILS = 'explore(lambda n: frame(1 // (n - 3)), n=whole(1, 5, 2, "n"))'
DRIFTS = """
box = explore(lambda n, m: frame((n, m)), n=whole(1, 5, 2, "n"), m=whole(0, 9, 0, "m")).widget
n, m = box.children[0].children
n.observe(lambda change: setattr(m, "value", m.value + 1), "value")
box
"""
MISPRINTS = """
slider = ipywidgets.FloatSlider(0.5, min=0, max=1, step=0.25, readout_format=".0%", description="share")
box = explore(lambda n: frame(n), n=whole(0, 100, 50, "n")).widget
slider.observe(lambda change: setattr(box.children[0].children[-1], "value", int(100 * change["new"])), "value")
box.children[0].children = (slider, *box.children[0].children)
box
"""
CROWDED = """
crowded = explore(lambda n, on: frame((n, on)), n=whole(1, 5, 2, "n"), on=switch(True, "on")).widget
ranks, hint = crowded.children[0].children
ranks.layout.width, ranks.description = "340px", "how many of all ranks take part in this run"
hint.layout.width, hint.description = "100px", "a number of words that nobody can read to their end"
crowded
"""


def test_planted_faults_are_noticed(server: Server, open_notebook: Callable[[Path], Notebook], tmp_path: Path) -> None:
    path = write(server.root / "faults.ipynb", DRAW, FOLLOWS, STANDS_STILL, FAILS, DRIFTS, MISPRINTS, CROWDED)
    notebook = open_notebook(path)
    notebook.run_all()
    # Who waits in vain waits to the end; the others have time, on a busy machine too.
    seconds = (30, 3, 30, 6, 30, 30)
    follows, stands_still, fails, drifts, misprints, crowded = (
        explorer.try_all(tmp_path, f"explore{number}", limit)
        for number, (explorer, limit) in enumerate(zip(notebook.explorers(), seconds, strict=True))
    )
    assert follows == []
    assert "the figure did not change" in stands_still[0]
    assert "ZeroDivisionError" in fails[0]
    assert "did not come back to its first frame" in drifts[0]
    assert "stands at 0.75 but prints '75%'" in misprints[0]
    assert "a track of" in crowded[0]
    assert any("words that are cut" in complaint for complaint in crowded[1:])
    assert len(list(tmp_path.glob("explore0-*.png"))) == 1  # of its first control
    assert any("ZeroDivisionError" in error for error in notebook.errors())


def test_a_figure_that_fails_between_two_looks_has_not_changed() -> None:
    class Failing(LiveExplorer):
        """The picture is there at the first look and gone, with an error in its place, at every later one."""

        looks = 0

        def source(self) -> str:
            self.looks += 1
            return "first" if self.looks == 1 else ""

    box: Any = SimpleNamespace(
        locator=lambda _: SimpleNamespace(all_inner_texts=lambda: ["ZeroDivisionError"] * (failing.looks > 1)),
        page=SimpleNamespace(wait_for_timeout=lambda _: None),
    )
    failing = Failing(box)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        failing.wait_for_change("first", seconds=1)


def test_a_failing_cell_is_noticed(server: Server, open_notebook: Callable[[Path], Notebook]) -> None:
    notebook = open_notebook(write(server.root / "fails.ipynb", "x = 1", "1 / 0", "x"))
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        notebook.run_all()
    assert notebook.page.evaluate("idt.run('x', 20)") == notebook.empty_kernel() != ""
    assert notebook.page.evaluate("idt.run('x', 20)") == "", "the next notebook of this kernel finds no name"
