"""What the checkpoint of notebook 10 that is made of hooks is tried on: exercise 3."""

# mypy: allow-untyped-calls

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.saved import LiveTensors
from support.kit.judged import Fault
from support.kit.raised import Finding, in_case
from support.kit.values import kind_of

ROWS = 64  # an input takes 64 KiB
WIDTH = 256
SLACK = 12 * 1024  # bytes that a checkpoint may need for itself; a mask of the input takes 16 KiB


def phase() -> str:
    """Say whether it is autograd that runs this, or the caller."""
    return "forward" if torch._C._current_graph_task_id() == -1 else "backward"


class _Segment(nn.Module):
    """Dropout, a layer, dropout, a product that saves two tensors of one shape, a layer; notes runs and masks."""

    def __init__(self, *, drops: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.first = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator) / 16)
        self.second = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator) / 16)
        self.drops = drops
        self.runs = 0
        self.masks = list[Tensor]()
        self.required = list[tuple[bool, bool]]()

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        self.runs += 1
        self.required.append((x.requires_grad, gate.requires_grad))
        if self.runs > 1 and not torch.is_grad_enabled():
            raise Finding(f"the function ran again, in {phase()}, with gradients off.")
        if self.required[-1] != self.required[0]:
            raise Finding("in the second forward not the same inputs require a gradient as in the first.")
        # It draws before anything is saved; or it saves its output, no input, and backward asks for that last,
        # and a factor, a leaf like dropout's mask.
        x = F.dropout(x, 0.5) if self.drops else x.sigmoid() * torch.ones_like(x)
        hidden = torch.tanh(x @ self.first)
        if self.drops:
            hidden = F.dropout(hidden + 2, 0.5)  # never 0 before
            self.masks.append(torch.stack([x.detach() != 0, hidden.detach() != 0]))
        hidden = hidden.where(hidden != 0, 1)[torch.arange(ROWS)]  # saves a mask, and the rows' numbers
        y: Tensor = torch.tanh((hidden * gate) @ self.second)
        return y


def _inputs(*, require: tuple[bool, bool] = (True, True)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(ROWS, WIDTH, generator=generator).requires_grad_(asks) for asks in require]


def _plain(function: Callable[..., Any], *inputs: Tensor) -> Any:
    return function(*inputs)


def _gradients(
    answer: Callable[..., Any], *, require: tuple[bool, bool]
) -> tuple[dict[str, Tensor | None], bool, _Segment]:
    """Train one step; return the gradients by name, whether the random state is undisturbed, and the segment."""
    torch.manual_seed(7)
    segment = _Segment()
    inputs = _inputs(require=require)
    torch.rand(5)  # between the seed and the call others draw
    with in_case("in forward"):
        y = answer(segment.forward, *inputs)  # a method: no module, whose `training` one could ask
    if isinstance(y, Tensor) and not y.requires_grad:
        data = "" if any(require) else "the inputs are data that require no gradient: "
        raise Finding(f"{data}the weights require one, the output does not, so backward can't begin.")
    torch.rand(3)  # the generator moves on, as it does in training
    state = torch.get_rng_state()
    with in_case("in backward"):
        (y**2).sum().backward()
    if tuple(x.requires_grad for x in inputs) != require:
        raise Finding("the caller's data now requires a gradient, which is computed and kept for nothing.")
    named = {
        "the first input": inputs[0].grad,
        "the second input": inputs[1].grad,
        "the first weight": segment.first.grad,
        "the second weight": segment.second.grad,
    }
    return named, torch.equal(torch.get_rng_state(), state), segment


def _fault_of_gradients(answer: Callable[..., Any], *, require: tuple[bool, bool]) -> str:
    wanted, _, _ = _gradients(_plain, require=require)
    got, undisturbed, segment = _gradients(answer, require=require)
    where = "" if all(require) else "with data that require no gradient, "
    for name, want in wanted.items():
        if want is not None and got[name] is None:
            return f"{where}{name} has no gradient."
    if segment.runs == 1:
        return f"{where}the function itself ran once, in forward, and never again."
    if segment.runs > 2:
        return f"{where}the function ran {segment.runs} times in forward and backward; a checkpoint runs it twice."
    if not torch.equal(*segment.masks):
        return "the second forward drew another dropout mask than the first."
    for name, want in wanted.items():
        have = got[name]
        if want is None or have is None:
            continue
        if not torch.allclose(have, want, atol=1e-5):
            off = float((have - want).norm() / want.norm())
            return Fault(
                f"{where}{name}: the gradient is off by {percent(off)}.", f"{where}{name}: {off:.4f}"
            )
    if not undisturbed:
        return "gradients are right, but the random state after backward is another one than before it."
    return ""


def _fault_of_output(answer: Callable[..., Any]) -> str:
    torch.manual_seed(7)
    wanted = _Segment()(*_inputs())
    state = torch.get_rng_state()
    torch.manual_seed(7)
    segment = _Segment()
    with in_case("in forward"):
        y = answer(segment, *_inputs())
    if not isinstance(y, Tensor):
        return f"hook_checkpoint must return function(*inputs), a tensor, not {kind_of(y)}."
    if segment.runs != 1:
        return f"in forward the function ran {segment.runs} times; once is enough."
    if y.shape != wanted.shape or not torch.equal(y, wanted):
        return "it returns another output than function(*inputs) without a checkpoint."
    if not y.requires_grad:
        return "the output requires no gradient: it has lost its graph."
    if not torch.equal(torch.get_rng_state(), state):
        return "after forward the random state is another one than without a checkpoint."
    return ""


def _fault_of_memory(answer: Callable[..., Any]) -> str:
    _, _, without = _alive(_plain)
    for keeps_graph in (False, True):
        kept, left, peak = _alive(answer, keeps_graph=keeps_graph)
        if kept > SLACK:
            return f"after forward {kept // 1024} KiB are alive beside inputs and output (each 64 KiB)."
        if left > SLACK:
            how = "backward(retain_graph=True)" if keeps_graph else "backward"
            return f"after {how} {left // 1024} KiB are still alive beside inputs and output."
    if peak > without + 64 * 1024 + SLACK:  # one tensor more may be on its way
        return f"at the peak {peak // 1024} KiB are alive, and without a checkpoint {without // 1024}."
    return ""


def _alive(answer: Callable[..., Any], *, keeps_graph: bool = False) -> tuple[int, int, int]:
    """Train one step; return the bytes alive beside the output after forward and after backward, and the peak."""
    segment = _Segment(drops=False)
    inputs = _inputs()
    for tensor in (*inputs, segment.first, segment.second):
        tensor.grad = torch.zeros_like(tensor)
    with LiveTensors() as live:
        y = answer(segment, *inputs)
        kept = live.now - y.nbytes
        y.sum().backward(retain_graph=keeps_graph)
        left = live.now - y.nbytes
    return kept, left, live.peak


def _fault_of_a_funnel(answer: Callable[..., Any]) -> str:
    """Train a function that is widest near its input and ends in a Linear, which asks for its weight last."""
    widths = 64, 512, 512, 64, 64
    layers = nn.Sequential()
    for width, following in pairwise(widths):
        layers.extend([nn.Linear(width, following), nn.Sigmoid()])
    layers.append(nn.Linear(64, 64))
    peaks = list[int]()
    for call in (_plain, answer):
        runs = list[int]()

        def function(x: Tensor, runs: list[int] = runs) -> Any:
            runs.append(1)
            return layers(x)

        for weight in layers.parameters():
            weight.grad = torch.zeros_like(weight)
        with LiveTensors() as live, in_case("a function that ends in a Linear"):
            call(function, torch.ones(ROWS, 64, requires_grad=True)).sum().backward()
        peaks.append(live.peak)
    if len(runs) != 2:
        return f"a function that ends in a Linear ran {len(runs)} times in forward and backward, not twice."
    if peaks[1] > peaks[0] + ROWS * 512 * 4 + SLACK:
        return (
            "a function with its widest layers near the input: "
            f"at the peak {peaks[1] // 1024} KiB are alive, and without a checkpoint {peaks[0] // 1024}. "
            "Do you let go of each tensor when you hand it out?"
        )
    return ""


def _fault_of_copies(answer: Callable[..., Any]) -> str:
    """Train a function that saves all its inputs, three of them data: whoever runs it on copies holds them beside."""
    peaks = list[int]()
    for call in (_plain, answer):
        inputs = [*_inputs(), *_inputs(require=(False, False)), torch.ones(ROWS, WIDTH)]
        for x in inputs[:2]:
            x.grad = torch.zeros_like(x)
        with LiveTensors() as live:
            call(lambda *factors: reduce(torch.mul, factors).tanh(), *inputs).sum().backward()
        peaks.append(live.peak)
    if peaks[1] > peaks[0] + inputs[0].nbytes + SLACK:
        told = f"at the peak {peaks[1] // 1024} KiB are alive, and without a checkpoint {peaks[0] // 1024}"
        return f"a function that saves its five inputs: {told}."
    return ""


def _fault_of_evaluation(answer: Callable[..., Any]) -> str:
    with torch.no_grad(), in_case("with gradients off"):
        if answer(_Segment(), *_inputs()).requires_grad:
            return "with gradients off the output requires one."
    return ""


def _fault_of_portions(answer: Callable[..., Any]) -> str:
    segment = _Segment(drops=False)
    inputs = _inputs()
    wanted = torch.autograd.grad(_Segment(drops=False)(*inputs).sum(), inputs)
    y = answer(segment, *inputs).sum()
    for name, x, want in zip(("first", "second"), inputs, wanted, strict=True):
        with in_case(f"torch.autograd.grad for the {name} input alone, with retain_graph=True"):
            (got,) = torch.autograd.grad(y, x, retain_graph=True)
        if not torch.allclose(got, want, atol=1e-5):
            return f"torch.autograd.grad for one input at a time: the gradient of the {name} one is wrong."
    if segment.first.grad is not None:
        return "torch.autograd.grad must fill no .grad, and that of the function's weights was filled."
    for turn in ("first", "second"):
        with in_case(
            f"torch.autograd.grad for each input, then the {turn} of two backwards through one graph"
        ):
            y.backward(retain_graph=True)
    if not torch.allclose(_grad(inputs[0]), 2 * wanted[0], atol=1e-4):
        return (
            "torch.autograd.grad for each input, then two backwards, through one graph: "
            "these do not add up to twice the gradient."
        )
    segment = _Segment()
    y = answer(segment, *inputs).sum()
    for _ in range(2):
        y.backward(retain_graph=True)
    if not all(torch.equal(mask, segment.masks[0]) for mask in segment.masks):
        return "a later backward through a kept graph drew another dropout mask than forward."
    return ""


def _fault_of_a_lost_output(answer: Callable[..., Any]) -> str:
    """Drop the output, behind forward alone or behind half a backward: its graph must go with it, then all else."""
    for partly in (False, True):
        when = "torch.autograd.grad for one weight" if partly else "forward"
        with LiveTensors() as live:
            segment = _Segment(drops=False)
            inputs = _inputs()
            given = live.now
            y = answer(segment, *inputs)
            if partly:
                torch.autograd.grad(y.sum(), [segment.second], retain_graph=True)
            del y
            left = {"the output is dropped": _stays(live, given)}
            del segment, inputs
            left["the output is dropped, the inputs and the function as well"] = _stays(live, 0)
        for told, size in left.items():
            if size > SLACK:
                return f"after {when} {told}, and {size // 1024} KiB stay alive: something still holds them."
    return ""


def _stays(live: LiveTensors, given: int) -> int:
    """Return the bytes alive beside what was given, without what only a cycle holds."""
    if live.now - given > SLACK:
        gc.collect()
    left: int = live.now - given
    return left


class _Row:
    """Checkpoints in a row, each of some layers, whose graph is kept; what gradients one can ask for, by name."""

    def __init__(self, call: Callable[..., Any], layers: list[int]) -> None:
        generator = torch.Generator().manual_seed(6)
        self.asked = {"x": torch.randn(4, 4, generator=generator).requires_grad_()}
        self.known = list[list[str]]()  # behind each checkpoint
        self.outputs = list[Tensor]()
        y = self.asked["x"]
        for place, count in enumerate(layers, 1):
            weights = [torch.randn(4, 4, generator=generator).requires_grad_() for _ in range(count)]
            for number, weight in enumerate(weights, 1):
                self.asked[f"weight {number} of checkpoint {place}"] = weight
            y = call(partial(_products, weights), y)
            self.known.append(list(self.asked))
            self.outputs.append(y)

    def gradient(self, end: int, name: str) -> Tensor:
        """Return the gradient of the squares of output `end`."""
        squares = (self.outputs[end - 1] ** 2).sum()
        found: Tensor = torch.autograd.grad(squares, self.asked[name], retain_graph=True)[0]
        return found


def _products(weights: list[Tensor], x: Tensor) -> Tensor:
    """Multiply, with tanh between: what the last product saves last, its weight's gradient doesn't ask for."""
    *inner, last = weights
    for weight in inner:
        x = (x @ weight).tanh()
    return x @ last


def _fault_of_a_row(answer: Callable[..., Any]) -> str:
    """Ask checkpoints in a row for random gradients, one after another."""
    for seed in range(8):
        chance = random.Random(seed)
        layers = chance.choices((1, 2, 3, 4), k=3)
        plain = _Row(_plain, layers)
        mine = _Row(answer, layers)
        for _ in range(6):
            end = chance.randint(1, 3)
            name = chance.choice(plain.known[end - 1])
            case = (
                f"three checkpoints in a row, the gradient of output {end} for {name}, with retain_graph=True"
            )
            with in_case(case):
                got = mine.gradient(end, name)
            if not torch.allclose(got, plain.gradient(end, name), rtol=1e-4, atol=1e-5):
                return f"{case}: it is another one than without a checkpoint."
    return ""


def _fault_of_two_states(answer: Callable[..., Any]) -> str:
    """Draw in two checkpoints, one behind the other: each must draw again what it drew itself."""
    first = _Segment()
    second = _Segment()
    x, gate = _inputs()
    with in_case("two checkpoints in a row"):
        answer(second, answer(first, x, gate), gate).sum().backward()
    for which, segment in (("first", first), ("second", second)):
        if not all(torch.equal(mask, segment.masks[0]) for mask in segment.masks):
            return f"two checkpoints in a row: the second forward of the {which} drew another dropout mask."
    return ""


def fault_of_one_function(call: Callable[..., Any]) -> str:
    """Checkpoint one function twice, as two micro-batches do: each must draw again what it drew itself, or nothing."""
    inputs = [torch.ones(64, requires_grad=True) for _ in range(6)]
    frozen = nn.Sequential(nn.Dropout(0.5)).eval()
    frozen[0].train()  # in evaluation, and it draws
    drops = nn.Dropout(0.5), nn.Dropout(0.5).eval(), frozen
    where = "one function in two checkpoints, as for two micro-batches"
    with in_case(where):
        outputs = [call(drop, x) for drop, x in zip(drops * 2, inputs, strict=True)]
        state = torch.get_rng_state()
        torch.cat(outputs).sum().backward()
    for x, y in zip(inputs, outputs, strict=True):
        if not torch.equal(_grad(x) != 0, y != 0):
            return f"{where}: a second forward drew another dropout mask."
        if not torch.equal(_grad(x), y):
            return f"{where}: an input has another gradient than without a checkpoint."
    if not torch.equal(torch.get_rng_state(), state):
        return f"{where}: the random state behind backward is another one than before it."
    return ""


def fault_of_two_steps(call: Callable[..., Any]) -> str:
    """Go forward and backward twice from the same numbers: whatever has a .grad must have twice that of once."""
    layer = nn.Linear(64, 64)
    leaves = [torch.ones(64, requires_grad=True), *layer.parameters()]
    found = list[list[Tensor]]()
    case = "two equal steps of a Linear, and nobody empties a .grad between them"
    for _ in range(2):
        with in_case(case):
            call(layer, leaves[0]).sum().backward()
        found.append([_grad(leaf).clone() for leaf in leaves])
    for once, twice in zip(*found, strict=True):
        if not torch.allclose(twice, 2 * once, atol=1e-5):
            return f"{case}: the second leaves another .grad than twice the first's."
    return ""


def fault_behind_an_error(call: Callable[..., Any]) -> str:
    """Go backward through a function that fails in its second forward: who hears of it, and what is left behind?"""
    runs = list[int]()

    def fails_later(x: Tensor) -> Tensor:
        runs.append(1)
        if len(runs) > 1:
            raise RuntimeError("out of memory")
        return (2 * x).sin()  # saves what is no input

    loss = call(fails_later, torch.ones(2, requires_grad=True)).sum()
    torch.rand(3)  # the generator moves on, as it does in training
    state = torch.get_rng_state()
    with in_case("an error in the second forward"), suppress(RuntimeError):
        loss.backward()
        if len(runs) == 1:
            return "the function itself ran once, in forward, and never again."
        return "function raised RuntimeError in the second forward, and nobody heard of it."
    if not torch.equal(torch.get_rng_state(), state):
        return "an error in the second forward, and the random state is another one than before: leave it as it was."
    return ""


def percent(share: float) -> str:
    """Write a share, however small, as no zero."""
    return f"{share:.0%}" if share >= 0.01 else f"{100 * share:.1g}%"


def _grad(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad


def fault_of_hooks(answer: Any) -> str:
    """Say what differs from a run without a checkpoint, what is kept, and what is left behind."""
    return (
        _fault_of_output(answer)
        or _fault_of_gradients(answer, require=(True, True))
        or _fault_of_gradients(answer, require=(False, False))
        or _fault_of_gradients(answer, require=(True, False))
        or _fault_of_gradients(answer, require=(False, True))
        or fault_of_two_steps(answer)
        or _fault_of_memory(answer)
        or _fault_of_evaluation(answer)
        or _fault_of_portions(answer)
        or _fault_of_a_row(answer)
        or _fault_of_two_states(answer)
        or fault_of_one_function(answer)
        or _fault_of_a_funnel(answer)
        or _fault_of_copies(answer)
        or fault_behind_an_error(answer)
        or _fault_of_a_lost_output(answer)  # last: it may have to collect garbage, which takes long
    )
