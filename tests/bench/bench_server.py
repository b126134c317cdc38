"""Queries per second of a central server on loopback: a new connection each, kept alive, in batches of 256.

    python -m tests.bench.bench_server      about 20 seconds

Each server has a process of its own, all hold the same rows, and the measurements take turns. The first line is what a
few lines of the standard library give at both ends, with nothing checked and nothing limited: http.server with a
buffer for its answers, else it writes head and body apart, and http.client.
"""

import argparse
import contextlib
import http.client
import http.server
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lib.data.meta import MetaFile
from lib.data.server_dataset import ServerDataset
from lib.text import table
from tests.bench.common import ROOT, arguments

#: Seconds on a calm machine with 2 cores.
TAKES = 50

ROWS = 1_000_000
BATCH = 256
ROUNDS = 3
SECONDS = 0.4  # for each way to ask, in each round
PLAIN = "http.server, http.client, --in-memory"
WHO = (PLAIN, "MetaServer", "MetaServer --in-memory")
HOW = ("new connection, queries/s", "kept alive, queries/s", f"batches of {BATCH}, rows/s")


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


def serve_plainly(path: str) -> None:
    """Serve rows with the standard library: /get/i and POST /rows, nothing checked."""
    with MetaFile(path) as meta_file:
        rows = meta_file.packed(range(len(meta_file)))

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # 1.0 keeps no connection
        wbufsize = 1 << 15
        disable_nagle_algorithm = True  # else an answer may wait 40 ms for an acknowledgement

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

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


@contextlib.contextmanager
def running(who: str, path: Path) -> Iterator[int]:
    """Run a server in its own process; give its port."""
    command = ["-m", "lib.data.server", str(path), *who.split()[1:]]
    if who == PLAIN:
        command = ["-m", "tests.bench.bench_server", "--serve", str(path)]
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().strip().rpartition(":")[2])
    finally:
        process.terminate()
        process.communicate(timeout=20)


def per_second(question: Callable[[int], int], seconds: float) -> float:
    """Ask for some time; return the rows that came, per second."""
    question(0)
    got = count = 0
    begin = time.perf_counter()
    while (took := time.perf_counter() - begin) < seconds:
        got += question(count)
        count += 1
    return got / took


def measure(who: str, port: int, seconds: float) -> dict[str, float]:
    """Measure the three ways to ask one server."""
    make: Any = PlainClient if who == PLAIN else ServerDataset
    client = make("127.0.0.1", port)
    generator = random.Random(0)
    batches = [[generator.randrange(ROWS) for _ in range(BATCH)] for _ in range(50)]

    def connect_and_ask(count: int) -> int:
        fresh = make("127.0.0.1", port)
        assert fresh[count * 7919 % ROWS].startswith("img/")
        fresh.close()
        return 1

    ways = (
        connect_and_ask,
        lambda count: bool(client[count * 7919 % ROWS]),
        lambda count: len(client.__getitems__(batches[count % 50])),
    )
    numbers = dict(zip(HOW, [per_second(way, seconds) for way in ways], strict=True))
    client.close()
    return numbers


def rows(rounds: int = ROUNDS, seconds: float = SECONDS) -> list[dict[str, Any]]:
    """Return a row for each server: medians over the rounds."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "meta.txt"
        path.write_text("".join(f'img/{i:09d}.png "a handwritten seven, {i}"\n' for i in range(ROWS)), "utf-8")
        MetaFile(path).close()  # makes the index
        ports = {who: stack.enter_context(running(who, path)) for who in WHO}
        runs = [{who: measure(who, port, seconds) for who, port in ports.items()} for _ in range(rounds)]
    return [{"who": who, **{how: statistics.median(run[who][how] for run in runs) for how in HOW}} for who in ports]


def as_text(found: list[dict[str, Any]]) -> str:
    lines = [("", *HOW), *((row["who"], *(f"{row[how]:,.0f}" for how in HOW)) for row in found)]
    return table(lines)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--serve", metavar="META", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve_plainly(options.serve)
    else:
        print(as_text(rows()))


if __name__ == "__main__":
    main()
