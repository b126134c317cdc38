"""What notebook 03 measures: many small networks trained at once, what DDP sends, a function run on real ranks."""

from __future__ import annotations

import inspect
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lib.training.launch import torchrun
from support.digits import Digits, write_digits

# ---- Does the order matter? One small network for each seed, all of them trained in one tensor program.
#
#     x (seeds, rows, 64) → hidden (seeds, rows, 32) → normalised, or not → ReLU → logits (seeds, rows, 10)
#
# Row p of a step belongs to rank p % ranks. Batch normalisation is what torch.nn.BatchNorm1d is under DDP: each rank
# takes mean and variance of its own rows only, and rank 0's running averages are those that evaluation uses.

Data = tuple[Tensor, Tensor]
# those of torch.nn.BatchNorm1d
EPSILON = 1e-5
MOMENTUM = 0.1


def digits(split: str) -> Data:
    """Return the images of "train" or "test" as float32 (images, 64), and their labels."""
    data = Digits(write_digits(), split)
    images, labels = zip(*(data[index] for index in range(len(data))), strict=True)
    return torch.stack(images).flatten(1), torch.tensor(labels)


class Networks:
    """As many networks as seeds, with initial weights of their own; `batch_norm`: between the layers, or not."""

    def __init__(self, seeds: int, batch_norm: bool, pixels: int = 64, hidden: int = 32) -> None:
        def drawn(rows: int, columns: int, seed: int) -> Tensor:
            generator = torch.Generator().manual_seed(seed)
            return torch.randn(rows, columns, generator=generator).mul((2 / rows) ** 0.5)

        first = torch.stack([drawn(pixels, hidden, 2 * seed) for seed in range(seeds)])
        second = torch.stack([drawn(hidden, 10, 2 * seed + 1) for seed in range(seeds)])
        scale = torch.ones(seeds, 1, hidden)
        shift = torch.zeros(seeds, 1, hidden)
        self.weights = [first, scale, shift, second, torch.zeros(seeds, 1, 10)]
        for weight in self.weights:
            weight.requires_grad_()
        self.batch_norm = batch_norm
        self.mean = torch.zeros(seeds, 1, hidden)
        self.variance = torch.ones(seeds, 1, hidden)

    def logits(self, x: Tensor, ranks: int | None = None) -> Tensor:
        """Return (seeds, rows, 10). ranks: a training step, normalised by each rank's own rows; None: evaluation."""
        first, scale, shift, second, bias = self.weights
        hidden = x @ first
        if self.batch_norm and ranks is None:
            hidden = (hidden - self.mean) / (self.variance + EPSILON).sqrt()
        elif self.batch_norm and ranks is not None:
            seeds, rows, width = hidden.shape
            dealt = hidden.view(seeds, rows // ranks, ranks, width)
            variance, mean = torch.var_mean(dealt, 1, correction=0, keepdim=True)
            with torch.no_grad():
                unbiased = variance[:, :, 0] * len(dealt[0]) / (len(dealt[0]) - 1)
                self.mean.lerp_(mean[:, :, 0], MOMENTUM)
                self.variance.lerp_(unbiased, MOMENTUM)
            hidden = ((dealt - mean) * (variance + EPSILON).rsqrt()).view(seeds, rows, width)
        return torch.baddbmm(bias, torch.relu(hidden * scale + shift), second)


def train(
    orders: Tensor,
    train_set: Data,
    test_set: Data,
    *,
    ranks: int,
    batch_norm: bool,
    batch_size: int = 4,
    rate: float = 0.1,
) -> dict[str, list[float]]:
    """Train a network for each seed on the orders that its ranks were given; a step is one SGD step of all ranks.

    One thread: the tensors are small, and threads that share their core with others wait more than they work.

    orders: int64 (seeds, epochs, positions); position p is rank p % ranks. Returns a number for each seed: "test loss",
    "accuracy" (of the test set, 0..1), and losses of the last epoch's images, normalised by its own batches ("as
    trained"), by new ones ("in other groups") and by the averages ("as evaluated"). ValueError: a step would be short.
    """
    step = ranks * batch_size
    if orders.shape[2] % step:
        raise ValueError(f"{orders.shape[2]} positions are no multiple of {ranks} ranks × {batch_size} rows")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _trained(orders, train_set, test_set, ranks, batch_norm, step, rate)
    finally:
        torch.set_num_threads(threads)


def _trained(
    orders: Tensor, train_set: Data, test_set: Data, ranks: int, batch_norm: bool, step: int, rate: float
) -> dict[str, list[float]]:
    x, y = train_set
    test_x, test_y = test_set
    networks = Networks(len(orders), batch_norm)

    def in_groups(epoch: Tensor) -> Tensor:
        batches = ((x[rows], y[rows]) for rows in torch.split(epoch, step, dim=1))
        return torch.stack([_losses(networks.logits(a, ranks), b) for a, b in batches]).mean(0)

    for epoch in orders.unbind(1):
        for rows in torch.split(epoch, step, dim=1):
            loss = _losses(networks.logits(x[rows], ranks), y[rows]).sum()
            gradients = torch.autograd.grad(loss, networks.weights)
            with torch.no_grad():
                for weight, gradient in zip(networks.weights, gradients, strict=True):
                    weight.sub_(gradient, alpha=rate)
    with torch.no_grad():
        logits = networks.logits(test_x.expand(len(orders), -1, -1))
        target = test_y.expand(len(orders), -1)
        last = orders[:, -1]
        mixing = torch.Generator().manual_seed(0)
        found = {
            "test loss": _losses(logits, target),
            "accuracy": (logits.argmax(2) == target).double().mean(1),
            "as evaluated": _losses(networks.logits(x[last]), y[last]),
            "as trained": in_groups(last),
            "in other groups": in_groups(last[:, torch.randperm(last.shape[1], generator=mixing)]),
        }
    return {name: values.tolist() for name, values in found.items()}


def _losses(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy of each seed."""
    each = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    return each.view(target.shape).mean(1)


# ---- What a call sends to other ranks.


class _Messages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Note the collectives that pass through torch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator.namespace == "c10d":
            self.seen.append(operator._schema.name.removeprefix("c10d::").rstrip("_"))
        return operator(*args, **(kwargs or {}))


def what_is_sent(call: Callable[[], Any]) -> str:
    """Run `call()` and name the kinds of collectives that it started, "nothing" if there was none."""
    with _Messages() as found:
        call()
    return ", ".join(dict.fromkeys(found.seen)) or "nothing"


# ---- A function of the notebook on real ranks.

SCRIPT = """\
import os
import sys

import torch
import torch.distributed as dist

{functions}

dist.init_process_group("gloo")
{last}(*torch.load(sys.argv[1], weights_only=False))
dist.barrier()
os._exit(0)  # after a collective that failed, the end of Python would be a signal
"""


def on_ranks(*functions: Callable[..., Any], values: Sequence[Any] = (), ranks: int = 2) -> list[str]:
    """Call the last function with `values` in so many processes of a gloo group; return what they print, by rank.

    A new process cannot import what a cell defined, so it gets the text of the functions; they import what they need
    besides `torch` and `dist`, and flush what they print. Raises RankError if a rank fails.
    """
    texts = [textwrap.dedent(inspect.getsource(function)) for function in functions]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "ranks.py")
        stored = Path(folder, "values.pt")
        text = SCRIPT.format(functions="\n\n".join(texts), last=functions[-1].__name__)
        script.write_text(text, encoding="utf-8")
        torch.save(tuple(values), stored)
        run = torchrun(script, stored, ranks=ranks, quiet=True)
    said = [line for line in run.lines if line.startswith("[rank ")]
    return sorted(said, key=lambda line: line.partition("]")[0])  # the lines of one rank stay in their order
