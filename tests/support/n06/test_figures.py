"""The figures of notebook 06 draw what they say."""

import pytest

from lib.show.sheet import drawn_cells
from lib.show.style import alt_text
from support.n06 import figures as n06
from tests.pictures import told


def test_the_ring_drawn_is_complete_at_the_place_and_time_that_its_title_says():
    for world in range(2, 7):
        held = n06.ring(world)
        full = [[[len(parts) == world for parts in row] for row in rows] for rows in held]
        assert len(held) == 2 * world - 1
        assert all(all(row) for row in full[-1])
        assert full[world - 1] == [[chunk == rank for chunk in range(world)] for rank in range(world)]
    for values, words in told(n06.draw_ring, n06.RING_CONTROLS):
        world = values["world_size"]
        assert f"{2 * (world - 1) / world:.2f} gradients sent" in words


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize("per_bucket", [1, 3, 8])
def test_the_plan_sends_a_bucket_when_it_is_full_and_one_at_a_time(per_bucket, afterwards):
    trace = n06.plan(8, [per_bucket], network=0.8, latency=0.2, afterwards=afterwards)
    reduces = trace.only(kind="transfer").spans
    for number, span in enumerate(reduces):
        full = 8 if afterwards else min(8, (number + 1) * per_bucket)
        before = reduces[number - 1].end if number else 0
        assert span.start == pytest.approx(max(full, before))
    (step,) = trace.only(kind="step")
    same = {"first": per_bucket, "per_bucket": per_bucket, "network": 0.8, "latency": 0.2}
    words = alt_text(n06.draw_overlap(layers=8, afterwards=afterwards, **same))
    assert f"the step waits {step.start - 8:.1f} ticks" in words
    assert step.start == pytest.approx(reduces[-1].end)
    if afterwards or per_bucket == 8:
        assert n06.hidden_share(trace) == 0


def test_a_small_first_bucket_leaves_earlier_and_pays_where_the_network_never_rests():
    def end(sizes, network, latency=0.5):
        return n06.plan(8, sizes, network, latency).only(kind="step").start

    assert n06.plan(8, (1, 2), 1.5, 0.5).only(kind="transfer").spans[0].start == 1
    assert end((1, 2), network=1.5) < end((2,), network=1.5)
    assert end((1, 2), network=0.8) > end((2,), network=0.8)
    assert end((1, 1, 2), network=0.8) < end((2,), network=0.8)
    of_six = [(1,), (2,), (4,), (8,), (1, 2), (1, 4)]
    for network, best in ((1.5, (1, 4)), (0.8, (4,))):
        assert min(of_six, key=lambda sizes, network=network: end(sizes, network, latency=1.5)) == best


@pytest.mark.costly
def test_the_cost_drawn_says_from_which_size_on_the_ring_is_faster():
    for values, words in told(n06.draw_cost, n06.COST_CONTROLS):
        link = values["latency"] * 1e-6, values["bandwidth"] * 1e9, values["shared"]
        least = n06.border(values["world_size"], *link)
        assert ("at least as fast as the tree at every size" in words) == (least == 0)
        never = n06.border(values["world_size"], *link, n06.WAYS["halving and doubling"])
        assert ("and as halving at no size" in words) == (never == float("inf"))
    small = n06.draw_cost(world_size=4, latency=1, bandwidth=1, shared=1)  # below what is drawn
    assert "the tree from 800 B on" in alt_text(small)


def test_measured_steps_and_bytes_a_parameter_are_drawn_with_what_their_titles_compare():
    late = {"begin": 5.0, "layers": [(1, 5.1), (0, 5.2)], "sent": [(5.2, 5.3)], "end": 5.3}
    early = {"begin": 6.0, "layers": [(1, 6.1), (0, 6.2)], "sent": [(6.1, 6.15), (6.2, 6.24)], "end": 6.24}
    words = alt_text(n06.draw_two_steps({"late": late, "early": early}))
    assert "Late: 300 ms; early: 240 ms, 0.80 of it" in words
    assert "9 spans" in words
    assert "late: layers 67 %" in words
    later = n06.draw_two_steps({"late": late, "early": {**early, "end": 6.4}})  # Gloo is later than the link
    assert later.axes[0].get_xlim()[1] >= 400
    labels = {text.get_text() for text in later.axes[0].texts}
    assert labels >= {"0", "1", "bucket 0"}
    assert not any(label.startswith(("B", "layer")) for label in labels)
    assert [sum(n06.held_bytes(way, 1, 8)) for way in n06.SHARDED] == [16, 9, 5.5, 2]
    for values, words in told(n06.draw_memory, n06.MEMORY_CONTROLS):
        assert "e+" not in words
        assert f"DDP {16 * values['billions']:,.4g} GB" in words
    marks = [patch.cell.mark for patch in drawn_cells(n06.draw_negatives(8, 2))]
    assert marks.count("plain") == 16
    assert marks.count("dropped") == 32
    assert marks.count("faded") == 24 + 56
