"""Make of a notebook what its page needs: outputs, explorers, predictions.

The outputs are those that the notebook stores, and of its code only that is run which what lives on the page needs:
see tools/needed.py. Where pictures and sentences would not agree then, as what is measured differs in each run, all of
it is run as a reader would, and shown. A run is kept by a hash of all that it depends on: a change of text runs nothing
again.
"""

from __future__ import annotations

import copy
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from tools.execute import FAILURES, Client, execute
from tools.kept import WIDGET, is_measured, sources
from tools.needed import needed_sources, only_defines
from tools.project import ROOT
from tools.save import tidy
from tools.site.asked import NUMBER, instructions
from tools.site.guesses import asked as predictions_in
from tools.site.keys import digest, key
from tools.site.named import around
from tools.site.stops import LIMIT

CELL_SECONDS = 300
#: What makes a run, of this package: how its pages look is written elsewhere, and runs nothing again.
OURS = [Path(__file__), Path(__file__).with_name("capture.py"), ROOT / "tools" / "save.py"]


@dataclass(frozen=True)
class Executed:
    """A notebook with its outputs, and by the id of a cell what lives on its page.

    atlases: HTML, one for each explorer that the cell shows; the outputs that they stand for have their number in
    `metadata.atlas`. guesses: what guesses.prediction_fragment and guess.js need, one for each prediction that the
    cell checks; the outputs that they stand for ("No guess yet …") have their number in `metadata.guess`. settings: how
    many frames the atlases have in all. kept: stops that are there only because the text names them, in words.
    """

    notebook: dict[str, Any]
    atlases: dict[str, list[str]]
    guesses: dict[str, list[dict[str, Any]]]
    settings: int = 0
    kept: Sequence[str] = ()


class Quiet(Client):
    """Runs the first and the last cell, which are ours, without a trace in the numbers of the reader's cells."""

    async def async_execute_cell(
        self, cell: Any, cell_index: int, execution_count: int | None = None, store_history: bool = True
    ) -> Any:
        """Run a cell; ours may take as long as it needs."""
        ours = cell.get("id", "").startswith("site-")
        self.timeout = None if ours else CELL_SECONDS
        return await super().async_execute_cell(cell, cell_index, store_history=not ours)


def executed(path: Path, *, cache: Path, limit: int = LIMIT, sample: int | None = None) -> Executed:
    """Return what a page needs of a notebook; run what it takes if nothing in the cache fits.

    limit: an explorer with more settings gets named stops. sample: so many frames of each explorer, for tests.
    Raises what tools.execute.execute raises when a cell fails, and what capture.finish does.
    """
    notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    texts = texts_of(notebook.cells)
    # Another setting may be named, another slider spoken of.
    asked = [(re.findall(NUMBER, text), instructions(text)) for text in texts.values()]
    name = digest(key([cell.source for cell in code], OURS), [cell.id for cell in code], asked, limit, sample)
    kept = cache / "runs" / f"{path.stem}-{name}.json"
    found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    if not found or not with_outputs(notebook, found):
        found = run_what_it_takes(notebook, path, texts=texts, limit=limit, sample=sample)
        kept.parent.mkdir(parents=True, exist_ok=True)
        beside = kept.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
        beside.replace(kept)
        # As text it has forgotten what only a run knows, and is the same now and the next time.
        with_outputs(notebook, json.loads(kept.read_text(encoding="utf-8")))
    known = {name: found[name] for name in ("atlases", "guesses", "settings", "kept")}
    return Executed(json.loads(json.dumps(notebook)), **known)


def with_outputs(notebook: Any, found: Mapping[str, Any]) -> bool:
    """Give a notebook the outputs of a run, or number what lives in its own; tell whether what was found fits them."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):
        if found["outputs"]:
            cell["outputs"] = found["outputs"][cell.id]
        cell["execution_count"] = number
        pictures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
        for place, words in enumerate(found["words"].get(cell.id, ()) if not found["outputs"] else ()):
            same = [picture for picture in pictures if picture["data"].get("text/plain") == words]
            if not same:
                return False
            same[0]["metadata"]["atlas"] = place
            pictures.remove(same[0])
    if not found["outputs"]:
        number_predictions(notebook, found["guesses"])
    return True


def run_what_it_takes(notebook: Any, path: Path, **options: Any) -> dict[str, Any]:
    """Run what lives in a notebook and what that needs, or all of it where that is not enough."""
    parts = parts_that_do(notebook)
    if parts is not None:
        with suppress(*FAILURES):
            return run_notebook(notebook, path, parts=parts, **options)
    return run_notebook(notebook, path, **options)


def parts_that_do(notebook: Any) -> dict[str, str] | None:
    """Return the code by cell that must run for what lives; None where all must, as outputs are old or measured."""
    if notebook.metadata.get("idt", {}).get("sources") != sources(notebook):
        return None
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    always = [place for place, cell in enumerate(code) if "setup" in cell.metadata.get("tags", [])]
    parts = needed_sources([cell.source for cell in code], is_live, always)
    measured = [place for place, text in parts.items() if is_measured(code[place]) and not only_defines(text)]
    if set(measured) - set(always) or any(is_live(code[place].source) for place in measured):
        return None
    return {code[place].id: text for place, text in parts.items()}


def is_live(source: str) -> bool:
    """Tell whether code shows an explorer or asks for a prediction."""
    return "explore(" in source or bool(predictions_in(source))


def texts_of(cells: Sequence[Any]) -> dict[str, str]:
    """Return what a notebook says about its explorers, by the id of the cell that shows them."""
    places = [place for place, cell in enumerate(cells) if cell.cell_type == "code" and "explore(" in cell.source]
    return {cells[place].id: around(cells, place) for place in places}


def run_notebook(
    notebook: Any,
    path: Path,
    *,
    texts: Mapping[str, str],
    limit: int,
    sample: int | None,
    parts: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a notebook in a kernel of its own; return outputs by cell, atlases and guesses.

    parts: run these pieces of its cells only; then there are no outputs, and explorers must start as is stored.
    """
    fresh = copy.deepcopy(notebook)
    code = [cell for cell in fresh.cells if cell.cell_type == "code"]
    for cell in code:
        cell["outputs"] = []
        cell["execution_count"] = None
        if parts is not None:
            cell["source"] = parts.get(cell.id, "")
    stored = None if parts is None else {cell.id: words_of(cell) for cell in notebook.cells if cell.id in parts}
    ids = [cell.id for cell in code if cell.source.strip()]  # nbclient runs no empty cell
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        options = (str(file), dict(texts), limit, sample, path.stem, stored)
        begin = f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'notebooks')]!r}\n__import__('tools.site.capture')"
        begin += f".site.capture.begin(get_ipython(), {ids}, still={parts is not None}); del sys"
        finish = f"__import__('tools.site.capture').site.capture.finish(*{options!r})"
        ends = [nbformat.v4.new_code_cell(text, id=f"site-{k}") for k, text in enumerate((begin, finish))]
        fresh.cells = [ends[0], *fresh.cells, ends[1]]
        execute(fresh, path.parent, CELL_SECONDS, client=Quiet)
        fresh.cells = fresh.cells[1:-1]
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if parts is not None:
        return {"outputs": {}, **found}
    number_what_lives(fresh, found["guesses"])
    tidy(fresh, notebook, fresh=True)
    return {"outputs": {cell.id: cell.outputs for cell in code}, **found}


def words_of(cell: Any) -> list[str]:
    """Return the words of the pictures that a cell stores."""
    shown = [output["data"] for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    return [data.get("text/plain", "") for data in shown]


def number_what_lives(notebook: Any, guesses: Mapping[str, Any]) -> None:
    """Write into each output that an atlas or a prediction stands for, which of its cell's it is."""
    for cell in notebook.cells:
        shown = [output for output in cell.get("outputs", []) if WIDGET in output.get("data", {})]
        for number, output in enumerate(shown):
            output["metadata"]["atlas"] = number
    number_predictions(notebook, guesses)


def number_predictions(notebook: Any, guesses: Mapping[str, Any]) -> None:
    """Write into each output that a prediction stands for, which of its cell's it is."""
    for cell in notebook.cells:
        said = [output for output in cell.get("outputs", []) if "text/html" in output.get("data", {})]
        for number, output in enumerate(said[-len(guesses[cell.id]) :] if cell.id in guesses else ()):
            output["metadata"]["guess"] = number
