"""The statements of a code cell, and the names of the notebook that each of them gives and reads."""

from __future__ import annotations

import ast
import symtable
from functools import cache

from IPython.core.inputtransformer2 import TransformerManager


@cache  # each explorer of a notebook asks of all that stands above it
def statement_texts(source: str) -> tuple[str, ...]:
    """Return the statements of a cell, with IPython's `!` and `%` turned into calls."""
    source = TransformerManager().transform_cell(source)
    lines = source.encode().splitlines(keepends=True)  # a node's columns count bytes
    return tuple(_text(lines, node) for node in ast.parse(source).body)


def _text(lines: list[bytes], node: ast.stmt) -> str:
    """Return what ast.get_source_segment does, which for each statement splits the whole source into lines again.

    A decorator stands above the line in which its function begins.
    """
    assert node.end_lineno is not None
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    chosen = lines[first - 1 : node.end_lineno]
    chosen[-1] = chosen[-1][: node.end_col_offset]
    chosen[0] = chosen[0][node.col_offset :]
    return b"".join(chosen).decode()


@cache
def gives_and_reads(statement: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the notebook that a statement binds, and those that it, or a function in it, reads."""
    top = symtable.symtable(statement, "cell", "exec")
    tables = [top]
    reads = set()
    for table in tables:
        tables += table.get_children()
        names = [name for name in table.get_symbols() if name.is_referenced()]
        reads |= {name.get_name() for name in names if table is top or name.is_global()}
    bound = {name.get_name() for name in top.get_symbols() if name.is_assigned() or name.is_imported()}
    return frozenset(bound), frozenset(reads)
