"""Another thread reads a batch between two lines of an answer: does the answer keep anything that the two share?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from support.kit.raised import IN_PLACE_OF_THE_READERS, NOT_THE_READERS, in_case
from support.n05.runs import written
from support.n05.solved import index_of
from support.n05.trials import MANY, difference_told

MOST_LINES = 60  # a batch of two rows has fewer
ASKED = [2900, 40]
OTHERS = [7, 1500]


def fault_between_lines(make: Any) -> str:
    """Read a batch again and again; before the first line, the second, … another thread reads a batch of its own."""
    case = f"for the batch {ASKED}, while another thread reads the batch {OTHERS}"
    patience = 0.5  # seconds
    with written(MANY) as path, ThreadPoolExecutor(1) as pool, in_case(case):
        dataset = make(path, index_of(path))
        for line in range(1, MOST_LINES):
            came: list[Future[Any]] = []
            late: list[Future[Any]] = []

            def come(
                came: list[Future[Any]] = came, late: list[Future[Any]] = late, patience: float = patience
            ) -> None:
                came.append(pool.submit(dataset.__getitems__, [*OTHERS]))
                late.extend(wait(came, patience).not_done)

            got = _called_before_line(line, come, lambda: dataset.__getitems__([*ASKED]))
            if not came:
                return ""
            if late:
                patience = 0.01  # it is locked out: this need not be awaited at each line
            for batch, rows in ((ASKED, got), (OTHERS, came[0].result())):
                wanted = [MANY[index] for index in batch]
                fault = difference_told(rows, wanted, f"{case}, dataset.__getitems__({batch})")
                if fault:
                    return fault
    return ""


def _called_before_line(number: int, work: Callable[[], None], call: Callable[[], Any]) -> Any:
    """Return what `call` returns; before the reader's line of this number, counted as they run, `work` is done."""
    before = sys.gettrace()
    lines = 0

    def step(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if not _is_the_readers(frame.f_code.co_filename):
            return None
        lines += event == "line"
        if event == "line" and lines == number:
            work()
        return step

    sys.settrace(step)
    try:
        return call()
    finally:
        sys.settrace(before)


def _is_the_readers(filename: str) -> bool:
    return filename.endswith(IN_PLACE_OF_THE_READERS) or not filename.startswith(
        (*NOT_THE_READERS, "<frozen")
    )
