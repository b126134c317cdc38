"""What to grade: the exercises that the course asks, and where and with what a student's notebook answers each.

CourseExercise  an exercise as the course's solution asks it
Try             one way to ask it of a student: the statements to run, then the arguments of the check
exercises_of    the exercises of a notebook of the course, in order
tries           the ways to ask one of them, of a student's statements
room_of         which notebook of the course a student's is, whatever its name
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from tools.statements import CellStatement, read_statements, stands_on

ROOM = re.compile(r"\bsupport\.(n\d\d)\b")
#: What starts a device changes what checks behind it can try, and gives them no name.
STARTS = "start_device("


@dataclass(frozen=True)
class CourseExercise:
    """An exercise: the name of its check in the room, and the texts of what the solution gives it."""

    check: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Try:
    """A way to ask an exercise.

    arguments   their texts
    statements  the indices of those that they stand on
    first       the indices of those that are run, too, and may fail: they start devices
    """

    arguments: tuple[str, ...]
    statements: tuple[int, ...]
    first: tuple[int, ...]


def exercises_of(solution: Path) -> list[CourseExercise]:
    """Return the exercises that a solution of the course answers, in order."""
    statements = read_statements(code_of(nbformat.read(solution, as_version=4)))
    calls = [CourseExercise(check, arguments) for statement in statements for check, arguments in _calls(statement)]
    return list({call.check: call for call in reversed(calls)}.values())[::-1]


def code_of(notebook: Any) -> list[str]:
    """Return the texts of the code cells that have one: to others Run All gives no number."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def room_of(notebook: Any) -> str:
    """Return the room whose checks most cells of a notebook name, as "n08", "" if none."""
    rooms = Counter(room for source in code_of(notebook) for room in ROOM.findall(source))
    return max(rooms, key=lambda room: rooms[room], default="")


def tries(statements: Sequence[CellStatement], exercise: CourseExercise) -> list[Try]:
    """Return the ways to ask an exercise: the best of them counts.

    Where the notebook asks it, with the course's names; behind the last statement that defines one of them; and with
    what the notebook itself gives the check, since functions may be renamed.
    """
    names = exercise.arguments
    own = [
        (arguments, index)
        for index, statement in enumerate(statements)
        for check, arguments in _calls(statement)
        if check == exercise.check
    ]
    ways: list[tuple[tuple[str, ...], int]] = []
    if all(any(name in statement.binds for statement in statements) for name in names):
        ways += [(arguments, index) for arguments, index in own if arguments == names][-1:]
        defining = [index for index, statement in enumerate(statements) if statement.defines & set(names)]
        ways += [(names, max(defining, default=len(statements) - 1) + 1)]
    ways += reversed(own)
    found = [_try(statements, arguments, place) for arguments, place in ways or [(names, len(statements))]]
    return list(dict.fromkeys(found))


def _try(statements: Sequence[CellStatement], arguments: tuple[str, ...], place: int) -> Try:
    names = {node.id for text in arguments for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    own = stands_on(statements, place, names)
    starting = {index for index in range(place) if STARTS in statements[index].code} - own
    first = starting | {before for index in starting for before in stands_on(statements, index, statements[index].now)}
    return Try(arguments, tuple(sorted(own)), tuple(sorted(first - own)))


def _calls(statement: CellStatement) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each check that is asked, with the texts of its arguments: `check_x(a, b)`, `use((a, b), check_x)`."""
    try:
        tree = ast.parse(statement.code)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = _last_name(node.func)
        if name.startswith("check_") and node.args:
            yield name, tuple(map(ast.unparse, node.args))
        elif name == "use" and len(node.args) > 1 and _last_name(node.args[1]).startswith("check_"):
            answer = node.args[0]
            parts = answer.elts if isinstance(answer, ast.Tuple) else [answer]
            yield _last_name(node.args[1]), tuple(map(ast.unparse, parts))


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
