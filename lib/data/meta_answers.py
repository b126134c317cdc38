r"""What a meta server answers, whatever brings the questions: rows, their number, or why not.

    GET  /len          400000000                            how many rows there are
    GET  /stamp        [400000000, "57-17…-b2"]             that, and what tells these rows from others, as many of them
    GET  /get/17       "img/0017.png \"a seven\""           one row
    POST /rows  [3,1]  ["img/0003.png …", "img/0001.png …"] many rows in one request, in the order asked

Answers are JSON in plain ASCII: a byte of the file that is no UTF-8 travels as the escape of the surrogate that stands
for it (\udc80 … \udcff), so every row arrives as `MetaFile.rows` gives it.

Sizes are looked at before anything is read: of one answer, and of all those together that are made at a time.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lib.data.meta import MetaFile, Packed

MAX_IDS = 65_536  # rows that one request may ask for
MAX_ANSWER = 1 << 24  # bytes of the rows in one answer
MAX_MEMORY = 1 << 29  # bytes that all answers together may take, of those that are larger than SMALL
SMALL = 1 << 14  # bytes of rows: 512 such answers are a few MB, and counting costs more than they
GROWTH = 16  # bytes of memory for one of text: at worst a str of 2, its JSON of 6, as for \udc80, twice for a while
BUSY_SECONDS = 2.0  # an answer waits so long for memory that others hold
NUMBERS = b"0123456789-, \t\r\n"
PART = 256  # rows read before their size is looked at, of rows that can't say it before


class Rows(Protocol):
    """What can be served: a MetaFile, or what has its `len`, `rows` (called from many threads) and, best, `stamp`.

    stamp: a str that other rows, or another order of them, don't have. Without one, nobody can tell whether a server
    that was started anew has the same rows: to its clients it is a server of others.
    """

    def __len__(self) -> int: ...

    def rows(self, ids: list[int], /) -> Sequence[str]:
        """Return the rows of these ids, in this order."""
        ...


class RefusedError(Exception):
    """A request that we do not take or cannot serve: the HTTP status, the kind of error, the text for who sent it."""

    def __init__(self, status: int, text: str, kind: str = "ValueError") -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind


def stamp_of(rows: Rows) -> str:
    """Return what tells these rows from others: their own stamp, or one that nothing else has."""
    return str(getattr(rows, "stamp", "")) or uuid.uuid4().hex


def answer(rows: Rows, stamp: str, method: str, path: str, body: bytes, allow: Callable[[int], None]) -> Any:
    """Return what a request asks for, as a value for JSON; raises RefusedError, also for what reading raises.

    stamp: what is answered to /stamp. allow: called with how many bytes of rows will be read next; may raise
    RefusedError.
    """
    if path not in ("/len", "/stamp", "/rows") and not path.startswith("/get/"):
        text = f"nothing at {path[:80]!r}; ask GET /len, GET /get/17, or POST /rows with [3,1,4]"
        raise RefusedError(404, text, "LookupError")
    allowed = "POST" if path == "/rows" else "GET"
    if method != allowed:
        raise RefusedError(405, f"{path[:80]} is asked with {allowed}, not {method[:20]}")
    try:
        if path == "/len":
            return len(rows)
        if path == "/stamp":
            return [len(rows), stamp]
        if path == "/rows":
            return _read(rows, _ids(body), allow)
        return _read(rows, [_id(path.removeprefix("/get/"))], allow)[0]
    except RefusedError:
        raise
    except Exception as error:  # the meta file is gone or changed: the client must hear of it
        raise RefusedError(500, str(error), type(error).__name__) from error


def _id(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise RefusedError(400, f"a row is asked for by its number, not {text[:80]!r}", "TypeError")
    return int(text)


def _ids(body: bytes) -> list[int]:
    # A megabyte of "[[],[],…" would be a hundred thousand objects, and half a second of everybody's time.
    if len(body) > SMALL and body.strip().removeprefix(b"[").removesuffix(b"]").translate(None, NUMBERS):
        raise RefusedError(400, "the body is no JSON list of integers, as in [3,1,4]")
    try:
        ids = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is no JSON: {error}") from None
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
        raise RefusedError(400, "the body must be a JSON list of integers, as in [3,1,4]", "TypeError")
    if len(ids) > MAX_IDS:
        raise RefusedError(413, f"one request may ask for {MAX_IDS} rows, not {len(ids)}; send several")
    return ids


def _read(rows: Rows, ids: list[int], allow: Callable[[int], None]) -> Sequence[str]:
    size = len(rows)
    if ids and not 0 <= min(ids) <= max(ids) < size:
        wrong = next(i for i in ids if not 0 <= i < size)
        valid = f"rows are 0..{size - 1}" if size else "there are none"
        raise RefusedError(404, f"row {wrong} is out of range for {size} rows; {valid}", "IndexError")
    if isinstance(rows, MetaFile | Packed):
        return rows.rows(ids, allow)
    read: list[str] = []
    for start in range(0, len(ids), PART):  # how large these are is known only when they are there
        part = rows.rows(ids[start : start + PART])
        allow(sum(len(row.encode("utf-8", "surrogatepass")) for row in part))
        read += part
    return read


# ---- how much memory answers take


class AnswerMemory:
    """What all answers together may take: `free` bytes are left of it."""

    def __init__(self) -> None:
        self.free = MAX_MEMORY
        self._changed = threading.Condition()

    def take(self, size: int) -> None:
        """Take so much; waits for what others give back, and raises RefusedError if that is too little, too late."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.free >= size, BUSY_SECONDS):
                raise RefusedError(503, "the answers to others take all memory just now; ask again", "MemoryError")
            self.free -= size

    def give_back(self, size: int) -> None:
        """Give so much back, for those who wait."""
        with self._changed:
            self.free += size
            self._changed.notify_all()


class AnswerShare:
    """The memory that one answer holds: `with AnswerShare(memory) as share`, and none is held afterwards."""

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self._text = 0  # bytes of rows in the answer so far
        self._held = 0

    def allow(self, size: int) -> None:
        """Allow that so many bytes of rows are read for this answer; raises RefusedError."""
        self._text += size
        if self._text > MAX_ANSWER:
            raise RefusedError(413, f"one answer may hold {MAX_ANSWER} bytes of rows; ask for fewer rows at once")
        if self._text > SMALL:
            needed = GROWTH * self._text
            self._memory.take(needed - self._held)
            self._held = needed

    def shrink(self, size: int) -> None:
        """Give back what is held above `size`."""
        if self._held > size:
            self._memory.give_back(self._held - size)
            self._held = size

    def __enter__(self) -> AnswerShare:
        return self

    def __exit__(self, *_: object) -> None:
        self.shrink(0)
