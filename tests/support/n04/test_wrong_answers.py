"""Wrong answers to exercises 1 and 3 of notebook 04 that once passed, each with what is said of it now."""

import math
import random
from collections import deque

import pytest

from support.kit.mistakes import edited
from support.n04 import checks as n04
from support.n04 import cutting, resuming
from support.n04.blocks import most_pieces
from support.n04.cutting import DIGITS, RANKS
from support.n04.runs import block_shares
from support.n04.solved import my_batches, resume


def refused(verdict, said):
    """Hold a verdict against the words that must be in it."""
    assert verdict.status == "wrong", verdict
    assert said in verdict.message, verdict.message


# ---- exercise 1


def test_whose_turn_it_is_does_not_depend_on_who_has_asked_before():
    asked = []

    def by_counting(size, world_size, rank, batch_size):
        asked.append(rank)
        return my_batches(size, world_size, (len(asked) - 1) % world_size, batch_size)

    refused(n04.check_batches(by_counting), "A rank asks in a process of its own")


def test_no_rank_waits_for_rank_0_to_ask_first():
    cuts = {}
    deals = {}

    def cut_by_rank_0(size, world_size, rank, batch_size):
        if rank == 0:
            for other in range(world_size):
                cuts[other] = my_batches(size, world_size, other, batch_size)
        return cuts[rank]

    def dealt_by_rank_0(size, runs, world_size, rank):
        if rank == 0:
            for other in range(world_size):
                deals[other] = resume(size, runs, world_size, other)
        return deals[rank]

    refused(n04.check_batches(cut_by_rank_0), "rank = 2: your code raised KeyError: 2")
    refused(n04.check_resume(dealt_by_rank_0), "rank = 4: your code raised KeyError: 4")


def test_a_loop_that_never_ends_is_ended(monkeypatch):
    monkeypatch.setattr(cutting, "MOST_LINES", 20_000)
    monkeypatch.setattr(resuming, "MOST_LINES", 20_000)

    def standing(size, world_size, rank, batch_size):
        begin = 0
        while begin < size:
            mine = my_batches(size, world_size, rank, batch_size)
        return mine

    def turning(size, runs, world_size, rank):
        while runs:
            rest = resume(size, runs, world_size, rank)
        return rest

    refused(n04.check_batches(standing), "for size = 24, world_size = 3, batch_size = 2, rank = 2, your code has run")
    refused(n04.check_resume(turning), "for resume(38, [(4, 2, 3)], 5, rank), rank = 4, your code has run")


@pytest.mark.parametrize("position", [float, lambda place: [place]])
def test_batches_of_something_else_than_positions_are_told_what_is_asked_for(position):
    def something_else(size, world_size, rank, batch_size):
        return [list(map(position, batch)) for batch in my_batches(size, world_size, rank, batch_size)]

    refused(n04.check_batches(something_else), "each batch is a list of positions")


@pytest.mark.parametrize("rounded", [int, round])
def test_what_a_short_step_leaves_over_is_not_all_for_the_last_rank(rounded):
    to_the_last = edited(
        my_batches,
        ("first = begin", "each = max(1, rounded(count / world_size))\n        first = begin"),
        ("count * rank // world_size", "min(count, rank * each)"),
        ("count * (rank + 1) // world_size", "(count if rank == world_size - 1 else min(count, rank * each + each))"),
        names={"rounded": rounded},
    )
    refused(n04.check_batches(to_the_last), "In the last step, too, the ranks share the work")


@pytest.mark.parametrize(
    "share",
    [
        "int(count / world_size * ({}))",
        "int(count * (({}) / world_size))",
        "math.ceil(count / world_size * ({}))",
        "math.ceil(count * (({}) / world_size))",
    ],
)
def test_shares_by_floats_are_rounded_wrong_for_some_sizes(share):
    by_floats = edited(
        my_batches,
        ("count * rank // world_size", share.format("rank")),
        ("count * (rank + 1) // world_size", share.format("rank + 1")),
        names={"math": math},
    )
    refused(n04.check_batches(by_floats), "for size = ")


def test_a_share_in_random_order_is_not_said_to_depend_on_who_has_asked_before():
    def shuffled(size, world_size, rank, batch_size):
        return [random.sample(batch, len(batch)) for batch in my_batches(size, world_size, rank, batch_size)]

    refused(n04.check_batches(shuffled), "the same question must have the same answer")


def test_a_bet_on_a_page_is_told_how_many_pieces_it_leaves():
    assert most_pieces(block_shares(DIGITS, RANKS, 64), 48) == 8
    assert "8 pieces are left" in str(n04.guess_block(64))


def test_a_last_step_in_which_nobody_takes_anything_is_no_step():
    refused(
        n04.check_batches(edited(my_batches, ("range(0, size, together)", "range(0, size + 1, together)"))),
        "in the last step nobody takes anything",
    )


def test_batches_of_one_are_batches_too():
    refused(
        n04.check_batches(
            edited(my_batches, ("    mine = []\n", "    mine = []\n    rank += batch_size == 1 < size\n"))
        ),
        "batch_size = 1",
    )


# ---- exercise 3


def test_a_rule_that_ignores_the_rank_is_refused():
    asked = []

    def by_counting(size, runs, world_size, rank):
        asked.append(rank)
        return resume(size, runs, world_size, (len(asked) - 1) % world_size)

    refused(n04.check_resume(by_counting), "A rank asks in a process of its own")


def test_a_rule_that_keeps_its_place_between_calls_is_not_told_when_to_look_for_an_end():
    kept = {"size": 0, "runs": 0, "epoch": 0, "used": 0}

    def keeping(size, runs, world_size, rank):
        if kept["size"] != size or kept["runs"] > len(runs):
            kept.update(size=size, runs=0, epoch=0, used=0)
        for ranks, batch, steps in runs[kept["runs"] :]:
            for _ in range(steps):
                kept["used"] += ranks * batch
                if kept["used"] >= size:
                    kept.update(epoch=kept["epoch"] + 1, used=0)
        kept["runs"] = len(runs)
        return kept["epoch"], list(range(kept["used"] + rank, size, world_size))

    message = n04.check_resume(keeping).message
    assert "resume(" in message
    assert "look for it after every step" not in message


def by_the_last_run_in_its_epoch(size, runs, world_size, rank):
    epoch = used = 0
    for ranks, batch, steps in runs:
        length = -(-size // (ranks * batch))
        epoch += steps // length
        used = steps % length * ranks * batch
    return epoch, list(range(used + rank, size, world_size))


def test_a_rule_that_counts_all_epochs_is_not_told_that_it_counts_the_last_run_only():
    refused(n04.check_resume(by_the_last_run_in_its_epoch), "The last run is counted as if it began at position 0")


def test_a_rule_that_empties_the_history_is_refused():
    def popping(size, runs, world_size, rank):
        copy = list(runs)
        runs.clear()
        return resume(size, copy, world_size, rank)

    refused(n04.check_resume(popping), "the history that it was given is [] afterwards")


def by_the_period_of_the_last_run(size, runs, world_size, rank):
    used = epoch = 0
    for ranks, batch, steps in runs:
        used += ranks * batch * steps
        if used >= size:
            period = -(-size // (ranks * batch))
            epoch += used // (period * ranks * batch)
            used %= period * ranks * batch
    return epoch, list(range(used + rank, size, world_size))


def by_taking_periods_off(size, runs, world_size, rank):
    used = epoch = 0
    for ranks, batch, steps in runs:
        used += ranks * batch * steps
        period = -(-size // (ranks * batch)) * ranks * batch
        while used >= size:
            epoch += 1
            used = max(0, used - period)
    return epoch, list(range(used + rank, size, world_size))


def by_rounded_steps(rounded):
    """Count the steps that an epoch has for this run's ranks, and take off those that are done, rounded."""

    def rule(size, runs, world_size, rank):
        used = epoch = 0
        for ranks, batch, steps in runs:
            together = ranks * batch
            length = -(-size // together)
            missing = length - rounded(used / together)
            if steps < missing:
                used += steps * together
            else:
                epoch += 1 + (steps - missing) // length
                used = (steps - missing) % length * together
        return epoch, list(range(used + rank, size, world_size))

    return rule


@pytest.mark.parametrize(
    "rule",
    [by_the_period_of_the_last_run, by_taking_periods_off, *map(by_rounded_steps, (math.floor, round, math.ceil))],
)
def test_an_epoch_begun_by_one_run_and_ended_by_another_has_no_period(rule):
    refused(n04.check_resume(rule), "resume(")


def test_fewer_left_than_ranks_are_still_shared_and_given_once():
    def to_the_first(size, runs, world_size, rank):
        epoch, rest = resume(size, runs, 1, 0)
        if len(rest) >= world_size:
            return epoch, rest[rank::world_size]
        return epoch, rest if rank == 0 else []

    def again(size, runs, world_size, rank):
        epoch, mine = resume(size, runs, world_size, rank)
        return epoch, mine or resume(size, runs, 1, 0)[1][:1]

    def to_the_first_two(size, runs, world_size, rank):
        epoch, rest = resume(size, runs, 1, 0)
        if len(rest) >= world_size:
            return epoch, rest[rank::world_size]
        return epoch, [rest[:1], rest[1:], *[[]] * 10][rank]

    refused(n04.check_resume(to_the_first), "no two ranks may differ by more than one")
    refused(n04.check_resume(to_the_first_two), "no two ranks may differ by more than one")
    refused(n04.check_resume(again), "No position may be given twice")


def test_an_end_that_is_looked_for_after_each_run_only_is_told_so():
    late = edited(
        resume,
        (
            "            consumed += ranks * batch_size\n",
            "            consumed = min(consumed + ranks * batch_size, size)\n",
        ),
        ("            if consumed >= size:\n                epoch", "        if consumed >= size:\n            epoch"),
    )
    message = n04.check_resume(late).message
    assert "after the last run only" not in message


def test_runs_of_one_kind_are_not_one_run_where_another_lies_between():
    def merged(size, runs, world_size, rank):
        steps_of = {}
        for ranks, batch, steps in runs:
            steps_of[ranks, batch] = steps_of.get((ranks, batch), 0) + steps
        return resume(size, [(*kind, steps) for kind, steps in steps_of.items()], world_size, rank)

    refused(n04.check_resume(merged), "resume(10, [(3, 1, 2), (4, 1, 1), (3, 1, 2)], ")


def test_a_run_that_comes_again_counts_again():
    once = edited(resume, ("in runs", "in dict.fromkeys(runs)"))
    refused(n04.check_resume(once), "resume(10, [(3, 1, 2), (4, 1, 1), (3, 1, 2)], ")


def test_a_run_without_a_step_is_a_run_too():
    def before_it(size, runs, world_size, rank):
        done = [steps > 0 for _, _, steps in runs]
        return resume(size, runs[: (*done, False).index(False)], world_size, rank)

    refused(n04.check_resume(before_it), "(3, 1, 0)")


def test_every_run_of_a_history_counts():
    refused(n04.check_resume(edited(resume, ("in runs", "in runs[:3]"))), "(2, 1, 2), (3, 1, 1)]")


@pytest.mark.parametrize("given", [iter, deque, lambda positions: list(map(float, positions)), dict.fromkeys])
def test_positions_that_cannot_be_cut_or_are_no_whole_numbers_are_told_what_is_asked_for(given):
    other = edited(resume, ("list(range", "given(range"), names={"given": given})
    refused(n04.check_resume(other), resuming.PAIR)
    assert "whole numbers" in resuming.PAIR


def test_a_rule_that_deals_from_the_wrong_end_is_not_told_that_it_counts_ranks():
    from_the_end = edited(resume, ("consumed + rank", "(size - consumed) % size + rank"))
    message = n04.check_resume(from_the_end).message
    assert resuming.AGAIN in message
    assert "not the ranks" not in message


def test_ranks_that_have_fewer_positions_are_not_said_to_have_used_as_many_as_the_others():
    pieces = n04.check_resume.mistakes[resuming.TURNS]
    refused(n04.check_resume(pieces), "once each rank has used its first position, or all that it has, 24, 27, 30, 33")


def test_an_epoch_is_no_quotient_of_all_samples_that_were_ever_used():
    by_division = edited(
        resume, ("return epoch, ", "return sum(ranks * batch * steps for ranks, batch, steps in runs) // size, ")
    )
    refused(n04.check_resume(by_division), "the runs have come to epoch 5")


def test_more_ranks_than_a_machine_has_share_alike():
    def of_five(size, runs, world_size, rank):
        return resume(size, runs, min(world_size, 5), rank)

    def of_eight(size, world_size, rank, batch_size):
        return my_batches(size, min(world_size, 8), rank, batch_size)

    refused(n04.check_resume(of_five), ", 12, rank)")
    refused(n04.check_batches(of_eight), "world_size = 12")
