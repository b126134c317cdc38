"""Case 1 of notebook 16: shares that are unequal by one row, so that some ranks have a batch more than others."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.text import plural
from support.kit.mistakes import edited
from support.n16.casebook import ROUNDED, case, unfinished, with_evidence
from support.n16.rank import Stand
from support.n16.warm import on_ranks

# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: D103


def job_1(dist, rows, targets, batch_size, epochs):
    rank = dist.get_rank()
    world = dist.get_world_size()
    torch.manual_seed(0)  # equal first weights on all ranks
    model = nn.Linear(rows.shape[1], 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    share = -(-len(rows) // world)  # rounded up
    mine = torch.arange(rank, share * world, world) % len(rows)
    seen = []
    for epoch in range(epochs):
        random = torch.Generator().manual_seed(1000 * epoch + rank)  # each rank shuffles its own rows
        order = mine[torch.randperm(len(mine), generator=random)]
        for batch in order.split(batch_size):
            loss = F.mse_loss(model(rows[batch]), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
            optimizer.step()
            seen.append((epoch, batch.tolist()))
        print(f"epoch {epoch}: last loss {loss.item():.3f}")
    return {"seen": seen, "model": model.state_dict()}


_SHARE = "    share = -(-len(rows) // world)  # rounded up\n"
_MINE = "    mine = torch.arange(rank, share * world, world) % len(rows)\n"


def sick_1():
    """Return the job as the notebook has it."""
    return edited(job_1, (_SHARE + _MINE, "    mine = torch.arange(rank, len(rows), world)\n"))


#: Of 1,600 = 64 * 25 numbers of rows in turn, 63 give the first ranks a row that begins a batch: 100,801 to 100,863.
FORECAST_1 = (63, 10)


def drawn_1(count: int, seed: int = 0) -> dict[str, Tensor]:
    """Return so many rows and their targets, float64."""
    drawn = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {"rows": drawn, "targets": drawn.sum(1, keepdim=True)}


def _drawn_trials(seed: int, count: int) -> list[tuple[int, int, int, int]]:
    chance = random.Random(seed)
    return [(chance.randint(2, 4), chance.randint(1, 40), chance.randint(1, 6), 2) for _ in range(count)]


#: Ranks, rows, batch size, epochs: a rank with a batch more, one with a row more, none, ranks that can't fill a batch,
#: fewer rows than ranks, steps that are all full, and some of any kind.
TRIALS = (
    *((2, 33, 4, 2), (3, 50, 8, 3), (4, 41, 10, 1), (2, 31, 4, 2), (3, 9, 4, 2), (2, 1, 4, 2), (3, 2, 1, 2)),
    (2, 16, 1, 5),
    *_drawn_trials(16, 3),
)


def fault_of_1(job: Callable[..., Any]) -> str:
    """Run it with each of the trials: how it ends, which rows came in which order, and what they make of the model."""
    for world, count, batch_size, epochs in TRIALS:
        where = f"on {world} ranks with {plural(count, 'row')}, batches of {batch_size} and {epochs} epochs"
        data = drawn_1(count)
        stands = on_ranks(job, world, {**data, "batch_size": batch_size, "epochs": epochs})
        said = (
            unfinished(where, stands)
            or _fault_of_what_is_returned(where, stands)
            or _fault_of_rows(where, stands, count, batch_size, epochs)
            or _fault_of_model(where, stands, data, epochs)
        )
        if said:
            return with_evidence(said, stands)
    return ""


def _fault_of_what_is_returned(where: str, stands: list[Stand]) -> str:
    first = stands[0].value
    for value in (stand.value for stand in stands):
        whole = isinstance(value, dict) and {"seen", "model"} <= value.keys()
        if not whole or not isinstance(value["model"], dict):
            return f'{where} the job returned {value!r}; leave its last line, {{"seen": …, "model": …}}, as it was.'
        for _, batch in value["seen"]:
            if not isinstance(batch, list):
                return f"{where} a batch in seen is a {type(batch).__name__}; it was a list of row numbers."
        for name, mine in value["model"].items():
            if not torch.allclose(mine, first["model"][name], rtol=0, atol=1e-12, equal_nan=True):
                return f"{where} the ranks end with different models: their {name} is not the same."
    return ""


def _fault_of_rows(where: str, stands: list[Stand], count: int, batch_size: int, epochs: int) -> str:
    spared = len(stands) * batch_size
    for epoch in range(epochs):
        came = Counter(row for stand in stands for row in _rows_of(stand, epoch))
        missing = count - len(came)
        twice = sum(came.values()) - len(came)
        if not came:
            return f"{where}, epoch {epoch}: nobody has trained on any row."
        if missing >= spared:
            return f"{where}, epoch {epoch}: {missing} rows are left out; less than a batch a rank would do."
        if twice >= spared:
            return (
                f"{where}, epoch {epoch}: {twice} times a row comes again; less than a batch a rank would do."
            )
    for rank, stand in enumerate(stands):
        orders = [_rows_of(stand, epoch) for epoch in range(epochs)]
        for epoch, order in enumerate(orders):
            before = orders.index(order)
            if before < epoch and len(order) >= 8:
                return f"{where} rank {rank} takes its rows in epoch {epoch} in the order of epoch {before}."
        longest = max((len(batch) for _, batch in stand.value["seen"]), default=0)
        if longest > batch_size:
            return f"{where} a batch of rank {rank} has {longest} rows, and batch_size is {batch_size}."
    return ""


def _rows_of(stand: Stand, epoch: int) -> list[int]:
    return [row for at, batch in stand.value["seen"] if at == epoch for row in batch]


def _fault_of_model(where: str, stands: list[Stand], data: dict[str, Tensor], epochs: int) -> str:
    """Train one process on the batches that the ranks have seen; there is more than one mean that it may take.

    Nobody has to begin an epoch when the others do: ranks that are joined behind the last epoch are right, too.
    """
    together = []
    for epoch in range(epochs):
        of_ranks = [[batch for at, batch in stand.value["seen"] if at == epoch] for stand in stands]
        together += list(zip_longest(*of_ranks, fillvalue=[]))
    on_and_on = zip_longest(*[[batch for _, batch in stand.value["seen"]] for stand in stands], fillvalue=[])
    found = stands[0].value["model"]
    apart = min(
        _distance(found, replayed(data, steps, shares))
        for steps in (together, list(on_and_on))
        for shares in _means(len(stands))
    )
    if apart < ROUNDED:
        return ""
    return (
        f"{where} all ranks end with one model, and it is {apart:.2g} from that of one process which takes a mean "
        "over ranks or rows in each step, on the batches that they say they have seen."
    )


def _distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return torch.stack([(one[name] - due).abs().max() for name, due in other.items()]).max().item()


def _means(world: int) -> list[Callable[[list[int]], list[float]]]:
    """Return what a row of each rank may count, given the rows that each has in this step."""
    return [
        lambda sizes: [1 / (world * max(1, size)) for size in sizes],  # the mean over ranks
        lambda sizes: [1 / (sum(map(bool, sizes)) * max(1, size)) for size in sizes],  # over those with rows
        lambda sizes: [1 / sum(sizes)] * world,  # over all rows
    ]


def replayed(
    data: dict[str, Tensor], steps: list[Any], shares: Callable[[list[int]], list[float]]
) -> dict[str, Tensor]:
    """Return the model of one process that makes these steps; a step is a list of rows for each rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(data["rows"].shape[1], 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in steps:
        sizes = [len(batch) for batch in step]
        if not any(sizes):
            continue
        optimizer.zero_grad()
        for batch, share in zip(step, shares(sizes), strict=True):
            errors = F.mse_loss(model(data["rows"][batch]), data["targets"][batch], reduction="sum")
            torch.autograd.backward(share * errors)
        optimizer.step()
    return model.state_dict()


_BATCHES = "for batch in order.split(batch_size):"
_FULL_ONLY = "for batch in order[: len(order) // batch_size * batch_size].split(batch_size):"
_REDUCED = "                dist.all_reduce(parameter.grad)\n                parameter.grad /= world\n"

check_job_1 = case(
    1,
    job_1,
    FORECAST_1,
    fault_of_1,
    "it ends for every number of rows, with one model on all ranks, that of their mean, and hardly a row left out.",
    {
        "Some ranks have a batch more than others, in every epoch.": sick_1(),
        "A barrier makes ranks wait for each other; the number of batches stays unequal.": edited(
            sick_1(), ('        print(f"epoch', '        dist.barrier()\n        print(f"epoch')
        ),
        "Whoever leaves out the short batch has still one more where the row more fills it.": edited(
            sick_1(), (_BATCHES, _FULL_ONLY)
        ),
        "Only as many batches as the smallest rank of all can fill: here that is none.": edited(
            job_1, (_SHARE, "    share = len(rows) // world\n"), (_BATCHES, _FULL_ONLY)
        ),
        "Each rank steps alone now: without the mean they train models of their own.": edited(
            sick_1(), (_REDUCED, "                pass\n")
        ),
        "Then every rank reads every row: that is no sharing.": edited(
            job_1, ("torch.arange(rank, share * world, world) % len(rows)", "torch.arange(len(rows))")
        ),
        "Shares that are rounded down are empty where there are fewer rows than ranks.": edited(
            job_1,
            (_SHARE, "    share = len(rows) // world\n"),
            (_MINE, "    mine = torch.arange(rank, share * world, world)\n"),
        ),
        "Whoever asks for the fewest batches of all ranks may hear: none.": edited(
            sick_1(),
            ("torch.arange(rank, len(rows), world)", "torch.arange(len(rows))[rank::world]"),
            (
                f"        {_BATCHES}",
                "        batches = order.split(batch_size) if len(order) else ()\n"
                "        fewest = torch.tensor(len(batches))\n"
                "        dist.all_reduce(fewest, op=dist.ReduceOp.MIN)\n"
                "        for batch in batches[:fewest]:",
            ),
        ),
        "A parameter whose gradient is not shared goes its own way on each rank.": edited(
            job_1, ("for parameter in model.parameters():", "for parameter in [model.weight]:")
        ),
        "One rank's model, given to all, has learned from that rank's rows alone.": edited(
            job_1,
            (_REDUCED, "                pass\n"),
            (
                '    return {"seen"',
                "    for parameter in model.parameters():\n"
                "        dist.broadcast(parameter.data, 0)\n"
                '    return {"seen"',
            ),
        ),
        "Each step is W times as long as that of the mean.": edited(
            job_1, ("parameter.grad /= world", "pass")
        ),
        "Two orders that alternate are not a new one in each epoch.": edited(
            job_1, ("1000 * epoch + rank", "1000 * (epoch % 2) + rank")
        ),
        "It was shuffled anew in each epoch.": edited(job_1, ("1000 * epoch + rank", "rank")),
    },
    {
        "So many, but how far have the others come? Count all epochs.": (63, 1),
        "With most of these a rank has a row more and no batch more. Such a job ends.": (1575, 10),
        "So many numbers of rows end well.": (1537, 10),
        "Batches that are short on all ranks stop nobody.": (1599, 10),
        "Where 64 divides the number of rows, nobody has a row more.": (64, 10),
        "The step in which they fail is not done either.": (63, 9),
        "First the numbers of rows, then the steps.": (10, 63),
    },
)
"""Case 1: (job_1, forecast_1)."""
