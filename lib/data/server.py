"""Serve a meta file from a process of its own: `python -m lib.data.server META --port 8000`; see lib.data.meta_server.

A module apart, since `import lib.data` must not import the one that python runs.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import Any

from lib.data.meta import MetaFile
from lib.data.meta_server import MetaServer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        "python -m lib.data.server", description="Serve the rows of a meta file over HTTP."
    )
    parser.add_argument("meta", metavar="META", help="text file with one row a line")
    parser.add_argument("--in-memory", action="store_true", help="hold all rows: faster, takes the file's size")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit())  # out of serve_forever; the `with` closes
    try:
        rows: Any = MetaFile(options.meta)
        if options.in_memory:
            rows = rows.packed(range(len(rows)))
        server = MetaServer(rows, options.host, options.port)
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    with server:
        print(f"serving {len(server)} rows of {options.meta} at {server.url}", flush=True)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
