"""Shares of rows for ranks of unequal speed: right ones of any kind, and wrong ones that look good for long."""

import heapq
import math

import pytest
import torch

from support.n00 import unequal
from support.n00.checks import check_deal
from support.n00.solved import my_deal


def with_a_heap(rows, speeds):
    shares = [0] * len(speeds)
    heap = [(1 / speed, rank) for rank, speed in enumerate(speeds)]
    heapq.heapify(heap)
    for _ in range(rows):
        _, rank = heap[0]
        shares[rank] += 1
        heapq.heapreplace(heap, ((shares[rank] + 1) / speeds[rank], rank))
    return shares


def by_trying_ends(rows, speeds):
    """Try every time at which some rank could end, the earliest first; take back what is too much."""
    ends = sorted({count / speed for speed in speeds for count in range(rows + 1)})
    for end in ends:
        shares = [int(end * speed + 1e-9) for speed in speeds]
        if sum(shares) >= rows:
            break
    too_many = sum(shares) - rows
    for rank, share in enumerate(shares):
        back = min(share, too_many)
        shares[rank] -= back
        too_many -= back
    return tuple(shares)


@pytest.mark.parametrize("answer", [with_a_heap, by_trying_ends])
def test_other_shares_that_end_as_early_are_right(answer):
    assert check_deal(answer), check_deal(answer)


def rounded_down_then(key):
    """Deal by speed, rounded down, and give what is left a row each, the least key(share, speed) first."""

    def deal(rows, speeds):
        shares = [rows * speed // sum(speeds) for speed in speeds]
        order = sorted(range(len(speeds)), key=lambda rank: key(shares[rank], speeds[rank]))
        for rank in order[: rows - sum(shares)]:
            shares[rank] += 1
        return shares

    return deal


def rounded_up_and_cut(rows, speeds):
    shares = [math.ceil(rows * speed / sum(speeds)) for speed in speeds]
    for rank in reversed(range(len(speeds))):
        shares[rank] -= min(shares[rank], sum(shares) - rows)
    return shares


@pytest.mark.parametrize(
    "answer",
    [
        rounded_down_then(lambda share, speed: -speed),
        rounded_down_then(lambda share, speed: (share + 1) / speed),
        rounded_up_and_cut,
    ],
)
def test_shares_that_are_only_rounded_well_are_refused(answer):
    assert check_deal(answer).status == "wrong"


def greedily(key):
    """Give each row to the rank of the least key(share, speed)."""

    def deal(rows, speeds):
        shares = [0 for _ in speeds]
        for _ in range(rows):
            keys = [key(share, speed) for share, speed in zip(shares, speeds, strict=True)]
            shares[keys.index(min(keys))] += 1
        return shares

    return deal


def rounded_greedily_and_one_swap(rows, speeds):
    shares = [round(rows * speed / sum(speeds)) for speed in speeds]
    ranks = range(len(speeds))
    while sum(shares) < rows:
        shares[min(ranks, key=lambda rank: (shares[rank] + 1) / speeds[rank])] += 1
    while sum(shares) > rows:
        shares[max(ranks, key=lambda rank: shares[rank] / speeds[rank])] -= 1
    last = max(ranks, key=lambda rank: shares[rank] / speeds[rank])
    first = min(ranks, key=lambda rank: (shares[rank] + 1) / speeds[rank])
    if (shares[first] + 1) / speeds[first] < shares[last] / speeds[last]:
        shares[first] += 1
        shares[last] -= 1
    return shares


def two_greedily_and_the_rest_to_the_fastest(rows, speeds):
    shares = [rows * speed // sum(speeds) for speed in speeds]
    for _ in range(min(2, rows - sum(shares))):
        shares[min(range(len(speeds)), key=lambda rank: (shares[rank] + 1) / speeds[rank])] += 1
    shares[speeds.index(max(speeds))] += rows - sum(shares)
    return shares


def at_most_two_rows_more(rows, speeds):
    shares = [rows * speed // sum(speeds) for speed in speeds]
    more = [0] * len(speeds)
    while sum(shares) + sum(more) < rows:
        open_ranks = [rank for rank in range(len(speeds)) if more[rank] < 2]
        first = min(open_ranks, key=lambda rank: (shares[rank] + more[rank] + 1) / speeds[rank])
        more[first] += 1
    return [share + extra for share, extra in zip(shares, more, strict=True)]


def by_later_ends(by):
    """Let all end later by a fixed time until enough rows fit; take from the slow what is too much."""

    def deal(rows, speeds):
        end = rows / sum(speeds)
        while sum(int(end * speed + 1e-9) for speed in speeds) < rows:
            end += by
        shares = [int(end * speed + 1e-9) for speed in speeds]
        for rank in sorted(range(len(speeds)), key=lambda rank: speeds[rank]):
            shares[rank] -= min(shares[rank], sum(shares) - rows)
        return shares

    return deal


def by_a_hundred_swaps(rows, speeds):
    ranks = range(len(speeds))
    shares = [rows // len(speeds) + (rank < rows % len(speeds)) for rank in ranks]
    for _ in range(100):
        last = max(ranks, key=lambda rank: shares[rank] / speeds[rank])
        first = min(ranks, key=lambda rank: (shares[rank] + 1) / speeds[rank])
        if (shares[first] + 1) / speeds[first] < shares[last] / speeds[last]:
            shares[first] += 1
            shares[last] -= 1
    return shares


def rounded_up_then_to_the_fastest(key):
    """Round up, take back where key(share, speed) is most, then let the fastest have rows while that helps."""

    def deal(rows, speeds):
        ranks = range(len(speeds))
        shares = [math.ceil(rows * speed / sum(speeds)) for speed in speeds]
        while sum(shares) > rows:
            shares[max(ranks, key=lambda rank: key(shares[rank], speeds[rank]))] -= 1
        fastest = speeds.index(max(speeds))
        while True:
            last = max(ranks, key=lambda rank: shares[rank] / speeds[rank])
            if (shares[fastest] + 1) / speeds[fastest] >= shares[last] / speeds[last]:
                return shares
            shares[last] -= 1
            shares[fastest] += 1

    return deal


def each_rounded_for_all_the_rest(rows, speeds):
    """The slowest first: take of what is left a share rounded to the side that is better for it and all the rest."""
    shares = [0] * len(speeds)
    waiting = sorted(range(len(speeds)), key=lambda rank: speeds[rank])
    while len(waiting) > 1:
        speed = speeds[waiting[0]]
        others = sum(speeds[rank] for rank in waiting[1:])
        left = rows - sum(shares)
        down = left * speed // (speed + others)
        sides = (share for share in (down, down + 1) if share <= left)
        shares[waiting.pop(0)] = min(sides, key=lambda share: max(share / speed, (left - share) / others))
    shares[waiting[0]] = rows - sum(shares)
    return shares


def a_call_a_row(rows, speeds):
    if rows == 0:
        return [0] * len(speeds)
    shares = a_call_a_row(rows - 1, speeds)
    shares[min(range(len(speeds)), key=lambda rank: (shares[rank] + 1) / speeds[rank])] += 1
    return shares


def of_several_ranks(rows, speeds):
    assert len(speeds) > 1
    return with_a_heap(rows, speeds)


@pytest.mark.parametrize(
    "answer",
    [
        *(greedily(lambda share, speed, part=part: (share + part) / speed) for part in (0.9, 0.99, 1.01, 1.1)),
        rounded_greedily_and_one_swap,
        two_greedily_and_the_rest_to_the_fastest,
        at_most_two_rows_more,
        *(by_later_ends(by) for by in (0.01, 0.001)),
        by_a_hundred_swaps,
        rounded_up_then_to_the_fastest(lambda share, speed: share),
        rounded_up_then_to_the_fastest(lambda share, speed: share / speed),
        each_rounded_for_all_the_rest,
        a_call_a_row,
        of_several_ranks,
    ],
)
def test_shares_that_are_wrong_only_far_out_are_refused_without_the_name_of_another_mistake(answer):
    verdict = check_deal(answer)
    assert verdict.status == "wrong"
    assert not any(sentence in verdict.message for sentence in check_deal.mistakes)


def by_the_place_of_a_speed(rows, speeds):
    shares = [0] * len(speeds)
    for _ in range(rows):
        best = min(speeds, key=lambda speed: (shares[speeds.index(speed)] + 1) / speed)
        shares[speeds.index(best)] += 1
    return shares


def all_to_the_fastest(rows, speeds):
    shares = [0] * len(speeds)
    shares[speeds.index(max(speeds))] = rows
    return shares


def sorting_the_speeds(rows, speeds):
    speeds.sort(reverse=True)
    return with_a_heap(rows, speeds)


def clearing_the_speeds(rows, speeds):
    shares = with_a_heap(rows, speeds)
    speeds.clear()
    return shares


@pytest.mark.parametrize(
    "answer, told",
    [
        (by_the_place_of_a_speed, "`index` finds the first rank that has it"),
        (all_to_the_fastest, "You gave all rows to the fastest rank: others can take some of them."),
        (greedily(lambda share, speed: (share + 0.5) / speed), "would be half done with it first"),
        (sorting_the_speeds, "your function has changed its argument speeds, which is [7, 4, 2] afterwards"),
        (clearing_the_speeds, "your function has changed its argument speeds, which is [] afterwards"),
    ],
)
def test_shares_are_told_what_is_true_of_them_and_speeds_stay_as_they_are(answer, told):
    verdict = check_deal(answer)
    assert verdict.status == "wrong"
    assert told in verdict.message
    assert sum(sentence in verdict.message for sentence in check_deal.mistakes) <= 1
    assert check_deal(with_a_heap), "it is judged as in a fresh process"


def test_a_share_that_is_no_number_of_rows_is_told():
    assert "rank 0 gets -1 rows" in check_deal(lambda rows, speeds: [-1, *speeds[1:]]).message
    assert "the list has 1 share for 4 ranks" in check_deal(lambda rows, speeds: [rows]).message


@pytest.mark.parametrize(
    "other, kind",
    [(lambda shares: dict(enumerate(shares)).values(), "dict_values"), (lambda shares: map(int, shares), "map")],
)
def test_what_can_not_be_sliced_is_no_list_of_shares(other, kind):
    verdict = check_deal(lambda rows, speeds: other(with_a_heap(rows, speeds)))
    assert f"a list of 4 shares expected, not {kind}." in verdict.message
    assert "your function returned None" in check_deal(lambda rows, speeds: None).message


def test_praise_speaks_of_the_last_rank_since_another_may_end_later_than_it_could():
    assert by_trying_ends(12, [2, 2, 2, 1]) == (2, 4, 4, 2), "with [3, 3, 4, 2] rank 1 ends sooner"
    assert "the last rank could not end sooner" in check_deal(by_trying_ends).message


# ---- exercise 5: whole numbers, more ranks, ends that nearly coincide


def earliest(end):
    """Make a dealer that gives each row to the rank of the earliest end(share + 1, speed)."""

    def deal(rows, speeds):
        shares = [0] * len(speeds)
        for _ in range(rows):
            shares[min(range(len(speeds)), key=lambda rank: end(shares[rank] + 1, speeds[rank]))] += 1
        return shares

    return deal


def few_rows_well(rows, speeds, well=3):
    shares = [rows * speed // sum(speeds) for speed in speeds]
    for _ in range(min(well, rows - sum(shares))):
        shares[min(range(len(speeds)), key=lambda rank: (shares[rank] + 1) / speeds[rank])] += 1
    shares[speeds.index(max(speeds))] += rows - sum(shares)
    return shares


def by_thousandths(rows, speeds):
    thousandths = 1000 * rows // sum(speeds)
    while sum(thousandths * speed // 1000 for speed in speeds) < rows:
        thousandths += 1
    shares = [thousandths * speed // 1000 for speed in speeds]
    for rank in range(len(speeds)):
        shares[rank] -= min(shares[rank], sum(shares) - rows)
    return shares


def of_four_at_most(rows, speeds):
    assert len(speeds) <= 4
    return my_deal(rows, speeds)


@pytest.mark.parametrize(
    "answer",
    [
        *(earliest(lambda share, speed, digits=digits: round(share / speed, digits)) for digits in (2, 3)),
        *(lambda rows, speeds, well=well: few_rows_well(rows, speeds, well) for well in (3, 4)),
        by_thousandths,
        of_four_at_most,
    ],
)
def test_shares_that_are_right_only_for_few_ranks_or_coarse_ends_are_refused(answer):
    verdict = check_deal(answer)
    assert verdict.status == "wrong"
    assert not any(sentence in verdict.message for sentence in check_deal.mistakes)
    assert check_deal(earliest(lambda share, speed: share / speed))


def test_shares_that_are_floats_are_told_so_since_no_rank_could_slice_with_them():
    verdict = check_deal(lambda rows, speeds: [float(share) for share in my_deal(rows, speeds)])
    assert verdict.status == "wrong"
    assert "rank 0 gets 3.0 rows: that is a float, and rows are counted by an int" in verdict.message
    assert check_deal(lambda rows, speeds: torch.tensor(my_deal(rows, speeds), dtype=torch.long))


def test_one_tick_is_not_called_ticks():
    backwards = check_deal(lambda rows, speeds: my_deal(rows, speeds)[::-1])
    assert "ends after 2 ticks; it could end after 1 tick." in backwards.message


def swapping(shares, moves_on):
    """Move rows from who ends last to who would end first with one more, while moves_on(that end, the last end)."""

    def deal(rows, speeds):
        ranks = range(len(speeds))
        dealt = shares(rows, speeds)
        while True:
            last = max(ranks, key=lambda rank: dealt[rank] / speeds[rank])
            best = min(ranks, key=lambda rank: (dealt[rank] + 1) / speeds[rank])
            if not moves_on((dealt[best] + 1) / speeds[best], dealt[last] / speeds[last]):
                return dealt
            dealt[last] -= 1
            dealt[best] += 1

    return deal


def all_to_the_first(rows, speeds):
    return [rows, *(0 for _ in speeds[1:])]


def test_swaps_that_never_end_are_refused_and_those_that_do_are_right(monkeypatch):
    monkeypatch.setattr(unequal, "LINES", 20_000)
    assert check_deal(swapping(all_to_the_first, lambda end, last: end < last))
    verdict = check_deal(swapping(all_to_the_first, lambda end, last: end <= last))
    assert verdict.status == "wrong"
    assert "lines and has not ended (in " in verdict.message


def test_behind_a_difference_one_call_that_does_not_end_is_enough(monkeypatch):
    monkeypatch.setattr(unequal, "LINES", 20_000)
    calls = []

    def equally_few_and_endlessly_many(rows, speeds):
        calls.append(rows)
        if rows > 12:
            swapping(all_to_the_first, lambda end, last: True)(2, [1, 1])
        return [rows // len(speeds) + (rank < rows % len(speeds)) for rank in range(len(speeds))]

    verdict = check_deal(equally_few_and_endlessly_many)
    assert verdict.status == "wrong"
    assert "You dealt equally" not in verdict.message
    assert sum(rows > 12 for rows in calls) == 1
