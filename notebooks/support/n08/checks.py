"""Predictions and exercises of notebook 08, the pipeline clock. What is not solved there, it takes from solved.py."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

from support.checks import Exercise, Guess, Verdict, cases
from support.checks import use as use
from support.n08.solved import (
    Costs,
    Orders,
    best_m,
    clock_cycles,
    gpipe,
    live_activations,
    one_f_one_b,
    simulate,
)
from support.ranks import source_of

# ---- predictions


def _exact(what: str, truth: Callable[..., float], unit: str = "") -> Guess:
    """Make a guess that is right or not: near the truth lie the famous wrong answers."""
    return Guess(
        what,
        lambda *known: f"{truth(*known):g}",
        unit,
        read=lambda number: f"{number:g}" if isinstance(number, (int, float)) else number,
    )


def _idle(m: int, n: int) -> int:
    clocks = clock_cycles(m, n)
    return round(100 * (1 - sum(map(len, clocks)) / (len(clocks) * n)))


def _orders(*rows: str) -> Orders:
    return [[(task[0], int(task[1:])) for task in row.split()] for row in rows]


SMALL = _orders("F0 F1 B0 B1", "F0 B0 F1 B1")

guess_model_parallel = _exact("the speed-up of model parallelism", lambda n: 1 + 0 * n)
"""Section 1: the speed of model parallelism, one batch, against one device."""
guess_idle = Guess("the idle share", _idle, unit="%", tolerance=0.03)
"""Section 2: the idle share in per cent, counted in the clock table."""
guess_waits = _exact(
    "what rank 0 waits", lambda: simulate(SMALL, {"F": [1, 1], "B": [2, 2]})["B", 1, 0] - 6, "ticks"
)
"""Section 3: how long rank 0 of two waits before it has ended its 6 ticks of work."""
guess_unequal = _exact(
    "the time of the forward pass",
    lambda seconds, m: max(simulate([[("F", i) for i in range(m)]] * len(seconds), {"F": seconds}).values()),
    "ticks",
)
"""Section 4: the forward pass of unequal partitions by the data-flow law."""
guess_held = _exact(
    "what rank 0 has to hold", lambda m, n: max(live_activations(one_f_one_b(m, n))), "activations"
)
"""Section 5: the most activations of rank 0 in 1F1B."""


# ---- what the exercises have in common


def _but(thing: Callable[..., Any], *changes: tuple[str, str]) -> Callable[..., Any]:
    """Return a function of solved.py with some of its lines otherwise: a famous mistake."""
    text = "from __future__ import annotations\n" + source_of(thing)
    for old, new in changes:
        assert old in text, f"{thing.__name__} has no {old!r}"
        text = text.replace(old, new)
    space: dict[str, Any] = {}
    exec(text, space)
    made: Callable[..., Any] = space[thing.__name__]
    return made


def _ending(function: Callable[..., Any], *arguments: Any, lines: int = 50_000) -> Any:
    """Call a function; raises TimeoutError after so many lines of Python: no check hangs in an endless loop."""
    left, before = iter(range(lines)), sys.gettrace()

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

Pair: TypeAlias = tuple[int, int]
Clocks: TypeAlias = Callable[[int, int], Iterable[Iterable[Pair]]]


def _in_order(answer: Clocks) -> Any:
    """Return the function with each clock sorted by partition, and at most all clocks that a naive loop needs."""

    def clocks(m: int, n: int) -> list[list[Pair]] | None:
        found = answer(m, n)
        if found is None:
            return None
        return [
            sorted(((i, j) for i, j in clock), key=lambda pair: pair[1]) for clock in islice(found, m * n + 2)
        ]

    return clocks


# fmt: off
check_clock_cycles = Exercise(
    "clock_cycles",
    reference=clock_cycles,
    view=_in_order,
    cases=cases("m n", [(3, 3), (4, 3), (2, 4), (1, 3), (5, 2), (1, 1), (4, 1), (8, 4), (3, 6)]),
    mistakes={
        "That is model parallelism: one pair per clock, one device busy at a time. Pairs with the same i + j can "
        "share a clock.": lambda m, n: [[(i, j)] for i in range(m) for j in range(n)],
        "All partitions take the same micro-batch at once: but partition 1 needs what 0 computes.":
            lambda m, n: [[(k, j) for j in range(n)] for k in range(m)],
        "The last clock is missing: range(k) ends at k - 1, and there are m + n - 1 clocks.":
            lambda m, n: (clock_cycles(m, n)[:-1]),
        "You stop when partition 0 is done; the last micro-batch is still on its way: m + n - 1 clocks.":
            lambda m, n: (clock_cycles(m, n)[:m]),
        "i = k - j must stay below m: partition 0 has no micro-batch left in the last clocks.":
            _but(clock_cycles, ("0 <= k - j < m", "0 <= k - j")),
        "i = k - j must be at least 0: partition j has nothing to do before clock j.":
            _but(clock_cycles, ("0 <= k - j < m", "k - j < m")),
        "A pair is (micro-batch, partition), in this order.":
            _but(clock_cycles, ("(k - j, j)", "(j, k - j)")),
        "Micro-batches enter at partition 0, not at the last one.":
            _but(clock_cycles, ("(k - j, j)", "(k - j, n - 1 - j)")),
    },
)
# fmt: on
"""Exercise 1 for few and many micro-batches and partitions; the order within a clock is free."""


# ---- exercise 2: simulate


def _told(orders: Orders) -> str:
    rows = (" ".join(f"{kind}{i}" for kind, i in order) for order in orders)
    return ", ".join(f"rank {j}: {row}" for j, row in enumerate(rows))


def _tries() -> Iterator[tuple[Orders, Costs, float]]:
    """Yield orders that can be run, with costs and a message: small ones first."""
    equal = {"F": [1.0, 1.0], "B": [2.0, 2.0]}
    yield [[("F", 0)]], equal, 0
    yield SMALL, equal, 0
    yield SMALL, equal, 0.5
    yield [[("F", 0), ("F", 1)], [("F", 1), ("F", 0)]], {"F": [1, 3]}, 0
    for m in (1, 2, 3, 5):
        for n in (1, 2, 3, 4):
            for message in (0, 0.25):
                for make in (gpipe, one_f_one_b):
                    costs = {
                        "F": [1 + (j * 7 + m) % 3 for j in range(n)],
                        "B": [2 + (j * 5) % 4 for j in range(n)],
                    }
                    yield make(m, n), costs, message


STUCK = [
    _orders("F0 F1 B0 F2 B1 B2", "F0 F1 F2 B0 B1 B2"),
    _orders("F0 B0 F1 B1", "F1 F0 B0 B1"),
    _orders("B0 F0"),
]


def _fault_of_simulate(answer: Callable[..., Any]) -> str:
    for orders, costs, message in _tries():
        where = f"for {_told(orders)}" + (f", a message of {message} ticks" if message else "")
        given, expected = copy.deepcopy((orders, costs)), simulate(orders, costs, message)
        try:
            got = _ending(answer, *given, message)
        except Exception as error:
            return f"{where} your code raised {type(error).__name__}: {error}."
        if not isinstance(got, dict):
            return f"{where} your function returned {got!r}, not a dictionary."
        if given[0] != orders:
            return f"{where} your function changes `orders`, so a second call finds less to do: copy them."
        for kind, i, j in sorted(expected, key=lambda task: expected[task]):
            end, found = expected[kind, i, j], got.get((kind, i, j))
            if found is None or abs(found - end) > 1e-9:
                ends = "has no end" if found is None else f"ends at {found:g}"
                shown = ", ".join(f"{op} takes {list(c)}" for op, c in costs.items())
                return f"{where} ({shown} on the ranks), {kind}{i} on rank {j} {ends}, expected {end:g}."
    for orders in STUCK:
        where = f"{_told(orders)} can never finish, and"
        try:
            got = _ending(answer, copy.deepcopy(orders), {"F": [1, 1], "B": [2, 2]}, 0)
        except RuntimeError:
            continue
        except Exception as error:
            return f"{where} your code raised {type(error).__name__} instead of RuntimeError: {error}."
        return f"{where} your code returned {len(got)} ends instead of raising RuntimeError."
    return ""


def _judge_simulate(exercise: Exercise, answer: Any) -> Verdict:
    found = _fault_of_simulate(answer)
    if not found:
        return exercise.right("every end, in 68 runs of GPipe, 1F1B and others, and 3 deadlocks found.")
    reasons = (f" {why}" for why, wrong in exercise.mistakes.items() if _fault_of_simulate(wrong) == found)
    return exercise.wrong(found + next(reasons, ""))


_TRAVEL = 'j - 1 if kind == "F" else j + 1), message'

# fmt: off
check_simulate = Exercise(
    "simulate",
    reference=simulate,
    judge=_judge_simulate,
    mistakes={
        "A task waits for its rank, too: a start is the later of two times, the input's and the rank's.":
            _but(simulate, ("max(free[j], there)", "there")),
        "A task waits for its input, too: a start is the later of two times, the input's and the rank's.":
            _but(simulate, ("max(free[j], there)", "free[j]")),
        "A message takes time: add it to the end of what another rank sends.":
            _but(simulate, (_TRAVEL, _TRAVEL.replace("message", "0.0"))),
        "You forgot that a gradient travels, too.":
            _but(simulate, (_TRAVEL, _TRAVEL.replace("message", 'message * (kind == "F")'))),
        "On the last rank B needs that rank's own F, which is no message.":
            _but(simulate, ('("F", i, j), 0.0', '("F", i, j), message')),
        "B comes from the other side: its gradient is made on rank j + 1.": _but(
            simulate,
            ('kind == "B" and j == n - 1', 'kind == "B" and j == 0'),
            ('j - 1 if kind == "F" else j + 1', "j - 1"),
        ),
        "These are starts; the dictionary holds ends.": lambda orders, costs, message=0: {
            task: end - costs[task[0]][task[2]] for task, end in simulate(orders, costs, message).items()
        },
        "Each rank has its own costs: costs[kind][j].": lambda orders, costs, message=0: simulate(
            orders, {kind: [of[0]] * len(of) for kind, of in costs.items()}, message
        ),
        "If a whole round runs nothing, nothing ever will: raise then.":
            _but(simulate, ("if stuck:", "if False:")),
        "A simulator that stops quietly calls a deadlock a fast schedule: raise RuntimeError.":
            _but(simulate, ("if stuck:", "if stuck:\n            return ends\n        if False:")),
        "That is the law of the clock: a rank that has its input must not wait for the other ranks.":
            _but(simulate, ("max(free[j], there)", "max(*free, there)")),
    },
)
# fmt: on
"""Exercise 2: all ends in runs of several sizes, costs and messages, and RuntimeError for orders that can't finish."""


# ---- exercise 3: live activations

HELD = [
    gpipe(3, 2),
    _orders("F0 B0 F1 B1 F2 B2"),
    _orders("F0 F1 B0 F2 F3 B3 B2 B1"),
    one_f_one_b(8, 4),
    _orders("F0 F1 F2 B2 B1 B0 F3 B3", "F0"),
]

# fmt: off
check_live = Exercise(
    "live_activations",
    reference=live_activations,
    cases=cases("orders", HELD),
    mistakes={
        "That counts all forwards, also those whose backward is done.":
            lambda orders: [sum(kind == "F" for kind, _ in order) for order in orders],
        "That is what is left at the end; the peak is what was ever held.":
            lambda orders: [sum(1 if kind == "F" else -1 for kind, _ in order) for order in orders],
        "Count before you look for the peak: a forward's own activation is held, too.":
            lambda orders: [max(0, peak - 1) for peak in live_activations(orders)],
        "Each rank begins with nothing held: set both counters back.":
            lambda orders: (live_activations([[task for order in orders for task in order]]) * len(orders)),
        "That counts the forwards before the first backward; a rank may go further ahead later.":
            lambda orders: [" ".join(kind for kind, _ in [*order, ("B", 0)]).index("B") // 2 for order in orders],
    },
)
# fmt: on
"""Exercise 3: what each rank holds at most, for several orders."""


# ---- exercise 4: one_f_one_b


def _as_tasks(answer: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """Return the function with the orders as they are written on paper: one text for each rank."""

    def rows(m: int, n: int) -> Any:
        found = answer(m, n)
        return None if found is None else [" ".join(f"{kind}{i}" for kind, i in order) for order in found]

    return rows


def _fault_of_rows(got: Any, expected: Any, case: Any) -> str:
    if len(got) != len(expected):
        return f"{len(got)} lists for {len(expected)} ranks"
    wrong = next((j for j, rows in enumerate(zip(got, expected, strict=True)) if rows[0] != rows[1]), None)
    return "" if wrong is None else f"rank {wrong} does {got[wrong] or 'nothing'}, expected {expected[wrong]}"


# fmt: off
check_one_f_one_b = Exercise(
    "one_f_one_b",
    reference=one_f_one_b,
    view=_as_tasks,
    fault=_fault_of_rows,
    praise="1F1B for {count} sizes",
    cases=cases("m n", [(4, 3), (8, 4), (1, 1), (3, 1), (2, 4), (1, 3), (5, 5), (6, 2)]),
    mistakes={
        "Rank 0 goes furthest ahead: n - j, not j + 1.":
            _but(one_f_one_b, ("min(n - j, m)", "min(j + 1, m)")),
        "All ranks go n ahead; rank j needs n - j only, since n - j ranks lie between its F and its B.":
            _but(one_f_one_b, ("min(n - j, m)", "min(n, m)")),
        "One forward too few before the first backward: rank j goes n - j ahead.":
            _but(one_f_one_b, ("min(n - j, m)", "min(max(n - 1 - j, 1), m)")),
        "One forward too many before the first backward: rank j goes n - j ahead.":
            _but(one_f_one_b, ("min(n - j, m)", "min(n - j + 1, m)")),
        "No more forwards than there are micro-batches: min(n - j, m).":
            _but(one_f_one_b, ("min(n - j, m)", "n - j")),
        "When the forwards are used up, the backwards that are left still have to be done.": lambda m, n: [
            order[: max(place for place, (kind, _) in enumerate(order) if kind == "F") + 2]
            for order in one_f_one_b(m, n)
        ],
        "That is GPipe: all forwards first.": gpipe,
        "1F1B takes the oldest micro-batch back first: B0, B1, …": lambda m, n: [
            [("F", i) if kind == "F" else ("B", m - 1 - i) for kind, i in order]
            for order in one_f_one_b(m, n)
        ],
    },
)
# fmt: on
"""Exercise 4: the orders of 1F1B for several sizes, also with fewer micro-batches than ranks."""


# ---- exercise 5: the best m

_POWERS = [2**k for k in range(8)]

# fmt: off
check_best_m = Exercise(
    "best_m",
    reference=best_m,
    cases=cases(
        "seconds n",
        [({m: fixed + 64 / m for m in _POWERS}, n) for fixed in (0.5, 2.0, 9.0) for n in (1, 2, 4, 16)]
        + [({4: 1.0, 8: 0.62, 16: 0.36}, 2), ({2: 3.0, 8: 1.02, 32: 0.34}, 4)],
    ),
    mistakes={
        "The shortest task makes the most micro-batches: count how many clocks there are.":
            lambda seconds, n: (min(seconds, key=seconds.__getitem__)),
        "That is the work of one rank; it also waits: m + n - 1 clocks.":
            lambda seconds, n: min(seconds, key=lambda m: m * seconds[m]),
        "There are m + n - 1 clocks, not m + n.":
            lambda seconds, n: min(seconds, key=lambda m: (m + n) * seconds[m]),
        "The smallest bubble is not the shortest step.":
            lambda seconds, n: min(seconds, key=lambda m: (n - 1) / (m + n - 1)),
        "Return the m, not its time.": lambda seconds, n: min((m + n - 1) * t for m, t in seconds.items()),
    },
)
# fmt: on
"""Exercise 5: the m of the shortest predicted step, for several machines."""


# ---- exercise 6: which orders can't run

TABLES = {
    "A": _orders("F0 F1 F2 B2 B1 B0", "F0 F1 F2 B2 B1 B0"),
    "B": _orders("F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"),
    "C": _orders("F0 F1 F2 B1 B0 B2", "F1 B1 F0 B0 F2 B2"),
    "D": _orders("F0 B0 F1 F2 B1 B2", "F0 F1 B0 B1 F2 B2"),
}
"""Four orders of 3 micro-batches on 2 ranks; one of them can't run."""

# fmt: off
check_illegal = Exercise(
    "the orders that can't run, and each rank's first task that never starts",
    reference=("D", ["B0", "F1"]),
    answers=2,
    judge=lambda exercise, answer: _judge_illegal(exercise, *answer),
    mistakes={
        "A goes back in the opposite order, the last micro-batch first, as GPipe does; it is legal.":
            ("A", ["B2"]),
        "B is 1F1B; it is legal.": ("B", ["B0"]),
        "C takes micro-batches in an odd order, but rank 1's F1 waits for rank 0's F1 and no more.":
            ("C", ["F1"]),
        "Those are not the first tasks that never start: go on as far as each rank gets.":
            ("D", ["F2", "F1"]),
    },
)
# fmt: on
"""Exercise 6: the letter of the orders that can't run, and where each rank is stuck."""


def _judge_illegal(exercise: Exercise, letter: Any, tasks: Any) -> Verdict:
    letter = str(letter).strip().upper()
    if (letter, list(tasks)) == exercise.reference:
        return exercise.right("rank 0 waits with B0 for rank 1, which waits with F1 for rank 0.")
    said = [why for why, (wrong, _) in exercise.mistakes.items() if wrong == letter]
    return exercise.wrong(said[0] if said else f"{letter!r} is none of {', '.join(TABLES)}.")
