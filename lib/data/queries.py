"""How many rows a second a central server hands out, by how it is asked and how it was written.

The plain servers are http.server with the same rows: as it comes, then with one change after the other.

    HTTP/1.0          every answer ends its connection: a new one for each query
    HTTP/1.1          connections stay open; but head and body are two small writes, so the second waits for the
                      acknowledgement of the first (Nagle's algorithm), which the other side sends 40 ms late
    one write         head and body leave together, and Nagle's algorithm is off
    MetaServer        ours
"""

from __future__ import annotations

import http.client
import http.server
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

from lib.data.ways import worker_context

BATCH = 256
SERVERS = ("http.server as it comes", "with HTTP/1.1", "and one write", "MetaServer")
HOW = ("a connection a query", "kept alive", f"kept alive, {BATCH} rows a query")


def measure_servers(path: str | os.PathLike[str], seconds: float = 0.2) -> dict[str, dict[str, float]]:
    """Return rows per second by server and by way to ask, each asked by one client for some `seconds`."""
    table: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(_running(name, str(path))) for name in SERVERS}
        for name, pipe in servers.items():
            port, size = pipe.recv()
            table[name] = dict(zip(HOW, _rates(name, port, size, seconds), strict=True))
    return table


def _rates(name: str, port: int, size: int, seconds: float) -> Iterator[float]:
    from lib.data.server_dataset import ServerDataset

    make: Any = ServerDataset if name == "MetaServer" else PlainClient
    numbers = random.Random(0)
    batches = [[numbers.randrange(size) for _ in range(BATCH)] for _ in range(16)]
    client = make("127.0.0.1", port)

    def connect_and_ask(count: int) -> int:
        fresh = make("127.0.0.1", port)
        assert isinstance(fresh[count * 7919 % size], str)
        fresh.close()
        return 1

    yield _per_second(connect_and_ask, seconds)
    for count in range(20):  # until the system acknowledges late: it spares a young connection that
        client[count]
    yield _per_second(lambda count: bool(client[count * 7919 % size]), seconds)
    yield _per_second(lambda count: len(client.__getitems__(batches[count % 16])), seconds)
    client.close()


def _per_second(ask: Callable[[int], int], seconds: float) -> float:
    ask(0)
    got = count = 0
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        got += ask(count)
        count += 1
    return got / took


@contextmanager
def _running(name: str, path: str) -> Iterator[Connection]:
    """Run a server in a process of its own; its pipe gives (port, number of rows) when it serves."""
    context = worker_context()
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, name, path), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()
        ours.close()


def _serve(pipe: Connection, name: str, path: str) -> None:
    from lib.data.meta import MetaFile
    from lib.data.server import MetaServer

    with MetaFile(path) as meta_file:
        rows = meta_file.packed(range(len(meta_file)))
    if name == "MetaServer":
        with MetaServer(rows) as server:
            pipe.send((server.port, len(rows)))
            server.serve_forever()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), plain_handler(rows, SERVERS.index(name))) as plain:
        pipe.send((plain.server_port, len(rows)))
        plain.serve_forever()


def plain_handler(rows: Any, step: int) -> type[http.server.BaseHTTPRequestHandler]:
    """Return the handler of a plain server: 0 as it comes, 1 with HTTP/1.1, 2 with one write as well."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1" if step > 0 else "HTTP/1.0"
        wbufsize = -1 if step > 1 else 0  # 0: every write goes out at once
        disable_nagle_algorithm = step > 1

        def do_GET(self) -> None:
            self.say(rows[int(self.path.rpartition("/")[2])])

        def do_POST(self) -> None:
            self.say(rows.rows(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def say(self, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


class PlainClient:
    """The same questions through http.client."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=10)
        self.close = self._connection.close

    def _ask(self, method: str, path: str, body: str | None = None) -> Any:
        self._connection.request(method, path, body)
        return json.loads(self._connection.getresponse().read())

    def __getitem__(self, index: int) -> Any:
        return self._ask("GET", f"/get/{index}")

    def __getitems__(self, indices: list[int]) -> Any:
        return self._ask("POST", "/rows", json.dumps(indices))
