"""The memory staircase of notebook 10: how many tensors are held for backward, predicted and counted.

A model of L layers, each of which keeps its input and its output (Linear + tanh), in segments; m
micro-batches go forward one after the other, then backward, the last one first. Without a checkpoint all
L + 1 tensors of a micro-batch stay. With one, a segment keeps its input, and computes its inside again when
backward comes to it.

    tensors     x0 ─ layer 1 ─ x1 ─ layer 2 ─ x2 ─ layer 3 ─ x3 ─ layer 4 ─ x4
    segments    └──────── 1 ─────────┘└──────── 2 ──────────┘       held after forward: x0 and x2
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from lib.pipeline.checkpoint import checkpoint, is_recomputing
from lib.runtime.microbatch import scatter
from lib.saved import SavedTensors

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
                if layer == part[-1]:
                    held.add((i, part[0] - 1))  # all that a segment keeps
                step("forward", i, layer)
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
                if i >= stop:
                    x = function(x)
                    continue
                x = checkpoint(function, x)  # type: ignore[assignment]
                # the segment's last layer counted before the checkpoint kept the input
                log[-1] = (*log[-1][:3], saved.count)
            outputs.append(x)
        loss = torch.cat(outputs).sum()
        del x, outputs
        loss.backward()  # type: ignore[no-untyped-call]
    return log
