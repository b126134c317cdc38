"""How the sampler of exercise 1 is tried: is it a shuffle that depends on seed and epoch, and on nothing else?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice, pairwise, product
from operator import index as whole
from typing import Any

from support.kit.raised import Finding, in_case
from support.kit.values import short
from support.n02.chance import unfair
from support.n02.generators import another_process, seed_all, states
from support.n02.runs import as_worker

INDICES = "An epoch names each index from 0 to size − 1 once, as a whole number."
USED_UP = "The second `for` gives nothing: what was made once is used up after one epoch."
GLOBAL = (
    "Your pass draws from a random generator that everybody uses, or seeds it: then others change your "
    "order, or you change their numbers."
)
TIMES = (
    "Two passes, and no set_epoch between them, give two orders: something besides seed and epoch decides."
)
OTHERS = "Somebody seeds the generators that everybody uses, and your order is another one."
RESTART = (
    "After a restart in epoch 5 the order is not the one that epoch 5 had, with the same seed and epoch."
)
PROCESS = (
    "In another process the order is another one: its number, rank, clock and hash of a text are its own, and a "
    "restarted job is another process."
)
EPOCH = "Two epochs have the same order."
UNSHUFFLED = "Too little is shuffled: most indices are followed by their neighbour."
TURNED = "Epoch 1 has much of epoch 0: most indices are followed by the same one in both."
SEED = "Another seed gives the same order."
MEET = (
    "Two runs share orders: seed and epoch are mixed so that different ones come out alike, as 0 + 1 and 1 + 0 do. "
    "Keep them apart."
)
TOGETHER = (
    "Two passes at once disturb each other: what a pass needs belongs to the pass, and not to the object."
)
MIDWAY = "set_epoch in the middle of a pass changes the rest of it: a pass that has begun keeps its epoch."
UNEVEN = "This is no shuffle: all orders should be about equally likely."
NEXT = "An order tells about another one: the two should have nothing to do with each other."
WORKER = "In a worker the order is another one: which process asks makes no difference."
MOST_OF_A_PASS = 50  # items that are taken of it
SIZE = 20
#: Seeds and epochs are below a thousand. Of another seed than 0 not all epochs are looked at.
EPOCHS = range(1000)
SOME_EPOCHS = (*range(130), *range(140, 1000, 20), 250, 256, 365, 512, 999)
SEEDS = range(1, 1000)
#: Where chance is counted: ten items in 3,080 epochs, so about 308 times each index at each place.
FEW = 10
RUNS = [*product(range(0, 1000, 13), range(40))]  # seeds, far apart, and epochs
FARTHER = ((0, 1), (0, 2), (0, 5), (1, 0))  # orders held against each other: so many seeds and epochs on
_Orders = dict[tuple[int, int], list[int]]  # by seed and epoch
_SQUARES = [*product(range(FEW), repeat=2)]
#: Where it is looked whether what lay far apart comes near: a thousand items, cut into tenths.
MANY = 1000
MANY_EPOCHS = range(10)


def fault_of_order(answer: Any) -> str:
    """Try passes, epochs, seeds and a restart."""
    return next(_faults(answer), "")


def first_items(iterable: Iterable[Any], limit: int = MOST_OF_A_PASS) -> list[Any]:
    """Return what comes in a pass, at most `limit` of it: a wrong answer may have no end."""
    return list(islice(iter(iterable), limit))


def short_pass(got: Sequence[Any], limit: int = MOST_OF_A_PASS) -> str:
    """Write what came of a pass; where as much came as is taken of one, more may come."""
    told = short(got)
    if len(got) < limit:
        return told
    more = " or more]" if told.endswith(" items]") else ", …]"
    return told.removesuffix("]") + more


def _epoch(sampler: Any, epoch: int, size: int = SIZE) -> list[int]:
    sampler.set_epoch(epoch)
    order = first_items(sampler)
    for said in _wrong_indices(order, size):
        raise Finding(said)
    return [whole(index) for index in order]


def _faults(answer: Any) -> Iterator[str]:
    sampler = answer(SIZE, 0)
    seed_all(20_011)  # a state that nobody's pass leaves behind: a reader may have run this very one
    before = states()
    first = []
    touched = False
    for index in islice(sampler, MOST_OF_A_PASS):
        first.append(index)
        touched = touched or states() != before
    again = first_items(sampler)
    yield from _wrong_indices(first, SIZE)
    if not again:
        yield USED_UP
    if touched:
        yield GLOBAL
    if again != first:
        yield f"{TIMES} First {short(first)}, then {short(again)}."
    with in_case("With two passes at once"):
        both = [*islice(zip(iter(sampler), iter(sampler), strict=False), SIZE)]
    if both != [*zip(first, first, strict=True)]:
        yield TOGETHER
    for number in (1, 2):  # two: the generators of this process may stand at one of them already
        seed_all(number)
        if first_items(sampler) != first:
            yield OTHERS
    yield from _wrong_indices(first_items(answer(1, 3)), 1)
    yield from _faults_of_epochs(answer)
    fifth = [_epoch(sampler, epoch) for epoch in range(6)][-1]
    if _epoch(answer(SIZE, 0), 5) != fifth:
        yield RESTART
    with another_process(answer.__iter__):
        if _epoch(answer(SIZE, 0), 5) != fifth:
            yield PROCESS
    with as_worker(1, 2):
        if _epoch(answer(SIZE, 0), 5) != fifth:
            yield WORKER
    third = _epoch(answer(SIZE, 0), 3)
    if _midway(answer(SIZE, 0)) != third:
        yield MIDWAY
    if _midway(answer(SIZE, 0), another_pass=True) != third:
        yield TOGETHER
    yield from _faults_of_chance(answer)
    yield from _faults_of_many(answer)


def _faults_of_epochs(answer: Any) -> Iterator[str]:
    """Compare the orders of epochs and of seeds with each other, neighbours first."""
    sampler = answer(SIZE, 0)
    epochs = {epoch: _epoch(sampler, epoch) for epoch in EPOCHS}
    yield from _repeated({epoch: epochs[epoch] for epoch in range(6)}, 0)
    if _common(epochs[0], list(range(SIZE))) > SIZE // 2:
        yield f"{UNSHUFFLED} Epoch 0: {epochs[0]}."
    if _common(epochs[0], epochs[1]) > SIZE // 2:
        yield f"{TURNED} Epoch 0: {epochs[0]}. Epoch 1: {epochs[1]}."
    yield from _repeated(epochs, 0)
    other = answer(SIZE, 7)
    yield from _repeated({epoch: _epoch(other, epoch) for epoch in SOME_EPOCHS}, 7)
    yield from _meetings(answer, epochs)


def _meetings(answer: Any, epochs: dict[int, list[int]]) -> Iterator[str]:
    """Yield which other seed has an order of seed 0, or of another seed, or has one of its own twice: any epoch."""
    known = {tuple(order): (0, epoch) for epoch, order in epochs.items()}
    for seed in SEEDS:
        other = answer(SIZE, seed)
        for epoch in range(20 if seed < 20 else 1):
            order = _epoch(other, epoch)
            before = known.setdefault(tuple(order), (seed, epoch))
            if before[0] != seed and before[1] == epoch:
                yield f"{SEED} Seeds {before[0]} and {seed}, epoch {epoch}: both begin {order[:5]}."
            elif before[0] != seed:
                told = f"Seed {before[0]}, epoch {before[1]}, and seed {seed}, epoch {epoch}"
                yield f"{MEET} {told}: both begin {order[:5]}."
            elif before[1] != epoch:
                yield f"{EPOCH} Epochs {before[1]} and {epoch} of seed {seed} both begin {order[:5]}."
    for pair in run_together(1000, 1000):
        for (seed, epoch), (other_seed, other_epoch) in (pair, [each[::-1] for each in pair]):
            order = _epoch(answer(SIZE, seed), epoch)
            if order == _epoch(answer(SIZE, other_seed), other_epoch):
                told = f"Seed {seed}, epoch {epoch}, and seed {other_seed}, epoch {other_epoch}"
                yield f"{MEET} {told}: both begin {order[:5]}."


def run_together(most: int, most_behind: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield two pairs of numbers whose digits, one number behind the other, are one text, however each is padded.

    With two digits and one it is 101 and 0 beside 10 and 10. The numbers are below `most` and `most_behind`.
    """
    for digits, digits_behind in product(range(1, len(str(most))), range(1, len(str(most_behind)))):
        longer = (10**digits + 1, 0)
        shorter = (10 ** (digits - 1), 10**digits_behind)
        if longer[0] < most and shorter[1] < most_behind:
            yield longer, shorter


def _midway(sampler: Any, another_pass: bool = False) -> list[int]:
    """Return epoch 3, in the midst of which somebody says that it is epoch 4, and may read that one, too."""
    sampler.set_epoch(3)
    indices = iter(sampler)
    begun = list(islice(indices, SIZE // 2))
    sampler.set_epoch(4)
    if another_pass:
        first_items(sampler)
    return [whole(index) for index in begun + first_items(indices)]


def _faults_of_chance(answer: Any) -> Iterator[str]:
    """Count, over many epochs: each index at each place; how far apart two come; what an order tells of another."""
    orders = {(seed, epoch): _epoch(answer(FEW, seed), epoch, FEW) for seed, epoch in RUNS}
    places: Counter[tuple[int, ...]] = Counter()
    apart: Counter[tuple[int, ...]] = Counter()  # of two indices, how many places on, round about
    for order in orders.values():
        at = {index: place for place, index in enumerate(order)}
        places.update(enumerate(order))
        apart.update((one, other, (at[other] - at[one]) % FEW) for one, other in combinations(range(FEW), 2))
    pairs = [(*pair, far) for pair in combinations(range(FEW), 2) for far in range(1, FEW)]
    for place, index in unfair(places, _SQUARES):
        often = places[place, index]
        yield f"{UNEVEN} In {len(RUNS)} epochs of ten items index {index} comes {often} times at place {place}."
    for one, other, far in unfair(apart, pairs):
        often = apart[one, other, far]
        told = f"index {other} comes {often} times {far} places behind index {one}, or {FEW - far} before it"
        yield f"{UNEVEN} In {len(RUNS)} epochs of ten items {told}."
    of_next_seeds = {(seed + 1, epoch): _epoch(answer(FEW, seed + 1), epoch, FEW) for seed, epoch in RUNS}
    for farther in FARTHER:
        yield from _told_by(orders, orders | of_next_seeds, *farther)


def _told_by(orders: _Orders, others: _Orders, seeds: int, epochs: int) -> Iterator[str]:
    """Yield what an order tells of the other one that is so many seeds and epochs farther on."""
    moves: Counter[tuple[int, ...]] = Counter()  # from which place to which
    successors: Counter[tuple[int, ...]] = Counter()  # which index is followed, at its place, by which
    of_both = [(order, others.get((seed + seeds, epoch + epochs))) for (seed, epoch), order in orders.items()]
    compared = [(order, following) for order, following in of_both if following]
    for order, following in compared:
        moves.update((place, following.index(index)) for place, index in enumerate(order))
        successors.update(zip(order, following, strict=True))
    where = f"with {seeds} added to the seed and {epochs} to the epoch"
    for place, to in unfair(moves, _SQUARES):
        often = moves[place, to]
        yield f"{NEXT} In {len(compared)} orders what was at place {place} comes {often} times at place {to} {where}."
    for index, to in unfair(successors, _SQUARES):
        often = successors[index, to]
        yield f"{NEXT} In {len(compared)} orders, where {index} was, {to} comes {often} times {where}."


def _faults_of_many(answer: Any) -> Iterator[str]:
    """Look at a thousand items: does each tenth go to all tenths, do neighbours part, and does the order rise?"""
    tenths: Counter[tuple[int, ...]] = Counter()
    near = 0
    rises = 0
    for epoch in MANY_EPOCHS:
        sampler = answer(MANY, 3)
        sampler.set_epoch(epoch)
        order = first_items(sampler, MANY + 1)
        yield from _wrong_indices(order, MANY)
        at = {whole(index): place for place, index in enumerate(order)}
        tenths.update((index * 10 // MANY, place * 10 // MANY) for index, place in at.items())
        rises += sum(one < other for one, other in pairwise(map(whole, order)))
        near += sum(abs(at[index] - at[index + 1]) <= MANY // 20 for index in range(MANY - 1))
    for tenth, to in unfair(tenths, [*product(range(10), repeat=2)]):
        told = f"{tenths[tenth, to]} times an index of tenth {tenth} comes into tenth {to} of the order"
        yield f"{UNEVEN} In {len(MANY_EPOCHS)} epochs of {MANY} items {told}; {MANY // 10} times are fair."
    share = near / len(MANY_EPOCHS) / MANY
    steps = len(MANY_EPOCHS) * (MANY - 1)
    if not 0.47 < rises / steps < 0.53:  # a half, give or take 0.003
        yield f"{UNEVEN} In orders of {MANY} items {rises} of {steps} indices are larger than the one before."
    if not 0.05 < share < 0.2:  # about 0.0975, give or take 0.003
        yield f"{UNEVEN} Of {MANY} items {share:.0%} come close to their neighbour; about 10 % are fair."


def _repeated(epochs: dict[int, list[int]], seed: int) -> Iterator[str]:
    first: dict[tuple[int, ...], int] = {}
    for epoch, order in epochs.items():
        before = first.setdefault(tuple(order), epoch)
        if before != epoch:
            yield f"{EPOCH} Epochs {before} and {epoch} of seed {seed} both begin {order[:5]}."


def _wrong_indices(order: list[Any], size: int) -> Iterator[str]:
    try:
        named = sorted(map(whole, order))
    except TypeError:
        named = []
    if named != list(range(size)):
        yield f"{INDICES} With size = {size} yours gives {short_pass(order)}."


def _common(order: list[int], other: list[int]) -> int:
    """Count which neighbours of one order are neighbours in the other."""
    pairs = [{*pairwise(each)} for each in (order, other)]
    return len(pairs[0] & pairs[1])
