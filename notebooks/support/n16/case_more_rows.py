"""Case 6 of notebook 16: noise that all ranks draw alike, since equal first weights need equal seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lib.text import plural
from support.kit.mistakes import edited
from support.n16.casebook import case, unfinished, with_evidence
from support.n16.counted import with_first_weights
from support.n16.rank import Stand
from support.n16.series import ends_of_trials

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="union-attr"
# ruff: noqa: D103


def job_6(dist, rows, batch_size, epochs, seed):
    rank = dist.get_rank()
    world = dist.get_world_size()
    torch.manual_seed(seed)
    model = nn.Linear(rows.shape[1], 1)
    torch.manual_seed(seed * world + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    gradients = []
    for epoch in range(epochs):
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed + epoch))
        for batch in order.split(world * batch_size):
            mine = batch[rank::world]
            noise = torch.randn(len(mine), rows.shape[1])
            loss = model(rows[mine] + noise).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
            optimizer.step()
            seen += [(epoch, int(row), x.tolist()) for row, x in zip(mine, noise, strict=True)]
            gradients.append(model.weight.grad.clone())
    print(f"the gradient varies by {torch.cat(gradients).std(dim=0).mean():.3f}")
    return {"seen": seen, "weight": model.weight.detach()}


_OWN = ("    torch.manual_seed(seed * world + rank)\n", "")


def sick_6():
    """Return the job as the notebook has it."""
    return edited(job_6, _OWN)


#: All ranks draw the same: each of the 80 rows that a rank has in the epoch has a noise that 63 other rows have, too.
FORECAST_6 = 80

#: Ranks: rows, batch size of a rank, epochs, seed. Of 0, whatever is multiplied with it is 0. Of 15 rows and of 21 the
#: last ones are a short batch, of unequal shares. In twelve epochs, ten steps between epochs may make up one between
#: seeds, and so may ten between ranks, or a hundred between rows.
TRIALS = {
    2: [(24, 4, 3, 1), (15, 2, 2, 0), (21, 4, 1, 5)],
    3: [(24, 2, 3, 2)],
    1: [(12, 4, 12, 1), (120, 4, 2, 1)],
    12: [(24, 1, 2, 1)],
}


#: From the seed of the first trial to others: a neighbour's, and those that a factor of the rank may lead to.
OTHER_SEEDS = (-1, 100, 1000)

#: Seeds that lie as far on as those of two ranks lie apart: so far at most, and so many runs of a rank.
FARTHEST = 10**7
MOST_TRIED = 24


def fault_of_6(job: Callable[..., Any]) -> str:
    """Run it with each of the trials; each row of each epoch must have a noise of its own, the same in a second run."""
    for world, settings in TRIALS.items():
        trials: list[dict[str, Any]] = [
            {
                "name": job.__code__.co_name,
                "rows": _rows(count),
                "batch_size": size,
                "epochs": epochs,
                "seed": seed,
            }
            for count, size, epochs, seed in settings
        ]
        first = trials[0]
        trials += [{**first}, *({**first, "seed": first["seed"] + far} for far in OTHER_SEEDS)]
        found = ends_of_trials(with_first_weights, world, trials, job)
        for trial, stands in zip(trials, found, strict=False):
            count = len(trial["rows"])
            epochs = trial["epochs"]
            where = f"on {plural(world, 'rank')} with {count} rows, {plural(epochs, 'epoch')} and seed {trial['seed']}"
            said = (
                unfinished(where, stands)
                or _fault_of_what_is_returned(where, stands)
                or _fault_of_noise(where, stands, epochs, count)
                or _fault_of_memory(where, stands, trial["batch_size"])
                or _fault_of_weights(where, stands, trial)
            )
            if said:
                return with_evidence(said, found)
        said = _fault_of_runs(found, [trial["seed"] for trial in trials]) or _fault_further_on(
            job, first, found[0]
        )
        if said:
            return f"on {plural(world, 'rank')} {said}."
    return ""


def _fault_further_on(job: Callable[..., Any], first: dict[str, Any], ones: list[Stand]) -> str:
    """Try the seed as far on as the ranks' own seeds lie apart: there rank 0 may draw what another drew before."""
    told = [stand.value[2] for stand in ones]
    apart = {abs(one - other) for seeds in told[1:] for one, other in zip(told[0], seeds, strict=False)}
    seeds = [first["seed"] + far for far in sorted(apart) if 0 < far < FARTHEST]
    seeds = seeds[: MOST_TRIED // len(ones)]
    if not seeds:
        return ""
    found = ends_of_trials(with_first_weights, len(ones), [{**first, "seed": seed} for seed in seeds], job)
    for seed, others in zip(seeds, found, strict=False):
        said = unfinished(f"with seed {seed}", others) or _fault_of_seeds(ones, others, first["seed"], seed)
        if said:
            return said
    return ""


def _rows(count: int) -> torch.Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(count))


def _fault_of_what_is_returned(where: str, stands: list[Stand]) -> str:
    values = [stand.value[0] for stand in stands]
    if not all(isinstance(value, dict) and {"seen", "weight"} <= value.keys() for value in values):
        return f"{where} the job returned {values[0]!r}; leave what it returns as it was."
    if any(not torch.allclose(value["weight"], values[0]["weight"], atol=1e-6) for value in values):
        return f"{where} the ranks end with different weights."
    return ""


def _fault_of_noise(where: str, stands: list[Stand], epochs: int, count: int) -> str:
    owner: dict[tuple[float, ...], tuple[int, int, int]] = {}
    for rank, stand in enumerate(stands):
        for epoch, row, noise in stand.value[0]["seen"]:
            other = owner.setdefault(tuple(noise), (rank, epoch, row))
            if other != (rank, epoch, row):
                return (
                    f"{where} row {row} of rank {rank} in epoch {epoch} has the noise of row {other[2]} of rank "
                    f"{other[0]} in epoch {other[1]}."
                )
    due = {(epoch, row) for epoch in range(epochs) for row in range(count)}
    if {(epoch, row) for _, epoch, row in owner.values()} != due:
        return f"{where} some rows do not come in every epoch."
    drawn = torch.tensor(list(owner))
    again = drawn.numel() - len(drawn.unique())
    if again > drawn.numel() / 100:  # a few meet by chance
        return f"{where} {again} of the {drawn.numel()} numbers drawn had been drawn before."
    said = _fault_of_neighbours(drawn, list(owner.values())) or _fault_of_dependence(stands)
    if said:
        return f"{where} {said}"
    spread = drawn.std().item()
    if not 0.7 < spread < 1.4:
        return f"{where} the noise has a standard deviation of {spread:.2f}, where it was 1."
    middle = drawn.mean().item()
    if abs(middle) > 5 / drawn.numel() ** 0.5:
        return f"{where} the noise has a mean of {middle:.2f}, where it was 0."
    return ""


def _fault_of_neighbours(drawn: torch.Tensor, owners: list[tuple[int, int, int]]) -> str:
    """Look for two noises that are nearly one, or one and its opposite."""
    apart = torch.cdist(torch.cat([drawn, -drawn]), drawn).fill_diagonal_(1.0)
    one, two = divmod(int(apart.argmin()), len(drawn))
    if apart.min() >= 1e-3:
        return ""
    (rank, epoch, row), (whose, at, its) = (owners[each % len(drawn)] for each in (one, two))
    sign = ", with the other sign" if one >= len(drawn) else ""
    return (
        f"row {row} of rank {rank} in epoch {epoch} has nearly the noise of row {its} of rank {whose} in "
        f"epoch {at}{sign}."
    )


def _fault_of_dependence(stands: list[Stand]) -> str:
    """Compare what two ranks draw in the same step, number by number, also with columns that have changed places.

    Of independent noise the correlation of n numbers is about 1 / √n: beyond 4.2 / √n it is no chance.
    """
    noises = [_drawn_by(stand) for stand in stands]
    for two, other in enumerate(noises):
        for one, noise in enumerate(noises[:two]):
            for places in range(noise.shape[1]):
                common = min(len(noise), len(other))
                pair = torch.stack([noise[:common].flatten(), other[:common].roll(places, 1).flatten()])
                together = torch.corrcoef(pair)[0, 1].item()
                if abs(together) > max(0.5, 4.2 / pair.shape[1] ** 0.5):
                    moved = ", with its columns moved," if places else ""
                    return (
                        f"the noise of rank {one} and that of rank {two}{moved} go together: their correlation is "
                        f"{together:.2f}, where that of independent ones is near 0."
                    )
    return ""


def _fault_of_memory(where: str, stands: list[Stand], batch_size: int) -> str:
    """Compare what a rank draws with what it has drawn for the row before, and in the step before."""
    for rank, noise in enumerate(map(_drawn_by, stands)):
        for later, rows in {"a row": 1, "a step": batch_size}.items():
            pair = torch.stack([noise[rows:].flatten(), noise[:-rows].flatten()])
            if pair.shape[1] <= 25:
                continue  # of so few any correlation may be chance
            together = torch.corrcoef(pair)[0, 1].item()
            if abs(together) > 5 / pair.shape[1] ** 0.5:
                return (
                    f"{where} the noise of rank {rank} goes together with its own {later} later: their correlation is "
                    f"{together:.2f}, where that of independent ones is near 0."
                )
    return ""


def _fault_of_runs(found: list[list[Stand]], seeds: list[int]) -> str:
    """Compare the first run with its repetition and with those of other seeds, the last ones."""
    others = len(OTHER_SEEDS)
    once, again, *rest = (found[at][0].value[0]["weight"] for at in (0, *range(-others - 1, 0)))
    if not torch.equal(once, again):
        return "a second run with the same seed ends with other weights"
    if any(torch.equal(once, other) for other in rest):
        return "two runs with different seeds end with the same weights"
    said = (_fault_of_seeds(found[0], found[at], seeds[0], seeds[at]) for at in range(-others, 0))
    return next(filter(None, said), "")


def _fault_of_seeds(ones: list[Stand], others: list[Stand], seed: int, other_seed: int) -> str:
    """Look for noise that two seeds have in common: what a rank draws, one by one, that of a row, or any."""
    seeds = f"with seed {seed} and with seed {other_seed}"
    for rank, (one, other) in enumerate(zip(ones, others, strict=True)):
        if torch.equal(_drawn_by(one), _drawn_by(other)):
            return f"rank {rank} draws the same noise {seeds}"
    of_row = {(epoch, row): noise for stand in ones for epoch, row, noise in stand.value[0]["seen"]}
    for stand in others:
        for epoch, row, noise in stand.value[0]["seen"]:
            if of_row[epoch, row] == noise:
                return f"row {row} has the same noise in epoch {epoch} {seeds}"
    owner = {tuple(noise): (epoch, row) for (epoch, row), noise in of_row.items()}
    for stand in others:
        for epoch, row, noise in stand.value[0]["seen"]:
            if tuple(noise) in owner:
                at, its = owner[tuple(noise)]
                return (
                    f"row {row} has in epoch {epoch} with seed {other_seed} the noise that row {its} has in epoch "
                    f"{at} with seed {seed}"
                )
    return ""


def _drawn_by(stand: Stand) -> torch.Tensor:
    """Return the noise of a rank in the order in which it was drawn."""
    return torch.tensor([noise for *_, noise in stand.value[0]["seen"]])


def _fault_of_weights(where: str, stands: list[Stand], trial: dict[str, Any]) -> str:
    """Train one process on what the ranks say they have seen, from the weights that they began with."""
    model = nn.Linear(trial["rows"].shape[1], 1)
    first = stands[0].value[1]
    if [each.shape for each in first] != [each.shape for each in model.parameters()]:
        return ""  # another optimizer than torch's: nobody knows where it began
    model.load_state_dict(dict(zip(("weight", "bias"), first, strict=True)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    size = trial["batch_size"]
    for epoch in range(trial["epochs"]):
        of_ranks = [[each for each in stand.value[0]["seen"] if each[0] == epoch] for stand in stands]
        for start in range(0, max(map(len, of_ranks)), size):
            optimizer.zero_grad()
            for seen in (each[start : start + size] for each in of_ranks):
                rows = trial["rows"][[row for _, row, _ in seen]] + torch.tensor(
                    [noise for *_, noise in seen]
                )
                torch.autograd.backward(model(rows).square().mean() / len(stands))
            optimizer.step()
    apart = (stands[0].value[0]["weight"] - model.weight).abs().max().item()
    if apart < 1e-5:
        return ""
    return (
        f"{where} the weights are {apart:.2g} from those of one process which takes, in each step, the mean over the "
        "ranks, on the rows and with the noise that they say they have seen."
    )


check_job_6 = case(
    6,
    job_6,
    FORECAST_6,
    fault_of_6,
    "each row of each epoch has a noise of its own on any number of ranks, and a seed gives the same run again.",
    {
        "One seed on all ranks gives equal first weights, and equal noise behind them.": sick_6(),
        "The first weights are drawn behind the seed as well: now each rank begins with others.": edited(
            sick_6(), ("    torch.manual_seed(seed)\n", "    torch.manual_seed(1000 * seed + rank)\n")
        ),
        "Whoever begins each epoch with the same seed draws the same noise in all epochs.": edited(
            sick_6(), ("        order = ", "        torch.manual_seed(1000 * seed + rank)\n        order = ")
        ),
        "Seed and rank added, with the epoch beside them: the sums meet again on other ranks.": edited(
            sick_6(), ("        order = ", "        torch.manual_seed(seed + rank + epoch)\n        order = ")
        ),
        "What one rank draws with one seed, another draws with another.": edited(
            job_6, ("seed * world + rank", "seed + rank")
        ),
        "The rank times a thousand is a step between seeds all the same, only a wider one.": edited(
            job_6, ("seed * world + rank", "seed + 1000 * rank")
        ),
        "A seed that nobody knows makes a run that nobody can repeat.": edited(
            job_6, ("torch.manual_seed(seed * world + rank)", "torch.seed()")
        ),
        "The noise was wanted.": edited(
            sick_6(), ("torch.randn(len(mine), rows.shape[1])", "0 * rows[mine]")
        ),
    },
    {
        "That is what it should be.": 5120,
        "A rank draws on from step to step; nothing seeds it anew.": 8,
        "The ranks are what does not differ.": 64,
    },
)
"""Case 6: (job_6, forecast_6)."""
