"""`make stamp`: one address in pyproject.toml, the same in every badge, set-up cell and link."""

import shutil
from pathlib import Path

import nbformat
import pytest

from support import course
from tools import hygiene, stamp
from tools.kept import what_was_run
from tools.project import ROOT, address, find

NEW = "https://github.com/someone/somewhere"
OTHER_BADGE = (
    "[![Open in Colab](b.svg)](https://colab.research.google.com/github/old/old/blob/main/notebooks/00_x.ipynb)"
)
BINDER = "https://mybinder.org/v2/gh/old/old/main?urlpath=lab/tree/notebooks/00_start_here.ipynb"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project of a README and one notebook, copied from another chapter: foreign badge, no set-up cell."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    here = address()
    (tmp_path / "README.md").write_text(f"[code]({here.repository}) [site]({here.site}) [run]({BINDER}) {OTHER_BADGE}")
    (tmp_path / "notebooks").mkdir()
    markdown = nbformat.v4.new_markdown_cell(f"# A title\n\n{OTHER_BADGE}")
    notebook = nbformat.v4.new_notebook(cells=[markdown, nbformat.v4.new_code_cell("x = 1")])
    notebook.metadata["idt"] = what_was_run(notebook)
    nbformat.write(notebook, tmp_path / "notebooks" / "01_copied.ipynb")
    return tmp_path


def page(root: Path) -> hygiene.StoredNotebook:
    return hygiene.StoredNotebook.read(root / "notebooks" / "01_copied.ipynb", root)


def test_a_stamped_notebook_passes_the_rules_on_badge_and_set_up_cell_and_the_readme_follows(root: Path) -> None:
    assert hygiene.has_the_projects_badge(page(root))
    assert hygiene.begins_with_the_setup_cell(page(root))
    stamp.stamp(root, "someone/somewhere", "v9.9")
    assert hygiene.has_the_projects_badge(page(root)) == []
    assert hygiene.begins_with_the_setup_cell(page(root)) == []
    assert (address(root).repository, address(root).ref) == (NEW, "v9.9")
    setup = "".join(page(root).raw["cells"][1]["source"])
    assert f'ref = "v9.9"\nrepository = "{NEW}"\n' in setup
    folded = [cell["metadata"].get("jupyter") for cell in page(root).raw["cells"] if cell["cell_type"] == "code"]
    assert folded == [{"source_hidden": True}, None]
    stamp.stamp(root, NEW, "v9.9")
    badge = "https://colab.research.google.com/github/someone/somewhere/blob/v9.9/notebooks/00_x.ipynb"
    binder = BINDER.replace("old/old/main", "someone/somewhere/v9.9")
    links = f"[site](https://someone.github.io/somewhere/) [run]({binder})"
    assert (root / "README.md").read_text() == f"[code]({NEW}) {links} [![Open in Colab](b.svg)]({badge})"


def test_the_projects_own_readme_leads_to_its_site_and_to_mybinder() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"]({address().site})" in text
    assert f"]({address().binder})" in text


def test_the_links_to_the_neighbours_follow_the_map(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = course.Chapter("00_first", "First", course.START, (), "first")
    copied = course.Chapter("01_copied", "Copied", course.DATA, (0,), "copied")
    monkeypatch.setattr(course, "COURSE", (first, copied))
    table = "| You will | Needs | Previous / next |\n|---|---|---|\n| see | [00](00_first.ipynb) | {} |\n\nWords."
    path = root / "notebooks" / "01_copied.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[0].source = table.format("[00](00_first.ipynb) / nowhere")
    nbformat.write(notebook, path)
    stamp.stamp(root)
    assert page(root).prose == table.format("[00 · First](00_first.ipynb) / the end")
    monkeypatch.setattr(course, "COURSE", (copied, first))
    stamp.stamp(root)
    head, _, row, *_ = page(root).prose.splitlines()
    assert head.endswith("| Needs | Next |")
    assert row.endswith("| [00 · First](00_first.ipynb) |")


def test_stamping_twice_changes_nothing_and_outputs_stay_valid_or_stale_as_they_were(root: Path) -> None:
    assert stamp.stamp(root, NEW) != []
    assert hygiene.is_saved_from_these_sources(page(root)) == []
    assert stamp.stamp(root) == []
    path = root / "notebooks" / "01_copied.ipynb"
    path.write_text(path.read_text().replace("x = 1", "x = 2"))
    stamp.stamp(root, NEW)
    assert hygiene.is_saved_from_these_sources(page(root)) != []


def test_a_ref_that_is_a_version_becomes_that_of_project_package_citation_and_set_up_cell(root: Path) -> None:
    (root / "lib").mkdir()
    shutil.copy(ROOT / "lib" / "__init__.py", root / "lib")
    shutil.copy(ROOT / "CITATION.cff", root)
    stamp.stamp(root, None, "v12.3.4")
    assert address(root).version == "12.3.4"
    assert '\n__version__ = "12.3.4"\n' in (root / "lib" / "__init__.py").read_text(encoding="utf-8")
    assert "\nversion: 12.3.4\n" in (root / "CITATION.cff").read_text(encoding="utf-8")
    assert page(root).raw["cells"][1]["source"][-1] == 'setup("12.3.4")'
    stamp.stamp(root, None, "some-branch")
    assert (address(root).ref, address(root).version) == ("some-branch", "12.3.4")
    assert stamp.stamp(root) == []


def test_a_notebook_with_an_open_set_up_cell_is_told_to_be_stamped(root: Path) -> None:
    stamp.stamp(root)
    assert hygiene.begins_with_the_setup_cell(page(root)) == []
    path = root / "notebooks" / "01_copied.ipynb"
    path.write_text(path.read_text().replace('"source_hidden": true', '"source_hidden": false'))
    assert hygiene.begins_with_the_setup_cell(page(root)) == ["the set-up cell is not folded: make stamp"]


@pytest.mark.parametrize("repository", ["owner", "http://github.com/a/b", "https://github.com/a", "a/b/c", 'a/b"'])
def test_an_address_or_ref_that_colab_cannot_open_is_refused_and_nothing_written(root: Path, repository: str) -> None:
    before = (root / "pyproject.toml").read_text()
    with pytest.raises(ValueError, match="neither owner/name nor"):
        stamp.stamp(root, repository)
    with pytest.raises(ValueError, match="'feature/x' must be"):
        stamp.stamp(root, None, "feature/x")
    assert (root / "pyproject.toml").read_text() == before


@pytest.mark.parametrize("name", ["1", "01", "01_copied", "all", "notebooks/01_copied"])
def test_a_notebook_is_found_by_number_stem_or_all(root: Path, name: str) -> None:
    assert [path.name for path in find([name, name], root)] == ["01_copied.ipynb"]


def test_an_unknown_notebook_is_refused_with_the_list_of_known_ones(root: Path) -> None:
    with pytest.raises(SystemExit, match=r"'17'.*there are: 01_copied"):
        find(["17"], root)
