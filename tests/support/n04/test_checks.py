"""What is particular about the checks of notebook 04; what all exercises have in common is in test_detectors."""

import json
import pathlib

import numpy as np

from lib.data.permutation import Permutation
from lib.data.samplers import DistributedSampler
from support.kit.mistakes import edited
from support.n04 import checks as n04
from support.n04.network import round_keys
from support.n04.solved import Cursor, inverse, resume

GOLDENS = json.loads((pathlib.Path(__file__).parents[2] / "goldens" / "libtorch.json").read_text())


def test_the_reference_cursor_deals_what_libtorch_dealt_its_faults_included():
    for question, shards in GOLDENS["deals"].items():
        kind, size, world_size, duplicates, epoch = question.split()
        if 0 < int(size) <= 20 and isinstance(shards, list):  # of some only lengths are kept
            for rank, shard in enumerate(shards):
                mine = Cursor(int(size), int(world_size), rank, kind == "random", duplicates == "1")
                mine.epoch = int(epoch)
                mine.reset()
                assert (mine.next(int(size)) or []) == shard, question


def test_the_reference_rule_and_the_sampler_agree_at_every_restart_and_a_whole_epoch_comes_once():
    for size, runs in ((36, [(4, 2, 3), (3, 1, 2), (2, 1, 3)]), (25, [(4, 2, 2), (3, 1, 1), (2, 1, 3)])):
        order = list(DistributedSampler(range(size), 1, 0))
        used = []
        for number, (world_size, batch_size, steps) in enumerate(runs):
            dealt = [resume(size, runs[:number], world_size, rank) for rank in range(world_size)]
            consumed = dealt[0][1][0]
            for rank, (epoch, left) in enumerate(dealt):
                sampler = DistributedSampler(range(size), world_size, rank, pad=False)
                sampler.load_state_dict(DistributedSampler(range(size), 1, 0).state_dict(consumed))
                assert epoch == 0
                assert list(sampler) == [order[position] for position in left]
                used += left[: batch_size * steps]
        assert sorted(used) == list(range(size))
        assert resume(size, runs, 5, 1) == (1, list(range(1, size, 5)))


def test_the_reference_walks_permutations_network_backwards_and_its_first_mistake_walks_it_forwards_beyond_its_table():
    forwards = next(iter(n04.check_inverse.mistakes.values()))
    for n in (1025, 1500, 2048):
        keys = round_keys(n, seed=3, rounds=8)
        places = range(0, n, 7)
        samples = Permutation(n, 3)[np.array(places)].tolist()
        assert [forwards(place, n, keys) for place in places] == samples
        assert [inverse(sample, n, keys) for sample in samples] == list(places)


def test_a_walk_back_that_holds_for_eight_rounds_only_is_not_right():
    backwards = "reversed(list(enumerate(keys)))"
    eight = edited(inverse, (backwards, "[(k, keys[k]) for k in range(7, -1, -1)]"))
    parity = edited(inverse, (backwards, "enumerate(reversed(keys))"), ("k % 2 == 0", "k % 2 == 1"))
    for answer in (eight, parity):
        verdict = n04.check_inverse(answer)
        assert verdict.status == "wrong"
        assert "rounds = 5" in verdict.message


def test_who_shuffles_the_samples_without_their_padding_is_not_told_of_a_padding():
    padded = "[p if p < self.size else p - self.size for p in positions]"
    message = n04.check_cursor(edited(Cursor, (padded, "range(self.size)"))).message
    assert message.endswith("libtorch pads first and shuffles the whole list then: you shuffle the N samples alone.")


def test_a_walk_that_never_ends_is_ended_and_told_why():
    stuck = edited(
        inverse, ("low_bits, high_bits", "first = number\n    low_bits, high_bits"), ("divmod(number", "divmod(first")
    )
    verdict = n04.check_inverse(stuck)
    assert verdict.status == "wrong"
    assert "send the last result" in verdict.message


def test_guesses_near_the_truth_are_close_and_a_shard_may_be_any_sequence():
    assert "close" in n04.guess_page_reads(232).message
    assert "that is it" in n04.guess_page_reads(229).message
    assert "that is it" in n04.guess_last_shard(range(4)).message or "[8, 9, 0, 1]" in n04.guess_last_shard([0]).message
