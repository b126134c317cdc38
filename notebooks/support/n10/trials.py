"""What the autograd function of notebook 10 is tried on: exercise 1; exercise 4 has wrapper_trials."""

# mypy: allow-untyped-calls

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from lib.saved import LiveTensors, SavedTensors
from support.kit.judged import Fault
from support.kit.raised import Finding, calling, in_case
from support.kit.values import kind_of
from support.n10.hook_trials import (
    fault_behind_an_error,
    fault_of_one_function,
    fault_of_two_steps,
    percent,
    phase,
)
from support.n10.input_trials import fault_of_inputs, is_off


@contextmanager
def quiet() -> Iterator[None]:
    """Run a trial without warnings and outside autocast, and leave random numbers and autocast as they were."""
    enabled = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu")
    depth = _nest(0)  # some answer may have entered an autocast and never left it
    torch.set_autocast_enabled("cpu", False)
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_autocast_enabled("cpu", enabled)
        torch.set_autocast_dtype("cpu", dtype)
        torch.clear_autocast_cache()
        _nest(depth)


def _nest(depth: int) -> int:
    """Let so many autocasts be around; return how many were."""
    now = torch.autocast_increment_nesting()
    was = now - 1
    while now > depth:
        now = torch.autocast_decrement_nesting()
    while now < depth:
        now = torch.autocast_increment_nesting()
    return was


class _Segment(nn.Module):
    """What is checkpointed: it takes three tensors, draws a dropout mask, and notes how it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.5)
        self.masks = list[Tensor]()
        self.types = list[torch.dtype]()
        self.called = list[str]()  # from which lines of the reader's
        self.ran = list[tuple[bool, bool]]()  # with gradients on? does x require one?

    def forward(self, x: Tensor, keep: Tensor, shift: Tensor) -> Tensor:
        self.called.append(calling())
        self.ran.append((torch.is_grad_enabled(), x.requires_grad))
        hidden = self.first(x)
        if self.masks and not torch.is_grad_enabled():
            raise Finding(f"the function ran again, in {phase()}, with gradients off{self.where()}.")
        self.types.append(hidden.dtype)
        hidden = self.drop(hidden.float().tanh() + 2)  # never 0 before dropout
        self.masks.append(hidden.detach() != 0)
        y: Tensor = (self.second(hidden * keep) + shift).float().tanh()
        return y

    def where(self) -> str:
        """Say behind a sentence from which line of the reader's the segment ran last."""
        return f" ({self.called[-1]})" if self.called[-1] else ""


def _cast(dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype, enabled=dtype is not None)


class _Case:
    """A layer, two segments, a loss; run with an answer, or with None without a checkpoint."""

    def __init__(
        self,
        apply: Callable[..., Any] | None,
        casts: tuple[torch.dtype | None, torch.dtype | None] = (None, None),
    ) -> None:
        torch.manual_seed(7)
        self.before = nn.Linear(6, 6)
        self.shift = nn.Parameter(torch.randn(6))
        self.parts = _Segment(), _Segment()
        call = apply or (lambda function, *inputs: function(*inputs))
        keep = torch.rand(10, 6) < 0.8
        weights = [p for part in (self.before, *self.parts) for p in part.parameters()]
        with SavedTensors([*weights, self.shift]) as saved:
            x = self.before(torch.randn(10, 6))
            held = saved.count
            held_bytes = saved.bytes
            first, second = casts
            with in_case("in forward"), _cast(first):
                self.y = call(self.parts[0], x, keep, self.shift)
            self.kept_bytes = saved.bytes - held_bytes
            # The random state may be kept as a tensor as well; it is larger than all else here.
            states, self.kept_bytes = divmod(self.kept_bytes, torch.get_rng_state().nbytes)
            self.kept = saved.count - held - states
            if isinstance(self.y, Tensor):
                with in_case("in forward"), _cast(second):
                    self.end = call(self.parts[1], self.y, keep, self.shift)

    def backward(self, cast: torch.dtype | None = None) -> bool:
        """Go backward; return whether the random state is as it was before."""
        torch.rand(3)  # the generator moves on, as it does in training
        state = torch.get_rng_state()
        with in_case("in backward"), _cast(cast):
            (self.end**2).sum().backward()
        return torch.equal(torch.get_rng_state(), state)

    def gradients(self) -> dict[str, Tensor | None]:
        first, last = self.parts
        parts = {"the last segment": last, "the first segment": first, "the layer before": self.before}
        named = [
            (f"{where}'s {name}", p) for where, part in parts.items() for name, p in part.named_parameters()
        ]
        return {name: p.grad for name, p in [*named, ("the third input", self.shift)]}


def fault_of_checkpoint(answer: Any) -> str:
    """Say what differs from a run without a checkpoint: output, what is kept, masks, gradients, random state, types."""
    plain = _Case(None)
    mine = _Case(answer.apply)
    if not isinstance(mine.y, Tensor):
        return f"forward must return function(*inputs), a tensor, not {kind_of(mine.y)}."
    if mine.y.shape != plain.y.shape or not torch.equal(mine.y, plain.y):
        return "forward returns another output than function(*inputs) without a checkpoint."
    if not mine.y.requires_grad:
        return "the output requires no gradient, although an input does."
    if mine.kept != 2:  # the third input is a parameter here, and those are not counted
        held = f"{mine.kept} tensor{'s' * (mine.kept != 1)} of the segment, {mine.kept_bytes} bytes"
        return f"after forward autograd holds {held}, not its inputs alone (2)."
    if mine.parts[0].ran[0][0]:
        return "in forward the function ran with gradients on: there they are off by themselves, leave it at that."
    plain.backward()
    undisturbed = mine.backward()
    runs = [len(part.masks) for part in mine.parts]
    if runs[0] != runs[1] and sum(runs) == 4:
        often = max(mine.parts, key=lambda part: len(part.masks))
        told = f"two segments: their functions ran {runs[0]} and {runs[1]} times, and each must run twice"
        return Fault(f"{told}{often.where()}.", told)
    first, *others = mine.parts[0].masks
    if len(others) != 1:
        told = f"function ran {1 + len(others)} time{'s' * bool(others)}; a checkpoint runs it twice"
        return Fault(f"{told}{mine.parts[0].where()}.", told)
    if not torch.equal(first, others[0]):
        share = float((first != others[0]).float().mean())
        told = f"the second forward drew another dropout mask: {share:.0%} of the units differ"
        return Fault(f"{told}{mine.parts[0].where()}.", told)
    if not mine.parts[0].ran[1][1]:
        return "in the second forward the first input requires no gradient, and in the first it does."
    for (name, got), want in zip(mine.gradients().items(), plain.gradients().values(), strict=True):
        assert want is not None
        if got is None or not got.any():
            return f"{name} has {'no gradient' if got is None else 'a gradient of zeros'}."
        if not torch.allclose(got, want, atol=1e-6):
            return f"{name}: the gradient is off by {percent(float((got - want).norm() / want.norm()))}."
    if not undisturbed:
        return "gradients are right, but the random state after backward is another one than before it."
    return (
        _fault_of_autocast(answer)
        or _fault_of_memory(answer)
        or fault_of_inputs(answer)
        or fault_of_two_steps(answer.apply)
        or _fault_of_casts_that_stay(answer)
        or _fault_of_errors(answer)
        or _fault_of_a_kept_graph(answer)
        or fault_of_one_function(answer.apply)
        or _fault_of_what_is_left(answer)
        or _fault_of_passes(answer)
        or _fault_of_drawing_in_backward(answer)
        or _fault_of_casts_behind_an_error(answer)
    )


def _fault_of_memory(answer: Any) -> str:
    layer = nn.Linear(64, 128)
    x = torch.ones(64, 64, requires_grad=True)
    with LiveTensors() as live:
        with in_case("in forward"):
            y = answer.apply(layer, x)
        more = live.now - y.nbytes
        loss = y.sum()
        del y
        kept = live.now - loss.nbytes
        del loss
    if more >= x.nbytes:
        return f"after forward {more // 1024} KiB are alive besides an input of 16 KiB and an output of 32."
    if live.now:
        return f"{live.now} bytes stay in memory when nobody uses the output any more."
    if kept >= x.nbytes:
        return (
            "nobody holds the output any more, and it stays in memory until backward: keep the inputs alone."
        )
    with in_case("the output of the second forward requires no gradient"):
        answer.apply(lambda x, data: data.flatten(1), x, torch.ones(2, 2, 2)).sum().backward()
    return ""


def _fault_of_autocast(answer: Any) -> str:
    half = torch.bfloat16
    alike = ((half, half), None), ((torch.float16, torch.float16), None), ((None, None), half)
    for casts, backward in (
        *alike,
        ((half, None), None),
        ((None, half), None),
        ((half, None), half),
        ((torch.float16, half), None),
        ((torch.float16, torch.float16), half),
    ):
        mine = _Case(answer.apply, casts)
        plain = _Case(None, casts)
        mine.backward(backward)
        plain.backward(backward)
        mixed = "" if casts[0] == casts[1] else "two segments, one under autocast and one outside: "
        mixed = "two segments, each under an autocast of its own: " if all(casts) and mixed else mixed
        where = f"backward was called {'outside' if backward is None else 'inside'} autocast"
        for part in mine.parts:
            one, two = (str(dtype).removeprefix("torch.") for dtype in part.types[:2])
            if one != two:
                told = f"{mixed}the first forward computed in {one}, the second in {two}"
                return Fault(f"{told}{part.where()}; {where}.", f"{told} {where}")
        for (name, got), want in zip(mine.gradients().items(), plain.gradients().values(), strict=True):
            if is_off(got, want):
                return f"{mixed}types are right, but {name} has another gradient than without a checkpoint ({where})."
    return ""


def _fault_of_casts_that_stay(answer: Any) -> str:
    """Go backward outside autocast, change the weights and compute under autocast: with the new ones?"""
    layer = nn.Linear(6, 6)
    with _cast(torch.bfloat16):
        y = answer.apply(layer, torch.ones(2, 6, requires_grad=True))
    y.float().sum().backward()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
    with _cast(torch.bfloat16):
        stale = bool(layer(torch.ones(2, 6)).any())
    if stale:
        return (
            "after backward the weights change, and a layer under autocast computes with the old ones. "
            "Autocast keeps what it has cast until a `with torch.autocast(…)` ends, and none has ended."
        )
    return ""


def _fault_of_casts_behind_an_error(answer: Any) -> str:
    """Ask again behind the errors of other trials: has each autocast ended?"""
    if _fault_of_casts_that_stay(answer):
        return "an error in the second forward, and its autocast never ends: a `with` ends it in either case."
    return ""


class _Fails(torch.autograd.Function):
    """Doubles, and runs out of memory in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise RuntimeError("out of memory")


def _refuses(x: Tensor) -> Tensor:
    raise RuntimeError("out of memory")


def _fault_of_errors(answer: Any) -> str:
    with suppress(RuntimeError):
        answer.apply(_Fails.apply, torch.ones(2, requires_grad=True)).sum().backward()
        return "a layer inside raised RuntimeError in its own backward, and nobody heard of it."
    with suppress(RuntimeError):
        answer.apply(_refuses, torch.ones(2, requires_grad=True))
        return "function raised RuntimeError in forward, and nobody heard of it."
    return fault_behind_an_error(answer.apply)


def _fault_of_what_is_left(answer: Any) -> str:
    """Hold the output behind backward: what the second forward has made must have gone."""
    x = torch.ones(64, 64, requires_grad=True)
    left = _left_behind_backward(answer, x, lambda: x)
    if left >= x.nbytes:
        return (
            f"after backward {left // 1024} KiB are still alive, as long as the output is. "
            "What holds them: an attribute of ctx, or a graph that backward itself has built?"
        )
    if _left_behind_backward(answer, x, lambda: 2 * x) >= x.nbytes:
        return "after backward an input is still held, as long as the output is: keep it from forward to backward."
    return ""


def _left_behind_backward(answer: Any, leaf: Tensor, entry: Callable[[], Tensor]) -> int:
    """Return the bytes that are alive behind backward, beside the output and each .grad."""
    layer = nn.Linear(64, 128)
    with LiveTensors() as live:
        for tensor in (leaf, *layer.parameters()):
            tensor.grad = torch.zeros_like(tensor)
        before = live.now  # a new .grad may take the place of an old one
        y: Tensor = answer.apply(layer, entry())
        y.sum().backward()
        left: int = live.now - before - y.nbytes
    return left


def _fault_of_passes(answer: Any) -> str:
    passes = list[Tensor]()

    def function(x: Tensor) -> Tensor:
        y = x.sin()
        if y.requires_grad:
            y.register_hook(passes.append)
        return y.tanh()

    answer.apply(function, torch.ones(3, requires_grad=True)).sum().backward()
    if len(passes) != 1:
        return f"backward went {len(passes)} times through the second forward; once is enough."
    return ""


def _fault_of_a_kept_graph(answer: Any) -> str:
    """Go backward twice: whatever the first one has used must still be there."""
    part = _Segment()
    inputs = torch.ones(10, 6, requires_grad=True), torch.ones(10, 6), torch.ones(6)
    loss = answer.apply(part.forward, *inputs).sum()  # a method: no module, whose `training` one could ask
    found = list[Tensor | None]()
    for turn in ("first", "second"):
        case = f"the {turn} of two backwards through a kept graph"
        with in_case(case):
            loss.backward(retain_graph=True)
        if part.first.weight.grad is None:
            return "the function is a method, no module, and its weights have no gradient."
        if not torch.equal(part.masks[-1], part.masks[0]):
            return f"{case} drew another dropout mask than forward."
        found.append(inputs[0].grad)
        inputs[0].grad = None
    if is_off(*found):
        return f"{case} gives an input another gradient than the first."
    return ""


class _Draws(torch.autograd.Function):
    """Rounds its gradient by chance, as training in few bits does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return (2 * gradient + torch.rand_like(gradient)).floor()


def _fault_of_drawing_in_backward(answer: Any) -> str:
    following = list[Tensor]()
    for call in (answer.apply, lambda function, x: function(x)):
        torch.manual_seed(7)
        call(_Draws.apply, torch.ones(3, requires_grad=True)).sum().backward()
        following.append(torch.rand(3))
    if not torch.equal(*following):
        return (
            "a layer draws random numbers in its own backward, and whoever draws next gets other numbers than "
            "without a checkpoint. Only the second forward belongs under its random state."
        )
    return ""
