"""An answer as another process runs it: its sets are read in another order, its hashes are others, names may lack."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, TypeVar

from support.kit.source import source_of
from support.ranks import unknown_to_a_rank

T = TypeVar("T")


class _LastFirst(set[T]):
    """A set that is read from its end: the order of types hangs on their addresses, new in each process."""

    def __iter__(self) -> Iterator[T]:
        return reversed([*super().__iter__()])

    def pop(self) -> T:
        """Take out the one that is read first."""
        first = next(iter(self))
        self.remove(first)
        return first


def _stays(made: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of sets whose result is read from its end, too."""

    def method(*sets: Any) -> Any:
        found = made(*sets)
        return _LastFirst(found) if isinstance(found, set) else found

    return method


for _made in (set.union, set.intersection, set.difference, set.copy, set.__or__, set.__and__, set.__sub__):
    setattr(_LastFirst, _made.__name__, _stays(_made))


def _other_hash(value: object) -> int:
    """Return a hash, or an id, that orders values the other way round: those of types hang on addresses, too."""
    return -hash(value)


class _WrittenAsCalls(ast.NodeTransformer):
    """Write {…} as set({…}), so that the name `set` decides."""

    def visit_Set(self, node: ast.Set) -> ast.AST:
        return self._called(node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.AST:
        return self._called(node)

    def _called(self, node: ast.expr) -> ast.AST:
        self.generic_visit(node)
        call = ast.Call(ast.Name("set", ast.Load()), [node], [])
        return ast.copy_location(call, node)


def _hangs_on_addresses(node: ast.AST) -> bool:
    is_named = isinstance(node, ast.Name) and node.id in ("set", "frozenset", "hash", "id")
    return is_named or isinstance(node, (ast.Set, ast.SetComp))


def with_sets_in_another_order(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return an answer with its sets read from the end and other hashes; itself if it has neither, or no text."""
    answer = inspect.unwrap(answer)
    try:
        tree = ast.parse(source_of(answer))
    except ValueError:
        return answer
    if not any(map(_hangs_on_addresses, ast.walk(tree))):
        return answer
    tree = ast.fix_missing_locations(_WrittenAsCalls().visit(tree))
    ast.increment_lineno(tree, answer.__code__.co_firstlineno - 1)
    others = {"set": _LastFirst, "frozenset": _LastFirst, "hash": _other_hash, "id": _other_hash}
    space = {**answer.__globals__, **others}
    exec(compile(tree, answer.__code__.co_filename, "exec"), space)
    other: Callable[..., Any] = space[answer.__name__]
    return other


def fault_of_names(answer: Callable[..., Any]) -> str:
    """Say what a right answer uses that no process knows which is sent its text, "" if nothing."""
    unknown = unknown_to_a_rank(answer) if isinstance(answer, FunctionType) else ""
    if not unknown:
        return ""
    return f"right here, but a process that gets this function's text does not know `{unknown}`: write that inside."
