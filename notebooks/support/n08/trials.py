"""What answers of notebook 08 are tried with, and what is said of them: tables, orders that can run or can't, sizes."""

from __future__ import annotations

import copy
import random
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice, product
from typing import Any

from support.kit.judged import Fault
from support.kit.raised import InCaseError, in_case, known_by, told_of
from support.n08.runs import ClockCycles, needed_by
from support.n08.solved import (
    Costs,
    Ends,
    Orders,
    Task,
    best_m,
    gpipe,
    live_activations,
    simulate,
    turn_early,
)


def orders_of(*rows: str) -> Orders:
    """Read a text for each rank: "F0 F1 B0 B1"."""
    return [[(task[0], int(task[1:])) for task in row.split()] for row in rows]


def on_paper(order: Any) -> str:
    """Write an order as on paper: "F0 F1 B0 B1"."""
    return " ".join(f"{kind}{i}" for kind, i in order)


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


# ---- exercise 1: clock_cycles


def clocks_in_order(answer: ClockCycles) -> Any:
    """Return the function with each clock sorted by partition, and at most all clocks that a naive loop needs."""

    def clocks(m: int, n: int) -> Any:
        found = answer(m, n)
        if found is None or not hasattr(found, "__iter__"):
            return found
        table: list[Any] = []
        for clock in islice(found, m * n + 2):
            try:
                pairs = [(i, j) for i, j in clock]
                table.append(sorted(pairs, key=lambda pair: pair[1]))
            except (TypeError, ValueError):
                table.append(f"clock {len(table)} is no list of pairs (i, j): {clock}")
        return table

    return clocks


def fault_of_clocks(got: Any, expected: Any, case: Any) -> str:
    """Say which promise of a clock table is broken first."""
    if not isinstance(got, list):
        return f"a list of clocks is expected, not {got!r}"
    n = case["n"]
    when: dict[tuple[int, int], int] = {}
    for k, clock in enumerate(got):
        if isinstance(clock, str):
            return clock
        for i, j in clock:
            if not (0 <= i < case["m"] and 0 <= j < n):
                return f"clock {k} has ({i}, {j}), and there is no such pair"
            if (i, j) in when:
                return f"({i}, {j}) runs twice, in clock {when[i, j]} and in clock {k}"
            when[i, j] = k
    right = {tuple(pair): k for k, clock in enumerate(expected) for pair in clock}
    for i, j in right:
        if (i, j) not in when:
            return f"({i}, {j}) never runs"
    for i, j in right:
        if j and when[i, j] <= when[i, j - 1]:
            return f"({i}, {j}) runs in clock {when[i, j]}: its input, from ({i}, {j - 1}), is not there yet"
        if i and when[i, j] <= when[i - 1, j]:
            return f"({i}, {j}) runs in clock {when[i, j]}: its device has not done ({i - 1}, {j}) by then"
    for (i, j), k in right.items():
        if when[i, j] > k:
            return f"({i}, {j}) waits until clock {when[i, j]}, and could run in clock {k}"
    return f"{len(got)} clocks, and all is done after {len(expected)}" if len(got) > len(expected) else ""


# ---- exercise 2: simulate


def _told(orders: Orders) -> str:
    return ", ".join(f"rank {j}: {on_paper(row)}" for j, row in enumerate(orders))


def _tries() -> Iterator[tuple[Orders, Any, float]]:
    """Yield orders that can be run, with costs and a message: small ones first, then whatever the dice give."""
    equal = {"F": [1.0, 1.0], "B": [2.0, 2.0]}
    yield [[("F", 0)]], equal, 0
    yield SMALL, equal, 0
    yield SMALL, equal, 0.5
    yield [[("F", 0), ("F", 1)], [("F", 1), ("F", 0)]], {"F": [1, 3]}, 0
    for m, n, message, make in product((1, 2, 3, 5), (1, 2, 3, 4), (0, 0.25), (gpipe, turn_early)):
        forward = [1 + (j * 7 + m) % 3 for j in range(n)]
        backward = [2 + (j * 5) % 4 for j in range(n)]
        yield make(m, n), {"F": forward, "B": backward}, message
    dice = random.Random(8)
    for _ in range(12):
        orders = _by_dice(dice)
        costs = {kind: [dice.choice((0.5, 1, 2, 3.25)) for _ in orders] for kind in "FBR"}
        yield orders, costs, dice.choice((0, 0.75, 4))


def _by_dice(dice: random.Random) -> Orders:
    """Return orders that can run: whatever can be done next somewhere is drawn by lot, recomputing now and then."""
    m = dice.randint(1, 4)
    n = dice.randint(1, 4)
    orders: list[list[Task]] = [[] for _ in range(n)]
    done: set[tuple[str, int, int]] = set()
    while len(done) < 2 * m * n:
        able = []
        for kind, i, j in product("FB", range(m), range(n)):
            needed = needed_by(kind, i, j, n)
            if (kind, i, j) not in done and (needed is None or needed in done):
                able.append((kind, i, j))
        kind, i, j = dice.choice(able)
        if kind == "B" and dice.random() < 0.3:
            orders[j].append(("R", i))
        orders[j].append((kind, i))
        done.add((kind, i, j))
    return orders


#: Orders that can't run, and the task at which each rank waits; None for a rank that is through.
_STUCK: list[tuple[Orders, list[str]]] = [
    (orders_of("F0 F1 B0 F2 B1 B2", "F0 F1 F2 B0 B1 B2"), ["B0", "F2"]),
    (orders_of("F0 B0 F1 B1", "F1 F0 B0 B1"), ["B0", "F1"]),
    (orders_of("B0 F0"), ["B0"]),
    (orders_of("F0", "F0 F1", "F0 F1"), ["", "F1", "F1"]),
]

#: What a RuntimeError means where there is no deadlock.
_THEY_CAN_RUN = (
    "But these orders can run: is an end stored under the key under which it is looked up, "
    "(kind, micro-batch, rank)?"
)


def fault_of_simulate(answer: Callable[..., Any]) -> str:
    """Let it run orders of several sizes, costs and messages, then orders that can never finish.

    The first fault is told; all of them together are what a famous mistake is recognised by.
    """
    found = [_fault_of_run(answer, *each) for each in _tries()]
    found += [_fault_of_deadlock(answer, *each) for each in _STUCK]
    first = next(filter(None, found), "")
    return Fault(first, tuple(found)) if first else ""


def _fault_of_run(answer: Callable[..., Any], orders: Orders, costs: Costs, message: float) -> str:
    """Say which end is wrong first, in time."""
    where = f"for {_told(orders)}" + (f", a message of {message} ticks" if message else "")
    given = copy.deepcopy(orders)
    with_costs = copy.deepcopy(costs)
    try:
        with in_case(where):
            got = _ending(answer, given, with_costs, message)
    except InCaseError as error:
        meaning = _THEY_CAN_RUN if type(error.error) is RuntimeError else ""
        return told_of(InCaseError(where, error.error, meaning))
    if not isinstance(got, dict):
        said = "None (is a `return` missing?)" if got is None else repr(got)
        return f"{where} your function returned {said}, not a dictionary."
    if given != orders:
        return f"{where} your function changes `orders`, so a second call finds less to do: copy them."
    if with_costs != costs:
        return f"{where} your function changes `costs`, which the caller needs again."
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
        if isinstance(found, (str, bytes)) or not hasattr(found, "__sub__"):
            return f"{kind}{i} on rank {j} ends at {found!r}, expected a number, {end:g}"
        if abs(found - end) > 1e-9:
            return f"{kind}{i} on rank {j} ends at {found:g}, expected {end:g}"
    more = [key for key in got if key not in expected]
    return f"there is an end for {more[0]!r}, which is no task of these orders" if more else ""


def _fault_of_deadlock(answer: Callable[..., Any], orders: Orders, waiting: list[str]) -> str:
    """Say what is wrong with the RuntimeError, or what came in its place."""
    where = f"{_told(orders)} can never finish, and"
    ranks = len(orders)
    try:
        got = _ending(answer, copy.deepcopy(orders), {"F": [1] * ranks, "B": [2] * ranks}, 0)
    except RuntimeError as error:
        said = re.sub(r"\W", "", str(error))  # ('F', 2) is F2, too
        for rank, task in enumerate(waiting):
            if task and task not in said:
                told = f"your RuntimeError says {str(error)!r}. Name the task at which each rank waits:"
                return f"{where} {told} rank {rank} waits with {task}."
        return ""
    except Exception as error:  # not told by its line: so a famous mistake is known by the whole sentence
        return f"{where} your code raised {type(error).__name__} instead of RuntimeError: {error}."
    if not isinstance(got, dict):
        return f"{where} your code returned {got!r} instead of raising RuntimeError."
    return f"{where} your code returned {len(got)} ends instead of raising RuntimeError."


# ---- exercise 4: turn early

SIZES = [(2, 1), (2, 2), (8, 4), (1, 1), (2, 4), (4, 3), (1, 3), (5, 5), (6, 2), (11, 3), (7, 6)]
"""Micro-batches and ranks, from small to large; more of either than of the other."""


def fault_of_turn(answer: Callable[[int, int], Any]) -> str:
    """Try the orders of all sizes: can they run, how long do they take, what do their ranks hold?

    Micro-batches in sequence, GPipe's time, and n − j held on rank j: only one order of each rank has all three.
    """
    found = []
    made = []
    for m, n in SIZES:
        orders = None
        try:
            with in_case(f"for m = {m}, n = {n}"):
                orders = answer(m, n)
        except InCaseError as error:
            found.append(told_of(error))
            made.append(known_by(error))
            continue
        found.append(_fault_of_orders(orders, m, n))
        made.append(repr(orders))
    first = next(filter(None, found), "")
    return Fault(first, made) if first else ""


def _fault_of_orders(orders: Any, m: int, n: int) -> str:
    where = f"for m = {m}, n = {n},"
    odd = fault_of_tasks(orders, m, n)
    if odd:
        return f"{where} {odd}"
    for j, order in enumerate(orders):
        for kind, name in (("F", "forwards"), ("B", "backwards")):
            row = [i for each, i in order if each == kind]
            if row != sorted(row):
                return f"{where} rank {j} takes its {name} in the sequence {row}; it should be ascending."
    costs = {"F": [1] * n, "B": [2] * n}
    try:
        took = max(simulate(orders, costs).values())
    except RuntimeError as error:
        return f"{where} the ranks wait for each other for ever ({error})."
    held = live_activations(orders)
    least = 3 * (m + n - 1)
    said = []
    if took > least:
        said.append(f"the step takes {took:g} ticks, GPipe's {least}")
    for j, (mine, most) in enumerate(zip(held, [min(m, n - j) for j in range(n)], strict=True)):
        if mine > most:
            said.append(f"rank {j} holds {mine}, and {most} would do")
            break
    if not said:
        return ""
    late = next(j for j in range(n) if list(map(tuple, orders[j])) != turn_early(m, n)[j])
    return f"{where} {' and '.join(said)}. Your rank {late}: {on_paper(orders[late])}."


def fault_of_tasks(orders: Any, m: int, n: int) -> str:
    """Say what is no list of each rank's F0 … F(m − 1) and B0 … B(m − 1), each once; "" if nothing."""
    if orders is None:
        return "your function returned None (is a `return` missing?)."
    if not isinstance(orders, (list, tuple)):
        return f"a list of {n} orders is expected, not {type(orders).__name__}: {orders!r}."
    if len(orders) != n:
        return f"there should be an order for each of {n} ranks, and there are {len(orders)}."
    wanted = [(kind, i) for kind in "FB" for i in range(m)]
    for j, order in enumerate(orders):
        if not isinstance(order, (list, tuple)):
            return f"rank {j} should have a list of tasks, and has {order!r}."
        tasks = []
        for task in order:
            if not isinstance(task, (list, tuple)) or len(task) != 2 or task[0] not in ("F", "B"):
                return f'rank {j} has {task!r}, and a task is a pair such as ("F", 0).'
            tasks.append(tuple(task))
        for task in wanted:
            if tasks.count(task) != 1:
                times = "never" if task not in tasks else f"{tasks.count(task)} times"
                return f"rank {j} does {task[0]}{task[1]} {times}: {on_paper(tasks)}."
        odd = [task for task in tasks if task not in wanted]
        if odd:
            return f"rank {j} does {odd[0][0]}{odd[0][1]}, and micro-batches are 0 to {m - 1}."
    return ""


# ---- exercise 5: the best m


def machines() -> list[tuple[Any, ...]]:
    """Return what best_m is asked: small machines by hand, then all prices of a task, a message and memory."""
    two = {2: (0.4, 0.6), 4: (0.25, 0.37), 8: (0.15, 0.215), 16: (0.1, 0.2), 32: (0.11, 0.2)}
    asked: list[tuple[Any, ...]] = [
        (turn_early, two, 2, 1.0, 0.0),
        (turn_early, {1: (1.0, 2.0), 2: (0.5, 1.5)}, 2, 1.0, 0.0),  # 6 and 6
        (turn_early, {2: (0.5, 1.5), 1: (1.0, 2.0)}, 2, 1.0, 0.0),  # 6 and 6
        (gpipe, two, 2, 0.75, 0.0),
    ]
    for fixed in (0.5, 2.0, 9.0):
        seconds = {2**k: (fixed + 16 / 2**k, fixed + 32 / 2**k) for k in range(8)}
        for n in (1, 2, 4, 16):
            asked += [
                (make, seconds, n, memory, 0.0) for make in (gpipe, turn_early) for memory in (1.0, 0.25)
            ]
        asked += [(make, seconds, 4, 1.0, 3.0) for make in (gpipe, turn_early)]
    return asked


def fault_of_best_m(answer: Callable[..., Any]) -> str:
    """Ask it about all machines; the first wrong answer is told, all of them are what a mistake is known by."""
    found = []
    for make, seconds, n, memory, message in machines():
        name = "GPipe" if make is gpipe else "1F1B"
        shown = {m: tuple(round(each, 3) for each in pair) for m, pair in seconds.items()}
        where = f"for {name}, seconds = {shown}, n = {n}, memory = {memory:g}, message = {message:g}"
        given = dict(seconds)
        try:
            with in_case(where):
                got = answer(make, given, n, memory, message)
        except InCaseError as error:
            found.append((told_of(error), known_by(error)))
            continue
        expected = best_m(make, seconds, n, memory, message)
        said = (
            ""
            if got == expected and not isinstance(got, bool)
            else f"{where}: expected {expected}, got {got}."
        )
        if got is None and expected is not None:
            said = f"{where}: expected {expected}, your function returned None."
        if given != seconds:
            said = f"{where}: your function changes `seconds`, which the caller needs again."
        found.append((said, said))
    first = next((said for said, _ in found if said), "")
    return Fault(first, [known for _, known in found]) if first else ""


# ---- exercise 7: two at most


def fault_of_two_held(orders: Any) -> str:
    """Say what is wrong with orders of 4 micro-batches on 3 ranks that hold two at most and take 21 ticks."""
    odd = fault_of_tasks(orders, 4, 3)
    if odd:
        return odd
    held = live_activations(orders)
    if max(held) > 2:
        return f"rank {held.index(max(held))} holds {max(held)} activations, two are allowed."
    try:
        took = max(simulate(orders, {"F": [1] * 3, "B": [2] * 3}).values())
    except RuntimeError as error:
        return f"the ranks wait for each other for ever ({error})."
    if took > 21:
        return f"these orders can run, hold two at most and take {took:g} ticks; 21 are possible."
    return ""
