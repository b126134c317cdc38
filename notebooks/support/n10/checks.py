"""Predictions and exercises of notebook 10, checkpoint and recompute."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

from support.built import MyCheckpoint, my_checkpoint
from support.kit.exact import exact_number
from support.kit.exercise import Exercise, cases
from support.kit.exercise import use as use
from support.kit.guess import Tried
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.n10.judges import fault_of_checkpoint, fault_of_wrapper, quiet
from support.n10.runs import peak, predict

# ---- predictions


guess_one_segment = exact_number(  # of 16 layers
    "the peak with one segment",
    lambda: peak(predict(16, 1)),
    "tensors",
    {
        1: "what is kept after forward",
        9: "forward forgets all, but the recompute brings all back",
        16: "x0 to x16 are 17",
    },
    digits=3,
    tried=Tried(right=17, wrong=9),
)
guess_least = exact_number(  # over all numbers of segments
    "the least peak of 64 layers",
    lambda: min(peak(predict(64, s)) for s in range(1, 65)),
    "tensors",
    {
        8: "that is the best number of segments",
        9: "that is one segment's inside alone",
        17: "then the input of the segment at work is counted twice",
        33: "about half of 65: more segments hold less",
    },
    digits=3,
    tried=Tried(right=16, wrong=64),
)
guess_flops = exact_number(
    "the FLOPs with a checkpoint",
    lambda: round((1 + 1 + 2) / (1 + 2), 2),
    "× those without",
    {
        2: "backward is not run twice",
        1.25: "a quarter is the share of the new total",
        1.5: "that would be a backward as cheap as forward",
    },
    digits=3,
    tried=Tried(right=4 / 3, wrong=1.25),
)
guess_fewer = exact_number(  # in one segment
    "what 'always' saves over 'except_last'",
    lambda: peak(predict(16, 1, 4, "except_last")) - peak(predict(16, 1, 4, "always")),
    "tensors",
    {
        16: "after forward only: the recompute brings the last one's inside back",
    },
    digits=3,
    tried=Tried(right=0, wrong=3),
)
guess_momentum = exact_number(
    "the momentum that acts",
    lambda: 1 - 0.9**2,
    "",
    {
        0.2: "the second update also shrinks what the first has added",
        0.1: "the second update goes on from where the first has stopped",
    },
    digits=3,
    tried=Tried(right=0.19, wrong=0.2),
)


# ---- exercise 1: a checkpoint as one autograd function


check_checkpoint = Exercise(
    "MyCheckpoint",
    name="forward and backward of MyCheckpoint",
    reference=MyCheckpoint,
    methods=("forward", "backward"),
    judge=judged(
        fault_of_checkpoint,
        "output, gradients, random state and autocast are as without a checkpoint; only the inputs are kept.",
        around=quiet,
    ),
    mistakes=famous(
        MyCheckpoint,
        """
        Is a `return` missing?
            return function(*inputs) → function(*inputs)
        A graph was made in forward: there gradients are off by themselves, leave it at that.
            return function(*inputs) → with torch.enable_grad(): ctx.y = function(*inputs)¶return ctx.y.detach()
        An attribute of ctx hides them from autograd, which then sees no change of them: save_for_backward.
            ctx.save_for_backward(*inputs) → ctx.x = inputs | ctx.saved_tensors → ctx.x
        Keep torch.get_rng_state() in forward, before function draws, and set it before the second forward.
            torch.set_rng_state(ctx.random_state) → pass
        Whoever draws next gets numbers a second time. Put the state back: torch.random.fork_rng does.
            torch.random.fork_rng(devices=[]) → torch.enable_grad()
        In backward, too, gradients are off, so the second forward made no graph; torch.enable_grad() turns them on.
            torch.enable_grad() → torch.no_grad()
        Keep the inputs themselves, not copies of them.
            *inputs)¶return → *(x.clone() for x in inputs))¶return
        The output is kept as well, or something else from inside: it would be there from forward to backward.
            return function(*inputs) → ctx.y = function(*inputs)¶return ctx.y.clone()
        No attribute of ctx may hold the output: the output's graph holds ctx, so neither would ever be freed.
            return function(*inputs) → ctx.y = function(*inputs)¶return ctx.y
        The sum is built where gradients are off, and the gradient that arrives is lost: torch.autograd.backward.
            torch.autograd.backward(output, gradient) → output.sum().backward()
        A function of data alone has an output that requires no gradient: go backward only if output.requires_grad.
            if output.requires_grad: → if True:
        backward is outside the autocast block: note in forward whether autocast is on, for the second forward.
            torch.autocast(*ctx.autocast) → torch.enable_grad()
        Autocast has two types: note torch.get_autocast_dtype as well.
            torch.autocast(*ctx.autocast) → torch.autocast("cpu", enabled=ctx.autocast[2])
        If autocast was off in forward, it must be off in the second one as well: enabled=False.
            torch.autocast(*ctx.autocast) → (torch.autocast(*ctx.autocast) if ctx.autocast[2] else torch.enable_grad())
        Start at x.detach(): from x itself backward runs on into the layers before, and a second time from there.
            x.detach().requires_grad_(x.requires_grad) → x
        A detached tensor requires no gradient until you say so: then x.grad stays None.
            .requires_grad_(x.requires_grad) → .detach()
        A mask of True and False can have no gradient: let each new leaf require one if its input does.
            requires_grad_(x.requires_grad) → requires_grad_()
        Is the gradient that arrives passed on?
            (output, gradient) → (output, torch.ones_like(output))
        torch.autograd.grad gives gradients to the inputs only; torch.autograd.backward also to the parameters.
            .backward(output, gradient) → .backward(output, gradient, inputs=[x for x in inputs if x.requires_grad])
        backward returns one value for each argument of forward: None for function, then one for each input.
            return None, *(x.grad for x in inputs) → return tuple(x.grad for x in inputs)
        """,
    ),
)


# ---- exercise 2: the peak in bytes


def peak_bytes(sizes: Sequence[int], starts: Sequence[int]) -> int:
    """Return the most bytes held in backward. sizes: of x_0 … x_L; starts: the first layer's number of each segment."""
    ends = [*starts[1:], len(sizes) - 1]
    peak = 0
    for j, (start, end) in enumerate(zip(starts, ends, strict=True)):
        kept = sum(sizes[first] for first in starts[: j + 1])
        inside = sum(sizes[start + 1 : end + 1])
        peak = max(peak, kept + inside)
    return peak


def _cuts() -> list[dict[str, Any]]:
    even = [1] * 17
    return cases(
        "sizes starts",
        [
            ([8, 1, 4, 1, 8, 1, 2], [0, 3]),
            ([4, 8, 8, 1, 4, 1], [0, 3]),
            (even, [0, 4, 8, 12]),
            ([5, 4, 3, 2, 1], [0, 1, 2, 3]),
            ([1, 2, 4, 8, 16, 1], [0, 2, 4]),
            (even, [0]),
            (even, [*range(16)]),
        ],
    )


check_peak_bytes = Exercise(
    "peak_bytes",
    reference=peak_bytes,
    cases=_cuts,
    mistakes=famous(
        peak_bytes,
        """
        The first segment is the last one in backward: while a segment is at work, the inputs before it are held, too.
            starts[: j + 1] → starts[j : j + 1]
        That is only what is kept after forward: in backward a segment's inside comes on top.
            starts[: j + 1] → starts | kept + inside → kept
        When segment j is at work, the segments behind it are done, and their inputs are gone.
            starts[: j + 1] → starts
        The input of the segment that is at work is still held, too.
            starts[: j + 1] → starts[:j]
        Every segment's output counts, xb at its end b, not only that of the last segment.
            len(sizes) - 1] → len(sizes)] | start + 1 : end + 1 → start + 1 : end
        The last layer's output is saved as well (tanh needs it): the inside ends with sizes[end].
            start + 1 : end + 1 → start + 1 : end
        A segment's input is counted twice, as kept and as inside.
            sizes[start + 1 : → sizes[start :
        The peak is the largest sum over all segments, not that of the last one.
            max(peak, kept + inside) → kept + inside
        The segments are at work one after another: not all insides are there at once.
            max(peak, kept + inside) → sum(sizes)
        """,
    ),
)


# ---- exercise 3: what to keep under a budget

OperatorCosts: TypeAlias = Mapping[str, tuple[float, float]]


def cheapest(costs: OperatorCosts, budget: float) -> set[str]:
    """Return the operators to keep: within the budget of bytes, with the fewest FLOPs to compute again."""
    best: set[str] = set()
    least: tuple[float, float] | None = None
    for number in range(len(costs) + 1):
        for kept in combinations(costs, number):
            weight = sum(costs[name][0] for name in kept)
            again = sum(flops for name, (_, flops) in costs.items() if name not in kept)
            if weight <= budget and (least is None or (again, weight) < least):
                best = set(kept)
                least = (again, weight)
    return best


def _greedy(costs: OperatorCosts, budget: float) -> set[str]:
    """Keep what costs most FLOPs per byte, as long as it fits: a good rule, and not the best."""
    kept: set[str] = set()
    left = budget
    for name in sorted(costs, key=lambda name: -costs[name][1] / costs[name][0]):
        if costs[name][1] and costs[name][0] <= left:
            kept = kept | {name}
            left -= costs[name][0]
    return kept


SMALL = {"addmm": (9, 24), "bmm": (5, 4), "softmax": (4, 0)}
BUDGETS: list[tuple[OperatorCosts, float]] = [
    (SMALL, 9), (SMALL, 100), (SMALL, 4), ({"a": (10, 10), "b": (4, 6), "c": (4, 6)}, 10),
    ({"a": (6, 7), "b": (5, 5), "c": (5, 5)}, 10), ({"a": (3, 0), "b": (1, 2), "c": (2, 2)}, 2),
    ({"a": (1, 1)}, 0), ({"a": (5, 4), "b": (3, 4)}, 5), ({"a": (1, 2), "b": (2, 3)}, 3),
]  # fmt: skip
check_cheapest = Exercise(
    "cheapest",
    reference=cheapest,
    view=lambda answer: lambda costs, budget: (found := answer(costs, budget)) and sorted(found),
    cases=cases("costs budget", BUDGETS),
    mistakes={
        "What costs most per byte first is a good rule, but a smaller one can leave room for more: try all.": _greedy,
        "Those are the operators to compute again; return those to keep.": (
            lambda costs, budget: set(costs) - cheapest(costs, budget)
        ),
    }
    | famous(
        cheapest,
        """
        That weighs more than the budget.
            weight <= budget and → True and
        Exactly the budget fits as well.
            weight <= budget → weight < budget
        That is the least memory, not the fewest FLOPs within the budget.
            (again, weight) → (weight, again)
        An operator without FLOPs is kept for nothing: of equal FLOPs, take the fewest bytes.
            (again, weight) → (again, -weight)
        Of sets that spare equally many FLOPs one weighs least: compare the weight, too, where FLOPs are equal.
            (again, weight) → again
        All names together are a subset as well: let number go up to len(costs), and include it.
            len(costs) + 1 → len(costs)
        """,
    ),
)


# ---- exercise 4: my_checkpoint, three repairs


check_my_checkpoint = Exercise(
    "my_checkpoint",
    reference=my_checkpoint,
    judge=judged(
        fault_of_wrapper,
        "all three faults are repaired, also for a checkpoint within another.",
        around=quiet,
    ),
    mistakes=famous(
        my_checkpoint,
        """
        (your function returned None: is a `return` missing?)
            return output → output
        Give MyCheckpoint one more input, an empty tensor that requires a gradient; function does not get it.
            requires_grad=True → requires_grad=False
        It is not yours to change: its gradient is computed and kept for nothing.
            versions = [ → inputs[0].requires_grad_(); versions = [
        Pass the inputs on as they are: a detached one has lost where it came from.
            run, phony, *inputs) → run, phony, *(x.detach().requires_grad_() for x in inputs))
        Every write in place raises a tensor's _version: compare it before and after.
            != versions: → is None:
        Compare the versions before and after: an input may have been written earlier, and that is no fault.
            [x._version for x in inputs] != versions → any(x._version for x in inputs)
        Look at the version of every input, not of the first alone.
            in inputs] != versions → in inputs][:1] != versions[:1]
        In a checkpoint's first forward gradients are off, in the second they are on: torch.is_grad_enabled().
            before or torch.is_grad_enabled() → True
        Put back what here.recomputing was.
            finally:¶    here.recomputing = before → finally: pass
        What it was before can be True, in a checkpoint within another: put `before` back, not False.
            finally:¶    here.recomputing = before → finally:¶    here.recomputing = False
        Put it back in `finally:`, which runs in either case.
            try: → if True: | return function(*inputs) → done = function(*inputs) | finally:¶    here.recomputing = before → here.recomputing = before¶return done
        What the outer one recomputes is recomputed inside as well: begin with what is_recomputing() said before.
            before or torch → torch
        """,  # noqa: E501
    ),
)
