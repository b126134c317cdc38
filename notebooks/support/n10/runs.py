"""What notebook 10, checkpoint and recompute, predicts and runs: held tensors, faults of a second forward."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from lib.pipeline.checkpoint import checkpoint, is_recomputing
from lib.runtime.microbatch import scatter
from lib.saved import SavedTensors
from support import built

# ---- The memory staircase: how many tensors are held for backward, with and without checkpoints.
# A model of L layers, each of which keeps its input and its output (Linear + tanh), in segments; m
# micro-batches go forward one after the other, then backward, the last one first. Without a checkpoint all
# L + 1 tensors of a micro-batch stay. With one, a segment keeps its input, and computes its inside again when
# backward comes to it.
#
#     tensors     x0 ─ layer 1 ─ x1 ─ layer 2 ─ x2 ─ layer 3 ─ x3 ─ layer 4 ─ x4
#     segments    └──────── 1 ─────────┘└──────── 2 ──────────┘       held after forward: x0 and x2

Mode: TypeAlias = Literal["never", "except_last", "always"]
StepKind: TypeAlias = Literal["forward", "recompute", "backward"]
MODES: tuple[Mode, ...] = ("never", "except_last", "always")


class HeldStep(NamedTuple):
    """Say what is held in a step of a layer (1 … L): at the end of its forward, at the start of its backward.

    held: pairs (micro-batch, k) of the tensors; x_k is the output of layer k, x0 the input.
    """

    kind: StepKind
    micro_batch: int
    layer: int
    held: frozenset[tuple[int, int]]


def segments_of(layers: int, segments: int) -> list[range]:
    """Return the layers of each segment, 1 … L: as even as can be, the longer ones first."""
    short, longer = divmod(layers, segments)
    starts = [1 + c * short + min(c, longer) for c in range(segments + 1)]
    return [range(start, end) for start, end in itertools.pairwise(starts)]


def checkpointed(micro_batches: int, mode: Mode) -> int:
    """Return how many micro-batches, the first ones, are checkpointed."""
    return {"never": 0, "except_last": micro_batches - 1, "always": micro_batches}[mode]


def predict(layers: int, segments: int, micro_batches: int = 1, mode: Mode = "always") -> list[HeldStep]:
    """Return the steps of one forward and backward over all micro-batches, in order."""
    parts = segments_of(layers, segments)
    stop = checkpointed(micro_batches, mode)
    steps: list[HeldStep] = []
    held: set[tuple[int, int]] = set()

    def step(kind: StepKind, i: int, layer: int) -> None:
        steps.append(HeldStep(kind, i, layer, frozenset(held)))

    def compute(kind: StepKind, i: int, part: range) -> None:
        for layer in part:
            held.update(((i, layer - 1), (i, layer)))
            step(kind, i, layer)

    for i in range(micro_batches):
        for part in parts:
            if i >= stop:
                compute("forward", i, part)
                continue
            for layer in part:
                step("forward", i, layer)
            held.add((i, part[0] - 1))  # all that a segment keeps
    for i in reversed(range(micro_batches)):
        for part in reversed(parts):
            if i < stop:
                compute("recompute", i, part)
            for layer in reversed(part):
                step("backward", i, layer)
                held.discard((i, layer))
            if i < stop or part[0] == 1:
                held.discard((i, part[0] - 1))
    return steps


def peak(steps: list[HeldStep]) -> int:
    """Return the largest number of tensors held in any step."""
    return max(len(step.held) for step in steps)


class _Layer(nn.Linear):
    """Linear and tanh; notes how many tensors are held when it has computed, and when its backward starts."""

    def __init__(
        self, width: int, number: int, saved: SavedTensors, log: list[tuple[StepKind, int, int, int]]
    ):
        super().__init__(width, width)
        self.number = number
        self.saved = saved
        self.log = log

    def run(self, x: Tensor, i: int) -> Tensor:
        def note(kind: StepKind, _: object = None) -> None:
            self.log.append((kind, i, self.number, self.saved.count))

        y: Tensor = self(x).tanh()
        note("recompute" if is_recomputing() else "forward")
        if y.requires_grad:  # not in a checkpoint
            y.register_hook(partial(note, "backward"))  # type: ignore[no-untyped-call]
        return y


def measure_held(
    layers: int, segments: int, micro_batches: int = 1, mode: Mode = "always", *, width: int = 4
) -> list[tuple[StepKind, int, int, int]]:
    """Run such a model, forward and backward; return (kind, micro-batch, layer, tensors held) of each step."""
    parts = segments_of(layers, segments)
    stop = checkpointed(micro_batches, mode)
    log: list[tuple[StepKind, int, int, int]] = []
    saved = SavedTensors()
    model = [_Layer(width, number, saved, log) for number in range(1, layers + 1)]
    saved.ignore(x for layer in model for x in layer.parameters())

    def run(part: range, i: int, x: Tensor) -> Tensor:
        for number in part:
            x = model[number - 1].run(x, i)
        return x

    with saved:
        outputs = []
        for i, batch in enumerate(scatter(torch.ones(2 * micro_batches, width), micro_batches)):
            x = batch.tensor.clone()  # memory of its own: a slice would keep the whole mini-batch
            for part in parts:
                function = partial(run, part, i)
                x = checkpoint(function, x) if i < stop else function(x)  # type: ignore[assignment]
            outputs.append(x)
        loss = torch.cat(outputs).sum()
        del x, outputs
        loss.backward()  # type: ignore[no-untyped-call]
    return log


# ---- Layers that recompute can trip over, and a run that says what a checkpoint makes of each.
#
# Every case is a small model of a first layer and a segment that is checkpointed; its gradients are compared
# with those of the same model without checkpoint, from the same weights, inputs and random state.

Outcome: TypeAlias = Literal["same", "wrong", "error", "warned", "no gradient", "counted twice"]
How: TypeAlias = Callable[..., Any]


class Noise(nn.Module):
    """Scale by Python's random numbers, whose state no checkpoint keeps: only the values show it."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(6)

    def forward(self, x: Tensor) -> Tensor:
        """Return x times a random number."""
        return (x * (0.5 + self._random.random())).tanh()


class SometimesTanh(Noise):
    """Tanh or nothing, by Python's random numbers: the second time it takes the other branch."""

    def forward(self, x: Tensor) -> Tensor:
        """Return tanh(x) or x."""
        return x.tanh() if self._random.random() < 0.8 else x  # draws: below 0.8, then above


class Scale(nn.Linear):
    """Scale by a second input, which it doubles in place."""

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        """Return the layer's output times twice the scale."""
        return super().forward(x) * scale.mul_(2)


HOWS: Mapping[str, How] = {
    "MyCheckpoint": built.MyCheckpoint.apply,
    "my_checkpoint": built.my_checkpoint,
    "torch reentrant": partial(torch_checkpoint, use_reentrant=True),
    "torch not reentrant": partial(torch_checkpoint, use_reentrant=False),
}
CASES: Mapping[str, Callable[[], list[nn.Module]]] = {  # the segment: layers on 8 features
    "dropout": lambda: [nn.Linear(8, 8), nn.Dropout(0.5)],
    "in place, inside": lambda: [nn.Linear(8, 8), nn.SiLU(inplace=True), nn.Linear(8, 8)],
    "input without gradient": lambda: [nn.Linear(8, 8)],
    "in place, input with gradient": lambda: [nn.SiLU(inplace=True), nn.Linear(8, 8)],
    "in place, input without": lambda: [nn.SiLU(inplace=True), nn.Linear(8, 8)],
    "in place, a second input": lambda: [Scale(8, 8)],
    "BatchNorm": lambda: [nn.Linear(8, 8), nn.BatchNorm1d(8)],
    "Python's random: values": lambda: [Noise(), nn.Linear(8, 8)],
    "Python's random: a branch": lambda: [nn.Linear(8, 8), SometimesTanh(), nn.Linear(8, 8)],
}
NO_GRAD = ("in place, input without", "input without gradient")  # the segment comes first


def _gradients(case: str, how: How | None) -> tuple[list[Tensor | None], int]:
    """Return the gradients of the segment's parameters and of the layer before, and BatchNorm's count."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first: nn.Module = nn.Identity() if case in NO_GRAD else nn.Linear(8, 8)
        layers = CASES[case]()
        last = nn.Linear(8, 8)
        segment = layers[0] if len(layers) == 1 else nn.Sequential(*layers)
        inputs = [first(torch.randn(16, 8)), torch.ones(8)][: 1 + isinstance(segment, Scale)]
        y = segment(*inputs) if how is None else how(segment, *inputs)
        (last(y) ** 2).sum().backward()
    grads = [p.grad for p in (*first.parameters(), *segment.parameters())]
    counts = dict(segment.named_buffers())
    return grads, int(sum(n for name, n in counts.items() if name.endswith("num_batches_tracked")))


def outcome(case: str, how: How) -> Outcome:
    """Return what becomes of a case when its segment is checkpointed this way; a warning is no silence."""
    expected, count = _gradients(case, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            got, counted = _gradients(case, how)
        except RuntimeError:  # torch's CheckpointError is one
            return "error"
    if any(grad is None for grad in got):
        return "warned" if caught else "no gradient"
    pairs = zip(got, expected, strict=True)
    if not all(torch.allclose(a, b, atol=1e-6) for a, b in pairs if a is not None and b is not None):
        return "wrong"
    return "same" if counted == count else "counted twice"


def verdicts(hows: Mapping[str, How]) -> dict[str, dict[str, Outcome]]:
    """Return the outcome of every case under every checkpoint."""
    return {case: {name: outcome(case, how) for name, how in hows.items()} for case in CASES}
