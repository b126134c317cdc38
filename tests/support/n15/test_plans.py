"""Plans for many ranks: held against a sum by hand, the simulator, and the memory that there is."""

import pytest

from lib.schedules import simulate, zero_bubble_h1
from support.n15.plans import ORDERS, Machine, Model, every_plan, exposed, make_plan
from support.n15.solved import memory_of_rank
from tests.lib.refusal import refuses


@pytest.mark.parametrize("reduce, backward, buckets", [(3.0, 1.0, 4), (0.5, 1.0, 4), (0.76, 1.0, 4), (2.0, 2.0, 1)])
def test_what_is_exposed_of_an_all_reduce_is_what_sending_bucket_by_bucket_leaves(reduce, backward, buckets) -> None:
    free = 0.0
    for k in range(1, buckets + 1):
        free = max(free, backward * k / buckets) + reduce / buckets
    assert exposed(reduce, backward, buckets) == pytest.approx(free - backward)


def test_a_plan_is_its_formulas_and_a_long_pipeline_is_what_the_simulator_says() -> None:
    model = Model(sequences=96)  # 12 micro-batches for each of 8 replicas, 4 for 24
    plan = make_plan(64, 8, memory_rule=memory_of_rank, model=model)
    forward = 2 * 7e9 / 8 * 4096 / 400e12
    assert (plan.replicas, plan.micro_batches) == (8, 12)
    assert plan.compute == pytest.approx(12 * 3 * forward)
    reduce = 2 * 7 / 8 * 2 * 7e9 / 8 / 50e9  # rings cross machines
    assert plan.reduce == pytest.approx(exposed(reduce, 2 * forward, 4))
    inside = make_plan(64, 8, memory_rule=memory_of_rank, order=ORDERS[1], model=model)
    assert (plan.order, inside.order) == ORDERS
    assert inside.reduce == pytest.approx(exposed(reduce / 8, 2 * forward, 4))
    # 16 ranks have whole tables of their own: ZB-H1, whose length the simulator knows for any m
    long = make_plan(64, 16, memory_rule=memory_of_rank, model=Model(sequences=256))
    message = round(2 * 4096 * 4096 / 50e9 / (forward / 2), 3)
    end = simulate(zero_bubble_h1(64, 16), 1, 2, 1, communicate=message).makespan * forward / 2
    assert long.schedule.endswith("(ZB-H1)")
    assert long.pipeline == pytest.approx(end)


def test_the_memory_of_a_gpu_is_kept_and_where_nothing_fits_it_is_said() -> None:
    found = set()
    for memory in (20e9, 30e9, 80e9):  # two machines of two: some fit nowhere, some with recomputing, some as they are
        for plan in every_plan(4, memory_of_rank, machine=Machine(memory=memory, gpus=2)):
            assert not plan.schedule or plan.memory <= memory
            assert bool(plan.schedule) == (plan.seconds < float("inf"))
            found.add((bool(plan.schedule), plan.recompute))
    assert found == {(False, True), (True, True), (True, False)}
    refuses(ValueError, "6 ranks do not make equal pipelines of 4", make_plan, 6, 4, memory_of_rank)
