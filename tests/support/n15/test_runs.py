"""What notebook 15 runs and reads: two launchers, the files that ranks leave behind, measured costs, plans."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from lib.schedules import gpipe, one_f_one_b, simulate, zero_bubble_h1
from lib.timeline import Recorder, Span, Trace
from support.n15 import runs as n15
from support.n15.solved import memory_of_rank
from support.training import Step, StepLog
from tests.lib.refusal import refuses
from tools.project import ROOT


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two replicas of two stages, two steps; as 15_scale_out.py writes it."""
    for rank in range(4):
        data, stage = divmod(rank, 2)
        place = {"RANK": str(rank), "data": data, "pipeline": stage, "stages": [stage], "last": stage == 1}
        (tmp_path / f"place{rank}.json").write_text(json.dumps(place))
        for step in range(2):
            loss = float(step + data) if stage else 0.0
            StepLog(tmp_path, rank).write(Step(0, 4, rank, 0, 0, step, (2 * step, data), loss, 0.0, 1.0))
    for number in (9, 10):
        with Recorder(tmp_path / f"spans{number}") as recorder:
            recorder.add("rank 1", "1F0", 5.0, 5.0 + number, "forward")
    return tmp_path


def test_places_losses_rows_and_steps_are_read_from_the_ranks_that_know_them(run: Path) -> None:
    assert [place["data"] for place in n15.read_places(run)] == [0, 0, 1, 1]
    assert n15.read_losses(run) == [0.5, 1.5]  # the mean of the last stages; the first ones know none
    assert n15.read_rows(run) == [[0, 0, 0, 1], [2, 0, 2, 1]]  # of one rank of each replica
    traces = n15.read_traces(run)  # in order of their number, from 0
    assert [trace.makespan for trace in traces] == [9.0, 10.0] and traces[0].start == 0.0
    assert traces[0].lanes == tuple(f"rank {rank}" for rank in range(4))


def test_costs_read_from_a_simulated_run_are_its_own_and_another_order_than_the_tables_is_seen() -> None:
    schedule = one_f_one_b(4, 2)
    trace = simulate(schedule, [1.0, 2.0], [3.0, 4.0], communicate=0.25)
    costs, message = n15.measured_costs([trace, trace.shift(7.0)], schedule)
    assert costs[:2] == ([1.0, 2.0], [3.0, 4.0]) and message == pytest.approx(0.25)
    assert n15.ran_in_order(trace, schedule) and not n15.ran_in_order(simulate(gpipe(4, 2)), schedule)
    early = [s if s.label != "1F0" else Span(s.lane, s.label, 0.0, 0.5, s.kind) for s in trace]
    assert not n15.ran_in_order(Trace(early, trace.lanes), schedule)  # before its input was there


def test_a_layer_has_the_same_weights_in_whatever_it_is_made_and_no_other_generator_is_touched() -> None:
    before = torch.get_rng_state()
    whole = n15.tower(2, 4)
    meta = n15.tower_on_meta(2, 4)
    part = n15.fill(meta[2:], 2)
    assert torch.equal(before, torch.get_rng_state())
    assert whole(torch.zeros(3, 1, 8, 8, dtype=torch.float64)).shape == (3, 10)
    assert all(p.is_meta for p in meta[:2].parameters())
    assert all(torch.equal(p, q) for p, q in zip(part.parameters(), whole[2:].parameters(), strict=True))
    assert not torch.equal(n15.tower(2, 4, seed=1)[1][0].weight, whole[1][0].weight)
    assert [n15.even_balance(8, n) for n in (1, 2, 3, 8)] == [[8], [4, 4], [3, 3, 2], [1] * 8]
    refuses(ValueError, "8 layers can't be cut into 9 stages", n15.even_balance, 8, 9)
    orders = n15.batches_of(10, 4, 5)
    assert all(len({*a, *b}) == 8 for a, b in zip(orders[::2], orders[1::2], strict=False)) and len(orders) == 5


@pytest.mark.parametrize("reduce, backward, buckets", [(3.0, 1.0, 4), (0.5, 1.0, 4), (0.76, 1.0, 4), (2.0, 2.0, 1)])
def test_what_is_exposed_of_an_all_reduce_is_what_sending_bucket_by_bucket_leaves(reduce, backward, buckets) -> None:
    free = 0.0
    for k in range(1, buckets + 1):
        free = max(free, backward * k / buckets) + reduce / buckets
    assert n15.exposed(reduce, backward, buckets) == pytest.approx(free - backward)


def test_a_plan_is_its_formulas_and_a_long_pipeline_is_what_the_simulator_says() -> None:
    model = n15.Model(sequences=96)  # 12 micro-batches for each of 8 replicas, 4 for 24
    plan = n15.make_plan(64, 8, memory_rule=memory_of_rank, model=model)
    forward = 2 * 7e9 / 8 * 4096 / 400e12
    assert (plan.replicas, plan.micro_batches) == (8, 12) and plan.compute == pytest.approx(12 * 3 * forward)
    reduce = 2 * 7 / 8 * 2 * 7e9 / 8 / 50e9  # rings cross machines
    assert plan.reduce == pytest.approx(n15.exposed(reduce, 2 * forward, 4))
    inside = n15.make_plan(64, 8, memory_rule=memory_of_rank, order=n15.ORDERS[1], model=model)
    assert (plan.order, inside.order) == n15.ORDERS and inside.reduce == pytest.approx(
        n15.exposed(reduce / 8, 2 * forward, 4)
    )
    # 16 ranks have whole tables of their own: ZB-H1, whose length the simulator knows for any m
    long = n15.make_plan(64, 16, memory_rule=memory_of_rank, model=n15.Model(sequences=256))
    message = round(2 * 4096 * 4096 / 50e9 / (forward / 2), 3)
    end = simulate(zero_bubble_h1(64, 16), 1, 2, 1, communicate=message).makespan * forward / 2
    assert long.schedule.endswith("(ZB-H1)")
    assert long.pipeline == pytest.approx(end)


def test_the_memory_of_a_gpu_is_kept_and_where_nothing_fits_it_is_said() -> None:
    found = set()
    for memory in (20e9, 30e9, 80e9):  # two machines of two: some fit nowhere, some with recomputing, some as they are
        for plan in n15.every_plan(4, memory_of_rank, machine=n15.Machine(memory=memory, gpus=2)):
            assert not plan.schedule or plan.memory <= memory
            assert bool(plan.schedule) == (plan.seconds < float("inf"))
            found.add((bool(plan.schedule), plan.recompute))
    assert found == {(False, True), (True, True), (True, False)}
    refuses(ValueError, "6 ranks do not make equal pipelines of 4", n15.make_plan, 6, 4, memory_of_rank)


@pytest.mark.parametrize("wanted, gpus", [("cuda", 0), (None, 1)])
def test_a_job_with_fewer_gpus_than_ranks_is_refused_and_does_not_go_on_with_the_cpu(wanted, gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for name, value in {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    join = runpy.run_path(str(ROOT / "notebooks" / "15_scale_out.py"))["join"]
    words = f"2 ranks on this machine, but torch sees {gpus} GPU.*start no more than there are, or say --device cpu"
    with pytest.raises(RuntimeError, match=words):
        join(wanted)
