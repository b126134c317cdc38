"""Ties and fences that readers gave to notebook 11: wrong ones, and what they are told."""

import pytest
import torch

from support.built import Fork, Join, MyFork, MyJoin, MyRecompute, MyTwoNodeCheckpoint, depend, fence, my_tie
from support.kit.mistakes import edited
from support.n11 import checks as n11


def refused(verdict, says, *never):
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message
    assert not any(words in verdict.message for words in never), verdict.message


def test_fork_and_join_in_the_places_of_each_other_are_told_so():
    swapped = edited(
        (depend, fence),
        ("batches[i - 1], phony = Fork.apply(batches[i - 1])", "batches[i], phony = Fork.apply(batches[i])"),
        ("batches[i] = Join.apply(batches[i], phony)", "batches[i - 1] = Join.apply(batches[i - 1], phony)"),
    )
    refused(n11.check_fence(*swapped), "have changed places", "Nothing is held back")


def test_a_list_of_its_own_is_told_to_be_nobodys():
    own = edited((depend, fence), ("    for i, j in clock:", "    batches = list(batches)\n    for i, j in clock:"))
    refused(n11.check_fence(*own), "The list that fence was given is unchanged")


def test_a_wrong_depend_beside_our_fence_spoils_only_the_answer():
    refused(n11.check_fence(lambda batches, i: None, fence), "Nothing is held back")
    assert n11.check_fence(depend, fence)


@pytest.mark.parametrize(
    ("check", "answer", "changes"),
    [
        (n11.check_fork_join, (MyFork, MyJoin), ("ctx, x, phony)", "ctx, x)")),
        (
            n11.check_halves,
            (MyTwoNodeCheckpoint, MyRecompute, my_tie),
            ("my_tie(output, shared, function, x)", "my_tie(output)"),
        ),
        (n11.check_fence, (depend, fence), ("fence(clock, batches, copy)", "fence(clock, batches)")),
    ],
)
def test_who_leaves_an_argument_out_is_told_that_the_stub_has_it(check, answer, changes):
    refused(check(*edited(answer, changes)), "The arguments are the stub's")


def test_what_cannot_be_computed_with_is_not_said_to_break_in_a_line_that_the_reader_lacks():
    kept = edited((depend, fence), ("    depend(batches, i)\n", "    batches[i] = depend(batches, i)\n"))
    refused(n11.check_fence(*kept), "Has something returned None", "function(x)")


def ties_by_itself(clock, batches, copy):
    for i, j in clock:
        if i > 0:
            batches[i - 1], phony = Fork.apply(batches[i - 1])
            batches[i] = Join.apply(batches[i], phony)
        if j > 0:
            batches[i] = copy(batches[i], j)


def test_a_wrong_depend_that_fence_does_not_call_is_refused():
    refused(n11.check_fence(lambda batches, i: batches, ties_by_itself), "depend in a fence of ours")
    assert n11.check_fence(depend, ties_by_itself)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Fork.apply(batches[i - 1])", "Fork.apply(batches[i - 1].clone())"),
        ("Join.apply(batches[i], phony)", "Join.apply(batches[i] + 0, phony)"),
        ("Join.apply(batches[i], phony)", "Join.apply(batches[i].contiguous(), phony)"),
        ("Join.apply(batches[i], phony)", "Join.apply(batches[i].float(), phony)"),
    ],
)
def test_a_tie_that_copies_a_micro_batch_is_refused(old, new):
    refused(n11.check_fence(*edited((depend, fence), (old, new))), "depend copies")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("copy(batches[i], j)", "copy(batches[i].clone(), j)"),
        ("copy(batches[i], j)", "copy(batches[i].contiguous(), j)"),
        ("copy(batches[i], j)", "copy(batches[i], j).clone()"),
        ("if j > 0:", "if not i + j:\n            batches[i] = batches[i].clone()\n        if j > 0:"),
    ],
)
def test_a_fence_that_copies_a_micro_batch_is_refused(old, new):
    refused(n11.check_fence(*edited((depend, fence), (old, new))), "`copy` alone does that")


def test_a_copy_that_is_thrown_away_is_not_said_to_be_none():
    answer = edited((depend, fence), ("batches[i] = copy", "copy"))
    refused(n11.check_fence(*answer), "here it stays as it was", "No copy")


def test_who_forks_and_copies_what_no_join_gave_is_not_told_to_fork():
    answer = edited(
        (depend, fence),
        ("        if i > 0:", "        x = batches[i]\n        if i > 0:"),
        ("copy(batches[i], j)", "copy(x, j)"),
    )
    refused(n11.check_fence(*answer), "Only partition 0 is tied", "fork batches[i - 1]")


def test_who_copies_only_what_is_not_tied_is_not_told_of_elif():
    answer = edited((depend, fence), ("        if j > 0:", "        if j > 0 and i == 0:"))
    refused(n11.check_fence(*answer), "A pair may need both", "elif")


def test_a_fence_that_copies_twice_is_not_told_to_copy_by_itself():
    twice = edited(
        (depend, fence),
        ("            batches[i] = copy", "            copy(batches[i], j)\n            batches[i] = copy"),
    )
    refused(n11.check_fence(*twice), "calls `copy` twice", "by itself")


def test_a_dead_phony_is_not_taken_for_a_swapped_one():
    dead = edited((depend, fence), ("batches[i], phony)", "batches[i], torch.empty(0))"), names={"torch": torch})
    refused(n11.check_fence(*dead), "Nothing is held back", "have changed places")


def test_ties_of_rows_that_need_no_gradient_are_not_told_to_come_from_a_fork():
    at_once = """    if clock == [(0, 0)]:
        for k in range(1, len(batches)):
            depend(batches, k)
    for i, j in clock:
        if False:"""
    rows = edited((depend, fence), ("    for i, j in clock:\n        if i > 0:", at_once))
    refused(n11.check_fence(*rows), "Nothing is held back", "must come from", "must be stored")


def test_a_tie_to_the_one_before_the_one_before_does_not_cross():
    more = """            depend(batches, i)
        if i > 1:
            batches[i - 2], phony = Fork.apply(batches[i - 2])
            batches[i] = Join.apply(batches[i], phony)"""
    further = edited((depend, fence), ("            depend(batches, i)", more))
    refused(n11.check_fence(*further), "backward should run", "Ties of one clock cross")


def test_a_copy_to_another_partition_is_not_said_to_go_to_the_one_before():
    elsewhere = edited((depend, fence), ("copy(batches[i], j)", "copy(batches[i], len(clock) - 1)"))
    refused(n11.check_fence(*elsewhere), "copy takes the partition that the batch goes to", "j - 1")


def test_a_copy_between_fork_and_join_is_not_said_to_stand_before_both():
    forked = "batches[i - 1], phony = Fork.apply(batches[i - 1])"
    joined = "batches[i] = Join.apply(batches[i], phony)"
    between = edited(
        (depend, fence),
        ("            depend(batches, i)\n", f"            {forked}\n"),
        ("copy(batches[i], j)", f"copy(batches[i], j)\n        if i > 0:\n            {joined}"),
    )
    refused(n11.check_fence(*between), "the copy's way back", "before the tie")


TIED_FIRST = """    for i, j in {clock}:
        if i > 0:
            depend(batches, i)
    for i, j in clock:
        if False:"""


def test_ties_that_cross_let_the_one_before_the_one_before_wait_too():
    crossing = edited(
        (depend, fence), ("    for i, j in clock:\n        if i > 0:", TIED_FIRST.format(clock="clock[::-1]"))
    )
    refused(n11.check_fence(*crossing), "so i - 2 waits for i, too", "waits for more than")
    straight = edited((depend, fence), ("    for i, j in clock:\n        if i > 0:", TIED_FIRST.format(clock="clock")))
    assert n11.check_fence(*straight)
