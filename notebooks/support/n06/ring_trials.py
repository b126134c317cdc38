"""How the halves of a ring, and what is built of them, are tried in notebook 06: on imitated ranks.

Each function says what is wrong with an answer, "" if nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from lib.text import plural
from support.kit.judged import Fault
from support.kit.raised import in_case
from support.n06.drawn import close, drawn_values
from support.ranks import World, in_threads

# ---- exercise 1: the two halves of a ring all-reduce

#: Ranks and values: also where chunks are unequal, and one is empty.
_RINGS = ((1, 4), (3, 6), (2, 4), (3, 7), (4, 8), (5, 3), (6, 20))


_OF_RING = {
    "does not support item assignment": "tensor_split gives a tuple, and nothing can be put into a tuple: change the "
    "chunk itself."
}


def fault_of_halves(pair: Any) -> str:
    """Run both on 1 to 6 ranks, also where chunks are unequal; say which chunk is wrong first, and after which half."""
    for world, size in _RINGS:
        with in_case(f"on {plural(world, 'rank')}", _OF_RING):
            seen, counts = in_threads(lambda dist: _halves_run(pair, dist, size), world)  # noqa: B023
        if counts.events:
            return f"your code calls dist.{counts.events[0][1]}."
        fault = _fault_of_chunks(seen, world, size) or _fault_of_sends(counts, world, size)
        if fault:
            return Fault(fault, known_by=(fault, seen))
    return ""


def _halves_run(pair: Any, dist: Any, size: int) -> list[Any]:
    """Run both halves on a rank; return the chunks after each, and how many messages it had sent by then."""
    rank = dist.get_rank()
    tensor = torch.arange(size) + 100 * rank
    seen: list[Any] = []
    for half in pair:
        half(tensor, dist)
        chunks = [chunk.tolist() for chunk in tensor.tensor_split(dist.get_world_size())]
        sent = sum(sender == rank for sender, _ in dist.world.posted)
        seen.append((chunks, sent))
    return seen


def _fault_of_chunks(seen: list[Any], world: int, size: int) -> str:
    """Compare the chunks of all ranks with the sums; after the first half only chunk r of rank r counts."""
    total = world * torch.arange(size) + 100 * sum(range(world))
    due = [chunk.tolist() for chunk in total.tensor_split(world)]
    for half, name in enumerate(("reduce_scatter", "all_gather")):
        for rank, chunk in product(range(world), range(world)):
            now, messages = seen[rank][half]
            if now[chunk] != due[chunk] and (half or chunk == rank):
                owner = next((q for q in range(world) if seen[q][half][0][chunk] == due[chunk]), None)
                who = "no rank has that" if owner is None else f"that is on rank {owner}"
                where = f"{plural(world, 'rank')}, a tensor of {size} values, after {name}: chunk {chunk}"
                before = seen[rank][0][1] if half else 0
                times = messages - before
                few = (
                    "" if times == world - 1 else f" It sends {plural(times, 'time')} there; W − 1 is right."
                )
                return f"{where} of rank {rank} is {now[chunk]}, it should be {due[chunk]}; {who}.{few}"
    return ""


def _fault_of_sends(counts: World, world: int, size: int) -> str:
    """Say whether all was waited for, went to a neighbour, and was no more than a ring sends."""
    if any(counts.unwaited.values()):
        return (
            f"{plural(world, 'rank')}: {next(filter(None, counts.unwaited.values()))[0]} is never waited for."
        )
    hops = {(to - rank) % world for rank, to in counts.posted}
    if hops - {1} and hops != {world - 1}:  # nor all round the other way
        peers = [
            " and ".join(str(to) for to in range(world) if (by, to) in counts.posted) for by in range(world)
        ]
        told = ", ".join(f"rank {rank} to {to}" for rank, to in enumerate(peers) if to)
        return f"right sums, but of {world} ranks {told}; in a ring rank 0 sends to rank 1 only, and so on."
    most = max(counts.sent.values(), default=0)
    ring = 2 * (world - 1) * -(-size // world)
    if most > ring:
        where = f"right sums, but with {world} ranks and {size} values a rank sends {most}"
        return f"{where}: the two halves of a ring send {ring}, chunk by chunk."
    return ""


# ---- exercise 3: a step of Adam whose moments are shared out

#: Ranks, values, optimizer: SGD first, which hides no wrong factor; unequal chunks, empty ones, one rank alone.
_SHARDS = ((2, 6, "SGD"), (3, 7, "SGD"), (3, 7, "Adam"), (5, 3, "Adam"), (1, 4, "Adam"))
_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
}
_STEPS = 3
_OF_SHARD = {
    "does not support item assignment": "tensor_split gives a tuple, and nothing can be put into a tuple: change the "
    "part itself.",
    "a leaf Variable that requires grad": "own is a parameter: read it with own.detach(), which autograd ignores.",
    "assign a gradient of size": "own holds one chunk, so its gradient must be that chunk's.",
}


def fault_of_shard(answer: Any) -> str:
    """Take some steps on 1 to 5 ranks; compare the weights with one process that has the mean gradient."""
    for world, size, kind in _SHARDS:
        where = f"on {plural(world, 'rank')}, {size} weights, {kind}"
        with in_case(where, _OF_SHARD):
            seen, counts = in_threads(lambda dist: _shard_run(answer, dist, size, kind), world)  # noqa: B023
        fault = _fault_of_weights(seen, world, size, kind) or _fault_of_messages(counts, world, size)
        if fault:
            return Fault(f"{where}: {fault}", known_by=(fault, seen, sorted(counts.sent.items())))
    return ""


def _gradient(step: int, rank: int, size: int) -> Tensor:
    return drawn_values(size, seed=100 * step + rank) + 3


@dataclass
class _Stepped:
    """What became of a rank: weights and own chunk after each step, and whether autograd follows the weights."""

    weights: list[list[float]]
    owns: list[list[float]]
    followed: bool = False


def _shard_run(answer: Any, dist: Any, size: int, kind: str) -> _Stepped:
    """Be one rank for some steps."""
    rank = dist.get_rank()
    weights = drawn_values(size)
    own = nn.Parameter(weights.tensor_split(dist.get_world_size())[rank].clone())
    optimizer = _OPTIMIZERS[kind]([own])
    seen = _Stepped([], [own.tolist()])
    for step in range(_STEPS):
        answer(weights, _gradient(step, rank, size), own, optimizer, dist)
        seen.weights.append(weights.detach().tolist())
        seen.owns.append(own.tolist())
    seen.followed = weights.requires_grad
    return seen


def _one_process(world: int, size: int, kind: str) -> list[Tensor]:
    """Return the weights after each step of one process with the mean of the ranks' gradients."""
    weights = nn.Parameter(drawn_values(size))
    optimizer = _OPTIMIZERS[kind]([weights])
    seen = []
    for step in range(_STEPS):
        gradients = [_gradient(step, rank, size) for rank in range(world)]
        weights.grad = torch.stack(gradients).mean(0)
        optimizer.step()
        seen.append(weights.detach().clone())
    return seen


def _fault_of_weights(seen: list[_Stepped], world: int, size: int, kind: str) -> str:
    """Compare the weights of all ranks and steps, chunk by chunk, with those of one process."""
    before = drawn_values(size)
    for step, due in enumerate(_one_process(world, size, kind)):
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
                got = f"is {now[place]:.4f}{still}"
                return (
                    f"after step {step}, on rank {rank}, weight {place} of chunk {chunk} {got}; one process has "
                    f"{right[place]:.4f}{unmoved}."
                )
        for rank, stepped in enumerate(seen):
            if not close(
                torch.tensor(stepped.owns[step + 1], dtype=due.dtype), due.tensor_split(world)[rank]
            ):
                return f"right weights, but after step {step} own of rank {rank} is not chunk {rank} of them."
        before = due
    if any(rank.followed for rank in seen):
        return "right weights, but autograd now follows them, and keeps every step in memory."
    return ""


def _fault_of_messages(counts: World, world: int, size: int) -> str:
    """Say whether a rank sends more than plain data parallel does."""
    finished = [what for _, what in counts.events if what != "waited"]
    if finished:
        return f"right weights, but your code calls dist.{finished[0]}: your own two halves are enough."
    ring = _STEPS * 2 * (world - 1) * -(-size // world)
    most = max(counts.sent.values(), default=0)
    if most > ring:
        return f"right weights, but in {_STEPS} steps a rank sends {most} values; two halves send {ring}."
    return ""


# ---- exercise 4: a gather that has a gradient

_OF_GATHER = {
    "incorrect number of gradients": "backward returns as much as forward takes: the gradient of own, None for dist.",
    "invalid gradient at index 0": "Each rank returns the part that belongs to its own points only.",
}


def fault_of_gather(answer: Any) -> str:
    """Let every rank have a loss of its own over the points of all; compare with one process that has them all."""
    for world in (1, 2, 3, 4):
        rows = 2 + world // 2
        width = 3 + world // 3
        points = drawn_values(world, rows, width)
        turns = drawn_values(world, width, 2 * world, seed=1)
        with in_case(f"on {plural(world, 'rank')}", _OF_GATHER):
            seen, counts = in_threads(lambda dist: _gathered(answer, dist, points, turns), world)  # noqa: B023
        if any(counts.unwaited.values()):
            handle = next(filter(None, counts.unwaited.values()))[0]
            return f"on {plural(world, 'rank')}: {handle} is never waited for."
        fault = _fault_of_gathered(seen, points, turns)
        if fault:
            return f"on {plural(world, 'rank')}: {fault}"
    return ""


def _gathered(answer: Any, dist: Any, points: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Be one rank: return what is gathered, the gradient of its own points, and how the given one was changed."""
    rank = dist.get_rank()
    own = points[rank].clone().requires_grad_()
    gathered = answer.apply(own, dist)
    turn = turns[rank]
    given = (2 * (gathered @ turn) @ turn.T).detach()
    before = given.clone()
    (gradient,) = torch.autograd.grad(gathered, own, given)
    return gathered.detach(), gradient, given - before


def _fault_of_gathered(seen: list[tuple[Tensor, Tensor, Tensor]], points: Tensor, turns: Tensor) -> str:
    everything = points.clone().requires_grad_()
    losses = [(everything.flatten(0, 1) @ turn).square().sum() for turn in turns]
    (due,) = torch.autograd.grad(torch.stack(losses).sum(), everything)
    for r, (gathered, _, _) in enumerate(seen):
        if gathered.shape != points.flatten(0, 1).shape:
            shapes = f"{list(gathered.shape)}, it should be {list(points.flatten(0, 1).shape)}"
            return f"what rank {r} gets has the shape {shapes}: all points, one below the other."
        if not torch.equal(gathered, points.flatten(0, 1)):
            own = ", its own stand first" if close(gathered[: len(points[r])], points[r]) and r else ""
            return f"rank {r} must get the points of rank 0, then of rank 1, and so on{own}."
    for r, (_, gradient, changed) in enumerate(seen):
        if changed.any():
            return "backward has changed the gradient it was given, which belongs to autograd."
        if not close(gradient, due[r]):
            return f"rank {r}'s gradient begins {_first_two(gradient)}, right is {_first_two(due[r])}."
    return ""


def _first_two(values: Tensor) -> list[float]:
    return [round(value, 3) for value in values.flatten().tolist()[:2]]
