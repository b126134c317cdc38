"""Plans for many ranks: held against sums by hand, the simulator, and the memory that there is."""

import pytest

from lib.schedules import simulate, zero_bubble_h1
from support.n15.plans import ORDERS, Machine, Model, every_plan, fastest_plan, links_of, make_plan
from support.n15.solved import exposed, step_parts
from tests.lib.refusal import refuses

SIZES = (1, 2, 4, 8, 16)


@pytest.mark.parametrize("reduce, backward, buckets", [(3.0, 1.0, 4), (0.5, 1.0, 4), (0.76, 1.0, 4), (2.0, 2.0, 1)])
def test_what_is_exposed_of_a_reduction_is_what_the_formula_says(reduce, backward, buckets) -> None:
    by_formula = max(reduce - backward * (1 - 1 / buckets), reduce / buckets)
    assert exposed(reduce, backward, buckets) == pytest.approx(by_formula)


def test_a_plan_of_1f1b_is_the_sum_by_hand_where_messages_are_cheap() -> None:
    by_hand = [sum(step_parts(Model(), n, 512 // n, 50e9, 400e12)[:2]) for n in SIZES]
    assert [round(seconds, 3) for seconds in by_hand] == [1.141, 1.220, 1.259, 1.279, 1.288]
    plans = every_plan(512, only_1f1b=True, gather_waits=False)
    for plan, seconds in zip(plans[:4], by_hand, strict=False):
        assert plan.seconds == pytest.approx(seconds, rel=4e-3)
    assert fastest_plan(plans).partitions == 1


def test_the_ranking_turns_round_with_the_cards_of_a_ring_the_order_and_the_gathering() -> None:
    winners = {}
    for of_a_ring in (1, 8):
        for only_1f1b in (True, False):
            for waits in (False, True):
                machine = Machine(cards_of_a_ring=of_a_ring)
                plans = every_plan(512, only_1f1b=only_1f1b, gather_waits=waits, machine=machine)
                winners[of_a_ring, only_1f1b, waits] = fastest_plan(plans).partitions
    assert [winners[1, True, False], winners[1, False, False]] == [1, 4]
    assert [winners[1, True, True], winners[1, False, True]] == [8, 8]
    assert {n for (of_a_ring, _, _), n in winners.items() if of_a_ring == 8} == {1}
    shared = every_plan(512, gather_waits=False, machine=Machine(cards_of_a_ring=8))
    assert round(shared[0].seconds, 3) == 0.862
    assert round(shared[2].seconds, 3) == 0.897


def test_rings_share_the_cards_of_a_machine_and_use_no_more_than_they_can() -> None:
    def ring(n, order="pipeline", **how):
        return links_of(512, n, order, Machine(**how)).ring / 50e9

    assert [ring(n) for n in SIZES] == [1, 1, 1, 1, 1]
    assert [ring(n, cards_of_a_ring=8) for n in SIZES] == [8, 4, 2, 1, 1]
    assert [ring(n, cards_of_a_ring=8, cards=1) for n in SIZES] == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 8]
    assert ring(4, "replicas", cards_of_a_ring=8) == 8  # a machine has one stage only, so one ring
    assert links_of(512, 16, "pipeline").order == "–"
    assert links_of(64, 8, "replicas").ring == 400e9  # eight replicas of a stage, in one machine
    assert links_of(64, 8, "replicas").chain == 50e9


def test_a_long_pipeline_is_what_the_simulator_says_and_the_rules_of_the_reader_are_asked() -> None:
    forward = 2 * 7e9 / 16 * 4096 / 400e12
    long = make_plan(64, 16, model=Model(sequences=256))
    message = round(2 * 4096 * 4096 / 50e9 / forward, 3)
    end = simulate(zero_bubble_h1(64, 16), 1, 2, 1, communicate=message).makespan * forward
    assert long.schedule.endswith("(ZB-H1)")
    assert long.pipeline == pytest.approx(end)
    assert make_plan(64, 8, exposed_rule=lambda reduce, backward, buckets: 3.0 + buckets).reduce == 7.0
    assert make_plan(64, 8, lambda model, n, held, recompute, zero, replicas: 10.0 * zero + held).memory < 30


def test_the_memory_of_a_gpu_is_kept_and_where_nothing_fits_it_is_said() -> None:
    found = set()
    for memory in (20e9, 35e9, 80e9):  # two machines of two: some fit nowhere, some with recomputing, some as they are
        for plan in every_plan(4, machine=Machine(memory=memory, gpus=2)):
            assert not plan.schedule or plan.memory <= memory
            assert bool(plan.schedule) == (plan.seconds < float("inf"))
            found.add((bool(plan.schedule), plan.recompute))
    assert {(True, True), (True, False)} <= found
    assert any(not fits for fits, _ in found)
    assert all(not plan.schedule for plan in every_plan(8, only_1f1b=True, machine=Machine(memory=9e9)))
    refuses(ValueError, "6 ranks do not make equal pipelines of 4", make_plan, 6, 4)
    assert ORDERS == ("pipeline", "replicas")
