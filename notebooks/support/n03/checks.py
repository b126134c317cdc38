"""Predictions and exercises of notebook 03, DistributedSampler; what an answer is tried with stands in trials.py."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DistributedSampler as TorchSampler

from support.built import MyDistributedSampler, my_share
from support.kit.exercise import Exercise
from support.kit.exercise import use as use
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.n03 import trials
from support.n03.guesses import guess_broadcasts as guess_broadcasts
from support.n03.guesses import guess_harmful as guess_harmful
from support.n03.guesses import guess_last_of_eight as guess_last_of_eight
from support.n03.guesses import guess_left_out as guess_left_out
from support.n03.guesses import guess_missed_percent as guess_missed_percent
from support.n03.guesses import guess_orders as guess_orders
from support.n03.guesses import guess_plain as guess_plain
from support.n03.solved import exact_score, new_company, new_steps
from support.n03.trials import ALONE, BEGIN, LENGTH, MADE, PASS, REST


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
    "You rounded to the nearest: where W does not divide N, the shares are rounded up, or down with drop_last.":
        ("len(order) // world_size if drop_last else -(-len(order) // world_size)", "round(len(order) / world_size)"),
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


# ---- exercise 2: the class; a case says how it is made and what happens to it, one thing after the other

_EPOCHS = f"set_epoch(2), set_epoch(5), {PASS}, {PASS}, set_epoch(1), {PASS}, set_epoch(6), {PASS}"


_EASY = [  # story, size, num_replicas, shuffle, seed, drop_last: one step of the recipe after the other
    (PASS, 12, 3, False, 0, False),
    (_EPOCHS, 12, 3, True, 4, False),
    (f"{PASS}, {PASS}, set_epoch(3), {PASS}", 12, 3, True, 0, False),
    (PASS, 10, 3, True, 0, False),
    (PASS, 10, 3, True, 0, True),
    (LENGTH, 10, 3, True, 0, False),
    (LENGTH, 10, 3, True, 0, True),
    (f"{BEGIN}, set_epoch(1), {REST}, {PASS}", 10, 3, True, 0, False),
    (f"{PASS}, {ALONE}", 10, 3, True, 0, False),
]
_RUNS = [  # story, shuffle, seed
    (f"set_epoch(2), {PASS}", False, 0),
    (PASS, True, 3),
    (f"set_epoch(5), {PASS}", True, 3),
    (LENGTH, True, 0),
]


def _sampler_cases() -> Iterator[dict[str, Any]]:
    """Yield readable cases first, ranks that there are not, then N = 1..24 × W = 1..8 in four runs, for every rank."""
    names = ("story", "size", "num_replicas", "shuffle", "seed", "drop_last")
    wide = [
        (story, size, world_size, shuffle, seed, drop_last)
        for size in range(1, 25)
        for world_size in range(1, 9)
        for story, shuffle, seed in _RUNS
        for drop_last in (False, True)
    ]
    for values in _EASY:
        yield from _for_every_rank(dict(zip(names, values, strict=True)))
    yield dict(zip(names, (MADE, 10, 3, True, 0, False), strict=True)) | {"rank": [-1, 0, 1, 2, 3]}
    for values in wide:
        yield from _for_every_rank(dict(zip(names, values, strict=True)))


def _for_every_rank(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for rank in range(case["num_replicas"]):
        yield case | {"rank": rank}


_NOTED = "self.epoch = epoch"
_DRAWN = "self.seed + self.epoch"
_DEALT = "return iter(share(order, self.world_size, self.rank, self.drop_last))"
_LENGTH = "self.size // self.world_size if self.drop_last else -(-self.size // self.world_size)"
_REFUSED = "if not 0 <= rank < num_replicas:"

_OF_SAMPLER = {
    "Epoch 0 for ever: the epoch is not in the seed.": (_DRAWN, "self.seed"),
    "The order of the first pass is kept for ever: a later set_epoch must give another one.": (
        "order = list(range(self.size))",
        "if hasattr(self, 'kept'):\n            return iter(self.kept)\n        order = list(range(self.size))",
        _DEALT,
        _DEALT.replace("return iter", "self.kept = ") + "\n        return iter(self.kept)",
    ),
    "set_epoch adds to what an earlier call has left: after epoch 2, epoch 5 is still drawn from seed + 5.": (
        _NOTED,
        "self.epoch += epoch",
    ),
    "set_epoch never goes back: a job that starts again, or another run with the same sampler, must be able to.": (
        _NOTED,
        "self.epoch = max(self.epoch, epoch)",
    ),
    "set_epoch is heard once: every later call counts, too.": (_NOTED, "self.epoch = self.epoch or epoch"),
    "The rank is in the seed: then every rank has an order of its own, and some samples are read by nobody.": (
        _DRAWN,
        "self.seed + self.rank + self.epoch",
    ),
    "The seed has no effect: only the epoch has.": (_DRAWN, "self.epoch"),
    "Seed and epoch are added, nothing else is done with them.": (_DRAWN, "1000 * self.seed + self.epoch"),
    "shuffle=False still shuffles.": ("if self.shuffle:", "if True:"),
    "You gave out the dataset's items: a sampler gives indices, and needs nothing of the dataset but its length.": (
        "self.size = len(dataset)",
        "self.size = len(dataset)\n        self.dataset = dataset",
        "return iter(share(",
        "return iter(self.dataset[index] for index in share(",
    ),
    "You asked the dataset for its items: to read one may take a disk or a network, and their number is enough.": (
        "self.size = len(dataset)",
        "self.size = len(dataset)\n        self.dataset = dataset",
        "order = list(range(self.size))",
        "order = list(range(len(list(self.dataset))))",
    ),
    "Your __iter__ returns the sampler itself: a pass that begins while another runs would take over from it.": (
        _DEALT,
        _DEALT.replace("return ", "self.passed = ")
        + "\n        return self\n\n    def __next__(self):\n        return next(self.passed)",
    ),
    "You shuffled this rank's share: shuffle the order, which all ranks have alike, and take the share of that.": (
        "list(range(self.size))",
        "share(list(range(self.size)), self.world_size, self.rank, self.drop_last)",
        "torch.randperm(self.size, generator=generator).tolist()",
        "[order[p] for p in torch.randperm(len(order), generator=generator)]",
        _DEALT,
        "return iter(order)",
    ),
    "You shuffled with Python's random: torch draws by torch.randperm, which gives another order.": (
        f"generator = torch.Generator().manual_seed({_DRAWN})",
        f"random.Random({_DRAWN}).shuffle(order)",
        "            order = torch.randperm(self.size, generator=generator).tolist()\n",
        "",
    ),
    "You padded and then shuffled: shuffle the N indices first, pad after.": (
        "torch.randperm(self.size, generator=generator).tolist()",
        "[p % self.size for p in torch.randperm(max(self.size, len(self) * self.world_size), generator=generator)"
        ".tolist()]",
    ),
    "drop_last has no effect: hand it on to share.": ("self.rank, self.drop_last))", "self.rank))"),
    "len() is the share of this rank, not the dataset.": (_LENGTH, "self.size"),
    "len() is rounded up with drop_last, too.": (_LENGTH, "-(-self.size // self.world_size)"),
    "len() is rounded down without drop_last, too.": (_LENGTH, "self.size // self.world_size"),
    "len() is one too few with drop_last: (N − W) / W has to be rounded up.": (
        _LENGTH,
        "(self.size - self.world_size) // self.world_size if self.drop_last "
        "else -(-self.size // self.world_size)",
    ),
    "Your sampler counts its passes: only set_epoch changes the epoch.": (
        "return iter(",
        "self.epoch += 1\n        return iter(",
    ),
    "Your sampler counts before it draws, so it begins with epoch 1: only set_epoch changes the epoch.": (
        "order = list(",
        "self.epoch += 1\n        order = list(",
    ),
    "Your sampler begins with epoch 1: before any set_epoch it is epoch 0.": (
        "self.epoch = 0",
        "self.epoch = 1",
    ),
    "A pass puts the epoch back to 0: only set_epoch changes it.": (
        "return iter(",
        "self.epoch = 0\n        return iter(",
    ),
    "Your generator goes on from pass to pass: two passes in one epoch must be equal, so make it anew for each.": (
        "self.epoch = 0",
        "self.epoch = 0\n        self.generator = torch.Generator().manual_seed(seed)",
        f"torch.Generator().manual_seed({_DRAWN})",
        "self.generator",
    ),
    "Your __iter__ is a generator (it has a yield): it runs only when the first index is asked for. Make the whole "
    "share at once and return iter(share).": ("return iter(", "yield from iter("),
    "You seeded torch's global generator: whatever draws next, a dropout or an initial weight, repeats itself. "
    "Make a torch.Generator() of your own.": ("torch.Generator().manual_seed(", "torch.manual_seed("),
    "No rank is refused: rank 3 of 3 would read a part of rank 0's share, and nobody would say so.": (
        _REFUSED,
        "if False:",
    ),
    "Rank W is taken: W ranks are numbered 0 to W − 1.": (_REFUSED, "if not 0 <= rank <= num_replicas:"),
    "A rank below 0 is taken: −1 would read from the end of the order.": (
        _REFUSED,
        "if rank >= num_replicas:",
    ),
}

check_sampler = Exercise(
    "the sampler",
    reference=TorchSampler,
    cases=_sampler_cases,
    view=trials.told_by,
    name="MyDistributedSampler",
    methods=("__init__", "__iter__", "__len__", "set_epoch"),
    praise="torch's own class, index for index, in all {count} cases",
    mistakes=famous(MyDistributedSampler, _OF_SAMPLER, names={"random": random}),
)
"""Exercise 2: torch's own class, asked in all ways in which a loader and a training loop ask it."""


# ---- exercise 3: the two controls

_GROUPS = "groups = epoch.flatten(0, 1)"
_IMAGES = "images = step.flatten()"

# fmt: off
_OF_CONTROLS = {
    "new_steps deals single images: then the company changes, too.": (_GROUPS, "groups = epoch.flatten()"),
    "new_steps only calls the steps in another order: the images of a step still come together.":
        (_GROUPS, "groups = epoch"),
    "new_steps only deals the groups of a step to other ranks: no group comes in another step.":
        (_GROUPS, "return torch.stack([step[torch.randperm(len(step), generator=generator)] for step in epoch])"),
    "new_steps moves groups that follow each other together: in their new step they meet again.":
        ("groups[places]", "groups.roll(int(places[0]), 0)"),
    "new_company only puts the images of a group in another order: each image keeps its company.":
        ("images[places].view_as(step)", "step[:, torch.randperm(step.shape[1], generator=generator)]"),
    "new_company only puts the groups of a step in another order: each image keeps its company.":
        (_IMAGES, "images = step"),
    "new_company deals the whole epoch: then the images of a step change, too.":
        ("return torch.stack(steps)",
         "images = epoch.flatten()\n    places = torch.randperm(len(images), generator=generator)\n"
         "    return images[places].view_as(epoch)"),
    "You draw from torch's global generator: the experiment could not be repeated.": (", generator=generator", ""),
    "new_steps only moves all groups by one place: every epoch would be the same again.":
        ("groups[places]", "groups.roll(1, 0)"),
    "The next epoch would begin from what you have left there: make a new tensor.":
        ("steps.append(images[places].view_as(step))", "step.copy_(images[places].view_as(step))",
         "torch.stack(steps)", "epoch"),
}
# fmt: on

check_controls = Exercise(
    "the two controls",
    reference=(new_steps, new_company),
    answers=2,
    name="new_steps and new_company",
    judge=judged(
        trials.fault_of_controls,
        "one deals groups to other steps, the other the images of each step to other groups, and neither does both.",
    ),
    mistakes=famous((new_steps, new_company), _OF_CONTROLS)
    | {"They are exchanged: new_steps keeps the groups, new_company the steps.": (new_company, new_steps)},
)
"""Exercise 3: two ways to deal an epoch, each of which changes one thing."""


# ---- exercise 4: answers that were gathered batch by batch, back in the order of the dataset

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
    "You return a tuple for each turn of the ranks: return one list of answers.":
        ("_turns(gathered)", "[turn for batch in gathered for turn in zip(*batch)]"),
    "You zipped the batches: what stands side by side are then the batches of one rank, not the ranks of one batch.":
        ("_turns(gathered)[:size]", "list(zip(*gathered))"),
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
"""Exercise 4: all answers, once each, in the order of the dataset."""


# ---- exercise 5: one score for all ranks

_LOCAL = "ddp.module(x)"
_SUM = "dist.all_reduce(counts)"
_QUOTIENT = "return int(counts[0]) / int(counts[1])"

_OF_SCORE = {
    "You call the wrapper with gradients: each forward broadcasts, and the ranks have unequally many.": (
        _LOCAL,
        "ddp(x)",
        "torch.no_grad()",
        "torch.enable_grad()",
    ),
    "Under no_grad the wrapper's first forward still broadcasts, and a rank without a batch has no first forward.": (
        _LOCAL,
        "ddp(x)",
    ),
    "Not every rank has rank 0's buffers here, so the hits are not those of rank 0's model.": (
        "dist.broadcast(buffer, 0)",
        "pass",
    ),
    "You took the mean of the ranks' scores: a sample on a short share weighs more.": (
        _SUM,
        "mean = torch.tensor([int(counts[0]) / max(1, int(counts[1]))], dtype=torch.float64)\n"
        "    dist.all_reduce(mean)",
        _QUOTIENT,
        "return float(mean) / dist.get_world_size()",
    ),
    "This is the score of this rank's share alone: nothing is summed over the ranks.": (_SUM, "pass"),
    "You sum after every batch, and the ranks have unequally many: sum once, after the loop.": (
        f"    {_SUM}\n",
        "",
        "counts[1] += len(y)",
        f"counts[1] += len(y)\n            {_SUM}",
    ),
    "You broadcast in the loop, and the ranks have unequally many batches: once, before it, is enough.": (
        "        for x, y in loader:",
        "        for x, y in loader:\n            for buffer in ddp.module.buffers():\n"
        "                dist.broadcast(buffer, 0)",
    ),
    "The model is still in train(): batch normalisation takes each batch's own mean.": ("ddp.eval()", "pass"),
    "You divided by the number of batches: batches differ in length.": (
        "counts[1] += len(y)",
        "counts[1] += 1",
    ),
}

check_score = Exercise(
    "the score of all ranks",
    reference=exact_score,
    name="exact_score",
    judge=judged(
        trials.fault_of_score,
        "rank 0's model on every image once, on 1 to 3 ranks, also where one has no batch.",
    ),
    mistakes=famous(exact_score, _OF_SCORE),
)
"""Exercise 5: exact on uneven shares, of one model, and nobody waits."""
