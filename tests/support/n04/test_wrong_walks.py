"""Wrong answers to exercises 4 and 5 of notebook 04 that once passed, each with what is said of it now."""

import functools
import math

import numpy as np
import pytest
import torch

from support.kit import apart
from support.kit.mistakes import edited
from support.n04 import checks as n04
from support.n04 import network, walking
from support.n04.network import network_cases, round_keys
from support.n04.runs import lag_surprise
from support.n04.solved import inverse, walk


def refused(verdict, said):
    """Hold a verdict against the words that must be in it."""
    assert verdict.status == "wrong", verdict
    assert said in verdict.message, verdict.message


# ---- exercise 4


def test_rounds_that_only_the_first_pass_goes_through_are_told_that_they_have_no_end():
    once = edited(
        inverse,
        ("    while True:\n", "    rounds = reversed(list(enumerate(keys)))\n    while True:\n"),
        ("in reversed(list(enumerate(keys)))", "in rounds"),
    )
    refused(n04.check_inverse(once), "and has not come to an end")


def test_a_loop_that_ends_early_in_a_generator_each_time_is_ended_too():
    def waiting(number, n, keys):
        while any(place >= 0 for place in range(n)):  # any() closes what it has not read to its end
            pass

    refused(n04.check_inverse(waiting), "and has not come to an end")


def test_some_case_that_is_not_drawn_has_more_than_eight_rounds(monkeypatch):
    monkeypatch.setattr(network._chance, "randrange", lambda *among: among[0])
    monkeypatch.setattr(network, "IDS", 5)
    first_eight = edited(inverse, ("    while True:\n", "    keys = keys[:8]\n    while True:\n"))
    refused(n04.check_inverse(first_eight), "rounds = 9")


def test_two_numbers_may_change_places():
    refused(n04.check_inverse(lambda number, n, keys: inverse(number, n, keys) if n > 2 else number), "n = 2,")


def forwards(number, n, keys):
    return next(iter(n04.check_inverse.mistakes.values()))(number, n, keys)


@functools.cache
def table_of(n, keys):
    return {forwards(position, n, keys): position for position in range(n)}


def test_a_stored_order_is_no_way_back():
    refused(n04.check_inverse(lambda number, n, keys: table_of(n, tuple(keys))[number]), "position by position")


def test_a_stored_order_made_with_arrays_is_no_way_back_either():
    def by_array(number, n, keys):
        low_bits = -(-(n - 1).bit_length() // 2)
        places = np.arange(n)
        for factor, key in keys:
            places = places ^ (places * factor + key) % 2**low_bits
        return int(places[0])

    refused(n04.check_inverse(by_array), "position by position")


def test_keys_kept_from_an_earlier_check_are_of_no_use():
    copied = {}

    def remembering(number, n, keys):
        return inverse(number, n, copied.setdefault((n, len(keys)), list(keys)))

    assert remembering(5, 3000, round_keys(3000, seed=2, rounds=8)) < 3000
    for n, seed, rounds in ((case["n"], case["seed"], case.get("rounds", 8)) for case in network_cases()):
        copied[n, rounds] = [(int(factor), key) for factor, key in round_keys(n, seed, rounds)]
    printed = dict(copied)  # all that a check has shown

    def from_the_table(number, n, keys):
        return inverse(number, n, printed.get((n, len(keys)), printed[3000, 8]))

    refused(n04.check_inverse(from_the_table), "stands at position")


@pytest.mark.costly
def test_positions_kept_from_an_earlier_check_are_of_no_use():
    positions = {}

    def noting(number, n, keys):
        positions[number, n, tuple(keys)] = inverse(number, n, keys)
        return positions[number, n, tuple(keys)]

    assert n04.check_inverse(noting)
    refused(n04.check_inverse(lambda number, n, keys: positions.get((number, n, tuple(keys)), 0)), "stands at position")


def test_keys_and_positions_kept_from_another_epoch_are_of_no_use():
    keys_of = {}
    position_of = {}

    def by_kept_keys(number, n, keys):
        return inverse(number, n, keys_of.setdefault((n, len(keys)), list(keys)))

    def by_kept_positions(number, n, keys):
        if (number, n, len(keys)) not in position_of:
            position_of[number, n, len(keys)] = inverse(number, n, keys)
        return position_of[number, n, len(keys)]

    refused(n04.check_inverse(by_kept_positions), "for n = 3000, seed = 2,")
    assert n04.check_inverse(by_kept_keys).status == "wrong"


def test_keys_are_left_as_they_are():
    def reversing(number, n, keys):
        answer = inverse(number, n, keys)
        keys.reverse()
        return answer

    refused(n04.check_inverse(reversing), "the keys that it was given are others afterwards")


def test_a_walk_may_have_more_than_twenty_passes():
    ends = ("            return number", "            break\n    return number")
    few = edited(inverse, ("while True:", "for _ in range(20):"), ends)
    refused(n04.check_inverse(few), "for n = 1025")


@pytest.mark.costly
def test_a_factor_may_be_multiplied_with_a_tensor():
    def in_tensors(number, n, keys):
        return inverse(number, n, [(factor, key) for factor, key in keys if factor * torch.tensor(2) == 2 * factor])

    assert n04.check_inverse(in_tensors), n04.check_inverse(in_tensors).message


def test_position_0_is_an_answer_and_samples_may_have_more_than_18_bits():
    refused(n04.check_inverse(edited(inverse, ("if number < n", "if 0 < number < n"))), "stands at position 0")
    refused(
        n04.check_inverse(lambda number, n, keys: inverse(number, n, keys) if n < 2**18 else 0), "n = 1099511627779"
    )
    refused(n04.check_inverse(lambda number, n, keys: inverse(number % 256, n, keys)), "stands at position")


def test_a_number_may_stand_at_its_own_position():
    loop = "number >= n or number == asked"
    as_do_while = edited(
        inverse,
        ("    while True:\n", f"    asked = number\n    while {loop}:\n"),
        ("        if number < n:\n            return number", "    return number"),
    )
    refused(n04.check_inverse(as_do_while), "go round without coming home")


def test_a_position_is_a_whole_number():
    for given, told in (
        ("number / 1", "509.0"),
        ("np.array(number / 1)", "array(509.)"),
        ("str(number)", "'509'"),
        ("[number]", "[509]"),
    ):
        answer = edited(inverse, ("return number", f"return {given}"), names={"np": np})
        refused(n04.check_inverse(answer), f"number 0 gets {told}. A position is a whole number.")


@pytest.mark.costly
def test_few_numbers_have_a_way_back_too():
    for least in (2, 3, 1025):
        refused(
            n04.check_inverse(lambda number, n, keys, least=least: inverse(number, n, keys) if n >= least else -1),
            "stands at position",
        )


@pytest.mark.costly
def test_a_search_with_factors_of_its_own_is_ended_too(monkeypatch):
    monkeypatch.setattr(apart, "PATIENCE", 1)

    def search(number, n, keys):
        plain = [(int(factor), key) for factor, key in keys]
        if n < 2**21:
            return inverse(number, n, plain)
        return next(i for i in range(n) if forwards(i, n, plain) == number)

    refused(n04.check_inverse(search), "position by position")
    monkeypatch.setattr(network, "MOST_LINES", 10**9)  # a search in arrays has few lines
    if apart.CAN_FORK:
        refused(n04.check_inverse(search), "did not come to an end")


def dies(*_, **__):
    raise ChildProcessError


def test_where_no_process_can_be_copied_large_n_are_asked_all_the_same(monkeypatch):
    monkeypatch.setattr(network, "in_a_process_of_its_own", dies)
    assert n04.check_inverse(inverse)
    refused(n04.check_inverse(lambda number, n, keys: inverse(number, n, keys) if n < 2**18 else 0), "stands at")


# ---- exercise 5


def test_images_may_need_more_than_32_bits():
    short_images = edited(walk, ("ids.copy()", "ids.astype(np.int32)"))
    refused(n04.check_walk(short_images), "n = 6442450944")


def test_ids_need_not_be_as_many_as_n():
    def all_of_n(ids, n, network, block):
        images = np.arange(n)
        images[ids] = walk(ids, n, network, block)
        return images[ids] if len(ids) == n else images

    def by_place(ids, n, network, block):
        return walk(np.arange(len(ids)), n, network, block)[ids]

    for answer in (all_of_n, by_place):
        refused(n04.check_walk(answer), "for 129 ids, n = 1025")


def test_a_table_of_all_numbers_is_told_what_it_takes():
    def by_a_table(ids, n, network, block):
        images = np.arange(n)
        outside = ids.copy()
        while len(outside):
            seats = outside[:block]
            images[seats] = network(images[seats])
            outside = np.concatenate([outside[block:], seats[images[seats] >= n]])
        return images[ids]

    refused(n04.check_walk(by_a_table), "for 40 ids, n = 6291456")
    refused(n04.check_walk(by_a_table), "memory is to be that of the ids")


def test_a_last_call_need_not_be_full():
    def halved(ids, n, network, block):
        images = ids.copy()
        waiting = np.arange(len(ids))
        while len(waiting):
            together = block if len(waiting) >= block else max(1, len(waiting) // 2)
            seats = waiting[:together]
            images[seats] = network(images[seats])
            waiting = np.concatenate([waiting[together:], seats[images[seats] >= n]])
        return images

    def dropped(ids, n, network, block):
        images = ids.copy()
        waiting = np.arange(len(ids))
        while len(waiting):
            seats = waiting[:block]
            images[seats] = network(images[seats])
            waiting = np.concatenate([waiting[block:], seats[images[seats] >= n]])
            if len(waiting) < block:
                waiting = waiting[images[waiting] >= n]
        return images

    refused(n04.check_walk(halved), "for 47 ids, n = 64, a network of 64 places, block = 16, the network was called 7")
    refused(n04.check_walk(dropped), "for 47 ids, n = 64, a network of 64 places, block = 16, at place 32")


def test_the_images_of_one_call_are_not_those_of_the_next():
    kept = np.empty(2000, np.int64)

    def in_one_array(ids, n, network, block):
        kept[: len(ids)] = walk(ids, n, network, block)
        return kept[: len(ids)]

    refused(n04.check_walk(in_one_array), "are others after the next call")


@pytest.mark.parametrize("given", [lambda images: images / 1, iter, np.ndarray.tolist])
def test_images_are_an_array_of_whole_numbers(given):
    def something_else(ids, n, network, block):
        return given(walk(ids, n, network, block))

    refused(n04.check_walk(something_else), "not an array of 64 whole numbers")


def test_no_ids_are_a_share_too():
    def joined(ids, n, network, block):
        starts = range(0, len(ids), block)
        images = np.concatenate([ids[start : start + block] for start in starts])
        return walk(images, n, network, block)

    refused(n04.check_walk(joined), "for 0 ids")


def walk_in_two_parts(ids, n, network, block):
    """Refill the seats of each half: 89 calls for 1.1 million, so the contract holds."""
    images = ids.copy()
    half = math.ceil(len(ids) / 2)
    for begin in (0, half):
        outside = np.arange(begin, min(begin + half, len(ids)))
        while len(outside):
            seats = outside[:block]
            images[seats] = network(images[seats])
            outside = np.concatenate([outside[block:], seats[images[seats] >= n]])
    return images


def test_a_walk_in_two_parts_is_right():
    assert n04.check_walk(walk_in_two_parts), n04.check_walk(walk_in_two_parts).message


def in_shorter_calls(ids, n, network, block):
    """Leave a quarter of each call empty: 101 calls for 1.1 million, which 102 would allow, and not for any n."""
    return walk(ids, n, network, max(1, block * 3 // 4))


def with_half_calls(ids, n, network, block):
    """Walk what waits as soon as half a block waits: 93 calls for 1.1 million."""
    images = ids.copy()
    waiting = np.arange(0)
    for begin in range(0, len(ids), block):
        seats = np.arange(begin, min(begin + block, len(ids)))
        images[seats] = network(images[seats])
        waiting = np.concatenate([waiting, seats[images[seats] >= n]])
        if len(waiting) >= block // 2:
            seats = waiting[: block // 2]
            images[seats] = network(images[seats])
            waiting = np.concatenate([waiting[block // 2 :], seats[images[seats] >= n]])
    images[waiting] = walk(images[waiting], n, network, block) if len(waiting) else waiting
    return images


@pytest.mark.parametrize("answer", [in_shorter_calls, with_half_calls])
def test_calls_that_are_never_full_are_told_so(answer):
    refused(n04.check_walk(answer), "A call can take all ids that wait")


def test_a_walk_that_sends_too_many_ids_is_told_so_and_not_that_its_calls_are_short():
    def all_again(ids, n, network, block):
        images = ids.copy()
        places = ids.copy()
        walks = np.ones(len(ids), bool)
        while walks.any():
            for begin in range(0, len(ids), block):
                places[begin : begin + block] = network(places[begin : begin + block])
            images[walks] = places[walks]
            walks &= places >= n
        return images

    def all_numbers(ids, n, network, block):
        return walk(np.arange(n), n, network, block)[ids]

    for answer in (all_again, all_numbers):
        refused(n04.check_walk(answer), "ids went through it")
        assert "A call can take all" not in n04.check_walk(answer).message


def test_calls_without_ids_are_told_to_be_calls():
    def whole_range_in_each_pass(ids, n, network, block):
        images = ids.copy()
        outside = np.arange(len(ids))
        while len(outside):
            for begin in range(0, len(ids), block):
                places = outside[begin : begin + block]
                images[places] = network(images[places])
            outside = outside[images[outside] >= n]
        return images

    def asked_first(ids, n, network, block):
        return walk(ids, n, network, block) if len(ids) else network(ids)

    refused(n04.check_walk(whole_range_in_each_pass), walking.EMPTY)
    assert walking.CALLS not in n04.check_walk(whole_range_in_each_pass).message
    refused(n04.check_walk(asked_first), "for 0 ids, n = 6442450944")
    refused(n04.check_walk(asked_first), walking.EMPTY)


def test_a_walk_that_waits_for_ever_for_a_full_call_is_ended():
    only_full = edited(walk, ("len(outside), block)", "len(outside) - block + 1, block)"))
    refused(n04.check_walk(only_full), "and has not come to an end")


def test_a_walk_may_have_more_than_a_hundred_passes():
    few = edited(walk, ("while len(outside):", "for _ in range(100):"))
    refused(n04.check_walk(few), "for 129 ids, n = 129, a network of 256 places")


def test_images_kept_from_another_network_are_of_no_use():
    kept = {}

    def remembering(ids, n, network, block):
        key = (tuple(ids), n, block)
        if key not in kept:
            kept[key] = walk(ids, n, network, block)
        return kept[key]

    refused(n04.check_walk(remembering), "At a place of the result stands the image of the id at this place")


def test_the_lag_test_refuses_an_order_whose_halves_are_not_equally_long():
    for n in (2**13, 3000):
        with pytest.raises(ValueError, match="no two equal halves"):
            lag_surprise(np.arange(n), 1)
