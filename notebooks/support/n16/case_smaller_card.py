"""Case 5 of notebook 16: means of micro-batches and of ranks, averaged as if all had as many tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lib.text import plural
from support.kit.mistakes import edited
from support.n16.casebook import ROUNDED, case, unfinished, with_evidence
from support.n16.counted import with_tokens_counted
from support.n16.rank import Stand
from support.n16.series import ends_of_trials

# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: D103


def job_5(dist, batches, micro_batch, learning_rate):
    rank = dist.get_rank()
    world = dist.get_world_size()
    weight = torch.zeros(8, 8, dtype=torch.float64, requires_grad=True)  # scores of the next of 8 tokens
    optimizer = torch.optim.SGD([weight], lr=learning_rate)
    for number, texts in enumerate(batches):
        mine = texts[rank::world]
        parts = [mine[start : start + micro_batch] for start in range(0, len(mine), micro_batch)]
        count = torch.tensor(sum(len(text) - 1 for text in mine))
        dist.all_reduce(count)
        optimizer.zero_grad()
        total = 0.0
        for part in parts:
            before = torch.cat([text[:-1] for text in part])
            after = torch.cat([text[1:] for text in part])
            loss = F.cross_entropy(weight[before], after, reduction="sum") / count
            loss.backward()
            total += loss.item()
        dist.all_reduce(weight.grad)
        optimizer.step()
        print(f"batch {number}: {len(mine)} texts in {len(parts)} parts, loss {total:.3f}")
    return weight.detach()


_COUNT = (
    "        count = torch.tensor(sum(len(text) - 1 for text in mine))\n        dist.all_reduce(count)\n",
    "",
)
_MEAN = (
    'F.cross_entropy(weight[before], after, reduction="sum") / count',
    "F.cross_entropy(weight[before], after) / len(parts)",
)
_DIVIDED = (
    "        dist.all_reduce(weight.grad)\n",
    "        dist.all_reduce(weight.grad)\n        weight.grad /= world\n",
)


def sick_5():
    """Return the job as the notebook has it."""
    return edited(job_5, _COUNT, _MEAN, _DIVIDED)


#: Rank 0 has the texts of 1,000 and 50 tokens, whose mean is over 1,050, and rank 1 has a mean over 100.
FORECAST_5 = 10.5


def drawn_5(seed: int, lengths: list[list[int]]) -> list[list[Tensor]]:
    """Return batches of texts with so many tokens to predict each; long texts count up, short ones down."""
    random = torch.Generator().manual_seed(seed)
    return [[_text(length, random) for length in batch] for batch in lengths]


def _text(length: int, random: torch.Generator) -> Tensor:
    start = int(torch.randint(8, (), generator=random))
    step = 1 if length > 6 else -1
    noise = torch.randint(2, (length + 1,), generator=random)
    return (start + step * torch.arange(length + 1) + noise) % 8


#: Ranks: size of a micro-batch, learning rate, seed, tokens to predict in each text of each batch.
TRIALS = {
    2: [(2, 0.5, 3, [[20, 2, 3, 1, 5], [7, 8, 1, 2]]), (1, 0.3, 4, [[6, 1, 9, 2, 3]])],
    1: [(2, 1.0, 2, [[4, 4, 11, 1, 2]]), (1, 0.5, 1, [[9, 2, 3], [1, 12, 5]])],
    # Of 4 texts on 3 ranks, shares that are rounded up leave a rank without.
    3: [(1, 0.7, 5, [[3, 14, 5, 9, 2, 6, 5], [8, 1, 1]]), (2, 0.4, 6, [[5, 9, 2, 7]])],
}


def fault_of_5(job: Callable[..., Any]) -> str:
    """Run it with each of the trials; weights must be those of one process that takes each batch at once."""
    for world, rows in TRIALS.items():
        trials = [
            {
                "name": job.__code__.co_name,
                "batches": drawn_5(seed, lengths),
                "micro_batch": size,
                "learning_rate": rate,
            }
            for size, rate, seed, lengths in rows
        ]
        found = ends_of_trials(with_tokens_counted, world, trials, job)
        for trial, (size, _, _, lengths), stands in zip(trials, rows, found, strict=False):
            where = (
                f"on {plural(world, 'rank')} with micro-batches of {size} and texts with {lengths[0]} tokens to "
                "predict"
            )
            said = (
                unfinished(where, stands)
                or _fault_of_weights(where, stands, trial)
                or _fault_of_work(where, stands, size, lengths)
            )
            if said:
                return with_evidence(said, found)
    return ""


def _fault_of_weights(where: str, stands: list[Stand], trial: Mapping[str, Any]) -> str:
    due = at_once(trial["batches"], trial["learning_rate"])
    for rank, (got, *_) in enumerate(stand.value for stand in stands):
        if not isinstance(got, Tensor) or got.shape != due.shape:
            return f"{where} rank {rank} returned {got!r}, not the weights."
        if got.dtype != due.dtype:
            return f"{where} rank {rank} ends with weights of {got.dtype}; they were of {due.dtype}."
        apart = (got - due).abs().max().item()
        if not apart < ROUNDED:
            return (
                f"{where} rank {rank} ends with weights that are up to {apart:.2g} from those of one process "
                "that takes each batch at once."
            )
    return ""


def _fault_of_work(where: str, stands: list[Stand], size: int, lengths: list[list[int]]) -> str:
    most = max(sum(sorted(batch)[-size:]) for batch in lengths)
    for rank, (_, together, _) in enumerate(stand.value for stand in stands):
        if max(together, default=0) > most:
            has = f"rank {rank} keeps the activations of {max(together)} tokens at once"
            texts = f"{plural(size, 'text')} at a time {'has' if size == 1 else 'have'}"
            return f"{where} {has}; {texts} {most} at most."
        if not together and any(stand.value[1] for stand in stands):
            return f"{where} rank {rank} computes no token: each rank has a text of each batch."
    done = sum(stand.value[2] for stand in stands)
    whole = sum(map(sum, lengths))
    if done > whole:
        return (
            f"{where} the ranks compute {done} tokens together, where there are {whole}: that is no sharing."
        )
    return ""


def at_once(batches: Any, learning_rate: float) -> Tensor:
    """Return the weights of one process whose loss is the mean over all tokens of a batch."""
    weight = torch.zeros(8, 8, dtype=torch.float64, requires_grad=True)
    for texts in batches:
        before = torch.cat([text[:-1] for text in texts])
        after = torch.cat([text[1:] for text in texts])
        (gradient,) = torch.autograd.grad(F.cross_entropy(weight[before], after), weight)
        weight = (weight - learning_rate * gradient).detach().requires_grad_()
    return weight.detach()


check_job_5 = case(
    5,
    job_5,
    FORECAST_5,
    fault_of_5,
    "its weights are those of one process that takes each batch at once, however it is cut.",
    {
        "The card was too small for all that at once: that is what micro_batch is for.": edited(
            job_5, ("mine[start : start + micro_batch] for start in range(0, len(mine), micro_batch)", "mine")
        ),
        "A token of a short part counts more than one of a long part.": sick_5(),
        "That weighs a part by its texts; the mean is over tokens.": edited(
            sick_5(), ("/ len(parts)", "* len(part) / len(mine)")
        ),
        "Within a rank each token counts alike now; a rank with few tokens counts as much as one with many.": edited(
            job_5, ("        dist.all_reduce(count)\n", ""), _DIVIDED
        ),
        "Nothing is divided any more, so a step grows with the number of tokens.": edited(
            job_5, (" / count", "")
        ),
        "The tokens of all ranks are counted, and W divides besides: each step is too short.": edited(
            job_5, _DIVIDED
        ),
    },
    {
        "Nobody accumulates there, but ranks are averaged as well.": 1,
        "That would be so with a text a micro-batch.": 20,
        "That is the other way round.": 1 / 10.5,
    },
)
"""Case 5: (job_5, forecast_5)."""
