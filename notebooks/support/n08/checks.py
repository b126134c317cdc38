"""Predictions and exercises of notebook 08, the pipeline clock. What is not solved there, it takes from solved.py."""

from __future__ import annotations

from typing import Any

from support.kit.exercise import Exercise, cases
from support.kit.exercise import use as use
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.kit.verdict import Verdict
from support.n08.guesses import guess_fitting as guess_fitting
from support.n08.guesses import guess_growth as guess_growth
from support.n08.guesses import guess_held as guess_held
from support.n08.guesses import guess_idle as guess_idle
from support.n08.guesses import guess_model_parallel as guess_model_parallel
from support.n08.guesses import guess_recomputing as guess_recomputing
from support.n08.guesses import guess_right_letters as guess_right_letters
from support.n08.guesses import guess_same_devices as guess_same_devices
from support.n08.guesses import guess_unequal as guess_unequal
from support.n08.guesses import guess_waits as guess_waits
from support.n08.guesses import guess_with_messages as guess_with_messages
from support.n08.simulate_trials import MISTAKES, fault_of_simulate
from support.n08.solved import (
    best_m,
    clock_cycles,
    gpipe,
    live_activations,
    simulate,
    turn_early,
)
from support.n08.trials import SMALL as SMALL
from support.n08.trials import (
    clocks_in_order,
    fault_of_best_m,
    fault_of_clocks,
    fault_of_turn,
    fault_of_two_held,
    held_by_dice,
    machines,
    on_paper,
    orders_of,
)

# ---- exercise 1: clock_cycles

check_clock_cycles = Exercise(
    "clock_cycles",
    reference=clock_cycles,
    view=clocks_in_order,
    fault=fault_of_clocks,
    throughout=True,
    praise="each pair as early as it can, in {count} sizes",
    cases=cases("m n", [(3, 3), (4, 3), (2, 4), (1, 3), (5, 2), (1, 1), (4, 1), (8, 4), (3, 6), (9, 7)]),
    mistakes={
        "One pair per clock is model parallelism: who else has an input by then?": lambda m, n: [
            [(i, j)] for i in range(m) for j in range(n)
        ],
        "One pair per clock, one partition after the other: who else has an input by then?": lambda m, n: [
            [(i, j)] for j in range(n) for i in range(m)
        ],
        "All partitions take the same micro-batch at once: but partition 1 needs what 0 computes.": lambda m, n: [
            [(k, j) for j in range(n)] for k in range(m)
        ],
        "The last clock is missing: what is the number of the first one?": lambda m, n: clock_cycles(m, n)[
            :-1
        ],
        "You stop when partition 0 is done; the last micro-batch is still on its way.": lambda m, n: (
            clock_cycles(m, n)[:m]
        ),
        "Nothing is left to do in the last clock.": lambda m, n: [*clock_cycles(m, n), []],
        **famous(
            clock_cycles,
            {
                "Micro-batches are counted from 0.": ("0 <= k - j < m", "0 <= k - j <= m"),
                "Partition 0 has no micro-batch left in the last clocks.": ("0 <= k - j < m", "0 <= k - j"),
                "In the first clocks only the first partitions have something to do.": (
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

check_simulate = Exercise(
    "simulate",
    reference=simulate,
    judge=judged(
        fault_of_simulate, "every end, in 91 runs of GPipe, 1F1B and others, and 10 deadlocks found."
    ),
    mistakes=MISTAKES,
)
"""Exercise 2: all ends in runs of several sizes, costs and messages, and RuntimeError for orders that can't finish."""


# ---- exercise 3: live activations

HELD = [
    gpipe(3, 2),
    orders_of("F0 B0 F1 B1 F2 B2"),
    orders_of("F0 F1 B0 F2 F3 B3 B2 B1"),
    turn_early(8, 4),
    orders_of("F0 F1 F2 B2 B1 B0 F3 B3", "F0"),
    orders_of("F0", "F0 F1 B1 B0 F2", "F0 F1"),
    orders_of("F0 F1 B0 F2 B1 F3 F4 B2 B3 F5 B4 B5", "F0 B0 F1 F2 F3 B1 F4 F5"),
    orders_of("F3 B3", "F0 F1 F2 B2 F3 F4", ""),
    orders_of("F0 R0 F1 W0 F2 R1 B1"),
    orders_of("F0 B0 W0 F1 B1 R1 F2 B2"),
]

_COUNT = '{"F": 1, "B": -1}.get(kind, 0)'
_PEAK = "            peak = max(peak, live)\n"


def _longest_run(order: Any) -> int:
    text = "".join(kind for kind, _ in order)
    return max(map(len, text.split("B")))


def _kept(answer: Any) -> Any:
    """Return the function; what it gives must have places: an iterator and the values of a dictionary have none."""

    def peaks(orders: Any) -> Any:
        found = answer(orders)
        if hasattr(found, "__iter__") and not hasattr(found, "__getitem__"):
            return f"no list: {type(found).__name__}"
        return found

    return peaks


check_live = Exercise(
    "live_activations",
    reference=live_activations,
    view=_kept,
    cases=cases("orders", [*HELD, *held_by_dice()]),
    keeps=True,
    throughout=True,
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
                "A recompute lets nothing go: only a backward does.": (_COUNT, '1 if kind == "F" else -1'),
                "A recompute is no new activation: it stands for one that is held already.": (
                    _COUNT,
                    '1 if kind != "B" else -1',
                ),
                "A micro-batch's number says nothing about how many are held: their sequence may be any.": (
                    "live = peak = 0",
                    "peak = 0\n        last = {'F': -1, 'B': -1}",
                    "for kind, _ in order:",
                    "for kind, i in order:",
                    f"live += {_COUNT}",
                    "last[kind] = i\n            live = last['F'] - last['B']",
                ),
                "That is what is held at the end of the order, not at its worst moment.": (
                    "peaks.append(peak)",
                    "peaks.append(live)",
                ),
            },
        ),
        "That is right for one kind of schedule only: walk along the orders that are given, and "
        "count.": lambda orders: [min(len(order) // 2, len(orders) - j) for j, order in enumerate(orders)],
        "Each rank begins with nothing held: set both counters back.": lambda orders: (
            live_activations([[task for order in orders for task in order]]) * len(orders)
        ),
        "That counts the forwards before the first backward; a rank may go further ahead later.": lambda orders: [
            "".join(kind for kind, _ in [*order, ("B", 0)]).index("B") for order in orders
        ],
        "That is the longest run of forwards; what was held before it is still there.": lambda orders: [
            _longest_run(order) for order in orders
        ],
        "A number for each rank is asked for, not the largest of all.": lambda orders: max(
            live_activations(orders)
        ),
        "A number for each rank is asked for, not their sum.": lambda orders: sum(live_activations(orders)),
    },
)
"""Exercise 3: what each rank holds at most, for several orders."""


# ---- exercise 4: turn early

check_turn_early = Exercise(
    "turn_early",
    reference=turn_early,
    judge=judged(
        fault_of_turn,
        "GPipe's time in 11 sizes, and rank j holds min(m, n − j). In sequence no other order does both.",
    ),
    mistakes={
        **famous(
            turn_early,
            {
                "Rank 0 is furthest from the loss, so its micro-batches are away longest.": (
                    "min(n - j, m)",
                    "min(j + 1, m)",
                ),
                "All ranks go as far ahead as rank 0: but the last one has its gradient at once.": (
                    "min(n - j, m)",
                    "min(n, m)",
                ),
                "Each rank but the last is one forward short before its first backward.": (
                    "min(n - j, m)",
                    "max(1, min(n - j - 1, m))",
                ),
                "Each rank is one forward short before its first backward, and the last has none to go back with.": (
                    "min(n - j, m)",
                    "min(n - j - 1, m)",
                ),
                "Each rank does one forward too many before its first backward.": (
                    "min(n - j, m)",
                    "min(n - j + 1, m)",
                ),
                "A rank can't go further ahead than there are micro-batches.": ("min(n - j, m)", "n - j"),
                "When no forward is left, there is none to do behind a backward.": (
                    "if i + ahead < m:",
                    "if True:",
                ),
                "The last forward is missing.": ("if i + ahead < m:", "if i + ahead < m - 1:"),
                "When the forwards are used up, the backwards that are left still have to be done.": (
                    "for i in range(m):",
                    "for i in range(m - ahead + 1):",
                ),
                "Of those that a rank holds, take the oldest back first.": ('("B", i)', '("B", m - 1 - i)'),
                "One at a time holds least; but look how long the ranks wait.": ("min(n - j, m)", "1"),
            },
        ),
        "That is GPipe: all forwards first.": gpipe,
    },
)
"""Exercise 4: orders as fast as GPipe's that hold as little as can be, for several sizes."""


# ---- exercise 7: two at most

check_two_held = Exercise(
    "two at most",
    reference=orders_of("F0 F1 B0 F2 B1 F3 B2 B3", "F0 F1 B0 B1 F2 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"),
    judge=judged(fault_of_two_held, "21 ticks, and no rank holds more than two."),
    mistakes={
        "Nobody works while another does: let two be under way.": orders_of(*["F0 B0 F1 B1 F2 B2 F3 B3"] * 3),
        "These are your orders of exercise 4.": turn_early(4, 3),
        "These are GPipe's orders.": gpipe(4, 3),
        "Two go together and two wait until both are back: need the third wait for both?": orders_of(
            *["F0 F1 B0 B1 F2 F3 B2 B3"] * 3
        ),
        "Your third micro-batch starts early, but the second gradient comes back late: what does rank 1 do before "
        "B1?": orders_of(*["F0 F1 B0 F2 B1 F3 B2 B3"] * 2, "F0 B0 F1 B1 F2 B2 F3 B3"),
    },
)
"""Exercise 7: orders of 4 micro-batches on 3 ranks of which none holds more than two."""


# ---- exercise 5: the best m


_FITS = "if max(live_activations(orders)) <= memory * m:"

check_best_m = Exercise(
    "best_m",
    reference=best_m,
    judge=judged(fault_of_best_m, f"the best m of {len(machines())} machines."),
    mistakes=famous(
        best_m,
        {
            "Memory counts: what does the fullest rank hold?": (_FITS, "if True:"),
            "A micro-batch is 1/m of the batch; `memory` is a share of the batch.": (
                "<= memory * m",
                "<= memory",
            ),
            "Every rank has memory of its own: the fullest one decides, not their sum.": (
                "max(live_activations(orders))",
                "sum(live_activations(orders))",
            ),
            "The last rank holds least; the fullest one decides.": (
                "max(live_activations(orders))",
                "live_activations(orders)[-1]",
            ),
            "Messages take time, too: run the orders with them.": ("costs, message)", "costs, 0)"),
            "seconds[m] is a forward, a backward and a message, in this order.": (
                "forward, backward, message = seconds[m]",
                "backward, forward, message = seconds[m]",
            ),
            "The last end is the whole step: multiply nothing, and add up no ends.": (
                "forward, backward, message = seconds[m]",
                "forward, backward, message = (m * each for each in seconds[m])",
            ),
            "Divide nothing by m: seconds[m] are one micro-batch's times, and the whole step counts.": (
                "forward, backward, message = seconds[m]",
                "forward, backward, message = (each / m for each in seconds[m])",
            ),
            "That is the work of one rank; it also waits.": (
                "max(simulate(orders, costs, message).values())",
                "m * (forward + backward)",
            ),
            "The shortest task makes the most micro-batches: how long is the step?": (
                "max(simulate(orders, costs, message).values())",
                "forward + backward",
            ),
            "The smallest bubble is not the shortest step.": (
                "max(simulate(orders, costs, message).values())",
                "(n - 1) / (m + n - 1)",
            ),
            "Of equals return the smallest m.": ("sorted(seconds)", "sorted(seconds, reverse=True)"),
            "`seconds` may stand in any sequence, and of equals the smallest m is asked for.": (
                "sorted(seconds)",
                "seconds",
            ),
            "Return the m, not its time.": (
                "min(steps, key=lambda m: steps[m], default=None)",
                "min(steps.values(), default=None)",
            ),
            "Where none fits, return None.": (
                "min(steps, key=lambda m: steps[m], default=None)",
                "min(steps, key=lambda m: steps[m])",
            ),
            "None fits, and you return an m.": (
                "min(steps, key=lambda m: steps[m], default=None)",
                "min(steps, key=lambda m: steps[m], default=max(seconds))",
            ),
        },
    ),
)
"""Exercise 5: the m of the shortest predicted step that fits, for two schedules on several machines."""


# ---- exercise 6: which orders can't run

TABLES = {
    "A": orders_of("F0 F1 F2 B2 B1 B0", "F0 F1 F2 B2 B1 B0"),
    "B": orders_of("F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"),
    "C": orders_of("F0 F1 F2 B1 B0 B2", "F1 B1 F0 B0 F2 B2"),
    "D": orders_of("F0 B0 F1 F2 B1 B2", "F0 F1 B0 B1 F2 B2"),
}
"""Four orders of 3 micro-batches on 2 ranks; one of them can't run."""

check_illegal = Exercise(
    "the orders that can't run and each rank's first task that never starts",
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
    },
)
"""Exercise 6: the letter of the orders that can't run, and where each rank is stuck."""


def _judge_illegal(exercise: Exercise, letter: Any, tasks: Any) -> Verdict:
    letter = str(letter).strip().upper()
    if isinstance(tasks, str):  # "B0 F1" or "B0, F1" is as good as ["B0", "F1"]
        tasks = tasks.replace(",", " ").split()
    if not isinstance(tasks, (list, tuple)):
        return exercise.wrong(f'two tasks are asked for, such as ["F2", "B1"], not {tasks!r}.')
    words = ["".join(map(str, task)) if isinstance(task, (list, tuple)) else str(task) for task in tasks]
    at = [word.strip().upper() for word in words]  # "b0" and ("B", 0) are B0, too
    if (letter, at) == exercise.reference:
        return exercise.right("rank 0 waits with B0 for rank 1, which waits with F1 for rank 0.")
    said = [why for why, wrong in exercise.mistakes.items() if wrong == (letter, at)]
    if letter == exercise.reference[0] and not said:
        return exercise.wrong(_misplaced(at, exercise.reference[1]))
    said += [why for why, (wrong, _) in [*exercise.mistakes.items()][::-1] if wrong == letter]
    return exercise.wrong(said[0] if said else f"{letter!r} is none of {', '.join(TABLES)}.")


def _misplaced(at: list[str], stuck: list[str]) -> str:
    """Say which rank's task of D is not the one at which it is stuck, and on which side of it that stands."""
    if len(at) != len(stuck):
        return f"It is D; a task for each of two ranks is asked for, not {len(at)}."
    said = []
    for rank, (task, waiting) in enumerate(zip(at, stuck, strict=True)):
        tasks = on_paper(TABLES["D"][rank]).split()
        if task not in tasks:
            said.append(f"Rank {rank} has no task {task}.")
        elif tasks.index(task) < tasks.index(waiting):
            said.append(f"Rank {rank} does get through {task}: go on.")
        elif task != waiting:
            said.append(f"Rank {rank} stops before it comes to {task}.")
    return f"It is D. {' '.join(said)}"
