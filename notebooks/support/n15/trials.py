"""What steps of a pipeline of processes are tried with: a tiny tower on imitated ranks, in threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.schedules import Schedule, eager_one_f_one_b, gpipe, one_f_one_b
from lib.text import plural
from support.kit.raised import in_case
from support.n15.tower import even_balance, tower
from support.ranks import in_threads


def away_from(got: Tensor, wanted: Tensor) -> str:
    """Say how a tensor differs from another one, "" if it does not."""
    if torch.allclose(got, wanted, rtol=0, atol=1e-10):
        return ""
    times = float((got * wanted).sum() / (wanted * wanted).sum())
    if torch.allclose(got, times * wanted, rtol=0, atol=1e-10):
        return f"{times:g} times"
    return f"{float((got - wanted).norm() / wanted.norm()):.2f} of its length away from"


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    """Return random numbers of this shape, always the same for a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


#: What an exception of a step means, by words of its text.
_MEANINGS = {
    "attribute 'chunk'": "Only the first rank is given images, and only the last one targets.",
    "implicitly created": "A rank in front has no loss: its backward begins with the gradient that it receives.",
    "modified by an inplace": "Receive every micro-batch into a tensor of its own: the graph still needs the last one.",
    "no attribute 'detach'": "There is no x.grad: nobody told autograd that the gradient of what came is wanted.",
    "a second time": "Each micro-batch has a graph of its own, and goes back once.",
    "same dtype": "Receive into float64, the type of what is sent: torch.empty(shape, dtype=torch.float64).",
    "rank 0 waits in send to rank 1, rank 1 waits in send to rank 0": "Both send, and nobody receives.",
    "was written to before": "Until a send is done its message is read from the tensor: give each one of its own.",
    "waits in recv": "A rank waits for what nobody sends.",
}

#: Ranks and micro-batches.
_JOBS = ((2, 4), (2, 1), (3, 4), (2, 3))


def fault_of_step(answer: Any) -> str:
    """Run a tiny tower on 2 and 3 imitated ranks; say what differs first from one process, and what was sent when."""
    for n, m in _JOBS:
        where = f"{n} ranks, {plural(m, 'micro-batch', 'micro-batches')}"
        job = _TinyJob(n, m)

        def step(rank: int, *given: Any) -> Any:
            return answer(*given)

        found = job.fault(step, where) or job.fault_of_pace()
        if found:
            return f"{where}: {found}"
    return ""


#: Orders, their ranks and micro-batches.
_ORDERS: tuple[tuple[str, Callable[[int, int], Schedule], int, int], ...] = (
    ("1F1B", one_f_one_b, 2, 4),
    ("1F1B", one_f_one_b, 3, 5),
    ("1F1B", one_f_one_b, 2, 1),
    ("GPipe", gpipe, 3, 2),
    ("eager 1F1B", eager_one_f_one_b, 3, 4),
)


def pairs_of(schedule: Schedule, rank: int) -> list[tuple[str, int]]:
    """Return what a rank does in turn, as ("F", 0): the operation and its micro-batch."""
    return [(action.op, action.micro_batch) for action in schedule.actions(rank)]


def fault_of_follow(answer: Any) -> str:
    """Run several orders on 2 and 3 imitated ranks; say what differs first from one process."""
    for name, make, n, m in _ORDERS:
        where = f"{name} on {n} ranks, {plural(m, 'micro-batch', 'micro-batches')}"
        schedule = make(m, n)
        job = _TinyJob(n, m)

        def step(rank: int, *given: Any, table: Schedule = schedule) -> Any:
            return answer(pairs_of(table, rank), *given)

        found = job.fault(step, where)
        if found:
            return f"{where}: {found}"
    return ""


class _TinyJob:
    """A tower of four layers on n ranks, whose batch goes through in m micro-batches of two rows."""

    def __init__(self, n: int, m: int) -> None:
        self.n = n
        self.m = m
        self.balance = even_balance(4, n)
        self.images = random_tensor(2 * m, 1, 8, 8, seed=1).abs()
        self.targets = torch.arange(2 * m) % 10
        whole = tower(2, 4)
        loss = F.cross_entropy(whole(self.images), self.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.loss = loss.item()
        self.posted: list[tuple[int, int]] = []
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
        loss = answer(rank, part, images, targets, self.m, before, behind, (2, 4), dist)
        return loss, [None if p.grad is None else p.grad - float(left_before) for p in part.parameters()]

    def fault(self, answer: Any, where: str) -> str:
        """Say what is wrong with a step, "" if nothing."""
        with in_case(where, _MEANINGS):
            seen, world = in_threads(lambda dist: self.step(answer, dist), self.n)
        self.posted = world.posted
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
                away = "" if wanted is None else away_from(got, wanted)
                if away:
                    return f"a gradient of rank {rank} is {away} that of one process."
        return ""

    def fault_of_losses(self, losses: list[Any]) -> str:
        *others, last = losses
        number = last.item() if isinstance(last, Tensor) and last.numel() == 1 else last
        if not isinstance(number, float) or abs(number - self.loss) > 1e-10:
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
        unwaited = never_waited_for(world)
        if unwaited:
            return unwaited
        return ""

    def fault_of_pace(self) -> str:
        """Say whether rank 0 waits for a gradient before it has sent the second message."""
        between_first_two = [pair for pair in self.posted if pair in ((0, 1), (1, 0))]
        ahead = between_first_two.index((1, 0))
        if ahead < min(2, self.m):
            return (
                "right gradients, but rank 0 sends its second message after the first gradient has come back."
            )
        return ""


def never_waited_for(world: Any) -> str:
    """Say which message or collective was begun and never waited for, "" if none."""
    for operations in world.unwaited.values():
        if operations:
            return f"{operations[0]} is never waited for."
    return ""


def _cut(model: nn.Sequential, balance: list[int]) -> list[nn.Module]:
    return [model[sum(balance[:j]) : sum(balance[: j + 1])] for j in range(len(balance))]
