"""One process holds the meta file, everyone else asks it for rows: the "server" way of the RankDataset story.

    with MetaServer("meta.txt") as server:             python -m lib.data.server meta.txt --port 8000
        ServerDataset(server.host, server.port)[17]    curl 127.0.0.1:8000/get/17

What can be asked stands in protocol.py, HTTP itself in wire.py, who asks in client.py. Here are the threads, and how to
begin and to end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lib._arguments import integer
from lib.data.protocol import MAX_BODY, Rows, error_value, reply
from lib.data.wire import BadMessageError, Wire

if TYPE_CHECKING:
    from lib.data.client import ServerDataset as ServerDataset

MAX_CONNECTIONS = (
    512  # a thread and a file each; past a process's 1024 files, accept() would fail in a busy loop
)
IDLE_SECONDS = 60.0  # a connection that asks nothing for so long is closed; the client opens another
MESSAGE_SECONDS = 10.0  # a request must arrive whole in so long, and its answer be taken
GRACE_SECONDS = 2.0  # answers that are under way when the server closes get so long


class _Connection(socketserver.BaseRequestHandler):
    """One client's connection, in a thread of its own, for as many requests as it likes."""

    server: _Listener

    def handle(self) -> None:
        wire = Wire(self.request)
        with contextlib.suppress(OSError), self.server.listed(self.request):
            # An OSError is a peer that is gone or too slow: there is nobody to tell.
            while not self.server.closing and wire.wait(IDLE_SECONDS):
                if not self.serve_one(wire):
                    wire.hang_up(seconds=1.0)
                    return

    def serve_one(self, wire: Wire) -> bool:
        """Serve one request; return False if the connection must end with it."""
        keep = False  # after a broken message, where the next one begins is anyone's guess
        value: Any
        try:
            request = wire.receive(time.monotonic() + MESSAGE_SECONDS, MAX_BODY)
        except TimeoutError:
            text = f"a request must arrive whole within {MESSAGE_SECONDS:g} s"
            status, value = 408, error_value("TimeoutError", text)
        except BadMessageError as error:
            status, value = error.status, error_value("ValueError", error)
        else:
            status, value, keep = reply(self.server.rows, request)
        start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
        closing = () if keep else ("Connection: close",)
        wire.send(start, json.dumps(value).encode(), time.monotonic() + MESSAGE_SECONDS, *closing)
        return keep


class _Listener(socketserver.ThreadingTCPServer):
    """The standard library's accept loop; its http.server would look up the host's name at every start."""

    allow_reuse_address = os.name == "posix"  # restart on the same port; on Windows it would mean: steal it
    request_queue_size = 128  # all ranks and their workers connect at once
    daemon_threads = True
    block_on_close = False  # MetaServer.close waits itself, and not for ever

    def __init__(self, address: tuple[str, int], rows: Rows) -> None:
        self.rows, self.closing = rows, False
        self.open: dict[threading.Thread, socket.socket] = {}
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Connection, bind_and_activate=False)

    @contextlib.contextmanager
    def listed(self, connection: socket.socket) -> Iterator[None]:
        self.open[threading.current_thread()] = connection
        try:
            yield
        finally:
            del self.open[threading.current_thread()]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return len(self.open) < MAX_CONNECTIONS


class MetaServer:
    """Serve the rows of a meta file over HTTP: `with MetaServer(path) as server: print(server.url)`.

    meta_file: a path, or a MetaFile, which stays open afterwards; rows that `MetaFile.packed` has taken into memory are
    served faster. port 0 takes a free one: read it from `port`. A thread serves each connection. Where speed counts,
    give the server a process of its own: within a process that trains, the two share one GIL. There is no password and
    no encryption, so a host other than the loopback shows the rows to whoever reaches that address: do that only in a
    network that you trust. Raises OSError for a port that is taken or a host that is not this machine's, and what
    MetaFile raises.
    """

    def __init__(
        self, meta_file: str | os.PathLike[str] | Rows, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        port = integer("port", port, at_least=0, below=65_536)
        self._stack = contextlib.ExitStack()
        self._listener = _Listener((host, port), self._opened(meta_file))
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

    def _opened(self, meta_file: str | os.PathLike[str] | Rows) -> Rows:
        if not isinstance(meta_file, str | os.PathLike):
            return meta_file
        from lib.data.meta import MetaFile

        return self._stack.enter_context(MetaFile(meta_file))

    def __len__(self) -> int:
        return len(self._listener.rows)

    def start(self) -> MetaServer:
        """Serve from a thread, until `close`; return self."""
        if self._listener.closing:
            raise RuntimeError("this server was closed; make a new one")
        if self._thread is None:
            self._listener.server_activate()
            self._thread = threading.Thread(
                target=self._listener.serve_forever, args=(0.05,), name="meta server", daemon=True
            )
            self._thread.start()
        return self

    def serve_forever(self) -> None:
        """Serve until another thread calls `close`, or an exception such as Ctrl-C ends the wait."""
        thread = self.start()._thread
        while thread is not None and thread.is_alive():
            thread.join(0.5)

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
                    connection.shutdown(how)
            for thread, _ in handlers:
                thread.join(max(0.0, deadline - time.monotonic()))
        self._stack.close()

    def __enter__(self) -> MetaServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m lib.data.server", description="Serve the rows of a meta file over HTTP."
    )
    parser.add_argument("meta", metavar="META", help="text file with one row a line")
    parser.add_argument(
        "--in-memory", action="store_true", help="hold all rows: faster, takes the file's size"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    options = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        rows = _in_memory(options.meta) if options.in_memory else options.meta
        server = MetaServer(rows, options.host, options.port)
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    with server:
        print(f"serving {len(server)} rows of {options.meta} at {server.url}", flush=True)
        while not stop.wait(0.5):  # Windows hears Ctrl-C only between two waits
            pass
    return 0


def _in_memory(path: str) -> Rows:
    import numpy as np

    from lib.data.meta import MetaFile

    with MetaFile(path) as meta_file:
        return meta_file.packed(np.arange(len(meta_file)))


def __getattr__(name: str) -> Any:
    """Load ServerDataset when it is asked for: it needs torch, which a server does without."""
    if name == "ServerDataset":
        from lib.data.client import ServerDataset

        return ServerDataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    sys.exit(main())
