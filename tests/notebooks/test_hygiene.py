"""Every notebook obeys every rule of tools/hygiene.py, and every rule notices the fault that it is there for."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest

from tools import hygiene, setup_cell
from tools.hygiene import Page
from tools.kept import KERNELSPEC, LANGUAGE, WIDGET
from tools.project import ROOT, address, notebooks

PICTURE = {
    "output_type": "display_data",
    "data": {"image/png": "iVBORw0KGgo=", "text/plain": "a bar of height 3"},
    "metadata": {"image/png": {"alt": "a bar of height 3"}},
}
ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["ValueError: no"]}


@pytest.mark.parametrize("rule", hygiene.RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: str(path.relative_to(ROOT / "notebooks")))
def test_every_notebook_obeys(path: Path, rule: hygiene.Rule) -> None:
    assert rule(Page.read(path)) == []


def test_all_notebooks_together_are_light() -> None:
    assert sum(path.stat().st_size for path in notebooks()) <= 8e6


# From here on: a notebook without fault, and what each rule says when one is planted.


def markdown(source: str) -> dict:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def code(source: str, *outputs: dict, tags: tuple[str, ...] = ()) -> dict:
    metadata = {"tags": list(tags)} if tags else {}
    return {"cell_type": "code", "metadata": metadata, "source": source, "outputs": copy.deepcopy(list(outputs))}


TITLE, SETUP, GUESS, FIGURE, BREAK, EXERCISE = range(6)


@pytest.fixture
def page(tmp_path: Path) -> Page:
    """A chapter that obeys every rule."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "notebooks" / "solutions").mkdir(parents=True)
    path = tmp_path / "notebooks" / "05_toy.ipynb"
    badge = f"[![Open in Colab](badge.svg)]({address().badge(path, tmp_path)})"
    cells = [
        markdown(f"# A toy\n\n{badge}\n\nSee [below](#Break-it), [the project](../pyproject.toml)."),
        code(setup_cell.text(address()), tags=("setup",)),
        code("my_guess = None"),
        code("figure", PICTURE),
        markdown("## Break it\n\n`x[0](1)` is code, and no link."),
        markdown("### Exercise 1\n\n<details><summary>Hint</summary>Think.</details>"),
    ]
    (tmp_path / "notebooks" / "badge.svg").touch()
    return Page(path, finish(cells), tmp_path)


def finish(cells: list[dict]) -> dict:
    """Number ids and prompts, and note the sources, as `make save` does."""
    count = 0
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
        if cell["cell_type"] == "code":
            cell["execution_count"] = count = count + 1
    metadata = {"kernelspec": KERNELSPEC, "language_info": LANGUAGE}
    raw = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}
    return {**raw, "metadata": {**metadata, "idt": {"sources": hygiene.hash_of(raw)}}}


def write(page: Page) -> None:
    import json

    page.path.write_text(json.dumps(page.raw))


def test_the_notebook_without_fault_has_no_complaint(page: Page) -> None:
    write(page)
    assert hygiene.complaints(page) == []


def test_every_rule_has_a_test_with_a_planted_fault() -> None:
    tests = Path(__file__).read_text()
    assert [rule.__name__ for rule in hygiene.RULES if f"hygiene.{rule.__name__}(page)" not in tests] == []


def test_an_old_format_is_noticed(page: Page) -> None:
    page.raw["nbformat_minor"] = 4
    (complaint,) = hygiene.has_unique_ids(page)
    assert "4.4 is older" in complaint


@pytest.mark.parametrize(("id_", "said"), [("cell-0", "two cells have the id 'cell-0'"), ("", "cell 3 has no id")])
def test_a_shared_or_missing_id_is_noticed(page: Page, id_: str, said: str) -> None:
    page.raw["cells"][FIGURE]["id"] = id_
    assert hygiene.has_unique_ids(page) == [said]


@pytest.mark.parametrize("prompt", [None, 1, 7])
def test_a_cell_that_did_not_run_in_its_turn_is_noticed(page: Page, prompt: int | None) -> None:
    page.raw["cells"][GUESS]["execution_count"] = prompt
    (complaint,) = hygiene.is_executed_in_order(page)
    assert complaint.startswith(f"cell 2 has prompt {prompt}, not 2")


def test_an_empty_cell_is_noticed(page: Page) -> None:
    page.raw["cells"].append(code("  \n") | {"execution_count": None})
    assert hygiene.is_executed_in_order(page) == ["cell 6 is empty"]


def test_another_kernel_or_the_authors_python_version_is_noticed(page: Page) -> None:
    page.raw["metadata"]["kernelspec"] = {"name": "my-env"}
    page.raw["metadata"]["language_info"] = {**LANGUAGE, "version": "3.12.1"}
    kernel, language = hygiene.is_of_python3(page)
    assert "my-env" in kernel
    assert "3.12.1" in language


def test_stored_widgets_are_noticed(page: Page) -> None:
    page.raw["metadata"]["widgets"] = {}
    page.raw["cells"][FIGURE]["outputs"][0]["data"][WIDGET] = {"model_id": "0"}
    assert hygiene.has_no_widget_state(page) == ["the notebook's metadata holds widgets", "cell 3 stores a widget"]


@pytest.mark.parametrize("key", ["execution", "scrolled", "collapsed", "ExecuteTime"])
def test_an_editors_memory_is_noticed(page: Page, key: str) -> None:
    page.raw["cells"][FIGURE]["metadata"][key] = True
    assert hygiene.has_no_editor_metadata(page) == [f"cell 3 has metadata ['{key}']"]


def test_a_stored_error_is_noticed_unless_the_cell_is_meant_to_fail(page: Page) -> None:
    cell = page.raw["cells"][FIGURE]
    cell["outputs"] = [ERROR]
    assert hygiene.has_no_stored_error(page) == ["cell 3 stores an error and is not tagged raises-exception"]
    cell["metadata"]["tags"] = ["raises-exception"]
    assert hygiene.has_no_stored_error(page) == []
    cell["outputs"] = []
    assert hygiene.has_no_stored_error(page) == ["cell 3 is tagged raises-exception and raised nothing"]


def test_code_that_changed_after_saving_is_noticed(page: Page) -> None:
    page.raw["cells"][GUESS]["source"] = "my_guess = 3"
    (complaint,) = hygiene.is_saved_from_these_sources(page)
    assert "changed after" in complaint


@pytest.mark.parametrize(
    "source", ["# NBVAL_SKIP\nx = 1", "x = 1\n# NBVAL_IGNORE_OUTPUT", "# NBVAL_RAISES_EXCEPTION\n1 / 0"]
)
def test_a_cell_that_nbval_would_skip_is_noticed(page: Page, source: str) -> None:
    page.raw["cells"][FIGURE]["source"] = source
    (complaint,) = hygiene.is_compared(page)
    assert complaint.startswith("cell 3 is marked NBVAL_")
    page.raw["cells"][FIGURE] |= {"source": "x", "metadata": {"tags": ["nbval-skip"]}}
    assert hygiene.is_compared(page) == ["cell 3 is tagged nbval-skip"]


@pytest.mark.parametrize("path", ["/home/me/data", "/tmp/x.png", "/work/main/lib", r"C:\Users", "/root/.cache"])
@pytest.mark.parametrize("where", ["source", "output", "html", "traceback", "metadata"])
def test_a_path_of_the_authors_machine_is_noticed(page: Page, path: str, where: str) -> None:
    cell = page.raw["cells"][FIGURE]
    text = f'read "{path}" once'
    if where == "source":
        cell["source"] = text
    elif where == "output":
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["first\n", text]}]
    elif where == "html":
        cell["outputs"][0]["data"]["text/html"] = f"<b>{path}</b>"
    elif where == "traceback":
        cell["outputs"] = [ERROR | {"traceback": [f"File {path}:3"]}]
    else:
        cell["metadata"]["note"] = path
    (complaint,) = hygiene.has_no_absolute_path(page)
    assert complaint.startswith("cell 3 names the path ")


@pytest.mark.parametrize(
    "text", ["https://example.org/home/x", "a/tmp/b", "base64,abc/tmp/abc=", "../home/x", "1/work"]
)
def test_an_address_or_a_relative_path_is_no_absolute_path(page: Page, text: str) -> None:
    page.raw["cells"][FIGURE]["source"] = text
    assert hygiene.has_no_absolute_path(page) == []


def test_a_picture_without_alt_text_is_noticed(page: Page) -> None:
    output = page.raw["cells"][FIGURE]["outputs"][0]
    output["metadata"]["image/png"]["alt"] = "another"
    (complaint,) = hygiene.has_alt_text(page)
    assert "differs from its text/plain" in complaint
    output["metadata"] = {}
    assert hygiene.has_alt_text(page) == ["cell 3 shows a picture without alt text"]


@pytest.mark.parametrize(
    ("html", "faults"),
    [
        ("<img src='a.png'>", 1),
        ("<img alt='' src='a.png'>", 1),
        ("<img alt='a bar' src='a.png'>", 0),
        ("<svg><path/></svg>", 1),
        ("<svg><title>a bar</title></svg><svg></svg>", 1),
        ("<svg aria-label='a bar'></svg>", 0),
    ],
)
def test_html_without_alt_text_is_noticed_in_outputs_and_in_markdown(page: Page, html: str, faults: int) -> None:
    page.raw["cells"][FIGURE]["outputs"][0]["data"]["text/html"] = html
    page.raw["cells"][BREAK]["source"] += html
    assert len(hygiene.has_alt_text(page)) == 2 * faults


def test_a_markdown_picture_without_alt_text_is_noticed(page: Page) -> None:
    page.raw["cells"][BREAK]["source"] = "![](badge.svg)"
    assert hygiene.has_alt_text(page) == ["cell 4: ![](badge.svg) has no alt text"]


def test_a_long_cell_is_noticed(page: Page) -> None:
    page.raw["cells"][FIGURE]["source"] = "x = 1\n" * 25
    assert hygiene.has_short_cells(page) == []
    page.raw["cells"][FIGURE]["source"] += "x = 1\n"
    assert hygiene.has_short_cells(page) == ["cell 3 has 26 lines of code, more than 25"]


def test_a_heavy_notebook_is_noticed(page: Page) -> None:
    page.raw["cells"][FIGURE]["outputs"][0]["data"]["image/png"] = "x" * hygiene.HEAVIEST
    (complaint,) = hygiene.is_light(page)
    assert complaint.endswith("KB, more than 700: make save")


def test_a_set_up_cell_of_its_own_is_noticed(page: Page) -> None:
    page.raw["cells"][SETUP]["source"] += "\nprint('mine')"
    (complaint,) = hygiene.begins_with_the_setup_cell(page)
    assert "differs" in complaint
    page.raw["cells"][SETUP]["metadata"] = {}
    (complaint,) = hygiene.begins_with_the_setup_cell(page)
    assert "first code cell" in complaint
    page.raw["cells"][GUESS]["metadata"] = {"tags": ["setup"]}
    (complaint,) = hygiene.begins_with_the_setup_cell(page)
    assert "tagged `setup`: [2]" in complaint


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("[x](06_gone.ipynb)", "leads nowhere"),
        ('<a href="../lib/gone.py">x</a>', "leads nowhere"),
        ("[x](05_toy.ipynb#Gone)", "heading that is not there"),
        ("[x](#break)", "heading that is not there"),
        ("[x](/notebooks/05_toy.ipynb)", "absolute"),
        ("[x][1]\n\n[1]: gone.md", "leads nowhere"),
    ],
)
def test_a_link_that_leads_nowhere_is_noticed(page: Page, link: str, said: str) -> None:
    write(page)
    page.raw["cells"][BREAK]["source"] += link
    (complaint,) = hygiene.has_working_links(page)
    assert said in complaint


@pytest.mark.parametrize(
    "link", ["[x](#break-it)", "[x](05_toy.ipynb#Break-it)", "[x](../pyproject.toml)", "[x](https://example.org/gone)"]
)
def test_a_link_that_leads_somewhere_is_fine(page: Page, link: str) -> None:
    write(page)
    page.raw["cells"][BREAK]["source"] += link
    assert hygiene.has_working_links(page) == []


def test_a_badge_that_opens_another_notebook_is_noticed(page: Page) -> None:
    page.raw["cells"][TITLE]["source"] = page.raw["cells"][TITLE]["source"].replace("05_toy", "06_copied")
    other, missing = hygiene.has_the_projects_badge(page)
    assert "06_copied.ipynb, not to" in other
    assert "has no Colab badge" in missing


def test_unformatted_code_is_noticed(page: Page) -> None:
    page.raw["cells"][FIGURE]["source"] = "x  =  'a'"
    write(page)
    (complaint,) = hygiene.is_formatted(page)
    assert complaint.startswith("not formatted")


def test_a_missing_or_second_title_is_noticed(page: Page) -> None:
    page.raw["cells"][BREAK]["source"] = "# Another"
    (complaint,) = hygiene.has_a_title(page)
    assert complaint.startswith("2 titles")
    page.raw["cells"][TITLE]["source"] = "A toy"
    assert hygiene.has_a_title(page) == ["the first cell does not begin with a title, `# …`"]


def test_a_chapter_without_prediction_is_noticed(page: Page) -> None:
    page.raw["cells"][GUESS]["source"] = "guess = 3"
    (complaint,) = hygiene.asks_for_a_prediction(page)
    assert "my_guess" in complaint


def test_a_chapter_that_breaks_nothing_is_noticed(page: Page) -> None:
    page.raw["cells"][BREAK]["source"] = "Break it"
    (complaint,) = hygiene.breaks_something(page)
    assert "Break it" in complaint
    page.path = page.path.with_name("00_start_here.ipynb")
    assert hygiene.breaks_something(page) == []


def test_an_exercise_without_hint_is_noticed(page: Page) -> None:
    page.raw["cells"][EXERCISE]["source"] += "\n\n### Exercise 2\n"
    (complaint,) = hygiene.has_exercises_with_hints(page)
    assert complaint.startswith("2 exercises have 1 folded hints")
    page.raw["cells"][EXERCISE]["source"] = "nothing to do"
    assert hygiene.has_exercises_with_hints(page) == ['no heading has "Exercise"']


def test_a_solution_asks_nothing_and_needs_no_badge(page: Page) -> None:
    page.path = page.path.parent / "solutions" / "05_toy.ipynb"
    page.raw = finish([markdown("# Solved"), code(setup_cell.text(address()), tags=("setup",))])
    write(page)
    assert hygiene.complaints(page) == []
