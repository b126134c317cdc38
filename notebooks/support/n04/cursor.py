"""Exercise 2 of notebook 04: lives of a cursor, and where an answer's differs from libtorch's."""

from __future__ import annotations

import copy
import pickle
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from random import Random
from typing import Any, TypeAlias

from support.kit.apart import CAN_FORK, in_a_process_of_its_own
from support.kit.judged import Fault
from support.kit.raised import Finding, in_case, told_of
from support.kit.values import NO_RETURN, short
from support.n04.cutting import NEARER
from support.n04.network import few_lines, no_end
from support.n04.solved import Cursor

CursorClass: TypeAlias = Callable[[int, int, int], Any]

_TO_THE_END = "position next(3) next(3) position next(3) next(3) position"
_NEW_EPOCH = "next(2) epoch=1 next(1) reset() next(9) position"
_BACK = "next(2) reset() position next(9)"
_SAVED = "next(3) save load position next(1) next(5)"
_GONE_ON = "next(2), save(), epoch=2, reset(), save()"
_REST = "next(9) reset() next(9)"
_BEGINNINGS = ("next(1)", "next(1) epoch=3")

#: Size, ranks, rank, calls: one rule decides in each of the first, later ones try what is left.
LIVES: list[tuple[int, int, int, str]] = [
    *((12, 3, rank, _TO_THE_END) for rank in range(3)),
    *((10, 3, rank, _TO_THE_END) for rank in (2, 1, 0)),
    (12, 3, 1, _BACK),
    (12, 3, 1, _NEW_EPOCH),
    (12, 3, 2, "epoch=5 reset() next(4) epoch=1 reset() next(4) epoch=5 reset() next(4)"),
    (12, 3, 1, _SAVED),
    (12, 3, 1, "epoch=3 reset() next(2) save load next(9) reset() next(9)"),
    (12, 3, 1, "next(3) save next(1) load position next(9)"),
    (12, 3, 2, "next(4) save load next(1) position"),
    # the epoch is set and no reset has come yet: the order is still the old one, the next reset makes the new one
    (12, 3, 1, "next(2) epoch=2 save load next(9) reset() next(9)"),
    (12, 3, 1, "epoch=2 save load next(2) reset() next(9)"),
    (12, 3, 1, "next(1) save load next(1) save load next(9)"),
    *((size, ranks, 0, _TO_THE_END) for size, ranks in ((1, 1), (7, 2), (8, 4))),
    (12, 3, 1, "next(1) save load epoch=4 reset() next(9)"),
    (12, 3, 1, "epoch=5 reset() next(1) epoch=0 save load reset() next(9)"),
    (12, 3, 1, "epoch=5 reset() next(1) epoch=2 save load reset() next(9)"),
    (100, 4, 3, "epoch=6 reset() next(7) save load next(30) next(1) save reset() load next(1)"),
    # save is a call, too: a loaded cursor is saved again, and one cursor twice
    (10, 1, 0, "epoch=3 reset() next(3) save load save load next(9)"),
    (10, 1, 0, "epoch=3 next(3) save load save load next(9)"),
    (10, 1, 0, "epoch=3 next(3) save save load next(9)"),
    (10, 3, 0, "epoch=3 save load next(4)"),
    # a long shard, and an epoch of 2^24 + 1, which neither two bytes nor a short float can hold
    (900, 1, 0, "epoch=16777217 reset() next(467) save load position next(2) reset() next(2)"),
]


def _drawn_lives(count: int = 60) -> Iterator[tuple[int, int, int, str]]:
    """Draw lives in which anything may follow anything; each ends with the rest of this epoch and the next one."""
    random = Random(0)
    verbs = ["next", "next", "epoch=", "reset()", "save load", "save load", "save", "position"]
    for _ in range(count):
        size, ranks = random.choice([(12, 3), (10, 3), (10, 1), (7, 2)])
        calls = []
        for verb in random.choices(verbs, k=random.randrange(3, 12)):
            number = {"next": f"({random.randrange(1, 5)})", "epoch=": str(random.randrange(4))}
            calls.append(verb + number.get(verb, ""))
        yield size, ranks, random.randrange(ranks), " ".join([*calls, "next(12) position reset() next(12)"])


LIVES += _drawn_lives()

STATE = "A checkpoint shall stay small: what is in it must not grow with the data."
CALLS = "A checkpoint shall stay small: what is in it must not grow with the calls."
NEW = "next gives a new list each time, and what it gave before stays as it was."
FEW = "Fewer samples than ranks are dealt, too, however you like."
TWO = "Two cursors are two: what is one's is not the other's."
KEPT = "load is to leave the state as it is: it may be loaded again."
PROCESS = "The new process has the state only: no variable of the old one, and no file that it wrote."
ASKED = 100  # times, where samples are few: far more than any shard has
SIZES = (12, 3000)
#: Where a state is measured: anywhere in the shard, with an epoch that waits and without.
MOMENTS = ("position", "epoch=1", "epoch=0 next({half})", "epoch=1", "next({half})", "epoch=0")
MANY = 500  # calls of one kind
MOST_GROWTH = 250  # bytes; a byte a call is twice as much
#: Lines of Python in one call, for each sample of the epoch; to shuffle 900 takes 24,000.
MOST_LINES = 50_000


def fault_of_cursor(cursor: CursorClass) -> str:
    """Say where a cursor's answers part from ours, in the first life in which they do; "" if nowhere."""
    seen: list[Any] = []
    for size, ranks, rank, calls in LIVES:
        expected = _right(size, ranks, rank, calls)
        got = lived(cursor, size, ranks, rank, calls)
        seen.append(got)
        for number, (mine, right) in enumerate(zip(got, expected, strict=True)):
            if not _same(mine, right):
                verbs = calls.split()[: number + 1]
                said = f"Cursor({size}, {ranks}, {rank}), {', '.join(verbs)}: the last one {_told(mine)}"
                return Fault(f"{said}, not {short(right)}.", seen)
    return (
        _fault_of_few(cursor)
        or _fault_of_two(cursor)
        or _fault_of_lists(cursor)
        or _fault_of_process(cursor)
        or _fault_of_time(cursor)
        or _fault_of_load(cursor)
        or _fault_of_state(cursor)
    )


def lived(cursor: CursorClass, size: int, ranks: int, rank: int, calls: str) -> list[Any]:
    """Return what each call gives: next and position their value, the others None.

    load goes into a cursor of its own, made alike, from what pickle has written of the state; from then on it is asked.
    """
    mine = cursor(size, ranks, rank)
    state = b""
    answers: list[Any] = []
    for number, call in enumerate(calls.split()):
        done = ", ".join(calls.split()[: number + 1])
        answer = None
        case = f"Cursor({size}, {ranks}, {rank}), {done}"
        most = MOST_LINES * size
        with in_case(case), few_lines(most, no_end(f"{case}:", most, NEARER)):
            if call == "save":
                state = _written(mine.save())
            elif call == "load":
                mine = cursor(size, ranks, rank)
                mine.load(pickle.loads(state))
            else:
                answer = _answer(mine, call)
        answers.append(answer)
    return answers


@cache
def _right(size: int, ranks: int, rank: int, calls: str) -> list[Any]:
    """Return what each call of our cursor gives."""
    return lived(Cursor, size, ranks, rank, calls)


def _answer(mine: Any, call: str) -> Any:
    """Return what a cursor answers to one call; of "position" and "epoch=…" the one reads, the other sets."""
    verb, *numbers = re.findall(r"[a-z]+|\d+", call)
    if verb == "position":
        return copy.deepcopy(mine.position)  # a tensor may be changed in its place
    if verb == "epoch":
        mine.epoch = int(numbers[0])
        return None
    if verb == "reset":
        mine.reset()
        return None
    # copied: who hands out a list that it keeps and empties later has given it
    return copy.copy(mine.next(int(numbers[0])))


def _written(state: Any) -> bytes:
    if state is None:
        raise Finding(f"save {NO_RETURN}.")
    return pickle.dumps(state)


def _same(got: Any, expected: Any) -> bool:
    """Say whether an answer is ours: a list of the same ints, the same position, None."""
    if expected is None:
        return got is None
    if isinstance(expected, list):
        return isinstance(got, list) and _kinds(got) == {int} and got == expected
    return not isinstance(got, (bool, Sequence)) and bool(got == expected)


def _kinds(answer: Any) -> set[type]:
    """Return the types of what stands in a list; none for what is no list."""
    return set(map(type, answer)) if isinstance(answer, list) else set()


def _told(answer: Any) -> str:
    if answer is None:
        return "returned None"
    kinds = _kinds(answer)
    others = f", a list of {kinds.pop().__name__}" if len(kinds) == 1 and kinds != {int} else ""
    return f"gives {short(answer)}{others}"


def _fault_of_few(cursor: CursorClass) -> str:
    """Ask for samples where there are fewer than ranks: any will do, if they end, and a load goes on with them."""
    for size, ranks in ((1, 3), (2, 8)):
        for rank in range(ranks):
            said = f"Cursor({size}, {ranks}, {rank})"
            with in_case(f"{said}, next(1)", {"": FEW}):
                mine = cursor(size, ranks, rank)
                given = [mine.next(1) for _ in range(ASKED)]
            if given[-1] is not None:
                return f"{said}, {ASKED} times next(1): the last one {_told(given[-1])}, not None."
            new = lived(cursor, size, ranks, rank, "next(1) save load next(1)")[-1]
            if repr(new) != repr(given[1]):
                told = f"{said}, next(1), save, load, next(1): the last one {_told(new)}"
                return f"{told}; without save and load it {_told(given[1])}."
    return ""


def _fault_of_two(cursor: CursorClass) -> str:
    """Ask a cursor for samples while there is another one, of another epoch."""
    said = "a = Cursor(12, 3, 0), b = Cursor(12, 3, 2), b.epoch=1, b.reset(), b.next(1), a.next(9)"
    right = _right(12, 3, 0, "next(9)")[-1]
    with in_case(said):
        first = cursor(12, 3, 0)
        other = cursor(12, 3, 2)
        other.epoch = 1
        other.reset()
        other.next(1)
        mine = copy.copy(first.next(9))
    if not _same(mine, right):
        return f"{said}: the last one {_told(mine)}, not {short(right)}. {TWO}"
    return ""


def _fault_of_lists(cursor: CursorClass) -> str:
    """Look at a list that was handed out when the cursor has gone on, and at the cursor when one was emptied."""
    said = "a = Cursor(12, 3, 0), first = a.next(2), a.next(2), a.next(2), a.reset(), a.next(1): first"
    right = _right(12, 3, 0, "next(2)")[-1]
    with in_case(said):
        mine = cursor(12, 3, 0)
        first = mine.next(2)
        mine.next(2)
        mine.next(2)
        mine.reset()
        mine.next(1)
    if not _same(first, right):
        return f"{said} is {short(first)} now, and was {short(right)}. {NEW}"
    said = "a = Cursor(12, 3, 0), first = a.next(9), first.clear(), a.reset(), a.next(9)"
    right = _right(12, 3, 0, "next(9)")[-1]
    with in_case(said):
        mine = cursor(12, 3, 0)
        mine.next(9).clear()
        mine.reset()
        again = mine.next(9)
    return "" if _same(again, right) else f"{said}: the last one {_told(again)}, not {short(right)}. {NEW}"


def _fault_of_time(cursor: CursorClass) -> str:
    """Let a cursor go on and be saved again between save and the writing of its state."""
    for begun in _BEGINNINGS:
        said = f"Cursor(12, 3, 1), {_listed(begun)}, state = save(), {_GONE_ON}, load(state) in a new one"
        with in_case(said):
            old = _begun(cursor, begun)
            state = old.save()
            _go_on(old)
            new = cursor(12, 3, 1)
            new.load(pickle.loads(pickle.dumps(state)))
            answers = [_answer(new, call) for call in _REST.split()]
        fault = _fault_of_rest(said, begun, answers, "A state stays what it was when it was saved.")
        if fault:
            return fault
    return ""


def _fault_of_load(cursor: CursorClass) -> str:
    """Load one state twice, the second time after the first cursor has gone on."""
    for begun in _BEGINNINGS:
        said = f"Cursor(12, 3, 1), {_listed(begun)}, state = save(), load(state) in a new one, {_GONE_ON}"
        said += ", load(state) in another"
        with in_case(said):
            state = pickle.loads(_written(_begun(cursor, begun).save()))
            new = cursor(12, 3, 1)
            new.load(state)
            _go_on(new)
        try:
            again = cursor(12, 3, 1)
            again.load(state)
            answers = [_answer(again, call) for call in _REST.split()]
        except Exception as error:
            return f"{said}, {_listed(_REST)}: {told_of(error)} {KEPT}"
        fault = _fault_of_rest(said, begun, answers, KEPT)
        if fault:
            return fault
    return ""


def _listed(calls: str) -> str:
    return ", ".join(calls.split())


def _begun(cursor: CursorClass, calls: str) -> Any:
    """Return the cursor of rank 1 of 3 after these calls."""
    mine = cursor(12, 3, 1)
    for call in calls.split():
        _answer(mine, call)
    return mine


def _go_on(mine: Any) -> None:
    """Make the calls of _GONE_ON: whatever a cursor keeps is changed by one of them."""
    mine.next(2)
    mine.save()
    mine.epoch = 2
    mine.reset()
    mine.save()


def _fault_of_rest(said: str, begun: str, answers: Sequence[Any], why: str) -> str:
    """Say where a state that was saved after these calls led elsewhere than ours; "" if nowhere."""
    right = _right(12, 3, 1, f"{begun} save load {_REST}")
    return _fault_of_answers(said, _REST, answers, right, why)


def _fault_of_answers(said: str, calls: str, answers: Sequence[Any], right: Sequence[Any], why: str) -> str:
    """Say at which of the last calls an answer is not the right one; "" if at none."""
    for number, (got, wanted) in enumerate(zip(answers, right[-len(answers) :], strict=True)):
        if not _same(got, wanted):
            done = ", ".join([said, *calls.split()[: number + 1]])
            return f"{done}: the last one {_told(got)}, not {short(wanted)}. {why}"
    return ""


def _fault_of_process(cursor: CursorClass) -> str:
    """Save in one process and load in another, as a restarted job does; "" where no process can be copied."""
    if not CAN_FORK:
        return ""
    once = [life for life in LIVES if " save load " in life[3] and life[3].count("save") == 1]
    lives = [(*alike, *calls.split(" save load ")) for *alike, calls in once]
    begun = time.time()
    try:
        states = in_a_process_of_its_own(partial(_saved, cursor, lives))
        went_on = partial(_fault_after_load, cursor, lives, states)
        return str(in_a_process_of_its_own(went_on, no_file_since=begun))
    except ChildProcessError:  # the system's fault, and not the answer's
        return ""


def _saved(cursor: CursorClass, lives: Sequence[Any]) -> list[bytes]:
    """Return the state of a cursor at the end of the first part of each life."""
    states = []
    for size, ranks, rank, before, _ in lives:
        mine = cursor(size, ranks, rank)
        for call in before.split():
            _answer(mine, call)
        states.append(_written(mine.save()))
    return states


def _fault_after_load(cursor: CursorClass, lives: Sequence[Any], states: Sequence[bytes]) -> str:
    """Say where a loaded cursor goes on otherwise than ours in the second part of a life; "" if nowhere."""
    for (size, ranks, rank, before, after), state in zip(lives, states, strict=True):
        right = _right(size, ranks, rank, f"{before} save load {after}")
        done = ", ".join(
            [f"Cursor({size}, {ranks}, {rank})", *before.split(), "save, and in a new process load"]
        )
        try:
            mine = cursor(size, ranks, rank)
            mine.load(pickle.loads(state))
            answers = [_answer(mine, call) for call in after.split()]
        except Exception as error:
            return f"{done}, {', '.join(after.split())}: {told_of(error)} {PROCESS}"
        fault = _fault_of_answers(done, after, answers, right, PROCESS)
        if fault:
            return fault
    return ""


def _once_more(mine: Any, call: str, number: int, new: Callable[[], Any]) -> Any:
    """Make one of many calls, and return the cursor that is to be asked next; each reset is that of a new epoch."""
    if call == "save":
        _written(mine.save())
    elif call == "load":
        state = _written(mine.save())
        mine = new()
        mine.load(pickle.loads(state))
    else:
        if call == "reset()":
            mine.epoch = number
        _answer(mine, call)
    return mine


def _fault_of_state(cursor: CursorClass) -> str:
    """Say by which calls, or with which data, what save returns grows; "" if by none."""
    for size, call in ((MANY, "next(1)"), (12, "reset()"), (12, "save"), (12, "load")):
        mine = cursor(size, 1, 0)
        early = len(_written(mine.save()))
        for number in range(MANY):
            mine = _once_more(mine, call, number, partial(cursor, size, 1, 0))
        late = len(_written(mine.save()))
        if late - early > MOST_GROWTH:
            return (
                f"what save returns takes {early} bytes, and after {MANY} calls of {call} {late:,}. {CALLS}"
            )
    few, many = (_bytes_of_states(cursor, size) for size in SIZES)
    for number, (less, more) in enumerate(zip(few, many, strict=True)):
        if more - less > MOST_GROWTH:
            done = _listed(" ".join(MOMENTS[: number + 1]).format(half=SIZES[1] // 2))
            said = f"Cursor({SIZES[1]}, 1, 0), {done}: what save returns takes {more:,} bytes"
            return f"{said}, and {less} for {SIZES[0]} samples. {STATE}"
    return ""


def _bytes_of_states(cursor: CursorClass, size: int) -> list[int]:
    """Return how large the state of one cursor is after each of the moments."""
    mine = cursor(size, 1, 0)
    lengths = []
    for calls in MOMENTS:
        for call in calls.format(half=size // 2).split():
            _answer(mine, call)
        lengths.append(len(_written(mine.save())))
    return lengths
