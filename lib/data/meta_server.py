"""One process holds the meta file, everyone else asks it for rows: the "server" way of the RankDataset story.

    with MetaServer("meta.txt") as server:             python -m lib.data.server meta.txt --port 8000
        ServerDataset(server.host, server.port)[17]    curl 127.0.0.1:8000/get/17

HTTP is spoken by the standard library's http.server; what there is to ask and what is answered stands in meta_answers.
An error is a 4xx or 5xx with {"error": kind, "message": text}: 413 for rows, or one row, of more than MAX_ANSWER, 503
while the answers to others take all memory.

What is added here is that nobody can hold the server up: a time and a size for each message, a number of connections,
and an end. A parser of our own, which this server had before, took less CPU: with http.server a CPU second of both ends
gives 0.6 to 0.7 times as many single rows, and 0.8 to 0.95 times as many in batches of 256 (from memory).
"""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import math
import os
import socket
import socketserver
import sys
import threading
import time
from http import HTTPStatus
from typing import Any

from lib.arguments import integer
from lib.data.deadline import DeadlineSocket
from lib.data.meta import MetaFile
from lib.data.meta_answers import AnswerMemory, AnswerShare, RefusedError, Rows, answer, stamp_of
from lib.data.meta_bodies import Body, BodyMemory

MAX_HEAD = 8192  # bytes that a request line and its headers may take
MAX_BODY = 1 << 20  # bytes of a request's body: room for MAX_IDS ids of 15 digits
MAX_CONNECTIONS = 512  # a thread and a file each; `ulimit -n` less 64, for other files, if that is fewer
IDLE_SECONDS = 60.0  # a connection that asks nothing for so long is closed; the client opens another
MESSAGE_SECONDS = 10.0  # a request must arrive whole in so long, and its answer be taken
LINGER_SECONDS = 1.0  # a client that we hang up on gets so long to read why
GRACE_SECONDS = 2.0  # answers that are under way when the server closes get so long
ACCEPT_SECONDS = 0.05  # between two tries to take a connection when there is no file left for it


class _Requests(io.BufferedReader):
    """What a client sends. `room`: bytes that the lines of a head may still take."""

    room = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the next line of a head, whole; http.server calls this for each."""
        line = super().readline(self.room + 1)
        self.room -= len(line)
        if self.room < 0:
            raise RefusedError(431, f"start line and headers may take {MAX_HEAD} bytes")
        if not line.endswith(b"\n"):
            raise ConnectionError("the client hung up in mid-message")
        return line


class _Connection(http.server.BaseHTTPRequestHandler):
    """One client's connection, in a thread of its own, for as many requests as it likes."""

    protocol_version = "HTTP/1.1"  # with 1.0 the connection would end after each answer
    request_version = default_request_version = "HTTP/1.0"  # also of what is no request: it is told so in HTTP
    disable_nagle_algorithm = True  # else a small message may wait 40 ms for the acknowledgement of the one before it
    wbufsize = 1 << 15  # what is written leaves with `flush`: head and body of an ordinary batch in one piece
    server: _Listener
    connection: DeadlineSocket
    rfile: _Requests

    def setup(self) -> None:
        super().setup()
        self.rfile = _Requests(self.rfile.detach())
        self.waited_since = time.monotonic()  # since when the client lets us wait; inf while it waits for us

    def handle(self) -> None:
        self.server.connections[threading.current_thread()] = self
        try:
            while self.request_comes():
                self.serve_one()
                if self.close_connection:
                    self.hang_up()
                    break
        finally:
            self.server.connections.pop(threading.current_thread(), None)

    def finish(self) -> None:
        with contextlib.suppress(OSError):  # of an answer that the client did not take
            super().finish()
        self.rfile.close()

    def request_comes(self) -> bool:
        """Wait for the first byte of a request; return False if the client hung up or nothing came in time."""
        if self.server.closing:
            return False
        self.connection.deadline = time.monotonic() + IDLE_SECONDS
        try:
            return bool(self.rfile.peek(1))
        except TimeoutError:
            return False

    def serve_one(self) -> None:
        """Serve one request; `close_connection` says then whether the connection must end with it."""
        with AnswerShare(self.server.memory) as share:
            status, body = self.respond(share)
            share.shrink(len(body))
            self.waited_since = time.monotonic()
            self.connection.deadline = self.waited_since + MESSAGE_SECONDS
            self.send_response_only(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

    def respond(self, share: AnswerShare) -> tuple[int, bytes]:
        """Receive one request and return the status and the body of the answer to it."""
        whole = False  # after a broken message, where the next one begins is anyone's guess
        status = 200
        value: Any
        try:
            length = self.receive_head()
            with self.server.bodies.room(length, self.wake) as room:
                body = self.receive_body(length, room)
                whole = self.command in ("GET", "POST")  # the answer to HEAD may have no body, for one
                self.waited_since = math.inf
                value = answer(self.server.rows, self.server.stamp, self.command, self.path, body, share.allow)
        except TimeoutError:
            status = 408
            text = f"a request must arrive whole within {MESSAGE_SECONDS:g} s"
            value = {"error": "TimeoutError", "message": text}
        except RefusedError as error:
            status = error.status
            value = {"error": error.kind, "message": str(error)}
        if not whole:
            self.close_connection = True
        return status, json.dumps(value).encode()

    def receive_head(self) -> int:
        """Receive a request up to its body, into `command`, `path` and `headers`, and return the body's length.

        Raises RefusedError for what is malformed or larger than we take, TimeoutError for what comes too slowly.
        """
        self.connection.deadline = time.monotonic() + MESSAGE_SECONDS
        self.rfile.room = MAX_HEAD
        self.raw_requestline = self.rfile.readline()
        if not self.parse_request():
            raise RefusedError(400, "no HTTP request line")
        if self.headers.defects:
            raise RefusedError(400, f"malformed headers: {self.headers.defects[0]}")
        if "Transfer-Encoding" in self.headers:
            raise RefusedError(501, "no Transfer-Encoding here; send the body whole, with its Content-Length")
        lengths = self.headers.get_all("Content-Length", [])
        if self.command == "POST" and not lengths:
            raise RefusedError(411, "a POST needs a Content-Length")
        length = ", ".join(lengths) or "0"
        if not (length.isascii() and length.isdigit()):
            raise RefusedError(400, f"Content-Length must be one number of bytes, not {length[:80]!r}")
        if len(length) > 18 or int(length) > MAX_BODY:
            raise RefusedError(413, f"a body may take {MAX_BODY} bytes, not {length[:80]}")
        return int(length)

    def receive_body(self, length: int, room: Body) -> bytes:
        """Receive the body of a request. Raises RefusedError if it came slowly and others needed its room."""
        self.wfile.flush()  # if the client waits for "100 Continue" before it sends the body, parse_request wrote that
        body = self.rfile.read(length)
        if len(body) < length:
            if room.made_room:
                raise RefusedError(503, "others needed the memory of a body that came this slowly", "MemoryError")
            raise ConnectionError("the client hung up in mid-message")
        room.received()
        return body

    def wake(self) -> None:
        """End the wait for what the client still has to send."""
        _shut_down(self.connection, socket.SHUT_RD)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what the standard library finds wrong with a request: it calls this."""
        raise RefusedError(code, message or HTTPStatus(code).phrase)

    def hang_up(self) -> None:
        """Say that nothing more will come, and let the client read what came.

        A socket that is closed with unread bytes in it resets the connection, and the client may lose our last answer.
        """
        self.connection.deadline = time.monotonic() + LINGER_SECONDS
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while self.rfile.read1(65_536):
                pass


class _Listener(socketserver.ThreadingTCPServer):
    """The standard library's accept loop, with a limit on connections: `connections` has the thread of each.

    (Its HTTPServer would do the same, but for asking the name service for the host's full name first.)
    """

    allow_reuse_address = os.name == "posix"  # restart on the same port; on Windows it would mean: steal it
    request_queue_size = 128  # all ranks and their workers connect at once
    daemon_threads = True
    block_on_close = False  # MetaServer.close waits itself, and not for ever

    def __init__(self, address: tuple[str, int], rows: Rows) -> None:
        self.rows = rows
        self.stamp = stamp_of(rows)
        self.closing = False
        self.memory = AnswerMemory()
        self.bodies = BodyMemory()
        self.connections: dict[threading.Thread, _Connection] = {}
        self.limit = _most_connections()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Connection, bind_and_activate=False)

    def get_request(self) -> tuple[Any, Any]:
        try:
            connection, address = super().get_request()
        except OSError:  # mostly: no file is left for it. It stays in the queue, and would be tried again at once
            self.make_room()
            time.sleep(ACCEPT_SECONDS)
            raise
        return DeadlineSocket.of(connection), address

    def verify_request(self, request: Any, client_address: Any) -> bool:
        if len(self.connections) >= self.limit:
            self.make_room()
        return len(self.connections) < self.limit

    def make_room(self) -> None:
        """Hang up on who has let us wait for longest: hundreds that are idle lock nobody out, and may connect anew."""
        waiting = [item for item in list(self.connections.items()) if item[1].waited_since < math.inf]
        if waiting:
            thread, connection = min(waiting, key=lambda item: item[1].waited_since)
            self.connections.pop(thread, None)
            _shut_down(connection.connection, socket.SHUT_RDWR)  # its thread wakes up, and closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        # of a client that is gone or too slow there is nobody to tell
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _most_connections() -> int:
    with contextlib.suppress(ImportError):  # on Windows sockets are no files
        import resource

        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files != resource.RLIM_INFINITY:
            return max(1, min(MAX_CONNECTIONS, files - 64))
    return MAX_CONNECTIONS


def _shut_down(connection: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):  # it is down already
        connection.shutdown(how)


class MetaServer:
    """Serve the rows of a meta file over HTTP: `with MetaServer(path) as server: print(server.url)`.

    meta_file: a path, or a MetaFile, which stays open afterwards; rows that `MetaFile.packed` has taken into memory are
    served faster. port 0 takes a free one: read it from `port`. A thread serves each connection; of more than 512, or
    `ulimit -n` less 64, the longest idle is closed. An answer may hold 16 MB of rows, all together half a GB of memory.
    A request must arrive whole within 10 s; large bodies together take 32 MB, and one that comes slowly makes room.

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
        self.host = host
        self.port = int(self._listener.server_address[1])
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._listener.rows)

    def __repr__(self) -> str:
        state = "not started" if self._thread is None else "serving"
        if self._listener.closing:
            state = "closed"
        return f"<MetaServer at {self.url}: {len(self):,} rows, {state}>"

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
        _shut_down(listener.socket, socket.SHUT_RDWR)  # forked workers hold this socket too: end it for them as well
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):  # wake first who waits for a request, then who sends
            deadline = time.monotonic() + GRACE_SECONDS
            handlers = list(listener.connections.items())
            for _, handler in handlers:
                _shut_down(handler.connection, how)
            for thread, _ in handlers:
                thread.join(max(0.0, deadline - time.monotonic()))
        self._stack.close()

    def __enter__(self) -> MetaServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
