"""Predictions and exercises of notebook 03, DistributedSampler."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from torch.utils.data import DistributedSampler as TorchSampler

from support.checks import Exercise, Guess, letter
from support.checks import use as use

# ---- predictions: each truth is computed, from the samplers themselves or from what the notebook has measured


def _harmed(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Name the networks whose test loss rises by more than three standard errors, in the order A, B."""
    names, harmed = list(dict.fromkeys(name.rpartition(", ")[0] for name in found)), ""
    for sign, name in zip("AB", names, strict=True):
        told, forgotten = (found[f"{name}, {way}"]["test loss"] for way in ("told", "forgotten"))
        rises = [after - before for before, after in zip(told, forgotten, strict=True)]
        harmed += sign if fmean(rises) > 3 * stdev(rises) / len(rises) ** 0.5 else ""
    return harmed or "NONE"


guess_last_of_eight = Guess(
    "what rank 7 gets of 3 samples on 8 ranks",
    lambda: list(TorchSampler(range(3), 8, 7, shuffle=False)),  # type: ignore[arg-type]
    read=lambda my_guess: [my_guess] if isinstance(my_guess, int) else my_guess,
)
"""What the last of 8 ranks yields of 3 samples, without shuffle."""
guess_orders = Guess(
    "the number of different orders", lambda: len({seed + epoch for seed in range(6) for epoch in range(6)})
)
"""How many different orders 6 seeds × 6 epochs have."""
guess_harmed = Guess("the networks that lose by it", _harmed, read=letter)
"""Which networks lose by a forgotten set_epoch, A plain, B with batch normalisation, by the measured losses."""
guess_missed_percent = Guess(
    "the share of samples without a holder", lambda: 100 * (1 - 1 / 8) ** 8, unit="%", tolerance=0.05
)
"""The per cent of samples that nobody holds if 8 ranks shuffle with seeds of their own."""


# ---- exercise 1: the share of a rank, cut from an order that is given


def _share(order: list[int], world_size: int, rank: int, drop_last: bool) -> list[int]:
    """Let torch's own sampler say which positions the rank takes."""
    sampler: Any = TorchSampler(order, world_size, rank, shuffle=False, drop_last=drop_last)  # type: ignore[arg-type]
    return [order[position] for position in sampler]


def _total(size: int, world_size: int, drop_last: bool) -> int:
    return (size if drop_last else size + world_size - 1) // world_size * world_size


def _share_cases() -> Iterator[dict[str, Any]]:
    """Yield readable cases first, then orders of 1..24 samples on 1..9 ranks, each rank, padded and cut."""
    sizes = [(6, 3), (10, 3), (2, 5), *itertools.product(range(1, 25), range(1, 10))]
    for (size, world_size), drop_last in itertools.product(sizes, (False, True)):
        order = torch.randperm(size, generator=torch.Generator().manual_seed(size)).tolist()
        for rank in range(world_size):
            yield dict(order=list(order), world_size=world_size, rank=rank, drop_last=drop_last)


def _strided(order: list[int], world_size: int, rank: int) -> list[int]:
    return order[rank::world_size]


def _padded_alone(order: list[int], world_size: int, rank: int, drop_last: bool) -> list[int]:
    own, steps = order[rank::world_size], _total(len(order), world_size, drop_last) // world_size
    return (own + own[:1])[:steps]


check_share = Exercise(
    "the share of a rank",
    reference=_share,
    cases=_share_cases,
    name="my_share",
    mistakes={
        "Nothing is padded or dropped: the ranks get shares of different lengths.": (
            lambda order, world_size, rank, drop_last: _strided(order, world_size, rank)
        ),
        "You padded with 0, 1, 2 …: torch repeats the head of the order, whatever it is.": (
            lambda order, world_size, rank, drop_last: _strided(
                (order + [*range(len(order))] * world_size)[: _total(len(order), world_size, drop_last)],
                world_size, rank,
            )
        ),
        "You appended the head once: with more than 2 N positions it has to be repeated again.": (
            lambda order, world_size, rank, drop_last: _strided(
                (order * 2)[: _total(len(order), world_size, drop_last)], world_size, rank
            )
        ),
        "A rank that lacks one took its own first index again: pad the order, which all ranks share.": _padded_alone,
        "You cut contiguous blocks: rank r takes positions r, r + W, r + 2 W, …": (
            lambda order, world_size, rank, drop_last: (
                (order * world_size)[: (total := _total(len(order), world_size, drop_last))][
                    rank * total // world_size : (rank + 1) * total // world_size
                ]
            )
        ),
        "drop_last cut the head of the order: it cuts the tail.": lambda order, world_size, rank, drop_last: (
            _strided(order[len(order) % world_size :], world_size, rank)
            if drop_last
            else _share(order, world_size, rank, False)
        ),
        "drop_last=True still pads.": lambda order, world_size, rank, drop_last: _share(order, world_size, rank, False),
        "Rounding up is not floor + 1: where W divides N, the two differ.": (
            lambda order, world_size, rank, drop_last: _strided(
                (order * (world_size + 1))[: (len(order) // world_size + (not drop_last)) * world_size],
                world_size, rank,
            )
        ),
    },
)  # fmt: skip
"""Exercise 1: pad or cut an order, and take every W-th of it."""


# ---- exercise 2: the class; a case says how it is made and what is asked of it

ITERATE, LENGTH = "list(sampler)", "len(sampler)"
LATE, GLOBAL = (
    "iter(sampler), then set_epoch(epoch + 1), then list",
    "list(sampler) leaves torch's generator alone",
)


def _asked(kind: Any) -> Callable[..., Any]:
    def answer(ask: str, size: int, epoch: int, **made: Any) -> Any:
        names = ("num_replicas", "rank", "shuffle", "seed", "drop_last")
        sampler = kind(range(size), *(made[name] for name in names))
        if epoch:
            sampler.set_epoch(epoch)
        if ask == LENGTH:
            return sampler.__len__()
        before = torch.get_rng_state()
        begun = sampler.__iter__()
        if ask == LATE:
            sampler.set_epoch(epoch + 1)
        found = None if begun is None else list(begun)
        left_alone = torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
        return left_alone if ask == GLOBAL and found is not None else found

    return answer


def _sampler_cases() -> Iterator[dict[str, Any]]:
    """Yield readable cases first, one step of the recipe after the other, then N = 1..24 × W = 1..8, each rank."""
    names = ("ask", "size", "num_replicas", "shuffle", "seed", "drop_last", "epoch")
    easy = [(ITERATE, 12, 3, False, 0, False, 0), (ITERATE, 12, 3, True, 0, False, 0)]
    easy += [(ITERATE, 12, 3, True, 0, False, 1), (ITERATE, 12, 3, True, 7, False, 0)]
    easy += [(ITERATE, 10, 3, True, 0, False, 0), (ITERATE, 10, 3, True, 0, True, 0)]
    easy += [(LENGTH, 10, 3, True, 0, drop, 0) for drop in (False, True)]
    easy += [(LATE, 10, 3, True, 0, False, 0), (GLOBAL, 10, 3, True, 0, False, 0)]
    runs = ((ITERATE, False, 0, 2), (ITERATE, True, 3, 0), (ITERATE, True, 3, 5), (LENGTH, True, 0, 0))
    grid = itertools.product(range(1, 25), range(1, 9), runs, (False, True))
    wide = [(ask, n, w, shuffle, seed, drop, epoch) for n, w, (ask, shuffle, seed, epoch), drop in grid]
    for values in [*easy, *wide]:
        yield from ({**dict(zip(names, values, strict=True)), "rank": rank} for rank in range(values[2]))


def _wrong(**methods: Any) -> type:
    """Return torch's sampler with one thing done differently."""
    return type("Wrong", (TorchSampler,), methods)


def _with(change: Callable[[Any], Any]) -> type:
    """Return a sampler on which `change` is done before each pass."""
    return _wrong(__iter__=lambda self: (change(self), TorchSampler.__iter__(self))[1])


def _lazily(sampler: Any) -> Iterator[int]:
    yield from TorchSampler.__iter__(sampler)


def _padded_first(sampler: Any) -> Iterator[int]:
    size, total = len(sampler.dataset), sampler.total_size
    order = [*range(size)] * (total // size + 1)
    if sampler.shuffle:
        generator = torch.Generator().manual_seed(sampler.seed + sampler.epoch)
        order = [order[position] for position in torch.randperm(max(size, total), generator=generator)]
    return iter(order[:total][sampler.rank :: sampler.num_replicas])


check_sampler = Exercise(
    "the sampler",
    reference=TorchSampler,
    cases=_sampler_cases,
    view=_asked,
    name="MyDistributedSampler",
    methods=("__init__", "__iter__", "__len__", "set_epoch"),
    praise="torch's own class, index for index, in all {count} cases",
    mistakes={
        "The epoch is not in the seed: this is epoch 0 for ever.": _with(lambda self: self.set_epoch(0)),
        "The rank is in the seed: then every rank has an order of its own, and coverage breaks.": _with(
            lambda self: setattr(self, "seed", self.seed + self.rank)
        ),
        "The seed has no effect: only the epoch has.": _with(lambda self: setattr(self, "seed", 0)),
        "shuffle=False still shuffles.": _with(lambda self: setattr(self, "shuffle", True)),
        "You padded and then shuffled: shuffle the N indices first, pad after.": _wrong(
            __iter__=_padded_first
        ),
        "len() is the share of this rank, not the dataset.": _wrong(__len__=lambda self: len(self.dataset)),
        "Your __iter__ is a generator (it has a yield): it runs only when the first index is asked for. Make the whole "
        "share at once and return iter(share).": _wrong(__iter__=_lazily),
        "You seeded torch's global generator: whatever draws next, a dropout or a first weight, repeats itself. Make a "
        "torch.Generator() of your own.": _with(lambda self: torch.manual_seed(self.seed + self.epoch)),
    },
)
"""Exercise 2: the whole class, judged by torch's."""


# ---- exercise 3: answers that were gathered batch by batch, back in the order of the dataset

Gathered = list[list[list[Any]]]


def _flat(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return [item for inner in lists for item in inner]


def _steps(gathered: Gathered) -> list[Any]:
    return _flat(step for batch in gathered for step in zip(*batch, strict=True))


def _gather(answers: Sequence[Any], world_size: int, batch_size: int) -> Gathered:
    """Return what all_gather brings: for each batch a list for each rank; the padding is in it."""
    shares = [_share([*range(len(answers))], world_size, rank, False) for rank in range(world_size)]
    starts = range(0, len(shares[0]), batch_size)
    return [[[answers[i] for i in share[k : k + batch_size]] for share in shares] for k in starts]


def _gathered_cases() -> Iterator[dict[str, Any]]:
    sizes = [(8, 2, 2), (5, 3, 2), (10, 4, 2), *itertools.product((1, 7, 16, 23), (1, 2, 5, 8), (1, 3, 4))]
    for size, world_size, batch_size in sizes:
        answers = [f"a{index}" for index in range(size)]
        yield dict(gathered=_gather(answers, world_size, batch_size), size=size)
    yield dict(gathered=_gather([True, False, True, True, False], 2, 2), size=5)


check_in_order = Exercise(
    "the answers in order",
    reference=lambda gathered, size: _steps(gathered)[:size],
    cases=_gathered_cases,
    name="in_order",
    mistakes={
        "They are still in the order of arrival, and cutting there takes away the wrong ones: a batch holds one rank "
        "after the other, the dataset was dealt in turns.": lambda gathered, size: _flat(map(_flat, gathered))[:size],
        "One rank's answers stand after the other's: the ranks took turns, index by index.": (
            lambda gathered, size: _flat(
                _flat(batch[rank] for batch in gathered) for rank in range(len(gathered[0]))
            )[:size]
        ),
        "The order is right, but the padding is still there: cut at size.": lambda gathered, size: _steps(gathered),
        "You took out answers that are equal: two samples may well have the same answer.": (
            lambda gathered, size: list(dict.fromkeys(_steps(gathered)))
        ),
    },
)  # fmt: skip
"""Exercise 3: one answer for each sample, in the order of the dataset, so that any score is exact."""
