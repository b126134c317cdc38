"""Famous wrong answers, made from the right one: by edits of its text, or by other methods.

edited        a function or class of the solution with some of its text otherwise
famous        a table of sentences and edits: one wrong answer for each
with_methods  a class of the solution with other methods
Mistake       a wrong answer that makes other famous mistakes, too, and names them
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from support.kit.source import source_of

#: Stands in a table for a new line, indented as deep as the body of a method.
NEW_LINE = "¶"
_numbers = count()


@dataclass(frozen=True, eq=False)
class Mistake:
    """A famous wrong answer: what is said of it, and the sentences of the mistakes that it contains.

    In an Exercise's table of mistakes the sentence is the key; a value is a wrong answer, or a Mistake(answer,
    contains=…) if what is said of other mistakes is true of it, too.
    """

    answer: Any
    contains: tuple[str, ...] = ()
    sentence: str = ""


def edited(thing: Any, *changes: tuple[str, str], names: Mapping[str, Any] | None = None) -> Any:
    """Return a function or class with some of its text otherwise; a tuple of them if it is given one.

    changes: (old, new), one after the other, wherever `old` stands. Raises ValueError if it stands nowhere.
    names: what the new text uses, beside the names of the module that defines the solution.
    """
    parts = thing if isinstance(thing, tuple) else (thing,)
    text = "\n\n\n".join(map(source_of, parts))
    for old, new in changes:
        if old not in text:
            told = ", ".join(part.__name__ for part in parts)
            raise ValueError(f"{told} has no {old!r}: the solution has changed, and this mistake must follow")
        text = text.replace(old, new)
    space = dict(vars(sys.modules[parts[0].__module__])) | dict(names or {})
    exec(compile(text, _remembered(text), "exec"), space)
    made = tuple(space[part.__name__] for part in parts)
    return made if isinstance(thing, tuple) else made[0]


def famous(
    thing: Any, table: str | Mapping[str, Sequence[str]], names: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Make a wrong answer for each sentence of a table; its edits may be data, or a text.

    data: {sentence: (old, new, old, new, …)}
    text: a line with the sentence, then a line with its edits, "old → new | old → new"; ¶ begins a new line
    Raises ValueError as `edited` does.
    """
    if not isinstance(table, str):
        rows = {sentence: _pairs(flat) for sentence, flat in table.items()}
    else:
        lines = [line.strip() for line in table.strip().splitlines()]
        rows = {
            sentence: [_change(change) for change in changes.split(" | ")]
            for sentence, changes in zip(lines[::2], lines[1::2], strict=True)
        }
    return {sentence: edited(thing, *changes, names=names) for sentence, changes in rows.items()}


def with_methods(base: type, **methods: Callable[..., Any]) -> Any:
    """Return a class of the solution with other methods."""
    return type(base.__name__, (base,), methods)


def _pairs(flat: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _change(text: str) -> tuple[str, str]:
    """Read "old → new"."""
    old, new = text.replace(NEW_LINE, "\n        ").split(" → ")
    return old, new


def _remembered(text: str) -> str:
    """Return a file name under which Python finds the text again, for tracebacks and further edits."""
    name = f"<edited {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return name
