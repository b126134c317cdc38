"""What a score of many ranks is tried with, exercise 5 of notebook 03: uneven shares, and averages that have parted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lib.text import plural
from support.kit.judged import Fault
from support.kit.raised import in_case
from support.kit.threads import StuckError
from support.kit.values import NO_RETURN
from support.ranks import World, in_threads

FORWARD = "forward of the wrapper"
"""What a World notes beside the collectives."""


class Wrapper(nn.Module):
    """Imitates the forward of DistributedDataParallel: rank 0's buffers come first, if the one before had gradients."""

    def __init__(self, module: nn.Module, dist: Any) -> None:
        super().__init__()
        self.module = module
        self._dist = dist
        self._broadcasts = True

    def forward(self, x: Tensor) -> Any:
        """Broadcast or not, decide for the next forward, compute."""
        self._dist.world.events.append((self._dist.get_rank(), FORWARD))
        if self._broadcasts:
            for buffer in self.module.buffers():
                self._dist.broadcast(buffer, 0)
        self._broadcasts = torch.is_grad_enabled()
        return self.module(x)


def _model(rank: int) -> nn.Module:
    """Return a network with the same weights on every rank, and running averages of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        torch.manual_seed(10 + rank)
        # far apart, and the variances farther: whoever leaves one of the two as it is gets another score
        model[1].running_mean.uniform_(-1.5, 1.5)  # type: ignore[operator]
        model[1].running_var.uniform_(0.05, 5.0).square_()  # type: ignore[operator]
    return model.train()


def _images(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, 6, generator=generator)
    with torch.no_grad():
        right = _model(0).eval()(x).argmax(1)
    wrong = torch.rand(size, generator=generator) < 0.4
    return x, torch.where(wrong, (right + 1) % 3, right)


#: Images, ranks, batch size. (2, 3, 1): two ranks have a batch, the third has none. The last: a count needs 17 bits.
SCORED = ((23, 2, 1), (37, 3, 5), (24, 2, 4), (9, 1, 2), (2, 3, 1), (70_001, 2, 4096))


def fault_of_score(answer: Any) -> str:
    """Evaluate on 1 to 3 imitated ranks whose shares are unequal, and compare with rank 0's model on all images."""
    for size, world, batch in SCORED:
        fault = _fault_of_score(answer, size, world, batch)
        if fault:
            return fault
    return ""


def _fault_of_score(answer: Any, size: int, world: int, batch: int) -> str:
    x, y = _images(size)
    models = [
        _model(number) for number in range(world)
    ]  # here: ranks are threads, and share torch's generator
    seen: list[World] = []

    def rank(dist: Any) -> Any:
        number = dist.get_rank()
        if number == 0:
            seen.append(dist.world)
        mine = range(number, size, world)
        loader = [(x[rows], y[rows]) for rows in (mine[k : k + batch] for k in range(0, len(mine), batch))]
        return answer(Wrapper(models[number], dist), loader, dist)

    batches = [len(range(r, size, world * batch)) for r in range(world)]
    where = f"on {plural(world, 'rank')} with {', '.join(map(str, batches))} batches"
    with in_case(where):
        try:
            scores, _ = in_threads(rank, world)
        except (StuckError, ValueError) as error:
            if not seen or not seen[0].events or _is_the_readers_own(error):
                raise
            return Fault(f"{where}: {error}.", known_by=f"{where}: {_calls(seen[0])}")
    if any(score is None for score in scores):
        return f"{where}: your function {NO_RETURN}."
    if any(isinstance(score, str) or not hasattr(score, "__float__") for score in scores):
        return f"{where}: {scores[0]!r} is no score."
    with torch.no_grad():
        hits = int((_model(0).eval()(x).argmax(1) == y).sum())
    got = [float(score) for score in scores]
    due = hits / size
    wrong = [number for number in range(world) if abs(got[number] - due) > 1e-6]
    if wrong:
        said = f"rank {wrong[0]} says {got[wrong[0]]:.4f}"
        fault = f"{where}: rank 0's model is right on {hits} of {size} images, {due:.4f}; {said}."
        # by which amount depends on the type that the counts have
        return Fault(fault, known_by="wrong for many images alone") if size > 10_000 else fault
    return ""


def _is_the_readers_own(error: BaseException) -> bool:
    """Say whether a ValueError comes from the reader's code, and not from collectives that do not match."""
    return isinstance(error, ValueError) and not str(error).startswith("collective ")


def _calls(world: World) -> list[list[str]]:
    """Return by rank what it has begun; whether it still waits may differ from run to run."""
    begun = [(rank, what) for rank, what in world.events if what != "waited"]
    return [[what for r, what in begun if r == rank] for rank in range(world.size)]
