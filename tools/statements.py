"""The statements of a notebook, and on which of them a name stands: found from their text, so that little has to run.

CellStatement    what a line or a few of a cell bind and use
read_statements  those of all code cells
stands_on        those that give names their values at a place

Whoever grades runs what an exercise stands on, a page what its explorers stand on. A value may have been changed by
whatever it was passed to, or had a method called; by the laws of the house print, `draw_…`, `show…`, checks and guesses
change nothing.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from IPython.core.inputtransformer2 import TransformerManager

#: Of a cell that Python can't read: what it would have defined.
MEANT = re.compile(r"^(?:async +)?(?:def|class) +(\w+)|^(\w+) *=[^=]|^(?:from .+ )?import +(\w+)", re.MULTILINE)
#: Commands that run what stands behind them.
TIMED = re.compile(r"^ *%%(?:time|timeit|capture|prun)\b.*\n|^ *%(?:time|timeit|prun) +", re.MULTILINE)
#: Calls of these leave what they are given as it is.
PURE = re.compile(r"(.*\.)?(print|draw|show|check|guess|explore|len|list|sorted|sum|max|min)(_\w*)?")
#: Scopes that run where they stand, unlike a function.
AT_ONCE = ("listcomp", "setcomp", "dictcomp", "genexpr")
#: A line in place of another one; IPython drops lines at the beginning that have nothing.
EMPTY = "#\n"
STAR = "*"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class CellStatement:
    """A statement at the edge of a cell, or several that share a line.

    cell    the place of its cell
    line    where it begins in its cell, from 0
    text    what it says, without the notebook's own commands
    binds   names that it gives a value, whatever they were
    perhaps names that it gives a value under a condition, or in a loop
    changes names of which it gives a part another value
    calls   names of which it calls a method, and those that it passes to a call: `x.append(1)`, `train(x)`
    defines names of functions and classes
    fixed   those, and what it imports: a call of `torch.ones` changes nothing that stays
    now     names that it uses when it runs; later: when its functions are called
    """

    cell: int
    line: int
    text: str
    binds: frozenset[str] = frozenset()
    perhaps: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    defines: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    now: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()

    @property
    def code(self) -> str:
        """Its text in the line of its cell in which it stands, for what an error says of lines."""
        return EMPTY * self.line + self.text

    @property
    def gives(self) -> frozenset[str]:
        """Names that have a value behind this statement, at least if its conditions are met."""
        return self.binds | self.perhaps

    @cached_property
    def marked(self) -> frozenset[str]:
        """Names that it gives a value, or a part of one."""
        return self.gives | self.changes


def read_statements(sources: Iterable[str]) -> list[CellStatement]:
    """Return the statements of code cells, in order."""
    return [replace(statement, cell=cell) for cell, source in enumerate(sources) for statement in _statements(source)]


@cache  # each explorer of a notebook asks of all that stands above it
def _statements(source: str) -> tuple[CellStatement, ...]:
    """Read a cell. One that Python can't read binds what its lines look like, and uses nothing: it will say why."""
    code = TransformerManager().transform_cell(TIMED.sub(_without, source))
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError):  # ValueError: a null byte
        meant = frozenset(name for names in MEANT.findall(source) for name in names if name)
        return (CellStatement(0, 0, code, binds=meant, defines=meant, fixed=meant),)
    return tuple(_statement(code.splitlines(), parts) for parts in _by_lines(body))


def _without(command: re.Match[str]) -> str:
    """Return what stands in place of a command, so that the lines keep their numbers."""
    return EMPTY * command[0].count("\n")


def _by_lines(body: Sequence[ast.stmt]) -> list[list[ast.stmt]]:
    """Return statements with those that begin in a line in which another ends."""
    groups: list[list[ast.stmt]] = []
    for part in body:
        if groups and _first_line(part) <= (groups[-1][-1].end_lineno or 0):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _first_line(part: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(part, "decorator_list", [])
    return min([part.lineno, *(node.lineno for node in decorators)])


def _statement(lines: Sequence[str], parts: list[ast.stmt]) -> CellStatement:
    line = _first_line(parts[0]) - 1
    text = "\n".join(lines[line : parts[-1].end_lineno])
    tree = ast.Module(parts, [])
    defines = frozenset(part.name for part in parts if isinstance(part, DEFINITIONS))
    imports = frozenset(name for part in parts if isinstance(part, IMPORTS) for name in _bound(part))
    binds = defines | frozenset(name for part in parts for name in _bound(part))
    now, later = _used(symtable.symtable(text, "cell", "exec"))
    return CellStatement(
        0,
        line,
        text,
        binds=binds,
        perhaps=frozenset(_bound_anywhere(tree)) - binds,
        changes=frozenset(_changed(tree)),
        calls=frozenset(_called(tree)),
        defines=defines,
        fixed=defines | imports,
        now=frozenset(now),
        later=frozenset(later),
    )


def stands_on(statements: Sequence[CellStatement], place: int, names: Iterable[str]) -> set[int]:
    """Return the indices of those statements before a place that give these names their values there, and all they use.

    What a function uses is looked up when it is called: that may be at once, or at the place.
    """
    found: set[int] = set()
    waiting = [(name, place) for name in names]
    seen = set(waiting)
    while waiting:
        name, before = waiting.pop()
        for index in _givers(statements, name, before):
            found.add(index)
            here = statements[index]
            uses = [(used, index) for used in here.now | here.later] + [(used, place) for used in here.later]
            waiting += [use for use in uses if use not in seen]
            seen |= set(uses)
    return found


def _givers(statements: Sequence[CellStatement], name: str, before: int) -> list[int]:
    """Return the last statement before a place that binds a name, and those behind it that may change the value.

    What is fixed is not changed by what is called: `Square.apply(x)` leaves no mark, `batches.append(x)` does. Python's
    own names, bound by no statement, are fixed: `isinstance(x, list)` leaves none on `list`.
    """
    found: list[int] = []
    called: list[int] = []
    for index in reversed(range(before)):
        here = statements[index]
        if name in here.marked or STAR in here.binds:
            found.append(index)
        elif name in here.calls:
            called.append(index)
        if name in here.fixed:
            return found
        if name in here.binds:
            return found + called
    return [] if hasattr(builtins, name) else found + called


def _bound(part: ast.stmt) -> Iterator[str]:
    """Yield what a statement binds in any case."""
    if isinstance(part, IMPORTS):
        for alias in part.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(part, ast.Assign):
        for target in part.targets:
            yield from _names_in(target)
    elif isinstance(part, ast.AnnAssign) and part.value is not None:
        yield from _names_in(part.target)
    elif isinstance(part, ast.With):
        for inner in part.body:
            yield from _bound(inner)


def _names_in(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what stands below it, but not what waits for a call, nor what a class keeps to itself."""
    yield node
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, (*DEFINITIONS, ast.Lambda)):
            yield from _outside_of_functions(inner)


def _bound_anywhere(tree: ast.Module) -> Iterator[str]:
    """Yield what loops, conditions and blocks bind, too."""
    for node in _outside_of_functions(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, IMPORTS):
            yield from _bound(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
    for part in tree.body:
        for inner in ast.iter_child_nodes(part):
            if isinstance(inner, DEFINITIONS) and not isinstance(part, ast.ClassDef):
                yield inner.name


def _changed(tree: ast.Module) -> Iterator[str]:
    """Yield names of which a part is assigned: `x[0] = 1`, `x.a = 1`, `setattr(x, "a", 1)`."""
    for node in _outside_of_functions(tree):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            yield from _root(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            yield from _root(node.args[0]) if node.func.id in ("setattr", "delattr") else ()


def _called(tree: ast.Module) -> Iterator[str]:
    """Yield names of which a method is called, and those that are passed to a call: `x.append(1)`, `train(x)`."""
    for node in _outside_of_functions(tree):
        if not isinstance(node, ast.Call) or PURE.fullmatch(ast.unparse(node.func)):
            continue
        values = [*node.args, *(word.value for word in node.keywords if word.arg)]
        if isinstance(node.func, ast.Attribute):
            values.append(node.func.value)
        for value in values:
            if isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.List, ast.Tuple)):
                yield from (inner.id for inner in ast.walk(value) if isinstance(inner, ast.Name))


def _root(node: ast.expr) -> Iterator[str]:
    """Yield the name that an attribute or an item belongs to."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _used(table: symtable.SymbolTable, waits: bool = False) -> tuple[set[str], set[str]]:
    """Return the names that a scope looks up outside of itself: when it runs, and when its functions are called."""
    now: set[str] = set()
    later: set[str] = set()
    for symbol in table.get_symbols():
        outside = symbol.is_global() or table.get_type() == "module"
        if outside and symbol.is_referenced():
            (later if waits else now).add(symbol.get_name())
    for inner in table.get_children():
        deferred = inner.get_type() == "function" and inner.get_name() not in AT_ONCE
        inner_now, inner_later = _used(inner, waits or deferred)
        now |= inner_now
        later |= inner_later
    return now, later
