"""The checks of notebook 04 pass the reference, leave the stub alone, and reject famous wrong answers by name."""

from __future__ import annotations

import pytest

from lib.checks import n04


def stub(*arguments): ...


@pytest.mark.parametrize(
    "check, reference",
    [
        (n04.check_shard_bounds, n04.true_bounds),
        (n04.check_rest_for_rank, n04.true_rest),
        (n04.check_walk, n04.true_walk),
    ],
)
def test_the_reference_passes_and_the_stub_is_neutral(check, reference):
    assert check(reference).status == "right"
    assert check(stub).status == "open"


def test_the_reference_shards_cover_everything_once_and_differ_by_one_at_most():
    for size in range(30):
        for world_size in range(1, 9):
            bounds = [n04.true_bounds(size, world_size, rank) for rank in range(world_size)]
            assert [i for begin, end in bounds for i in range(begin, end)] == list(range(size))
            assert max(e - b for b, e in bounds) - min(e - b for b, e in bounds) <= 1


def test_the_reference_rest_is_what_the_sampler_deals_after_a_restart():
    from lib.data.samplers import DistributedSampler

    order = list(DistributedSampler(range(25), 1, 0))
    state = DistributedSampler(range(25), 4, 0).state_dict(consumed=16)
    for rank in range(3):
        sampler = DistributedSampler(range(25), 3, rank, pad=False)
        sampler.load_state_dict(state)
        assert list(n04.true_rest(order, 2, 2, 4, 3, rank)) == list(sampler)


@pytest.mark.parametrize(
    "wrong, says",
    [
        (n04.floor_bounds, "leaves the last size % world_size samples to nobody"),
        (n04.ceil_bounds, "runs past the end"),
        (n04.clipped_bounds, "the last ranks get less"),
        (n04.tail_to_last, "The last rank gets the whole rest"),
        (n04.longer_last, "Even to one sample, but"),
        (lambda size, world_size, rank: (0, size), "position 0: expected [0, 4], got [0, 11]"),
    ],
)
def test_wrong_bounds_are_named(wrong, says):
    verdict = n04.check_shard_bounds(wrong)
    assert verdict.status == "wrong"
    assert "for size = " in verdict.message
    assert says in verdict.message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (n04.from_the_start, "deals the whole epoch again"),
        (n04.own_count, "what one rank has used"),
        (n04.old_stride, "over the old number of ranks"),
        (n04.new_count, "with the new number of ranks"),
        (lambda order, **_: [], "got 0: []"),
    ],
)
def test_wrong_rests_are_named(wrong, says):
    verdict = n04.check_rest_for_rank(wrong)
    assert verdict.status == "wrong"
    assert "rank = " in verdict.message
    assert says in verdict.message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (n04.modulo, "A remainder is no walk. For size = 40, positions"),
        (n04.one_pass, "go on while it does"),
        (n04.two_passes, "A second pass can land outside"),
        (n04.never_mixed, "mix once before you look"),
        (n04.clip, "Clipping is no walk. For size = 40, positions"),
    ],
)
def test_wrong_walks_are_named(wrong, says):
    verdict = n04.check_walk(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize("wrong", [n04.modulo, n04.clip])
def test_a_walk_that_is_no_bijection_is_shown_two_positions_that_collide(wrong):
    said = n04.check_walk(wrong).message.split("positions ")[1]
    first, second, image = (int(word) for word in said.replace(",", "").split() if word.isdigit())
    mix = n04.Shuffle64(0)
    assert first != second
    assert wrong(first, 40, mix) == wrong(second, 40, mix) == image


def test_a_walk_that_never_ends_is_ended_and_told_why():
    def stuck(index, size, mix):
        image = mix(index)
        while image >= size:
            image = mix(index)
        return image

    verdict = n04.check_walk(stuck)
    assert verdict.status == "wrong"
    assert "pass its last image" in verdict.message


@pytest.mark.parametrize(
    "comment, right, wrong",
    [
        (n04.guess_page_reads, 229, 29),
        (n04.guess_last_shard, [8, 9, 0, 1], [8, 9]),
        (n04.guess_last_shard, (8, 9, 0, 1), range(4)),
        (n04.guess_rest, 4, 12),
        (n04.guess_rounds, 5, 1),
        (n04.guess_twice, 26.4, 0),
    ],
)
def test_a_guess_is_only_commented_on(comment, right, wrong):
    assert comment(None).status == comment(right).status == comment(wrong).status == "note"
    assert "No guess yet" in comment(None).message
    assert "that is it" in comment(right).message
    assert "that is it" not in comment(wrong).message
