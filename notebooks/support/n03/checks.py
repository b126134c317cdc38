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

from support.built import MyDistributedSampler, my_share
from support.checks import Exercise, Guess, Tried
from support.checks import use as use
from support.kit.mistakes import famous

# ---- predictions: each truth is computed, from the samplers themselves or from what the notebook has measured


def _harmed(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Name the networks whose test loss rises by more than three standard errors, in the order A, B."""
    names = list(dict.fromkeys(name.rpartition(", ")[0] for name in found))
    harmed = ""
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


def _share_cases() -> Iterator[dict[str, Any]]:
    """Yield readable cases first, then 1..24 samples on 1..9 ranks; by tens, so that no index is a position, too."""
    sizes = [(6, 3), (10, 3), (2, 5), *itertools.product(range(1, 25), range(1, 10))]
    for (size, world_size), drop_last in itertools.product(sizes, (False, True)):
        places = torch.randperm(size, generator=torch.Generator().manual_seed(size))
        for rank in range(world_size):
            order = (10 * places + 10).tolist()
            yield dict(order=order, world_size=world_size, rank=rank, drop_last=drop_last)


# fmt: off
_OF_SHARE = {
    "Nothing is padded or dropped: the ranks get shares of different lengths.":
        ("(order * max(1, times))[:total]", "order"),
    "You padded with 0, or with 0, 1, 2 …: torch repeats the head of the order, whatever it is.":
        ("(order * max(1, times))[:total]", "[*order, *range(total)][:total]"),
    "You padded with the last index: torch repeats the head of the order.":
        ("(order * max(1, times))[:total]", "(order + order[-1:] * total)[:total]"),
    "You appended the head once: with more than 2 N positions it has to be repeated again.":
        ("order * max(1, times)", "order * 2"),
    "A rank that lacks one took its own first index again: pad the order, which all ranks share.":
        ("(order * max(1, times))[:total]", "order",
         "order[rank::world_size]", "[*order[rank::world_size], *order[rank : rank + 1]][:steps]"),
    "You cut contiguous blocks: rank r takes positions r, r + W, r + 2 W, …":
        ("order[rank::world_size]", "order[rank * steps :][:steps]"),
    "drop_last cut the head of the order: it cuts the tail.":
        ("[:total]", "[:total] if total >= len(order) else order[len(order) - total :]"),
    "drop_last=True still pads.": ("if drop_last", "if False"),
    "Rounding up is not floor + 1: where W divides N, the two differ.":
        ("-(-len(order) // world_size)", "len(order) // world_size + 1"),
    "These are positions: return the indices that stand there, order[p].":
        ("(order *", "([*range(len(order))] *"),
    "You sorted the order: it is already the one that is dealt.": ("(order *", "(sorted(order) *"),
    "You sorted the share: a rank reads it as the order has it.":
        ("order[rank::world_size]", "sorted(order[rank::world_size])"),
    "Ranks count from 0, so rank r begins at position r.":
        ("order[rank::world_size]", "order[rank - 1 :: world_size]"),
}
# fmt: on

check_share = Exercise(
    "the share of a rank",
    reference=_share,
    cases=_share_cases,
    view=_a_list,
    name="my_share",
    mistakes=famous(my_share, _OF_SHARE),
)
"""Exercise 1: what torch's own sampler yields, cut from an order that is given."""


# ---- exercise 2: the class; a case says how it is made and what is asked of it

ITERATE = "list(sampler)"
TWICE = "list(sampler) a second time, in the same epoch"
LENGTH = "len(sampler)"
LATE = "iter(sampler), then set_epoch(epoch + 1), then list"
GLOBAL = "list(sampler) leaves torch's generator alone"
NAMES = ("num_replicas", "rank", "shuffle", "seed", "drop_last")


def _indices(begun: Any) -> Any:
    """Return the indices that an iterator gives, or what is odd about it, in words."""
    if begun is None:
        return None
    if not isinstance(begun, Iterator):
        return f"a {type(begun).__name__}, which is no iterator: return iter(share)"
    found = list(itertools.islice(begun, 100))  # an endless one ends
    odd = [type(index).__name__ for index in found if not isinstance(index, int)]
    return f"indices of type {odd[0]} (.tolist() makes a tensor Python's numbers)" if odd else found


def _asked(kind: Any) -> Callable[..., Any]:
    """Make the function of a case: a sampler of this kind is made, and asked what `ask` says."""

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
        found = _indices(begun)
        if ask == TWICE:
            found = _indices(sampler.__iter__())
        left_alone = torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
        return left_alone if ask == GLOBAL and isinstance(found, list) else found

    return answer


# fmt: off
_EASY = [  # ask, size, num_replicas, shuffle, seed, drop_last, epoch: one step of the recipe after the other
    (ITERATE, 12, 3, False, 0, False, 0),
    (ITERATE, 12, 3, True,  0, False, 0),
    (ITERATE, 12, 3, True,  0, False, 2),
    (ITERATE, 12, 3, True,  7, False, 0),
    (ITERATE, 10, 3, True,  0, False, 0),
    (ITERATE, 10, 3, True,  0, True,  0),
    (LENGTH,  10, 3, True,  0, False, 0),
    (LENGTH,  10, 3, True,  0, True,  0),
    (TWICE,   10, 3, True,  0, False, 1),
    (LATE,    10, 3, True,  0, False, 0),
    (GLOBAL,  10, 3, True,  0, False, 0),
]
_RUNS = [  # ask, shuffle, seed, epoch
    (ITERATE, False, 0, 2),
    (ITERATE, True,  3, 0),
    (ITERATE, True,  3, 5),
    (LENGTH,  True,  0, 0),
]
# fmt: on


def _sampler_cases() -> Iterator[dict[str, Any]]:
    """Yield readable cases first, then N = 1..24 × W = 1..8 in four runs; each for every rank."""
    names = ("ask", "size", "num_replicas", "shuffle", "seed", "drop_last", "epoch")
    wide = [
        (ask, size, world_size, shuffle, seed, drop_last, epoch)
        for size in range(1, 25)
        for world_size in range(1, 9)
        for ask, shuffle, seed, epoch in _RUNS
        for drop_last in (False, True)
    ]
    for values in [*_EASY, *wide]:
        case: dict[str, Any] = dict(zip(names, values, strict=True))
        for rank in range(case["num_replicas"]):
            yield case | {"rank": rank}


# fmt: off
_OF_SAMPLER = {
    "Epoch 0 for ever: the epoch is not in the seed, or is set to 0.": ("self.seed + self.epoch", "self.seed"),
    "The rank is in the seed: then every rank has an order of its own, and some samples are read by nobody.":
        ("self.seed + self.epoch", "self.seed + self.rank + self.epoch"),
    "The seed has no effect: only the epoch has.": ("self.seed + self.epoch", "self.epoch"),
    "Seed and epoch are added, nothing else is done with them.":
        ("self.seed + self.epoch", "1000 * self.seed + self.epoch"),
    "shuffle=False still shuffles.": ("if self.shuffle:", "if True:"),
    "You shuffled this rank's share: shuffle the order, which all ranks have alike, and take the share of that.":
        ("list(range(self.size))", "share(list(range(self.size)), self.world_size, self.rank, self.drop_last)",
         "torch.randperm(self.size, generator=generator).tolist()",
         "[order[p] for p in torch.randperm(len(order), generator=generator)]",
         "iter(share(order, self.world_size, self.rank, self.drop_last))", "iter(order)"),
    "You shuffled with Python's random: torch draws by torch.randperm, which gives another order.":
        ("generator = torch.Generator().manual_seed(self.seed + self.epoch)",
         "random.Random(self.seed + self.epoch).shuffle(order)",
         "            order = torch.randperm(self.size, generator=generator).tolist()\n", ""),
    "You padded and then shuffled: shuffle the N indices first, pad after.":
        ("torch.randperm(self.size, generator=generator).tolist()",
         "[p % self.size for p in torch.randperm(max(self.size, len(self) * self.world_size), generator=generator)"
         ".tolist()]"),
    "drop_last has no effect: hand it on to share.": ("self.rank, self.drop_last))", "self.rank))"),
    "len() is the share of this rank, not the dataset.":
        ("self.size // self.world_size if self.drop_last else -(-self.size // self.world_size)", "self.size"),
    "len() is rounded up with drop_last, too.": ("self.size // self.world_size if self.drop_last else ", ""),
    "len() is rounded down without drop_last, too.": (" if self.drop_last else -(-self.size // self.world_size)", ""),
    "Your sampler counts its passes: only set_epoch changes the epoch.":
        ("return iter(", "self.epoch += 1\n        return iter("),
    "Your sampler counts before it draws, so it begins with epoch 1: only set_epoch changes the epoch.":
        ("order = list(", "self.epoch += 1\n        order = list("),
    "A pass puts the epoch back to 0: only set_epoch changes it.":
        ("return iter(", "self.epoch = 0\n        return iter("),
    "Your __iter__ is a generator (it has a yield): it runs only when the first index is asked for. Make the whole "
    "share at once and return iter(share).": ("return iter(", "yield from iter("),
    "You seeded torch's global generator: whatever draws next, a dropout or an initial weight, repeats itself. "
    "Make a torch.Generator() of your own.": ("torch.Generator().manual_seed(", "torch.manual_seed("),
}
# fmt: on

check_sampler = Exercise(
    "the sampler",
    reference=TorchSampler,
    cases=_sampler_cases,
    view=_asked,
    name="MyDistributedSampler",
    methods=("__init__", "__iter__", "__len__", "set_epoch"),
    praise="torch's own class, index for index, in all {count} cases",
    mistakes=famous(MyDistributedSampler, _OF_SAMPLER, names={"random": random}),
)
"""Exercise 2: torch's own class, asked in all ways in which a loader and a training loop ask it."""


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


def _in_order(gathered: Gathered, size: int) -> list[Any]:
    return _turns(gathered)[:size]


# fmt: off
_OF_ORDER = {
    "They are still in the order of arrival, and cutting there takes away the wrong ones: a batch holds one rank "
    "after the other, the dataset was dealt in turns.": ("_turns(gathered)", "_flat(map(_flat, gathered))"),
    "One rank's answers stand after the other's: the ranks took turns, index by index.":
        ("_turns(gathered)", "_flat(_flat(batch[rank] for batch in gathered) for rank in range(len(gathered[0])))"),
    "The order is right, but the padding is still there: cut at size.": ("[:size]", ""),
    "You cut each batch at size: the padding stands at the end of all batches together, so cut once, last.":
        ("_turns(gathered)[:size]", "_flat(_turns([batch])[:size] for batch in gathered)"),
    "You cut at the front: the padding stands at the end.": ("[:size]", "[-size:]"),
    "The last batch is missing: it may be shorter than the others, and belongs to the dataset.":
        ("_turns(gathered)", "_turns(gathered[:-1])"),
    "You sorted the answers: they may be anything. Their place tells the sample, not their value.":
        ("_turns(gathered)", "sorted(_turns(gathered))"),
    "You took out answers that are equal: two samples may well have the same answer.":
        ("_turns(gathered)[:size]", "list(dict.fromkeys(_turns(gathered)))"),
}
# fmt: on

check_in_order = Exercise(
    "the answers in order",
    reference=_in_order,
    cases=_gathered_cases,
    view=_a_list,
    name="in_order",
    mistakes=famous(_in_order, _OF_ORDER),
)
"""Exercise 3: all answers, once each, in the order of the dataset."""
