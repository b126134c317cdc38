"""How the halves of a ring, and what is built of them, are tried in notebook 06: on imitated ranks.

Each function says what is wrong with an answer, "" if nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from lib.text import plural
from support.imitated import World, in_threads
from support.kit.judged import Fault
from support.kit.raised import in_case
from support.n06.drawn import ASK_DIST, close, drawn_values, told_apart

# ---- exercise 1: the two halves of a ring all-reduce


@dataclass(frozen=True)
class _Ring:
    """A case: so many ranks, values of a dtype; members: the ranks of a group with numbers of its own, if not all.

    short: numbers that are easily read in place of great ones.
    """

    world: int
    size: int
    dtype: torch.dtype = torch.int64
    members: tuple[int, ...] = ()
    short: bool = False

    @property
    def where(self) -> str:
        """Name the case."""
        among = f" (a group of its own, of ranks {self.members} of the job)" if self.members else ""
        return f"{plural(self.world, 'rank')}{among}, a tensor of {self.size} {str(self.dtype)[6:]} values"

    def values(self, rank: int) -> Tensor:
        """Return what a rank begins with: whole numbers, whose sums are exact in this dtype and in no smaller one."""
        if self.short:
            return torch.arange(self.size) + 100 * rank
        drawn = torch.Generator().manual_seed(100 * self.size + rank)
        most = _MOST[self.dtype]
        return torch.randint(-most, most, (self.size,), generator=drawn).to(self.dtype)


#: Sums of so great numbers are still exact.
_MOST = {
    torch.int64: 2**60,
    torch.float64: 2**48,
    torch.float32: 2**20,
    torch.int32: 2**27,
    torch.bfloat16: 40,
}


#: Also where chunks are unequal, and one is empty; in more than one dtype; behind them some that are drawn.
_RINGS = (
    _Ring(1, 4, short=True),
    _Ring(3, 6, short=True),
    _Ring(2, 4, torch.float64),
    _Ring(3, 7, short=True),
    _Ring(4, 8, torch.float32),
    _Ring(5, 3, torch.float64),
    _Ring(6, 20, torch.int32),
    _Ring(2, 5, torch.bfloat16),
    _Ring(4, 5, torch.int64),
    _Ring(3, 7, torch.float64, members=(2, 0, 1)),
    *(
        _Ring(world, size, dtype)
        for world, size, dtype in zip(
            torch.randint(2, 7, (6,), generator=torch.Generator().manual_seed(0)).tolist(),
            torch.randint(0, 40, (6,), generator=torch.Generator().manual_seed(1)).tolist(),
            (torch.float64, torch.int32, torch.float32) * 2,
            strict=True,
        )
    ),
)

_OF_RING = {
    "does not support item assignment": "tensor_split gives a tuple, and nothing can be put into a tuple: change the "
    "chunk itself.",
    "receives into": "What arrives needs a place of its dtype, whatever that is.",
    **ASK_DIST,
}


def fault_of_halves(pair: Any) -> str:
    """Run both one after the other, then all_gather alone; say which chunk is wrong first, and after which half."""
    for case in _RINGS:
        fault = _fault_of_both(pair, case) or _fault_of_the_second(pair[1], case)
        if fault:
            return fault
    return ""


def _in_ranks(case: _Ring, live: Callable[[Any], Any]) -> tuple[list[Any], World]:
    """Run `live(dist)` on the ranks of a case; return what came of it by rank of the group."""
    among = case.members or tuple(range(case.world))
    with in_case(case.where, _OF_RING):
        seen, counts = in_threads(lambda dist: live(dist.among(among) if case.members else dist), case.world)
    return [seen[member] for member in among], counts


def _fault_of_both(pair: Any, case: _Ring) -> str:
    seen, counts = _in_ranks(case, lambda dist: _halves_run(pair, dist, case))
    if finished := _collectives(counts):
        return f"your code calls dist.{finished[0]}."
    fault = _fault_of_chunks(seen, case)
    fault = fault or ("" if case.members else _fault_of_sends(counts, case.world, case.size))
    return Fault(fault, known_by=(fault, seen)) if fault else ""


def _halves_run(pair: Any, dist: Any, case: _Ring) -> list[Any]:
    """Run both halves on a rank; return the chunks after each, and how many messages it had sent by then."""
    tensor = case.values(dist.get_rank())
    seen: list[Any] = []
    for half in pair:
        half(tensor, dist)
        chunks = [chunk.tolist() for chunk in tensor.tensor_split(dist.get_world_size())]
        sent = sum(sender == dist.number for sender, _ in dist.world.posted)
        seen.append((chunks, sent))
    return seen


def _fault_of_the_second(all_gather: Any, case: _Ring) -> str:
    """Run all_gather alone: chunk r of rank r is given, and what stands in the others has nothing to do with it."""
    due = [chunk.tolist() for chunk in case.values(0).tensor_split(case.world)]

    def live(dist: Any) -> list[Any]:
        tensor = case.values(0)
        for number, chunk in enumerate(tensor.tensor_split(dist.get_world_size())):
            if number != dist.get_rank():
                chunk.fill_(torch.nan if case.dtype.is_floating_point else 10_000 + dist.get_rank())
        all_gather(tensor, dist)
        return [chunk.tolist() for chunk in tensor.tensor_split(dist.get_world_size())]

    seen, _ = _in_ranks(case, live)
    for rank, chunk in product(range(case.world), range(case.world)):
        now = seen[rank][chunk]
        if now != due[chunk]:
            fault = (
                f"right sums, but all_gather alone, {case.where}, chunk r given on rank r and anything in the others: "
                f"chunk {chunk} of rank {rank} is {now}, rank {chunk}'s is {due[chunk]}."
            )
            return Fault(fault, known_by=(fault, seen))
    return ""


def _fault_of_chunks(seen: list[Any], case: _Ring) -> str:
    """Compare the chunks of all ranks with the sums; after the first half only chunk r of rank r counts."""
    world = case.world
    total = torch.stack([case.values(rank) for rank in range(world)]).sum(0, dtype=case.dtype)
    due = [chunk.tolist() for chunk in total.tensor_split(world)]
    for half, name in enumerate(("reduce_scatter", "all_gather")):
        for rank, chunk in product(range(world), range(world)):
            now, messages = seen[rank][half]
            if now[chunk] != due[chunk] and (half or chunk == rank):
                owner = next((q for q in range(world) if seen[q][half][0][chunk] == due[chunk]), None)
                who = "no rank has that" if owner is None else f"that is on rank {owner}"
                where = f"{case.where}, after {name}: chunk {chunk}"
                before = seen[rank][0][1] if half else 0
                times = messages - before
                sends = f" Rank {rank} sends {plural(times, 'time')} in {name}; W − 1 is right."
                few = "" if times == world - 1 else sends
                return f"{where} of rank {rank} is {now[chunk]}, it should be {due[chunk]}; {who}.{few}"
    return ""


def _fault_of_sends(counts: World, world: int, size: int) -> str:
    """Say whether all was waited for, went to a neighbour, and was no more than a ring sends."""
    if fault := _fault_of_handles(counts):
        return f"{plural(world, 'rank')}: {fault}"
    hops = {(to - rank) % world for rank, to in counts.posted}
    if hops - {1} and hops != {world - 1}:  # nor all round the other way
        peers = [
            " and ".join(str(to) for to in range(world) if (by, to) in counts.posted) for by in range(world)
        ]
        told = ", ".join(f"from rank {rank} to {to}" for rank, to in enumerate(peers) if to)
        return (
            f"right sums, but with {world} ranks messages go {told}; in a ring rank 0 sends to rank 1 only."
        )
    most = max(counts.sent.values(), default=0)
    ring = 2 * (world - 1) * -(-size // world)
    if most > ring:
        where = f"right sums, but with {world} ranks and {size} values a rank sends {most}"
        return f"{where}: the two halves of a ring send at most {ring}, chunk by chunk."
    return ""


def _collectives(counts: World) -> list[str]:
    """Return the names of the collectives that were called."""
    return [what for _, what in counts.events if not what.startswith("waited")]


def _fault_of_handles(counts: World) -> str:
    """Say which handle was never waited for, or that one was twice: gloo's second wait() never returns."""
    begun = next(filter(None, counts.unwaited.values()), None)
    if begun:
        return f"{begun[0]} is never waited for."
    if any(what == "waited again" for _, what in counts.events):
        return "your code waits twice for one handle; the second time a real rank waits for ever."
    return ""


# ---- exercise 3: a step of Adam whose moments are shared out


@dataclass(frozen=True)
class _Shard:
    """A case: so many ranks and weights, an optimizer; members: the ranks of a group with numbers of its own."""

    world: int
    size: int
    kind: str
    dtype: torch.dtype = torch.float64
    members: tuple[int, ...] = ()

    @property
    def where(self) -> str:
        """Name the case."""
        among = f", a group of its own, of ranks {self.members} of the job" if self.members else ""
        return (
            f"on {plural(self.world, 'rank')}, {self.size} {str(self.dtype)[6:]} weights, {self.kind}{among}"
        )

    def weights(self) -> Tensor:
        """Return the weights before the first step."""
        return drawn_values(self.size).to(self.dtype)

    def gradient(self, step: int, rank: int) -> Tensor:
        """Return the gradient of a rank's own rows."""
        return (drawn_values(self.size, seed=100 * step + rank) + 3).to(self.dtype)


#: SGD first, which hides no wrong factor; unequal chunks, empty ones, one rank alone.
_SHARDS = (
    _Shard(2, 6, "SGD"),
    _Shard(3, 7, "SGD"),
    _Shard(3, 7, "Adam"),
    _Shard(5, 3, "Adam"),
    _Shard(1, 4, "Adam"),
    _Shard(4, 9, "Adam", torch.float32),
    _Shard(3, 8, "SGD", members=(2, 0, 1)),
)
_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
}
_STEPS = 3
_OF_SHARD = {
    "does not support item assignment": "tensor_split gives a tuple, and nothing can be put into a tuple: change the "
    "part itself.",
    **ASK_DIST,
    "a leaf Variable that requires grad": "own is a parameter: write into own.detach(), or within torch.no_grad().",
    "assign a gradient of size": "own holds one chunk, so its gradient must be that chunk's.",
}


def fault_of_shard(answer: Any) -> str:
    """Take some steps on 1 to 5 ranks; compare the weights with one process that has the mean gradient."""
    for case in _SHARDS:
        among = case.members or tuple(range(case.world))
        with in_case(case.where, _OF_SHARD):
            live = partial(_shard_run, answer, case)
            seen, counts = in_threads(live, case.world)
        fault = _fault_of_weights([seen[member] for member in among], case)
        fault = fault or _fault_of_messages(counts, case.world, case.size)
        if fault:
            return Fault(f"{case.where}: {fault}", known_by=(fault, seen, sorted(counts.sent.items())))
    return ""


@dataclass
class _Stepped:
    """What became of a rank: weights and own chunk after each step, and whether autograd follows the weights."""

    weights: list[list[float]]
    owns: list[list[float]]
    followed: bool = False


def _shard_run(answer: Any, case: _Shard, job: Any) -> _Stepped:
    """Be one rank for some steps."""
    dist = job.among(case.members) if case.members else job
    rank = dist.get_rank()
    weights = case.weights()
    own = nn.Parameter(weights.tensor_split(dist.get_world_size())[rank].clone())
    optimizer = _OPTIMIZERS[case.kind]([own])
    seen = _Stepped([], [own.tolist()])
    for step in range(_STEPS):
        answer(weights, case.gradient(step, rank), own, optimizer, dist)
        seen.weights.append(weights.detach().tolist())
        seen.owns.append(own.tolist())
    seen.followed = weights.requires_grad
    return seen


def _one_process(case: _Shard) -> list[Tensor]:
    """Return the weights after each step of one process with the mean of the ranks' gradients."""
    weights = nn.Parameter(case.weights())
    optimizer = _OPTIMIZERS[case.kind]([weights])
    seen = []
    for step in range(_STEPS):
        gradients = [case.gradient(step, rank) for rank in range(case.world)]
        weights.grad = torch.stack(gradients).mean(0)
        optimizer.step()
        seen.append(weights.detach().clone())
    return seen


def _fault_of_weights(seen: list[_Stepped], case: _Shard) -> str:
    """Compare the weights of all ranks and steps, chunk by chunk, with those of one process."""
    world = case.world
    before = case.weights()
    for step, due in enumerate(_one_process(case)):
        for rank, chunk in product(range(world), range(world)):
            now = torch.tensor(seen[rank].weights[step], dtype=due.dtype).tensor_split(world)[chunk]
            right = due.tensor_split(world)[chunk]
            if not close(now, right):
                place = int((now - right).abs().argmax())
                still = ", as before the step" if close(now, before.tensor_split(world)[chunk]) else ""
                mine = seen[chunk].owns
                unmoved = (
                    f"; own of rank {chunk} has not moved either" if mine[step] == mine[step + 1] else ""
                )
                got, other = told_apart(float(now[place]), float(right[place]))
                return (
                    f"after step {step}, on rank {rank}, weight {place} of chunk {chunk} is {got}{still}; one "
                    f"process has {other}{unmoved}."
                )
        for rank, stepped in enumerate(seen):
            own = torch.tensor(stepped.owns[step + 1], dtype=due.dtype)
            if not close(own, due.tensor_split(world)[rank]):
                return f"right weights, but after step {step} own of rank {rank} is not chunk {rank} of them."
        before = due
    if any(rank.followed for rank in seen):
        return "right weights, but autograd now follows them, and keeps every step in memory."
    return ""


def _fault_of_messages(counts: World, world: int, size: int) -> str:
    """Say whether a rank sends more than plain data parallel does, or does not wait for it."""
    if finished := _collectives(counts):
        return f"right weights, but your code calls dist.{finished[0]}: your own two halves are enough."
    if fault := _fault_of_handles(counts):
        return f"right weights, but {fault}"
    ring = _STEPS * 2 * (world - 1) * -(-size // world)
    most = max(counts.sent.values(), default=0)
    if most > ring:
        return f"right weights, but in {_STEPS} steps a rank sends {most} values; two halves send at most {ring}."
    return ""
