"""The table under a notebook's title: what you will do, what it needs, and the notebooks before and after it."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat

from support import course


def title_table(path: Path) -> tuple[str, dict[str, str]]:
    """Return a notebook's title and the columns of its title table. Raises ValueError if it has none."""
    text = nbformat.read(path, as_version=4).cells[0].source
    title = re.match(r"# (.+)", text)
    columns = columns_of(text)
    if title is None or not columns:
        raise ValueError(f"{path.name} does not begin with a title and a table")
    return title[1], columns


def columns_of(text: str) -> dict[str, str]:
    """Return the columns of the table in a title cell's text, none if it has no table."""
    rows = [_cells(line) for line in text.splitlines() if line[:1] == "|"]
    return dict(zip(rows[0], rows[2], strict=True)) if len(rows) > 2 else {}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def needed(text: str) -> tuple[int, ...]:
    """Return the numbers of the notebooks that the column "Needs" links, but for those that only a part needs."""
    as_a_whole = text.partition(";")[0]  # behind the semicolon stands what only a part of the notebook needs
    return tuple(sorted({int(number) for number in re.findall(r"\]\((\d\d)_", as_a_whole)}))


def neighbours_cell(stem: str) -> tuple[str, str]:
    """Return the head and the text of the table's last column, as the map of the course has it."""
    before, after = (_link(chapter) for chapter in course.neighbours(stem))
    if not before:
        return "Next", after or "the end"
    return "Previous / next", f"{before} / {after or 'the end'}"


def _link(chapter: course.Chapter | None) -> str:
    return f"[{chapter.name}]({chapter.stem}.ipynb)" if chapter else ""


def with_neighbours(text: str, stem: str) -> str:
    """Return the text of a notebook's title cell with its links to the neighbours renewed."""
    lines = text.splitlines()
    rows = [place for place, line in enumerate(lines) if line[:1] == "|"]
    if len(rows) < 3:
        return text
    for place, cell in zip((rows[0], rows[2]), neighbours_cell(stem), strict=True):
        lines[place] = f"| {' | '.join([*_cells(lines[place])[:-1], cell])} |"
    return "\n".join(lines)
