"""What answers of notebook 08 are tried with, and what is said of them: tables, orders that can run or can't, sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice
from typing import Any

from support.kit.judged import Fault
from support.kit.raised import InCaseError, in_case, known_by, told_of
from support.n08.runs import ClockCycles
from support.n08.solved import (
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


# ---- exercise 1: clock_cycles


def clocks_in_order(answer: ClockCycles) -> Any:
    """Return the function with each clock sorted by partition, and at most all clocks that a naive loop needs."""

    def clocks(m: int, n: int) -> Any:
        found = answer(m, n)
        if found is None or not hasattr(found, "__iter__") or isinstance(found, Mapping):
            return found
        table: list[Any] = []
        for clock in islice(found, m * n + 2):
            try:
                pairs = [(i + 0, j + 0) for i, j in clock]  # a text is no number
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
            went_on = len(got) > len(expected)  # there may be more clocks than were taken
            return f"({i}, {j}) has not run by clock {len(got) - 1}" if went_on else f"({i}, {j}) never runs"
    for i, j in right:
        if j and when[i, j] <= when[i, j - 1]:
            return f"({i}, {j}) runs in clock {when[i, j]}: its input, from ({i}, {j - 1}), is not there yet"
        if i and when[i, j] <= when[i - 1, j]:
            return f"({i}, {j}) runs in clock {when[i, j]}: its device has not done ({i - 1}, {j}) by then"
    for (i, j), k in right.items():
        if when[i, j] > k:
            return f"({i}, {j}) waits until clock {when[i, j]}, and could run in clock {k}"
    return f"all is done after {len(expected)} clocks, and there are more" if len(got) > len(expected) else ""


# ---- exercise 3: live activations


def held_by_dice() -> list[Orders]:
    """Return orders in any sequence: forwards at random, backwards of what is held, and tasks that change nothing."""
    dice = random.Random(3)
    return [[_row_by_dice(dice) for _ in range(dice.randint(1, 3))] for _ in range(12)]


def _row_by_dice(dice: random.Random) -> list[Task]:
    row: list[Task] = []
    forwards = dice.sample(range(9), dice.randint(0, 6))
    held: list[int] = []
    while forwards or held:
        kind = dice.choice("FFBR")
        if kind == "F" and forwards:
            held.append(forwards.pop())
            row.append(("F", held[-1]))
        elif kind == "B" and held:
            row.append(("B", held.pop(dice.randrange(len(held)))))
        elif kind == "R" and held:
            row.append(("R", dice.choice(held)))
        if dice.random() < 0.05:
            break  # incomplete
    return row


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
        return f"{where} the orders can't run ({error})."
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
    """Say what is no list of each rank's F0 … F(m − 1) and B0 … B(m − 1), each once; "" if nothing.

    Lists of tuples, as the reader's `simulate` is promised them: it may copy a row by its method, or put tasks in sets.
    """
    if orders is None:
        return "your function returned None (is a `return` missing?)."
    if not isinstance(orders, list):
        return f"a list of {n} orders is expected, not {type(orders).__name__}: {orders!r}."
    if len(orders) != n:
        return f"the length should be {n}, an order for each rank, and it is {len(orders)}."
    wanted = [(kind, i) for kind in "FB" for i in range(m)]
    for j, order in enumerate(orders):
        if not isinstance(order, list):
            return f"rank {j} should have a list of tasks, and has {order!r}."
        tasks = []
        for task in order:
            if not _is_task(task):
                return f'rank {j} has {task!r}, and a task is a tuple such as ("F", 0).'
            if task[0] not in ("F", "B"):
                return f"rank {j} has {task!r}, and F and B are the only kinds of task here."
            tasks.append(task)
        for task in wanted:
            if tasks.count(task) != 1:
                times = "never" if task not in tasks else f"{tasks.count(task)} times"
                return f"rank {j} does {task[0]}{task[1]} {times}: {on_paper(tasks)}."
        odd = [task for task in tasks if task not in wanted]
        if odd:
            return f"rank {j} does {odd[0][0]}{odd[0][1]}, and micro-batches are 0 to {m - 1}."
    return ""


def _is_task(task: Any) -> bool:
    """Say whether it is a tuple of a text and a whole number."""
    return (
        isinstance(task, tuple)
        and len(task) == 2
        and isinstance(task[0], str)
        and hasattr(task[1], "__index__")
    )


# ---- exercise 5: the best m


def machines() -> list[tuple[Any, ...]]:
    """Return what best_m is asked: small machines by hand, then all prices of a task and memory, then by lot."""
    two = {2: (0.4, 0.6), 4: (0.25, 0.37), 8: (0.15, 0.215), 16: (0.1, 0.2), 32: (0.11, 0.2)}
    asked: list[tuple[Any, ...]] = [
        (turn_early, _free(two), 2, 1.0),
        (turn_early, _free({2: (2.0, 3.0), 4: (1.0, 2.0)}), 2, 1.0),  # 15 and 15; 4 hold a smaller share
        (turn_early, _free({4: (1.0, 2.0), 2: (2.0, 3.0)}), 2, 1.0),  # 15 and 15
        (turn_early, _free({1: (1.0, 2.0), 2: (0.5, 1.499)}), 2, 1.0),  # 6 and 5.997
        (turn_early, _free({1: (0.0, 0.0), 2: (0.5, 1.5)}), 2, 1.0),  # 0 and 6
        (gpipe, _free(two), 2, 0.75),
        (turn_early, _free(two), 2, 0.0),
        (only_forwards, _free({1: (9.0, 0.1), 2: (4.0, 5.0), 4: (3.0, 3.0)}), 2, 1.0),
        (gpipe, {1: (1.0, 1.0, 1.0), 2: (1.0, 1.003, 0.0)}, 2, 1.0),  # 6 and 6.009
        (gpipe, {1: (1.0, 1.0, 1.0), 2: (1.0, 0.997, 0.0)}, 2, 1.0),  # 6 and 5.991
    ]
    for unit in (1e-9, 1e12):  # 12, 9 and 15 units
        asked.append(
            (gpipe, _free({1: (2 * unit, 4 * unit), 2: (unit, 2 * unit), 4: (unit, 2 * unit)}), 2, 1.0)
        )
    for fixed in (0.5, 2.0, 9.0):
        seconds = _free({2**k: (fixed + 16 / 2**k, fixed + 32 / 2**k) for k in range(8)})
        for n in (1, 2, 4, 8):
            asked += [(make, seconds, n, memory) for make in (gpipe, turn_early) for memory in (1.0, 0.25)]
        # Just below what 16 micro-batches take: no fraction may be rounded up.
        asked += [(turn_early, seconds, n, n / 16 - 0.001) for n in (2, 4, 8)]
        with_latency = {m: (forward, backward, 3.0) for m, (forward, backward, _) in seconds.items()}
        asked += [(make, with_latency, 4, 1.0) for make in (gpipe, turn_early)]
    dice = random.Random(5)
    for make in (turn_early, gpipe, only_forwards, one_alone) * 6:
        falling = dice.choice((0.5, 1))  # what cutting finer gains
        seconds = {}
        for m in dice.sample(range(1, 12), 4):
            seconds[m] = tuple(dice.uniform(0.3, 1) / m**falling for _ in range(3))
        asked.append((make, seconds, dice.randint(1, 4), dice.choice((0.4, 0.7, 1.0))))
    return asked


def _free(seconds: dict[int, tuple[float, float]]) -> dict[int, tuple[float, float, float]]:
    """Return the times with messages that cost nothing."""
    return {m: (forward, backward, 0.0) for m, (forward, backward) in seconds.items()}


def only_forwards(m: int, n: int) -> Orders:
    """Return orders without a backward, as for inference."""
    return [[("F", i) for i in range(m)] for _ in range(n)]


def one_alone(m: int, n: int) -> Orders:
    """Return orders that bring micro-batch 0 back alone, then all others: a rank holds more than it goes ahead."""
    forwards = [("F", i) for i in range(1, m)]
    backwards = [("B", i) for i in range(1, m)]
    return [[("F", 0), ("B", 0), *forwards, *backwards] for _ in range(n)]


@cache
def _best() -> list[int | None]:
    """Return the best m of all machines: the same for every answer, and half of the work."""
    return [best_m(*machine) for machine in machines()]


def fault_of_best_m(answer: Callable[..., Any]) -> str:
    """Ask it about all machines; the first wrong answer is told, all of them are what a mistake is known by."""
    found = []
    names: dict[Any, str] = {
        gpipe: "GPipe",
        turn_early: "1F1B",
        only_forwards: "forwards only",
        one_alone: "micro-batch 0 there and back, then all others",
    }
    for (make, seconds, n, memory), expected in zip(machines(), _best(), strict=True):
        shown = {m: tuple(float(f"{each:.4g}") for each in times) for m, times in seconds.items()}
        where = f"for {names[make]}, seconds = {shown}, n = {n}, memory = {memory:g}"
        given = dict(seconds)
        try:
            with in_case(where):
                more = (memory,) if memory != 1 else ()  # as the notebook calls it: all of it is the default
                got = answer(make, given, n, *more)
        except InCaseError as error:
            found.append((told_of(error), known_by(error)))
            continue
        said = (
            ""
            if got == expected and not isinstance(got, bool)
            else f"{where}: expected {expected}, got {got!r}."
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
    """Say what is wrong with orders of 4 micro-batches on 3 ranks that hold two at most and take 21 ticks.

    A famous mistake is known by its orders: others hold or take as much for other reasons.
    """
    odd = fault_of_tasks(orders, 4, 3)
    return odd or Fault(_fault_of_two(orders), [list(map(tuple, row)) for row in orders])


def _fault_of_two(orders: Any) -> str:
    held = live_activations(orders)
    if max(held) > 2:
        return f"rank {held.index(max(held))} holds {max(held)} activations, two are allowed."
    try:
        took = max(simulate(orders, {"F": [1] * 3, "B": [2] * 3}).values())
    except RuntimeError as error:
        return f"these orders can't run ({error})."
    if took > 21:
        return f"these orders can run, hold two at most and take {took:g} ticks; 21 are possible."
    return ""
