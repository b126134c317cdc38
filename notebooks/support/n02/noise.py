"""How the two functions of exercise 5 are tried: do the numbers depend on seed, epoch and index alone?"""

from __future__ import annotations

import pickle
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from operator import eq
from operator import index as whole
from typing import Any

from torch.utils.data import DataLoader, Dataset

from support.kit.raised import Finding, in_case, named
from support.kit.values import NO_RETURN, short
from support.n02.chance import unfair
from support.n02.generators import another_process, states
from support.n02.meetings import MOST, SHAPE, Drawn, drawn_by_items, faults_of_others, keys_of_some, meetings
from support.n02.runs import as_worker
from support.n02.seeds import meetings_of_seeds

NAMED = "A key for each index that is given, in that order, and for no other."
SENT = "A key travels to another process, so pickle must know it."
RANGE = (
    "The crops 0 and 99, taken together, come too seldom or too often: a crop goes from 0 to 99, both included, all "
    "equally likely."
)
GLOBAL = (
    "A global generator has been seeded or drawn from, and all others who use it notice: make one for the "
    "item."
)
ALIKE = "In epoch 0 all items have the same numbers: the index does not reach them."
PROCESS = (
    "In another process a key has other numbers: its number, rank, clock and hash of a text are its own, and a "
    "restarted job is another process."
)
PART = "One of the two numbers stays where seed, epoch or index is another one."
PLACE = (
    "In another order, or beside others, an index has other numbers: its place counts, or who else is named."
)
ASKED = (
    "Asked again after other items, a key had other numbers: something besides seed, epoch and index decides."
)
WORKER = "In another worker a key had other numbers: with another num_workers the run is another one."
REPEATS = "With seed 0, epoch 1 repeats epoch 0."
SHIFT = (
    "Epoch 1 is epoch 0 moved on by one item: 0 + 1 and 1 + 0 are one sum. Give the generator all, unadded."
)
SEED = "In epoch 0, seeds 0 and 1 have the same noise."
TWINS = (
    "The crop tells the flip, or the flip never changes: draw both from one generator, one after the "
    "other. Two with the same seed begin with the same bits."
)
KEPT = (
    "A key must carry all that its item needs. What lies beside it is another epoch's by the time the item is loaded, "
    "or another one in the worker."
)
UNEVEN = "Not all crops, or not both flips, are equally likely."
SHARED = "One number serves for two: each item of each epoch draws its own."

GROWS = "An item takes too much work where its epoch or its index is large."

SIZE = 20
EPOCHS = 60
_MANY = 8000  # items whose smallest and largest crops are counted
_ROW = 4000  # items that differ in one of the three alone, about 40 with each crop,
_IN_A_ROW = 30  # of which so many flips are all equal by chance in one right answer of a million
_LARGE = 1_000_000  # an index, and
_STEPS = 100_000  # so many calls and lines are too many for its item,
_BYTES = 500_000  # and so much memory
_ENOUGH = 18  # flips with one crop, of about 24: all equal for some crop in one right answer of 10,000


@dataclass(frozen=True)
class _Draws:
    """What items have drawn, asked for in several ways."""

    touched: bool  # whether a global generator is another one than before
    first: Drawn  # epoch 0
    late: Drawn  # epoch 0, its keys made before those of epochs 0 and 1, and asked for after them
    second: Drawn  # epoch 1
    turned: Drawn  # epoch 0, its indices named from the last to the first, then turned round
    twice: Drawn  # epoch 0, items 0 and 1 alone, both named twice
    again: Drawn  # the keys of epoch 0, asked for once more from the last to the first, then turned round
    workers: list[Drawn]  # epoch 0 in each of two workers
    process: Drawn  # epoch 0 in another process
    other_seed: Drawn
    far: list[Drawn]  # 60 epochs
    far_other: list[Drawn]  # 60 epochs of another seed


def fault_of_noise(answers: Any) -> str:
    """Try all that may make numbers repeat, or depend on more than seed, epoch and index."""
    keys_of, item_of = answers
    before = states()
    keys = keys_of(range(SIZE), 0)
    if keys is None:
        return f"{NAMED} keys_of {NO_RETURN}."
    item = item_of(next(iter(keys), None), 0)
    if item is None:
        return f"{SHAPE} item_of {NO_RETURN}."
    said = _growing_work(keys_of, item_of) or _wrong_shape(keys_of, item_of)
    if said:
        return said
    touched = states() != before
    draws = _drawn(keys_of, item_of, touched)
    said = (
        next(_faults(draws), "")
        or _forgotten(keys_of, item_of)
        or next(_faults_of_sharing(draws), "")
        or next(meetings_of_seeds(keys_of, item_of), "")
        or next(meetings(keys_of, item_of, (draws.far, draws.far_other)), "")
        or next(_faults_of_pairs(draws), "")
        or next(_faults_of_ends(keys_of, item_of), "")
        or next(faults_of_others(keys_of, item_of), "")
        or next(_told_in_rows(keys_of, item_of), "")  # behind those who tell another item's
    )
    if not said:
        return ""
    return f"{said} Items 0 to 3 have {draws.first[:4]} in epoch 0 and {draws.second[:4]} in epoch 1."


def _growing_work(keys_of: Any, item_of: Any) -> str:
    """Say whether a large epoch or index takes many calls or lines, or much memory. A clock tells of the machine."""
    steps = 0

    def counted(_: Any, event: str, __: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > _STEPS and event != "return":
            raise Finding(GROWS)
        return counted

    epoch = MOST[1] - 1
    profiled = sys.getprofile()
    traced = sys.gettrace()
    tracemalloc.start()
    try:
        with in_case(f"With seed 0, epoch {epoch} and index {_LARGE}"):
            sys.setprofile(counted)
            sys.settrace(counted)
            for key in keys_of_some(keys_of, [_LARGE], epoch):
                item_of(key, 0)
    finally:
        sys.settrace(traced)
        sys.setprofile(profiled)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return f"{GROWS} Index {_LARGE} in epoch {epoch} takes {most} bytes." if most > _BYTES else ""


def _wrong_shape(keys_of: Any, item_of: Any) -> str:
    """Say what is wrong with the keys of some indices, or with the shape of their items."""
    for indices in (range(SIZE), [7, 3, 11], [5_000_000, 8], [7, 7], []):
        for epoch in (0, 3, 200_000):
            keys = keys_of_some(keys_of, indices, epoch)
            if len(keys) != len(indices):
                more = " or more" if len(keys) > len(indices) else ""
                return f"{NAMED} For {len(indices)} indices, {short(indices)}, yours gives {len(keys)}{more}."
            for key, index in zip(keys, indices, strict=True):
                try:
                    sent = pickle.loads(pickle.dumps(key))
                except Exception as error:
                    return f"{SENT} {short(key)} can't be sent: {error}"
                item = item_of(sent, 0)
                if not _has_the_shape(item, index):
                    return f"{SHAPE} For index {index} in epoch {epoch} yours is {short(item)}."
    return next(_wrong_at_the_ends(keys_of, item_of), "")


def _wrong_at_the_ends(keys_of: Any, item_of: Any) -> Iterator[str]:
    """Yield whether the smallest or the largest seed, epoch or index gives no item."""
    for seed, epoch, index in product(*((0, most - 1) for most in MOST)):
        with in_case(f"With seed {seed}, epoch {epoch} and index {index}"):
            item = item_of(keys_of_some(keys_of, [index], epoch)[0], seed)
        if not _has_the_shape(item, index):
            yield f"{SHAPE} For seed {seed}, epoch {epoch} and index {index} yours is {short(item)}."


def _has_the_shape(item: Any, index: int) -> bool:
    if not isinstance(item, (tuple, list)) or len(item) != 3:
        return False
    try:
        # NumPy's True is no index, and a flip all the same.
        named, crop, flip = (whole(part.item() if hasattr(part, "item") else part) for part in item)
    except TypeError:
        return False
    return named == index and 0 <= crop < 100 and flip in (0, 1)


def _drawn(keys_of: Any, item_of: Any, touched: bool) -> _Draws:
    """Ask for items in several ways."""
    indices = range(SIZE)
    keys = keys_of_some(keys_of, indices, 0)
    first = drawn_by_items(item_of, keys)
    workers = []
    for worker in range(2):
        with as_worker(worker, 2):
            workers.append(drawn_by_items(item_of, keys))
    with another_process(keys_of, item_of):
        process = drawn_by_items(item_of, keys_of_some(keys_of, indices, 0))
    before_others = keys_of_some(keys_of, indices, 0)
    keys_of_some(keys_of, indices, 1)
    return _Draws(
        touched=touched,
        first=first,
        late=drawn_by_items(item_of, before_others),
        second=drawn_by_items(item_of, keys_of_some(keys_of, indices, 1)),
        turned=drawn_by_items(item_of, keys_of_some(keys_of, indices[::-1], 0))[::-1],
        twice=drawn_by_items(item_of, keys_of_some(keys_of, [0, 1, 0, 1], 0)),
        again=drawn_by_items(item_of, reversed(keys))[::-1],
        workers=workers,
        process=process,
        other_seed=drawn_by_items(item_of, keys, seed=1),
        far=[drawn_by_items(item_of, keys_of_some(keys_of, indices, epoch)) for epoch in range(EPOCHS)],
        far_other=[
            drawn_by_items(item_of, keys_of_some(keys_of, indices, epoch), 1) for epoch in range(EPOCHS)
        ],
    )


def _faults(draws: _Draws) -> Iterator[str]:
    """Yield what the draws show, the plainest first."""
    first = draws.first
    if draws.touched:
        yield GLOBAL
    if len({*first}) == 1:
        yield ALIKE
    if first != draws.again:
        yield ASKED
    if draws.workers != [first, first]:
        yield WORKER
    if first != draws.process:
        yield PROCESS
    if first != draws.turned or first[:2] * 2 != draws.twice:
        yield PLACE
    if first != draws.late:
        yield KEPT
    if first == draws.second:
        yield REPEATS
    if first[1:] == draws.second[:-1]:
        yield SHIFT
    if first == draws.other_seed:
        yield SEED
    flips = [flip for epoch in (*draws.far, *draws.far_other) for _, flip in epoch]
    if len({*flips}) == 1:
        yield TWINS
    if not 0.2 < sum(flips) / len(flips) < 0.8:  # then two rows of them may agree by chance
        yield f"{UNEVEN} {sum(flips)} of {len(flips)} flips are 1."
    yield from _faults_of_one(draws)
    crops = {crop for epoch in (*draws.far, *draws.far_other) for crop, _ in epoch}
    parities = {crop % 2 for crop in crops}
    if len(crops) <= 25 or len(parities) == 1:  # then two rows of them agree by chance, too
        yield f"{UNEVEN} In {len(flips)} items only {len(crops)} different crops come."


class _Items(Dataset[Any]):
    """What item_of gives for a key, or the name of what it raises."""

    def __init__(self, item_of: Any) -> None:
        self.item_of = item_of

    def __getitem__(self, key: Any) -> Any:
        try:
            return list(self.item_of(key, 0))
        except Exception as error:
            return named(error)


def _forgotten(keys_of: Any, item_of: Any) -> str:
    """Say whether a worker that was there before any key was made gives other numbers for the keys that are sent."""
    epochs = (600_002, 600_001, 600_000)  # of which no key has been made when the worker starts

    def keys() -> Iterator[Any]:  # the loader asks for the first when the worker has been started
        for epoch in epochs:
            yield from keys_of_some(keys_of, range(SIZE), epoch)

    loader = DataLoader(
        _Items(item_of), batch_size=None, sampler=keys(), num_workers=1, multiprocessing_context="fork"
    )
    got = list(loader)
    expected = [
        (epoch, pair)
        for epoch in epochs
        for pair in drawn_by_items(item_of, keys_of_some(keys_of, range(SIZE), epoch))
    ]
    for item, (epoch, pair) in zip(got, expected, strict=True):
        if isinstance(item, str):
            return f"{KEPT} In a worker that was started before your code raised {item}."
        if tuple(item[1:]) != pair:
            return (
                f"{KEPT} In epoch {epoch} index {item[0]} has {pair} here and {tuple(item[1:])} in a worker."
            )
    return ""


def _faults_of_one(draws: _Draws) -> Iterator[str]:
    """Yield which of the two numbers leaves out seed, epoch or index, where the other one does not."""
    for name, which in (("crop", 0), ("flip", 1)):
        epochs, others = (
            [[pair[which] for pair in epoch] for epoch in far] for far in (draws.far, draws.far_other)
        )
        if epochs == others:
            yield f"{PART} The {name} is the same with seeds 0 and 1."
        if all(epoch == epochs[0] for epoch in epochs):
            yield f"{PART} The {name} of an item is the same in all epochs."
        if all(len({*epoch}) == 1 for epoch in epochs):
            yield f"{PART} All items of an epoch have the same {name}."


def _faults_of_sharing(draws: _Draws) -> Iterator[str]:
    """Yield which two items, or which two epochs, have a number in common again and again, or a parity never.

    Two crops agree once in a hundred times, two flips or parities every second time: never all of 40 or 120, and
    never none.
    """
    for name, divisor, which in (("crop", 100, 0), ("flip", 2, 1), ("parity of the crop", 2, 0)):
        rows = [[pair[which] % divisor for pair in epoch] for epoch in (*draws.far, *draws.far_other)]
        items = [*zip(*rows, strict=True)]  # of each item its number in all epochs of both seeds
        epochs = [mine + other for mine, other in zip(rows[:EPOCHS], rows[EPOCHS:], strict=True)]
        for what, columns in (("Items", items), ("Epochs", epochs)):
            for one, other in combinations(range(len(columns)), 2):
                agreed = sum(map(eq, columns[one], columns[other]))
                of_all = len(columns[one])
                most = of_all / 3 if divisor == 100 else of_all - 1
                if agreed > most or (divisor == 2 and not agreed):
                    yield f"{SHARED} {what} {one} and {other} have the same {name} {agreed} times of {of_all}."


def _faults_of_pairs(draws: _Draws) -> Iterator[str]:
    """Yield whether some flips or crops are more likely, or whether crops tell the flip."""
    flips: dict[int, list[int]] = {crop: [] for crop in range(100)}
    for epoch in (*draws.far, *draws.far_other):
        for crop, flip in epoch:
            flips[crop].append(flip)
    counts: Counter[tuple[int, ...]] = Counter((flip,) for mine in flips.values() for flip in mine)
    for cell in unfair(counts, [(0,), (1,)]):
        yield f"{UNEVEN} {counts[cell]} of {counts.total()} flips are {cell[0]}."
    tenths: Counter[tuple[int, ...]] = Counter((crop // 10,) for crop, mine in flips.items() for _ in mine)
    for (tenth,) in unfair(tenths, [(tenth,) for tenth in range(10)]):
        often = f"{tenths[(tenth,)]} of {tenths.total()} crops are {10 * tenth} to {10 * tenth + 9}"
        yield f"{UNEVEN} {often}, and {tenths.total() // 10} are fair."
    told = [crop for crop, mine in flips.items() if len(mine) >= _ENOUGH and len({*mine}) == 1]
    if told:
        number = told[0]
        same = f"With crop {number} all {len(flips[number])} flips are {flips[number][0]}"
        others = f", and {len(told) - 1} other crops tell theirs" if len(told) > 1 else ""
        yield f"{TWINS} {same}{others}."


def _told_in_rows(keys_of: Any, item_of: Any) -> Iterator[str]:
    """Yield whether crops tell the flips of items of which only one of the three differs, by steps of two."""
    for which, name in enumerate(("seed", "epoch", "index")):
        flips: dict[int, list[int]] = {}
        for far in range(0, 2 * _ROW, 2):  # two: a parity is the same all along the row
            seed, epoch, index = (far if each == which else 0 for each in range(3))
            crop, flip = drawn_by_items(item_of, keys_of_some(keys_of, [index], epoch), seed)[0]
            flips.setdefault(crop, []).append(flip)
        told = [crop for crop, mine in flips.items() if len(mine) >= _IN_A_ROW and len({*mine}) == 1]
        if told:
            known = f"With crop {told[0]} all {len(flips[told[0]])} flips are {flips[told[0]][0]}"
            yield f"{TWINS} {known} where only the {name} differs."


def _faults_of_ends(keys_of: Any, item_of: Any) -> Iterator[str]:
    """Yield whether some crops are less likely than the others, the smallest and the largest first."""
    drawn = drawn_by_items(item_of, keys_of_some(keys_of, range(_MANY), 0))
    ends = sum(crop in (0, 99) for crop, _ in drawn)
    fair = _MANY // 50
    if not 0.7 * fair < ends < 1.3 * fair:  # four times what chance adds or takes; rounding takes a half
        yield f"{RANGE} Of {_MANY} crops {ends} are 0 or 99, and {fair} are fair."
    crops: Counter[tuple[int, ...]] = Counter((crop,) for crop, _ in drawn)
    for (crop,) in unfair(crops, [(crop,) for crop in range(100)]):
        yield f"{UNEVEN} Of {_MANY} crops {crops[(crop,)]} are {crop}, and {_MANY // 100} are fair."
