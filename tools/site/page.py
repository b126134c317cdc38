"""One notebook as one page: its cells in order, exercises and predictions set apart, solutions folded."""

from __future__ import annotations

import ast
import base64
import hashlib
import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.kept import MEASURED, WIDGET
from tools.site import guesses, practice, text
from tools.site.links import Links
from tools.site.run import Executed
from tools.site.terms import Terms
from tools.site.text import Markdown, Part

EXERCISE = re.compile(r"Exercise (\d+)")
#: Where a solution begins in notebooks/solutions: "## Exercise 2: …", "## 2 · …", "**Exercise 2.** …".
SOLUTION = re.compile(r"(?:#+ |\*\*)(?:Exercise )?(\d+)\b")
#: What stands in a glance for the minutes of reading, until the page is whole; and how fast one reads such a text.
READING = "<!-- reading -->"
WORDS_A_MINUTE = 180
OPEN = "Not attempted yet"
BADGE = re.compile(r"\[!\[[^\]]*\]\([^)]*colab-badge[^)]*\)\]\([^)]*\)\n*")
TITLE_TABLE = re.compile(r"(?m)^\|.*\n\|[-| :]+\n\|.*\n?")
PICTURES = {"image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpg"}


@dataclass(frozen=True)
class Section:
    """What lies between two headings: for the table of contents and for the search."""

    level: int
    id: str
    title: str
    words: str


@dataclass
class Page:
    """A page as it goes into the frame, and what the index and the search must know of it."""

    stem: str
    title: str
    body: str
    sections: list[Section]
    predictions: int = 0
    exercises: int = 0

    @property
    def name(self) -> str:
        """The page's file."""
        return f"{self.stem}.html"

    @property
    def editors(self) -> int:
        """How many of the exercises can be done in the page."""
        return self.body.count('<div class="practice" ')


@dataclass
class Pictures:
    """Puts pictures beside the pages, each once, named by what is in it."""

    folder: Path
    made: dict[str, int] = field(default_factory=dict)

    def address(self, content: bytes, ending: str) -> str:
        """Write a picture; return its address as seen from a page."""
        name = f"{hashlib.sha256(content).hexdigest()[:16]}.{ending}"
        if name not in self.made:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)
            self.made[name] = len(content)
        return f"{self.folder.name}/{name}"


def field_text(value: str | list[str]) -> str:
    """Return the text of a field of a notebook, which may be a list of lines."""
    return value if isinstance(value, str) else "".join(value)


class Writer:
    """Turns the cells of one notebook into the body of its page.

    Raises ValueError, with the notebook and the cell, for what a page cannot show: a formula that cannot be converted,
    a picture without words, a widget without a still picture, an exercise without a solution, a link to nowhere.
    """

    def __init__(
        self,
        stem: str,
        executed: Executed,
        solutions: Mapping[str, Any] | None,
        links: Links,
        pictures: Pictures,
        glance: str = "",
        terms: Mapping[str, str] | None = None,
    ) -> None:
        self.stem = stem
        self.number = stem[:2]
        self.executed = executed
        self.pictures = pictures
        self.glance = glance
        self.terms = Terms(dict(terms or {}))
        self.markdown = Markdown(links.seen_from("notebooks"))
        self.solution_link = links.seen_from("notebooks/solutions")
        self.solutions = solved(solutions or {"cells": []})
        self.predictions = 0
        self.parts: list[Part] = []
        self.out: list[str] = []
        self.exercise = 0
        self.kept: set[int] = set()
        self.above: list[str] = []
        self.inside: list[str] = []

    def page(self) -> Page:
        """Return the page."""
        cells = self.executed.notebook["cells"]
        ends = exercise_ends(cells)
        for place, cell in enumerate(cells):
            try:
                if cell["cell_type"] == "markdown":
                    self._text(cell, first=place == 0)
                elif cell["cell_type"] == "code":
                    self.out.append(self._code(cell))
                    (self.inside if self.exercise else self.above).append(field_text(cell["source"]))
                if place in ends:
                    self._end_exercise()
            except ValueError as error:
                raise ValueError(f"{self.stem}, cell {place} ({cell.get('id')}): {error}") from None
        self._end_exercise()
        title = next((part.words for part in self.parts if part.level == 1), self.stem)
        minutes = max(1, round(sum(len(part.words.split()) for part in self.parts) / WORDS_A_MINUTE))
        body = "\n".join(self.out).replace(READING, f"{minutes} minute{'s' * (minutes != 1)}", 1)
        return Page(self.stem, title, body, sections(self.parts), self.predictions, len(self.kept))

    def _text(self, cell: Mapping[str, Any], first: bool) -> None:
        source = field_text(cell["source"])
        if first:
            source = TITLE_TABLE.sub("", BADGE.sub("", source))
        for part in self.markdown.parts(source, self._attachments(cell)):
            found = EXERCISE.match(part.words) if part.level else None
            if part.level and (found or part.level <= 3):
                self._end_exercise()
            if found:
                self.exercise = int(found[1])
                self.kept.add(self.exercise)
                self.out.append(f'<section class="exercise" aria-labelledby="{part.id}">')
            self.parts.append(part)
            self.out.append(self.terms.link(part.html))
        if first:
            self.out.append(self.glance)

    def _end_exercise(self) -> None:
        if not self.exercise:
            return
        number = self.exercise
        inside = self.inside
        self.exercise = 0
        self.inside = []
        if number not in self.solutions:
            raise ValueError(f"exercise {number} has no solution in notebooks/solutions/{self.stem}.ipynb")
        plain = Markdown(self.solution_link)
        shown = []
        for cell in self.solutions[number]:
            if cell["cell_type"] == "markdown":
                source = SOLUTION_TITLE.sub("", field_text(cell["source"])).strip()
                shown += [part.html for part in plain.parts(source)] if source else []
            else:
                shown.append(self._code(cell))
        key = f"{self.number}/{number}"
        self.out.append(practice.editor_fragment(self.stem, number, inside, self.above))
        self.above += inside
        self.out.append(
            f'<details class="solution" data-opened="{key}"><summary>Solution of exercise {number}</summary>\n'
            + "\n".join(shown)
            + f'\n</details>\n<p class="done"><label><input type="checkbox" data-done="{key}"> '
            f"I have solved exercise {number}</label></p>\n</section>"
        )

    def _code(self, cell: Mapping[str, Any]) -> str:
        source = field_text(cell["source"]).replace(f"{MEASURED}\n", "")  # a word to the tests, none to the reader
        name = html.escape(str(cell.get("id", "")))
        outputs = list(self._outputs(cell))
        shown = text.code(source) if source.strip() else ""
        if "setup" in cell.get("metadata", {}).get("tags", []):
            shown = folded("The set-up cell, and the machine of this run", shown + "".join(outputs))
            outputs = []
        elif self.executed.guesses.get(str(cell.get("id"))) and only_asks(source):
            shown = "\n".join(outputs) + folded("The cell of this prediction", shown)
            outputs = []
        return f'<div class="cell" data-cell="{name}">\n{shown}\n' + "\n".join(outputs) + "\n</div>"

    def _outputs(self, cell: Mapping[str, Any]) -> Iterator[str]:
        name = str(cell.get("id"))
        for output in cell["outputs"]:
            kind = output["output_type"]
            data = output.get("data", {})
            marks = output.get("metadata", {})
            drawn = any(name in PICTURES for name in data)
            if kind == "stream":
                yield text.printed(field_text(output["text"]), "stderr" if output["name"] == "stderr" else "")
            elif kind == "error":
                yield text.printed("\n".join(output["traceback"]), "traceback")
            elif drawn and "atlas" in marks:  # another widget has its still form in HTML
                yield self.executed.atlases[name][marks["atlas"]]
            elif "guess" in marks:
                self.predictions += 1
                number = marks["guess"]
                prediction = self.executed.guesses[name][number]
                yield guesses.prediction_fragment(prediction, f"guess-{self.number}-{name}-{number}")
            elif drawn:
                yield self._picture(output)
            elif "text/html" in data:
                markup = field_text(data["text/html"])
                if OPEN not in markup:
                    yield f'<div class="scroll html">{checked(markup)}</div>'
            elif "text/markdown" in data:
                yield "".join(
                    part.html for part in Markdown(self.markdown.link).parts(field_text(data["text/markdown"]))
                )
            elif "text/latex" in data:
                formula = field_text(data["text/latex"]).strip().strip("$")
                yield f'<div class="scroll formula">{text.mathml(formula, display=True)}</div>'
            elif "text/plain" in data and WIDGET not in data:
                yield text.printed(field_text(data["text/plain"]))
            elif data:
                raise ValueError(f"an output of {sorted(data)} has no still form to show")

    def _picture(self, output: Mapping[str, Any]) -> str:
        kind = next(name for name in PICTURES if name in output["data"])
        facts = output.get("metadata", {}).get(kind, {})
        alt = facts.get("alt", "").strip()
        content = field_text(output["data"][kind])
        if not alt:
            raise ValueError("a picture without alt text")
        raw = content.encode() if kind == "image/svg+xml" else base64.b64decode(content)
        size = "".join(f' {side}="{facts[side]}"' for side in ("width", "height") if side in facts)
        source = self.pictures.address(raw, PICTURES[kind])
        return f'<p class="figure"><img src="{source}" alt="{html.escape(alt)}"{size} decoding="async"></p>'

    def _attachments(self, cell: Mapping[str, Any]) -> dict[str, str]:
        found = {}
        for name, bundle in cell.get("attachments", {}).items():
            kind = next((kind for kind in PICTURES if kind in bundle), None)
            if kind is None:
                raise ValueError(f"the attachment {name} is no picture that a page can show: {sorted(bundle)}")
            raw = field_text(bundle[kind])
            content = raw.encode() if kind == "image/svg+xml" else base64.b64decode(raw)
            found[name] = self.pictures.address(content, PICTURES[kind])
        return found


SOLUTION_TITLE = re.compile(r"\A(?:#+ .*\n?|\*\*Exercise \d+\.\*\* ?)")


def solved(solutions: Mapping[str, Any]) -> dict[int, list[Mapping[str, Any]]]:
    """Return the cells of each solution by the number of its exercise.

    What a solution needs from above the first one (imports, not the set-up cell) goes with the first.
    """
    found: dict[int, list[Mapping[str, Any]]] = {}
    before: list[Mapping[str, Any]] = []
    number = 0
    for cell in solutions["cells"]:
        begins = SOLUTION.match(field_text(cell["source"])) if cell["cell_type"] == "markdown" else None
        if begins and not field_text(cell["source"]).startswith("# "):
            number = int(begins[1])
            found[number] = [cell, *before]
            before = []
        elif number:
            found[number].append(cell)
        elif cell["cell_type"] == "code" and "setup" not in cell.get("metadata", {}).get("tags", []):
            before.append(cell)
    return found


def exercise_ends(cells: list[Mapping[str, Any]]) -> set[int]:
    """Return the places of the cells that check an exercise last: there it ends, and the lesson goes on."""
    ends: set[int] = set()
    last = None
    for place, cell in enumerate(cells):
        if cell["cell_type"] == "markdown":
            if re.search(r"(?m)^#{1,4} ", text_only(field_text(cell["source"]))) and last is not None:
                ends.add(last)
                last = None
        elif any(OPEN in field_text(output.get("data", {}).get("text/html", "")) for output in cell["outputs"]):
            last = place
    return ends if last is None else ends | {last}


def text_only(source: str) -> str:
    """Return Markdown without its blocks of code, in which # begins a comment."""
    return re.sub(r"(?ms)^(```|~~~).*?^\1", "", source)


def only_asks(source: str) -> bool:
    """Tell whether a cell does nothing but ask: imports, `my_guess = …`, a call of the check."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return False
    return all(isinstance(line, (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)) for line in body) and len(body) < 7


def folded(title: str, body: str) -> str:
    """Return HTML that is shown on demand."""
    return f'<details class="fold"><summary>{title}</summary>\n{body}\n</details>'


def checked(markup: str) -> str:
    """Return the HTML of an output; raises ValueError where a picture in it has no words."""
    for tag in re.findall(r"<img\b[^>]*>", markup):
        if not re.search(r"\balt=([\"'])\s*[^\"'\s]", tag):
            raise ValueError(f"{tag[:60]} has no alt text")
    return text.without_empty_heads(markup.replace(' role="status"', ""))  # a status that nobody changes


def sections(parts: list[Part]) -> list[Section]:
    """Return what lies between headings, each with its words."""
    found: list[Section] = []
    for part in parts:
        if part.level:
            found.append(Section(part.level, part.id, part.words, ""))
        elif found:
            last = found.pop()
            found.append(Section(last.level, last.id, last.title, f"{last.words} {part.words}".strip()))
    return found
