"""Predictions and exercises of notebook 08, the pipeline clock. What is not solved there, it takes from solved.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from support.kit.exact import exact_number, read_number
from support.kit.exercise import Exercise, cases
from support.kit.exercise import use as use
from support.kit.guess import Guess, Tried
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.kit.verdict import Verdict
from support.n08.runs import ClockCycles
from support.n08.solved import best_m, clock_cycles, gpipe, live_activations, one_f_one_b, simulate
from support.n08.trials import SMALL, fault_of_simulate, orders_of

# ---- predictions


def _idle(m: int, n: int) -> int:
    clocks = clock_cycles(m, n)
    return round(100 * (1 - sum(map(len, clocks)) / (len(clocks) * n)))


guess_model_parallel = exact_number(
    "the speed-up of model parallelism", lambda n: 1 + 0 * n, tried=Tried(right=1, wrong=3, known=(3,))
)
"""Section 1: the speed of model parallelism, one batch, against one device."""
guess_idle = Guess(
    "the idle share",
    _idle,
    unit="%",
    tolerance=0.03,
    read=lambda said: read_number(said, "%"),
    tried=Tried(right=43, wrong=75, known=(4, 4)),
)
"""Section 2: the idle share in per cent, counted in the clock table."""
guess_waits = exact_number(
    "what rank 0 waits",
    lambda: simulate(SMALL, {"F": [1, 1], "B": [2, 2]})["B", 1, 0] - 6,
    "ticks",
    tried=Tried(right=3, wrong=2),
)
"""Section 3: how long rank 0 of two waits before it has ended its 6 ticks of work."""
guess_unequal = exact_number(
    "the time of the forward pass",
    lambda t, m: sum(t) + (m - 1) * max(t),
    "ticks",
    tried=Tried(right=16, wrong=18, known=([3, 1, 3], 4)),
)
"""Section 4: the forward pass of unequal partitions by the data-flow law."""
_LONGER = "too few under way: the step gets longer"
_LESS = "that would do, but fewer are enough"
guess_held = exact_number(
    "what rank 0 has to hold",
    lambda m, n: max(live_activations(one_f_one_b(m, n))),
    "activations",
    {**dict.fromkeys((1, 2, 3), _LONGER), **dict.fromkeys((5, 6, 7, 8), _LESS)},
    tried=Tried(right=4, wrong=8, known=(8, 4)),
)
"""Section 5: the most activations of rank 0 in 1F1B, for m = 8 and n = 4."""


# ---- exercise 1: clock_cycles


def _in_order(answer: ClockCycles) -> Any:
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


check_clock_cycles = Exercise(
    "clock_cycles",
    reference=clock_cycles,
    view=_in_order,
    cases=cases("m n", [(3, 3), (4, 3), (2, 4), (1, 3), (5, 2), (1, 1), (4, 1), (8, 4), (3, 6)]),
    mistakes={
        "One pair per clock is model parallelism. Pairs with the same i + j can share a clock.": lambda m, n: [
            [(i, j)] for i in range(m) for j in range(n)
        ],
        "One pair per clock: one partition after the other. Pairs with the same i + j can share a "
        "clock.": lambda m, n: [[(i, j)] for j in range(n) for i in range(m)],
        "All partitions take the same micro-batch at once: but partition 1 needs what 0 computes.": lambda m, n: [
            [(k, j) for j in range(n)] for k in range(m)
        ],
        "The last clock is missing: range(k) ends at k - 1, and there are m + n - 1 clocks.": lambda m, n: (
            clock_cycles(m, n)[:-1]
        ),
        "You stop when partition 0 is done; the last micro-batch is still on its way: m + n - 1 "
        "clocks.": lambda m, n: clock_cycles(m, n)[:m],
        "There is a clock too many: the last pair, (m - 1, n - 1), runs in clock m + n - 2, the first is "
        "number 0.": lambda m, n: [
            *clock_cycles(m, n),
            [],
        ],
        **famous(
            clock_cycles,
            {
                "i = k - j may be m - 1 at most: micro-batches are counted from 0.": (
                    "0 <= k - j < m",
                    "0 <= k - j <= m",
                ),
                "i = k - j must stay below m: partition 0 has no micro-batch left in the last clocks.": (
                    "0 <= k - j < m",
                    "0 <= k - j",
                ),
                "i = k - j must be at least 0: partition j has nothing to do before clock j.": (
                    "0 <= k - j < m",
                    "k - j < m",
                ),
                "A pair is (micro-batch, partition), in this order.": ("(k - j, j)", "(j, k - j)"),
            },
        ),
    },
)
"""Exercise 1 for few and many micro-batches and partitions; the order within a clock is free."""


# ---- exercise 2: simulate


_COST = "costs[kind][j]"
_TRAVEL = ' + message * ((kind, j) not in (("F", 0), ("B", len(orders) - 1)))'
_END = f"{_COST}\n    return ends"
_LAST = 'kind == "B" and j == len(orders) - 1'

check_simulate = Exercise(
    "simulate",
    reference=simulate,
    judge=judged(
        fault_of_simulate, "every end, in 68 runs of GPipe, 1F1B and others, and 3 deadlocks found."
    ),
    mistakes=famous(
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
            "You forgot that a gradient travels, too.": (
                ", inf) + message",
                ', inf) + message * (kind == "F")',
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
            "A simulator that stops quietly calls a deadlock a fast schedule: raise RuntimeError.": (
                "if not able:",
                "if not able:\n            return ends\n        if False:",
            ),
            "That is the law of the clock: a rank that has its input must not wait for the other ranks.": (
                "max(free[j],",
                "max(*free,",
            ),
        },
    ),
)
"""Exercise 2: all ends in runs of several sizes, costs and messages, and RuntimeError for orders that can't finish."""


# ---- exercise 3: live activations

HELD = [
    gpipe(3, 2),
    orders_of("F0 B0 F1 B1 F2 B2"),
    orders_of("F0 F1 B0 F2 F3 B3 B2 B1"),
    one_f_one_b(8, 4),
    orders_of("F0 F1 F2 B2 B1 B0 F3 B3", "F0"),
]

_PEAK = "            peak = max(peak, live)\n"

check_live = Exercise(
    "live_activations",
    reference=live_activations,
    cases=cases("orders", HELD),
    mistakes={
        "That counts all forwards, also those whose backward is done.": lambda orders: [
            sum(kind == "F" for kind, _ in order) for order in orders
        ],
        "Count before you look for the peak: a forward's own activation is held, too.": lambda orders: [
            max(0, peak - 1) for peak in live_activations(orders)
        ],
        **famous(
            live_activations,
            {
                "Compare after you have counted: when a forward is the last task, you don't see what it adds.": (
                    _PEAK,
                    "",
                    "            live +=",
                    f"{_PEAK}            live +=",
                ),
            },
        ),
        "That is right for one kind of schedule only: walk along the orders that are given, and "
        "count.": lambda orders: [min(len(order) // 2, len(orders) - j) for j, order in enumerate(orders)],
        "Each rank begins with nothing held: set both counters back.": lambda orders: (
            live_activations([[task for order in orders for task in order]]) * len(orders)
        ),
        "That counts the forwards before the first backward; a rank may go further ahead later.": lambda orders: [
            " ".join(kind for kind, _ in [*order, ("B", 0)]).index("B") // 2 for order in orders
        ],
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
        **famous(
            one_f_one_b,
            {
                "Rank 0 goes furthest ahead: n - j, not j + 1.": ("min(n - j, m)", "min(j + 1, m)"),
                "All ranks go n ahead; rank j needs n - j only, since n - j ranks lie between its F and its B.": (
                    "min(n - j, m)",
                    "min(n, m)",
                ),
                "You go n - j - 1 ahead, as Megatron counts, where each round begins with a forward. "
                "Here a round begins with "
                "a backward: rank j goes n - j ahead, and the last rank 1.": (
                    "min(n - j, m)",
                    "min(n - j - 1, m)",
                ),
                "One forward too many before the first backward: rank j goes n - j ahead.": (
                    "min(n - j, m)",
                    "min(n - j + 1, m)",
                ),
                "No more forwards than there are micro-batches: min(n - j, m).": ("min(n - j, m)", "n - j"),
                "After B(i) comes F(i + ahead) only if there is such a micro-batch: i + ahead < m.": (
                    "if i + ahead < m:",
                    "if True:",
                ),
                "The last forward is missing: F(i + ahead) exists up to i + ahead = m - 1.": (
                    "if i + ahead < m:",
                    "if i + ahead < m - 1:",
                ),
                "When the forwards are used up, the backwards that are left still have to be done.": (
                    "for i in range(m):",
                    "for i in range(m - ahead + 1):",
                ),
            },
        ),
        "That is GPipe: all forwards first.": gpipe,
        **famous(
            one_f_one_b,
            {
                "1F1B takes the oldest micro-batch back first: B0, B1, …": ('("B", i)', '("B", m - 1 - i)'),
            },
        ),
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
        + [
            ({2**k: fixed + 64 / 2**k for k in range(8)}, n)
            for fixed in (0.5, 2.0, 9.0)
            for n in (1, 2, 4, 16)
        ]
        + [({4: 1.0, 8: 0.62, 16: 0.36}, 2), ({2: 3.0, 8: 1.02, 32: 0.34}, 4)],
    ),
    mistakes={
        "The shortest task makes the most micro-batches: count how many clocks there are.": lambda seconds, n: (
            min(seconds, key=seconds.__getitem__)
        ),
        "That is the work of one rank; it also waits: m + n - 1 clocks.": lambda seconds, n: min(
            seconds, key=lambda m: m * seconds[m]
        ),
        "You took n = 2: n is an argument.": lambda seconds, n: min(
            seconds, key=lambda m: (m + 1) * seconds[m]
        ),
        "Of equals return the first.": lambda seconds, n: min(
            reversed(list(seconds)), key=lambda m: (m + n - 1) * seconds[m]
        ),
        "There are m + n - 1 clocks, not m + n.": lambda seconds, n: min(
            seconds, key=lambda m: (m + n) * seconds[m]
        ),
        "The smallest bubble is not the shortest step.": lambda seconds, n: min(
            seconds, key=lambda m: (n - 1) / (m + n - 1)
        ),
        "Return the m, not its time.": lambda seconds, n: min((m + n - 1) * t for m, t in seconds.items()),
    },
)
"""Exercise 5: the m of the shortest predicted step, for several machines."""


# ---- exercise 6: which orders can't run

TABLES = {
    "A": orders_of("F0 F1 F2 B2 B1 B0", "F0 F1 F2 B2 B1 B0"),
    "B": orders_of("F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"),
    "C": orders_of("F0 F1 F2 B1 B0 B2", "F1 B1 F0 B0 F2 B2"),
    "D": orders_of("F0 B0 F1 F2 B1 B2", "F0 F1 B0 B1 F2 B2"),
}
"""Four orders of 3 micro-batches on 2 ranks; one of them can't run."""

check_illegal = Exercise(
    "the orders that can't run, and each rank's first task that never starts",
    reference=("D", ["B0", "F1"]),
    answers=2,
    judge=lambda exercise, answer: _judge_illegal(exercise, *answer),
    mistakes={
        "A goes back in the opposite order, the last micro-batch first, as GPipe does; it is legal.": (
            "A",
            ["B2"],
        ),
        "B is 1F1B; it is legal.": ("B", ["B0"]),
        "C takes micro-batches in an odd order, but rank 1's F1 waits for rank 0's F1 and no more.": (
            "C",
            ["F1"],
        ),
        "Rank 0's task comes first, then rank 1's.": ("D", ["F1", "B0"]),
        "Those are not the first tasks that never start: go on as far as each rank gets.": (
            "D",
            ["F2", "F1"],
        ),
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
