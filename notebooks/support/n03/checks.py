"""Predictions and exercises of notebook 03, DistributedSampler."""

from __future__ import annotations

import copy
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from torch.utils.data import DistributedSampler as TorchSampler

from support.checks import Exercise, Guess, Tried, Verdict, untouched
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


def _numbers(my_guess: object) -> object:
    """Read 1, (1,) and "[1]" as [1]."""
    return [int(number) for number in re.findall(r"\d+", str(my_guess))] or my_guess


def _networks(my_guess: object) -> object:
    """Read a choice in whatever case and order; of any other word say that it is none."""
    if not isinstance(my_guess, str):
        return my_guess
    word = my_guess.strip().upper()
    word = "".join(sorted(word)) if set(word) <= set("AB") else word
    return word if word in ("A", "B", "AB", "NONE") else f"{my_guess}, which is none of A, B, AB and none"


guess_last_of_eight = Guess(
    "what rank 7 gets of 3 samples on 8 ranks",
    lambda: list(TorchSampler(range(3), 8, 7, shuffle=False)),  # type: ignore[arg-type]
    read=_numbers,
    tried=Tried(right=[1], wrong=[7]),
)
guess_orders = Guess(
    "the number of different orders",
    lambda: len({s + e for s in range(6) for e in range(6)}),
    tried=Tried(right=11, wrong=36),
)
guess_harmed = Guess(
    "the networks that lose by it",
    _harmed,
    read=_networks,
    tried=Tried(
        right="b",
        wrong="AB",
        known=(
            {
                "A, told": {"test loss": [0.3, 0.31]},
                "A, forgotten": {"test loss": [0.31, 0.3]},
                "B, told": {"test loss": [0.3, 0.31]},
                "B, forgotten": {"test loss": [0.4, 0.42]},
            },
        ),
    ),
)
# a per cent more or less: 37, the limit of ever more ranks, is another answer
guess_missed_percent = Guess(
    "the share of samples without a holder, in per cent",
    lambda: 100 * (7 / 8) ** 8,
    unit="%",
    tolerance=0.029,
    tried=Tried(right=34.4, wrong=0),
)


def _a_list(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Ask for a list, and for arguments that are afterwards what they were."""

    def asked(**case: Any) -> Any:
        given = copy.deepcopy(case)
        found = answer(**given)
        if changed := [name for name in case if given[name] != case[name]]:
            return f"a change of `{changed[0]}`, which belongs to the caller"
        return found if found is None or isinstance(found, list) else f"a {type(found).__name__}, not a list"

    return asked


# ---- exercise 1: the share of a rank, cut from an order that is given


def _share(order: list[int], world_size: int, rank: int, drop_last: bool) -> list[int]:
    """Let torch's own sampler say which positions the rank takes."""
    sampler: Any = TorchSampler(order, world_size, rank, shuffle=False, drop_last=drop_last)  # type: ignore[arg-type]
    return [order[position] for position in sampler]


def _steps(size: int, world_size: int, drop_last: bool) -> int:
    return size // world_size if drop_last else -(-size // world_size)


def _share_cases() -> Iterator[dict[str, Any]]:
    """Yield readable cases first, then 1..24 samples on 1..9 ranks; by tens, so that no index is a position, too."""
    sizes = [(6, 3), (10, 3), (2, 5), *itertools.product(range(1, 25), range(1, 10))]
    for (size, world_size), drop_last in itertools.product(sizes, (False, True)):
        places = torch.randperm(size, generator=torch.Generator().manual_seed(size))
        for rank in range(world_size):
            order = (10 * places + 10).tolist()
            yield dict(order=order, world_size=world_size, rank=rank, drop_last=drop_last)


def _dealt(make: Callable[[list[int], int, int], list[int]]) -> Callable[..., list[int]]:
    """Return a wrong share: `make` has the order, the total and W, and returns what is then dealt in hops."""
    return lambda order, world_size, rank, drop_last: (
        make(order, world_size * _steps(len(order), world_size, drop_last), world_size)[rank::world_size])  # fmt: skip


check_share = Exercise(
    "the share of a rank",
    reference=_share,
    cases=_share_cases,
    view=_a_list,
    name="my_share",
    mistakes={
        "Nothing is padded or dropped: the ranks get shares of different lengths.": _dealt(lambda order, *_: order),
        "You padded with 0, or with 0, 1, 2 …: torch repeats the head of the order, whatever it is.":
            _dealt(lambda order, total, _: [*order, *range(total)][:total]),
        "You padded with the last index: torch repeats the head of the order.":
            _dealt(lambda order, total, _: (order + order[-1:] * total)[:total]),
        "You appended the head once: with more than 2 N positions it has to be repeated again.":
            _dealt(lambda order, total, _: (order * 2)[:total]),
        "A rank that lacks one took its own first index again: pad the order, which all ranks share.":
            lambda order, world_size, rank, drop_last:
                [*order[rank::world_size], *order[rank : rank + 1]][: _steps(len(order), world_size, drop_last)],
        "You cut contiguous blocks: rank r takes positions r, r + W, r + 2 W, …":
            lambda order, world_size, rank, drop_last:
                (order * world_size)[rank * (steps := _steps(len(order), world_size, drop_last)) :][:steps],
        "drop_last cut the head of the order: it cuts the tail.":
            _dealt(lambda order, total, W: (order * W)[:total] if total >= len(order) else order[len(order) - total :]),
        "drop_last=True still pads.":
            lambda order, world_size, rank, drop_last: _share(order, world_size, rank, False),
        "Rounding up is not floor + 1: where W divides N, the two differ.":
            _dealt(lambda order, total, W: (order * (W + 1))[: total + W * (total == len(order))]),
        "These are positions: return the indices that stand there, order[p].":
            _dealt(lambda order, total, W: ([*range(len(order))] * W)[:total]),
        "You sorted the order: it is already the one that is dealt.":
            _dealt(lambda order, total, W: (sorted(order) * W)[:total]),
        "You sorted the share: a rank reads it as the order has it.":
            lambda order, world_size, rank, drop_last: sorted(_share(order, world_size, rank, drop_last)),
        "Ranks count from 0, so rank r begins at position r.":
            lambda order, world_size, rank, drop_last: (order * 2)[rank - 1 :: world_size],
    },
)  # fmt: skip


# ---- exercise 2: the class; a case says how it is made and what is asked of it

ITERATE, TWICE, LENGTH = "list(sampler)", "list(sampler) a second time, in the same epoch", "len(sampler)"
LATE = "iter(sampler), then set_epoch(epoch + 1), then list"
GLOBAL = "list(sampler) leaves torch's generator alone"
NAMES = ("num_replicas", "rank", "shuffle", "seed", "drop_last")


def _asked(kind: Any) -> Callable[..., Any]:
    def taken(begun: Any) -> Any:
        if not isinstance(begun, Iterator):
            return (
                None
                if begun is None
                else f"a {type(begun).__name__}, which is no iterator: return iter(share)"
            )
        found = list(itertools.islice(begun, 100))  # an endless one ends
        odd = [type(index).__name__ for index in found if not isinstance(index, int)]
        return f"indices of type {odd[0]} (.tolist() makes a tensor Python's numbers)" if odd else found

    def answer(ask: str, size: int, epoch: int, **made: Any) -> Any:
        sampler = kind(range(size), *(made[name] for name in NAMES))
        if epoch:
            sampler.set_epoch(epoch)
        if ask == LENGTH:
            return sampler.__len__()
        before = torch.get_rng_state()
        begun = sampler.__iter__()
        if ask == LATE:
            sampler.set_epoch(epoch + 1)
        first = taken(begun)
        found = taken(sampler.__iter__()) if ask == TWICE else first
        left_alone = torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
        return left_alone if ask == GLOBAL and isinstance(found, list) else found

    return answer


def _sampler_cases() -> Iterator[dict[str, Any]]:
    """Yield readable cases first, one step of the recipe after the other, then N = 1..24 × W = 1..8, each rank."""
    names = ("ask", "size", "num_replicas", "shuffle", "seed", "drop_last", "epoch")
    easy = [(ITERATE, 12, 3, False, 0, False, 0), (ITERATE, 12, 3, True, 0, False, 0)]
    easy += [(ITERATE, 12, 3, True, 0, False, 2), (ITERATE, 12, 3, True, 7, False, 0)]
    easy += [(ITERATE, 10, 3, True, 0, False, 0), (ITERATE, 10, 3, True, 0, True, 0)]
    easy += [(LENGTH, 10, 3, True, 0, drop, 0) for drop in (False, True)]
    easy += [(ask, 10, 3, True, 0, False, epoch) for ask, epoch in ((TWICE, 1), (LATE, 0), (GLOBAL, 0))]
    runs = ((ITERATE, False, 0, 2), (ITERATE, True, 3, 0), (ITERATE, True, 3, 5), (LENGTH, True, 0, 0))
    grid = itertools.product(range(1, 25), range(1, 9), runs, (False, True))
    wide = [(ask, n, w, shuffle, seed, drop, epoch) for n, w, (ask, shuffle, seed, epoch), drop in grid]
    for values in [*easy, *wide]:
        yield from ({**dict(zip(names, values, strict=True)), "rank": rank} for rank in range(values[2]))


def _wrong(**methods: Any) -> type:
    """Return torch's sampler with one thing done differently."""
    return type("Wrong", (TorchSampler,), methods)


def _with(change: Callable[[Any], Any], after: Callable[[Any], Any] = id) -> type:
    """Return a sampler on which `change` is done before each pass, `after` once its share is made."""
    return _wrong(__iter__=lambda self: (change(self), TorchSampler.__iter__(self), after(self))[1])


def _yields(make: Callable[[Any], list[int]]) -> type:
    return _wrong(__iter__=lambda self: iter(make(self)))


def _pass(sampler: Any, **changes: Any) -> list[int]:
    """Return what a sampler would yield if it were made with these changes."""
    other: Any = TorchSampler(sampler.dataset, **{name: getattr(sampler, name) for name in NAMES} | changes)
    other.set_epoch(sampler.epoch)
    return list(other)


def _drawn(sampler: Any, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(sampler.seed + sampler.epoch)
    return torch.randperm(count, generator=generator).tolist() if sampler.shuffle else [*range(count)]


def _by_random(self: Any) -> list[int]:
    order = [*range(len(self.dataset))]
    if self.shuffle:
        random.Random(self.seed + self.epoch).shuffle(order)
    return _share(order, self.num_replicas, self.rank, self.drop_last)


class _Class(Exercise):
    """An exercise whose answer is a class: if only some of its methods are written, the others are named."""

    def __call__(self, *answers: Any) -> Verdict:
        stubs = [name for name in self.methods if untouched(getattr(answers[0], name, id))]
        if 0 < len(stubs) < len(self.methods):
            return Verdict("open", f"{self.name}: still the stub: {', '.join(stubs)}.")
        return super().__call__(*answers)


check_sampler = _Class(
    "the sampler",
    reference=TorchSampler,
    cases=_sampler_cases,
    view=_asked,
    name="MyDistributedSampler",
    methods=("__init__", "__iter__", "__len__", "set_epoch"),
    praise="torch's own class, index for index, in all {count} cases",
    mistakes={
        "Epoch 0 for ever: the epoch is not in the seed, or is set to 0.": _with(lambda self: self.set_epoch(0)),
        "The rank is in the seed: then every rank has an order of its own, and some samples are read by nobody.":
            _with(lambda self: setattr(self, "seed", self.seed + self.rank)),
        "The seed has no effect: only the epoch has.": _with(lambda self: setattr(self, "seed", 0)),
        "Seed and epoch are added, nothing else is done with them.":
            _yields(lambda self: _pass(self, seed=1000 * self.seed)),
        "shuffle=False still shuffles.": _with(lambda self: setattr(self, "shuffle", True)),
        "You shuffled this rank's share: shuffle the order, which all ranks have alike, and take the share of that.":
            _yields(lambda self: [_pass(self, shuffle=False)[p] for p in _drawn(self, self.num_samples)]),
        "You shuffled with Python's random: torch draws by torch.randperm, which gives another order.":
            _yields(_by_random),
        "You padded and then shuffled: shuffle the N indices first, pad after.":
            _yields(lambda self: [
                p % len(self.dataset) for p in _drawn(self, max(len(self.dataset), self.total_size))[: self.total_size]
            ][self.rank :: self.num_replicas]),
        "drop_last has no effect: hand it on to share.": _yields(lambda self: _pass(self, drop_last=False)),
        "len() is the share of this rank, not the dataset.": _wrong(__len__=lambda self: len(self.dataset)),
        "len() is rounded up with drop_last, too.": _wrong(__len__=lambda self: len(_pass(self, drop_last=False))),
        "len() is rounded down without drop_last, too.": _wrong(__len__=lambda self: len(_pass(self, drop_last=True))),
        "Your sampler counts its passes: only set_epoch changes the epoch.":
            _with(id, after=lambda self: self.set_epoch(self.epoch + 1)),
        "Your sampler counts before it draws, so it begins with epoch 1: only set_epoch changes the epoch.":
            _with(lambda self: self.set_epoch(self.epoch + 1)),
        "A pass puts the epoch back to 0: only set_epoch changes it.": _with(id, after=lambda self: self.set_epoch(0)),
        "Your __iter__ is a generator (it has a yield): it runs only when the first index is asked for. Make the whole "
        "share at once and return iter(share).":
            _wrong(__iter__=lambda self: (yield from TorchSampler.__iter__(self))),
        "You seeded torch's global generator: whatever draws next, a dropout or an initial weight, repeats itself. "
        "Make a torch.Generator() of your own.": _with(lambda self: torch.manual_seed(self.seed + self.epoch)),
    },
)  # fmt: skip


# ---- exercise 3: answers that were gathered batch by batch, back in the order of the dataset

Gathered = list[list[list[Any]]]


def _flat(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return [item for inner in lists for item in inner]


def _turns(gathered: Gathered) -> list[Any]:
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
    reference=lambda gathered, size: _turns(gathered)[:size],
    cases=_gathered_cases,
    view=_a_list,
    name="in_order",
    mistakes={
        "They are still in the order of arrival, and cutting there takes away the wrong ones: a batch holds one rank "
        "after the other, the dataset was dealt in turns.": lambda gathered, size: _flat(map(_flat, gathered))[:size],
        "One rank's answers stand after the other's: the ranks took turns, index by index.":
            lambda gathered, size:
                _flat(_flat(batch[rank] for batch in gathered) for rank in range(len(gathered[0])))[:size],
        "The order is right, but the padding is still there: cut at size.": lambda gathered, size: _turns(gathered),
        "You cut each batch at size: the padding stands at the end of all batches together, so cut once, last.":
            lambda gathered, size: _flat(_turns([batch])[:size] for batch in gathered),
        "You cut at the front: the padding stands at the end.": lambda gathered, size: _turns(gathered)[-size:],
        "The last batch is missing: it may be shorter than the others, and belongs to the dataset.":
            lambda gathered, size: _turns(gathered[:-1])[:size],
        "You sorted the answers: they may be anything. Their place tells the sample, not their value.":
            lambda gathered, size: sorted(_turns(gathered))[:size],
        "You took out answers that are equal: two samples may well have the same answer.":
            lambda gathered, size: list(dict.fromkeys(_turns(gathered))),
    },
)  # fmt: skip
