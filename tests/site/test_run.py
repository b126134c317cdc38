"""A notebook runs once for its page; its outputs, explorers and predictions come from that run."""

import json
from pathlib import Path

import nbformat
import pytest

from support.kit.guess import Guess
from tools.kept import KERNELSPEC
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
