"""What the interactive figures of a notebook need is found from names; only that runs in the browser."""

import nbformat
import pytest

from tests.browser.needed import LIVES, needed, shows, with_needed_cells_only
from tools.project import notebooks

SHOWS = "explore(draw, **CONTROLS)"


@pytest.mark.parametrize(("cells", "kept"), [
    (["a = 1", SHOWS], ["", SHOWS]),
    (["from lib import draw\ndraw(3)", "CONTROLS = {}", SHOWS], ["from lib import draw", "CONTROLS = {}", SHOWS]),
    (["draw = 1", "draw = 2", SHOWS], ["", "draw = 2", SHOWS]),
    (["seed = 1", "draw = part(f, seed)", SHOWS], ["seed = 1", "draw = part(f, seed)", SHOWS]),
    (["a = []", "for n in b:\n    a.append(n)", "explore(a)"],
     ["a = []", "for n in b:\n    a.append(n)", "explore(a)"]),
    (["a = {}", "a[1] = 2", "a.b = 2; c.b = 3", "explore(a)"], ["a = {}", "a[1] = 2", "a.b = 2", "explore(a)"]),
    (["a = 1", "a += 2", "len(a)", "explore(a)"], ["a = 1", "a += 2", "", "explore(a)"]),
    (["b = 2", "def a():\n    return b", "explore(a)"], ["b = 2", "def a():\n    return b", "explore(a)"]),
    (["b = 2", "def a(b):\n    return b", "explore(a)"], ["", "def a(b):\n    return b", "explore(a)"]),
    (["n = 2", "a = [n for n in range(3)]", "explore(a)"], ["", "a = [n for n in range(3)]", "explore(a)"]),
    (["n = write_rows(f)", "m = rows(f)", "explore(f)"], ["n = write_rows(f)", "", "explore(f)"]),
    (["explore(f)", "f = 2"], ["explore(f)", ""]),
    (["!ls", "%matplotlib inline", "explore(4)"], ["", "", "explore(4)"]),
    (["x = 1", "print(x)"], ["", ""]),
])  # fmt: skip
def test_what_an_interactive_figure_needs(cells: list[str], kept: list[str]) -> None:
    assert needed(cells) == kept


def test_only_a_call_shows_a_figure_and_the_set_up_cell_stays_and_nothing_is_stored() -> None:
    assert shows("# explore(x)\ntext = 'explore(y)'\nfrom lib import explore") == []
    assert shows("explore(a)\nplay(b)\nexplore(c)") == ["explore", "explore"]
    assert shows("explore(a)\ntimeline_html(b)", LIVES) == ["timeline_html"]
    cells = [nbformat.v4.new_code_cell(source) for source in ("setup()", "slow()", "explore(f)", "timeline_html(t)")]
    cells[0].metadata["tags"] = ["setup"]
    cells.insert(1, nbformat.v4.new_markdown_cell("words"))
    small = with_needed_cells_only(nbformat.v4.new_notebook(cells=cells))
    assert [cell.source for cell in small.cells] == ["setup()", "explore(f)", "timeline_html(t)"]
    assert [(cell.outputs, cell.execution_count) for cell in small.cells] == [([], None)] * 3


def test_most_of_the_notebooks_is_not_needed() -> None:
    """Were everything kept, the browser would measure everything again, and nobody would notice but by the clock."""
    code = [
        [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        for path in notebooks()
    ]
    with_figures = [cells for cells in code if any(map(shows, cells))]
    kept = sum(len(source) for cells in with_figures for source in needed(cells))
    assert 0 < kept < sum(len(source) for cells in with_figures for source in cells) / 3
