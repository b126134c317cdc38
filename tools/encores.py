"""A reader may leave out any encore: no cell needs a name that only an encore gives, but those of that encore.

An encore begins at a heading that says so and ends at the next one of its own or a higher order. Whoever obeys "go on
with section 5" must not meet a NameError there, which nbval, running every cell, never sees. An encore may build on
another one if its heading names it: "(15 minutes, after exercise 5)".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tools.statements import gives_and_reads, statements

#: An encore, by the headings that lead to it; () is what nobody leaves out.
Encore = tuple[str, ...]


def without_blocks(markdown: str) -> str:
    """Return Markdown without its blocks of code, where `# …` is no heading."""
    return re.sub(r"(?ms)^(```|~~~).*?^\1", "", markdown)


def code_by_encore(cells: list[dict[str, Any]]) -> Iterator[tuple[int, Encore, str]]:
    """Yield of every code cell its position, the encore that it stands in, and its source."""
    headings: list[tuple[int, str]] = []
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            yield number, tuple(title for _, title in headings if "encore" in title.lower()), source
            continue
        for marks, title in re.findall(r"(?m)^(#+) (.*)$", without_blocks(source)):
            headings = [outer for outer in headings if outer[0] < len(marks)]
            headings.append((len(marks), title))


def available(encore: Encore, given: dict[Encore, set[str]]) -> set[str]:
    """Return the names that a reader of an encore has: of all that it stands in, and of those that it names."""
    after = re.findall(r"\bafter (exercise \d+|encore \w+)", " ".join(encore).lower())
    around = {encore[:depth] for depth in range(len(encore) + 1)}
    named = {other for other in given if any(re.search(rf"{name}\b", " ".join(other).lower()) for name in after)}
    return set().union(*(given.get(other, set()) for other in around | named))


def missing(source: str, given: set[str]) -> tuple[set[str], set[str]]:
    """Return what a cell needs beside the names that are given, and what it gives."""
    needs: set[str] = set()
    gives: set[str] = set()
    for statement in statements(source):
        bound, read = gives_and_reads(statement)
        gives |= bound
        needs |= read - gives - given
    return needs, gives


def needed_from_encores(cells: list[dict[str, Any]]) -> list[str]:
    """Return a complaint for each name that a cell needs and only an encore gives that a reader may have left out."""
    given: dict[Encore, set[str]] = {}
    complaints = []
    for number, encore, source in code_by_encore(cells):
        needs, gives = missing(source, available(encore, given))
        for name in sorted(needs):
            where = [other[-1] for other, names in given.items() if name in names]
            complaints += [f"cell {number} needs {name}, which only {where[0]!r} gives"] if where else []
        given.setdefault(encore, set()).update(gives)
    return complaints
