"""What a forked worker pays for reading: pages that it shared with its parent and now has for itself.

A forked process shares all pages until one side writes. Reading a Python object writes: its reference count goes up and
down again. So a list of strings is copied, page by page, as it is read; bytes in one array are not.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

PAGE = 4096
HALVINGS = 10  # looks are taken when 1/1024 of the rows have been read, 1/512, … all


def private_growth(rows: Sequence[Any]) -> list[tuple[int, int]]:
    """Fork a process that reads rows in random order; return (rows read, bytes that became its own), up to all rows.

    Empty where processes are not forked (Windows): there a worker gets a whole copy at once. Raises RuntimeError if
    the process fails.
    """
    if not hasattr(os, "fork"):
        return []
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    order = np.random.default_rng(0).permutation(len(rows))
    worker = context.Process(target=_read, args=(rows, order, theirs), daemon=True)
    worker.start()
    theirs.close()
    try:
        grown: list[tuple[int, int]] = ours.recv()
    except EOFError:
        raise RuntimeError("the forked reader failed; its error is printed above") from None
    finally:
        ours.close()
        worker.join()
    return grown


def _read(rows: Sequence[Any], order: np.ndarray[Any, Any], pipe: Any) -> None:
    from lib.data.ways import private_bytes

    gc.disable()
    gc.freeze()  # the collector writes to objects too; here only reading is to count
    private_bytes()
    start, grown = private_bytes(), [(0, 0)]
    for halvings in range(HALVINGS, -1, -1):
        done, until = grown[-1][0], len(order) >> halvings
        for i in order[done:until]:  # an array, not a list: its numbers are made when they are read
            rows[i]
        grown.append((until, private_bytes() - start))
    pipe.send(grown)


def expected_private(reads: int, rows: int, object_bytes: float) -> float:
    """Return the bytes of all pages that so many random reads touch at least once; objects lie one after another."""
    pages = rows * object_bytes / PAGE
    return PAGE * pages * -math.expm1(reads * math.log1p(-1 / pages)) if pages > 1 else PAGE * min(1, reads)
