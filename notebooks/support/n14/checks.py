"""Exercises of notebook 14, schedules; its predictions stand in guesses.py."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, TypeAlias

from lib.schedules import Schedule
from support.kit.exercise import Exercise, cases
from support.kit.exercise import use as use
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.n14.guesses import guess_ahead as guess_ahead
from support.n14.guesses import guess_interleaved as guess_interleaved
from support.n14.guesses import guess_next_step as guess_next_step
from support.n14.guesses import guess_zero_bubble as guess_zero_bubble
from support.n14.guesses import in_a_row as in_a_row
from support.n14.solved import SplitLinear, Task, forwards_ahead, interleaved, zb_h1
from support.n14.split_trial import fault_of_split

# ---- exercise 1: the warm-up that messages ask for

_CEIL = "ceil(2 * message / (forward + backward))"


def _counted(answer: Callable[..., Any]) -> Callable[..., Any]:
    def whole(**case: float) -> Any:
        found = answer(**case)
        if isinstance(found, float):
            raise TypeError(f"{found} is a float, and a list is cut at an int; `ceil` gives one")
        return found

    return whole


def _fault_of_number(got: Any, expected: int, case: Any) -> str:
    if got == expected:
        return ""
    said = f"expected {expected}, got {got}"
    if not isinstance(got, int):
        return said
    why = "fewer are enough" if got > expected else "with so few it waits"
    return f"{said}: {why}"


check_forwards_ahead = Exercise(
    "forwards_ahead",
    reference=forwards_ahead,
    cases=cases(
        "j n forward backward message",
        [
            (j, n, *costs)
            for n, *costs in ((4, 1, 2, 0), (4, 1, 2, 5), (4, 1, 2, 0.25), (3, 1, 1, 1.25), (5, 2, 3, 0.5))
            for j in range(int(n))
        ],
    ),
    view=_counted,
    fault=_fault_of_number,
    praise="the smallest warm-up that hides the messages, in {count} cases",
    mistakes={
        "That is 1F1B: messages don't count in it.": lambda j, n, forward, backward, message: n - j,
        **famous(
            forwards_ahead,
            {
                "You counted one message for each pair of neighbours: the activation travels, and so "
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
                "A round is forward + backward, which is 3 only in the prediction.": (
                    "(forward + backward)",
                    "3",
                ),
            },
        ),
    },
)
"""Exercise 1: the forwards before the first backward, for several ranks, costs and messages."""


# ---- exercises 2 and 4: orders

ReadersMaker: TypeAlias = Callable[..., list[list[Task]]]


def _as_rows(answer: ReadersMaker) -> Callable[..., Any]:
    """Return the function with its orders as they stand in a table: a text for each rank."""

    def rows(**size: int) -> Any:
        found = answer(**size)
        if isinstance(found, Schedule):
            raise TypeError("a Schedule was returned; return the lists of tasks, `table` comes afterwards")
        return None if found is None else [" ".join(f"{s}{op}{i}" for op, s, i in order) for order in found]

    return rows


def _fault_of_rows(got: Any, expected: Any, case: Any) -> str:
    if len(got) != len(expected):
        return f"there are {len(got)} orders for {len(expected)} ranks"
    for j, (mine, right) in enumerate(zip(got, expected, strict=True)):
        if mine != right:
            return (
                f"rank {j} {_parting(mine.split(), right.split())}; it begins {' '.join(mine.split()[:15])}"
            )
    return ""


def _parting(mine: list[str], right: list[str]) -> str:
    """Say where two orders part."""
    place = 0
    while mine[place : place + 1] == right[place : place + 1]:
        place += 1
    there = mine[place] if place < len(mine) else "nothing"
    wanted = right[place] if place < len(right) else "nothing"
    return f"does {there} as its task number {place + 1}, expected {wanted}"


_AHEAD = "(v - 1) * n + 2 * (n - 1 - j) + 1"

check_interleaved = Exercise(
    "interleaved",
    reference=interleaved,
    view=_as_rows,
    fault=_fault_of_rows,
    praise="the orders of interleaved 1F1B in {count} sizes",
    cases=cases("m n v", [(4, 2, 2), (8, 4, 2), (4, 4, 3), (2, 1, 2), (9, 3, 2), (4, 2, 1), (6, 3, 4)]),
    mistakes=famous(
        interleaved,
        {
            "Groups of n: only then a micro-batch comes back to rank 0 just when the group is through.": (
                "range(first, first + n) for first in range(0, m, n)",
                "range(m)",
            ),
            "Backward takes the rank's last stage first: its gradient is there first.": (
                "reversed(stages)",
                "stages",
            ),
            "That is 1F1B's warm-up, without the rounds that a micro-batch makes before its loss is there.": (
                _AHEAD,
                "n - j",
            ),
            "The v - 1 stages before the rank's last are missing in the warm-up: n forwards for each.": (
                "(v - 1) * n + ",
                "",
            ),
            "Two forwards more for each rank behind, not one: one round for its own work, one for the messages.": (
                _AHEAD,
                "(v - 1) * n + (n - 1 - j) + 1",
            ),
            "One forward too few: that is how Megatron counts, where a round begins with a forward. Here "
            "it begins with a "
            "backward.": (" + 1))", "))"),
            "Stages are dealt in turn: rank j has j, j + n, j + 2n, … With neighbours on one rank "
            "nothing is interleaved.": (
                "range(j, v * n, n)",
                "range(j * v, (j + 1) * v)",
            ),
            "Rank 0 goes furthest ahead, the last rank least.": ("2 * (n - 1 - j)", "2 * j"),
            "A group goes through all stages of the rank before the next group begins: the groups are "
            "the outer loop.": (
                "group in groups for s in stages for",
                "s in stages for group in groups for",
            ),
            "Within a group the stage changes after all n micro-batches, not after each one.": (
                "for s in stages for i in group",
                "for i in group for s in stages",
            ),
            "n micro-batches pass one stage, then the next one, forward and back: the micro-batch is the "
            "inner loop.": (
                "for s in stages for i in group",
                "for i in group for s in stages",
                "for s in reversed(stages) for i in group",
                "for i in group for s in reversed(stages)",
            ),
            "Backwards take the groups in the order of the forwards; only the stages go the other way.": (
                "for group in groups for s in rev",
                "for group in groups[::-1] for s in rev",
            ),
            "A group too many in the warm-up: the last rank takes its group through v - 1 stages, then "
            "does one forward.": (
                "(v - 1) * n + 2",
                "v * n + 2",
            ),
            "Three forwards more for each rank behind are one too many: two rounds per neighbour.": (
                "2 * (n - 1 - j)",
                "3 * (n - 1 - j)",
            ),
            "With all v * m forwards first that is GPipe with v stages, and holds all of it.": (
                _AHEAD,
                "v * m",
            ),
            "You made one group of all m, in the orders and in the warm-up; a group has n micro-batches.": (
                "range(first, first + n) for first in range(0, m, n)",
                "range(m)",
                "(v - 1) * n",
                "(v - 1) * m",
            ),
        },
    ),
)
"""Exercise 2: the orders of interleaved 1F1B for several sizes, m a multiple of n."""

_TASK = "            order.append((op, j, i))\n"
_OLDEST = "order.append(owed.pop(0))\n"
_OWE = '            if op == "I":\n                owed.append(("W", j, i))\n'
_PAY = f"            if len(owed) > j:\n                {_OLDEST}"

check_zb_h1 = Exercise(
    "zb_h1",
    reference=zb_h1,
    view=_as_rows,
    fault=_fault_of_rows,
    praise="the orders of ZB-H1 in {count} sizes",
    cases=cases("m n", [(4, 3), (8, 4), (1, 1), (3, 1), (2, 4), (5, 5), (6, 2)]),
    mistakes=famous(
        zb_h1,
        {
            "No W waits: then the rank before gets its gradient no sooner than from a whole backward. "
            "Rank j may owe some.": (
                "len(owed) > j",
                "owed",
            ),
            "All W's last: each rank then holds all m activations. Once it owes more than it may, it "
            "does the oldest.": (
                "len(owed) > j",
                "False",
            ),
            "The other way round: rank 0 holds n activations already, so it may owe none; the last rank most.": (
                "len(owed) > j",
                "len(owed) > n - 1 - j",
            ),
            "One too many is owed: rank j holds n - j activations in 1F1B, and n - j + j is n.": (
                "len(owed) > j",
                "len(owed) > j + 1",
            ),
            "One too few is owed: the limit is reached only when more than it are owed.": (
                "len(owed) > j",
                "len(owed) >= max(j, 1)",
            ),
            "The oldest W first: it has held its activation longest.": ("owed.pop(0)", "owed.pop()"),
            "What is owed at the end has to be done, too: a W left out is a gradient that is wrong, and "
            "nothing says so.": (
                "order + owed",
                "order",
            ),
            "Rank j begins with n - j forwards, as in 1F1B.": ("n - j)", "n)"),
            "n - j is what is held already; there is room for n - (n - j) W's.": (
                "len(owed) > j",
                "len(owed) > n - j",
            ),
            "Not every rank has the last one's room: rank j holds n - j activations whose I is not done, "
            "rank 0 all n.": (
                "len(owed) > j",
                "len(owed) > n - 1",
            ),
            "A W is owed from its I on, so its I comes first.": (_TASK, "", _PAY, _PAY + _TASK),
            "The W comes right after the I with which too many are owed, not a task later.": (
                _OWE,
                "",
                _PAY,
                _PAY + _OWE,
            ),
            "Once more W's are owed than there is room for, one is done at once; you wait for the next forward.": (
                _PAY,
                _PAY.replace("            if len", "            elif len"),
            ),
            "The W comes right after the I, not before the next forward: at the end no forward comes any more.": (
                _TASK,
                _PAY.replace("if len", 'if op == "F" and len') + _TASK,
                _OWE + _PAY,
                _OWE,
            ),
            "What is left at the end is done the oldest first, too.": ("order + owed", "order + owed[::-1]"),
            "One forward too few before the first I: 1F1B's warm-up on rank j is n - j.": (
                "n - j)",
                "n - 1 - j)",
            ),
            "One forward too many before the first I: then rank 0 holds n + 1. 1F1B's warm-up on rank j is n - j.": (
                "n - j)",
                "n - j + 1)",
            ),
            "I, not B: B is both halves at once.": ("FI", "FB", '"I"', '"B"'),
        },
    ),
)
"""Exercise 4: the orders of ZB-H1 for several sizes, also with fewer micro-batches than ranks."""


# ---- exercise 3: backward in two halves

_PART = "part = gradient.T @ x"
_LATER = "ctx.later.append(add_to_weight)"
_GONE = (f"        {_PART}", "        pass")
_DEFINED = "        def add_to_weight"

check_split = Exercise(
    "SplitLinear",
    name="forward and backward of SplitLinear",
    reference=SplitLinear,
    methods=("forward", "backward"),
    judge=judged(
        fault_of_split, "both gradients are autograd's, each half is one product, and W frees what it kept."
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
                "        part = gradient.T @ x\n\n" + _DEFINED,
                *_GONE,
            ),
            "Micro-batches add up: with = instead of += only the last one counts.": (
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
            "Don't put the output onto ctx: it holds its graph, the graph holds ctx, and neither is ever freed.": (
                "return x @ weight.T",
                "ctx.y = x @ weight.T\n        return ctx.y",
            ),
            "Nor a copy of the output: a backward of this layer has no use for it.": (
                "return x @ weight.T",
                "ctx.y = (x @ weight.T).clone()\n        return x @ weight.T",
            ),
            "Save x itself: the stage has it anyway, and a clone of it is a second one.": (
                "backward(x, weight)",
                "backward(x.clone(), weight)",
            ),
            "The inner function keeps alive whatever it uses: something as large as x, a copy of it or "
            "its gradient.": (
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
