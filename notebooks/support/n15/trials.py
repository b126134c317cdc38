"""What answers of notebook 15 are tried with: imitated ranks in threads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.text import plural
from support.kit.raised import in_case
from support.n15.tower import even_balance, tower
from support.ranks import in_threads


def _away(got: Tensor, wanted: Tensor) -> str:
    """Say how a tensor differs from another one, "" if it does not."""
    if torch.allclose(got, wanted, rtol=0, atol=1e-10):
        return ""
    times = float((got * wanted).sum() / (wanted * wanted).sum())
    if torch.allclose(got, times * wanted, rtol=0, atol=1e-10):
        return f"{times:g} times"
    return f"{float((got - wanted).norm() / wanted.norm()):.2f} of its length away from"


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- exercise 1: a step of a pipeline of send and receive, on 2 and 3 imitated ranks

#: What an exception of a step means, by words of its text.
_OF_STEP = {
    "attribute 'chunk'": "Only the first rank is given images, and only the last one targets.",
    "implicitly created": "A rank in front has no loss: its backward begins with the gradient that it receives.",
    "modified by an inplace": "Receive every micro-batch into a tensor of its own: the graph still needs the last one.",
    "no attribute 'detach'": "There is no x.grad: nobody told autograd that the gradient of what came is wanted.",
    "a second time": "Each micro-batch has a graph of its own, and goes back once.",
    "same dtype": "Receive into float64, the type of what is sent: torch.empty(shape, dtype=torch.float64).",
    "rank 0 waits in send to rank 1, rank 1 waits in send to rank 0": (
        "Both send, nobody receives: all forwards first, on the last rank too, then all backwards."
    ),
    "waits in recv": "A rank waits for what nobody sends.",
}

#: Ranks and micro-batches.
_JOBS = ((2, 4), (2, 1), (3, 4), (2, 3))


def fault_of_step(answer: Any) -> str:
    """Run a tiny tower on 2 and 3 imitated ranks; say what differs first from one process, and what was sent when."""
    for n, m in _JOBS:
        where = f"{n} ranks, {plural(m, 'micro-batch', 'micro-batches')}"
        found = _TinyJob(n, m).fault(answer, where)
        if found:
            return f"{where}: {found}"
    return ""


class _TinyJob:
    """A tower of four layers on n ranks, whose batch goes through in m micro-batches of two rows."""

    def __init__(self, n: int, m: int) -> None:
        self.n = n
        self.m = m
        self.balance = even_balance(4, n)
        self.images = _random(2 * m, 1, 8, 8, seed=1).abs()
        self.targets = torch.arange(2 * m) % 10
        whole = tower(2, 4)
        loss = F.cross_entropy(whole(self.images), self.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.loss = loss.item()
        self.gradients = [[p.grad for p in part.parameters()] for part in _cut(whole, self.balance)]

    def step(self, answer: Any, dist: Any) -> tuple[Any, list[Tensor | None]]:
        """Be one rank: return what the answer returns, and the gradients that it has added."""
        rank = dist.get_rank()
        part = _cut(tower(2, 4), self.balance)[rank]
        left_before = self.m == 1  # then gradients of another step are there already
        if left_before:
            for p in part.parameters():
                p.grad = torch.ones_like(p)
        before = rank - 1 if rank > 0 else None
        behind = rank + 1 if rank + 1 < self.n else None
        images = self.images if before is None else None
        targets = self.targets if behind is None else None
        loss = answer(part, images, targets, self.m, before, behind, (2, 4), dist)
        return loss, [None if p.grad is None else p.grad - float(left_before) for p in part.parameters()]

    def fault(self, answer: Any, where: str) -> str:
        """Say what is wrong with a step, "" if nothing."""
        with in_case(where, _OF_STEP):
            seen, world = in_threads(lambda dist: self.step(answer, dist), self.n)
        losses = [loss for loss, _ in seen]
        if losses[-1] is None:  # a missing return is told before what may be missing, too
            return self.fault_of_losses(losses)
        return (
            self.fault_of_gradients([gradients for _, gradients in seen])
            or self.fault_of_losses(losses)
            or self.fault_of_messages(world)
        )

    def fault_of_gradients(self, of_ranks: list[list[Tensor | None]]) -> str:
        for rank, gradients in enumerate(of_ranks):
            missing = sum(got is None for got in gradients)
            if missing:
                return f"{missing} parameters of rank {rank} have no gradient."
            for got, wanted in zip(gradients, self.gradients[rank], strict=True):
                assert got is not None
                away = "" if wanted is None else _away(got, wanted)
                if away:
                    return f"a gradient of rank {rank} is {away} that of one process."
        return ""

    def fault_of_losses(self, losses: list[Any]) -> str:
        *others, last = losses
        is_number = isinstance(last, (float, Tensor))
        if not is_number or abs(float(last) - self.loss) > 1e-10:
            return f"the last rank returned {last!r}; the batch's loss is {self.loss:.6f}."
        for other in others:
            if other is not None:
                return f"a rank that is not the last one returned {other!r}, not None."
        return ""

    def fault_of_messages(self, world: Any) -> str:
        for a in range(self.n - 1):
            b = a + 1
            there = world.posted.count((a, b))
            back = world.posted.count((b, a))
            if (there, back) != (self.m, self.m):
                return f"rank {a} sent {there} messages to rank {b}, which sent {back} back; not {self.m}."
        unwaited = _never_waited_for(world)
        if unwaited:
            return unwaited
        between_first_two = [pair for pair in world.posted if pair in ((0, 1), (1, 0))]
        ahead = between_first_two.index((1, 0))
        if ahead < min(2, self.m):
            return "right gradients, but rank 0 sends its second activation after the first gradient."
        return ""


def _never_waited_for(world: Any) -> str:
    for operations in world.unwaited.values():
        if operations:
            return f"{operations[0]} is never waited for."
    return ""


def _cut(model: nn.Sequential, balance: list[int]) -> list[nn.Module]:
    return [model[sum(balance[:j]) : sum(balance[: j + 1])] for j in range(len(balance))]


# ---- exercise 2: the mean of gradients over the replicas of a stage

COLUMN = "the ranks that hold this stage"


class _Job:
    """What `dist` is for a rank of a job with two stages: a collective of all ranks would not even fit in size."""

    def __init__(self, dist: Any) -> None:
        self._dist = dist

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dist, name)

    def get_world_size(self, group: Any = None) -> int:
        return int(self._dist.get_world_size()) * (1 if group == COLUMN else 2)

    def all_reduce(self, tensor: Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
        if group != COLUMN:
            raise ValueError("all_reduce without group=group is over all ranks, of other stages too")
        return self._dist.all_reduce(tensor, *(() if op is None else (op,)), async_op=async_op)


_OF_AVERAGE = {
    "'NoneType' object": "A parameter may have no gradient (a frozen layer): leave it out.",
    "expected Tensor as element": "A parameter may have no gradient (a frozen layer): leave it out.",
    "non-empty list": "`parameters` is an iterator, which can be read once: read it into a list.",
}


def fault_of_average(answer: Any) -> str:
    """Average on 1 to 3 replicas; one of the parameters has no gradient."""
    for replicas in (3, 2, 1):
        where = plural(replicas, "replica")
        found = _fault_of_replicas(answer, replicas, where)
        if found:
            return f"{where}: {found}"
    return ""


_SHAPES = ((3, 2), (4,), (2, 2), (1,))
_FROZEN = 1  # the parameter that has no gradient


def _gradient(rank: int, k: int) -> Tensor:
    return _random(*_SHAPES[k], seed=10 * rank + k)


def _fault_of_replicas(answer: Any, replicas: int, where: str) -> str:
    def replica(dist: Any) -> list[nn.Parameter]:
        own = [nn.Parameter(_random(*shape)) for shape in _SHAPES]
        for k, parameter in enumerate(own):
            parameter.grad = None if k == _FROZEN else _gradient(dist.get_rank(), k)
        answer(iter(own), replicas, COLUMN, _Job(dist))
        return own

    with in_case(where, _OF_AVERAGE):
        seen, world = in_threads(replica, replicas)
    unwaited = _never_waited_for(world)
    if unwaited:
        return unwaited
    calls = sum(what == "all_reduce" for _, what in world.events) // replicas
    for rank, own in enumerate(seen):
        for k, parameter in enumerate(own):
            found = _fault_of_gradient(parameter, k, rank, replicas, calls)
            if found:
                return found
    if calls > 1:
        return f"right means, but {calls} all-reduces on each rank: {calls} latencies, not one."
    return ""


def _fault_of_gradient(parameter: nn.Parameter, k: int, rank: int, replicas: int, calls: int) -> str:
    got = parameter.grad
    name = f"gradient {k} of replica {rank}"
    if not torch.equal(parameter.detach(), _random(*_SHAPES[k])):
        return f"parameter {k} itself has changed; the mean is of gradients."
    if k == _FROZEN:
        return "" if got is None else f"{name} was None, and now is {got.flatten().tolist()[:2]} …"
    mean = torch.stack([_gradient(other, k) for other in range(replicas)]).mean(dim=0)
    if got is None or got.shape != mean.shape:
        shape = None if got is None else tuple(got.shape)
        return f"{name} has the shape {shape}, not {tuple(mean.shape)}."
    away = _away(got, mean)
    if away and torch.equal(got, _gradient(rank, k)):
        return f"{name} is still this replica's own, after {plural(calls, 'all-reduce')}."
    return f"{name} is {away} the mean." if away else ""
