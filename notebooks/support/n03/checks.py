"""Predictions and exercises of notebook 03, DistributedSampler; trials and famous mistakes have files of their own."""

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
from support.n03 import mistakes, redeals, scores, stories
from support.n03.guesses import guess_broadcasts as guess_broadcasts
from support.n03.guesses import guess_harmful as guess_harmful
from support.n03.guesses import guess_last_of_eight as guess_last_of_eight
from support.n03.guesses import guess_left_out as guess_left_out
from support.n03.guesses import guess_missed_percent as guess_missed_percent
from support.n03.guesses import guess_orders as guess_orders
from support.n03.guesses import guess_plain as guess_plain
from support.n03.solved import exact_score, new_company, new_steps
from support.n03.stories import ALONE, BEGIN, DEFAULTS, KEYWORDS, LENGTH, MADE, OTHER, PASS, REST


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
    # twice (10, 3): another order of the same length
    sizes = [(6, 3), (10, 3), (2, 5), (10, 3), *itertools.product(range(1, 25), range(1, 10))]
    for turn, (size, world_size) in enumerate(sizes):
        seed = size + 100 * (turn == 3)
        order = (10 * torch.randperm(size, generator=torch.Generator().manual_seed(seed)) + 10).tolist()
        for drop_last, rank in itertools.product((False, True), range(world_size)):
            yield dict(order=[*order], world_size=world_size, rank=rank, drop_last=drop_last)


check_share = Exercise(
    "the share of a rank",
    reference=_share,
    cases=_share_cases,
    view=_a_list,
    name="my_share",
    mistakes=famous(my_share, mistakes.OF_SHARE),
)
"""Exercise 1: what torch's own sampler yields, cut from an order that is given."""


# ---- exercise 2: the class; a case says how it is made and what happens to it, one thing after the other

_EPOCHS = f"set_epoch(2), set_epoch(5), {PASS}, {PASS}, set_epoch(1), {PASS}, set_epoch(6), {PASS}"


_EASY = [  # story, size, num_replicas, shuffle, seed, drop_last: one step of the recipe after the other
    (PASS, 12, 3, False, 0, False),
    (_EPOCHS, 12, 3, True, 4, False),
    (f"{PASS}, {PASS}, set_epoch(3), {PASS}, set_epoch(0), {PASS}", 12, 3, True, 0, False),
    (PASS, 10, 3, True, 0, False),
    (PASS, 10, 3, True, 0, True),
    (LENGTH, 10, 3, True, 0, False),
    (LENGTH, 10, 3, True, 0, True),
    (f"{BEGIN}, set_epoch(1), {REST}, {PASS}", 10, 3, True, 0, False),
    (f"{BEGIN}, set_epoch(1), {PASS}, {REST}", 10, 3, True, 0, False),
    (f"{OTHER}, {PASS}", 10, 3, True, 0, False),
    (f"set_epoch(1000000), {PASS}", 10, 3, True, 0, False),
    (PASS, 10, 3, True, 1_000_000, False),
    (f"{ALONE}, {LENGTH}, {ALONE}, set_epoch(3), {ALONE}, {PASS}, {ALONE}", 10, 3, True, 0, False),
    (f"{KEYWORDS}, {PASS}", 10, 3, True, 0, False),
    (f"{DEFAULTS}, {PASS}", 10, 3, True, 0, False),
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


check_sampler = Exercise(
    "the sampler",
    reference=TorchSampler,
    cases=_sampler_cases,
    view=stories.told_by,
    name="MyDistributedSampler",
    methods=("__init__", "__iter__", "__len__", "set_epoch"),
    praise="torch's own class, index for index, in all {count} cases",
    mistakes=famous(MyDistributedSampler, mistakes.OF_SAMPLER, names={"random": random}),
)
"""Exercise 2: torch's own class, asked in all ways in which a loader and a training loop ask it."""


# ---- exercise 3: the two controls

check_controls = Exercise(
    "the two controls",
    reference=(new_steps, new_company),
    answers=2,
    name="new_steps and new_company",
    judge=judged(
        redeals.fault_of_controls,
        "one deals groups to other steps, the other the images of each step to other groups, and neither does both.",
    ),
    mistakes=famous((new_steps, new_company), mistakes.OF_CONTROLS)
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
    for size, world_size, batch_size in [(8, 2, 2), (5, 3, 2), (10, 4, 2)]:
        yield dict(
            gathered=_gather([f"a{index}" for index in range(size)], world_size, batch_size), size=size
        )
    for anything in (
        ["b", "a", "c", "a"],
        [True, False, True, True],
        [None, 3, None, ""],
        [(1, 2), [3], {"a": 4}, []],
    ):
        yield dict(gathered=_gather([*anything, anything[0]], 2, 2), size=5)
    for size, world_size, batch_size in itertools.product((1, 7, 16, 23), (1, 2, 5, 8), (1, 3, 4)):
        names = torch.randperm(size, generator=torch.Generator().manual_seed(size)).tolist()
        yield dict(gathered=_gather([f"a{name}" for name in names], world_size, batch_size), size=size)


def _in_order(gathered: Gathered, size: int) -> list[Any]:
    return _turns(gathered)[:size]


check_in_order = Exercise(
    "the answers in order",
    reference=_in_order,
    cases=_gathered_cases,
    view=_a_list,
    name="in_order",
    mistakes=famous(_in_order, mistakes.OF_ORDER),
)
"""Exercise 4: all answers, once each, in the order of the dataset."""


# ---- exercise 5: one score for all ranks

check_score = Exercise(
    "the score of all ranks",
    reference=exact_score,
    name="exact_score",
    judge=judged(
        scores.fault_of_score,
        "rank 0's model on every image once, on 1 to 3 ranks, also where one has no batch.",
    ),
    mistakes=famous(exact_score, mistakes.OF_SCORE),
)
"""Exercise 5: exact on uneven shares, of one model, and nobody waits."""
