"""What of a notebook must run for some of its statements to do what they do in it: these, and what they stand on.

The page of a notebook needs its explorers and predictions, a browser that tries it its interactive figures; the rest
only prints, measures and draws. What this misses on a page is noticed: see site.capture.finish.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from tools.statements import read_statements, stands_on


def needed_sources(
    sources: Sequence[str], wanted: Callable[[str], object], always: Sequence[int] = ()
) -> dict[int, str]:
    """Return what must run of each cell, by its place: the statements that are wanted, and what they stand on.

    Of the cells in `always` all runs.
    """
    statements = read_statements(sources)
    needed: set[int] = set()
    for place, statement in enumerate(statements):
        if statement.cell in always or wanted(statement.text):
            needed |= {place} | stands_on(statements, place, statement.now | statement.later)
    texts: dict[int, list[str]] = {}
    for place in sorted(needed):
        texts.setdefault(statements[place].cell, []).append(statements[place].text)
    return {cell: "\n".join(parts) for cell, parts in texts.items()}


def only_defines(text: str) -> bool:
    """Tell whether code only imports and defines: it measures nothing."""
    return all(
        isinstance(each, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef) for each in ast.parse(text).body
    )
