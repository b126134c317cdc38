"""Which names a test file uses that do not exist: for tests that nobody here can run.

Nothing of the file runs. Followed are imports, dotted names as far as modules and classes go, keywords of what is
called by such a name, what monkeypatch.setattr replaces, names of recordings, and the same in programs that stand in a
string.
"""

import ast
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from support.recordings import RECORDINGS

_NOT_FOUND = object()


def missing_names(source: str) -> list[str]:
    """Return a sentence for each name that does not exist, with its line."""
    tree = ast.parse(source)
    found = [sentence for program in _programs(tree) for sentence in missing_names(program)]
    file = _File()
    file.visit(tree)
    return file.missing + [f"in a program in a string: {sentence}" for sentence in found]


def _programs(tree: ast.Module) -> Iterator[str]:
    """Yield the strings that are programs: a {placeholder} in one is a set to Python, and does no harm."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\nimport " in f"\n{node.value}":
            yield node.value


class _File(ast.NodeVisitor):
    """Walk through a file, and note what is missing."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.imported: dict[str, Any] = {}
        self.local: list[set[str]] = []  # names that the functions around this place bind themselves

    def note(self, node: ast.AST, sentence: str) -> None:
        self.missing.append(f"line {getattr(node, 'lineno', 0)}: {sentence}")

    # ---- what is imported

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            module = _module(alias.name)
            if module is None:
                self.note(node, f"there is no module {alias.name}")
            elif alias.asname:
                self.imported[alias.asname] = module
            else:
                top = alias.name.partition(".")[0]
                self.imported[top] = importlib.import_module(top)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        home = node.module or ""
        module = _module(home)
        if module is None:
            self.note(node, f"there is no module {home}")
            return
        for alias in node.names:
            value = _attribute(module, alias.name)
            if value is _NOT_FOUND:
                self.note(node, f"{home} has no {alias.name}")
            else:
                self.imported[alias.asname or alias.name] = value

    # ---- what is used

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._in_function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._in_function(node)

    def _in_function(self, node: ast.FunctionDef | ast.Lambda) -> None:
        self.local.append({argument.arg for argument in ast.walk(node) if isinstance(argument, ast.arg)})
        self.local[-1] |= {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        self.generic_visit(node)
        self.local.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            home = self.value(node.value)
            if _has_known_names(home) and _attribute(home, node.attr) is _NOT_FOUND:
                self.note(node, f"{ast.unparse(node.value)} has no {node.attr}")
        self.generic_visit(node)

    def value(self, node: ast.expr) -> Any:
        """Return what a dotted name stands for, if that can be known without running anything."""
        if isinstance(node, ast.Name) and not any(node.id in names for names in self.local):
            return self.imported.get(node.id, _NOT_FOUND)
        if isinstance(node, ast.Attribute):
            home = self.value(node.value)
            if _has_known_names(home):
                return _attribute(home, node.attr)
        return _NOT_FOUND

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if name == "monkeypatch.setattr" and len(node.args) == 3:
            self._replaced(node)
        if name in ("recordings.make_recording", "recordings.load") and isinstance(node.args[0], ast.Constant):
            recording = node.args[0].value
            if recording not in {known.name for known in RECORDINGS}:
                self.note(node, f"there is no recording {recording}")
        accepted = _keywords(self.value(node.func))
        for keyword in node.keywords:
            if accepted is not None and keyword.arg is not None and keyword.arg not in accepted:
                self.note(node, f"{name} has no argument {keyword.arg}")
        self.generic_visit(node)

    def _replaced(self, node: ast.Call) -> None:
        home = self.value(node.args[0])
        name = node.args[1]
        if _has_known_names(home) and isinstance(name, ast.Constant) and _attribute(home, name.value) is _NOT_FOUND:
            self.note(node, f"{ast.unparse(node.args[0])} has no {name.value}")


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _attribute(home: Any, name: str) -> Any:
    if hasattr(home, name):
        return getattr(home, name)
    if isinstance(home, ModuleType):
        return _module(f"{home.__name__}.{name}") or _NOT_FOUND
    return _NOT_FOUND


def _has_known_names(value: Any) -> bool:
    return isinstance(value, (ModuleType, type))


def _keywords(function: Any) -> set[str] | None:
    """Return the arguments that a function of ours takes by name; None where any may be given, or it is not ours."""
    ours = getattr(function, "__module__", "") or ""
    if not callable(function) or ours.partition(".")[0] not in ("lib", "support", "tests"):
        return None
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return set(parameters)
