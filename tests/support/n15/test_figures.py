"""The figures of notebook 15 draw what they say: who reads what, which plan is fastest."""

import pytest

from lib.show.style import alt_text
from support.n15 import figures as n15
from support.n15.plans import every_plan, fastest_plan
from support.n15.solved import exposed, memory_of_rank
from tests.lib.refusal import refuses


def test_replicas_read_every_place_once_but_dealt_to_ranks_the_ends_of_a_pipeline_differ():
    for ranks, n in ((2, 1), (4, 2), (8, 4), (8, 8)):
        mesh = n15.mesh_of(ranks, n)
        assert [[p.rank for p in row] for row in mesh] == [list(range(d * n, d * n + n)) for d in range(ranks // n)]
        assert all(p.places() == row[0].places() for row in mesh for p in row)
        read = sorted(place for row in mesh for place in row[0].places(8 // len(mesh) or 1))
        assert read == list(range(len(read)))
        assert [layer for p in mesh[0] for layer in p.layers] == list(range(8))
    mesh = n15.mesh_of(8, 4, "to ranks")
    assert all(not {*row[0].places(99)} & {*row[-1].places(99)} for row in mesh)
    assert alt_text(n15.draw_mesh(ranks=8, partitions=4, deal="to ranks")).startswith("2 of 2 replicas in error")
    assert "error" not in alt_text(n15.draw_mesh(ranks=4, partitions=1, deal="to ranks"))  # one stage has both ends


@pytest.mark.costly
def test_plans_name_the_fastest_that_fits_equal_losses_one_curve_and_a_run_that_learns_nothing():
    settings = {"sequences": "1", "rings": "one a ring", "schedules": "any", "gather": "waits", "between": "50 GB/s"}
    best = fastest_plan(every_plan(512))
    told = alt_text(n15.draw_plans(memory_of_rank, exposed, **settings, memory=80))
    assert f"fastest with n = {best.partitions}, {best.seconds:.3f} s" in told
    assert "nothing fits into 1 GB" in alt_text(n15.draw_plans(memory_of_rank, exposed, **settings, memory=1))
    larger = settings | {"sequences": "1 or 2", "gather": "hides"}
    told = alt_text(n15.draw_plans(memory_of_rank, exposed, **larger, memory=80))
    assert "fastest with n = 1, 0.886 s; n = 2 and 4 within 0.02 s" in told
    assert "gradient accumulation 2 sequences, 77 GB" in told
    all_cards = settings | {"rings": "all shared"}
    told = alt_text(n15.draw_plans(memory_of_rank, exposed, **all_cards, memory=80))
    assert "4 x 128: 0.912 s interleaved zero bubble a column a machine" in told
    one = [2.0, 1.0, 0.5]
    assert "one curve, never 1e-9 apart" in alt_text(n15.draw_same({"a": one, "b": [x + 1e-12 for x in one]}))
    assert "different curves, up to 1e-01 apart" in alt_text(n15.draw_same({"a": one, "b": [2.0, 1.1, 0.5]}))
    refuses(ValueError, "of one length, not {'a': 3, 'b': 1}", n15.draw_same, {"a": one, "b": [1.0]})
    falling = [2.5, 1.0, 0.3]
    flat = [2.5, 2.3, 2.3]
    assert "only guesses: 2.3 after 3 steps, not 0.3" in alt_text(n15.draw_deals(falling, flat))
    assert "learns too" in alt_text(n15.draw_deals(falling, [2.5, 2.3, 1.9]))


def test_buckets_on_the_network_end_when_exposed_says_and_the_title_tells_it():
    for reduce, backward, buckets in ((6, 4, 4), (2, 4, 4), (8, 2, 1)):
        trace = n15.buckets_of(reduce, backward, buckets)
        assert abs(1e3 * trace.makespan - backward - exposed(reduce, backward, buckets)) < 1e-9
    told = alt_text(n15.draw_exposed(reduce=6, backward=4, buckets=4))
    assert "6 ms in 4 buckets: 3 ms are left behind backward" in told
