"""Predictions and exercises of notebook 11, the order of backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib.pipeline.dependency import Fork, Join
from lib.pipeline.pipeline import Clock as Schedule
from lib.pipeline.pipeline import Pipeline
from support.checks import Exercise, Guess, Verdict, letter
from support.n11.runs import Run, backward_run, by_hand, needs, peaks, predict, turn

# ---- predictions

guess_first = Guess(
    "the chain that goes backward first",
    lambda: "a",
    read=lambda said: said.strip().lower() if isinstance(said, str) else said,
)
"""Section 2: which of the two chains goes backward first."""
guess_threads = Guess("the number of threads in backward", lambda: 1)
"""Section 2: threads in which four CPU partitions go backward."""
guess_second = Guess("the operation after R21", lambda: predict(3, 2, "always", False).ops[1], read=letter)
"""Section 4: what follows R21 where nothing ties the micro-batches."""
guess_alive = Guess(
    "the most insides alive in partition 1", lambda: peaks(predict(8, 2, "always", False).ops, 8, 2)[-1]
)
"""Section 5: insides alive at once in the last of 2 partitions, 8 micro-batches, untied."""
guess_changes = Guess("the number of weights whose gradient changes", lambda: 0)
""" "Break it": does a phony without gradient change the gradients?"""


# ---- exercise 1: Fork and Join

AutogradFunction: TypeAlias = Any  # a class derived from torch.autograd.Function


class _Step(torch.autograd.Function):
    """Pass a tensor on; backward notes its name."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, ran: list[str]) -> Tensor:
        ctx.name_and_list = name, ran
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        name, ran = ctx.name_and_list
        ran.append(name)
        return gradient, None, None


def _chain(x: Tensor, name: str, ran: list[str]) -> Tensor:
    first = _Step.apply(x, f"{name}0", ran)  # type: ignore[no-untyped-call]
    return _Step.apply(first, f"{name}1", ran)  # type: ignore[no-untyped-call,no-any-return]


def _far_ahead() -> None:
    """Let this thread's sequence numbers run ahead of those of a new one."""
    x = torch.ones(1, requires_grad=True)
    for _ in range(64):
        x * 1


def _check_fork_join(exercise: Exercise, answer: tuple[AutogradFunction, AutogradFunction]) -> Verdict:
    problem = _problem_of_fork(answer[0]) or _problem_of_join(*answer) or _problem_of_order(*answer)
    return Verdict("wrong", problem) if problem else exercise.right(f"{exercise.praise}.")


def _problem_of_fork(fork: AutogradFunction) -> str:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True) * 2
    try:
        forked = fork.apply(x)
    except Exception as error:
        return f"MyFork.forward raised {type(error).__name__}: {error}"
    if not isinstance(forked, tuple) or len(forked) != 2 or not all(isinstance(y, Tensor) for y in forked):
        return f"MyFork.forward must return two tensors, (x, phony), not {type(forked).__name__}."
    y, phony = forked
    if y.shape != x.shape or not torch.equal(y, x):
        return "MyFork must not change x: its first output differs."
    if phony.numel():
        return (
            f"The phony has {phony.numel()} elements. It carries an edge, no data: torch.empty(0) has none."
        )
    if y.grad_fn is x.grad_fn:
        return "x came out as it went in, without a Fork node behind it: return x.detach(), autograd adds the node."
    if not phony.requires_grad or phony.grad_fn is not y.grad_fn:
        return (
            "The phony does not require grad, so it leads nowhere: it must be an output of MyFork.forward, not made "
            "outside, and not marked non-differentiable."
        )
    return ""


ERRORS = {  # what torch says: what is behind it
    "incorrect number of gradients": "backward returns one gradient for each argument of forward: one in Fork (x), "
    "two in Join (x and the phony).",
    "invalid gradient": "A gradient has the shape of its tensor. The phony's has no elements: return None for it.",
    "positional argument": "backward gets one gradient for each output of forward: two in Fork, one in Join.",
}


def _explained(error: Exception) -> str:
    text = str(error).splitlines()[0]
    return next((why for sign, why in ERRORS.items() if sign in text), text)


def _tied(fork: AutogradFunction, join: AutogradFunction) -> tuple[list[str], Tensor | None, Tensor | None]:
    """Return the order of backward and both gradients of chains a (this thread) and b (another one), b tied to a."""
    ran: list[str] = []
    x, y = (torch.ones(3, requires_grad=True) for _ in "ab")
    _far_ahead()
    a, phony = fork.apply(_chain(x, "a", ran))
    start = join.apply(y, phony)
    with ThreadPoolExecutor(1) as worker:
        b = worker.submit(_chain, start, "b", ran).result()
    (2 * a + 3 * b).sum().backward()
    return ran, x.grad, y.grad


def _problem_of_join(fork: AutogradFunction, join: AutogradFunction) -> str:
    _, phony = fork.apply(torch.ones(3, requires_grad=True) * 2)
    other = torch.tensor([4.0, 5.0, 6.0], requires_grad=True) * 1
    try:
        joined = join.apply(other, phony)
    except Exception as error:
        return f"MyJoin.forward raised {type(error).__name__}: {error}"
    if not isinstance(joined, Tensor):
        return f"MyJoin.forward must return one tensor, not {type(joined).__name__}."
    if joined.shape != other.shape or not torch.equal(joined, other):
        return "MyJoin must not change x: its output differs."
    return ""


def _problem_of_order(fork: AutogradFunction, join: AutogradFunction) -> str:
    try:
        ran, grad_a, grad_b = _tied(fork, join)
    except Exception as error:
        return f"backward raised {type(error).__name__}: {_explained(error)}"
    for name, function, grad, want in (("a", "MyFork", grad_a, 2.0), ("b", "MyJoin", grad_b, 3.0)):
        if grad is None or not grad.any():
            return f"Chain {name} gets no gradient: {function}.backward must hand on that of its tensor."
        if not torch.equal(grad, torch.full((3,), want)):
            return f"The gradient of chain {name} is {grad[0].item():g}, not {want:g}: {function} must not change it."
    if ran != ["b1", "b0", "a1", "a0"]:
        return (
            f"Backward ran {' '.join(ran)}, so nothing holds a back. Join must take the phony as an input of apply "
            "and return a tensor with a Join node behind it: x.detach(), not x."
        )
    return ""


check_fork_join = Exercise(
    "MyFork and MyJoin",
    name="forward and backward of MyFork and MyJoin",
    reference=(Fork, Join),
    answers=2,
    methods=("forward", "backward"),
    judge=_check_fork_join,
    praise="values and gradients untouched, and b goes backward before a",
)
"""Exercise 1: the phony, the values, the gradients, and the order that the edge forces."""


# ---- exercise 2: the order by hand

HAND = (2, 3)  # micro-batches, partitions


def _check_by_hand(exercise: Exercise, answer: object) -> Verdict:
    """Say which edge or which turn an order misses first."""
    truth = exercise.reference
    words = answer.split() if isinstance(answer, str) else answer
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        return exercise.wrong(f"a text such as 'R12 B12 …' is expected, not {type(answer).__name__}.")
    order = [word.upper() for word in words]
    if sorted(order) != sorted(truth):
        lost, strange = sorted(set(truth) - set(order)), sorted(set(order) - set(truth))
        twice = sorted({op for op in order if order.count(op) > 1})
        parts = [("missing", lost), ("unknown", strange), ("twice", twice)]
        said = "; ".join(f"{name}: {', '.join(ops)}" for name, ops in parts if ops)
        return Verdict("wrong", f"{exercise.what} has {len(truth)} operations, each once; {said}.")
    if order == truth:
        return exercise.right(f"{' '.join(truth)}.")
    named = next((f" {why}" for why, wrong in exercise.mistakes.items() if wrong == order), "")
    return exercise.wrong(f"{_first_fault(order)}{named}")


def _first_fault(order: list[str]) -> str:
    waiting = needs(*HAND)
    for k, op in enumerate(order):
        done = set(order[:k])
        missing = sorted(waiting[op] - done)
        if missing:
            return f"{op} at position {k} needs {' and '.join(missing)} first."
        ready = {other for other, before in waiting.items() if other not in done and before <= done}
        best = max(ready, key=turn)
        if best != op:
            among = ", ".join(sorted(ready))
            return f"at position {k} ready are {among}: {best} has the highest number, not {op}."
    raise AssertionError("no fault")


def _twice(pairs: Iterable[tuple[int, int]]) -> list[str]:
    """Recompute each pair (i, j) and go through it at once."""
    return [f"{op}{i}{j}" for i, j in pairs for op in "RB"]


_ALL = list(product(range(HAND[0]), range(HAND[1])))

check_by_hand = Exercise(
    "the order of backward for 2 micro-batches in 3 partitions",
    reference=by_hand(*HAND),
    judge=_check_by_hand,
    mistakes={
        "This is the order without dependencies.": by_hand(*HAND, dependencies=False),
        "This is the order of forward; backward starts at the end.": _twice(
            sorted(_ALL, key=lambda pair: (sum(pair), pair[1]))
        ),
        "Here each R waits for its own gradient, as in torch.utils.checkpoint; ours runs once it is ready.": _twice(
            (int(op[1]), int(op[2])) for op in by_hand(*HAND) if op[0] == "B"
        ),
        "Here one micro-batch goes through all partitions first.": _twice(_ALL[::-1]),
    },
)
"""Exercise 2: an order of 2 micro-batches in 3 partitions, as a text or a list."""


# ---- exercise 3: the missing edge

MISSING = (2, 1)


class Damaged(Pipeline):
    """A pipeline that forgets one dependency."""

    def fence(self, schedule: Schedule, skip_trackers: Any) -> None:
        """Fence pair by pair, one of them without its dependency."""
        for pair in schedule:
            self.dependencies = tuple(pair) != MISSING
            super().fence([pair], skip_trackers)


@cache
def damaged_run() -> Run:
    """Return a run of 4 micro-batches in 2 partitions in which one fence forgot its dependency."""
    return backward_run(4, 2, pipeline=Damaged)


check_missing = Exercise(
    "the fence (i, j) that forgot its dependency",
    reference=MISSING,
    judge=lambda exercise, answer: exercise.compare(tuple(answer) if isinstance(answer, list) else answer),
    mistakes={
        "That is where the edge should lead (its Fork); the fence of the later micro-batch makes it.": (1, 1),
        "The Join would stand behind partition 0, but it is made on the way into the next partition.": (2, 0),
        "That edge is there. Look one row up.": (3, 1),
        "Micro-batch first, then partition.": (1, 2),
    },
)
"""Exercise 3: the (i, j) whose fence forgot to depend."""
