"""Case 3 of notebook 16, a healthy one: a sum that nobody divides, and a learning rate divided by W."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.text import plural
from support.kit.mistakes import edited
from support.n16.casebook import ROUNDED, case, unfinished, with_evidence
from support.n16.counted import with_rows_counted
from support.n16.rank import Stand
from support.n16.series import ends_of_trials

# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: D103


def job_3(dist, rows, targets, batch_size, learning_rate, epochs):
    rank = dist.get_rank()
    world = dist.get_world_size()
    torch.manual_seed(7)
    model = nn.Linear(rows.shape[1], 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate / world, momentum=0.5)
    for epoch in range(epochs):
        random = torch.Generator().manual_seed(epoch)  # the same order on all ranks
        order = torch.randperm(len(rows), generator=random)
        whole = len(order) // (world * batch_size) * world * batch_size
        total = 0.0
        for batch in order[:whole].split(world * batch_size):
            mine = batch[rank::world]
            loss = F.mse_loss(model(rows[mine]), targets[mine])
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            for parameter in reversed([*model.parameters()]):
                dist.all_reduce(parameter.grad)
            optimizer.step()
            total += loss.item()
        steps = whole // (world * batch_size)
        print(f"epoch {epoch}: loss {total / steps:.4f} in {steps} steps")
    return model.state_dict()


#: With W ranks the sum is W times the mean, and a step of a W-th of it is that of one process with all rows. Divided
#: once more it is a step with a W-th of the learning rate.
FORECAST_3 = (32, 0.05)


def drawn_3(count: int) -> dict[str, Tensor]:
    """Return rows and their targets, float64."""
    random = torch.Generator().manual_seed(count)
    rows = torch.randn(count, 3, generator=random, dtype=torch.float64)
    return {"rows": rows, "targets": rows.sum(1, keepdim=True)}


#: Ranks: rows, batch size of a rank, learning rate.
TRIALS = {2: [(48, 4, 0.1)], 4: [(70, 3, 0.05)], 3: [(50, 8, 0.2)], 1: [(20, 5, 0.1)]}


def fault_of_3(job: Callable[..., Any]) -> str:
    """Run it with each of the trials; weights must be those of one process with all rows of a step."""
    for world, settings in TRIALS.items():
        trials = [
            {
                "name": job.__code__.co_name,
                **drawn_3(count),
                "batch_size": size,
                "learning_rate": rate,
                "epochs": 2,
            }
            for count, size, rate in settings
        ]
        found = ends_of_trials(with_rows_counted, world, trials, job)
        for (count, size, rate), stands in zip(settings, found, strict=False):
            where = f"on {plural(world, 'rank')} with {count} rows, batches of {size} and a learning rate of {rate}"
            said = unfinished(where, stands) or _fault_of_state(where, stands, count, size, rate)
            if said:
                return with_evidence(said, found)
    return ""


def _fault_of_state(where: str, stands: list[Stand], count: int, size: int, rate: float) -> str:
    whole = len(stands) * size
    due = of_one_process(**drawn_3(count), batch_size=whole, learning_rate=rate, epochs=2)
    part = 2 * (count // whole) * size
    for rank, (got, rows) in enumerate(stand.value for stand in stands):
        if not isinstance(got, dict) or not isinstance(got.get("weight"), Tensor):
            return f"{where} rank {rank} returned {got!r}, no state of the model."
        if not isinstance(got.get("bias"), Tensor):
            return f"{where} rank {rank} returned a state with no bias in it: {', '.join(got)}."
        for name, one in due.items():
            apart = (got[name] - one).abs().max().item()
            if not apart < ROUNDED:
                which = "the weights are" if name == "weight" else f"the {name} is"
                return (
                    f"{where} {which} {apart:.2g} from {'those' if name == 'weight' else 'that'} of one process that "
                    f"takes {whole} rows a step with the learning rate {rate}."
                )
        if rows > part:
            return (
                f"{where} rank {rank} runs {rows} rows through the model with gradients; its part is {part}."
            )
    return ""


def of_one_process(
    rows: Tensor, targets: Tensor, batch_size: int, learning_rate: float, epochs: int
) -> dict[str, Tensor]:
    """Return the state of one process without any messages."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = nn.Linear(rows.shape[1], 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.5)
    for epoch in range(epochs):
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(epoch))
        for batch in order[: len(order) // batch_size * batch_size].split(batch_size):
            optimizer.zero_grad()
            torch.autograd.backward(F.mse_loss(model(rows[batch]), targets[batch]))
            optimizer.step()
    return dict(model.state_dict())


_SUM = "                dist.all_reduce(parameter.grad)\n"

check_job_3 = case(
    3,
    job_3,
    FORECAST_3,
    fault_of_3,
    "its weights are those of one process with all rows of a step. The job was healthy.",
    {
        "The weights are right, and each rank does the work of all.": edited(
            job_3, ("batch[rank::world]", "batch")
        ),
        "There are two divisions by W now: the learning rate has one already.": edited(
            job_3, (_SUM, f"{_SUM}                parameter.grad /= world\n")
        ),
        "Each step is W times too long now.": edited(job_3, ("lr=learning_rate / world", "lr=learning_rate")),
        "Every rank shuffles in its own way now: rows come twice, others never.": edited(
            job_3, ("manual_seed(epoch)", "manual_seed(epoch + 1000 * rank)")
        ),
    },
    {
        "Those are the weights of four ranks without the colleague's line.": (32, 0.2),
        "Four ranks take 32 rows in each step.": (8, 0.05),
        "Four ranks take 32 rows in each step, and there are two divisions now.": (8, 0.2),
        "Four ranks divide by 4 twice, and their sum makes one of the two good.": (32, 0.0125),
        "The colleague's line makes the steps smaller, not larger.": (32, 0.8),
    },
)
"""Case 3: (job_3, forecast_3)."""
