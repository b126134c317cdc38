"""Exercises of notebook 14, schedules; its predictions stand in guesses.py."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lib.schedules import Schedule
from support.checks import Exercise, Verdict, cases
from support.checks import use as use
from support.kit.source import source_of
from support.n14.guesses import guess_ahead as guess_ahead
from support.n14.guesses import guess_interleaved as guess_interleaved
from support.n14.guesses import guess_next_step as guess_next_step
from support.n14.guesses import guess_zero_bubble as guess_zero_bubble
from support.n14.guesses import in_a_row as in_a_row
from support.n14.solved import SplitLinear, Task, alternate, forwards_ahead, interleaved, zb_h1  # noqa: F401


def _but(thing: Any, *changes: tuple[str, str]) -> Any:
    """Return what solved.py defines with some of its lines otherwise: a famous mistake."""
    text = source_of(thing)
    for old, new in changes:
        assert old in text, f"{thing.__name__} has no {old!r}"
        text = text.replace(old, new)
    space = dict(globals())
    exec("from __future__ import annotations\n" + text.replace("list[Task]()", "[]"), space)
    return space[thing.__name__]


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
    why = isinstance(got, int) and ("fewer are enough" if got > expected else "with so few it waits")
    return "" if got == expected else f"expected {expected}, got {got}" + (f": {why}" if why else "")


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
        "That is 1F1B: messages don't count in it.": lambda j, n, forward, backward, message: (n - j),
        "You counted one message for each pair of neighbours: the activation travels, and so does the gradient.":
            _but(forwards_ahead, ("2 * message", "message")),
        "That is right while two messages are shorter than a round; longer ones need more rounds: divide and round up.":
            _but(forwards_ahead, (_CEIL, "(message > 0)")),
        "With free messages no round is needed for them: 1F1B is enough.":
            _but(forwards_ahead, (_CEIL, "1")),
        "Part of a round is a whole round: round up, not down.":
            _but(forwards_ahead, (_CEIL, f"int{_CEIL[4:]}")),
        "You rounded once, for the whole way. But each pair of neighbours has its own rounds: round up per neighbour, "
        "then add up.":
            lambda j, n, forward, backward, message: n - j + ceil(2 * (n - 1 - j) * message / (forward + backward)),
        "The rank's own forward is missing: the last rank has nobody behind it and begins with one.":
            _but(forwards_ahead, ("return 1 + ", "return ")),
        "Rank 0 goes furthest: n - 1 - j ranks lie behind rank j.":
            _but(forwards_ahead, ("(n - 1 - j)", "j")),
        "A round is a forward and a backward.": _but(forwards_ahead, ("(forward + backward)", "forward")),
        "One too many: with free messages it is 1F1B, n - j.": _but(forwards_ahead, ("return 1", "return 2")),
        "The last rank begins with one, whatever a message takes: n - 1 - j ranks lie behind rank j.":
            _but(forwards_ahead, ("1 + (n - 1 - j)", "(n - j)")),
        "A message there and one back fill the same rounds: round up once for both, not for each.":
            _but(forwards_ahead, (_CEIL, "2 * ceil(message / (forward + backward))")),
        "A round is forward + backward, which is 3 only in the prediction.":
            _but(forwards_ahead, ("(forward + backward)", "3")),
    },
)  # fmt: skip
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
    j = next((j for j, (mine, right) in enumerate(zip(got, expected, strict=True)) if mine != right), None)
    if j is None:
        return ""
    mine, right = got[j].split(), expected[j].split()
    place = next(
        (k for k, (a, b) in enumerate(zip(mine, right, strict=False)) if a != b), min(len(mine), len(right))
    )
    there = mine[place] if place < len(mine) else "nothing"
    wanted = right[place] if place < len(right) else "nothing"
    return f"rank {j} does {there} as its task number {place + 1}, expected {wanted}; it begins {' '.join(mine[:15])}"


_AHEAD = "(v - 1) * n + 2 * (n - 1 - j) + 1"

check_interleaved = Exercise(
    "interleaved",
    reference=interleaved,
    view=_as_rows,
    fault=_fault_of_rows,
    praise="the orders of interleaved 1F1B in {count} sizes",
    cases=cases("m n v", [(4, 2, 2), (8, 4, 2), (4, 4, 3), (2, 1, 2), (9, 3, 2), (4, 2, 1), (6, 3, 4)]),
    mistakes={
        "Groups of n: only then a micro-batch comes back to rank 0 just when the group is through.":
            _but(interleaved, ("range(first, first + n) for first in range(0, m, n)", "range(m)")),
        "Backward takes the rank's last stage first: its gradient is there first.":
            _but(interleaved, ("reversed(stages)", "stages")),
        "That is 1F1B's warm-up, without the rounds that a micro-batch makes before its loss is there.":
            _but(interleaved, (_AHEAD, "n - j")),
        "The v - 1 stages before the rank's last are missing in the warm-up: n forwards for each.":
            _but(interleaved, ("(v - 1) * n + ", "")),
        "Two forwards more for each rank behind, not one: one round for its own work, one for the messages.":
            _but(interleaved, (_AHEAD, "(v - 1) * n + (n - 1 - j) + 1")),
        "One forward too few: that is how Megatron counts, where a round begins with a forward. Here it begins with a "
        "backward.":
            _but(interleaved, (" + 1))", "))")),
        "Stages are dealt in turn: rank j has j, j + n, j + 2n, … With neighbours on one rank nothing is interleaved.":
            _but(interleaved, ("range(j, v * n, n)", "range(j * v, (j + 1) * v)")),
        "Rank 0 goes furthest ahead, the last rank least.":
            _but(interleaved, ("2 * (n - 1 - j)", "2 * j")),
        "A group goes through all stages of the rank before the next group begins: the groups are the outer loop.":
            _but(interleaved, ("group in groups for s in stages for", "s in stages for group in groups for")),
        "Within a group the stage changes after all n micro-batches, not after each one.":
            _but(interleaved, ("for s in stages for i in group", "for i in group for s in stages")),
        "n micro-batches pass one stage, then the next one, forward and back: the micro-batch is the inner loop.":
            _but(interleaved, ("for s in stages for i in group", "for i in group for s in stages"),
                 ("for s in reversed(stages) for i in group", "for i in group for s in reversed(stages)")),
        "Backwards take the groups in the order of the forwards; only the stages go the other way.":
            _but(interleaved, ("for group in groups for s in rev", "for group in groups[::-1] for s in rev")),
        "A group too many in the warm-up: the last rank takes its group through v - 1 stages, then does one forward.":
            _but(interleaved, ("(v - 1) * n + 2", "v * n + 2")),
        "Three forwards more for each rank behind are one too many: two rounds per neighbour.":
            _but(interleaved, ("2 * (n - 1 - j)", "3 * (n - 1 - j)")),
        "With all v * m forwards first that is GPipe with v stages, and holds all of it.":
            _but(interleaved, (_AHEAD, "v * m")),
        "You made one group of all m, in the orders and in the warm-up; a group has n micro-batches.":
            _but(interleaved, ("range(first, first + n) for first in range(0, m, n)", "range(m)"),
                 ("(v - 1) * n", "(v - 1) * m")),
    },
)  # fmt: skip
"""Exercise 2: the orders of interleaved 1F1B for several sizes, m a multiple of n."""

_TASK, _OLDEST = "            order.append((op, j, i))\n", "order.append(owed.pop(0))\n"
_OWE = '            if op == "I":\n                owed.append(("W", j, i))\n'
_PAY = f"            if len(owed) > j:\n                {_OLDEST}"

check_zb_h1 = Exercise(
    "zb_h1",
    reference=zb_h1,
    view=_as_rows,
    fault=_fault_of_rows,
    praise="the orders of ZB-H1 in {count} sizes",
    cases=cases("m n", [(4, 3), (8, 4), (1, 1), (3, 1), (2, 4), (5, 5), (6, 2)]),
    mistakes={
        "No W waits: then the rank before gets its gradient no sooner than from a whole backward. Rank j may owe some.":
            _but(zb_h1, ("len(owed) > j", "owed")),
        "All W's last: each rank then holds all m activations. Once it owes more than it may, it does the oldest.":
            _but(zb_h1, ("len(owed) > j", "False")),
        "The other way round: rank 0 holds n activations already, so it may owe none; the last rank most.":
            _but(zb_h1, ("len(owed) > j", "len(owed) > n - 1 - j")),
        "One too many is owed: rank j holds n - j activations in 1F1B, and n - j + j is n.":
            _but(zb_h1, ("len(owed) > j", "len(owed) > j + 1")),
        "One too few is owed: the limit is reached only when more than it are owed.":
            _but(zb_h1, ("len(owed) > j", "len(owed) >= max(j, 1)")),
        "The oldest W first: it has held its activation longest.":
            _but(zb_h1, ("owed.pop(0)", "owed.pop()")),
        "What is owed at the end has to be done, too: a W left out is a gradient that is wrong, and nothing says so.":
            _but(zb_h1, ("order + owed", "order")),
        "Rank j begins with n - j forwards, as in 1F1B.": _but(zb_h1, ("n - j)", "n)")),
        "n - j is what is held already; there is room for n - (n - j) W's.":
            _but(zb_h1, ("len(owed) > j", "len(owed) > n - j")),
        "Not every rank has the last one's room: rank j holds n - j activations whose I is not done, rank 0 all n.":
            _but(zb_h1, ("len(owed) > j", "len(owed) > n - 1")),
        "A W is owed from its I on, so its I comes first.":
            _but(zb_h1, (_TASK, ""), (_PAY, _PAY + _TASK)),
        "The W comes right after the I with which too many are owed, not a task later.":
            _but(zb_h1, (_OWE, ""), (_PAY, _PAY + _OWE)),
        "Once more W's are owed than there is room for, one is done at once; you wait for the next forward.":
            _but(zb_h1, (_PAY, _PAY.replace("            if len", "            elif len"))),
        "The W comes right after the I, not before the next forward: at the end no forward comes any more.":
            _but(zb_h1, (_TASK, _PAY.replace("if len", 'if op == "F" and len') + _TASK), (_OWE + _PAY, _OWE)),
        "What is left at the end is done the oldest first, too.": _but(zb_h1, ("order + owed", "order + owed[::-1]")),
        "One forward too few before the first I: 1F1B's warm-up on rank j is n - j.":
            _but(zb_h1, ("n - j)", "n - 1 - j)")),
        "One forward too many before the first I: then rank 0 holds n + 1. 1F1B's warm-up on rank j is n - j.":
            _but(zb_h1, ("n - j)", "n - j + 1)")),
        "I, not B: B is both halves at once.": _but(zb_h1, ("FI", "FB"), ('"I"', '"B"')),
    },
)  # fmt: skip
"""Exercise 4: the orders of ZB-H1 for several sizes, also with fewer micro-batches than ranks."""


# ---- exercise 3: backward in two halves


def _products(work: Callable[[], Any], one: int) -> tuple[Any, float]:
    """Return what `work` returns, and how many matrix products of `one` operations each it has cost."""
    with FlopCounterMode(display=False) as counter:
        result = work()
    return result, counter.get_total_flops() / one


def _alive() -> int:
    """Return the bytes of the tensors made since gc was disabled, and a few older ones, each storage once."""
    found = [one for one in gc.get_objects(generation=0) if type(one) in (Tensor, nn.Parameter)]
    kept = [one.untyped_storage() for one in found if one.layout == torch.strided]
    return sum({each.data_ptr(): each.nbytes() for each in kept}.values())


def _fault_one_by_one(answer: Any, weight: Tensor, xs: list[Tensor], gradients: list[Tensor]) -> str:
    """Do F, I and W of one micro-batch, then of the next: elsewhere both F's come first."""
    weight.grad = None
    for x, gradient in zip(xs, gradients, strict=True):
        waiting: list[Any] = []
        torch.autograd.grad(answer.apply(x, weight, waiting), x, gradient)
        waiting.pop()()
    total = gradients[0].T @ xs[0].detach() + gradients[1].T @ xs[1].detach()
    if weight.grad is None or not torch.allclose(weight.grad, total):
        return "in the order F0 I0 W0 F1 I1 W1 the gradients of the two micro-batches don't add up."
    return ""


def _fault_of_split(answer: Any) -> str:
    _products(lambda: torch.ones(2, 2).mm, 1)  # the first count in a process imports much, and keeps it
    gc.disable()  # so that new objects stay in the youngest generation, where `_alive` counts
    draw = torch.Generator().manual_seed(0)
    rows, inner, outer = 5, 4, 3
    weight = torch.randn(outer, inner, generator=draw).requires_grad_()
    xs = [torch.randn(rows, inner, generator=draw).requires_grad_() for _ in range(2)]
    gradients = [torch.randn(rows, outer, generator=draw) for _ in range(2)]
    later: list[list[Any]] = [[], []]
    step, one, before = "forward", 2 * rows * inner * outer, _alive()
    try:
        ys = [answer.apply(x, weight, owed) for x, owed in zip(xs, later, strict=True)]
        for x, y in zip(xs, ys, strict=True):
            if not isinstance(y, Tensor):
                return f"forward returned {y}, expected a tensor."
            if y.shape != (rows, outer) or not torch.allclose(y, x @ weight.T):
                return f"forward doesn't return x @ weight.T, of shape {(rows, outer)}."
        if (more := _alive() - before - sum(y.nbytes for y in ys)) > 0:
            return f"after F {more} bytes are kept beside x and y: W needs no copy, only x and the gradient."
        outputs, shapes, step = [weakref.ref(y) for y in ys], [tuple(x.shape) for x in xs], "I (backward)"
        for k, (x, y, gradient) in enumerate(zip(xs, ys, gradients, strict=True)):
            found, cost = _products(partial(torch.autograd.grad, y, x, gradient, allow_unused=True), one)
            found = found[0]
            if found is None:
                return "backward returned None for x: the stage before waits for that gradient."
            if found.shape != shapes[k] or not torch.allclose(found, gradient @ weight):
                return "the gradient of x is wrong: if y = x Wᵀ, it is gradient @ weight."
            if len(later[k]) != 1:
                return f"after I there are {len(later[k])} functions in `later`, expected 1: the W of this micro-batch."
            if not callable(later[k][0]):
                return "what is in `later` cannot be called: append the function itself, don't call it."
            if cost > 1.5:
                return f"I costs {cost:g} matrix products, expected 1: that of the weights has to wait."
            if weight.grad is not None:
                return "after I `weight.grad` is there already: that is for W to compute."
        del y, ys, found
        step = "W (what I put into `later`)"
        if any(output() is not None for output in outputs):
            return "after I the output is still alive: W needs x and the gradient only, so keep nothing else."
        if (more := _alive() - before) > 0:
            return f"between I and W {more} bytes are kept beside x and the gradient."
        total = torch.zeros_like(weight)
        for k in (1, 0):  # the later micro-batch first: each W must know its own
            _, cost = _products(later[k].pop(), one)
            total += gradients[k].T @ xs[k].detach()
            if weight.grad is None:
                return "after W `weight.grad` is None."
            if weight.grad.requires_grad:
                return "after W `weight.grad` has a graph of its own, which keeps x alive."
            if not torch.allclose(weight.grad, total):
                which = "of the first W" if k else "of two micro-batches (they add up)"
                return f"the gradient of the weights {which} is not autograd's."
            if cost > 1.5:
                return f"W costs {cost:g} matrix products, expected 1."
        if fault := _fault_one_by_one(answer, weight, xs, gradients):
            return fault
        freed = [weakref.ref(x) for x in xs]
        del x, xs
        gc.collect(0)
        if any(x() is not None for x in freed):
            return "x is still alive when I and W are done: somebody keeps it."
    except Exception as error:
        none = step[0] == "W" and weight.grad is None and "NoneType" in str(error)
        hint = ". `weight.grad` is None at first: then set it, and add only later" if none else ""
        return f"in {step} your code raised {type(error).__name__}: {error}{hint}."
    finally:
        gc.enable()
    return ""


def _judge_split(exercise: Exercise, answer: Any) -> Verdict:
    found = _fault_of_split(answer)
    if not found:
        return exercise.right(
            "both gradients are autograd's, each half is one product, and W frees what it kept."
        )
    reasons = (f" {why}" for why, wrong in exercise.mistakes.items() if _fault_of_split(wrong) == found)
    return exercise.wrong(found + next(reasons, ""))


_PART, _LATER = "part = gradient.T @ x", "ctx.later.append(add_to_weight)"
_GONE = f"        {_PART}", "        pass"
_DEFINED = "        def add_to_weight"

check_split = Exercise(
    "SplitLinear",
    name="forward and backward of SplitLinear",
    reference=SplitLinear,
    methods=("forward", "backward"),
    judge=_judge_split,
    mistakes={
        "That is an ordinary layer, with both halves in one: put a function into `later` instead.":
            _but(SplitLinear, (_LATER, "return gradient @ weight, gradient.T @ x, None")),
        "The product has to be inside the function: what is computed before it is part of I.":
            _but(SplitLinear, (_DEFINED, "        part = gradient.T @ x\n\n" + _DEFINED), _GONE),
        "Micro-batches add up: with = instead of += only the last one counts.":
            _but(SplitLinear, ("part if weight.grad is None else weight.grad + part", "part")),
        "W runs outside of backward, where torch records what is computed: put it under torch.no_grad().":
            _but(SplitLinear, ("with torch.no_grad():", "if True:")),
        "Autograd frees what ctx has saved as soon as I is done: take the tensors out of ctx before that.":
            _but(SplitLinear, (_PART, "x, weight = ctx.saved_tensors\n                part = gradient.T @ x")),
        "The shape of `weight` is outputs × inputs, so its gradient is gradient.T @ x.":
            _but(SplitLinear, (_PART, "part = x.T @ gradient")),
        "In forward the input meets the transpose of weight, in backward the gradient meets weight itself.":
            _but(SplitLinear, ("return gradient @ weight,", "return gradient @ weight.T,")),
        "None says that x has no gradient; the three values belong to x, weight and later, in this order.":
            _but(SplitLinear, ("return gradient @ weight, None, None", "return None, None, None")),
        "Don't put the output onto ctx: it holds its graph, the graph holds ctx, and neither is ever freed.":
            _but(SplitLinear, ("return x @ weight.T", "ctx.y = x @ weight.T\n        return ctx.y")),
        "Nor a copy of the output: a backward of this layer has no use for it.":
            _but(SplitLinear, ("return x @ weight.T", "ctx.y = (x @ weight.T).clone()\n        return x @ weight.T")),
        "Save x itself: the stage has it anyway, and a clone of it is a second one.":
            _but(SplitLinear, ("backward(x, weight)", "backward(x.clone(), weight)")),
        "The inner function keeps alive whatever it uses: something as large as x, a copy of it or its gradient.":
            _but(SplitLinear, (_DEFINED, f"        extra = gradient @ weight\n\n{_DEFINED}"),
                 (_PART, f"{_PART} + 0 * extra.sum()"), ("return gradient @ weight", "return extra")),
        "F has nothing to do with weight.grad: what it sets to None there forgets the micro-batches before.":
            _but(SplitLinear, ("ctx.later = later", "ctx.later, weight.grad = later, None")),
    },
)  # fmt: skip
"""Exercise 3: a layer whose backward is cut in two, by values, matrix products and what stays alive."""
