"""An answer as another process runs it: its sets are read in another order, and its hashes are others."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from support.kit.source import source_of

T = TypeVar("T")


class _LastFirst(set[T]):
    """A set that is read from its end: the order of types hangs on their addresses, new in each process."""

    def __iter__(self) -> Iterator[T]:
        return reversed([*super().__iter__()])


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
