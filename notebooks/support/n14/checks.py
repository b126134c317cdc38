"""Exercises of notebook 14, schedules; its predictions stand in guesses.py."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from operator import index
from typing import Any

from lib.schedules import bubble_share, simulate
from lib.schedules.makers import MAKERS
from lib.show.schedule_table import held
from support.kit.exercise import Exercise, cases
from support.kit.exercise import use as use
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.n14 import wrong_orders
from support.n14.guesses import guess_ahead as guess_ahead
from support.n14.guesses import guess_floor as guess_floor
from support.n14.guesses import guess_interleaved as guess_interleaved
from support.n14.guesses import guess_next_step as guess_next_step
from support.n14.guesses import in_a_row as in_a_row
from support.n14.orders import Asked, fault_in
from support.n14.solved import SplitLinear, beat_1f1b, fill_holes, forwards_ahead, interleaved, search
from support.n14.split_trial import fault_of_split

# ---- exercises 1 and 2: one stage a rank, a backward that may be split


def one_stage(m: int, n: int, ticks: float, *, below: bool = False) -> Asked:
    """Ask for orders of n stages on n ranks, none of which holds more than n activations."""
    return Asked({"m": m, "n": n}, [n] * n, ticks, stages=n, below=below)


check_beat = Exercise(
    "beat_1f1b",
    reference=beat_1f1b,
    judge=judged(
        lambda answer: fault_in(answer, [one_stage(8, 4, 33, below=True)]),
        "fewer than 33 ticks, and no rank holds more than 4 activations.",
    ),
    mistakes=wrong_orders.BEATING,
)
"""Exercise 1: m = 8, n = 4, less than 1F1B's 33 ticks, with at most 4 activations on any rank."""

SIZES = [(4, 3), (8, 4), (1, 1), (3, 1), (5, 5), (6, 2), (12, 4), (9, 6), (8, 8), (11, 9), (40, 3)]

check_fill = Exercise(
    "fill_holes",
    reference=fill_holes,
    judge=judged(
        lambda answer: fault_in(answer, [one_stage(m, n, 3 * m + n - 1) for m, n in SIZES]),
        f"as short as a step with a stage a rank can be, holding at most n, in {len(SIZES)} sizes.",
    ),
    mistakes=wrong_orders.FILLING,
)
"""Exercise 2: the floor, m (F + I + W) + (n - 1) F, with at most n activations on any rank, for m >= n."""


# ---- exercise 3: backward in two halves

_PART = "part = gradient.T @ x"
_LATER = "ctx.later.append(add_to_weight)"
_DEFINED = "        def add_to_weight"

check_split = Exercise(
    "SplitLinear",
    name="forward and backward of SplitLinear",
    reference=SplitLinear,
    methods=("forward", "backward"),
    judge=judged(
        fault_of_split,
        "both gradients are autograd's, each half costs one product, and W frees what it kept.",
    ),
    mistakes=famous(
        SplitLinear,
        {
            "That is an ordinary layer, with both halves in one: put a function into `later` instead.": (
                _LATER,
                "return gradient @ weight, gradient.T @ x, None",
            ),
            "The product has to be inside the function: what is computed before it is part of I.": (
                _DEFINED,
                f"        {_PART}\n\n{_DEFINED}",
                f"no_grad():\n                {_PART}",
                "no_grad():",
            ),
            "Micro-batches add up: each W adds the product of its own x and gradient, and overwrites none.": (
                "part if weight.grad is None else weight.grad + part",
                "part",
            ),
            "W runs outside of backward, where torch records what is computed: put it under torch.no_grad().": (
                "with torch.no_grad():",
                "if True:",
            ),
            "Autograd frees what ctx has saved as soon as I is done: take the tensors out of ctx before that.": (
                _PART,
                "x, weight = ctx.saved_tensors\n                part = gradient.T @ x",
            ),
            "The shape of `weight` is outputs × inputs, so its gradient is gradient.T @ x.": (
                _PART,
                "part = x.T @ gradient",
            ),
            "In forward the input meets the transpose of weight, in backward the gradient meets weight itself.": (
                "return gradient @ weight,",
                "return gradient @ weight.T,",
            ),
            "None says that x has no gradient; the three values belong to x, weight and later, in this order.": (
                "return gradient @ weight, None, None",
                "return None, None, None",
            ),
            "An output on ctx, for one, is never freed: it holds its graph, and the graph holds ctx.": (
                "return x @ weight.T",
                "ctx.y = x @ weight.T\n        return ctx.y",
            ),
            "That is as much as a second y: this backward needs neither the output nor a copy of it.": (
                "return x @ weight.T",
                "ctx.y = (x @ weight.T).clone()\n        return x @ weight.T",
            ),
            "That is as much as a second x, such as a clone: save x itself, which the stage has anyway.": (
                "backward(x, weight)",
                "backward(x.clone(), weight)",
            ),
            "What is an attribute of ctx stays as long as y; what save_for_backward keeps, autograd frees after I.": (
                "save_for_backward(x, weight)",
                "save_for_backward(weight)\n        ctx.x = x",
                "x, weight = ctx.saved_tensors",
                "(weight,), x = ctx.saved_tensors, ctx.x",
            ),
            "From I to W something as large as x is kept beside x and the gradient. Look for a copy of x, or for "
            "x's own gradient, in what `later` reaches and wherever else you keep tensors.": (
                _DEFINED,
                f"        extra = gradient @ weight\n\n{_DEFINED}",
                _PART,
                f"{_PART} + 0 * extra.sum()",
                "return gradient @ weight",
                "return extra",
            ),
            "F has nothing to do with weight.grad: what it sets to None there forgets the micro-batches before.": (
                "ctx.later = later",
                "ctx.later, weight.grad = later, None",
            ),
        },
    ),
)
"""Exercise 3: a layer whose backward is cut in two, by values, matrix products and what stays alive."""


# ---- exercise 4: the warm-up that messages ask for

_CEIL = "ceil(2 * message / (forward + backward))"


# where two messages fill whole rounds all numbers are exact, so `ceil` meets no rounding error
COSTS: list[tuple[float, ...]] = [
    (4, 1, 2, 0),
    (4, 1, 2, 5),
    (4, 1, 2, 0.25),
    (2, 1, 2, 0.001),  # a small part of a round is a round, too
    (3, 1, 1, 1.25),
    (5, 1, 0.25, 1.8),  # fractions of a tick, also in a round
    (4, 1, 2, 1.5),  # two messages fill one round exactly, below three times two
    (3, 1, 1, 1),
    (3, 4, 4, 12),
    (6, 1, 2, 2.5),  # beyond four ranks, and not eager
    (3, 1, 2, 12),  # more rounds than anybody would write down
    (3, 1, 2, 6.5),  # many rounds: who allows four only is told from who divides by the longer task
    (3, 3, 1, 2.5),  # a message below a forward, and two that are longer than a round
    # on either side of half a round, of each task, of a round
    *((2, *tasks, message) for tasks in ((1, 4), (4, 1)) for message in (1.5, 2.75, 3.5, 5.5)),
    (2, 2, 3, 2.75),  # between the two tasks, less than twice the shorter
    (2, 0.25, 0.5, 0.5),  # below a tick, and two are more than a round
    (2, 0.25, 1, 0.5),  # likewise, and two are less
    (2, 0.25, 0.25, 8),  # more forwards than the prediction has micro-batches
]
"""Sizes and prices of exercise 4: n, forward, backward, message."""


def _counted(answer: Callable[..., Any]) -> Callable[..., Any]:
    def whole(**case: float) -> Any:
        found = answer(**case)
        try:
            return None if found is None else index(found)
        except TypeError:
            kind = type(found).__name__
            raise TypeError(
                f"{found} is a {kind}, and a list is cut at an int; `math.ceil` gives one"
            ) from None

    return whole


def _fault_of_number(got: int, expected: int, case: Any) -> str:
    if got == expected:
        return ""
    why = "that is more than it needs" if got > expected else "with so few it waits"
    return f"expected {expected}, got {got}: {why}"


check_forwards_ahead = Exercise(
    "forwards_ahead",
    reference=forwards_ahead,
    cases=cases(
        "j n forward backward message",
        # from the last rank on: what a rank needs hangs on those behind it
        [(j, n, *costs) for n, *costs in COSTS for j in reversed(range(int(n)))],
    ),
    throughout=True,  # several wrong rules agree with each other in the first case in which they fail
    view=_counted,
    fault=_fault_of_number,
    praise="the smallest warm-up that hides the messages, in {count} cases",
    mistakes={
        "That is 1F1B: messages don't count in it.": lambda j, n, forward, backward, message: n - j,
        **famous(
            forwards_ahead,
            {
                "You counted one message for each pair of neighbours: the stage's output travels, and so "
                "does the gradient.": (
                    "2 * message",
                    "message",
                ),
                "That is right while two messages are shorter than a round; longer ones need more "
                "rounds: divide and round up.": (
                    _CEIL,
                    "(message > 0)",
                ),
                "With free messages no round is needed for them: 1F1B is enough.": (_CEIL, "1"),
                "Part of a round is a whole round: round up, not down.": (_CEIL, f"int{_CEIL[4:]}"),
            },
        ),
        "You rounded once, for the whole way. But each pair of neighbours has its own rounds: round up "
        "per neighbour, "
        "then add up.": lambda j, n, forward, backward, message: (
            n - j + ceil(2 * (n - 1 - j) * message / (forward + backward))
        ),
        **famous(
            forwards_ahead,
            {
                "The rank's own forward is missing: the last rank has nobody behind it and begins with one.": (
                    "return 1 + ",
                    "return ",
                ),
                "Rank 0 goes furthest: n - 1 - j ranks lie behind rank j.": ("(n - 1 - j)", "j"),
                "A round is a forward and a backward.": ("(forward + backward)", "forward"),
                "One too many: with free messages it is 1F1B, n - j.": ("return 1", "return 2"),
                "The last rank begins with one, whatever a message takes: n - 1 - j ranks lie behind rank j.": (
                    "1 + (n - 1 - j)",
                    "(n - j)",
                ),
                "A message there and one back fill the same rounds: round up once for both, not for each.": (
                    _CEIL,
                    "2 * ceil(message / (forward + backward))",
                ),
                "Two messages that fill a round exactly need no further one: round up, don't add one.": (
                    _CEIL,
                    f"(int{_CEIL[4:]} + (message > 0))",
                ),
                "A round is a forward and a backward, not the longer of the two.": (
                    _CEIL,
                    "ceil(message / max(forward, backward))",
                ),
                "Count both messages against a round, not each against one task.": (
                    _CEIL,
                    "ceil((message / forward + message / backward) / 2)",
                ),
                "A round is forward + backward, which is 3 only in the prediction.": (
                    "(forward + backward)",
                    "3",
                ),
            },
        ),
    },
)
"""Exercise 4: the forwards before the first backward, for several ranks, costs and messages."""


# ---- exercise 5: v stages a rank

INTERLEAVED = [
    (4, 2, 2),
    (8, 4, 2),
    (4, 4, 3),
    (2, 1, 2),
    (12, 3, 3),
    (4, 2, 1),
    (6, 3, 4),
    (10, 5, 2),
    (30, 6, 5),
]


def several_stages(m: int, n: int, v: int) -> Asked:
    """Ask for orders whose last rank never pauses; no rank holds more than Megatron's rank 0."""
    room = [min(v * m, (v + 1) * n - 1)] * n
    ticks = 3 * m / (1 - bubble_share(m, n, v))
    return Asked({"m": m, "n": n, "v": v}, room, ticks, stages=n * v, ops="FB")


check_interleaved = Exercise(
    "interleaved",
    reference=interleaved,
    judge=judged(
        lambda answer: fault_in(answer, [several_stages(*each) for each in INTERLEAVED]),
        f"the last rank never pauses, and no rank holds too much, in {len(INTERLEAVED)} sizes.",
    ),
    mistakes=wrong_orders.INTERLEAVING,
)
"""Exercise 5: v stages a rank, dealt in turn, m a multiple of n: idle for (n - 1)(F + B)/v, in Megatron's memory."""


# ---- exercise 6: a schedule of the reader's own

CONTESTS = [(8, 4, 0.5, 5), (8, 3, 1, 4)]


def best_maker(m: int, n: int, message: float, room: float) -> tuple[float, str]:
    """Return the ticks and the name of lib's fastest schedule that fits, with up to three stages a rank."""
    found = []
    for maker in MAKERS.values():
        if not maker.flushes or m < maker.fewest(n):
            continue
        for v in (1, 2, 3):
            made = maker.table(m, n, v)
            share = n / made.stages
            if max(held(made)) <= room:
                ticks = simulate(made, share, 2 * share, communicate=message).makespan
                found.append((round(ticks, 6), maker.name))
    return min(found)


def contest(m: int, n: int, message: float, room: int) -> Asked:
    """Ask for orders faster than every maker of lib that fits into the room."""
    args = {"m": m, "n": n, "message": message, "room": room}
    return Asked(args, [room] * n, best_maker(m, n, message, room)[0], stages=0, message=message, below=True)


check_search = Exercise(
    "search",
    reference=search,
    judge=judged(
        lambda answer: fault_in(answer, [contest(*each) for each in CONTESTS]),
        "legal, within the room, and faster than each of lib's makers that fits, in 2 contests.",
    ),
    mistakes=wrong_orders.SEARCHING,
)
"""Exercise 6: an order found by any means, faster than every maker of lib that fits into the same room."""
