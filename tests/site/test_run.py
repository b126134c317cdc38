"""A notebook runs once for its page; its outputs, explorers and predictions come from that run."""

import copy
import json
from pathlib import Path

import nbformat
import pytest

from support.kit.guess import Guess
from tools.kept import KERNELSPEC, MEASURED, sources
from tools.site import capture, run

CELLS = [
    "from support.setup import setup; setup()",
    "",
    "from support.kit.exact import exact_number\n"
    "guess_it = exact_number('it', lambda: 3)\nmy_guess = None\nguess_it(my_guess)",
    """
from lib.show.explore import explore, whole
from lib.show.style import describe, new_figure

def draw(n):
    return describe(new_figure(2, 1)[0], f"{n} bars")

explore(draw, n=whole(1, 9, 3, "bars"))""",
    "print('the end')",
]


def write(path: Path, text: str, last: str = CELLS[-1]) -> Path:
    cells = [nbformat.v4.new_code_cell(source.strip(), id=f"c{k}") for k, source in enumerate([*CELLS[:-1], last])]
    cells.insert(0, nbformat.v4.new_markdown_cell(text, id="words"))
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC}), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def executed(folder):
    return run.executed(write(folder / "08_small.ipynb", "before"), cache=folder / "cache", sample=2)


def test_a_run_gives_outputs_in_the_order_of_a_reader_and_marks_those_that_live(executed):
    cells = {cell["id"]: cell for cell in executed.notebook["cells"]}
    assert [cells[f"c{k}"]["execution_count"] for k in range(5)] == [1, 2, 3, 4, 5]
    (guess,), (figure,), (end,) = (cells[f"c{k}"]["outputs"] for k in (2, 3, 4))
    assert guess["metadata"]["guess"] == 0
    assert "No guess yet for it" in guess["data"]["text/html"]
    assert figure["metadata"]["atlas"] == 0
    assert figure["metadata"]["image/png"]["alt"] == "3 bars"
    assert end["text"] == "the end\n"
    assert "widget-view" not in json.dumps(executed.notebook)
    (atlas,) = executed.atlases["c3"]
    (prediction,) = executed.guesses["c2"]
    assert figure["data"]["image/png"] in atlas
    assert 'data-settings="2"' in atlas
    assert "Here 2 of 9 settings" in atlas
    assert prediction["what"] == "it"
    assert list(executed.atlases) + list(executed.guesses) == ["c3", "c2"]


def test_a_change_of_text_runs_nothing_and_a_change_of_code_runs_all(executed, folder, monkeypatch):
    monkeypatch.setattr(run, "run_notebook", lambda *arguments, **options: 1 / 0)
    again = run.executed(write(folder / "08_small.ipynb", "after"), cache=folder / "cache", sample=2)
    assert again.atlases == executed.atlases
    assert again.guesses == executed.guesses
    assert again.notebook["cells"][0]["source"] == "after"
    assert again.notebook["cells"][1:] == executed.notebook["cells"][1:]
    for path, sample in (
        (write(folder / "08_small.ipynb", "after", "print('an end')"), 2),
        (folder / "08_small.ipynb", 3),
    ):
        with pytest.raises(ZeroDivisionError):
            run.executed(path, cache=folder / "cache", sample=sample)


def test_another_setting_that_the_text_names_is_another_run(executed, folder, monkeypatch):
    monkeypatch.setattr(run, "run_notebook", lambda *arguments, **options: 1 / 0)
    path = write(folder / "08_small.ipynb", "before")
    assert run.executed(path, cache=folder / "cache", sample=2).settings == executed.settings == 2
    notebook = nbformat.read(path, as_version=4)
    place = [cell.id for cell in notebook.cells].index("c3")
    notebook.cells.insert(place + 1, nbformat.v4.new_markdown_cell("Now try 7 bars.", id="asks"))
    nbformat.write(notebook, path)
    with pytest.raises(ZeroDivisionError):
        run.executed(path, cache=folder / "cache", sample=2)


def test_a_prediction_that_cannot_be_exported_stops_the_build_and_is_no_output_of_a_cell(monkeypatch):
    monkeypatch.setattr(capture, "failed", [])
    capture._ask("guess_it(None)", {"guess_it": Guess("it", lambda: 3, read=lambda said: 1 / 0 if said == 7 else said)})
    with pytest.raises(ValueError, match="but 7 raises ZeroDivisionError"):
        capture.finish("nowhere", {}, 1, None, "08_small")


@pytest.fixture(scope="module")
def stored(executed):
    """The notebook with the outputs of its run, as they are saved."""
    notebook = nbformat.from_dict(copy.deepcopy(executed.notebook))
    notebook.metadata["idt"] = {"sources": sources(notebook)}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            output.get("metadata", {}).pop("atlas", None)
            output.get("metadata", {}).pop("guess", None)
    return notebook


def test_of_a_stored_notebook_only_what_lives_is_run_and_its_own_outputs_are_shown(stored, executed, folder):
    notebook = copy.deepcopy(stored)
    notebook.cells[-1]["source"] = "raise SystemError('this cell measures for minutes')"
    notebook.metadata["idt"]["sources"] = sources(notebook)
    path = folder / "08_small.ipynb"
    nbformat.write(notebook, path)
    assert list(run.parts_that_do(notebook)) == ["c2", "c3"]
    fresh = run.executed(path, cache=folder / "kept", sample=2)
    assert fresh.atlases == executed.atlases
    assert fresh.guesses == executed.guesses
    assert fresh.notebook["cells"][-1]["outputs"] == stored.cells[-1]["outputs"]
    marks = [output["metadata"] for cell in fresh.notebook["cells"][3:5] for output in cell["outputs"]]
    assert [mark.get("guess", mark.get("atlas")) for mark in marks] == [0, 0]


@pytest.mark.parametrize("where", ["source", "words"])
@pytest.mark.costly
def test_a_notebook_whose_outputs_are_not_those_of_its_code_is_run_whole(stored, where, monkeypatch, folder):
    notebook = copy.deepcopy(stored)
    if where == "source":
        notebook.cells[-1]["source"] += "  # changed since it was saved"
    else:
        notebook.cells[4]["outputs"][0]["data"]["text/plain"] = "7 bars, as they were measured then"
    runs = []
    whole = run.run_notebook

    def noted(*arguments, parts=None, **options):
        runs.append(parts)
        if parts is None:
            return {"whole": True}
        return whole(*arguments, parts=parts, **options)

    monkeypatch.setattr(run, "run_notebook", noted)
    options = {"texts": {}, "limit": 10, "sample": 2}
    assert run.run_what_it_takes(notebook, folder / "08_small.ipynb", **options) == {"whole": True}
    assert len(runs) == (1 if where == "source" else 2)


def test_what_lives_on_measured_numbers_is_shown_with_them(stored):
    notebook = copy.deepcopy(stored)
    for source, parts in (("seconds = measure()", None), ("def seconds(): ...", ["c0", "c2", "c3"])):
        notebook.cells[1]["source"] = f"{MEASURED}\n{source}"
        notebook.cells[4]["source"] = "explore(lambda n: draw(n, seconds), n=whole(1, 9, 3, 'bars'))"
        notebook.metadata["idt"]["sources"] = sources(notebook)
        found = run.parts_that_do(notebook)
        assert (None if found is None else list(found)) == parts


def test_outputs_that_were_saved_anew_with_other_words_are_not_shown_with_old_frames(stored):
    found = {"outputs": {}, "guesses": {}, "words": {"c3": ["3 bars"]}}
    notebook = copy.deepcopy(stored)
    assert run.with_outputs(notebook, found)
    assert notebook.cells[4]["outputs"][0]["metadata"]["atlas"] == 0
    notebook.cells[4]["outputs"][0]["data"]["text/plain"] = "4 bars"
    assert not run.with_outputs(notebook, found)
