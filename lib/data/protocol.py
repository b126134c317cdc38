r"""What a meta server can be asked, and what it answers: from a request to a reply, without any socket.

    GET  /len          400000000                            how many rows there are
    GET  /get/17       "img/0017.png \"a seven\""           one row
    POST /rows  [3,1]  ["img/0003.png …", "img/0001.png …"] many rows in one request, in the order asked

Answers are JSON in plain ASCII: a byte of the file that is no UTF-8 travels as the escape of the surrogate that stands
for it (\udc80 … \udcff), so every row arrives as `MetaFile.rows` gives it. An error is a 4xx or 5xx with
{"error": kind, "message": text}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

from lib.data.wire import Message

MAX_IDS = 65_536
"""Rows that one request may ask for."""
MAX_BODY = 1 << 20
"""Bytes of a request's body: room for MAX_IDS ids of 15 digits."""
MAX_ANSWER = 1 << 26
"""Characters of the rows in one answer."""
PART = 256  # rows read before MAX_ANSWER is looked at again


class Rows(Protocol):
    """What can be served: a MetaFile, or anything with its `len` and `rows`. `rows` is called from many threads."""

    def __len__(self) -> int: ...

    def rows(self, ids: list[int], /) -> Sequence[str]:
        """Return the rows of these ids, in this order."""
        ...


class RefusedError(Exception):
    """A request that cannot be served: the HTTP status, the kind of error, and the text for who asked."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status, self.kind = status, kind


def reply(rows: Rows, request: Message) -> tuple[int, Any, bool]:
    """Return the status of a request, the value to send, and whether the connection may serve another."""
    parts = request.start.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        return 400, error_value("ValueError", f"no HTTP/1 request line: {request.start[:80]!r}"), False
    method, path, version = parts
    if method == "POST" and "content-length" not in request.headers:
        return 411, error_value("ValueError", "a POST needs a Content-Length"), False
    keep = version != "HTTP/1.0" and request.headers.get("connection", "").lower() != "close"
    keep = keep and method in ("GET", "POST")  # the answer to HEAD may have no body, for one
    try:
        return 200, answer(rows, method, path, request.body), keep
    except RefusedError as error:
        return error.status, error_value(error.kind, error), keep
    except Exception as error:  # the meta file is gone or changed: the client must hear of it
        return 500, error_value(type(error).__name__, error), keep


def error_value(kind: str, text: object) -> dict[str, str]:
    """Return what is sent for an error."""
    return {"error": kind, "message": str(text)}


def answer(rows: Rows, method: str, path: str, body: bytes) -> Any:
    """Return what a request asks for, as a value to send; raises RefusedError."""
    allowed = "POST" if path == "/rows" else "GET"
    if path not in ("/rows", "/len") and not path.startswith("/get/"):
        text = f"nothing at {path[:80]!r}; ask GET /len, GET /get/17, or POST /rows with [3,1,4]"
        raise RefusedError(404, "LookupError", text)
    if method != allowed:
        raise RefusedError(405, "ValueError", f"{path[:80]} is asked with {allowed}, not {method[:20]}")
    if path == "/len":
        return len(rows)
    if path == "/rows":
        return _read(rows, _parsed(body))
    if not re.fullmatch(r"-?[0-9]{1,18}", path[5:]):
        raise RefusedError(400, "TypeError", f"a row is asked for by its number, not {path[5:85]!r}")
    return _read(rows, [int(path[5:])])[0]


def _parsed(body: bytes) -> list[int]:
    try:
        ids = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "ValueError", f"the body is no JSON: {error}") from None
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
        raise RefusedError(400, "TypeError", "the body must be a JSON list of integers, as in [3,1,4]")
    if len(ids) > MAX_IDS:
        text = f"one request may ask for {MAX_IDS} rows, not {len(ids)}; send several"
        raise RefusedError(413, "ValueError", text)
    return ids


def _read(rows: Rows, ids: list[int]) -> list[str]:
    size = len(rows)
    if ids and not 0 <= min(ids) <= max(ids) < size:
        wrong = next(i for i in ids if not 0 <= i < size)
        valid = f"rows are 0..{size - 1}" if size else "there are none"
        raise RefusedError(404, "IndexError", f"row {wrong} is out of range for {size} rows; {valid}")
    read: list[str] = []
    characters = 0
    for start in range(0, len(ids), PART):
        part = rows.rows(ids[start : start + PART])
        characters += sum(map(len, part))
        if characters > MAX_ANSWER:
            text = f"one answer may hold {MAX_ANSWER} characters; ask for fewer rows at once"
            raise RefusedError(413, "ValueError", text)
        read += part
    return read
