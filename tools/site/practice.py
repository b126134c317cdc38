"""Exercises that a reader does in the page: which of them can be, and what their editor must know.

An exercise enters when its check needs nothing that a page lacks (support.kit.portable). The page runs that check
itself, in a Python of its own (in_page.py): what it says is what the notebook says.
"""

from __future__ import annotations

import ast
import html
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from support.kit.exercise import Exercise
from tools.site.in_page import given

Statement = tuple[list[str], str]
"""The names that a statement of the notebook defines, and its text."""


#: Exercises that a page could judge, but not by the clock that it has.
BY_THE_CLOCK = {"n13.check_device_ms": "a finer clock"}


@dataclass(frozen=True)
class Practice:
    """An exercise with an editor.

    check: room and name of its check, "n08.check_simulate". answers: the names that the check is called with.
    stub: what stands in the editor. above: what the notebook has defined above. key: "08/2".
    """

    check: str
    answers: list[str]
    stub: str
    above: list[Statement]
    key: str


def called_check(source: str) -> tuple[str, list[str]] | None:
    """Return the last check that a cell calls, and the names that it asks for; None if it calls none."""
    try:
        calls = [_check(node) for node in ast.parse(source).body]
    except SyntaxError:  # a cell with a shell command
        return None
    return next((call for call in reversed(calls) if call), None)


def _check(node: ast.stmt) -> tuple[str, list[str]] | None:
    """Return the check that a statement calls, and the names that it asks for; None if it calls none."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not call.args or call.keywords:
        return None
    name = ast.unparse(call.func).rpartition(".")[2]
    if not name.startswith("check_") or not all(isinstance(each, ast.Name) for each in call.args):
        return None
    return name, [ast.unparse(each) for each in call.args]


def exercise_of(room: str, name: str) -> Exercise | None:
    """Return the exercise of a room with this name, if there is one."""
    try:
        checks = importlib.import_module(f"support.{room}.checks")
    except ModuleNotFoundError:
        return None
    found = getattr(checks, name, None)
    return found if isinstance(found, Exercise) else None


def editor_fragment(stem: str, exercise: int, cells: Sequence[str], above: Sequence[str]) -> str:
    """Return the HTML of an exercise's editor, or of the sentence that says why it has none.

    stem: of the notebook, "08_pipeline_clock". cells: the code of the exercise. above: that of the notebook before it.
    """
    calls = [call for call in map(called_check, cells) if call]
    number = stem[:2]
    room = f"n{number}"
    found = exercise_of(room, calls[-1][0]) if calls else None
    if found is None:
        return ""
    needed = BY_THE_CLOCK.get(f"{room}.{calls[-1][0]}", "") or lacks(found.needs())
    if needed:
        return cannot(needed, stem)
    practice = practice_of(number, exercise, cells, above)
    return "" if practice is None else with_editor(practice)


def practice_of(number: str, exercise: int, cells: Sequence[str], above: Sequence[str]) -> Practice | None:
    """Return what the editor of an exercise must know; None where no stub is found for what the check asks for."""
    name, answers = [call for call in map(called_check, cells) if call][-1]
    stubs = [stub for stub in (stub_of(answer, cells) for answer in answers) if stub]
    if not stubs:
        return None
    before = [statement for source in above for statement in harmless_statements(source)]
    mine = [statement for source in cells for statement in harmless_statements(source)]
    helpers = [(names, text) for names, text in mine if not {*names} & {*answers}]
    text = "\n\n\n".join(dict.fromkeys(stubs))
    return Practice(f"n{number}.{name}", answers, text, [*before, *helpers], f"{number}/{exercise}")


def stub_of(answer: str, cells: Sequence[str]) -> str:
    """Return the text that defines a name in the cells of an exercise, with the comments in it; "" if none does."""
    for source in cells:
        try:
            body = ast.parse(source).body
        except SyntaxError:
            continue
        lines = source.splitlines()
        for place, node in enumerate(body):
            if answer in _defined(node):
                last = body[place + 1].lineno - 1 if place + 1 < len(body) else len(lines)
                ends = (node.end_lineno or last) if isinstance(node, ast.Assign) else last
                return "\n".join(lines[node.lineno - 1 : ends]).rstrip()
    return ""


def harmless_statements(source: str) -> Iterator[Statement]:
    """Yield the statements of a cell that a page may run: imports, definitions, plain values, parts of ours."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return
    for node in body:
        names = _defined(node)
        ours = _ours(node)
        call = _check(node)
        if call:
            check, names = call
            ours = f"{', '.join(names)} = checks.{check}.reference"
        if ours:
            yield names, ours
        elif _is_harmless(node):
            yield names, ast.unparse(node)


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign):
        return [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    return []


def _ours(node: ast.stmt) -> str:
    """Return, for `mine = checks.use(answer, checks.check_it)`, the text that takes ours; "" for anything else."""
    value = node.value if isinstance(node, ast.Assign) else None
    if not (isinstance(node, ast.Assign) and isinstance(value, ast.Call) and len(value.args) > 1):
        return ""
    if ast.unparse(value.func).rpartition(".")[2] != "use":
        return ""
    target = ast.unparse(node.targets[0])
    ours = ast.unparse(value.args[2]) if len(value.args) > 2 else f"{ast.unparse(value.args[1])}.reference"
    return f"{target} = {ours}"


def _is_harmless(node: ast.stmt) -> bool:
    """Say whether a statement computes nothing: it imports, defines, or names a plain value."""
    if isinstance(node, ast.Assign):
        return _is_plain(node.value)
    return isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)


def _is_plain(value: ast.expr) -> bool:
    """Say whether an expression is made of numbers, words and containers only."""
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError):
        return False
    return True


# ---- as HTML

_LACKS = {"torch": "torch", "numpy": "NumPy"}


def lacks(needs: Mapping[str, set[str]]) -> str:
    """Say in words what an exercise needs that a page has not."""
    names = {name for some in needs.values() for name in some}
    said = [word for name, word in _LACKS.items() if name in names]
    if names - _LACKS.keys():
        said += ["threads", "processes"]
    return " and ".join(filter(None, [", ".join(said[:-1]), *said[-1:]]))


def cannot(needed: str, stem: str) -> str:
    """Return the sentence below an exercise that no page can check, with the way to its notebook."""
    notebook = f'<a href="notebooks/{stem}.ipynb" download>the notebook</a>'
    return f'<p class="practice-not">This exercise needs {needed}, which a page has not. Do it in {notebook}.</p>'


def with_editor(practice: Practice) -> str:
    """Return the HTML that practice.js turns into an editor."""
    data: dict[str, Any] = asdict(practice)
    said = html.escape(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
    title = f"Write exercise {int(practice.key.partition('/')[2])} here"
    still = "<noscript>The editor needs a script; the notebook has the exercise, too.</noscript>"
    return f'<div class="practice" data-practice="{said}" data-title="{title}">{still}</div>'


# ---- to try it out


def solution_of(practice: Practice, cells: Sequence[str], above: Sequence[str]) -> str:
    """Return the code that solves an exercise: what its solution's cells define, and what it needs from the others.

    cells: of the solution. above: all cells of the notebook of solutions.
    """
    parts = dict.fromkeys(stub_of(answer, cells) for answer in practice.answers)
    text = "\n\n\n".join(part for part in parts if part)
    needed = given(text, [statement for source in above for statement in harmless_statements(source)])
    return "\n".join([*dict.fromkeys(needed), text])


def mistake_of(practice: Practice, number: int) -> str:
    """Return code that takes a famous mistake for the reader's answer, by its number."""
    room, _, check = practice.check.partition(".")
    answer = f"checks.{check}.famous[{number}].answer"
    return f"from support.{room} import checks\n{', '.join(practice.answers)} = {answer}"


def job_of(practice: Practice, code: str) -> dict[str, Any]:
    """Return what in_page.judge is asked about some code."""
    return {"check": practice.check, "answers": practice.answers, "above": practice.above, "code": code}
