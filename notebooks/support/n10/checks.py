"""Exercises of notebook 10, checkpoint and recompute; its predictions stand in guesses.py."""

# mypy: allow-untyped-calls

from __future__ import annotations

import random
from typing import Any

from support import built
from support.built import MyCheckpoint, my_checkpoint
from support.kit.exercise import Exercise, cases
from support.kit.exercise import use as use
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.n10.guesses import guess_fewer as guess_fewer
from support.n10.guesses import guess_flops as guess_flops
from support.n10.guesses import guess_least as guess_least
from support.n10.guesses import guess_momentum as guess_momentum
from support.n10.guesses import guess_one_block as guess_one_block
from support.n10.guesses import guess_one_segment as guess_one_segment
from support.n10.hook_trials import fault_of_hooks
from support.n10.solved import hook_checkpoint, peak_bytes
from support.n10.trials import fault_of_checkpoint, quiet
from support.n10.wrapper_trials import fault_of_wrapper

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
        (is a `return` missing?)
            return function(*inputs) → function(*inputs)
        A graph was made in forward: there gradients are off by themselves, leave it at that.
            return function(*inputs) → with torch.enable_grad(): ctx.y = function(*inputs)¶return ctx.y.detach()
        Keep the inputs by save_for_backward: in an attribute autograd would see no change of them.
            ctx.save_for_backward(*inputs) → ctx.x = inputs | ctx.saved_tensors → ctx.x
        Another checkpoint's forward runs in between: what belongs to this one must stand in its ctx, not in the class.
            ctx.autocast → MyCheckpoint.autocast
        Every input that requires a gradient needs a new leaf, not only the first.
            [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors] → [ctx.saved_tensors[0].detach().requires_grad_(ctx.saved_tensors[0].requires_grad), *ctx.saved_tensors[1:]] | *(x.grad for x in inputs) → inputs[0].grad, *(None for _ in inputs[1:])
        Only the second forward belongs under its autocast: backward goes on as it was called.
            if output.requires_grad:¶    torch.autograd.backward(output, gradient)¶return →     torch.autograd.backward(output, gradient) if output.requires_grad else None¶return
        Keep torch.get_rng_state() in forward, before function draws, and set it before the second forward.
            torch.set_rng_state(ctx.random_state) → pass
        Put the state back: torch.random.fork_rng does.
            torch.random.fork_rng(ctx.devices, device_type=kind) → torch.enable_grad()
        In backward, too, gradients are off, so the second forward made no graph; torch.enable_grad() turns them on.
            torch.enable_grad() → torch.no_grad()
        Keep the inputs themselves, not copies of them.
            *inputs)¶return → *(x.clone() for x in inputs))¶return
        The output is kept as well, or something else from inside: it would be there from forward to backward.
            return function(*inputs) → ctx.y = function(*inputs)¶return ctx.y.clone()
        Let nothing of yours hold the output: its graph holds ctx, and if an attribute of ctx holds it, neither goes.
            return function(*inputs) → ctx.y = function(*inputs)¶return ctx.y
        The sum is built where gradients are off: torch.autograd.backward takes the output and the gradient that arrives.
            torch.autograd.backward(output, gradient) → output.sum().backward()
        A function of data alone has an output that requires no gradient: go backward only if output.requires_grad.
            if output.requires_grad: → if True:
        backward is outside the autocast block: the second forward needs the autocast of the first.
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
        The parameters are no inputs, and need their gradients, too.
            .backward(output, gradient) → .backward(output, gradient, inputs=[x for x in inputs if x.requires_grad])
        backward returns one value for each argument of forward: None for function, then one for each input.
            return None, *(x.grad for x in inputs) → return tuple(x.grad for x in inputs)
        """,  # noqa: E501
    ),
)


# ---- exercise 2: the peak in bytes


def _cuts() -> list[dict[str, Any]]:
    even = [1] * 17
    return cases(
        "sizes starts",
        [
            ([8, 1, 4, 1, 8, 1, 2], [0, 3]),
            ([4, 8, 8, 1, 4, 1], [0, 3]),
            (even, [0, 4, 8, 12]),
            ([9, 9, 1, 1, 5, 1, 1], [0, 2, 4]),
            ([5, 4, 3, 2, 1], [0, 1, 2, 3]),
            ([1, 2, 4, 8, 16, 1], [0, 2, 4]),
            ([1, 1, 1, 20, 20, 1, 1, 1, 1], [0, 2, 4, 6, 7]),
            (even, [0]),
            (even, [*range(16)]),
            ([1, 2, 2, 9, 3, 4, 1, 1, 1], [0, 3, 4, 6, 7]),
            *_random_cuts(random.Random(10), 10),
        ],
    )


def _random_cuts(chance: random.Random, times: int) -> list[tuple[list[int], list[int]]]:
    """Return sizes of x0 to xL and the starts of some segments."""
    cuts = []
    for _ in range(times):
        layers = chance.randint(2, 9)
        sizes = [chance.randint(1, 30) for _ in range(layers + 1)]
        inner = chance.sample(range(1, layers), chance.randint(0, layers - 1))
        cuts.append((sizes, [0, *sorted(inner)]))
    return cuts


check_peak_bytes = Exercise(
    "peak_bytes",
    reference=peak_bytes,
    cases=_cuts,
    keeps=True,
    mistakes=famous(
        peak_bytes,
        """
        The first segment is the last one in backward: while a segment is at work, the inputs before it are held, too.
            starts[: j + 1] → starts[j : j + 1]
        That is only what is kept after forward: in backward a segment's inside comes on top.
            starts[: j + 1] → starts | kept + inside → kept
        When segment j is at work, the segments behind it are done, and their inputs are gone.
            starts[: j + 1] → starts
        Even once is too often: the segments behind the one at work are done, and their inputs are gone.
            starts[: j + 1] → [*starts[: j + 1], *(k for k in starts if k > end)]
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
        The gradient that waits at a segment's end is on its way: autograd doesn't hold it.
            kept + inside) → kept + inside + sizes[end])
        """,
    ),
    throughout=True,
)


# ---- exercise 3: a checkpoint made of hooks


def by_apply(function: Any, *inputs: Any) -> Any:
    """Return the function's output by exercise 1's autograd function, as `MyCheckpoint.apply` does."""
    return MyCheckpoint.apply(function, *inputs)


def hides_its_graph(function: Any, *inputs: Any) -> Any:
    """Return the function's output by an autograd function, as exercise 4 will."""
    return built.my_checkpoint(function, *inputs)


check_hook_checkpoint = Exercise(
    "hook_checkpoint",
    reference=hook_checkpoint,
    judge=judged(
        fault_of_hooks,
        "output and gradients are as without a checkpoint, nothing is kept but the inputs, and nothing is left behind.",
        around=quiet,
    ),
    mistakes={
        "An autograd function hides what is inside: leave the function's own graph, and replace only what it saves.": (
            hides_its_graph
        ),
        "The weights are no inputs, and yet the graph must begin at them, too.": by_apply,
    }
    | famous(
        hook_checkpoint,
        {
            "(the function's output is what you return.)": (
                "        return function(*inputs)",
                "        function(*inputs)",
            ),
            "pack may return anything in the tensor's place, and lets the tensor go.": (
                "lambda tensor: next(numbers), unpack",
                "lambda tensor: tensor, lambda tensor: tensor",
            ),
            "The first forward needs its graph, or backward never gets here; only what it saves is replaced.": (
                "with saved_tensors_hooks(lambda tensor: next(numbers), unpack)",
                "with torch.no_grad()",
            ),
            "One second forward brings everything: keep it for the others who will ask.": (
                "if number not in again:",
                "if True:",
            ),
            "In backward gradients are off, so it saved nothing: torch.enable_grad() turns them on.": (
                "torch.enable_grad()",
                "torch.no_grad()",
            ),
            "Read the random state before the function draws, and set it before it draws again.": (
                "torch.set_rng_state(random_state)",
                "pass",
            ),
            "Leave the state as you found it.": (
                "torch.random.fork_rng(devices=[])",
                "torch.enable_grad()",
            ),
            "Something of yours holds it: a list, or a tensor that was not detached and so keeps its graph.": (
                "tensor.detach()",
                "tensor",
            ),
            "Do you let go of each tensor when you hand it out?": ("again.pop(number)", "again[number]"),
            "Hand out what the second forward saved, not a copy of it.": (
                "tensor.detach()",
                "tensor.detach().clone()",
            ),
            "Each checkpoint needs a place of its own for what it computes again.": (
                "again = {}",
                'again = globals().setdefault("of all", {})',
            ),
            "The newest checkpoint's random state is not that of the others.": (
                "    random_state = torch",
                '    globals()["newest"] = torch',
                "torch.set_rng_state(random_state)",
                'torch.set_rng_state(globals()["newest"])',
            ),
            "The second forward saves in the order of the first.": (
                "enumerate(found)",
                "enumerate(found[::-1])",
            ),
            "Two of the tensors have one shape: whoever calls them by it loses one.": (
                "lambda tensor: next(numbers)",
                "lambda tensor: tuple(tensor.shape)",
                "enumerate(found)",
                "[(tuple(x.shape), x) for x in found]",
                "again.pop(number)",
                "again[number]",
            ),
            "What the backward before did not ask for is still there, and what it took is not.": (
                "if number not in again:",
                "if not again:",
            ),
            "What a forward saves depends on it: give the function the same inputs again.": (
                "            function(*inputs)\n        again",
                "            function(*(x.detach() for x in inputs))\n        again",
            ),
        },
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
        (is a `return` missing?)
            return output → output
        The autograd function needs an input of its own that requires a gradient; the caller's function does not get it.
            requires_grad=True → requires_grad=False
        It is not yours to change: its gradient is computed and kept for nothing.
            versions = [ → inputs[0].requires_grad_(); versions = [
        Pass the inputs on as they are: a detached one has lost where it came from.
            run, phony, *inputs) → run, phony, *(x.detach().requires_grad_() for x in inputs))
        Give the function the inputs that Checkpoint.apply hands over: from the caller's own, backward runs on into the layers before.
            def run(phony, *inputs): → def run(phony): | phony, *inputs) → phony)
        Every write in place raises a tensor's _version: compare it before and after.
            != versions: → is None:
        Values can be equal after a write, such as zeros that are doubled: compare versions, not copies.
            x._version for x in inputs] → x.clone() for x in inputs] | [x.clone() for x in inputs] != versions → not all(torch.allclose(x, y, equal_nan=True) for x, y in zip(inputs, versions))
        Neither are copies to be compared: nan is not equal to itself.
            x._version for x in inputs] → x.clone() for x in inputs] | [x.clone() for x in inputs] != versions → not all(torch.equal(x, y) for x, y in zip(inputs, versions))
        Compare the versions before and after: an input may have been written earlier, and that is no fault.
            [x._version for x in inputs] != versions → any(x._version for x in inputs)
        One input with another version is enough: here it is not the first.
            in inputs] != versions → in inputs][:1] != versions[:1]
        One input with another version is enough: here it is not the last.
            in inputs] != versions → in inputs][-1:] != versions[-1:]
        Token numbers can be written into as well, and have a version.
            for x in inputs] → for x in inputs if x.is_floating_point()]
        What comes from a layer can be written into as well: look at its version, too.
            for x in inputs] → for x in inputs if not x.requires_grad]
        A new thread has no such attribute yet: ask is_recomputing(), which knows that.
            before = is_recomputing() → before = here.recomputing
        In Checkpoint.apply's first forward gradients are off, in the second they are on: torch.is_grad_enabled().
            before or torch.is_grad_enabled() → True
        Put back what here.recomputing was.
            finally:¶    here.recomputing = before → finally: pass
        What it was before can be True, in a checkpoint within another: put `before` back, not False.
            finally:¶    here.recomputing = before → finally:¶    here.recomputing = False
        What it was before is what it is when this run begins, which can be long after the call.
            def run(phony, *inputs): → def run(phony, *inputs, before=is_recomputing()): | before = is_recomputing()¶ → pass¶
        Put it back in `finally:`, which runs in either case.
            try: → if True: | return function(*inputs) → done = function(*inputs) | finally:¶    here.recomputing = before → here.recomputing = before¶return done
        What the outer one recomputes is recomputed inside as well: begin with what is_recomputing() said before.
            before or torch → torch
        """,  # noqa: E501
    ),
)
