"""What a reader's functions keep outside of themselves from call to call, as a list at the level of a module.

state_of      pictures what lies outside of functions and classes, by name, so that two moments can be compared
remembering   a trial that names what an answer keeps, where the answer is wrong: no other sentence may be true of it
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

DEEP = 4  # lists in lists in lists
PLAIN = (bool, int, float, str, bytes, type(None))

REMEMBERED = "One call leaves something there, and the next one finds it: begin each with nothing."


def remembering(trial: Callable[[Any], str]) -> Callable[[Any], str]:
    """Make a trial that tells of a wrong answer what it keeps from call to call, and otherwise what `trial` tells.

    An answer may be a tuple. Whatever goes wrong then may come of what an earlier call has left, so this alone is said.
    """

    def tried(answer: Any) -> str:
        parts = answer if isinstance(answer, tuple) else (answer,)
        before = state_of(*parts)
        try:
            said = trial(answer)
        except Exception:
            kept = changed_since(before, state_of(*parts))
            if kept:
                return told_of_kept(kept)
            raise
        kept = changed_since(before, state_of(*parts)) if said else []
        return told_of_kept(kept) if kept else said

    return tried


def told_of_kept(names: list[str]) -> str:
    """Say that what has these names outlives a call."""
    quoted = ", ".join(f"`{name}`" for name in names)
    return f"your code keeps something outside of its function, in {quoted}. {REMEMBERED}"


def changed_since(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return the names that stand for something else now."""
    return [name for name, value in after.items() if name not in before or before[name] != value]


def state_of(*parts: Any) -> dict[str, object]:
    """Return what lies outside of functions and classes and can change: by name, a picture that can be compared.

    Globals that their text names, cells of closures, defaults, attributes of functions and classes; also those of the
    functions and classes beside them that they name.
    """
    state: dict[str, object] = {}
    waiting = list(parts)
    seen: set[int] = set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        for name, value in _outside(thing):
            if isinstance(value, (FunctionType, type)):
                its_own = thing in parts and isinstance(thing, type)  # a method, wherever it was written
                waiting += [value] if its_own or _beside(value, parts) else []
            elif not callable(value):
                state[name] = _picture(value, DEEP)
    return state


def _outside(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function or class names, or holds, by name."""
    if isinstance(thing, type):
        for name, value in vars(thing).items():
            # __iter__ is the reader's, __doc__ isn't
            if isinstance(value, FunctionType) or not name.startswith("__"):
                yield name, value
        return
    function = getattr(thing, "__func__", thing)
    if not isinstance(function, FunctionType):
        return
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a cell that is still empty
            yield name, cell.cell_contents
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    yield from vars(function).items()


def _names(code: CodeType) -> set[str]:
    """Return the names that a text and the functions inside it use."""
    inside = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inside)


def _beside(thing: Any, parts: tuple[Any, ...]) -> bool:
    """Say whether a function or class was written where one of the answers was."""
    return thing.__module__ in {getattr(part, "__module__", None) for part in parts}


def _picture(value: Any, deep: int) -> object:
    """Return what tells a value from another: of containers what they hold."""
    if isinstance(value, PLAIN):
        return value
    if deep and isinstance(value, Mapping):
        return [(_picture(key, 0), _picture(held, deep - 1)) for key, held in value.items()]
    if deep and isinstance(value, (list, tuple, set, deque)):
        return [_picture(held, deep - 1) for held in value]
    return id(value)
