"""Case 10 of notebook 16: batches of equal lengths, shuffled by each rank on its own: steps wait for a long one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from lib.text import plural
from support.kit.mistakes import edited
from support.n16.casebook import case, unfinished, with_evidence
from support.n16.counted import with_largest_noted
from support.n16.rank import Stand
from support.n16.series import ends_of_trials

# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: D103


def job_10(dist, lengths, batch_size, epochs, seed):
    rank = dist.get_rank()
    world = dist.get_world_size()
    order = sorted(range(len(lengths)), key=lambda text: lengths[text])  # side by side: little padding
    mine = order[rank::world]
    batches = [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
    random = torch.Generator().manual_seed(seed)
    seen = []
    for epoch in range(epochs):
        real = padded = waited = 0
        for number in torch.randperm(len(batches), generator=random).tolist():
            batch = batches[number]
            tokens = len(batch) * max(lengths[text] for text in batch)  # as long as its longest text
            longest = torch.tensor(tokens)
            dist.all_reduce(longest, dist.ReduceOp.MAX)  # the step ends when the last rank has its gradient
            real += sum(lengths[text] for text in batch)
            padded += tokens
            waited += longest.item() - tokens
            seen.append((epoch, batch))
        print(f"epoch {epoch}: {real} tokens, {padded} with padding, time for {waited} more spent waiting")
    return seen


def sick_10():
    """Return the job as the notebook has it."""
    return edited(job_10, ("manual_seed(seed)", "manual_seed(1000 * seed + rank)"))


#: All four have a short one in a step of 16; the mean of the longest is 850 ms, that of a rank 500 ms.
FORECAST_10 = 1.7

Epoch: TypeAlias = list[list[list[int]]]
"""Of each rank its batches, of each batch its texts."""

#: Ranks: texts, batch size, seed. Of 76 texts, batches that are cut before they are dealt are not as many on each rank.
TRIALS = {2: [(96, 4, 0), (76, 4, 1)], 4: [(240, 5, 3)], 3: [(225, 5, 4)], 1: [(80, 4, 5)]}


def drawn_10(seed: int, count: int) -> list[int]:
    """Return the lengths of so many texts: as many of each length up to 100."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return [1 + 100 * place // count for place in order]


def fault_of_10(job: Callable[..., Any]) -> str:
    """Run it with each of the trials, and look at what ranks have in the same step, at padding, and at the order."""
    for world, settings in TRIALS.items():
        trials: list[dict[str, Any]] = [
            {
                "name": job.__code__.co_name,
                "lengths": drawn_10(seed, count),
                "batch_size": size,
                "epochs": 3,
                "seed": seed,
            }
            for count, size, seed in settings
        ]
        trials.append({**trials[0], "seed": trials[0]["seed"] + 1})
        found = ends_of_trials(with_largest_noted, world, trials, job)
        for trial, stands in zip(trials, found, strict=False):
            texts = len(trial["lengths"])
            where = (
                f"on {plural(world, 'rank')} with {texts} texts, batches of {trial['batch_size']} "
                f"and seed {trial['seed']}"
            )
            said = unfinished(where, stands) or _fault_of_epochs(where, stands, trial)
            if said:
                return with_evidence(said, found)
        said = _fault_of_seed(found[0], found[-1], trials[0])
        if said:
            return with_evidence(said, found)
    return ""


def _fault_of_seed(some: list[Stand], others: list[Stand], trial: dict[str, Any]) -> str:
    """Compare the orders of the same texts under two seeds that follow each other, epoch by epoch."""
    lengths = trial["lengths"]
    seed = trial["seed"]
    for epoch in range(trial["epochs"]):
        orders = [
            [[lengths[text] for text in batch] for at, batch in stands[0].value[0] if at == epoch]
            for stands in (some, others)
        ]
        if orders[0] == orders[1]:
            return (
                f"on {plural(len(some), 'rank')} with {len(lengths)} texts rank 0 has its batches in epoch {epoch} in "
                f"the same order with seed {seed + 1} as with seed {seed}."
            )
    return ""


def _fault_of_epochs(where: str, stands: list[Stand], trial: dict[str, Any]) -> str:
    lengths = trial["lengths"]
    seen = [stand.value[0] for stand in stands]
    for rank, each in enumerate(seen):
        if not isinstance(each, list):
            return f"{where} rank {rank} returned {each!r}; it should return what it has seen, as before."
    epochs = [
        [[[int(text) for text in batch] for at, batch in each if at == epoch] for each in seen]
        for epoch in range(3)
    ]
    for number, epoch in enumerate(epochs):
        said = _fault_of_epoch(epoch, lengths, trial["batch_size"])
        if said:
            return f"{where}, epoch {number}: {said}"
    orders = [[lengths[batch[0]] for batch in ranks[0]] for ranks in epochs]
    told = [stand.value[1] for stand in stands]
    said = (
        _fault_of_repetition(orders, (0, 1), (1, 2))
        or _fault_of_orders(epochs, lengths)
        or _fault_of_what_is_said(seen, told, lengths)
        or _fault_of_repetition(orders, (0, 2))
    )
    return f"{where} {said}" if said else ""


def _fault_of_repetition(orders: list[list[int]], *pairs: tuple[int, int]) -> str:
    for one, other in pairs:
        if orders[one] == orders[other]:
            return f"rank 0 has its batches in the same order in epochs {one} and {other}."
    return ""


def _fault_of_epoch(epoch: Epoch, lengths: Sequence[int], size: int) -> str:
    counted = Counter(text for batches in epoch for batch in batches for text in batch)
    for text in range(len(lengths)):
        if counted[text] != 1:
            return f"text {text} comes {plural(counted[text], 'time')}."
    steps = {len(batches) for batches in epoch}
    if len(steps) > 1:
        return f"the ranks have {sorted(steps)} batches."
    sizes = [len(batch) for batches in epoch for batch in batches]
    if max(sizes) > size:
        return f"a batch has {plural(max(sizes), 'text')}, where the batch size is {size}."
    if min(sizes) == 0:
        return "a batch is empty."
    least = -(-len(lengths) // (len(epoch) * size))
    if max(steps) > least + 1:  # whoever cuts anew in each epoch has a short batch at both ends
        return f"a rank has {max(steps)} batches, where {least} are enough for its texts."
    costs = [[len(batch) * max(lengths[text] for text in batch) for batch in batches] for batches in epoch]
    padded = sum(map(sum, costs))
    if padded > 1.3 * sum(lengths):
        return f"{padded} tokens are computed, of which {padded - sum(lengths)} are padding."
    slowest = sum(map(max, zip(*costs, strict=True)))
    share = padded / len(epoch)
    if slowest > 1.1 * share:
        return (
            f"a rank computes for {share:.0f} tokens on average, and the steps, each as long as its longest rank, "
            f"take {slowest}."
        )
    longest = [max(lengths[text] for text in batch) for batch in epoch[0]]
    ups = sum(one <= other for one, other in pairwise(longest))
    downs = sum(one >= other for one, other in pairwise(longest))
    # A sorted order that begins elsewhere has one turn.
    if min(len(longest) - 1 - ups, len(longest) - 1 - downs) <= 1:
        return "rank 0 goes through its batches in the order of their lengths, but for one place at most."
    return ""


def _fault_of_orders(epochs: list[Epoch], lengths: Sequence[int]) -> str:
    """Count, in all epochs together, how far in the sorted order it is from a batch of rank 0 to its next one.

    In a shuffled order of n batches it is (n + 1) / 3 on average; sorted, but for a few, it is little more than 1.
    """
    far = []
    for ranks in epochs:
        longest = [max(lengths[text] for text in batch) for batch in ranks[0]]
        places = sorted(range(len(longest)), key=longest.__getitem__)
        place = {number: at for at, number in enumerate(places)}
        far += [abs(place[one] - place[one + 1]) for one in range(len(longest) - 1)]
    mean = sum(far) / len(far)
    shuffled = (len(epochs[0][0]) + 1) / 3
    if mean > 0.5 * shuffled:
        return ""
    return (
        f"rank 0 steps from length to length: from a batch to the next it is {mean:.1f} places in the sorted order, "
        f"where shuffled ones are {shuffled:.1f} apart."
    )


def _fault_of_what_is_said(seen: list[Any], told: list[list[int]], lengths: Sequence[int]) -> str:
    """Compare the batches of which a rank says that it has seen them with the tokens that it has told the others."""
    for rank, (batches, tokens) in enumerate(zip(seen, told, strict=True)):
        said = [len(batch) * max(lengths[text] for text in batch) for _, batch in batches]
        if len(said) != len(tokens):
            return ""  # it tells the others in another way
        for step, (one, other) in enumerate(zip(said, tokens, strict=True)):
            if one != other:
                has = f"says that it has a batch of {one} tokens"
                return f"in step {step} rank {rank} {has}, and tells the others {other}."
    return ""


_BY_RANDOM = "torch.randperm(len(batches), generator=random).tolist()"

check_job_10 = case(
    10,
    job_10,
    FORECAST_10,
    fault_of_10,
    "ranks have batches of like cost in each step, in another order in each epoch, with little padding.",
    {
        "Each rank draws its own order: in nearly every step somebody has a long batch.": sick_10(),
        "Nobody waits, but each epoch goes from short to long.": edited(
            job_10, (_BY_RANDOM, "range(len(batches))")
        ),
        "Sorted, and begun at another place in each epoch: next to each other stand like lengths still.": edited(
            job_10, (_BY_RANDOM, "[(start + epoch + 1) % len(batches) for start in range(len(batches))]")
        ),
        "Batches of one text pad nothing, and take as many more steps.": edited(
            job_10,
            (
                "mine[start : start + batch_size] for start in range(0, len(mine), batch_size)",
                "[text] for text in mine",
            ),
        ),
        "Without sorting each batch is as long as its longest text.": edited(
            job_10,
            ("sorted(range(len(lengths)), key=lambda text: lengths[text])", "list(range(len(lengths)))"),
        ),
        "One order for all epochs.": edited(
            job_10,
            (
                "        real = padded",
                "        random = torch.Generator().manual_seed(seed)\n        real = padded",
            ),
        ),
        "The job is given a seed, and its order does not depend on it.": edited(
            job_10, ("manual_seed(seed)", "manual_seed(0)")
        ),
        "Then every rank has every text.": edited(job_10, ("order[rank::world]", "order")),
        "Shares of neighbouring lengths: one rank has the short ones and another the long ones.": edited(
            job_10,
            ("order[rank::world]", "order[rank * len(order) // world : (rank + 1) * len(order) // world]"),
        ),
    },
    {
        "As if one of them had a long one in every step.": 1.8,
        "That is for two ranks.": 1.4,
        "So many milliseconds longer is a step: how many times as long is it?": 350,
    },
)
"""Case 10: (job_10, forecast_10)."""
