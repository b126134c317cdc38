"""How the batch sampler of exercise 2 is tried: is each batch of one pool, and no pool padded more than it must be?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from operator import index as whole
from typing import Any

from lib.data.samplers import RandomSampler
from support.kit.raised import in_case
from support.kit.values import short
from support.n02.orders import short_pass
from support.n02.runs import sentence_lengths

BATCHES = "A batch is a list of at least one index."
TWICE = "The sampler was read more than once in an epoch, and each reading may be another shuffle."
FOREIGN = "Only what the sampler names can be in a batch."
LOST = "Whatever the sampler names must be in a batch, as often as it names it."
SIZE = "A batch holds batch_size indices; only one of them, of the last pool, may be shorter."
POOL = "The indices of a batch come from one pool, and a pool is pool × batch_size neighbours in the sampler's order."
PADDING = "The same pools can be cut into batches with less padding."
AGAIN = "The second epoch must read the sampler anew."
LEN = "len() is the number of batches that an epoch has."
MADE = "Making the batch sampler reads the sampler, and so uses up an order: epoch 0 gets another one, or an old one."
CHANGED = "`lengths` is changed, and others use it, too."
REUSED = "A batch that you have given away is changed later: whoever keeps it, as list(…) does, loses what was in it."
EMPTIED = "A plain list may stand for the sampler, and your pass changes it: others read it, too."
TOGETHER = (
    "Two passes at once disturb each other: what a pass needs belongs to the pass, and not to the object."
)
READING = "len() reads the sampler, and so uses up an order: the next epoch is another one."

MOST = 50  # batches of a pass: a wrong answer may have no end
#: (items, of which the sampler names half; batch size; batches in a pool)
CASES = ((48, 3, 6), (22, 3, 2), (14, 4, 1), (64, 2, 8), (6, 2, 4), (18, 3, 2), (26, 4, 2), (0, 2, 2))


class Odd(RandomSampler):
    """Name the items 1, 3, 5, …, and so half of them, in another order at each reading; note each reading."""

    def __init__(self, size: int) -> None:
        super().__init__(range(size // 2), seed=size)
        self.readings: list[list[int]] = []

    def __iter__(self) -> Iterator[int]:
        named = [2 * index + 1 for index in super().__iter__()]
        self.readings.append(named)
        return iter(named)


def fault_of_pools(answer: Any) -> str:
    """Try the batch sampler in all cases: an epoch, its length, a second epoch."""
    for size, batch_size, pool in CASES:
        lengths = [length // 3 for length in reversed(sentence_lengths(size))]  # not the notebook's own
        sampler = Odd(size)
        given = [*lengths]  # an answer may change what it gets
        batches = answer(sampler, given, batch_size, pool)
        where = f"{size // 2} of {size} indices, batch_size = {batch_size}, pool = {pool}"
        said = f"{MADE} It was asked before any pass began." if sampler.readings else ""
        said = said or next(_faults(batches, sampler, lengths, batch_size, pool), "")
        if given != lengths:
            said = CHANGED
        said = said or next(_faults_of_two(answer, lengths, batch_size, pool), "")
        with in_case(f"{where}, a plain list as sampler"):
            said = said or next(_faults_of_a_list(answer, lengths, batch_size, pool), "")
        if said:
            return f"{said} ({where})"
    return next(_faults_of_repeats(answer), "")


def _faults_of_two(answer: Any, lengths: Sequence[int], batch_size: int, pool: int) -> Iterator[str]:
    """Yield whether a pass that begins and ends in the midst of another takes anything from it, or gives it."""
    sampler = Odd(len(lengths))
    batches = answer(sampler, [*lengths], batch_size, pool)
    with in_case("With two passes at once"):
        outer = (batch for batch in batches)  # begun once, as by `for`
        begun = [*islice(outer, 1)]
        inner, _ = _pass(batches)
        passes = [[*begun, *islice(outer, MOST)], inner]
    for epoch, order in zip(passes, sampler.readings, strict=False):
        if next(_faults_of_epoch(epoch, [order], lengths, batch_size, pool), ""):
            yield f"{TOGETHER} One pass gave {short(passes[0])}, and in its midst another one gave {short(inner)}."


def _faults_of_a_list(answer: Any, lengths: Sequence[int], batch_size: int, pool: int) -> Iterator[str]:
    """Yield what is wrong where the order is a plain list: two passes over it."""
    order = [*Odd(len(lengths))]
    given = [*order]
    batches = answer(given, [*lengths], batch_size, pool)
    for _ in range(2):
        epoch, _ = _pass(batches)
        if given != order:
            yield f"{EMPTIED} It was {short(order)} and is {short(given)}."
        yield from _faults_of_epoch(epoch, [order], lengths, batch_size, pool)


def _faults_of_repeats(answer: Any) -> Iterator[str]:
    """Yield whether an index that is named again is left out, or leaves its pool.

    First all are in one pool: a short batch of neither the shortest nor the longest sentence costs more than at either
    end. Then each pool is one batch, and the last one holds one index.
    """
    order = [4, 1, 4, 0, 4, 2, 0]
    lengths = [6, 1, 9, 4, 5]  # a batch has two of index 4
    epoch, _ = _pass(answer([*order], [*lengths], 2, 4))
    yield from _faults_of_epoch(epoch, [order], lengths, 2, 4)
    named = [[0, 1], [0, 2], [1]]
    order = [*chain(*named)]
    epoch, _ = _pass(answer([*order], [5, 1, 9], 2, 1))
    if sorted(chain(*epoch)) != sorted(order):
        yield f"{LOST} It named {short(order)}; your batches are {short_pass(epoch, MOST)}."
    if sorted(map(sorted, epoch)) != named:
        yield f"{POOL} Here pools are {short(named)}, and your batches are {short(epoch)}."


def _faults(batches: Any, sampler: Odd, lengths: Sequence[int], batch_size: int, pool: int) -> Iterator[str]:
    """Yield what is wrong with an epoch, its length and the next epoch."""
    told = len(batches)
    if sampler.readings:
        yield READING
    epoch, changed = _pass(batches)
    if changed:
        yield f"{REUSED} {changed}"
    yield from _faults_of_epoch(epoch, sampler.readings, lengths, batch_size, pool)
    if not epoch and len(sampler):
        yield f"{LOST} Yours gives no batch."
    if told != len(epoch):
        yield f"{LEN} Yours says {told}, and there are {len(epoch)}."
    del sampler.readings[:]
    second, _ = _pass(batches)
    if not sampler.readings and epoch:
        yield f"{AGAIN} Yours gives {short(second)} without asking for the new order."
    yield from _faults_of_epoch(second, sampler.readings, lengths, batch_size, pool)


def _pass(batches: Any) -> tuple[list[Any], str]:
    """Return the batches of a pass as they were when they came, and what is said of one that is changed later."""
    given: list[Any] = []
    copies: list[Any] = []
    for batch in islice(batches, MOST):
        given.append(batch)
        copies.append(_indices(batch))
    for batch, copied in zip(given, copies, strict=True):
        now = _indices(batch)
        if now is not batch and now != copied:
            return copies, f"One came as {short(copied)} and is {short(now)} after the pass."
    return copies, ""


def _indices(batch: Any) -> Any:
    """Return a list of the indices that a list, an array, a tensor holds now; what is no batch as it is."""
    if not hasattr(batch, "__len__"):
        return batch
    try:
        return [*map(whole, batch)]
    except TypeError:
        return batch


def _faults_of_epoch(
    epoch: list[Any], readings: list[list[int]], lengths: Sequence[int], batch_size: int, pool: int
) -> Iterator[str]:
    """Yield what is wrong with the batches of one epoch."""
    epoch = [*map(_indices, epoch)]
    for batch in epoch:
        if not _is_batch(batch):
            yield f"{BATCHES} Yours gives {short(repr(batch))}."
    if len(readings) > 1:
        yield f"{TWICE} Here it was read {len(readings)} times."
    order = readings[0] if readings else []
    named = Counter(order)
    used = Counter(index for batch in epoch for index in batch)
    if used.keys() - named.keys():
        told = f"It named {short(order)}" if readings else "It was not even asked"
        yield f"{FOREIGN} {told}; your batches are {short(epoch)}."
    if used != named:
        yield f"{LOST} It named {short(order)}; your batches are {short_pass(epoch, MOST)}."
    short_ones = [batch for batch in epoch if len(batch) < batch_size]
    if any(len(batch) > batch_size for batch in epoch) or len(short_ones) > 1:
        yield f"{SIZE} Yours are {short(epoch)}."
    yield from _faults_of_pools(epoch, order, lengths, batch_size, pool)


def _is_batch(indices: Any) -> bool:
    return isinstance(indices, list) and bool(indices) and all(isinstance(index, int) for index in indices)


def _faults_of_pools(
    epoch: list[Any], order: list[int], lengths: Sequence[int], batch_size: int, pool: int
) -> Iterator[str]:
    """Yield which batches mix pools, or which pool pads more than it must."""
    size = batch_size * pool
    for start in range(0, len(order), size):
        named = order[start : start + size]
        part = set(named)
        mine = [batch for batch in epoch if part & set(batch)]
        mixed = [batch for batch in mine if set(batch) - part]
        if mixed:
            yield f"{POOL} {short(list(mixed[0]))} is in one batch; one pool is {short(named)}."
        held = sum(len(batch) * max(lengths[i] for i in batch) for batch in mine)
        enough = _enough(sorted(lengths[i] for i in named), batch_size)
        if held > enough:
            yield f"{PADDING} Rows × longest row: {held} in yours, {enough} is possible, for {short(mine)}."


def _enough(words: list[int], batch_size: int) -> int:
    """Return rows × longest row if neighbours by length share a batch; the short batch at whichever end costs more."""
    held = []
    for first in (0, len(words) % batch_size):
        cuts = [*range(first, len(words), batch_size)]
        batches = [words[:first], *(words[cut : cut + batch_size] for cut in cuts)]
        held.append(sum(len(batch) * max(batch, default=0) for batch in batches))
    return max(held)
