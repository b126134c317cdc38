"""How a Gather of notebook 06 is tried: on imitated ranks, each with a loss of its own over the points of all.

fault_of_gather  says what is wrong with an answer, "" if nothing
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib.text import plural
from support.imitated import Imitation, World, in_threads
from support.kit.judged import Fault
from support.kit.raised import in_case
from support.n06.drawn import ASK_DIST, Noting, close, drawn_values, told_apart

_OF_GATHER = {
    "incorrect number of gradients": "backward returns as much as forward takes: the gradient of own, None for dist.",
    **ASK_DIST,
    "of the list is": "What all_gather fills has the shape and the dtype of what it is given.",
    "invalid gradient at index 0": "What backward returns has the shape of own: the part of this rank's points.",
}
_ROWS = "So autograd may give it, as behind torch.einsum; flatten() puts it in rows."
_OF_COLUMNS = {
    "view size is not compatible": _ROWS,
    "a view with gaps": _ROWS,
    **_OF_GATHER,
}


def fault_of_gather(answer: Any) -> str:
    """Let every rank have a loss of its own over the points of all; compare with one process that has them all."""
    fault = _fault_of_a_shared_dist(answer)
    for world in (1, 2, 3, 4):
        fault = fault or _fault_of_a_gather(answer, world)
    return fault or _fault_of_a_gather(answer, 3, by_columns=True) or _fault_of_three_gathers(answer)


_SHARED = "What stands on the class or in a global is the same for all calls."


def _fault_of_a_shared_dist(answer: Any) -> str:
    """Gather twice on one rank, each time with a dist of its own; say if backward asks the other one."""
    asked: list[str] = []

    def live(dist: Any) -> None:
        dists = Noting(dist), Noting(Imitation(World(1), 0))
        own = [drawn_values(2, 3, seed=seed).requires_grad_() for seed in (0, 1)]
        gathered = [answer.apply(*given) for given in zip(own, dists, strict=True)]
        dists[1].asked.clear()
        gathered[0].sum().backward()
        asked.extend(dists[1].asked)

    with suppress(Exception, SystemExit):  # what else is wrong is found below, where there is one
        in_threads(live, 1)
    if not asked:
        return ""
    calls = f"backward of the first calls {asked[0]} of the second's"
    return f"two gathers, each with a dist of its own: {calls}. {_SHARED}"


def _fault_of_a_gather(answer: Any, world: int, by_columns: bool = False) -> str:
    """Gather on so many ranks; the shape differs from case to case.

    by_columns: points in float32, and what comes back lies in memory column by column.
    """
    dtype = torch.float32 if by_columns else torch.float64
    width = 3 + world // 3
    points = drawn_values(world, 2 + world // 2, width).to(dtype)
    turns = drawn_values(world, width, 2 * world, seed=1).to(dtype)
    columns = ", points in float32 and a gradient that lies column by column" if by_columns else ""
    where = f"on {plural(world, 'rank')}{columns}"
    with in_case(where, _OF_COLUMNS if by_columns else _OF_GATHER):
        seen, counts = in_threads(lambda dist: _gathered(answer, dist, points, turns, by_columns)(), world)
    if any(counts.unwaited.values()):
        handle = next(filter(None, counts.unwaited.values()))[0]
        return f"{where}: {handle} is never waited for."
    fault = _fault_of_gathered(seen, points, turns)
    return (
        Fault(f"{where}: {fault}", known_by=(where, fault, [one[1].tolist() for one in seen]))
        if fault
        else ""
    )


def _fault_of_three_gathers(answer: Any) -> str:
    """Gather twice over all ranks, then over a group of two, then go back through the three in that order."""
    members = (2, 0)
    cases = [
        (drawn_values(size, rows, 3, seed=seed), drawn_values(size, 3, 2 * size, seed=seed + 1))
        for size, rows, seed in ((3, 2, 0), (3, 2, 2), (2, 4, 0))
    ]

    def live(dist: Any) -> list[Any]:
        dists = [dist, dist, *([dist.among(members)] if dist.get_rank() in members else [])]
        backs = []
        for one, (points, turns) in zip(dists, cases, strict=False):
            backs.append(_gathered(answer, one, points, turns))
            dist.barrier()
        if len(dists) < len(cases):
            dist.barrier()
        return [back() for back in backs]

    where = "on 3 ranks, three gathers under way, the last among two of the ranks and with more rows"
    with in_case(where, {**_OF_GATHER, "waits in": f"One alone is right. {_SHARED}"}):
        seen, _ = in_threads(live, 3)
    of_group = [[one[0] for one in seen], [one[1] for one in seen], [seen[member][2] for member in members]]
    for got, (points, turns) in zip(of_group, cases, strict=True):
        fault = _fault_of_gathered(got, points, turns)
        if fault:
            return f"{where}: {fault} One alone is right. {_SHARED}"
    return ""


_Gathered: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Of a rank: what was gathered, the gradient of its own points, and how the given one was changed."""


def _gathered(
    answer: Any, dist: Any, points: Tensor, turns: Tensor, by_columns: bool = False
) -> Callable[[], _Gathered]:
    """Be one rank: gather; return what goes back and says what has come of it."""
    rank = dist.get_rank()
    own = points[rank].clone().requires_grad_()
    gathered = answer.apply(own, dist)

    def back() -> _Gathered:
        turn = turns[rank]
        given = (2 * (gathered @ turn) @ turn.T).detach()
        given = given.T.contiguous().T if by_columns else given
        before = given.clone()
        (gradient,) = torch.autograd.grad(gathered, own, given)
        return gathered.detach(), gradient, given - before

    return back


def _fault_of_gathered(seen: list[_Gathered], points: Tensor, turns: Tensor) -> str:
    everything = points.clone().requires_grad_()
    losses = [(everything.flatten(0, 1) @ turn).square().sum() for turn in turns]
    (due,) = torch.autograd.grad(torch.stack(losses).sum(), everything)
    for r, (gathered, _, _) in enumerate(seen):
        if gathered.shape != points.flatten(0, 1).shape:
            shapes = f"{list(gathered.shape)}, it should be {list(points.flatten(0, 1).shape)}"
            return f"what rank {r} gets has the shape {shapes}: all points, one below the other."
        if not torch.equal(gathered, points.flatten(0, 1)):
            own = "; now its own stand first" if close(gathered[: len(points[r])], points[r]) and r else ""
            return f"rank {r} must get the points of rank 0, then of rank 1, and so on{own}."
    for r, (_, gradient, changed) in enumerate(seen):
        if changed.any():
            return "backward has changed the gradient it was given, which belongs to autograd."
        apart = (gradient - due[r]).abs() / due[r].abs().clamp(min=1)
        if apart.max() > (1e-5 if gradient.dtype == torch.float32 else 1e-9):
            place = int(apart.argmax())
            got, right = told_apart(float(gradient.flatten()[place]), float(due[r].flatten()[place]))
            return f"value {place} of rank {r}'s gradient is {got}, right is {right}."
    return ""
