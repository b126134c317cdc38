"""Case 1 of notebook 16: shares that are unequal by one row, so that some ranks have a batch more than others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.kit.mistakes import edited
from support.n16.casebook import case, unfinished
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
    share = len(rows) // world
    mine = torch.arange(rank, share * world, world)
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
    return {"seen": seen, "weight": model.weight.detach()}


_SHARE = (
    "    share = len(rows) // world\n    mine = torch.arange(rank, share * world, world)\n",
    "    mine = torch.arange(rank, len(rows), world)\n",
)


def sick_1():
    """Return the job as the notebook has it."""
    return edited(job_1, _SHARE)


#: 100,833 rows on 64 ranks are 1,576 for the first 33 and 1,575 for the others: 64 batches of 25, or 63.
FORECAST_1 = (33, 10)


def drawn_1(count: int, seed: int = 0) -> dict[str, Tensor]:
    """Return so many rows and their targets, float64."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 3, generator=random, dtype=torch.float64)
    return {"rows": rows, "targets": rows.sum(1, keepdim=True)}


#: Ranks, rows, batch size, epochs: a rank with a batch more, one with a row more, none, ranks that have no row more.
TRIALS = ((2, 33, 4, 2), (3, 50, 8, 3), (4, 41, 10, 1), (2, 31, 4, 2), (3, 9, 4, 2))


def fault_of_1(job: Callable[..., Any]) -> str:
    """Run it with each of the trials, and look at how it ends, which rows came, and whether the ranks agree."""
    for world, count, batch_size, epochs in TRIALS:
        where = f"on {world} ranks with {count} rows, batches of {batch_size} and {epochs} epochs"
        stands = on_ranks(job, world, {**drawn_1(count), "batch_size": batch_size, "epochs": epochs})
        said = unfinished(where, stands) or _fault_of_rows(where, stands, world, count, batch_size, epochs)
        if said:
            return said
    return ""


def _fault_of_rows(
    where: str, stands: list[Stand], world: int, count: int, batch_size: int, epochs: int
) -> str:
    values = [stand.value for stand in stands]
    if not all(isinstance(value, dict) and {"seen", "weight"} <= value.keys() for value in values):
        return f'{where} the job returned {values[0]!r}; leave its last line, {{"seen": …, "weight": …}}, as it was.'
    if any(not torch.allclose(value["weight"], values[0]["weight"], rtol=0, atol=1e-12) for value in values):
        return f"{where} the ranks end with different weights."
    for epoch in range(epochs):
        came = Counter(row for value in values for at, batch in value["seen"] if at == epoch for row in batch)
        missing = count - len(came)
        twice = sum(came.values()) - len(came)
        if not came:
            return f"{where}, epoch {epoch}: nobody has trained on any row."
        if missing >= world * batch_size:
            return f"{where}, epoch {epoch}: {missing} rows are left out; less than a batch a rank would do."
        if twice >= world * batch_size:
            return (
                f"{where}, epoch {epoch}: {twice} times a row comes again; less than a batch a rank would do."
            )
    return ""


check_job_1 = case(
    1,
    job_1,
    FORECAST_1,
    fault_of_1,
    "it ends for every number of rows, with equal weights on all ranks and hardly a row left out.",
    {
        "Some ranks have a batch more than others, in every epoch.": sick_1(),
        "A barrier makes ranks wait for each other; the number of batches stays unequal.": edited(
            sick_1(), ('        print(f"epoch', '        dist.barrier()\n        print(f"epoch')
        ),
        "Whoever leaves out the short batch has still one more where the row more fills it.": edited(
            sick_1(),
            (
                "for batch in order.split(batch_size):",
                "for batch in order[: len(order) // batch_size * batch_size].split(batch_size):",
            ),
        ),
        "Only as many batches as the smallest rank of all can fill: here that is none.": edited(
            job_1,
            (
                "for batch in order.split(batch_size):",
                "for batch in order[: len(order) // batch_size * batch_size].split(batch_size):",
            ),
        ),
        "Each rank steps alone now: without the mean they train models of their own.": edited(
            sick_1(), ("dist.all_reduce(parameter.grad)", "pass"), ("parameter.grad /= world", "pass")
        ),
        "Then every rank reads every row: that is no sharing.": edited(
            job_1, ("torch.arange(rank, share * world, world)", "torch.arange(len(rows))")
        ),
    },
    {
        "So many wait, but how far have the others come? Count all epochs.": (33, 1),
        "It is the ranks with a batch more that wait; the others have ended.": (31, 10),
        "The rank that is short is not the only one.": (1, 10),
    },
)
"""Case 1: (job_1, forecast_1)."""
