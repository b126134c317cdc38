"""Run notebooks and save their outputs, so that the file changes only where its content did.

    make save NB=03            a number, a stem or a path; NB=all for every notebook and solution
    make save NB=03 FRESH=1    measure again

What differs in every run (execution times, widget ids, memory addresses) is not saved. A cell whose first line is
`# NBVAL_IGNORE_OUTPUT` shows measured numbers: as long as neither its code has changed nor what that stands on, its
stored output stays, so that `git diff` shows what was changed and no noise of another run; FRESH=1 replaces it. When a
run fails, the file stays as it was.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat

from tools import hygiene
from tools.execute import FAILURES, execute
from tools.kept import KEPT_IN_CELL, KEPT_IN_NOTEBOOK, KERNELSPEC, LANGUAGE, WIDGET, is_measured, what_was_run
from tools.project import ROOT, find

SANITIZE = ROOT / "tests" / "notebooks" / "sanitize.cfg"


def sanitizers() -> list[tuple[re.Pattern[str], str]]:
    """Read the patterns that nbval applies before it compares."""
    pairs = re.findall(r"(?m)^regex: (.*)\nreplace: (.*)$", SANITIZE.read_text())
    return [(re.compile(pattern), replacement) for pattern, replacement in pairs]


def sanitized(value: Any, patterns: list[tuple[re.Pattern[str], str]]) -> Any:
    """Return text as nbval compares it; other values as they are."""
    if isinstance(value, list):
        return [sanitized(item, patterns) for item in value]
    if isinstance(value, str):
        for pattern, replacement in patterns:
            value = pattern.sub(replacement, value)
    return value


def tidy_outputs(outputs: list[Any]) -> list[Any]:
    """Return a cell's outputs without what only a running kernel understands, and with its chunks of text joined.

    Raises ValueError for a widget with no still picture beside it: a page without a kernel would show nothing.
    """
    tidied: list[Any] = []
    for output in outputs:
        if WIDGET in output.get("data", {}):
            del output["data"][WIDGET]
            output.get("metadata", {}).pop(WIDGET, None)
            if not any(kind.startswith("image/") or kind == "text/html" for kind in output["data"]):
                raise ValueError("a widget without a still picture: show it with lib.show.explore")
        if output.output_type == "error":
            output["traceback"] = [without_paths(line) for line in output["traceback"]]
        last = tidied[-1] if tidied else None
        if last and output.output_type == "stream" == last.output_type and output.name == last.name:
            last["text"] += output.text  # how the kernel cuts its text into messages is a matter of timing
        else:
            tidied.append(output)
    return tidied


def without_paths(text: str) -> str:
    """Return a line of a traceback with no folder of this machine in it."""
    text = text.replace(f"{ROOT}{os.sep}", "")
    return re.sub(r"[^\s\"'()]*/(?=site-packages/|lib/python3\.\d+/)", "", text)


def keep_equal_text(old: list[Any], new: list[Any], patterns: list[tuple[re.Pattern[str], str]]) -> None:
    """Put the old text back into `new` wherever only sanitised parts (addresses, ids) differ."""
    for before, after in zip(old, new, strict=False):
        if before.output_type != after.output_type:
            continue
        keep_equal(before, after, ("text", "ename", "evalue", "traceback"), patterns)
        # a picture holds no address, and a pattern takes minutes for so long a word
        texts = [key for key in after.get("data", {}) if key != "image/png"]
        keep_equal(before.get("data", {}), after.get("data", {}), texts, patterns)


def keep_equal(source: Any, target: Any, keys: Iterable[str], patterns: list[tuple[re.Pattern[str], str]]) -> None:
    """Put the values of `source` into `target` that are the same there as nbval compares them."""
    for key in keys:
        if key not in source or key not in target:
            continue
        if sanitized(source[key], patterns) == sanitized(target[key], patterns):
            target[key] = source[key]


def tidy(notebook: Any, stored: Any, fresh: bool) -> int:
    """Make an executed notebook ready to be written over `stored`; return how many measured cells kept their output."""
    patterns = sanitizers()
    kept = 0
    now = what_was_run(notebook)
    before = stored.metadata.get("idt", {}).get("measured", {})
    by_id = {cell.get("id"): cell for cell in stored.cells if cell.cell_type == "code"}
    for number, cell in enumerate(notebook.cells):
        cell["metadata"] = {key: value for key, value in cell.metadata.items() if key in KEPT_IN_CELL}
        if cell.cell_type != "code":
            continue
        try:
            cell["outputs"] = tidy_outputs(cell.outputs)
        except ValueError as error:
            raise ValueError(f"cell {number} shows {error}") from None
        old = by_id.get(cell.get("id"))
        if old is None:
            continue
        unchanged = is_measured(cell) and before.get(cell.id) == now["measured"][cell.id]
        if unchanged and not fresh and old.execution_count is not None:
            cell["outputs"] = tidy_outputs(copy.deepcopy(old.outputs))
            kept = kept + 1
        elif old.source == cell.source:
            keep_equal_text(old.outputs, cell.outputs, patterns)
    kept_of_it = {key: value for key, value in notebook.metadata.items() if key in KEPT_IN_NOTEBOOK}
    ours = {"kernelspec": KERNELSPEC, "language_info": LANGUAGE, "idt": now}
    notebook["metadata"] = {**kept_of_it, **ours}
    notebook["nbformat"] = 4
    notebook["nbformat_minor"] = 5
    return kept


def write_notebook(notebook: Any, path: Path) -> None:
    """Write a notebook whole or not at all: first beside its place, then moved into it."""
    nbformat.validate(notebook)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".tmp", delete=False) as file:
        try:
            file.write(nbformat.writes(notebook, version=nbformat.NO_CONVERT).rstrip("\n") + "\n")
            file.flush()
            os.fsync(file.fileno())
            if path.exists():
                os.chmod(file.name, path.stat().st_mode & 0o777)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def give_ids(notebook: Any) -> None:
    """Give an id to cells that have none (older files); ids that are there never change."""
    taken = {cell["id"] for cell in notebook.cells if cell.get("id")}
    free = (f"cell-{number}" for number in itertools.count() if f"cell-{number}" not in taken)
    for cell in notebook.cells:
        if not cell.get("id"):
            cell["id"] = next(free)


def changes(old: Any, new: Any) -> list[str]:
    """Describe what saving changes, cell by cell."""
    said = []
    before = {cell.get("id"): cell for cell in old.cells}
    for number, cell in enumerate(new.cells):
        if cell.cell_type != "code":
            continue
        previous = before.get(cell["id"])
        if previous is None or previous.get("execution_count") is None:
            said += [f"cell {number}: first output"] if cell.outputs else []
        elif previous.outputs != cell.outputs:
            kinds = sorted({kind for output in cell.outputs for kind in mime_types(output)})
            differ = "its pictures" if texts(previous) == texts(cell) else "its output"
            said.append(f"cell {number}: {differ} changed ({', '.join(kinds) or 'now nothing'})")
    return said or ["its code or metadata changed"]


def mime_types(output: Any) -> list[str]:
    """Return the kinds of content in one output."""
    return list(output.data) if "data" in output else [output.get("name", output.output_type)]


def texts(cell: Any) -> list[Any]:
    """Return a cell's outputs without their pictures."""
    plain = copy.deepcopy(cell.outputs)
    for output in plain:
        for kind in [kind for kind in output.get("data", {}) if kind.startswith("image/")]:
            del output["data"][kind]
    return list(plain)


def save(path: Path, fresh: bool = False, cell_seconds: float = 120) -> str:
    """Run one notebook and save it; return a report of a few lines.

    Raises one of FAILURES when a cell fails, ValueError when it shows what can't be stored (see tidy_outputs).
    """
    text = path.read_text(encoding="utf-8")
    stored = nbformat.reads(text, as_version=4)
    give_ids(stored)
    notebook = copy.deepcopy(stored)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell["outputs"] = []
            cell["execution_count"] = None
    start = time.monotonic()
    execute(notebook, path.parent, cell_seconds)
    seconds = time.monotonic() - start
    kept = tidy(notebook, stored, fresh)
    write_notebook(notebook, path)
    name = path.name if path.parent.name != "solutions" else f"solutions/{path.name}"
    report = f"{name}: {seconds:.0f} s, "
    if path.read_text(encoding="utf-8") == text:
        report += "nothing changed"
    else:
        report += "\n    ".join(["saved", *changes(stored, notebook)])
    if kept:
        report += f"\n    {kept} measured outputs kept as they were (FRESH=1 measures again)"
    return report


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NB", help="a number, a stem, a path, or all")
    parser.add_argument("--fresh", action="store_true", help="replace measured outputs too")
    parser.add_argument("--cell-seconds", type=float, default=120)
    options = parser.parse_args()
    if not options.names:
        parser.error("which notebook? make save NB=03, or NB=all")
    failed = []
    for path in find(options.names):
        try:
            print(save(path, options.fresh, options.cell_seconds), flush=True)
            if ROOT in path.parents:
                for complaint in hygiene.complaints(hygiene.StoredNotebook.read(path)):
                    print(f"    but {complaint}", flush=True)
        except (*FAILURES, ValueError) as error:
            failed.append(path.name)
            print(f"{path.name}: NOT saved, the file is as it was.\n{error}", flush=True)
    if failed:
        print(f"Failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
