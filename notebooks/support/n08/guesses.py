"""Predictions of notebook 08: each truth is computed, and famous wrong guesses are named."""

from __future__ import annotations

from typing import Any

from support.kit.exact import exact_number, read_number
from support.kit.guess import Guess, Tried, letter
from support.n08.solved import clock_cycles, gpipe, live_activations, simulate, turn_early
from support.n08.trials import SMALL


def _idle(m: int, n: int) -> int:
    clocks = clock_cycles(m, n)
    return round(100 * (1 - sum(map(len, clocks)) / (len(clocks) * n)))


def with_recompute(orders: Any) -> list[list[tuple[str, int]]]:
    """Put a recompute before each backward."""
    return [
        [each for kind, i in order for each in ([("R", i), (kind, i)] if kind == "B" else [(kind, i)])]
        for order in orders
    ]


def _idle_recomputing(m: int, n: int) -> int:
    orders = with_recompute(gpipe(m, n))
    took = max(simulate(orders, {"F": [1] * n, "B": [2] * n, "R": [1] * n}).values())
    return round(100 * (1 - 4 * m / took))


guess_model_parallel = exact_number(
    "the speed-up of model parallelism", lambda n: 1 + 0 * n, tried=Tried(right=1, wrong=3, known=(3,))
)
"""Section 1: the speed of model parallelism, one batch, against one device."""
guess_idle = exact_number(
    "the idle share",
    _idle,
    "%",
    {57: "that is the share that works"},
    whole=True,
    tried=Tried(right=43, wrong=75, known=(4, 4)),
)
"""Section 3: the idle share in per cent, counted in the clock table."""
guess_waits = exact_number(
    "what rank 0 waits",
    lambda: simulate(SMALL, {"F": [1, 1], "B": [2, 2]})["B", 1, 0] - 6,
    "ticks",
    {2: "that is the wait before B0; another one comes before B1"},
    tried=Tried(right=3, wrong=2),
)
"""Section 4: how long rank 0 of two waits before it has ended its 6 ticks of work."""
guess_unequal = exact_number(
    "the time of the forward pass",
    lambda t, m: sum(t) + (m - 1) * max(t),
    "ticks",
    {18: "that is the other law, clock by clock", 12: "that is the work of a slow rank, without its waits"},
    tried=Tried(right=16, wrong=18, known=([3, 1, 3], 4)),
)
"""Section 5: the forward pass of unequal partitions by the data-flow law."""
guess_right_letters = exact_number(
    "the number of right results",
    lambda letters: sum(each == f"{letter}01" for letter, each in zip("abcd", letters, strict=True)),
    said={
        4: "the same shapes, no error, and yet not the same micro-batches",
        1: "look at the last one, too",
        0: "look at the first one",
    },
    tried=Tried(right=2, wrong=4, known=(["a01", "d01", "d01", "d01"],)),
)
"""Section 5: how many micro-batches come out right if an inbox holds one."""
_LONGER = "too few under way: the step gets longer"
_LESS = "that would do, but fewer are enough"
guess_held = exact_number(
    "what rank 0 has to hold",
    lambda m, n: max(live_activations(turn_early(m, n))),
    "activations",
    {**dict.fromkeys((1, 2, 3), _LONGER), **dict.fromkeys((5, 6, 7, 8), _LESS)},
    tried=Tried(right=4, wrong=8, known=(8, 4)),
)
"""Section 7: the most activations of rank 0 in 1F1B, for m = 8 and n = 4."""


def _first_with(message: float) -> str:
    costs = {"F": [1] * 4, "B": [2] * 4}
    gpipes, ours = (max(simulate(make(8, 4), costs, message).values()) for make in (gpipe, turn_early))
    if abs(gpipes - ours) < 1e-9:
        return "EQUAL"
    return "GPIPE" if gpipes < ours else "1F1B"


guess_with_messages = Guess(
    "who ends first",
    _first_with,
    read=letter,
    said={
        "1F1B": "who goes back early has its gradients early: but it waits in round after round",
        "EQUAL": "that is so while messages are free",
    },
    tried=Tried(right="GPipe", wrong="1F1B", known=(0.1,)),
)
"""Section 9: which of two schedules ends first if a message takes time."""
guess_recomputing = exact_number(
    "the idle share",
    _idle_recomputing,
    "%",
    {
        16: "that is the share if each recompute waits for its gradient",
        0: "the gradient still takes its time through the ranks",
    },
    whole=True,
    tried=Tried(right=12, wrong=16, known=(16, 4)),
)
"""Section 8: the idle share of GPipe with a recompute that waits for no gradient, in per cent."""
guess_same_devices = exact_number(
    "the idle share",
    lambda per_device, n: round(100 * (n - 1) / (per_device * n + n - 1)),
    "%",
    {
        60: "twice the bubble: but there are twice the micro-batches, too",
        30: "as before: almost",
        15: "half the bubble",
    },
    whole=True,
    tried=Tried(right=32, wrong=60, known=(2, 16)),
)
"""Section 10: the bubble of pipelines twice as long on the same devices with the same batch, in per cent."""
guess_fitting = exact_number(
    "the number of m that fit",
    lambda sizes, n: sum(max(live_activations(gpipe(m, n))) <= m / 2 for m in sizes),
    said={7: "finer pieces, but all of them are held at once"},
    tried=Tried(right=0, wrong=7, known=((1, 2, 4, 8, 16, 32, 64, 128), 4)),
)
"""Section 11: with how many m GPipe fits into memory for half of the batch."""


def _growth(my_guess: object) -> object:
    """Read a number; the famous wrong ones as their text, which is what `said` knows them by."""
    value = read_number(my_guess)
    return f"{value:g}" if value in (1, 16, 31) else value


guess_growth = Guess(
    "how many times as many micro-batches",
    lambda few, many: ((many - 1) / (few - 1)) ** 0.5,
    tolerance=0.1,
    read=_growth,
    said={
        "16": "as many times as there are partitions",
        "31": "that keeps the bubble: but the best step does not keep it",
        "1": "the fixed cost of a task stays, but there are more clocks to fill",
    },
    tried=Tried(right=5.6, wrong=16, known=(2, 32)),
)
"""Section 11: how the best m grows with n."""
