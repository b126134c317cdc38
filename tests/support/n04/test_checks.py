"""What is particular about the checks of notebook 04; what all exercises have in common is in test_exercises."""

import pytest

from lib.data.samplers import DistributedSampler
from support.n04 import checks as n04


def test_the_reference_shards_cover_everything_once_and_the_rest_is_what_the_sampler_deals():
    for size in range(30):
        for world_size in range(1, 9):
            bounds = [n04.check_shard_bounds.reference(size, world_size, rank) for rank in range(world_size)]
            assert [i for begin, end in bounds for i in range(begin, end)] == list(range(size))
            assert max(e - b for b, e in bounds) - min(e - b for b, e in bounds) <= 1
    order = list(DistributedSampler(range(25), 1, 0))
    state = DistributedSampler(range(25), 4, 0).state_dict(consumed=16)
    for rank in range(3):
        sampler = DistributedSampler(range(25), 3, rank, pad=False)
        sampler.load_state_dict(state)
        assert list(n04.check_rest_for_rank.reference(order, 2, 2, 4, 3, rank)) == list(sampler)


@pytest.mark.parametrize("why", ["A remainder is no walk.", "Clipping is no walk."])
def test_a_walk_that_is_no_bijection_is_shown_two_positions_that_collide(why):
    wrong = n04.check_walk.mistakes[why]
    said = n04.check_walk(wrong).message.split(f"{why} For size = 40, positions ")[1]
    first, second, image = (int(word) for word in said.replace(",", "").split() if word.isdigit())
    mix = n04.Shuffle64(0)
    assert first != second and wrong(first, 40, mix) == wrong(second, 40, mix) == image


def test_a_walk_that_never_ends_is_ended_and_told_why():
    def stuck(index, size, mix):
        image = mix(index)
        while image >= size:
            image = mix(index)
        return image

    verdict = n04.check_walk(stuck)
    assert verdict.status == "wrong" and "pass its last image" in verdict.message


def test_other_wrong_answers_are_shown_a_counterexample_and_a_shard_may_be_guessed_as_a_list_too():
    assert "position 0: expected [0, 4], got [0, 11]" in n04.check_shard_bounds(lambda size, *_: (0, size)).message
    assert "got 0: []" in n04.check_rest_for_rank(lambda order, **_: []).message
    assert "that is it" in n04.guess_last_shard([8, 9, 0, 1]).message
    assert "that is it" not in n04.guess_last_shard([8, 9]).message
