"""Every notebook obeys every rule of tools/hygiene.py, and every rule notices the fault that it is there for."""

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import course
from tools import hygiene, setup_cell
from tools.hygiene import StoredNotebook
from tools.kept import KERNELSPEC, LANGUAGE, WIDGET
from tools.project import ROOT, address, notebooks

PICTURE = {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo=", "text/plain": "a bar of height 3"},
    "metadata": {"image/png": {"alt": "a bar of height 3"}}}  # fmt: skip
ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["ValueError: no"]}


@pytest.mark.parametrize("rule", hygiene.RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: str(path.relative_to(ROOT / "notebooks")))
def test_every_notebook_obeys(path: Path, rule: hygiene.Rule) -> None:
    assert rule(StoredNotebook.read(path)) == []


# From here on: a notebook without fault, and what each rule says when one is planted.


def markdown(source: str) -> dict:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def code(source: str, *outputs: dict, tags: tuple[str, ...] = ()) -> dict:
    metadata = {"tags": list(tags)} if tags else {}
    if "setup" in tags:
        metadata["jupyter"] = {"source_hidden": True}
    return {"cell_type": "code", "metadata": metadata, "source": source, "outputs": copy.deepcopy(list(outputs))}


BEFORE = course.Chapter("04_before", "Before", course.START, (), "before")
TOY = course.Chapter("05_toy", "A toy", course.DATA, (4,), "toy")
TABLE = """| You will | Needs | Previous / next |
|---|---|---|
| play | [04](04_before.ipynb); [03](03_early.ipynb) for a part | [04 · Before](04_before.ipynb) / the end |"""
TITLE, SETUP, GUESS, FIGURE, BREAK, EXERCISE = range(6)
ENCORE = ("## Encore: A", "import a\nprint(a)")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoredNotebook:
    monkeypatch.setattr(course, "COURSE", (BEFORE, TOY))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "notebooks" / "solutions").mkdir(parents=True)
    path = tmp_path / "notebooks" / "05_toy.ipynb"
    badge = f"[![Open in Colab](badge.svg)]({address().badge(path, tmp_path)})"
    for other in ("03_early", BEFORE.stem):
        (path.parent / f"{other}.ipynb").touch()
    links = "See [below](#Break-it), [the project](../pyproject.toml)."
    cells = [
        markdown(f"# 05 · A toy\n\n{badge}\n\n{TABLE}\n\n{links}"),
        code(setup_cell.text(address()), tags=("setup",)),
        code("my_guess = None"),
        code("figure", PICTURE),
        markdown("## Break it\n\n`x[0](1)` is code, and no link."),
        markdown("### Exercise 1\n\n<details><summary>Hint</summary>Think.</details>"),
    ]
    (tmp_path / "notebooks" / "badge.svg").touch()
    return StoredNotebook(path, finish(cells), tmp_path)


def finish(cells: list[dict]) -> dict:
    """Number ids and prompts, and note the sources, as `make save` does."""
    count = 0
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
        if cell["cell_type"] == "code":
            cell["execution_count"] = count = count + 1
    metadata = {"kernelspec": KERNELSPEC, "language_info": LANGUAGE}
    raw = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}
    return {**raw, "metadata": {**metadata, "idt": hygiene.run_now(raw)}}


def write(page: StoredNotebook) -> None:
    page.path.write_text(json.dumps(page.raw))


Plant = Callable[[StoredNotebook], object]


def cell(number: int, **fields: object) -> Plant:
    return lambda page: page.raw["cells"][number].update(copy.deepcopy(fields))


def more(number: int, source: str) -> Plant:
    return lambda page: page.raw["cells"][number].update(source=page.raw["cells"][number]["source"] + source)


def then(*sources: str) -> Plant:
    """Add cells: headings, and behind each the code below it."""
    cells = [markdown(source) if source.startswith("#") else code(source) for source in sources]
    return lambda page: page.raw["cells"].extend(cells)


def shown(**fields: object) -> Plant:
    return lambda page: page.raw["cells"][FIGURE]["outputs"][0].update(copy.deepcopy(fields))


def data(kind: str, value: object) -> Plant:
    return lambda page: page.raw["cells"][FIGURE]["outputs"][0]["data"].update({kind: value})


def notebook(**fields: object) -> Plant:
    return lambda page: page.raw["metadata"].update(fields)


def another_badge(page: StoredNotebook) -> None:
    page.raw["cells"][TITLE]["source"] = page.raw["cells"][TITLE]["source"].replace("05_toy", "06_copied")


def first_chapter(page: StoredNotebook) -> None:
    page.path = page.path.with_name("00_start_here.ipynb")


def measured_before(page: StoredNotebook) -> None:
    """A merge noted the new code, but what a measured cell stands on had been another one when it ran."""
    page.raw["metadata"]["idt"]["measured"] = {page.raw["cells"][FIGURE]["id"]: "another"}


def a_solution(page: StoredNotebook) -> None:
    page.path = page.path.parent / "solutions" / page.path.name


def instead(before: str, after: str) -> Plant:
    return lambda page: page.raw["cells"][TITLE].update(
        source=page.raw["cells"][TITLE]["source"].replace(before, after)
    )


def another_number(page: StoredNotebook) -> None:
    page.path = page.path.with_name("07_toy.ipynb")


def path_of_a_machine(path: str) -> list[Plant]:
    """Plant it everywhere, one after another: source, output, page, traceback, metadata."""
    text = f'read "{path}" once'
    return [
        cell(FIGURE, source=text),
        cell(FIGURE, outputs=[{"output_type": "stream", "name": "stdout", "text": ["first\n", text]}]),
        data("text/html", f"<b>{path}</b>"),
        cell(FIGURE, outputs=[ERROR | {"traceback": [f"File {path}:3"]}]),
        cell(FIGURE, metadata={"note": path}),
    ]


RAISES = {"tags": ["raises-exception"]}
#: A rule, what is planted, and all that the rule says then; … stands for any text.
FAULTS: list[tuple[hygiene.Rule, list[Plant], list[str]]] = [
    (hygiene.has_unique_ids, [lambda page: page.raw.update(nbformat_minor=4)], ["nbformat 4.4 is older…"]),
    (hygiene.has_unique_ids, [cell(FIGURE, id="cell-0")], ["two cells have the id 'cell-0'"]),
    (hygiene.has_unique_ids, [cell(FIGURE, id="")], ["cell 3 has no id"]),
    *(
        (hygiene.is_executed_in_order, [cell(GUESS, execution_count=prompt)], [f"cell 2 has prompt {prompt}, not 2…"])
        for prompt in (None, 1, 7)
    ),
    (hygiene.is_executed_in_order, [cell(EXERCISE, **code(" \n"), execution_count=None)], ["cell 5 is empty"]),
    (hygiene.is_of_python3, [notebook(kernelspec={"name": "my-env"})], ["…my-env…"]),
    (hygiene.is_of_python3, [notebook(language_info={**LANGUAGE, "version": "3.12.1"})], ["…3.12.1…"]),
    (hygiene.has_no_widget_state, [notebook(widgets={})], ["the notebook's metadata holds widgets"]),
    (hygiene.has_no_widget_state, [data(WIDGET, {"model_id": "0"})], ["cell 3 stores a widget"]),
    *(
        (hygiene.has_no_editor_metadata, [cell(FIGURE, metadata={key: True})], [f"cell 3 has metadata ['{key}']"])
        for key in ("execution", "scrolled", "collapsed", "ExecuteTime")
    ),
    (
        hygiene.has_no_stored_error,
        [cell(FIGURE, outputs=[ERROR])],
        ["cell 3 stores an error and is not tagged raises-exception"],
    ),
    (hygiene.has_no_stored_error, [cell(FIGURE, outputs=[ERROR], metadata=RAISES)], []),
    (
        hygiene.has_no_stored_error,
        [cell(FIGURE, outputs=[], metadata=RAISES)],
        ["cell 3 is tagged raises-exception and raised nothing"],
    ),
    (hygiene.has_no_stored_error, [data("text/plain", "✗ share: 3")], []),  # a reader's
    (hygiene.has_no_stored_error, [data("text/plain", "✗ share: 3"), a_solution], ["…does not pass its check"]),
    (hygiene.is_saved_from_these_sources, [cell(GUESS, source="my_guess = 3")], ["…changed after…"]),
    (hygiene.is_saved_from_these_sources, [measured_before], ["…changed after…"]),
    *(
        (hygiene.is_compared, [cell(FIGURE, source=source)], ["cell 3 is marked NBVAL_…"])
        for source in ("# NBVAL_SKIP\nx = 1", "x = 1\n# NBVAL_IGNORE_OUTPUT", "# NBVAL_RAISES_EXCEPTION\n1 / 0")
    ),
    (hygiene.is_compared, [cell(FIGURE, metadata={"tags": ["nbval-skip"]})], ["cell 3 is tagged nbval-skip"]),
    *(
        (hygiene.has_no_absolute_path, [plant], ["cell 3 names the path …"])
        for path in ("/home/me/data", "/tmp/x.png", "/work/main/lib", r"C:\Users", "/root/.cache")
        for plant in path_of_a_machine(path)
    ),
    *(
        (hygiene.has_no_absolute_path, [cell(FIGURE, source=text)], [])
        for text in ("https://example.org/home/x", "a/tmp/b", "base64,abc/tmp/abc=", "../home/x", "1/work")
    ),
    (
        hygiene.has_alt_text,
        [shown(metadata={"image/png": {"alt": "another"}})],
        ["…an alt text that differs from its text/plain…"],
    ),
    (hygiene.has_alt_text, [shown(metadata={})], ["cell 3 shows a picture without alt text"]),
    (hygiene.has_alt_text, [cell(BREAK, source="![](badge.svg)")], ["cell 4: ![](badge.svg) has no alt text"]),
    *(
        (hygiene.has_alt_text, [data("text/html", html), more(BREAK, html)], ["cell 3: <…", "cell 4: <…"] * faulty)
        for html, faulty in [
            ("<img src='a.png'>", True),
            ("<img alt='' src='a.png'>", True),
            ("<img alt='a bar' src='a.png'>", False),
            ("<svg><path/></svg>", True),
            ("<svg><title>a bar</title></svg><svg></svg>", True),
            ("<svg aria-label='a bar'></svg>", False),
        ]
    ),
    (hygiene.has_short_cells, [cell(FIGURE, source="x = 1\n" * 25)], []),
    (hygiene.has_short_cells, [cell(FIGURE, source="x = 1\n" * 26)], ["cell 3 has 26 lines of code, more than 25"]),
    (hygiene.has_short_cells, [cell(FIGURE, source="def job_1():\n" + "    x = 1\n" * 59)], []),
    (
        hygiene.has_short_cells,
        [cell(FIGURE, source="def job_1():\n" + "    x = 1\n" * 60)],
        ["cell 3 has 61 lines of code, more than 60"],
    ),
    (
        hygiene.has_text_that_renders,
        [cell(TITLE, source="<code>def __iter__</code>, `__iter__`"), cell(BREAK, source=r"$\text{num\_samples}$")],
        ["cell 0: <code>def __iter__ …", r"cell 4: \text{num\_ …"],
    ),
    (hygiene.is_light, [data("image/png", "x" * hygiene.HEAVIEST)], ["…KB, more than 700: make save"]),
    (hygiene.begins_with_the_setup_cell, [more(SETUP, "\nprint('mine')")], ["…differs…"]),
    (hygiene.begins_with_the_setup_cell, [cell(SETUP, metadata={})], ["…first code cell…"]),
    (
        hygiene.begins_with_the_setup_cell,
        [cell(SETUP, metadata={}), cell(GUESS, metadata={"tags": ["setup"]})],
        ["…tagged `setup`: [2]…"],
    ),
    *(
        (hygiene.has_working_links, [more(BREAK, link)], [f"…{said}…"] if said else [])
        for link, said in [
            ("[x](06_gone.ipynb)", "leads nowhere"),
            ('<a href="../lib/gone.py">x</a>', "leads nowhere"),
            ("[x](05_toy.ipynb#Gone)", "heading that is not there"),
            ("[x](#break)", "heading that is not there"),
            ("[x](/notebooks/05_toy.ipynb)", "absolute"),
            ("[x][1]\n\n[1]: gone.md", "leads nowhere"),
            ("[x](#break-it) [y](05_toy.ipynb#Break-it)", ""),
            ("[x](../pyproject.toml) [y](https://example.org/gone)", ""),
        ]
    ),
    (hygiene.has_the_projects_badge, [another_badge], ["…06_copied.ipynb, not to…", "…has no Colab badge…"]),
    (hygiene.is_formatted, [cell(FIGURE, source="x  =  'a'")], ["not formatted…"]),
    (hygiene.has_a_title, [cell(BREAK, source="# Another")], ["2 titles…"]),
    (hygiene.has_a_title, [cell(TITLE, source="A toy")], ["the first cell does not begin with a title, `# …`"]),
    (hygiene.is_as_the_map_says, [another_number], ["the map has no 07_toy: give it an entry…"]),
    (hygiene.is_as_the_map_says, [instead("A toy", "A game")], ["the title is '05 · A game', on the map '05 · A toy'"]),
    (hygiene.is_as_the_map_says, [instead("A toy", "A game"), a_solution], ["the title '05 · A game' does not name…"]),
    (hygiene.is_as_the_map_says, [instead("[04](04_", "[03](03_")], ["…needs (3,) before…, the map (4,)"]),
    (hygiene.is_as_the_map_says, [instead("; [03]", ", [03]")], ["…needs (3, 4) before…"]),
    (hygiene.is_as_the_map_says, [instead("/ the end", "/ [06](06.ipynb)")], ["…to its neighbours, [04…: make stamp"]),
    (hygiene.is_as_the_map_says, [instead(TABLE, "")], ["…needs ()…", "…to its neighbours…"]),
    (hygiene.asks_for_a_prediction, [cell(GUESS, source="guess = 3")], ["…my_guess…"]),
    (hygiene.breaks_something, [cell(BREAK, source="Break it")], ["…Break it…"]),
    (hygiene.breaks_something, [cell(BREAK, source="Break it"), first_chapter], []),
    (hygiene.has_exercises_with_hints, [more(EXERCISE, "\n\n### Exercise 2\n")], ["2 exercises have 1 folded hints…"]),
    (hygiene.has_exercises_with_hints, [cell(EXERCISE, source="nothing to do")], ['no heading has "Exercise"']),
    (hygiene.needs_no_encore, [then(*ENCORE, "## 3", "print(a)")], ["cell 9 needs a, which only 'Encore: A' gives"]),
    (hygiene.needs_no_encore, [then(*ENCORE, "## Encore: B", "def f():\n    return a")], ["…needs a…"]),
    (hygiene.needs_no_encore, [then("## Exercise 2 (encore)", "a = 1", "## Encore, after exercise 2", "print(a)")], []),
    (
        hygiene.needs_no_encore,
        [then("## Exercise 21 (encore)", "a = 1", "## Encore, after exercise 2", "print(a)")],
        ["…needs a…"],
    ),
    (hygiene.needs_no_encore, [then(*ENCORE, "### Exercise 2", "print(a)", "## 3", "a = 2", "print(a)")], []),
    (hygiene.needs_no_encore, [then(*ENCORE, "## 3", "def f(a):\n    return [a for a in b]")], []),
]


@pytest.mark.parametrize(("rule", "plants", "said"), FAULTS, ids=[f"{k}_{f[0].__name__}" for k, f in enumerate(FAULTS)])
def test_a_planted_fault_is_noticed(
    page: StoredNotebook, rule: hygiene.Rule, plants: list[Plant], said: list[str]
) -> None:
    for plant in plants:
        plant(page)
    write(page)
    patterns = [re.escape(text).replace("…", "(?s:.*)") for text in said]
    complaints = rule(page)
    assert len(complaints) == len(said), complaints
    for complaint, pattern in zip(complaints, patterns, strict=True):
        assert re.fullmatch(pattern, complaint)


def test_every_rule_has_a_planted_fault_and_all_notebooks_together_are_light() -> None:
    assert sum(path.stat().st_size for path in notebooks()) <= 8e6
    assert {rule for rule, _, said in FAULTS if said} == set(hygiene.RULES)


def test_the_notebook_without_fault_and_its_solution_have_no_complaint(page: StoredNotebook) -> None:
    write(page)
    assert hygiene.complaints(page) == []
    page.path = page.path.parent / "solutions" / "05_toy.ipynb"  # asks nothing, and needs no badge
    page.raw = finish([markdown("# 05 · A toy, solved"), code(setup_cell.text(address()), tags=("setup",))])
    write(page)
    assert hygiene.complaints(page) == []
