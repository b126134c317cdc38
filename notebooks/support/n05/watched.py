"""What is done to one file while an answer is tried: who opens it, which bytes are asked for, what moves its position.

watching    a context manager; whatever opens that file inside of it, by Python's own calls, is noted
FileWatch   what was noted
FarBytes    bytes that say that they are longer than they are, so that places beyond 32 bits cost nothing
"""

from __future__ import annotations

import builtins
import io
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any
from unittest import mock

import numpy as np

from support.kit.raised import Finding
from support.n05.copied import LocalsWatch

_EMPTY = 1_000  # reads that bring nothing: who goes on after them would never stop


@dataclass
class FileWatch:
    """What was done to a file. A size of -1 asks for all that is left; a place of None, for what stands there."""

    opened: int = 0
    moved: int = 0
    mapped: int = 0  # bytes in one map, at most
    reads: list[tuple[int | None, int]] = field(default_factory=list)
    locals: LocalsWatch = field(default_factory=LocalsWatch)
    empty: int = 0

    def clear(self) -> None:
        """Forget what was noted."""
        self.opened = 0
        self.moved = 0
        self.mapped = 0
        self.reads.clear()
        self.empty = 0

    def came(self, text: Any, size: Any) -> Any:
        """Return what a read has brought; raises a Finding where ever more of them bring nothing."""
        self.empty += not text and size != 0
        if self.empty > _EMPTY:
            raise Finding("the file is at its end, where each read comes back empty, and you read on and on.")
        return text

    def read_at_position(self, size: Any) -> None:
        """Note a read that moves the position."""
        self.moved += 1
        self.reads.append((None, -1 if size is None else int(size)))
        self.locals.look()


class FarBytes(bytes):
    """Bytes of a block that say that they are `more` longer: counting on their length leads far into a file."""

    more = 0

    def __len__(self) -> int:
        return super().__len__() + self.more

    def __bool__(self) -> bool:
        return super().__len__() > 0


class _FarArray(np.ndarray):
    """Bytes that numpy has read, as FarBytes are."""

    more = 0

    def __len__(self) -> int:
        return super().__len__() + self.more

    @property
    def size(self) -> int:
        return len(self)

    @property
    def nbytes(self) -> int:
        return len(self)


class _WatchedFile:
    """An open file that notes its reads and moves; far: how much longer each block says that it is."""

    def __init__(self, file: Any, watch: FileWatch, far: int) -> None:
        self._file = file
        self._watch = watch
        self._far = far
        self._beyond = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _WatchedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        while line := self.readline():
            yield line

    def tell(self) -> int:
        return int(self._file.tell()) + self._beyond

    def seek(self, *place: int) -> int:
        self._watch.moved += 1
        return int(self._file.seek(*place))

    def read(self, size: int | None = -1) -> Any:
        text = self._watch.came(self._file.read(size), size)
        if isinstance(text, str) and size is not None and size >= 0:
            # so many letters were asked for, and they take so many bytes
            size = max(size, len(text.encode(self._file.encoding)))
        self._watch.read_at_position(size)
        return self._told(text)

    read1 = read

    def readline(self, size: int | None = -1) -> Any:
        text = self._file.readline(size)
        self._watch.read_at_position(len(text))
        return self._told(text)

    def readinto(self, buffer: Any) -> Any:
        size = memoryview(buffer).nbytes
        self._watch.read_at_position(size)
        return self._watch.came(self._file.readinto(buffer), size)

    readinto1 = readinto

    def _told(self, text: Any) -> Any:
        told = _longer(text, self._far)
        self._beyond += len(told) - len(text)
        return told


def _is_open_at(number: int, target: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(number), target)
    except OSError:
        return False


def _longer(text: Any, more: int) -> Any:
    """Return bytes that say that they are `more` longer; none, or what is no bytes, as they are."""
    if not (more and isinstance(text, bytes) and text):
        return text
    told = FarBytes(text)
    told.more = more
    return told


@contextmanager
def watching(path: str, *answers: Any, far: int = 0) -> Iterator[FileWatch]:
    """Note what is done to a file of this path. answers: where names imported from os or io are found, too."""
    watch = FileWatch()
    is_it = partial(_is_open_at, target=os.stat(path))

    def opening(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def opened(name: Any, *arguments: Any, **named: Any) -> Any:
            made = call(name, *arguments, **named)
            if not is_it(made if isinstance(made, int) else made.fileno()):
                return made
            watch.opened += not isinstance(name, int)  # of a number, it is open already
            return made if isinstance(made, int) else _WatchedFile(made, watch, far)

        return opened

    def noting(call: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        @wraps(call)
        def noted(number: int, *arguments: Any) -> Any:
            if not is_it(number):
                return call(number, *arguments)
            note(*arguments)
            if far and note is read_at:  # where the file that is said to be so long has it
                arguments = (arguments[0], arguments[1] % far)
            got = call(number, *arguments)
            return got if note is moved else _longer(watch.came(got, arguments[0]), far)

        return noted

    def moved(*_: Any) -> None:
        watch.moved += 1

    def read_at(size: int, place: int) -> None:
        watch.reads.append((int(place), int(size)))
        watch.locals.look()

    def read_into_at(buffers: Any, place: int, *_: Any) -> None:
        read_at(sum(memoryview(buffer).nbytes for buffer in buffers), place)

    def read_into(buffers: Any) -> None:
        watch.read_at_position(sum(memoryview(buffer).nbytes for buffer in buffers))

    notes = {
        "lseek": moved,
        "read": watch.read_at_position,
        "readv": read_into,
        "pread": read_at,
        "preadv": read_into_at,
    }
    inner = opening(io.open)
    calls = [
        (np, "fromfile", _loading(np.fromfile, path, watch, far)),
        (mmap, "mmap", _mapping(mmap.mmap, is_it, watch)),
        *((module, "open", inner) for module in (builtins, io)),
        (os, "open", opening(os.open)),
        *((os, name, noting(getattr(os, name), note)) for name, note in notes.items() if hasattr(os, name)),
    ]
    with _in_place(calls, answers):
        yield watch


def _mapping(
    map_file: Callable[..., Any], is_it: Callable[[int], bool], watch: FileWatch
) -> Callable[..., Any]:
    """Return mmap.mmap with a note of how much of the file it maps."""

    @wraps(map_file)
    def mapped(number: int, *arguments: Any, **named: Any) -> Any:
        made = map_file(number, *arguments, **named)
        if number >= 0 and is_it(number):
            watch.mapped = max(watch.mapped, len(made))
        return made

    return mapped


def _loading(load: Callable[..., Any], path: str, watch: FileWatch, far: int) -> Callable[..., Any]:
    """Return np.fromfile, which reads behind Python's back, with a note of what it reads."""

    @wraps(load)
    def loaded(
        file: Any, dtype: Any = float, count: int = -1, sep: str = "", offset: int = 0, **named: Any
    ) -> Any:
        is_path = isinstance(file, (str, bytes, os.PathLike))
        if far and is_path:  # where the file that is said to be so long has it
            offset %= far
        got = load(getattr(file, "_file", file), dtype, count, sep, offset, **named)
        if not os.path.samefile(file if is_path else file.fileno(), path):
            return got
        watch.read_at_position(count if count < 0 else count * got.itemsize)
        watch.came(len(got), count)
        if not far or not len(got) or got.itemsize > 1:
            return got
        told = got.view(_FarArray)
        told.more = far
        return told

    return loaded


@contextmanager
def _in_place(calls: Sequence[tuple[Any, str, Any]], answers: Sequence[Any]) -> Iterator[None]:
    """Put calls in the place of a module's own, by their names and by those under which an answer has imported them."""
    with ExitStack() as stack:
        for module, name, call in calls:
            original = getattr(module, name)
            stack.enter_context(mock.patch.object(module, name, call))
            for names in map(_globals_of, answers):
                for other in [other for other, value in names.items() if value is original]:
                    stack.enter_context(mock.patch.dict(names, {other: call}))
        yield


def _globals_of(answer: Any) -> dict[str, Any]:
    """Return the globals of a function, or of a class's own methods."""
    methods = vars(answer).values() if isinstance(answer, type) else [answer]
    return next((method.__globals__ for method in methods if hasattr(method, "__globals__")), {})
