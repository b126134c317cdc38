"""What a reader's `simulate` is tried with, and its famous mistakes: orders that can run, and orders that can't."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator
from itertools import product
from numbers import Real
from typing import Any

from lib.text import plural
from support.kit.ending import ending
from support.kit.judged import Fault
from support.kit.mistakes import famous
from support.kit.raised import InCaseError, in_case, told_of
from support.n08.runs import needed_by
from support.n08.solved import Costs, Ends, Orders, Task, gpipe, simulate, turn_early
from support.n08.trials import SMALL, on_paper, orders_of


def _told(orders: Orders, most: int = 12) -> str:
    """Write orders in one line; of long ones the beginning."""
    rows = [
        f"rank {j}: {on_paper(row[:most]) or 'no task'}{' …' * (len(row) > most)}"
        for j, row in enumerate(orders[:most])
    ]
    longest = max(map(len, orders))
    if len(orders) > most or longest > most:
        rows.append(f"{len(orders)} ranks, {longest} tasks each")
    return ", ".join(rows)


def _tries() -> Iterator[tuple[Orders, Any, float]]:
    """Yield orders that can be run, with costs and a message: small ones first, then whatever the dice give."""
    equal = {"F": [1.0, 1.0], "B": [2.0, 2.0]}
    yield [[("F", 0)]], {"F": [1.0], "B": [2.0]}, 0
    yield SMALL, equal, 0
    yield SMALL, equal, 0.5
    # in seconds, of tasks that are short: no digit may be lost
    yield SMALL, {"F": [1.3e-10, 1.7e-10], "B": [2.1e-10, 2.3e-10]}, 0.7e-10
    yield SMALL, {"F": [0, 0], "B": [2, 2]}, 0
    yield [[("F", 0), ("F", 1)], [("F", 1), ("F", 0)]], {"F": [1, 3]}, 0
    # rank 1 is free before the message has come, and F1 on rank 0 has ended
    yield orders_of("F0 F1", "F0 F1"), {"F": [1, 0.5]}, 2
    # R1 stands in front of all, also of what a forward would wait for; messages are slow, and it waits for none
    yield orders_of("F0 F1 B0 B1", "R1 F0 F1 B0 B1"), equal | {"R": [1.0, 1.0]}, 3
    # R0 stands behind its B0, W1 behind its B1
    yield orders_of("F0 W1 F1 B0 R0 B1", "F0 B0 F1 B1 W1"), equal | {"W": [1.0, 0.5], "R": [1.0, 1.0]}, 3
    yield orders_of("F0 F1 F2", "F0", ""), {"F": [1.0, 1.0, 1.0]}, 0
    yield orders_of("", ""), equal, 0
    # each micro-batch alone: every backward takes a visit to each rank
    yield orders_of(*["F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"] * 5), {"F": [1.0] * 5, "B": [2.0] * 5}, 0
    for m, n, message, make in product((1, 2, 3, 5), (1, 2, 3, 4), (0, 0.25), (gpipe, turn_early)):
        forward = [1 + (j * 7 + m) % 3 for j in range(n)]
        backward = [2 + (j * 5) % 4 for j in range(n)]
        yield make(m, n), {"F": forward, "B": backward}, message
    dice = random.Random(8)
    for _ in range(12):
        orders = _by_dice(dice)
        costs = {kind: [dice.choice((0, 0.5, 1, 2, 3.1416)) for _ in orders] for kind in "FBR"}
        yield orders, costs, dice.choice((0, 0.75, 4))
    # who waits is asked many times
    for m, n, make in ((8, 4, turn_early), (3, 40, gpipe), (200, 2, turn_early)):
        yield make(m, n), {"F": [1] * n, "B": [2] * n}, 0


def _by_dice(dice: random.Random) -> Orders:
    """Return orders that can run: whatever can be done next somewhere is drawn by lot, recomputing now and then.

    Micro-batches may have any numbers, and half of the orders stop early.
    """
    numbers = dice.sample(range(40), dice.randint(1, 4))
    n = dice.randint(1, 4)
    orders: list[list[Task]] = [[] for _ in range(n)]
    done: set[tuple[str, int, int]] = set()
    tasks = 2 * len(numbers) * n
    until = dice.choice((tasks, dice.randint(1, tasks)))
    while len(done) < until:
        able = []
        for kind, i, j in product("FB", numbers, range(n)):
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
    (orders_of("F0", "B0 F0"), ["", "B0"]),
    (orders_of("F0", "F0 F1", "F0 B1"), ["", "F1", "B1"]),
    (orders_of("F0 B0 F1 F2", "F0 F1 F2 B0", "F0 F2 F1 B0"), ["B0", "F1", "F2"]),
    # rank 0 waits at B0 first, and then no more
    (orders_of("F0 B0 F1 B1", "F0 B0 F2 F1 B1"), ["B1", "F2"]),
    (orders_of("F0 B0", "F0 B0 F1"), ["", "F1"]),
    (orders_of("", "F0"), ["", "F0"]),
    (orders_of("F0 B0", ""), ["B0", ""]),
    (orders_of("B0 F0"), ["B0"]),
]


def fault_of_simulate(answer: Callable[..., Any]) -> str:
    """Let it run orders of several sizes, costs and messages, then orders that can never finish.

    The first fault is told; all of them together are what a famous mistake is recognised by.
    """
    found = [_fault_of_run(answer, *each) for each in _tries()]
    found += [_fault_of_deadlock(answer, *each) for each in _STUCK]
    first = next(filter(None, found), "")
    return Fault(first, [getattr(each, "known_by", each) for each in found]) if first else ""


def _fault_of_run(answer: Callable[..., Any], orders: Orders, costs: Costs, message: float) -> str:
    """Say which end is wrong first, in time."""
    where = f"for {_told(orders)}" + (f", a message of {message} ticks" if message else "")
    given = copy.deepcopy(orders)
    rows = list(given)
    with_costs = copy.deepcopy(costs)
    tasks = sum(map(len, orders))
    right = simulate(orders, costs, message)
    try:
        with in_case(where):
            more = (message,) if message else ()  # as the notebook calls it: free messages are the default
            got = ending(answer, given, with_costs, *more, lines=50_000 + 20 * tasks**2)
    except InCaseError as error:
        if type(error.error) is not RuntimeError:
            return told_of(error)
        # Known by the case alone: how a reader words a deadlock differs.
        meaning = f"But these orders can run: all is done at {max(right.values(), default=0):g}."
        return Fault(told_of(InCaseError(where, error.error, meaning)), f"{where}: a deadlock")
    if not isinstance(got, dict):
        said = "None (is a `return` missing?)" if got is None else repr(got)
        return f"{where}: your function returned {said}, not a dictionary."
    changed = _changed(given == orders == rows, with_costs == costs)
    if changed:
        return f"{where}: {changed}"
    wrong = _first_wrong(got, right)
    if not wrong:
        return ""
    shown = ", ".join(f"{op} takes {list(c)}" for op, c in costs.items())
    return f"{where} ({shown} on the ranks), {wrong}."


def _changed(orders_kept: bool, costs_kept: bool) -> str:
    """Say what of a caller's is no longer as it was, "" if nothing."""
    if orders_kept and costs_kept:
        return ""
    return f"your function changes `{'costs' if orders_kept else 'orders'}`, which the caller needs again."


def _first_wrong(got: Ends, expected: Ends) -> str:
    for (kind, i, j), end in sorted(expected.items(), key=lambda item: item[1]):
        found = got.get((kind, i, j))
        if found is None:
            return f"{kind}{i} on rank {j} has no end, expected {end:g}"
        if not isinstance(found, Real):
            return f"{kind}{i} on rank {j} ends at {found!r}, expected a number, {end:g}"
        if not abs(found - end) <= 1e-5 * end:  # float32 will do, nan will not
            return f"{kind}{i} on rank {j} ends at {found:g}, expected {end:g}"
    more = [key for key in got if key not in expected]
    return f"there is an end for {more[0]!r}, which is no task of these orders" if more else ""


def _fault_of_deadlock(answer: Callable[..., Any], orders: Orders, waiting: list[str]) -> str:
    """Say what is wrong with the RuntimeError, or what came in its place."""
    where = f"{_told(orders)} can never finish, and"
    given = copy.deepcopy(orders)
    rows = list(given)
    costs = {"F": [1] * len(orders), "B": [2] * len(orders)}
    with_costs = copy.deepcopy(costs)
    try:
        got = ending(answer, given, with_costs, lines=50_000)
    except RecursionError as error:  # a RuntimeError, too, and not the reader's
        return f"{where} RecursionError came instead of RuntimeError: {error}."
    except RuntimeError as error:
        changed = _changed(given == orders == rows, with_costs == costs)
        if changed:
            return f"{where} {changed}"
        fault = _fault_of_names(_NAMED.findall(str(error)), waiting)
        said = f"{where} your RuntimeError says {str(error)!r}."
        return Fault(f"{said} {fault}", f"{where} {fault}") if fault else ""
    except Exception as error:  # not told by its line: so a famous mistake is known by the whole sentence
        return f"{where} {type(error).__name__} came instead of RuntimeError: {error}."
    if not isinstance(got, dict):
        return f"{where} your code returned {got!r} instead of raising RuntimeError."
    return f"{where} your code returned {plural(len(got), 'end')} instead of raising RuntimeError."


#: A task as it may be named: F2, F 2, ('F', 2), also in B0F2; 1F1B is none.
_NAMED = re.compile(r"(?<![A-Za-z])([FB])[\W_]{0,4}(\d+)(?![AC-EG-Za-z]|[BF](?!\d))")


def _fault_of_names(named: list[tuple[str, str]], waiting: list[str]) -> str:
    """Say which task is not named at which a rank waits, or is named though none waits there."""
    names = [kind + number for kind, number in named]
    for rank, task in enumerate(waiting):
        if task and task not in names:
            return f"Name the task at which each rank waits: rank {rank} waits with {task}."
    for name in names:
        if name not in waiting:
            return f"It names {name}, too: no rank waits there."
    return ""


# ---- famous mistakes

_COST = "costs[kind][j]"
_TRAVEL = ' + message * ((kind, j) not in (("F", 0), ("B", len(orders) - 1)))'
_END = f"{_COST}\n    return ends"
_LAST = 'kind == "B" and j == len(orders) - 1'

_ROUNDS = """    while any(left):
        able = [j for j, order in enumerate(left) if order and arrival(*order[0], j) < inf]
        if not able:
            waiting = [f"rank {j} waits with {o[0][0]}{o[0][1]}" for j, o in enumerate(left) if o]
            raise RuntimeError("deadlock: " + ", ".join(waiting))
        for j in able:
            kind, i = left[j].pop(0)
            free[j] = ends[kind, i, j] = max(free[j], arrival(kind, i, j)) + costs[kind][j]
"""


def _sweeps(count: str) -> str:
    """Return the text of rounds of which there are only so many, each rank going as far as it can."""
    return f"""    for _ in range({count}):
        for j, order in enumerate(left):
            while order and arrival(*order[0], j) < inf:
                kind, i = order.pop(0)
                free[j] = ends[kind, i, j] = max(free[j], arrival(kind, i, j)) + costs[kind][j]
    if any(left):
        waiting = [f"rank {{j}} waits with {{o[0][0]}}{{o[0][1]}}" for j, o in enumerate(left) if o]
        raise RuntimeError("deadlock: " + ", ".join(waiting))
"""


MISTAKES = famous(
    simulate,
    {
        "A task waits for its rank, too: a start is the later of two times, the input's and the rank's.": (
            "max(free[j], arrival(kind, i, j))",
            "arrival(kind, i, j)",
        ),
        "A task waits for its input, too: a start is the later of two times, the input's and the rank's.": (
            "max(free[j], arrival(kind, i, j))",
            "free[j]",
        ),
        "A message takes time: add it to the end of what another rank sends.": (
            ", inf) + message",
            ", inf)",
        ),
        "Add the message to the end of what is needed, inside the max: while it travels, the rank may be busy.": (
            ", inf) + message",
            ", inf)",
            _COST,
            _COST + _TRAVEL,
        ),
        "A message keeps no rank busy: the sender goes on with its next task at once.": (
            _COST,
            _COST + "\n            free[j] += message",
        ),
        "A recompute needs nothing from another rank.": (
            'kind not in "FB" or (kind == "F" and j == 0)',
            'kind == "F" and j == 0',
        ),
        "You forgot that a gradient travels, too.": (
            ", inf) + message",
            ', inf) + message * (kind == "F")',
        ),
        "What is needed has ended, but its message may still be on its way.": (
            "max(free[j], arrival(kind, i, j))",
            "(free[j] if arrival(kind, i, j) - message <= free[j] else arrival(kind, i, j))",
        ),
        "On the last rank B needs that rank's own F, which is no message.": (
            '("F", i, j), inf)',
            '("F", i, j), inf) + message',
        ),
        "Only on the last rank does B need its own F: on the others it needs the gradient of rank j + 1.": (
            _LAST,
            'kind == "B"',
        ),
        "B comes from the other side: its gradient is made on rank j + 1.": (
            _LAST,
            'kind == "B" and j == 0',
            'j - 1 if kind == "F" else j + 1',
            "j - 1",
        ),
        "A key is (kind, micro-batch, rank), in this order.": (
            _END,
            _COST + "\n    return {(kind, j, i): end for (kind, i, j), end in ends.items()}",
        ),
        "These are starts; the dictionary holds ends.": (
            _END,
            _COST + "\n    return {t: end - costs[t[0]][t[2]] for t, end in ends.items()}",
        ),
        "Each rank has its own costs: costs[kind][j].": (_COST, "costs[kind][0]"),
        "If a whole round runs nothing, nothing ever will: raise then.": ("if not able:", "if False:"),
        "An end at 0 is an end, too: ask whether its key is there.": (
            "return ends.get(",
            "return (ends.get(",
            ", inf)",
            ", 0) or inf)",
        ),
        "In front of the last rank B needs rank j + 1's B, which is done later: ask there, and ask again.": (
            _ROUNDS,
            _sweeps("1"),
        ),
        "A rank may have to be visited as often as it has tasks: stop when a round has done nothing.": (
            _ROUNDS,
            _sweeps("2 * len(orders)"),
        ),
        "An end is looked up under another key than the one under which it is stored.": (
            'ends.get((kind, i, j - 1 if kind == "F" else j + 1)',
            'ends.get((kind, j - 1 if kind == "F" else j + 1, i)',
        ),
        "A simulator that stops quietly calls a deadlock a fast schedule: raise RuntimeError.": (
            "if not able:",
            "if not able:\n            return ends\n        if False:",
        ),
        "That is the law of the clock: a rank that has its input must not wait for the other ranks.": (
            "        for j in able:",
            "        now = max(free)\n        for j in able:",
            "max(free[j],",
            "max(now,",
        ),
        "Ranks work at the same time: each has a free time of its own.": (
            "max(free[j],",
            "max(*free,",
        ),
    },
)
"""Wrong simulators, each known by a sentence."""
