"""How the shuffle buffer of exercise 4 is tried: what it holds, what it hands on, and by what chance."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice, pairwise, product
from operator import index as whole
from typing import Any

import numpy as np

from support.kit.raised import Finding, in_case
from support.kit.values import NO_RETURN, short
from support.n02.chance import unfair
from support.n02.generators import states
from support.n02.orders import short_pass

END = "A stream may have no end, and you collect it before anything leaves."
HOLDS = "More items wait than the buffer may hold."
NOT_FULL = "As long as the stream lasts, each item is drawn from a full buffer."
LOST = "Each item leaves once."
GLOBAL = "The numbers are drawn from the generator that you are given, and from no other."
SAME = "Two generators with different seeds give the same order."
CHANCE = "Whichever item waits has the same chance to be next."
EARLY = "An item left more than size − 1 places early: the one that has just been read does not wait yet."
QUEUE = "An item waits for its turn and not for its chance."
TAIL = "What waits when the stream ends leaves in an order of chance, too."
NEWEST = "No item ever leaves size − 1 places early: fewer than `size` wait, or your draw passes over what came last."
MOVES_ON = (
    "After a pass the generator stands where it stood before: drawing must move on the generator itself."
)
FALSE = "An item that counts as false is lost, or all that comes behind it."
EQUAL = "Equal items are items of their own."
THING = "An item leaves as the very thing that came: it may be of any kind."
FRONT = (
    "`items` may be a list as well as an iterator, and whoever goes through a list again begins at its front."
)
TAKEN = "`items` is a list here, and your pass changes it: others read it, too."
LEFT = (
    "What an earlier pass left behind comes out of the next one. A list in the `def` line, as in waiting=[], is made "
    "once, and all passes share it; so is a global one."
)
TOGETHER = "Two passes at once disturb each other: what a pass needs belongs to the pass, and to nobody else."
MOST = 10_000
TURNS = 3000
LARGE = (100, 1000)
LONG = tuple((TURNS + size, size) for size in LARGE)
#: Streams: (items, places in the buffer); some end before it is full, some when it is just full.
CASES = ((10, 4), (3, 5), (8, 8), (5, 2), (7, 1), (1, 3), (0, 2), *LONG)
#: Streams whose end is looked at, (items, places): what waits then leaves by chance, however many they are.
ENDS = ((6, 8), (8, 8), (2, 2), (9, 8), (10, 5))
RUNS = 400
MANY_RUNS = 3000
#: Buffers in which it is looked, in many runs, whether one place has half the chance of another, or twice.
SMALL = (2, 3, 4, 6)


def fault_of_buffer(answer: Callable[..., Any]) -> str:
    """Try streams with and without an end."""
    given = answer(iter([]), 2, np.random.default_rng(0))
    if given is None:
        return f"Your function {NO_RETURN}."
    return next(_faults(answer), "")


def _order(answer: Callable[..., Any], count_of_items: int, size: int, seed: int = 0) -> list[Any]:
    items = (10 * place + 3 for place in range(count_of_items))
    with in_case(f"With {count_of_items} items and size = {size}"):
        got = islice(answer(items, size, np.random.default_rng(seed)), 2 * count_of_items + 2)
        return [_place(item) for item in got]


def _place(item: Any) -> int:
    """Return the place that an item had in the stream; NumPy's own whole numbers will do."""
    try:
        number = whole(item)
    except TypeError:
        number = -1
    if isinstance(item, float):
        raise Finding(f"{THING} A whole number left as a {type(item).__name__}.")
    if number % 10 != 3:
        raise Finding(f"What leaves must have come from the stream; {short(repr(item))} has not.")
    return number // 10


def _faults(answer: Callable[..., Any]) -> Iterator[str]:
    before = states()
    yield from _faults_of_leaving_behind(answer)
    for length, size in CASES:  # whoever loses items seems to hold them
        order = _order(answer, length, size)
        if sorted(order) != list(range(length)):
            told = short_pass(order, 2 * length + 2)
            yield f"{LOST} Of the places 0 to {length - 1}, with size = {size}, yours hands on {told}."
    yield from _faults_of_holding(answer)
    yield from _faults_of_lists(answer)
    yield from _faults_of_two(answer)
    if states() != before or _order(answer, 30, 8) != _order(answer, 30, 8):
        yield GLOBAL
    if _order(answer, 30, 8) == _order(answer, 30, 8, seed=1) == _order(answer, 30, 8, seed=2):
        yield f"{SAME} With size = 8 it begins {_order(answer, 30, 8)[:10]}."
    generator = np.random.default_rng(0)
    stood = generator.bit_generator.state
    list(answer(iter(range(1, 31)), 8, generator))  # none of them counts as false
    if generator.bit_generator.state == stood:
        yield MOVES_ON
    yield from _faults_of_chance(answer)
    for size in LARGE:
        yield from _faults_of_a_large_buffer(answer, size)
    yield from _faults_of_things(answer)


def _faults_of_leaving_behind(answer: Callable[..., Any]) -> Iterator[str]:
    """Let a pass come after one that ended, and one after a pass that was broken off: no item of theirs may return."""
    for ended in (True, False):
        earlier = range(1000, 1009)
        later = range(2000, 2009)
        passed = iter(answer(iter(earlier), 4, np.random.default_rng(0)))
        list(islice(passed, 20 if ended else 3))
        got = list(islice(answer(iter(later), 4, np.random.default_rng(0)), 20))
        again = [item for item in got if isinstance(item, (int, np.integer)) and item in earlier]
        if again:
            yield f"{LEFT} From range(2000, 2009) {again[0]} comes, and range(1000, 1009) was read before."


def _faults_of_two(answer: Callable[..., Any]) -> Iterator[str]:
    """Let a pass begin and end in the midst of another one: each hands on all that is its own."""

    def begun() -> Iterator[Any]:
        return iter(answer((10 * place + 3 for place in range(9)), 4, np.random.default_rng(0)))

    with in_case("With two passes at once"):
        outer = begun()
        around = [*islice(outer, 2)]
        inner = [*islice(begun(), 20)]
        around += islice(outer, 20)
    for items in (around, inner):
        order = [*map(_place, items)]
        if sorted(order) != list(range(9)):
            yield f"{TOGETHER} Of the places 0 to 8, with size = 4, one of them hands on {short(order)}."


def _faults_of_lists(answer: Callable[..., Any]) -> Iterator[str]:
    """Give lists in place of iterators."""
    for length, size in CASES:
        items = [*range(1, length + 1)]  # none of them counts as false
        given = [*items]
        with in_case(f"With a list of {length} items and size = {size}"):
            got = list(islice(answer(given, size, np.random.default_rng(0)), 2 * length + 2))
        if given != items:
            yield f"{TAKEN} It was {short(items)} and is {short(given)}."
        if sorted(map(whole, got)) != items:
            told = short_pass(got, 2 * length + 2)
            yield f"{FRONT} Of the list {short(items)}, with size = {size}, yours hands on {told}."


def _faults_of_things(answer: Callable[..., Any]) -> Iterator[str]:
    """Send items of other kinds through a buffer for two: the very same must come out, each as often."""
    streams: tuple[tuple[str, list[Any], str], ...] = (
        ("six fractions", [place + 0.5 for place in range(6)], THING),
        ("six equal texts", ["same"] * 6, EQUAL),
        ("six lists [0]", [[0] for _ in range(6)], EQUAL),
        ("1, 1.0 and True in turns", [1, 1.0, True] * 3, EQUAL),
        ("0 and None among numbers", [1, 2, 3, 0, 4, None, 5, 6], FALSE),
        ("False and an empty text among numbers", [1, 2, False, 3, 4, "", 5, 6], FALSE),
        ("six pairs of a text and a number", [("text", place) for place in range(6)], THING),
        ("an ellipsis and the text 'end' among numbers", [1, 2, ..., 3, 4, "end", 5, 6], THING),
        ("six arrays of two numbers", [np.zeros(2) for _ in range(6)], THING),
    )
    for (named, items, lost), seed in product(streams, range(8)):
        with in_case(f"With {named} and size = 2", {"ambiguous": THING}):
            got = list(islice(answer(iter(items), 2, np.random.default_rng(seed)), 2 * len(items)))
        if len(got) != len(items):
            more = " or more" if len(got) == 2 * len(items) else ""
            yield f"{lost} Of {named} yours hands on {len(got)}{more}, and {len(items)} came."
        known = [*map(id, items)]
        others = [item for item in got if id(item) not in known]
        if others:
            yield f"{THING} Of {named} one left as {short(repr(others[0]))}, a {type(others[0]).__name__}."
        if sorted(map(id, got)) != sorted(known):
            why = EQUAL if lost == EQUAL else LOST
            yield f"{why} Of {named} yours hands on one twice, and another not at all."


def _faults_of_holding(answer: Callable[..., Any]) -> Iterator[str]:
    """Count what has been read when an item leaves: it was drawn from all that had not left before."""
    size = 4
    read: list[int] = []

    def endless() -> Iterator[int]:
        for place in count():
            if place == MOST:
                raise Finding(END)
            read.append(place)
            yield 10 * place + 3

    items = iter(answer(endless(), size, np.random.default_rng(0)))
    for left in range(9):
        next(items)
        waiting = len(read) - left
        told = f"With size = {size}, item number {left} to leave was one of {waiting}."
        if waiting > size + 1:  # one more is read first by whoever puts it where the drawn one lay
            yield f"{HOLDS} {told}"
        if waiting < size:
            yield f"{NOT_FULL} {told}"


def _faults_of_chance(answer: Callable[..., Any]) -> Iterator[str]:
    """Look at many runs: how early items leave, how long they wait, which of those that wait leaves at each turn."""
    size = 4
    orders = [_order(answer, 24, size, seed) for seed in range(RUNS)]
    for order in orders:
        for turn, place in enumerate(order):
            if place - turn >= size:
                yield f"{EARLY} With size = {size}, place {place} was number {turn} to leave."
    most_early = max(place - turn for order in orders for turn, place in enumerate(order))
    if most_early < size - 1:
        yield f"{NEWEST} With size = {size}, in {RUNS} runs none left more than {most_early} places early."
    waits: Counter[int] = Counter()
    for order in orders:
        waits.update(turn - place for turn, place in enumerate(order) if 6 <= place < 14)
    wait, often = waits.most_common(1)[0]
    said = next(_unequal(orders, size, turns=1), "")
    if said:
        yield f"{CHANCE} With size = {size}, {said}"
    later = wait + size - 1
    if later and often > waits.total() / 2:  # who leaves at once has not waited for a turn
        told = f"{often} of {waits.total()} items left just {later} turns after their first chance"
        yield f"{QUEUE} With size = 4, {told}."
    said = next(_unequal(orders, size, turns=20), "")
    if said:
        yield f"{CHANCE} With size = {size}, {said}"
    for size in SMALL:
        begun = [_order(answer, 2 * size, size, seed) for seed in range(MANY_RUNS)]
        said = next(_unequal(begun, size, turns=size), "") or next(_tied(begun, size), "")
        if said:
            yield f"{CHANCE} With size = {size}, {said}"
    for length, size in ENDS:
        ends = [_order(answer, length, size, seed) for seed in range(RUNS)]
        said = next(_unequal(ends, size, turns=length - 1), "")
        if said:
            yield f"{TAIL} A stream of {length} in a buffer for {size}: {said}"
    said = next(_uneven_end([_order(answer, 10, 10, seed) for seed in range(MANY_RUNS)]), "")
    if said:
        yield f"{TAIL} A stream of 10 in a buffer for 10: {said}"


def _unequal(orders: list[list[int]], size: int, turns: int) -> Iterator[str]:
    """Yield at which turn which of the waiting, by age, leaves far more often or more seldom than the others."""
    drawn = [_ages(order, size, turns) for order in orders]
    for turn in range(turns):
        ages: Counter[tuple[int, ...]] = Counter((each[turn],) for each in drawn)
        cells = [(age,) for age in range(min(size, len(orders[0]) - turn))]
        for (age,) in unfair(ages, cells):
            often = ages[(age,)]
            yield f"at turn {turn} number {age} of the waiting, by age, left in {often} of {len(orders)} runs."


def _tied(orders: list[list[int]], size: int) -> Iterator[str]:
    """Yield where the age of the one that leaves tells that of the next one; streams fill the buffer twice."""
    drawn = [_ages(order, size, size) for order in orders]
    for turn in range(size - 1):
        pairs: Counter[tuple[int, ...]] = Counter((each[turn], each[turn + 1]) for each in drawn)
        for age, following in unfair(pairs, [*product(range(size), repeat=2)]):
            both = f"number {age} of the waiting, by age, left at turn {turn} and number {following} at the next one"
            yield f"{both} in {pairs[age, following]} of {len(orders)} runs."


def _ages(order: list[int], size: int, turns: int) -> list[int]:
    """Return the number, by age, that each of the first to leave has among those that wait."""
    waiting = [*range(min(size, len(order)))]
    ages = []
    for turn, place in enumerate(order[:turns]):
        ages.append(waiting.index(place))
        del waiting[ages[-1]]
        if turn + size < len(order):
            waiting.append(turn + size)
    return ages


def _uneven_end(orders: list[list[int]]) -> Iterator[str]:
    """Yield which item leaves at which turn too often or too seldom, of a stream that just fills the buffer."""
    cells = [*product(range(len(orders[0])), repeat=2)]
    turns: Counter[tuple[int, ...]] = Counter()
    for order in orders:
        turns.update(enumerate(order))
    for turn, place in unfair(turns, cells):
        yield f"place {place} was number {turn} to leave in {turns[turn, place]} of {len(orders)} runs."


def _faults_of_a_large_buffer(answer: Callable[..., Any], size: int) -> Iterator[str]:
    """Count in one long run how old the item is that leaves, in tenths of those that wait; and look at a long end."""
    order = _order(answer, TURNS + size, size)
    waiting = [*range(size)]
    tenths: Counter[int] = Counter()
    for turn, place in enumerate(order[:TURNS]):
        age = bisect_left(waiting, place)
        if age == len(waiting) or waiting[age] != place:
            yield f"{EARLY} With size = {size}, place {place} was number {turn} to leave."
            return
        del waiting[age]
        waiting.append(turn + size)
        tenths[age * 10 // size] += 1
    expected = TURNS / 10
    for tenth in range(10):
        if not expected / 1.5 < tenths[tenth] < expected * 1.5:  # six deviations and more
            told = f"tenth number {tenth} of the waiting, by age, was drawn {tenths[tenth]} times of {TURNS}"
            yield f"{CHANCE} With size = {size}, {told}, and about {expected:.0f} are fair."
    rises = sum(one < other for one, other in pairwise(_order(answer, size, size)))
    if abs(rises - size / 2) > 2 * size**0.5:  # seven deviations
        told = f"{rises} of {size - 1} items are followed by a later one, and about half are fair"
        yield f"{TAIL} A stream of {size} in a buffer for {size}: {told}."
