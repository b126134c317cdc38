"""What an answer of notebook 08, `simulate`, is tried with: orders that can run, and orders that can't."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from support.kit.raised import InCaseError, in_case
from support.n08.solved import Costs, Ends, Orders, gpipe, one_f_one_b, simulate


def orders_of(*rows: str) -> Orders:
    """Read a text for each rank: "F0 F1 B0 B1"."""
    return [[(task[0], int(task[1:])) for task in row.split()] for row in rows]


SMALL = orders_of("F0 F1 B0 B1", "F0 B0 F1 B1")
"""Two ranks; rank 0 does all forwards first."""


def _ending(function: Callable[..., Any], *arguments: Any, lines: int = 50_000) -> Any:
    """Call a function; raises TimeoutError after so many lines of Python: no check hangs in an endless loop."""
    left = iter(range(lines))
    before = sys.gettrace()

    def count(*_: Any) -> Any:
        if next(left, None) is None:
            raise TimeoutError(f"it has run {lines:,} lines and has not ended")
        return count

    sys.settrace(count)
    try:
        return function(*arguments)
    finally:
        sys.settrace(before)


def _told(orders: Orders) -> str:
    rows = (" ".join(f"{kind}{i}" for kind, i in order) for order in orders)
    return ", ".join(f"rank {j}: {row}" for j, row in enumerate(rows))


def _tries() -> Iterator[tuple[Orders, Any, float]]:
    """Yield orders that can be run, with costs and a message: small ones first."""
    equal = {"F": [1.0, 1.0], "B": [2.0, 2.0]}
    yield [[("F", 0)]], equal, 0
    yield SMALL, equal, 0
    yield SMALL, equal, 0.5
    yield [[("F", 0), ("F", 1)], [("F", 1), ("F", 0)]], {"F": [1, 3]}, 0
    for m, n, message, make in product((1, 2, 3, 5), (1, 2, 3, 4), (0, 0.25), (gpipe, one_f_one_b)):
        forward = [1 + (j * 7 + m) % 3 for j in range(n)]
        backward = [2 + (j * 5) % 4 for j in range(n)]
        yield make(m, n), {"F": forward, "B": backward}, message


#: Orders that can't run, and the task at which each rank waits.
_STUCK = [
    (orders_of("F0 F1 B0 F2 B1 B2", "F0 F1 F2 B0 B1 B2"), ["B0", "F2"]),
    (orders_of("F0 B0 F1 B1", "F1 F0 B0 B1"), ["B0", "F1"]),
    (orders_of("B0 F0"), ["B0"]),
]

#: What a RuntimeError means where there is no deadlock.
_THEY_CAN_RUN = (
    "But these orders can run: is an end stored under the key under which it is looked up, "
    "(kind, micro-batch, rank)?"
)


def fault_of_simulate(answer: Callable[..., Any]) -> str:
    """Let it run orders of several sizes, costs and messages, then orders that can never finish."""
    for orders, costs, message in _tries():
        fault = _fault_of_run(answer, orders, costs, message)
        if fault:
            return fault
    for orders, waiting in _STUCK:
        fault = _fault_of_deadlock(answer, orders, waiting)
        if fault:
            return fault
    return ""


def _fault_of_run(answer: Callable[..., Any], orders: Orders, costs: Costs, message: float) -> str:
    """Say which end is wrong first, in time."""
    where = f"for {_told(orders)}" + (f", a message of {message} ticks" if message else "")
    given = copy.deepcopy(orders)
    with in_case(where):
        try:
            got = _ending(answer, given, copy.deepcopy(costs), message)
        except RuntimeError as error:
            meaning = _THEY_CAN_RUN if type(error) is RuntimeError else ""
            raise InCaseError(where, error, meaning) from error
    if not isinstance(got, dict):
        return f"{where} your function returned {got!r}, not a dictionary."
    if given != orders:
        return f"{where} your function changes `orders`, so a second call finds less to do: copy them."
    wrong = _first_wrong(got, simulate(orders, costs, message))
    if not wrong:
        return ""
    shown = ", ".join(f"{op} takes {list(c)}" for op, c in costs.items())
    return f"{where} ({shown} on the ranks), {wrong}."


def _first_wrong(got: Ends, expected: Ends) -> str:
    for (kind, i, j), end in sorted(expected.items(), key=lambda item: item[1]):
        found = got.get((kind, i, j))
        if found is None:
            return f"{kind}{i} on rank {j} has no end, expected {end:g}"
        if abs(found - end) > 1e-9:
            return f"{kind}{i} on rank {j} ends at {found:g}, expected {end:g}"
    return ""


def _fault_of_deadlock(answer: Callable[..., Any], orders: Orders, waiting: list[str]) -> str:
    """Say what is wrong with the RuntimeError, or what came in its place."""
    where = f"{_told(orders)} can never finish, and"
    try:
        got = _ending(answer, copy.deepcopy(orders), {"F": [1, 1], "B": [2, 2]}, 0)
    except RuntimeError as error:
        said = re.sub(r"\W", "", str(error))  # ('F', 2) is F2, too
        for rank, task in enumerate(waiting):
            if task not in said:
                told = f"your RuntimeError says {str(error)!r}. Name the task at which each rank waits:"
                return f"{where} {told} rank {rank} waits with {task}."
        return ""
    except Exception as error:  # not told by its line: so a famous mistake is known by the whole sentence
        return f"{where} your code raised {type(error).__name__} instead of RuntimeError: {error}."
    return f"{where} your code returned {len(got)} ends instead of raising RuntimeError."
