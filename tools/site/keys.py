"""What a frame, or a run of a notebook, depends on, as one hash: a wrong hit would show a stale picture."""

from __future__ import annotations

import functools
import hashlib
import platform
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.project import ROOT

#: Modules whose plain objects can be looked through: those of the project, of the notebook itself, and networks.
HOUSE = ("lib", "support", "tools", "tests", "__main__", "torch")
Cached: Any = functools._lru_cache_wrapper


class Unkeyed(ValueError):
    """An object of which nobody knows what it depends on: no cache is better than a stale picture."""


def digest(*parts: object) -> str:
    """Return a hash of the texts of `parts`."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part if isinstance(part, bytes) else str(part).encode())
        hashed.update(b"\0")
    return hashed.hexdigest()[:32]


def files(paths: Iterable[Path], root: Path = ROOT) -> str:
    """Return a hash of the names and contents of files."""
    there = sorted(path for path in paths if path.is_file() and "__pycache__" not in path.parts)
    return digest(*(part for path in there for part in (path.relative_to(root), path.read_bytes())))


@functools.cache
def house(rooms: tuple[str, ...], root: Path = ROOT) -> str:
    """Return a hash of all that draws in these rooms: lib, what all rooms share, the rooms, recordings, libraries."""
    import matplotlib
    import numpy
    import torch

    notebooks = root / "notebooks"
    paths = [*(root / "lib").rglob("*.py"), *(notebooks / "support").glob("*.py"), *notebooks.glob("*.py")]
    for room in rooms:
        paths += (notebooks / "support" / room).rglob("*")
    paths += [*(notebooks / "recorded").rglob("*"), root / "tools" / "site" / "atlas.py"]
    versions = platform.python_version(), torch.__version__, numpy.__version__, matplotlib.__version__
    return digest(files(paths, root), *versions)


def rooms_of(sources: Iterable[str]) -> tuple[str, ...]:
    """Return the rooms that code names: n08."""
    return tuple(sorted({room for text in sources for room in re.findall(r"\bn\d\d\b", text)}))


def fingerprint(value: object) -> str:
    """Return a text that is equal for two values only if they draw the same, apart from what `house` hashes.

    Raises Unkeyed for an object that cannot be looked through.
    """
    return digest(*_parts(value, {}))


#: Objects on the way, by id: each with its number, and kept alive so that no other object gets its id.
Seen = dict[int, tuple[int, object]]


def _parts(value: Any, seen: Seen) -> Iterator[object]:
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}"
    if value is None or kind in (bool, int, float, complex, str, bytes, range, slice, type(...)):
        yield repr(value)
    elif id(value) in seen:
        yield f"again {seen[id(value)][0]}"
    else:
        seen[id(value)] = len(seen), value
        yield from _inside(value, seen)


def _inside(value: Any, seen: Seen) -> Iterator[object]:
    kind = type(value)
    base = kind.__module__.partition(".")[0]
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, Cached)):
        yield from _named(value, seen)
    elif isinstance(value, types.MethodType):
        yield from _many((value.__func__, value.__self__), seen)
    elif isinstance(value, functools.partial):
        yield from _many((value.func, value.args, value.keywords), seen)
    elif isinstance(value, staticmethod | classmethod):
        yield from _many([value.__func__], seen)
    elif isinstance(value, property):
        yield from _many((value.fget, value.fset), seen)
    elif isinstance(value, Mapping) and base in ("builtins", "collections"):
        yield from _many([part for pair in value.items() for part in pair], seen)
    elif isinstance(value, list | tuple):
        yield from _many(value, seen)
    elif isinstance(value, set | frozenset):
        yield from sorted(fingerprint(part) for part in value)
    elif base in ("numpy", "torch") and hasattr(value, "dtype") and hasattr(value, "shape"):
        array = value.detach().cpu().numpy() if hasattr(value, "detach") else value
        if array.dtype == object:
            raise Unkeyed(f"{kind} of objects")
        yield from (str(array.dtype), str(array.shape), array.tobytes())
    elif isinstance(value, Path):
        yield str(value)
    elif base in HOUSE and "__reduce__" not in {name for each in kind.__mro__[:-1] for name in vars(each)}:
        slots = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
        held = {**getattr(value, "__dict__", {}), **{name: getattr(value, name, None) for name in slots}}
        yield from _many([kind, held], seen)
    else:
        raise Unkeyed(f"{kind.__module__}.{kind.__qualname__}")


def _many(values: Iterable[object], seen: Seen) -> Iterator[object]:
    for value in values:
        yield from _parts(value, seen)
    yield "end"


def _named(value: Any, seen: Seen) -> Iterator[object]:
    """Yield the name of what is found under it in its module, where the sources tell the rest, otherwise its parts."""
    name = getattr(value, "__qualname__", value.__name__)
    yield f"{value.__module__ if hasattr(value, '__module__') else ''}.{name}"
    place: Any = sys.modules.get(getattr(value, "__module__", None) or "")
    if isinstance(value, types.ModuleType) or (place is not None and place.__name__ != "__main__"):
        for part in () if isinstance(value, types.ModuleType) else name.split("."):
            place = getattr(place, part, None)
        if isinstance(value, types.ModuleType) or place is value:
            return
    if isinstance(value, types.FunctionType):
        yield from _function(value, seen)
    elif isinstance(value, type):
        skipped = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__"}
        yield from _many([*value.__bases__, {k: v for k, v in vars(value).items() if k not in skipped}], seen)
    elif isinstance(value, Cached):
        yield from _many([value.__wrapped__], seen)
    else:
        raise Unkeyed(f"{value!r}")


def _function(function: types.FunctionType, seen: Seen) -> Iterator[object]:
    codes = [function.__code__]
    for code in codes:
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
        constants = [part for part in code.co_consts if not isinstance(part, types.CodeType)]
        yield from (code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)
    try:
        closed = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:
        raise Unkeyed(f"{function.__qualname__} closes over what is not there yet") from None
    names = {name for code in codes for name in code.co_names}
    read = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
    yield from _many([function.__defaults__, function.__kwdefaults__, closed, read], seen)
