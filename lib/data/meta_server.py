r"""One process holds the meta file, everyone else asks it for rows: the "server" way of the RankDataset story.

    with MetaServer("meta.txt") as server:             python -m lib.data.server meta.txt --port 8000
        ServerDataset(server.host, server.port)[17]    curl 127.0.0.1:8000/get/17

    GET  /len          400000000                            how many rows there are
    GET  /stamp        [400000000, "57-17…-b2"]             that, and what tells this file from another of as many rows
    GET  /get/17       "img/0017.png \"a seven\""           one row
    POST /rows  [3,1]  ["img/0003.png …", "img/0001.png …"] many rows in one request, in the order asked

Answers are JSON in plain ASCII: a byte of the file that is no UTF-8 travels as the escape of the surrogate that stands
for it (\udc80 … \udcff), so every row arrives as `MetaFile.rows` gives it. An error is a 4xx or 5xx with
{"error": kind, "message": text}: 413 for rows, or one row, of more than MAX_ANSWER, 503 while the answers to others
take all memory. Threads and accept loop are the standard library's; its http.server and http.client are not used: they
read a head line by line and with the e-mail parser, and gave 0.44 times as many single rows a second, measured side by
side (in batches of 256: 0.84 times).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from lib.arguments import integer
from lib.data.meta import MetaFile, Packed

MAX_HEAD = 8192  # bytes that a start line and its headers may take
MAX_BODY = 1 << 20  # bytes of a request's body: room for MAX_IDS ids of 15 digits
MAX_IDS = 65_536  # rows that one request may ask for
MAX_ANSWER = 1 << 24  # bytes of the rows in one answer
MAX_MEMORY = 1 << 29  # bytes that all answers together may take, of those that are larger than SMALL
SMALL = 1 << 14  # bytes of rows: 512 such answers are a few MB, and counting costs more than they
GROWTH = 16  # bytes of memory for one of text: at worst a str of 2, its JSON of 6, as for \udc80, twice for a while
MAX_CONNECTIONS = 512  # a thread and a file each; `ulimit -n` less 64, for other files, if that is fewer
IDLE_SECONDS = 60.0  # a connection that asks nothing for so long is closed; the client opens another
MESSAGE_SECONDS = 10.0  # a request must arrive whole in so long, and its answer be taken
GRACE_SECONDS = 2.0  # answers that are under way when the server closes get so long
BUSY_SECONDS = 2.0  # an answer waits so long for memory that others hold
ACCEPT_SECONDS = 0.05  # between two tries to take a connection when there is no file left for it
PART = 256  # rows read before their size is looked at, of rows that can't say it before


class Rows(Protocol):
    """What can be served: a MetaFile, or what has its `len`, `rows` (called from many threads) and, best, `stamp`."""

    def __len__(self) -> int: ...

    def rows(self, ids: list[int], /) -> Sequence[str]:
        """Return the rows of these ids, in this order."""
        ...


class RefusedError(Exception):
    """A message that we do not take or cannot serve: the HTTP status, the kind of error, the text for who sent it."""

    def __init__(self, status: int, text: str, kind: str = "ValueError") -> None:
        super().__init__(text)
        self.status, self.kind = status, kind


class Wire:
    r"""Send and receive whole HTTP/1.1 messages on a connected socket, which it then owns. For one thread at a time.

        POST /rows HTTP/1.1\r\n     the start line; in an answer: HTTP/1.1 200 OK
        Content-Length: 7\r\n       headers
        \r\n                        an empty line ends the head
        [3,1,4]                     the body: as many bytes as Content-Length says

    Deadlines are times of time.monotonic(), and for the whole message: a limit on each recv() alone lets a peer that
    sends a byte now and then hold a thread for hours. Methods raise TimeoutError when the deadline passes, and
    ConnectionError or another OSError when the peer is gone; after either, and after RefusedError, only `close` is of
    use. Read more: RFC 9112.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._unread = bytearray()
        # Without it a small message may wait for the acknowledgement of the one before it: 40 ms (Nagle's algorithm).
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wait(self, seconds: float) -> bool:
        """Wait for the first byte of a message; return False if the peer hung up or nothing came in time."""
        try:
            return bool(self._unread) or self._more(time.monotonic() + seconds)
        except TimeoutError:
            return False

    def receive(self, deadline: float, max_body: int) -> tuple[str, dict[str, str], bytearray]:
        """Return the next message's start line, headers (names in lower case) and body.

        Raises RefusedError for a message that is malformed or larger than we take.
        """
        unread = self._unread
        while (end := unread.find(b"\r\n\r\n")) < 0 and len(unread) <= MAX_HEAD:
            self._need(deadline)
        if not 0 <= end <= MAX_HEAD:
            raise RefusedError(431, f"start line and headers may take {MAX_HEAD} bytes")
        start, *lines = unread[:end].decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            name = name.lower()
            repeated = name == "content-length" and name in headers
            if not colon or not name or name != name.strip() or repeated:
                raise RefusedError(400, f"malformed or repeated header {line[:80]!r}")
            headers[name] = value.strip()
        if "transfer-encoding" in headers:
            raise RefusedError(501, "no Transfer-Encoding here; send the body whole, with its Content-Length")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise RefusedError(400, f"Content-Length must be a number of bytes, not {length[:80]!r}")
        if len(length) > 18 or int(length) > max_body:
            raise RefusedError(413, f"a body may take {max_body} bytes, not {length[:80]}")
        del unread[: end + 4]
        size = int(length)
        while len(unread) < size:
            self._need(deadline)
        self._unread = unread[size:]  # the beginning of the next message
        del unread[size:]  # what is left is the body: no copy of it, it may be large
        return start, headers, unread

    def send(self, start: str, body: bytes | bytearray, deadline: float, *headers: str) -> None:
        """Send one message; `body` is JSON."""
        lines = [start, *headers, "Content-Type: application/json", f"Content-Length: {len(body)}", "\r\n"]
        head = "\r\n".join(lines).encode("latin-1")
        self._socket.settimeout(seconds_left(deadline))
        for part in (head, body) if len(body) > SMALL else (head + body,):  # one write if it can be: see TCP_NODELAY
            self._socket.sendall(part)

    def hang_up(self, seconds: float) -> None:
        """Say that nothing more will come, and give the peer some seconds to read it before the caller closes.

        A socket that is closed with unread bytes in it resets the connection, and the peer may lose our last answer.
        """
        deadline = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while self._more(deadline):
                self._unread.clear()

    def close(self) -> None:
        """Close this process's end; a process that was forked off keeps its own."""
        self._socket.close()

    def _need(self, deadline: float) -> None:
        if not self._more(deadline):
            raise ConnectionError("the peer hung up in mid-message" if self._unread else "the peer hung up")

    def _more(self, deadline: float) -> bool:
        self._socket.settimeout(seconds_left(deadline))
        received = self._socket.recv(65_536)
        self._unread += received
        return bool(received)


def seconds_left(deadline: float) -> float:
    """Return the seconds until a time of time.monotonic(); raises TimeoutError when it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:  # a time-out of 0 would mean: do not wait at all
        raise TimeoutError("timed out")
    return left


# ---- the server


class _Connection(socketserver.BaseRequestHandler):
    """One client's connection, in a thread of its own, for as many requests as it likes."""

    server: _Listener
    size = held = 0  # bytes of rows in the answer that is being made; of memory for it

    def handle(self) -> None:
        self.since = time.monotonic()  # from when on the client has let us wait; inf while it waits
        self.server.open[thread := threading.current_thread()] = self
        try:
            wire = Wire(self.request)
            while not self.server.closing and wire.wait(IDLE_SECONDS):
                if not self.serve_one(wire):
                    wire.hang_up(seconds=1.0)
                    break
        except OSError:  # a peer that is gone or too slow: there is nobody to tell
            pass
        finally:
            self.server.open.pop(thread, None)

    def serve_one(self, wire: Wire) -> bool:
        """Serve one request; return False if the connection must end with it."""
        keep = False  # after a broken message, where the next one begins is anyone's guess
        value: Any
        try:
            start, headers, body = wire.receive(time.monotonic() + MESSAGE_SECONDS, MAX_BODY)
            self.since = math.inf
            parts = start.split(" ")
            if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
                raise RefusedError(400, f"no HTTP/1 request line: {start[:80]!r}")
            method, path, version = parts
            if method == "POST" and "content-length" not in headers:
                raise RefusedError(411, "a POST needs a Content-Length")
            keep = version != "HTTP/1.0" and headers.get("connection", "").lower() != "close"
            keep = keep and method in ("GET", "POST")  # the answer to HEAD may have no body, for one
            status, value = 200, answer(self.server, method, path, body, self.allow)
        except TimeoutError:
            text = f"a request must arrive whole within {MESSAGE_SECONDS:g} s"
            status, value = 408, {"error": "TimeoutError", "message": text}
        except RefusedError as error:
            status, value = error.status, {"error": error.kind, "message": str(error)}
        closing = () if keep else ("Connection: close",)
        start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
        try:
            sent = json.dumps(value).encode()
            del value  # the rows: from here on the answer is its JSON
            self.hold(min(self.held, len(sent)))
            self.since = time.monotonic()
            wire.send(start, sent, self.since + MESSAGE_SECONDS, *closing)
        finally:
            self.size = 0
            self.hold(0)
        return keep

    def allow(self, size: int) -> None:
        """Allow that so many bytes of rows are read for an answer, if need be when others have given memory back."""
        self.size += size
        if self.size > MAX_ANSWER:
            raise RefusedError(413, f"one answer may hold {MAX_ANSWER} bytes of rows; ask for fewer rows at once")
        if self.size > SMALL:
            self.hold(GROWTH * self.size)

    def hold(self, size: int) -> None:
        """Hold so much memory for the answer; raises RefusedError if others have it all and give too little back."""
        server, more = self.server, size - self.held
        if more:
            with server.given_back:
                if not server.given_back.wait_for(lambda: server.memory >= more, BUSY_SECONDS):
                    raise RefusedError(503, "the answers to others take all memory just now; ask again", "MemoryError")
                server.memory, self.held = server.memory - more, size
                server.given_back.notify_all()


def answer(server: _Listener, method: str, path: str, body: bytes | bytearray, allow: Callable[[int], None]) -> Any:
    """Return what a request asks for, as a value to send; raises RefusedError, also for what reading raises.

    allow: called with how many bytes of rows will be read next; may raise RefusedError.
    """
    allowed = "POST" if path == "/rows" else "GET"
    if path not in ("/len", "/stamp", "/rows") and not path.startswith("/get/"):
        text = f"nothing at {path[:80]!r}; ask GET /len, GET /get/17, or POST /rows with [3,1,4]"
        raise RefusedError(404, text, "LookupError")
    if method != allowed:
        raise RefusedError(405, f"{path[:80]} is asked with {allowed}, not {method[:20]}")
    if path.startswith("/get/") and not re.fullmatch(r"-?[0-9]{1,18}", path[5:]):
        raise RefusedError(400, f"a row is asked for by its number, not {path[5:85]!r}", "TypeError")
    try:
        rows = server.rows
        if path in ("/len", "/stamp"):
            return len(rows) if path == "/len" else [len(rows), server.stamp]
        return _read(rows, _ids(body), allow) if path == "/rows" else _read(rows, [int(path[5:])], allow)[0]
    except RefusedError:
        raise
    except Exception as error:  # the meta file is gone or changed: the client must hear of it
        raise RefusedError(500, str(error), type(error).__name__) from error


def _ids(body: bytes | bytearray) -> list[int]:
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


class _Listener(socketserver.ThreadingTCPServer):
    """The standard library's accept loop."""

    allow_reuse_address = os.name == "posix"  # restart on the same port; on Windows it would mean: steal it
    request_queue_size = 128  # all ranks and their workers connect at once
    daemon_threads = True
    block_on_close = False  # MetaServer.close waits itself, and not for ever

    def __init__(self, address: tuple[str, int], rows: Rows) -> None:
        self.rows, self.stamp, self.closing = rows, str(getattr(rows, "stamp", "")), False
        self.open: dict[threading.Thread, _Connection] = {}
        self.memory, self.given_back = MAX_MEMORY, threading.Condition()
        self.limit = MAX_CONNECTIONS
        with contextlib.suppress(ImportError):  # on Windows sockets are no files
            import resource

            files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if files != resource.RLIM_INFINITY:
                self.limit = max(1, min(MAX_CONNECTIONS, files - 64))
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Connection, bind_and_activate=False)

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:  # mostly: no file is left for it. It stays in the queue, and would be tried again at once
            self.make_room()
            time.sleep(ACCEPT_SECONDS)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        if len(self.open) >= self.limit:
            self.make_room()
        return len(self.open) < self.limit

    def make_room(self) -> None:
        """Hang up on who has let us wait for longest: hundreds that are idle lock nobody out, and may connect anew."""
        clients = list(self.open.items())
        thread, connection = min(clients, key=lambda item: item[1].since, default=(None, None))
        if thread and connection and connection.since < math.inf:
            self.open.pop(thread, None)
            with contextlib.suppress(OSError):
                connection.request.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and closes it


class MetaServer:
    """Serve the rows of a meta file over HTTP: `with MetaServer(path) as server: print(server.url)`.

    meta_file: a path, or a MetaFile, which stays open afterwards; rows that `MetaFile.packed` has taken into memory are
    served faster. port 0 takes a free one: read it from `port`. A thread serves each connection; of more than 512, or
    `ulimit -n` less 64, the longest idle is closed. An answer may hold 16 MB of rows, all together half a GB of memory.

    Where speed counts, give the server a process of its own: within a process that trains, the two share one GIL. There
    is no password and no encryption, so a host other than the loopback shows the rows to whoever reaches that address:
    do that only in a network that you trust. Raises OSError for a port that is taken or a host that is not this
    machine's, and what MetaFile raises.
    """

    def __init__(self, meta_file: str | os.PathLike[str] | Rows, host: str = "127.0.0.1", port: int = 0) -> None:
        port = integer("port", port, at_least=0, below=65_536)
        self._stack = contextlib.ExitStack()  # what must be closed: a file of our own, the socket
        if isinstance(meta_file, str | os.PathLike):
            meta_file = self._stack.enter_context(MetaFile(meta_file))
        self._listener = _Listener((host, port), meta_file)
        self._stack.callback(self._listener.server_close)
        try:
            self._listener.server_bind()
        except OSError as error:
            self._stack.close()
            text = f"cannot listen on {host}:{port}: {error.strerror}; port 0 takes a free one"
            raise OSError(error.errno, text) from None
        self.host, self.port = host, int(self._listener.server_address[1])
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._listener.rows)

    def start(self) -> MetaServer:
        """Serve from a thread, until `close`; return self."""
        if self._listener.closing:
            raise RuntimeError("this server was closed; make a new one")
        if self._thread is None:
            self._listener.server_activate()
            serve = self._listener.serve_forever
            self._thread = threading.Thread(target=serve, args=(0.05,), name="meta server", daemon=True)
            self._thread.start()
        return self

    def serve_forever(self) -> None:
        """Serve until another thread calls `close`, or an exception such as Ctrl-C ends the wait."""
        thread = self.start()._thread
        while thread is not None and thread.is_alive():
            thread.join(0.5)  # Windows hears Ctrl-C only between two waits

    def close(self) -> None:
        """Stop: take no more connections, let answers under way finish, hang up. Takes 4 s at the very most."""
        listener = self._listener
        if listener.closing:
            return
        listener.closing = True
        if self._thread is not None:
            listener.shutdown()
        with contextlib.suppress(OSError):  # forked workers hold this socket too: end it for them as well
            listener.socket.shutdown(socket.SHUT_RDWR)
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):  # wake first who waits for a request, then who sends
            deadline = time.monotonic() + GRACE_SECONDS
            handlers = list(listener.open.items())
            for _, connection in handlers:
                with contextlib.suppress(OSError):
                    connection.request.shutdown(how)
            for thread, _ in handlers:
                thread.join(max(0.0, deadline - time.monotonic()))
        self._stack.close()

    def __enter__(self) -> MetaServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
