"""What a page without torch would lack to run a function: found out from its code, without running it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

#: What a page's Python has not. Threads, processes and sockets are missing there, too.
FOREIGN = frozenset({"torch", "numpy", "threading", "multiprocessing", "subprocess", "socket", "ctypes"})
OURS = ("support", "lib")  # of these the code is followed; of all others only the name counts


def lacking(*things: Any) -> set[str]:
    """Return which packages of FOREIGN functions, classes and values lead to, through all code of ours.

    Of a class only those methods count whose name stands in some code that is reached, and those that Python calls.
    """
    found: set[str] = set()
    seen: set[int] = set()
    names: set[str] = set()
    methods: list[tuple[str, Any]] = []
    waiting = list(things)
    while waiting:
        thing = waiting.pop()
        if id(thing) not in seen:
            seen.add(id(thing))
            home = _home(thing)
            if home in FOREIGN:
                found.add(home)
            elif isinstance(thing, type):
                if _is_ours(thing):
                    waiting += thing.__bases__
                    methods += vars(thing).items()
            else:
                waiting += _leads_to(thing)
                names |= _names_in(thing)
        if not waiting:
            waiting = [method for name, method in methods if name in names or name.startswith("__")]
            methods = [
                (name, method) for name, method in methods if not (name in names or name.startswith("__"))
            ]
    return found


def _home(thing: Any) -> str:
    """Return the package that a thing belongs to."""
    if isinstance(thing, ModuleType):
        return thing.__name__.partition(".")[0]
    own = getattr(thing, "__module__", None)
    if not isinstance(own, str):
        own = type(thing).__module__
    return "torch" if own.startswith("torch") else own.partition(".")[0]


def _leads_to(thing: Any) -> Iterator[Any]:
    """Yield what a thing's code and parts name."""
    if isinstance(thing, partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, (staticmethod, classmethod)):
        yield thing.__func__
    elif isinstance(thing, property):
        yield thing.fget
    elif isinstance(thing, FunctionType):
        yield from _of_function(thing)
    elif hasattr(thing, "__wrapped__"):  # functools.cache
        yield thing.__wrapped__
    elif isinstance(thing, Mapping):
        yield from thing.values()
    elif isinstance(thing, Collection) and not isinstance(thing, (str, bytes)):
        yield from thing
    elif _is_ours(type(thing)):
        yield from (type(thing), *vars(thing).values()) if hasattr(thing, "__dict__") else (type(thing),)


def _of_function(function: FunctionType) -> Iterator[Any]:
    """Yield defaults, closure, and what a function's code finds among its globals; only of a function of ours."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield wrapped
    if not _is_ours(function):
        return
    names = _names_in(function)
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] in OURS:
            yield from (vars(value)[inner] for inner in names & vars(value).keys())
        elif value is not None:
            yield value
    yield from (sys.modules[name] for name in names & FOREIGN if name in sys.modules)


def _names_in(thing: Any) -> set[str]:
    """Return the names of globals and attributes in a function's code."""
    if not (isinstance(thing, FunctionType) and _is_ours(thing)):
        return set()
    names: set[str] = set()
    codes: list[CodeType] = [thing.__code__]
    for code in codes:
        names |= {*code.co_names}
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return names


def _is_ours(thing: Any) -> bool:
    module = getattr(thing, "__module__", None) or ""
    return module.partition(".")[0] in OURS or (
        module in ("__main__", "builtins") and isinstance(thing, FunctionType)
    )
