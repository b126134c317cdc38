"""A dataset whose rows live in another process: `ServerDataset` asks a `MetaServer` for them."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from torch.utils.data import Dataset

from lib.arguments import integer, seconds_above_zero
from lib.data.deadline import DeadlineSocket, seconds_left
from lib.data.meta_answers import MAX_ANSWER, MAX_IDS

MAX_BYTES = 6 * MAX_ANSWER + 4 * MAX_IDS  # of an answer: JSON of the rows that the server sends at most
MAX_LINE = 8192  # bytes of a line in an answer's head
ASK_AGAIN = (408, 503)  # the request came too slowly, or the server is busy
Transform: TypeAlias = Callable[[str], Any]
PAUSE = 0.1  # seconds before the second retry; doubles with each further one
MAX_PAUSE = 2.0  # seconds, up to which it doubles


class StrangerError(ConnectionError):
    """Something answers, but it is no meta server; asking again would not help."""


class _Connection:
    """An HTTP connection to a meta server, for one thread at a time.

    For single rows http.client takes three times as long, mostly since it reads a head with the e-mail parser. A server
    needs the standard library's care for what anybody may send; here only what a meta server says is understood.
    """

    def __init__(self, host: str, port: int, deadline: float) -> None:
        self._host = host
        connection = socket.create_connection((host, port), timeout=seconds_left(deadline))
        # without it a small message may wait 40 ms for the acknowledgement of the one before it (Nagle's algorithm)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = DeadlineSocket.of(connection)
        self._answers = self.socket.makefile("rb")

    def exchange(self, request: str, body: bytes, deadline: float) -> tuple[int, bytes]:
        """Send a request, as "GET /len"; return the status and the body of the answer.

        Raises OSError where the connection fails, ValueError for an answer that no meta server gives. After any error
        only `close` is of use.
        """
        self.socket.deadline = deadline
        head = f"{request} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode("latin-1") + body)
        start = self._line()
        if not re.fullmatch(r"HTTP/1\.[01] [0-9]{3}( .*)?", start):
            raise ValueError(start)
        lengths = []
        while line := self._line():
            name, _, value = line.partition(":")
            if name.lower() == "content-length":
                lengths.append(int(value))
        if len(lengths) != 1 or not 0 <= lengths[0] <= MAX_BYTES:
            raise ValueError(start)
        text = self._answers.read(lengths[0])
        if len(text) < lengths[0]:
            raise ConnectionError("the peer hung up in mid-message")
        return int(start.split(" ")[1]), text

    def close(self) -> None:
        """Close this process's end; a process that was forked off keeps its own."""
        self._answers.close()
        self.socket.close()

    def _line(self) -> str:
        """Return the next line of a head, without its end."""
        line = self._answers.readline(MAX_LINE)
        if len(line) == MAX_LINE:
            raise ValueError(line.decode("latin-1"))
        if not line.endswith(b"\n"):
            raise ConnectionError("the peer hung up in mid-message" if line else "the peer hung up")
        return line.decode("latin-1").rstrip("\r\n")


class ServerDataset(Dataset[Any]):
    """The rows of a meta server as a map-style dataset: item i is row i, or transform(row).

    timeout: seconds that one access may take in all, retries included. retries: how many more times a request is sent
    when the connection fails or the server is busy, after 0, 0.1, 0.3, 0.7, 1.5, 3.1, 5.1, 7.1, … seconds.
    `__getitems__` makes one request of a DataLoader's batch. close() hangs up; an access after that connects anew.

    Connections are made when first needed, and kept. Each serves one thread at a time; a copy of the dataset in another
    process, forked or unpickled, makes its own: two that read one socket would take each other's answers.

    Raises IndexError outside 0..len-1 (no counting from the end), ConnectionError when no answer came in time or what
    answers is no meta server, RuntimeError when the server cannot read its file or now serves other rows than at the
    first connection, ValueError for a row that is larger than the server's MAX_ANSWER, 16 MB.
    """

    def __init__(
        self, host: str, port: int, *, timeout: float = 10.0, retries: int = 6, transform: Transform | None = None
    ) -> None:
        self.host = host
        self.port = integer("port", port, at_least=1, below=65_536)
        self.timeout = seconds_above_zero("timeout", timeout)
        self.retries = integer("retries", retries, at_least=0)
        self.transform = transform
        self._served: list[Any] = [-1, ""]  # length and stamp, from the first connection on
        self._idle: list[_Connection] = []
        self._owner = os.getpid()

    def __repr__(self) -> str:
        rows = f"{self._served[0]:,} rows" if self._served[0] >= 0 else "not asked yet"
        return f"<ServerDataset at {self.host}:{self.port}: {rows}>"

    def __len__(self) -> int:
        if self._served[0] < 0:
            self._ask("GET /len")
        return int(self._served[0])

    def __getitem__(self, index: int) -> Any:
        number = _row(index)
        row = self._ask(f"GET /get/{number}", largest=number)
        if not isinstance(row, str):
            raise self._stranger(row)
        return row if self.transform is None else self.transform(row)

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """Return many items with one request; torch's DataLoader calls this for a batch."""
        ids = [_row(index) for index in indices]
        rows: list[Any] = []
        for start in range(0, len(ids), MAX_IDS):
            rows += self._rows(ids[start : start + MAX_IDS])
        return rows if self.transform is None else [self.transform(row) for row in rows]

    def close(self) -> None:
        """Hang up. An access after that connects anew."""
        while self._idle:
            self._idle.pop().close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": []}

    def _rows(self, ids: list[int]) -> list[str]:
        try:
            rows = self._ask("POST /rows", json.dumps(ids, separators=(",", ":")).encode(), max(ids))
        except ValueError as error:  # too much for one answer
            if len(ids) == 1:
                raise ValueError(f"row {ids[0]} is too large for this server: {error}") from None
            half = len(ids) // 2
            return self._rows(ids[:half]) + self._rows(ids[half:])
        if not isinstance(rows, list) or len(rows) != len(ids) or not set(map(type, rows)) <= {str}:
            raise self._stranger(rows)
        return rows

    def _ask(self, request: str, body: bytes = b"", largest: int = -1) -> Any:
        """Send a request, again if the connection fails; return the answer's value. largest: of the rows asked for."""
        began = time.monotonic()
        deadline = began + self.timeout
        tries = 0
        pause = 0.0
        problem: Exception = TimeoutError("timed out")
        while tries <= self.retries and (left := deadline - time.monotonic()) > 0:
            if tries > 1:  # the first retry is at once: mostly, the server had closed a connection that lay idle
                pause = min(2 * pause, MAX_PAUSE) if pause else PAUSE
                time.sleep(min(pause, left))
            tries += 1
            try:
                return self._try(request, body, largest, deadline)
            except StrangerError:
                raise
            except OSError as error:
                problem = error
        way_out = f"is it running? Start it with: python -m lib.data.server META --port {self.port}"
        if isinstance(problem, TimeoutError):
            way_out = "it is stuck, slow, or not to be reached from here; a larger timeout waits longer"
        times = "once" if tries == 1 else f"{tries} times"
        raise ConnectionError(
            f"no answer from a meta server at {self.host}:{self.port}, asked {times} in "
            f"{time.monotonic() - began:.1f} s ({type(problem).__name__}: {problem}); {way_out}"
        ) from problem

    def _try(self, request: str, body: bytes, largest: int, deadline: float) -> Any:
        if self._owner != os.getpid():  # forked: these sockets are the parent's
            self.close()
            self._owner = os.getpid()
        # A connection in use is in no list, so no other thread finds it; and one whose exchange was interrupted never
        # returns there: it would give the answer to this request to whoever asks next.
        try:
            connection = self._idle.pop()
            known = True
        except IndexError:
            connection = _Connection(self.host, self.port, deadline)
            known = False
        try:
            if not known:
                status, served = self._exchange(connection, "GET /stamp", b"", deadline)
                self._compare(self._value(status, served, -1))
            status, value = self._exchange(connection, request, body, deadline)
        except BaseException:
            connection.close()
            raise
        if status in ASK_AGAIN:  # the server may hang up: what it has not read, it can't skip
            connection.close()
        else:
            self._idle.append(connection)
        return self._value(status, value, largest)

    def _compare(self, served: Any) -> None:
        """Raise RuntimeError if the server does not serve what it did at the first connection."""
        match served:
            case [int(rows), str()] if rows is not True and 0 <= rows <= sys.maxsize:
                if self._served not in ([-1, ""], served):
                    raise RuntimeError(
                        f"the meta server at {self.host}:{self.port} now serves other rows, {rows} of them (it had "
                        f"{self._served[0]}): make a new ServerDataset (and sampler) for that one"
                    )
                self._served = served
            case _:
                raise self._stranger(served)

    def _exchange(self, connection: _Connection, request: str, body: bytes, deadline: float) -> tuple[int, Any]:
        """Return the status and the value that a request is answered with."""
        try:
            status, text = connection.exchange(request, body, deadline)
            return status, json.loads(text)
        except (ValueError, RecursionError) as error:  # the last one for [[[[…
            raise self._stranger(error) from None

    def _value(self, status: int, value: Any, largest: int) -> Any:
        """Return what an answer says, or raise it; what a meta server would not say is that of a stranger."""
        if status == 200:
            return value
        match value:
            case {"error": "IndexError", "message": str(text)} if status == 404 and largest >= max(0, self._served[0]):
                raise IndexError(text)
            case {"message": str(text)} if status == 413 and largest >= 0:
                raise ValueError(text)
            case {"message": str(text)} if status in ASK_AGAIN:
                raise ConnectionError(f"it answers {status}: {text}")
            case {"error": str(kind), "message": str(text)} if status == 500:
                raise RuntimeError(f"the meta server at {self.host}:{self.port} answers {status}, {kind}: {text}")
        raise self._stranger(value)

    def _stranger(self, got: object) -> StrangerError:
        return StrangerError(
            f"what listens at {self.host}:{self.port} is no meta server: it answers {str(got)[:80]!r}; "
            "see which address `python -m lib.data.server META` prints"
        )


def _row(index: int) -> int:
    row = index if type(index) is int else integer("index", index)
    if row < 0:
        raise IndexError(f"index {row} is negative; rows are counted from 0")
    return row
