"""Case 9 of notebook 16, a healthy one: a pipeline that fills and empties, so that every rank idles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.text import plural
from support.kit.mistakes import edited
from support.n16.case_less_to_keep import ticks_of
from support.n16.casebook import ROUNDED, case, unfinished, with_evidence
from support.n16.counted import with_tasks_noted
from support.n16.rank import Stand
from support.n16.series import ends_of_trials

# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: D103


def job_9(dist, layers, rows, targets, micro_batches):
    rank = dist.get_rank()
    world = dist.get_world_size()
    stage = layers[rank]  # keeps the width
    clock = 0  # a forward is a tick, a backward is a tick, a message takes no time

    def send(x, peer):
        dist.send(torch.cat([x.flatten(), torch.tensor([clock])]), peer)

    def receive(shape, peer):
        nonlocal clock
        message = torch.empty(shape.numel() + 1, dtype=rows.dtype)
        dist.recv(message, peer)
        clock = max(clock, int(message[-1]))
        return message[:-1].view(shape)

    kept = []
    for part, goal in zip(rows.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        x = part.clone() if rank == 0 else receive(part.shape, rank - 1)
        y = stage(x.requires_grad_())
        clock += 1
        if rank < world - 1:
            send(y.detach(), rank + 1)
        else:
            y = F.mse_loss(y, goal) * len(part) / len(rows)
        kept.append((x, y))
    for x, y in reversed(kept):
        gradient = receive(y.shape, rank + 1) if rank < world - 1 else None
        y.backward(gradient)
        clock += 1
        if rank > 0:
            send(x.grad, rank - 1)
    end = torch.tensor(clock)
    dist.all_reduce(end, dist.ReduceOp.MAX)
    idle = (end - 2 * micro_batches).item() / end.item()
    print(f"idle for {idle:.1%} of {end} ticks")
    return {"gradient": stage.weight.grad, "idle": idle}


#: Seven ticks to fill and seven to empty, beside 64 at work.
FORECAST_9 = 7 / 39


def drawn_9(seed: int, depth: int, count: int, width: int = 3) -> dict[str, Any]:
    """Return so many layers that keep the width, and so many rows and targets, float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(width, width).double() for _ in range(depth)]
        rows = torch.randn(count, width, dtype=torch.float64)
        return {"layers": layers, "rows": rows, "targets": rows.flip(1)}


#: Ranks: seed, rows, micro-batches.
TRIALS = {4: [(1, 10, 4), (6, 10, 6)], 2: [(2, 8, 3), (3, 3, 5)], 3: [(4, 11, 4)], 1: [(5, 7, 2)]}


def fault_of_9(job: Callable[..., Any]) -> str:
    """Run it with each of the trials: the gradient of one process, and no rank idles more than it has to."""
    for world, settings in TRIALS.items():
        name = job.__code__.co_name
        trials = [
            {"name": name, **drawn_9(seed, world, count), "micro_batches": many}
            for seed, count, many in settings
        ]
        found = ends_of_trials(with_tasks_noted, world, trials, job)
        for trial, stands in zip(trials, found, strict=False):
            many = trial["micro_batches"]
            where = f"on {plural(world, 'rank')} with {len(trial['rows'])} rows in {many} micro-batches"
            due = gradients_of_one(trial["layers"], trial["rows"], trial["targets"])
            said = (
                unfinished(where, stands)
                or _fault_of_gradients(where, stands, due)
                or _fault_of_ticks(where, stands, many)
            )
            if said:
                return with_evidence(said, found)
    return ""


def _fault_of_gradients(where: str, stands: list[Stand], due: list[Tensor]) -> str:
    for rank, (got, _) in enumerate(stand.value for stand in stands):
        if not isinstance(got, dict) or not {"gradient", "idle"} <= got.keys():
            return f"{where} rank {rank} returned {got!r}; leave what it returns as it was."
        apart = (got["gradient"] - due[rank]).abs().max().item()
        if not apart < ROUNDED:
            return f"{where} the gradient of rank {rank} is {apart:.3g} from that of one process."
    return ""


def _fault_of_ticks(where: str, stands: list[Stand], micro_batches: int) -> str:
    """Compare what a rank says of its idle time with the tasks that it has done, and these with the best order."""
    least = (len(stands) - 1) / (micro_batches + len(stands) - 1)
    orders = [stand.value[1] for stand in stands]
    parts = {sum(kind == "F" for kind, _ in tasks) for tasks in orders} - {0, micro_batches}
    if parts:
        return f"{where} a rank makes {plural(max(parts), 'forward')}, not {micro_batches}."
    end = ticks_of(orders)
    idle = 1 - 2 * micro_batches / end if 0 < end < float("inf") else least
    for rank, (got, _) in enumerate(stand.value for stand in stands):
        if idle > least + 1e-6:
            return f"{where} rank {rank} idles for {idle:.1%} of the time; it used to be {least:.1%}."
        if not abs(got["idle"] - idle) < 1e-6:
            return f"{where} rank {rank} says that it idles for {got['idle']:.6%}; it does for {idle:.6%}."
    return ""


def gradients_of_one(layers: list[nn.Linear], rows: Tensor, targets: Tensor) -> list[Tensor]:
    """Return the gradient of each layer's weight in one process, with all rows at once."""
    loss = F.mse_loss(nn.Sequential(*layers)(rows), targets)
    return list(torch.autograd.grad(loss, [layer.weight for layer in layers]))


_BACK = """\
    for x, y in reversed(kept):
        gradient = receive(y.shape, rank + 1) if rank < world - 1 else None
        y.backward(gradient)
        clock += 1
        if rank > 0:
            send(x.grad, rank - 1)
"""
_KEEP = "        kept.append((x, y))\n"
_AT_ONCE = "".join(f"    {line}\n" for line in _BACK.replace("reversed(kept)", "[(x, y)]").splitlines())

check_job_9 = case(
    9,
    job_9,
    FORECAST_9,
    fault_of_9,
    "its gradient is that of one process, and no schedule of these tasks idles less. The job was healthy.",
    {
        "Parts are not equally long, so a mean of their means is not the mean.": edited(
            job_9, ("* len(part) / len(rows)", "/ micro_batches")
        ),
        "Each micro-batch alone goes there and back: now one rank works at a time.": edited(
            job_9, (_BACK, ""), (_KEEP, _KEEP + _AT_ONCE)
        ),
        "A rank that waits for a message idles.": edited(
            job_9, ("        clock = max(clock, int(message[-1]))\n", "")
        ),
        "Losses that are added count each part in full.": edited(job_9, (" * len(part) / len(rows)", "")),
    },
    {
        "That is idle time over working time.": 7 / 32,
        "More micro-batches than ranks make it less.": 7 / 15,
        "A rank that is first does not wait to begin, but it waits in the middle.": 7 / 71,
    },
)
"""Case 9: (job_9, forecast_9)."""
