"""A reader may leave out any encore: no cell needs a name that only an encore gives, but those of that encore.

An encore begins at a heading that says so and ends at the next one of its own or a higher order. Whoever obeys "go on
with section 5" must not meet a NameError there, which nbval, running every cell, never sees. An encore may build on
another one if its heading names it: "(15 minutes, after exercise 5)", "(5 minutes, after the encore on time)".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.statements import read_statements

#: An encore, by the headings that lead to it; () is what nobody leaves out.
Encore = tuple[str, ...]


def without_blocks(markdown: str) -> str:
    """Return Markdown without its blocks of code, where `# …` is no heading."""
    return re.sub(r"(?ms)^(```|~~~).*?^\1", "", markdown)


@dataclass
class Code:
    """A code cell: its position, the encore that it stands in, the title right above it, its source."""

    number: int
    encore: Encore
    title: str
    source: str


def code_cells(cells: list[dict[str, Any]]) -> Iterator[Code]:
    """Yield every code cell, with what the headings above say of it."""
    headings: list[tuple[int, str]] = [(0, "")]
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            encore = tuple(title for _, title in headings if "encore" in title.lower())
            yield Code(number, encore, headings[-1][1], source)
            continue
        for marks, title in re.findall(r"(?m)^(#+) (.*)$", without_blocks(source)):
            headings = [outer for outer in headings if outer[0] < len(marks)]
            headings.append((len(marks), title))


def is_named(title: str, encore: Encore) -> bool:
    """Say whether an encore says that it comes "after exercise 5", or "after the encore on time", and means a title."""
    words = re.findall(r"\bafter (exercise \d+)|\bafter the encore on (\w+)", " ".join(encore).lower())
    return any(re.search(rf"\b{exercise or topic}\b", title.lower()) for exercise, topic in words)


def lacks_and_gives(source: str, given: set[str]) -> tuple[set[str], set[str]]:
    """Return what a cell needs beside the names that are given, and what it gives."""
    needs: set[str] = set()
    gives: set[str] = set()
    for statement in read_statements([source]):
        needs |= (statement.now | statement.later) - statement.gives - gives - given
        gives |= statement.gives
    return needs, gives


def needed_from_encores(cells: list[dict[str, Any]]) -> list[str]:
    """Return a complaint for each name that a cell needs and only an encore gives that a reader may have left out."""
    above: list[tuple[Code, set[str]]] = []
    complaints = []
    for cell in code_cells(cells):
        around = [cell.encore[:depth] for depth in range(len(cell.encore) + 1)]
        at_hand = [gives for other, gives in above if other.encore in around or is_named(other.title, cell.encore)]
        needs, gives = lacks_and_gives(cell.source, set().union(*at_hand))
        for name in sorted(needs):
            where = [other.encore[-1] for other, names in above if name in names]
            complaints += [f"cell {cell.number} needs {name}, which only {where[0]!r} gives"] if where else []
        above.append((cell, gives))
    return complaints
