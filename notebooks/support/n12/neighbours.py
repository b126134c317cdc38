"""Programs that keep cores busy: what a comparison of threads hangs on, and a quiet machine doesn't show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lib.machine import usable_cores

_COUNT_FOR_EVER = "print(flush=True)\nwhile True: pass"


@contextmanager
def busy_neighbours() -> Iterator[int]:
    """Keep all cores but one busy within a `with`, one at least; hand out by how many programs."""
    command = [sys.executable, "-c", _COUNT_FOR_EVER]
    neighbours = [
        subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(max(1, usable_cores() - 1))
    ]
    try:
        for neighbour in neighbours:
            assert neighbour.stdout is not None
            neighbour.stdout.readline()  # it is there, and counts
        yield len(neighbours)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.communicate()
