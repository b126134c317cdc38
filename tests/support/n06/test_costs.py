"""What messages cost by α and bandwidth: the border between ring and tree, and the line through measured times."""

import pytest

from support.n06 import costs as n06


@pytest.mark.parametrize("world_size", [4, 8, 64, 1000])
def test_at_the_border_ring_and_tree_take_equally_long_and_it_parts_them(world_size):
    least = n06.border(world_size, 10e-6, 25e9)
    ring, tree = (way(least, world_size, 10e-6, 25e9) for way in (n06.ring_seconds, n06.tree_seconds))
    assert ring == pytest.approx(tree)
    for factor, ring_wins in ((0.5, False), (2, True)):
        times = [way(factor * least, world_size, 10e-6, 25e9) for way in (n06.ring_seconds, n06.tree_seconds)]
        assert (times[0] < times[1]) is ring_wins


def test_without_latency_the_ring_always_wins_and_no_way_is_slower_than_the_centre():
    assert n06.border(64, 0.0, 25e9) == 0
    for size in (1e3, 1e6, 1e9):
        times = {name: way(size, 64, 10e-6, 25e9) for name, way in n06.WAYS.items()}
        assert max(times, key=times.get) == "centre"
    assert n06.ring_seconds(8e9, 8, 0.0, 1e9) == pytest.approx(2 * 7 / 8 * 8)


@pytest.mark.parametrize("world_size", [4, 64, 1024])
def test_halving_and_doubling_wins_wherever_far_links_are_not_shared_and_loses_large_gradients_where_they_are(
    world_size,
):
    halving = n06.WAYS["halving and doubling"]
    assert n06.border(world_size, 10e-6, 25e9, 1, halving) == float("inf")
    assert n06.border(world_size, 0.0, 25e9, 1, halving) == 0
    least = n06.border(world_size, 10e-6, 25e9, 4, halving)
    for factor, ring_wins in ((0.5, False), (2, True)):
        given = factor * least, world_size, 10e-6, 25e9, 4
        assert (n06.ring_seconds(*given) < halving(*given)) is ring_wins


def test_on_two_ranks_there_is_no_far_link_and_a_ring_halves_and_doubles():
    for shared in (1, 8):
        given = 1e6, 2, 10e-6, 25e9, shared
        assert n06.ring_seconds(*given) == pytest.approx(n06.halving_seconds(*given))
        assert n06.tree_seconds(*given) == n06.centre_seconds(*given)


def test_a_tree_and_the_centre_share_a_far_link_only_with_those_who_send_at_the_same_time():
    given = 1e6, 64, 10e-6, 25e9
    assert len({n06.centre_seconds(*given, shared) for shared in (1, 4, 8)}) == 1
    assert n06.tree_seconds(*given, 4) == n06.tree_seconds(*given, 1)  # one of 4 sends on to the other pair
    two_of_8 = n06.tree_seconds(*given, 8) - n06.tree_seconds(*given, 4)
    assert two_of_8 == pytest.approx(2 * 1e6 / 25e9)


def test_a_line_finds_the_two_numbers_that_made_the_times():
    sizes = [64, 4096, 10**6, 10**8]
    latency, per_byte = n06.line(sizes, [2e-4 + 1e-9 * size for size in sizes])
    assert latency == pytest.approx(2e-4)
    assert per_byte == pytest.approx(1e-9)
