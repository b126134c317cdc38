"""Predictions and exercises of notebook 08, the pipeline clock. What is not solved there, it takes from solved.py."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

from support.checks import Exercise, Guess, Tried, Verdict, cases, exact
from support.checks import use as use
from support.kit.source import source_of
from support.n08.solved import Orders, best_m, clock_cycles, gpipe, live_activations, one_f_one_b, simulate

# ---- predictions


def _percent(number: Any) -> Any:
    """Read "43 %" and a share, 0.43, as per cent."""
    if isinstance(number, str) and re.fullmatch(r"\d*\.?\d+ ?%?", number.strip()):
        number = float(number.strip(" %"))
    return 100 * number if isinstance(number, float) and 0 < number < 1 else number


def _idle(m: int, n: int) -> int:
    clocks = clock_cycles(m, n)
    return round(100 * (1 - sum(map(len, clocks)) / (len(clocks) * n)))


def _orders(*rows: str) -> Orders:
    return [[(task[0], int(task[1:])) for task in row.split()] for row in rows]


SMALL = _orders("F0 F1 B0 B1", "F0 B0 F1 B1")

guess_model_parallel = exact(
    "the speed-up of model parallelism", lambda n: 1 + 0 * n, tried=Tried(right=1, wrong=3, known=(3,))
)
"""Section 1: the speed of model parallelism, one batch, against one device."""
guess_idle = Guess(
    "the idle share",
    _idle,
    unit="%",
    tolerance=0.03,
    read=_percent,
    tried=Tried(right=43, wrong=75, known=(4, 4)),
)
"""Section 2: the idle share in per cent, counted in the clock table."""
guess_waits = exact(
    "what rank 0 waits",
    lambda: simulate(SMALL, {"F": [1, 1], "B": [2, 2]})["B", 1, 0] - 6,
    "ticks",
    tried=Tried(right=3, wrong=2),
)
"""Section 3: how long rank 0 of two waits before it has ended its 6 ticks of work."""
guess_unequal = exact(
    "the time of the forward pass",
    lambda t, m: sum(t) + (m - 1) * max(t),
    "ticks",
    tried=Tried(right=16, wrong=18, known=([3, 1, 3], 4)),
)
"""Section 4: the forward pass of unequal partitions by the data-flow law."""
_LONGER, _LESS = "too few under way: the step gets longer", "that would do, but fewer are enough"
guess_held = exact(
    "what rank 0 has to hold",
    lambda m, n: max(live_activations(one_f_one_b(m, n))),
    "activations",
    _1=_LONGER,
    _2=_LONGER,
    _3=_LONGER,
    _5=_LESS,
    _6=_LESS,
    _7=_LESS,
    _8=_LESS,
    tried=Tried(right=4, wrong=8, known=(8, 4)),
)
"""Section 5: the most activations of rank 0 in 1F1B, for m = 8 and n = 4."""


def _but(thing: Callable[..., Any], *changes: tuple[str, str]) -> Callable[..., Any]:
    """Return a function of solved.py with some of its lines otherwise: a famous mistake."""
    text = "from __future__ import annotations\nfrom math import inf\n" + source_of(thing)
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

Clocks: TypeAlias = Callable[[int, int], Iterable[Iterable[tuple[int, int]]]]


def _in_order(answer: Clocks) -> Any:
    """Return the function with each clock sorted by partition, and at most all clocks that a naive loop needs."""

    def clocks(m: int, n: int) -> list[Any] | None:
        found = answer(m, n)
        table: list[Any] = []
        for clock in () if found is None else islice(found, m * n + 2):
            try:
                table.append(sorted(((i, j) for i, j in clock), key=lambda pair: pair[1]))
            except (TypeError, ValueError):
                table.append(f"clock {len(table)} is no list of pairs (i, j): {clock}")
        return None if found is None else table

    return clocks


# fmt: off
check_clock_cycles = Exercise(
    "clock_cycles",
    reference=clock_cycles,
    view=_in_order,
    cases=cases("m n", [(3, 3), (4, 3), (2, 4), (1, 3), (5, 2), (1, 1), (4, 1), (8, 4), (3, 6)]),
    mistakes={
        "One pair per clock is model parallelism. Pairs with the same i + j can share a clock.":
            lambda m, n: [[(i, j)] for i in range(m) for j in range(n)],
        "One pair per clock: one partition after the other. Pairs with the same i + j can share a clock.":
            lambda m, n: [[(i, j)] for j in range(n) for i in range(m)],
        "All partitions take the same micro-batch at once: but partition 1 needs what 0 computes.":
            lambda m, n: [[(k, j) for j in range(n)] for k in range(m)],
        "The last clock is missing: range(k) ends at k - 1, and there are m + n - 1 clocks.":
            lambda m, n: (clock_cycles(m, n)[:-1]),
        "You stop when partition 0 is done; the last micro-batch is still on its way: m + n - 1 clocks.":
            lambda m, n: (clock_cycles(m, n)[:m]),
        "There is a clock too many: the last pair, (m - 1, n - 1), runs in clock m + n - 2, the first is number 0.":
            lambda m, n: [*clock_cycles(m, n), []],
        "i = k - j may be m - 1 at most: micro-batches are counted from 0.":
            _but(clock_cycles, ("0 <= k - j < m", "0 <= k - j <= m")),
        "i = k - j must stay below m: partition 0 has no micro-batch left in the last clocks.":
            _but(clock_cycles, ("0 <= k - j < m", "0 <= k - j")),
        "i = k - j must be at least 0: partition j has nothing to do before clock j.":
            _but(clock_cycles, ("0 <= k - j < m", "k - j < m")),
        "A pair is (micro-batch, partition), in this order.":
            _but(clock_cycles, ("(k - j, j)", "(j, k - j)")),
    },
)
"""Exercise 1 for few and many micro-batches and partitions; the order within a clock is free."""


# ---- exercise 2: simulate


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
    for m in (1, 2, 3, 5):
        for n in (1, 2, 3, 4):
            for message in (0, 0.25):
                for make in (gpipe, one_f_one_b):
                    forward, backward = [1 + (j * 7 + m) % 3 for j in range(n)], [2 + (j * 5) % 4 for j in range(n)]
                    yield make(m, n), {"F": forward, "B": backward}, message


STUCK = [
    (_orders("F0 F1 B0 F2 B1 B2", "F0 F1 F2 B0 B1 B2"), ["B0", "F2"]),
    (_orders("F0 B0 F1 B1", "F1 F0 B0 B1"), ["B0", "F1"]),
    (_orders("B0 F0"), ["B0"]),
]


def _fault_of_simulate(answer: Callable[..., Any]) -> str:
    for orders, costs, message in _tries():
        where = f"for {_told(orders)}" + (f", a message of {message} ticks" if message else "")
        given, expected = copy.deepcopy((orders, costs)), simulate(orders, costs, message)
        try:
            got = _ending(answer, *given, message)
        except Exception as error:
            keys = "is an end stored under the key under which it is looked up, (kind, micro-batch, rank)?"
            why = f" But these orders can run: {keys}" if type(error) is RuntimeError else ""
            return f"{where} your code raised {type(error).__name__}: {error}.{why}"
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
    for orders, waiting in STUCK:
        where = f"{_told(orders)} can never finish, and"
        try:
            got = _ending(answer, copy.deepcopy(orders), {"F": [1, 1], "B": [2, 2]}, 0)
        except RuntimeError as error:
            said = re.sub(r"\W", "", str(error))  # ('F', 2) is F2, too
            for rank, task in enumerate(waiting):
                if task not in said:
                    told = f"your RuntimeError says {str(error)!r}. Name the task at which each rank waits:"
                    return f"{where} {told} rank {rank} waits with {task}."
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


_COST, _TRAVEL = "costs[kind][j]", ' + message * ((kind, j) not in (("F", 0), ("B", len(orders) - 1)))'
_END, _LAST = f"{_COST}\n    return ends", 'kind == "B" and j == len(orders) - 1'

check_simulate = Exercise(
    "simulate",
    reference=simulate,
    judge=_judge_simulate,
    mistakes={
        "A task waits for its rank, too: a start is the later of two times, the input's and the rank's.":
            _but(simulate, ("max(free[j], arrival(kind, i, j))", "arrival(kind, i, j)")),
        "A task waits for its input, too: a start is the later of two times, the input's and the rank's.":
            _but(simulate, ("max(free[j], arrival(kind, i, j))", "free[j]")),
        "A message takes time: add it to the end of what another rank sends.":
            _but(simulate, (", inf) + message", ", inf)")),
        "Add the message to the end of what is needed, inside the max: while it travels, the rank may be busy.":
            _but(simulate, (", inf) + message", ", inf)"), (_COST, _COST + _TRAVEL)),
        "A message keeps no rank busy: the sender goes on with its next task at once.":
            _but(simulate, (_COST, _COST + "\n            free[j] += message")),
        "You forgot that a gradient travels, too.":
            _but(simulate, (", inf) + message", ', inf) + message * (kind == "F")')),
        "On the last rank B needs that rank's own F, which is no message.":
            _but(simulate, ('("F", i, j), inf)', '("F", i, j), inf) + message')),
        "Only on the last rank does B need its own F: on the others it needs the gradient of rank j + 1.":
            _but(simulate, (_LAST, 'kind == "B"')),
        "B comes from the other side: its gradient is made on rank j + 1.":
            _but(simulate, (_LAST, 'kind == "B" and j == 0'), ('j - 1 if kind == "F" else j + 1', "j - 1")),
        "A key is (kind, micro-batch, rank), in this order.":
            _but(simulate, (_END, _COST + "\n    return {(kind, j, i): end for (kind, i, j), end in ends.items()}")),
        "These are starts; the dictionary holds ends.":
            _but(simulate, (_END, _COST + "\n    return {t: end - costs[t[0]][t[2]] for t, end in ends.items()}")),
        "Each rank has its own costs: costs[kind][j].":
            _but(simulate, (_COST, "costs[kind][0]")),
        "If a whole round runs nothing, nothing ever will: raise then.":
            _but(simulate, ("if not able:", "if False:")),
        "A simulator that stops quietly calls a deadlock a fast schedule: raise RuntimeError.":
            _but(simulate, ("if not able:", "if not able:\n            return ends\n        if False:")),
        "That is the law of the clock: a rank that has its input must not wait for the other ranks.":
            _but(simulate, ("max(free[j],", "max(*free,")),
    },
)
"""Exercise 2: all ends in runs of several sizes, costs and messages, and RuntimeError for orders that can't finish."""


# ---- exercise 3: live activations

HELD = [
    gpipe(3, 2),
    _orders("F0 B0 F1 B1 F2 B2"),
    _orders("F0 F1 B0 F2 F3 B3 B2 B1"),
    one_f_one_b(8, 4),
    _orders("F0 F1 F2 B2 B1 B0 F3 B3", "F0"),
]

_PEAK = "            peak = max(peak, live)\n"

check_live = Exercise(
    "live_activations",
    reference=live_activations,
    cases=cases("orders", HELD),
    mistakes={
        "That counts all forwards, also those whose backward is done.":
            lambda orders: [sum(kind == "F" for kind, _ in order) for order in orders],
        "Count before you look for the peak: a forward's own activation is held, too.":
            lambda orders: [max(0, peak - 1) for peak in live_activations(orders)],
        "Compare after you have counted: when a forward is the last task, you don't see what it adds.":
            _but(live_activations, (_PEAK, ""), ("            live +=", f"{_PEAK}            live +=")),
        "That is right for one kind of schedule only: walk along the orders that are given, and count.":
            lambda orders: [min(len(order) // 2, len(orders) - j) for j, order in enumerate(orders)],
        "Each rank begins with nothing held: set both counters back.":
            lambda orders: (live_activations([[task for order in orders for task in order]]) * len(orders)),
        "That counts the forwards before the first backward; a rank may go further ahead later.":
            lambda orders: [" ".join(kind for kind, _ in [*order, ("B", 0)]).index("B") // 2 for order in orders],
    },
)
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
        "You go n - j - 1 ahead, as Megatron counts, where each round begins with a forward. Here a round begins with "
        "a backward: rank j goes n - j ahead, and the last rank 1.":
            _but(one_f_one_b, ("min(n - j, m)", "min(n - j - 1, m)")),
        "One forward too many before the first backward: rank j goes n - j ahead.":
            _but(one_f_one_b, ("min(n - j, m)", "min(n - j + 1, m)")),
        "No more forwards than there are micro-batches: min(n - j, m).":
            _but(one_f_one_b, ("min(n - j, m)", "n - j")),
        "After B(i) comes F(i + ahead) only if there is such a micro-batch: i + ahead < m.":
            _but(one_f_one_b, ("if i + ahead < m:", "if True:")),
        "The last forward is missing: F(i + ahead) exists up to i + ahead = m - 1.":
            _but(one_f_one_b, ("if i + ahead < m:", "if i + ahead < m - 1:")),
        "When the forwards are used up, the backwards that are left still have to be done.":
            _but(one_f_one_b, ("for i in range(m):", "for i in range(m - ahead + 1):")),
        "That is GPipe: all forwards first.": gpipe,
        "1F1B takes the oldest micro-batch back first: B0, B1, …":
            _but(one_f_one_b, ('("B", i)', '("B", m - 1 - i)')),
    },
)
"""Exercise 4: the orders of 1F1B for several sizes, also with fewer micro-batches than ranks."""


# ---- exercise 5: the best m

check_best_m = Exercise(
    "best_m",
    reference=best_m,
    cases=cases(
        "seconds n",
        [({2: 1.0, 4: 0.62, 8: 0.365, 16: 0.3, 32: 0.31}, 2), ({1: 3.0, 2: 2.0}, 2)]
        + [({2**k: fixed + 64 / 2**k for k in range(8)}, n) for fixed in (0.5, 2.0, 9.0) for n in (1, 2, 4, 16)]
        + [({4: 1.0, 8: 0.62, 16: 0.36}, 2), ({2: 3.0, 8: 1.02, 32: 0.34}, 4)],
    ),
    mistakes={
        "The shortest task makes the most micro-batches: count how many clocks there are.":
            lambda seconds, n: (min(seconds, key=seconds.__getitem__)),
        "That is the work of one rank; it also waits: m + n - 1 clocks.":
            lambda seconds, n: min(seconds, key=lambda m: m * seconds[m]),
        "You took n = 2: n is an argument.":
            lambda seconds, n: min(seconds, key=lambda m: (m + 1) * seconds[m]),
        "Of equals return the first.":
            lambda seconds, n: min(reversed(list(seconds)), key=lambda m: (m + n - 1) * seconds[m]),
        "There are m + n - 1 clocks, not m + n.":
            lambda seconds, n: min(seconds, key=lambda m: (m + n) * seconds[m]),
        "The smallest bubble is not the shortest step.":
            lambda seconds, n: min(seconds, key=lambda m: (n - 1) / (m + n - 1)),
        "Return the m, not its time.": lambda seconds, n: min((m + n - 1) * t for m, t in seconds.items()),
    },
)
"""Exercise 5: the m of the shortest predicted step, for several machines."""


# ---- exercise 6: which orders can't run

TABLES = {
    "A": _orders("F0 F1 F2 B2 B1 B0", "F0 F1 F2 B2 B1 B0"),
    "B": _orders("F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"),
    "C": _orders("F0 F1 F2 B1 B0 B2", "F1 B1 F0 B0 F2 B2"),
    "D": _orders("F0 B0 F1 F2 B1 B2", "F0 F1 B0 B1 F2 B2"),
}
"""Four orders of 3 micro-batches on 2 ranks; one of them can't run."""

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
        "Rank 0's task comes first, then rank 1's.": ("D", ["F1", "B0"]),
        "Those are not the first tasks that never start: go on as far as each rank gets.":
            ("D", ["F2", "F1"]),
    },
)
"""Exercise 6: the letter of the orders that can't run, and where each rank is stuck."""


def _judge_illegal(exercise: Exercise, letter: Any, tasks: Any) -> Verdict:
    letter = str(letter).strip().upper()
    at = ["".join(map(str, task)).strip().upper() for task in tasks]  # "b0" and ("B", 0) are B0, too
    if (letter, at) == exercise.reference:
        return exercise.right("rank 0 waits with B0 for rank 1, which waits with F1 for rank 0.")
    said = [why for why, wrong in exercise.mistakes.items() if wrong == (letter, at)]
    said += [why for why, (wrong, _) in [*exercise.mistakes.items()][::-1] if wrong == letter]
    return exercise.wrong(said[0] if said else f"{letter!r} is none of {', '.join(TABLES)}.")
