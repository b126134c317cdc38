"""Predictions and exercises of notebook 03, DistributedSampler; trials and famous mistakes have files of their own."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch.utils.data import DistributedSampler as TorchSampler

from lib.text import plural
from support.built import MyDistributedSampler, my_share
from support.kit.exercise import Exercise
from support.kit.exercise import use as use
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.kit.outside import changed_since, state_of, told_of_kept
from support.kit.values import short
from support.kit.verdict import Verdict
from support.n03 import mistakes, redeals, scores, stories
from support.n03.guesses import guess_broadcasts as guess_broadcasts
from support.n03.guesses import guess_harmful as guess_harmful
from support.n03.guesses import guess_last_of_eight as guess_last_of_eight
from support.n03.guesses import guess_left_out as guess_left_out
from support.n03.guesses import guess_missed_percent as guess_missed_percent
from support.n03.guesses import guess_orders as guess_orders
from support.n03.guesses import guess_plain as guess_plain
from support.n03.solved import exact_score, new_company, new_steps
from support.n03.stories import ALONE, BEGIN, DEFAULTS, KEYWORDS, LENGTH, MADE, ONE, OTHER, PASS, REST


def _a_list(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Ask for a list, for arguments that are afterwards what they were, and for earlier results that are, too."""
    before: list[tuple[Any, Any]] = []

    def asked(**case: Any) -> Any:
        given = copy.deepcopy(case)
        found = answer(**given)
        if changed := [name for name in case if given[name] != case[name]]:
            return f"a change of `{changed[0]}`, which belongs to the caller"
        if any(earlier != copied for earlier, copied in before):
            return "a change of what an earlier call has returned"
        if not isinstance(found, list):
            return found if found is None else f"a {type(found).__name__}, not a list"
        before[:] = [(found, copy.deepcopy(found))]
        return found

    return asked


# ---- exercise 1: the share of a rank, cut from an order that is given


def _a_list_of_indices(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Ask for a list of whole numbers, of whatever type."""
    listed = _a_list(answer)

    def asked(**case: Any) -> Any:
        found = listed(**case)
        odd = (
            [type(item).__name__ for item in found if not isinstance(item, Integral)]
            if isinstance(found, list)
            else []
        )
        return f"a list with a {odd[0]} in it, which is no index" if odd else found

    return asked


def _share(order: list[int], world_size: int, rank: int, drop_last: bool = False) -> list[int]:
    """Let torch's own sampler say which positions the rank takes."""
    sampler: Any = TorchSampler(order, world_size, rank, shuffle=False, drop_last=drop_last)  # type: ignore[arg-type]
    return [order[position] for position in sampler]


def _share_cases() -> Iterator[dict[str, Any]]:
    """Yield readable cases first, then 1..24 samples on 1..9 ranks, few samples on many ranks, none, and cases by lot.

    By tens, so that no index is a position, too; by lot with index 0, which counts as false.
    """
    # first where the sizes do not fit, so that too much is not taken for rounding; twice (10, 3): another order
    sizes = [(10, 3), (6, 3), (2, 5), (10, 3), *itertools.product(range(1, 25), range(1, 10))]
    for turn, (size, world_size) in enumerate(sizes):
        order = _order(size, seed=size + 100 * (turn == 3))
        for drop_last, rank in itertools.product((False, True), range(world_size)):
            yield dict(order=[*order], world_size=world_size, rank=rank, drop_last=drop_last)
    for size, world_size in ((1, 64), (2, 1000), (5, 4096), (1, 12_000)):
        for rank in (0, 1, world_size // 2, world_size - 1):
            yield dict(order=_order(size, seed=size), world_size=world_size, rank=rank, drop_last=False)
    for drop_last in (False, True):
        yield dict(order=[], world_size=3, rank=1, drop_last=drop_last)
    yield dict(order=_order(10, seed=10), world_size=3, rank=1)
    yield from _shares_by_lot()


def _order(size: int, seed: int) -> list[int]:
    drawn = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    order: list[int] = (10 * drawn + 10).tolist()
    return order


def _shares_by_lot() -> Iterator[dict[str, Any]]:
    """Yield pairs of cases: an order, and the same with two indices exchanged, one of them this rank's."""
    lot = random.Random(3)
    for seed in range(120):
        large = seed % 2
        size = lot.randint(2, 400 if large else 60)
        world_size = lot.randint(1, 130 if large else 12)
        order = [index - 10 for index in _order(size, seed)]
        one, other = lot.sample(range(size), 2)
        case = dict(world_size=world_size, rank=one % world_size, drop_last=lot.random() < 0.5)
        yield dict(order=[*order], **case)
        order[one], order[other] = order[other], order[one]
        yield dict(order=order, **case)


def _fault_of_share(got: Any, expected: list[int], case: Mapping[str, Any]) -> str:
    """Say what is wrong with a share, by positions of the order."""
    order = case["order"]
    if not isinstance(got, list):
        return f"expected {short(expected)}, got {short(got)}"
    if len(got) != len(expected):
        many = "more" if len(got) > len(expected) else f"{len(got)}: {short(got)}"
        dealt = f"of {plural(len(order), 'index', 'indices')} each of {plural(case['world_size'], 'rank')}"
        return f"{dealt} gets {len(expected)}, rank {case['rank']} {short(expected)}; you give {many}"
    for turn, (index, due) in enumerate(zip(got, expected, strict=True)):
        if index != due:
            stands = f"at position {order.index(index)}" if index in order else "nowhere in the order"
            which = f"{due}, from position {order.index(due)} of the order"
            return f"item {turn} is to be {which}; you give {short(got)}, and {index} stands {stands}"
    return ""


check_share = Exercise(
    "the share of a rank",
    reference=_share,
    cases=_share_cases,
    view=_a_list_of_indices,
    name="my_share",
    fault=_fault_of_share,
    throughout=True,  # in one case a wrong rounding, or padding, looks like another
    mistakes=famous(my_share, mistakes.OF_SHARE),
)
"""Exercise 1: what torch's own sampler yields, cut from an order that is given."""


# ---- exercise 2: the class; a case says how it is made and what happens to it, one thing after the other

_EPOCHS = f"set_epoch(2), set_epoch(5), {PASS}, {PASS}, set_epoch(1), {PASS}, set_epoch(6), {PASS}"


_EASY = [  # story, size, num_replicas, shuffle, seed, drop_last: one step of the recipe after the other
    (PASS, 12, 3, False, 0, False),
    (f"{KEYWORDS}, {PASS}, {PASS}", 12, 3, True, 4, False),
    (_EPOCHS, 12, 3, True, 4, False),
    (f"{PASS}, {PASS}, set_epoch(3), {PASS}, set_epoch(0), {PASS}", 12, 3, True, 0, False),
    (PASS, 10, 3, True, 0, False),
    (PASS, 10, 3, True, 0, True),
    (LENGTH, 7, 4, True, 0, False),  # rounded down this is 1, to the nearest 2
    (LENGTH, 10, 3, True, 0, False),
    (LENGTH, 10, 3, True, 0, True),
    (f"{BEGIN}, set_epoch(1), {REST}, {PASS}", 10, 3, True, 0, False),
    (f"{BEGIN}, set_epoch(1), {PASS}, {REST}", 10, 3, True, 0, False),
    (f"{BEGIN}, {ONE}, set_epoch(1), {PASS}, {REST}", 10, 3, True, 0, False),
    (f"{OTHER}, {PASS}", 10, 3, True, 0, False),
    (PASS, 10, 3, True, 1, False),
    # of lengths that no case before has had: here nothing can be left over from another sampler
    (f"set_epoch(epoch=1000000), {PASS}", 11, 3, True, 0, False),
    (PASS, 13, 3, True, 1_000_000, False),
    (f"{ALONE}, {LENGTH}, {ALONE}, set_epoch(3), {ALONE}, {PASS}, {ALONE}", 10, 3, True, 0, False),
    (f"{PASS}, {ALONE}", 10, 3, False, 0, False),
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
    yield dict(zip(names, (MADE, 10, 3, True, 0, False), strict=True)) | {"rank": [-1, 0, 1, 2, 3, 4]}
    empty = [
        (f"{PASS}, {LENGTH}", 0, 3, shuffle, 0, drop_last)
        for shuffle in (True, False)
        for drop_last in (False, True)
    ]
    for values in itertools.chain(empty, wide, _neighbours(), _lives()):
        yield from _for_every_rank(dict(zip(names, values, strict=True)))


def _neighbours() -> list[tuple[Any, ...]]:
    """Return samplers that differ in one thing from others before them: whatever one has kept is wrong for another."""
    epochs = [f"set_epoch({epoch}), {PASS}, {LENGTH}" for epoch in range(3)]
    made = [*itertools.product(epochs, (5, 8), (2, 3), (True, False), (0, 1), (False, True))]
    random.Random(5).shuffle(made)
    return made


def _lives() -> Iterator[tuple[Any, ...]]:
    """Yield samplers by lot, to which things happen by lot."""
    lot = random.Random(6)
    for epoch in (0, 2, 5):
        yield f"set_epoch({epoch}), {PASS}", 10, 3, True, -3, False
    for _ in range(40):
        actions = [
            lot.choice((f"set_epoch({lot.randint(0, 6)})", PASS, LENGTH, OTHER, BEGIN)) for _ in range(8)
        ]
        if BEGIN in actions:
            actions.append(REST)
        switches = (lot.random() < 0.8, lot.randint(-6, 6), lot.random() < 0.5)
        yield ", ".join([*actions, PASS]), lot.randint(1, 16), lot.randint(1, 4), *switches


def _for_every_rank(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for rank in range(case["num_replicas"]):
        yield case | {"rank": rank}


def _judge_sampler(exercise: Exercise, answer: Any) -> Verdict:
    """Compare; where an order that was kept for another sampler came out, no sentence on the rest may be true."""
    before = state_of(answer)
    verdict = exercise.compare(answer)
    kept = [] if verdict else changed_since(before, state_of(answer))
    famous = [why for why in exercise.mistakes if verdict.message.endswith(why)]
    if not kept or any(why in mistakes.OF_SHARING for why in famous):
        return verdict
    said = verdict.message
    for why in famous:
        said = said.removesuffix(why).rstrip()
    return Verdict("wrong", f"{said} And {told_of_kept(kept)}")


check_sampler = Exercise(
    "the sampler",
    reference=TorchSampler,
    cases=_sampler_cases,
    view=stories.told_by,
    name="MyDistributedSampler",
    methods=("__init__", "__iter__", "__len__", "set_epoch"),
    judge=_judge_sampler,
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
    | {
        "new_steps does what new_company is to do: it keeps the steps, and not the groups.": (
            new_company,
            new_company,
        ),
        "new_company does what new_steps is to do: it keeps the groups, and not the steps.": (
            new_steps,
            new_steps,
        ),
    },
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
    # two repeats in a single batch: who takes off one, or what equals the first answer, has not cut at size
    for size, world_size, batch_size in [(8, 2, 2), (4, 3, 2), (10, 4, 2)]:
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


class _Answer:
    """An answer as it is: compared bare, a tuple would be as good as a list, and 0 as False."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Answer) or type(self.value) is not type(other.value):
            return False
        return bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return short(self.value)


def _a_list_of_answers(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Ask for a list, and keep each answer as it is."""
    listed = _a_list(answer)

    def asked(**case: Any) -> Any:
        found = listed(**case)
        return [_Answer(item) for item in found] if isinstance(found, list) else found

    return asked


def _bare(some: Any) -> Any:
    return [item.value for item in some] if isinstance(some, list) else some


def _in_order(gathered: Gathered, size: int) -> list[Any]:
    return _turns(gathered)[:size]


def _fault_of_order(got: Any, expected: list[Any], case: Mapping[str, Any]) -> str:
    """Say which sample has not its answer."""
    got = _bare(got)
    expected = _bare(expected)
    if not isinstance(got, list):
        return f"expected {short(expected)}, got {short(got)}"
    for sample, (answer, due) in enumerate(zip(got, expected, strict=False)):
        if answer != due or type(answer) is not type(due):
            kind = "" if type(answer) is type(due) else f", a {type(answer).__name__}"
            where = f"at place {sample} of your list stands {short(answer)}{kind}"
            return f"sample {sample} has the answer {short(due)}, and {where}: {short(got)}"
    if len(got) != len(expected):
        many = "more" if len(got) > len(expected) else f"{len(got)}: {short(got)}"
        return f"{plural(case['size'], 'answer')} are due, one for each sample, and you give {many}"
    return ""


check_in_order = Exercise(
    "the answers in order",
    reference=_in_order,
    cases=_gathered_cases,
    view=_a_list_of_answers,
    name="in_order",
    fault=_fault_of_order,
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
        "rank 0's model on every image once, on 1 to 4 ranks, also where one has no batch; nothing is kept of an "
        "image, and no count stops growing.",
    ),
    mistakes=famous(exact_score, mistakes.OF_SCORE),
)
"""Exercise 5: exact on uneven shares, of one model, and nobody waits."""
