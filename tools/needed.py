"""What of a notebook must run for some of its statements to do what they do in it: these, and what they read.

The page of a notebook needs its explorers and predictions, a browser that tries it its interactive figures; the rest
only prints, measures and draws. A statement is needed if it gave a needed name its value last, or if it may have
changed that value since: what is passed to a function, or has a method called, counts as changed, unless it was
imported or defined. By the laws of the house print, `draw_…`, `show…`, checks and guesses change nothing. What this
misses on a page is noticed: see site.capture.finish.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tools.statements import gives_and_reads, statement_texts

#: Calls of these leave what they are given as it is.
PURE = re.compile(r"(.*\.)?(print|draw|show|check|guess|explore|len|list|sorted|sum|max|min)(_\w*)?")
#: These may do nothing, or only in part: what a name was before may still be read after them.
PERHAPS = (ast.If, ast.For, ast.While, ast.Try, ast.AugAssign)


@dataclass(frozen=True)
class Piece:
    """A statement of a cell, and the names that it reads, gives a value, gives for sure, defines, may change."""

    cell: int
    text: str
    read: frozenset[str]
    given: frozenset[str]
    settled: frozenset[str]
    defined: frozenset[str]
    touched: frozenset[str]


def needed_sources(
    sources: Sequence[str], wanted: Callable[[str], object], always: Sequence[int] = ()
) -> dict[int, str]:
    """Return what must run of each cell, by its place: the statements that are wanted, and what they read.

    Of the cells in `always` all runs. Raises SyntaxError for a cell that is not Python.
    """
    parts = [part for cell, source in enumerate(sources) for part in pieces_of(source, cell)]
    given = frozenset[str]().union(*(part.given for part in parts))
    values = frozenset[str]().union(*(part.given - part.defined for part in parts))
    found: set[tuple[int, int]] = set()
    waiting = [(k, k) for k, part in enumerate(parts) if part.cell in always or wanted(part.text)]
    while waiting:
        place, when = waiting.pop()
        if (place, when) in found:
            continue
        found.add((place, when))
        for name in parts[place].read & given:
            # A function reads a name when it is called, so at `when` something else may have given it than at `place`.
            waiting += [(other, at) for at in {place, when} for other in _makers(name, parts, at, name in values)]
    needed = {place for place, _ in found}
    cells = sorted({parts[place].cell for place in needed})
    return {
        cell: "\n".join(part.text for k, part in enumerate(parts) if k in needed and part.cell == cell)
        for cell in cells
    }


def only_defines(text: str) -> bool:
    """Tell whether code only imports and defines: it measures nothing."""
    return all(
        isinstance(each, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef) for each in ast.parse(text).body
    )


def _makers(name: str, parts: Sequence[Piece], when: int, changes: bool) -> Iterator[int]:
    """Yield the places above `when` of what made that for which a name stands there; changes: it may be changed."""
    for place in range(when - 1, -1, -1):
        part = parts[place]
        if name in part.given or (changes and name in part.touched):
            yield place
        if name in part.settled:
            return


def pieces_of(source: str, cell: int) -> Iterator[Piece]:
    """Yield the statements of a cell."""
    for text in statement_texts(source):
        (statement,) = ast.parse(text).body
        given, _ = gives_and_reads(text)
        read = frozenset(_read_first([statement], set()))
        nodes = [*ast.walk(statement)]
        defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                defined.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        touched = {name for node in nodes for name in _touched(node)}
        settled = frozenset() if isinstance(statement, PERHAPS) else given
        yield Piece(cell, text, read, given, settled, frozenset(defined), frozenset(touched))


def _read_first(block: Sequence[ast.stmt], bound: set[str]) -> Iterator[str]:
    """Yield the names that a block reads before it gives them a value itself; `bound` gets those that it gives."""
    for statement in block:
        inner = [getattr(statement, name, []) for name in ("body", "handlers", "orelse", "finalbody")]
        if not isinstance(statement, ast.If | ast.For | ast.While | ast.With | ast.Try):
            given, read = gives_and_reads(ast.unparse(statement))
            yield from read - bound
            if not isinstance(statement, ast.AugAssign):
                bound |= given
            continue
        for head in ast.iter_child_nodes(statement):
            if isinstance(head, ast.expr | ast.withitem):
                names = [node for node in ast.walk(head) if isinstance(node, ast.Name)]
                yield from {name.id for name in names if isinstance(name.ctx, ast.Load)} - bound
                bound |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
        within = set(bound)
        for part in inner:
            for each in part:
                if isinstance(each, ast.ExceptHandler):
                    yield from _read_first(each.body, within | {each.name or ""})
                else:
                    yield from _read_first([each], within)


def _touched(node: ast.AST) -> Iterator[str]:
    """Yield the names of what a piece of code may change in place."""
    if isinstance(node, ast.Call) and not PURE.fullmatch(ast.unparse(node.func)):
        values = [*node.args, *(word.value for word in node.keywords if word.arg)]
        if isinstance(node.func, ast.Attribute):
            values.append(node.func.value)
    elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        values = [node.value]
    else:
        return
    for value in values:
        if isinstance(value, ast.Name | ast.Attribute | ast.Subscript | ast.List | ast.Tuple):
            yield from (inner.id for inner in ast.walk(value) if isinstance(inner, ast.Name))
