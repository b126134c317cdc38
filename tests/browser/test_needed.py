"""What the interactive figures of a notebook need is found from names; only that runs in the browser."""

import nbformat

from tests.browser.needed import LIVES, shows, with_needed_cells_only
from tools.needed import needed_sources
from tools.project import notebooks


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
    kept = sum(len(source) for cells in with_figures for source in needed_sources(cells, shows).values())
    assert 0 < kept < sum(len(source) for cells in with_figures for source in cells) / 3
