"""What a stored notebook must be, beyond giving the right outputs: a rule is given one and returns complaints.

tests/notebooks/test_hygiene.py runs every rule over every notebook, and plants a fault for each rule; `make save`
prints what they find. nbval compares outputs, and passes a notebook that was never run: these rules see the rest.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat

from support import course
from tools import setup_cell
from tools.encores import needed_from_encores
from tools.kept import KEPT_IN_CELL, KERNELSPEC, LANGUAGE, MEASURED, WIDGET, what_was_run
from tools.project import ROOT, address
from tools.title import columns_of, needed, neighbours_cell

LONGEST_CELL = 25
LONGEST_JOB = 60  # a job of the casebook is a script that the reader repairs: as long as a function may be
HEAVIEST = 700_000  # bytes; GitHub fails to show notebooks of some megabytes, and every save grows the history


@dataclass
class StoredNotebook:
    """One notebook as it lies in its file: nothing repaired, texts joined."""

    path: Path
    raw: dict[str, Any]
    root: Path = ROOT

    @classmethod
    def read(cls, path: Path, root: Path = ROOT) -> StoredNotebook:
        """Read the file."""
        return cls(path, json.loads(path.read_text(encoding="utf-8")), root)

    @property
    def is_solution(self) -> bool:
        """Whether it solves a chapter's exercises (and so asks nothing itself)."""
        return self.path.parent.name == "solutions"

    def cells(self, kind: str) -> Iterator[tuple[int, dict[str, Any], str]]:
        """Yield position, cell and source of every cell of a kind, "code" or "markdown"."""
        for number, cell in enumerate(self.raw["cells"]):
            if cell["cell_type"] == kind:
                yield number, cell, joined(cell["source"])

    def outputs(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield every stored output with the position of its cell."""
        for number, cell, _ in self.cells("code"):
            for output in cell["outputs"]:
                yield number, output

    @property
    def prose(self) -> str:
        """All Markdown cells, one after another."""
        return "\n\n".join(source for _, _, source in self.cells("markdown"))


Rule = Callable[[StoredNotebook], list[str]]


def joined(text: Any) -> str:
    """Return a text that the file may keep as a list of lines."""
    return "".join(text) if isinstance(text, list) else str(text)


def has_unique_ids(page: StoredNotebook) -> list[str]:
    """Require nbformat 4.5 or later, where every cell has an id of its own: diffs stay small."""
    version = (page.raw["nbformat"], page.raw["nbformat_minor"])
    complaints = [] if version >= (4, 5) else [f"nbformat {version[0]}.{version[1]} is older than 4.5"]
    ids = [cell.get("id", "") for cell in page.raw["cells"]]
    complaints += [f"cell {number} has no id" for number, id_ in enumerate(ids) if not id_]
    return complaints + [f"two cells have the id {id_!r}" for id_ in sorted(set(ids)) if id_ and ids.count(id_) > 1]


def is_executed_in_order(page: StoredNotebook) -> list[str]:
    """Require prompts 1, 2, 3 … from top to bottom: nbval does not compare a cell that was never run."""
    complaints = []
    expected = 1
    for number, cell, source in page.cells("code"):
        if not source.strip():
            complaints.append(f"cell {number} is empty")
        elif cell["execution_count"] != expected:
            complaints.append(f"cell {number} has prompt {cell['execution_count']}, not {expected}: make save")
        expected += bool(source.strip())
    return complaints


def is_of_python3(page: StoredNotebook) -> list[str]:
    """Require the kernel python3 and nothing about the version of the author's Python."""
    metadata = page.raw["metadata"]
    complaints = [] if metadata.get("kernelspec") == KERNELSPEC else [f"kernelspec is {metadata.get('kernelspec')}"]
    if metadata.get("language_info") != LANGUAGE:
        complaints.append(f"language_info is {metadata.get('language_info')}")
    return complaints


def has_no_widget_state(page: StoredNotebook) -> list[str]:
    """Forbid stored widgets: their ids are random, and they are dead without a kernel."""
    complaints = ["the notebook's metadata holds widgets"] if "widgets" in page.raw["metadata"] else []
    return complaints + [
        f"cell {number} stores a widget" for number, output in page.outputs() if WIDGET in output.get("data", {})
    ]


def has_no_editor_metadata(page: StoredNotebook) -> list[str]:
    """Forbid execution times, scrolling and other memories of an editor."""
    complaints = []
    for number, cell in enumerate(page.raw["cells"]):
        extra = sorted(set(cell["metadata"]) - KEPT_IN_CELL)
        complaints += [f"cell {number} has metadata {extra}"] if extra else []
    return complaints


def has_no_stored_error(page: StoredNotebook) -> list[str]:
    """Forbid tracebacks, except where the cell says that it raises (there one is required), and solutions that fail."""
    complaints = []
    for number, cell, _ in page.cells("code"):
        raises = any(output["output_type"] == "error" for output in cell["outputs"])
        meant = "raises-exception" in cell["metadata"].get("tags", [])
        if raises and not meant:
            complaints.append(f"cell {number} stores an error and is not tagged raises-exception")
        if meant and not raises:
            complaints.append(f"cell {number} is tagged raises-exception and raised nothing")
    for number, output in page.outputs():
        if page.is_solution and joined(output.get("data", {}).get("text/plain", "")).startswith("✗"):
            complaints.append(f"cell {number}: the solution does not pass its check")
    return complaints


def is_saved_from_these_sources(page: StoredNotebook) -> list[str]:
    """Require that outputs were saved after the last change of the code, a measured one after that of what it runs."""
    stored = page.raw["metadata"].get("idt")
    return [] if stored == run_now(page.raw) else ["the code changed after the outputs were saved: make save"]


def run_now(raw: dict[str, Any]) -> dict[str, Any]:
    """Return what `make save` would keep in the metadata of the code."""
    cells = [{**cell, "source": joined(cell["source"])} for cell in raw["cells"]]
    return what_was_run(nbformat.from_dict({**raw, "cells": cells}))


def is_compared(page: StoredNotebook) -> list[str]:
    """Forbid cells that nbval skips; its marker for measured numbers stands in the first line, where readers see it."""
    complaints = []
    for number, cell, source in page.cells("code"):
        tags = set(cell["metadata"].get("tags", []))
        markers = re.findall(r"(?m)^\s*#+\s*((?:NBVAL|PYTEST_VALIDATE)_\w+)\s*$", source)
        if markers and not (markers == ["NBVAL_IGNORE_OUTPUT"] and source.startswith(MEASURED)):
            complaints.append(
                f"cell {number} is marked {', '.join(markers)}; only a first line `{MEASURED}` is allowed"
            )
        hidden = sorted(tag for tag in tags if tag.startswith("nbval"))
        complaints += [f"cell {number} is tagged {', '.join(hidden)}"] if hidden else []
    return complaints


PATH = re.compile(
    r"(?<![\w./~-])/(?:home|work|root|tmp|Users|content|private|mnt|opt|usr)\b/?[\w./-]*|\b[A-Z]:\\\\?\w+"
)


def has_no_absolute_path(page: StoredNotebook) -> list[str]:
    """Forbid folders of the author's machine in code, prose, outputs and metadata."""
    complaints = []
    for number, cell in enumerate(page.raw["cells"]):
        texts = [joined(cell["source"]), json.dumps(cell["metadata"])]
        for output in cell.get("outputs", []):
            texts += [joined(output.get(key, "")) for key in ("text", "evalue")]
            texts += [joined(line) for line in output.get("traceback", [])]
            texts += [joined(value) for kind, value in output.get("data", {}).items() if not kind.startswith("image/")]
        for text in texts:
            without_pictures = re.sub(r"base64,[A-Za-z0-9+/=\s]+", "", text)
            complaints += [f"cell {number} names the path {match[0]}" for match in PATH.finditer(without_pictures)]
    found = PATH.search(json.dumps(page.raw["metadata"]))
    return complaints + ([f"the notebook's metadata names the path {found[0]}"] if found else [])


def has_alt_text(page: StoredNotebook) -> list[str]:
    """Require a description in words of every picture: in outputs, in Markdown, in HTML."""
    complaints = []
    for number, output in page.outputs():
        data = output.get("data", {})
        for kind in [kind for kind in data if kind.startswith("image/") and kind != "image/svg+xml"]:
            alt = output["metadata"].get(kind, {}).get("alt", "")
            if not alt.strip():
                complaints.append(f"cell {number} shows a picture without alt text")
            elif joined(data.get("text/plain", "")) != alt:
                complaints.append(
                    f"cell {number} has an alt text that differs from its text/plain, which nbval compares"
                )
        for markup in (joined(data.get("text/html", "")), joined(data.get("image/svg+xml", ""))):
            complaints += [f"cell {number}: {fault}" for fault in undescribed(markup)]
    for number, _, source in page.cells("markdown"):
        text = without_code(source)
        complaints += [
            f"cell {number}: ![]({match}) has no alt text" for match in re.findall(r"!\[\s*\]\(([^)]*)\)", text)
        ]
        complaints += [f"cell {number}: {fault}" for fault in undescribed(text)]
    return complaints


def undescribed(markup: str) -> list[str]:
    """Return a complaint for every <img> without alt text and every <svg> that is neither described nor hidden."""
    faults = [
        f"{tag[:60]} has no alt text"
        for tag in re.findall(r"<img\b[^>]*>", markup)
        if not re.search(r"\balt=([\"'])\s*[^\"'\s]", tag)
    ]
    for svg in re.findall(r"<svg\b.*?(?:</svg>|$)", markup, re.DOTALL):
        if not re.search(r"<title\b[^>]*>\s*[^<\s]|aria-label(?:ledby)?=[\"'][^\"']|aria-hidden=[\"']true", svg):
            faults.append(f"{svg[:60]} has neither <title> nor aria-label")
    return faults


def has_text_that_renders(page: StoredNotebook) -> list[str]:
    """Forbid what Markdown and MathJax show as something else, in the browser only."""
    faults = {
        r"<code>[^<]*__\w+__": "is shown bold, without the underscores",
        r"\\text\{[^}]*\\_": "shows the backslash",
    }
    return [
        f"cell {number}: {found} {fault}"
        for number, _, source in page.cells("markdown")
        for pattern, fault in faults.items()
        for found in re.findall(pattern, source)
    ]


def has_short_cells(page: StoredNotebook) -> list[str]:
    """Limit a code cell to 25 lines, what is longer belongs in lib, and a job of the casebook to 60."""
    found = []
    for number, _, source in page.cells("code"):
        count = len(source.splitlines())
        most = LONGEST_JOB if source.startswith("def job_") else LONGEST_CELL
        if count > most:
            found.append(f"cell {number} has {count} lines of code, more than {most}")
    return found


def is_light(page: StoredNotebook) -> list[str]:
    """Limit the file's size."""
    size = len(json.dumps(page.raw))
    return [f"{size / 1e3:.0f} KB, more than {HEAVIEST / 1e3:.0f}: make save"] if size > HEAVIEST else []


def begins_with_the_setup_cell(page: StoredNotebook) -> list[str]:
    """Require the project's set-up cell, word for word, as the first code cell and only there."""
    wanted = setup_cell.text(address(page.root))
    code = list(page.cells("code"))
    tagged = [number for number, cell, _ in code if "setup" in cell["metadata"].get("tags", [])]
    if not code or tagged != [code[0][0]]:
        return [f"cells tagged `setup`: {tagged}; the first code cell must be the one and only: make stamp"]
    if code[0][2] != wanted:
        return ["the set-up cell differs from tools/setup_cell.py: make stamp"]
    hidden = code[0][1]["metadata"].get("jupyter", {}).get("source_hidden", False)
    return [] if hidden else ["the set-up cell is not folded: make stamp"]


def has_working_links(page: StoredNotebook) -> list[str]:
    """Require that every link to a file of the project, and to a heading in it, leads somewhere."""
    complaints = []
    for number, _, source in page.cells("markdown"):
        text = without_code(source)
        targets = re.findall(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)", text)
        targets += re.findall(r"(?m)^\[[^\]]+\]:\s*(\S+)", text)
        targets += re.findall(r"<(?:a|img)\b[^>]*\b(?:href|src)=[\"']([^\"']+)[\"']", text)
        for target in targets:
            if not re.match(r"[a-z][a-z0-9+.-]*:", target):
                complaints += [f"cell {number}: {fault}" for fault in broken(target, page)]
    return complaints


def broken(target: str, page: StoredNotebook) -> list[str]:
    """Return what is wrong with one relative link."""
    name, _, anchor = unquote(target).partition("#")
    file = (page.path.parent / name).resolve() if name else page.path
    if name.startswith("/"):
        return [f"the link {target} is absolute"]
    if not file.exists():
        return [f"the link {target} leads nowhere"]
    if anchor and file.suffix in {".ipynb", ".md"} and anchor not in anchors(prose_of(file, page)):
        return [f"the link {target} names a heading that is not there"]
    return []


def prose_of(file: Path, page: StoredNotebook) -> str:
    """Return the Markdown of a file that a page links; of the page itself, as it is in memory."""
    if file == page.path:
        return page.prose
    if file.suffix == ".ipynb":
        return StoredNotebook.read(file).prose
    return file.read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """Return the anchors of a Markdown text: JupyterLab's and GitHub's for every heading, and explicit ids."""
    found = set(re.findall(r"\b(?:id|name)=[\"']([^\"']+)[\"']", text))
    for heading in re.findall(r"(?m)^#{1,6}\s+(.+?)\s*#*\s*$", without_code(text)):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(plain.replace(" ", "-"))
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return found


def without_code(text: str) -> str:
    """Return Markdown without its code, where brackets mean something else."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^(```|~~~).*?^\1", "", text))


def has_the_projects_badge(page: StoredNotebook) -> list[str]:
    """Require a Colab badge that opens this very notebook at the project's ref (a solution may go without)."""
    found = re.findall(r"https://colab\.research\.google\.com/github/[^\s)\"'>]+", page.prose)
    wanted = address(page.root).badge(page.path, page.root)
    first = next(iter(page.cells("markdown")), (0, {}, ""))[2]
    complaints = [f"a badge leads to {url}, not to {wanted}: make stamp" for url in found if url != wanted]
    if wanted not in first and not page.is_solution:
        complaints.append(f"the first cell has no Colab badge [![Open in Colab](…)]({wanted})")
    return complaints


def is_formatted(page: StoredNotebook) -> list[str]:
    """Require ruff's formatting of the code cells."""
    settings = ROOT / "notebooks" / "ruff.toml"
    command = [sys.executable, "-m", "ruff", "format", "--check", "--quiet", "--config", str(settings)]
    result = subprocess.run([*command, str(page.path)], capture_output=True, text=True)
    fault = f"not formatted: python -m ruff format {page.path.name} {result.stderr}".strip()
    return [fault] if result.returncode else []


def has_a_title(page: StoredNotebook) -> list[str]:
    """Require one heading of the first order, at the very beginning."""
    first = page.raw["cells"][0] if page.raw["cells"] else {"cell_type": "none", "source": ""}
    starts = first["cell_type"] == "markdown" and joined(first["source"]).startswith("# ")
    complaints = [] if starts else ["the first cell does not begin with a title, `# …`"]
    titles = re.findall(r"(?m)^# .*$", without_code(page.prose))
    return complaints + ([f"{len(titles)} titles of the first order: {titles[1:]}"] if len(titles) > 1 else [])


def asks_for_a_prediction(page: StoredNotebook) -> list[str]:
    """Require a `my_guess = …` in every chapter: predict before you run."""
    asks = any(re.search(r"(?m)^my_guess\w*\s*=", source) for _, _, source in page.cells("code"))
    return [] if asks or page.is_solution else ["no cell asks for a prediction, `my_guess = …`"]


def breaks_something(page: StoredNotebook) -> list[str]:
    """Require a "Break it" section in every chapter but the first, which teaches nothing to break yet."""
    if page.is_solution or page.path.name.startswith("00_"):
        return []
    return [] if re.search(r"(?m)^#{2,4} .*Break it", page.prose) else ['no heading has "Break it"']


def has_exercises_with_hints(page: StoredNotebook) -> list[str]:
    """Require an exercise in every chapter, each with a hint folded in <details>."""
    if page.is_solution:
        return []
    headings = re.findall(r"(?m)^#{2,4} .*\bExercises?\b", page.prose)
    exercises = [heading for heading in headings if "Exercises" not in heading] or headings
    hints = re.findall(r"<details>\s*<summary>\s*[^<\s]", page.prose)
    if not exercises:
        return ['no heading has "Exercise"']
    if len(hints) < len(exercises):
        return [f"{len(exercises)} exercises have {len(hints)} folded hints, <details><summary>Hint</summary>"]
    return []


def needs_no_encore(page: StoredNotebook) -> list[str]:
    """Forbid a cell that needs a name from an encore which its reader may have left out."""
    return needed_from_encores(page.raw["cells"])


def is_as_the_map_says(page: StoredNotebook) -> list[str]:
    """Require an entry of support/course.py, with this title; of a chapter also its needs and its neighbours."""
    try:
        chapter = course.chapter_of(page.path.stem)
    except ValueError as error:
        return [str(error)]
    first = next(iter(page.cells("markdown")), (0, {}, ""))[2]
    title = first.partition("\n")[0].removeprefix("# ")
    if page.is_solution:
        return [] if chapter.name in title else [f"the title {title!r} does not name {chapter.name!r}, as the map does"]
    complaints = [] if title == chapter.name else [f"the title is {title!r}, on the map {chapter.name!r}"]
    columns = columns_of(first)
    found = needed(columns.get("Needs", ""))
    if found != chapter.needs:
        complaints.append(f"its table needs {found} before the first semicolon, the map {chapter.needs}")
    head, links = neighbours_cell(chapter.stem)
    if columns.get(head) != links:
        complaints.append(f"its table does not lead to its neighbours, {links}: make stamp")
    return complaints


RULES: list[Rule] = [
    has_unique_ids,
    is_executed_in_order,
    is_of_python3,
    has_no_widget_state,
    has_no_editor_metadata,
    has_no_stored_error,
    is_saved_from_these_sources,
    is_compared,
    has_no_absolute_path,
    has_alt_text,
    has_text_that_renders,
    has_short_cells,
    is_light,
    begins_with_the_setup_cell,
    has_working_links,
    has_the_projects_badge,
    is_formatted,
    has_a_title,
    is_as_the_map_says,
    asks_for_a_prediction,
    breaks_something,
    has_exercises_with_hints,
    needs_no_encore,
]


def complaints(page: StoredNotebook) -> list[str]:
    """Apply every rule."""
    return [f"{rule.__name__}: {complaint}" for rule in RULES for complaint in rule(page)]
