"""A transformer block of notebook 10, and what is alive while blocks are trained, operation by operation.

Bytes are told in units: u is what a tensor like the block's input takes, b · s · h numbers.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.saved import LiveTensors
from support.built import MyCheckpoint
from support.n10.solved import hook_checkpoint
from support.n10.staircase import StepKind

BATCH = 2  # b, h and a of the notebook's figure
WIDTH = 64
HEADS = 2
POSITIONS = 256  # s: attention's matrix takes a s / h = 8 u


def plain(function, *inputs):  # type: ignore[no-untyped-def]  # word for word as the notebook has it; so is TransformerBlock
    """Call a function, without a checkpoint."""
    return function(*inputs)


class TransformerBlock(nn.Module):
    """A transformer block; `call` calls its attention, so that a checkpoint can stand there."""

    def __init__(self, h, heads):  # type: ignore[no-untyped-def]
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(h)
        self.norm2 = nn.LayerNorm(h)
        self.qkv = nn.Linear(h, 3 * h)
        self.out = nn.Linear(h, h)
        self.up = nn.Linear(h, 4 * h)
        self.down = nn.Linear(4 * h, h)

    def attention(self, q, k, v):  # type: ignore[no-untyped-def]  # noqa: D102  (so that its cell stays short)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return scores.softmax(-1) @ v

    def forward(self, x, call=plain):  # type: ignore[no-untyped-def]
        """Return x with what attention and the two large layers add to it."""
        b, s, h = x.shape
        qkv = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.view(b, s, self.heads, -1).transpose(1, 2) for part in qkv)
        mixed = call(self.attention, q, k, v).transpose(1, 2).reshape(b, s, h)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LiveHistory(LiveTensors):
    """Note each operation, the bytes alive after it, and whether it ran where graphs are built."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[int] = []
        self.builds_graph: list[bool] = []
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and note what is alive behind it."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.history.append(self.now)
        self.builds_graph.append(torch.is_grad_enabled())
        self.operations.append(str(getattr(func, "overloadpacket", func)).removeprefix("aten."))
        return result


class Course(NamedTuple):
    """What is alive after each operation of a step, in units, and what kind of operation it is.

    held: alive when forward has returned, the output among it; top: the operation behind which most is alive.
    """

    alive: tuple[float, ...]
    kinds: tuple[StepKind, ...]
    held: float
    top: str

    @property
    def peak(self) -> float:
        """The most that was alive."""
        return max(self.alive)


WAYS: dict[str, Callable[[TransformerBlock, Tensor], Tensor]] = {
    "keep everything": lambda block, x: block(x),
    "recompute attention": lambda block, x: block(x, hook_checkpoint),
    "attention, MyCheckpoint": lambda block, x: block(x, MyCheckpoint.apply),
    "recompute the block": lambda block, x: hook_checkpoint(block, x),
    "fused attention": lambda block, x: block(x, lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v)),
}


@lru_cache(maxsize=256)
def course_of(way: str, count: int = 1, positions: int = POSITIONS) -> Course:
    """Train one step of so many blocks in one of the WAYS; gradients are there before and not counted."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        blocks = [TransformerBlock(WIDTH, HEADS) for _ in range(count)]
    x = torch.randn(BATCH, positions, WIDTH, generator=generator, requires_grad=True)
    for tensor in (x, *(weight for block in blocks for weight in block.parameters())):
        tensor.grad = torch.zeros_like(tensor)
    with LiveHistory() as live:
        y = x
        for block in blocks:
            y = WAYS[way](block, y)
        held = live.now / x.nbytes
        loss = y.sum()
        one = torch.ones_like(loss)
        operations = len(live.history)
        del y
        loss.backward(one)
    kinds: list[StepKind] = []
    for number, builds_graph in enumerate(live.builds_graph):
        if number < operations:
            kinds.append("forward")
        elif live.operations[number] == "detach":
            kinds.append(kinds[-1])  # a hook detaches what is saved, with gradients off
        else:  # gradients are off in backward, but where a function runs again
            kinds.append("recompute" if builds_graph else "backward")
    top = live.operations[live.history.index(max(live.history))]
    return Course(tuple(bytes_alive / x.nbytes for bytes_alive in live.history), tuple(kinds), held, top)
