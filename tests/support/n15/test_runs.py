"""What notebook 15 reads and extrapolates: the files that ranks leave behind, measured costs, plans for many ranks."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lib.saved import SavedTensors
from lib.schedules import bubble_share, gpipe, live_activations, one_f_one_b, simulate
from lib.timeline import Recorder, Span, Trace
from support.n15 import runs as n15
from support.training import Step, StepLog
from tests.lib.refusal import refuses


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two replicas of two stages, two steps; as 15_scale_out.py writes it."""
    names = list(n15.tower(0, 4).state_dict())
    for rank in range(4):
        data, stage = divmod(rank, 2)
        place = {"RANK": str(rank), "data": data, "pipeline": stage, "stages": [stage], "last": stage == 1}
        (tmp_path / f"place{rank}.json").write_text(json.dumps(place))
        for step in range(2):
            loss = float(step + data) if stage else 0.0
            StepLog(tmp_path, rank).write(Step(0, 4, rank, 0, 0, step, (2 * step, data), loss, 0.0, 1.0))
        np.savez(tmp_path / f"weights{rank}.npz", **{names[2 * stage]: np.full(2, rank)})
    for number in (9, 10):
        with Recorder(tmp_path / f"spans{number}") as recorder:
            recorder.add("rank 1", "1F0", 5.0, 5.0 + number, "forward")
    return tmp_path


def test_places_losses_rows_weights_and_steps_are_read_from_the_ranks_that_know_them(run: Path) -> None:
    assert [place["data"] for place in n15.read_places(run)] == [0, 0, 1, 1]
    assert n15.read_losses(run) == [0.5, 1.5]  # the mean of the last stages; the first ones know none
    assert n15.read_rows(run) == [[0, 0, 0, 1], [2, 0, 2, 1]]  # of one rank of each replica
    weights = {name: value.tolist() for name, value in n15.read_weights(run).items()}
    assert weights == {"0.1.weight": [0, 0], "1.weight": [1, 1]}
    traces = n15.read_traces(run)  # in order of their number, from 0
    assert [trace.makespan for trace in traces] == [9.0, 10.0] and traces[0].start == 0.0
    assert traces[0].lanes == tuple(f"rank {rank}" for rank in range(4))


def test_costs_read_from_a_simulated_run_are_its_own_and_another_order_than_the_tables_is_seen() -> None:
    schedule = one_f_one_b(4, 2)
    trace = simulate(schedule, [1.0, 2.0], [3.0, 4.0], communicate=0.25)
    for least in (False, True):
        costs = n15.measured_costs([trace, trace.shift(7.0)], schedule, least=least)
        assert (costs.forward, costs.backward) == ([1.0, 2.0], [3.0, 4.0])
        assert costs.communicate == pytest.approx(0.25)
    assert simulate(schedule, costs.forward, costs.backward, communicate=0.25).makespan == trace.makespan
    schedule = gpipe(3, 2)  # the least costs of a slow step make a simulation that it cannot beat
    slow = Trace(Span(s.lane, s.label, 3 * s.start + 1, 3 * s.end, s.kind) for s in simulate(schedule))
    costs = n15.measured_costs([slow], schedule, least=True)
    assert simulate(schedule, costs.forward, costs.backward).makespan <= slow.makespan
    schedule = one_f_one_b(4, 2)
    trace = simulate(schedule)
    assert n15.in_order(trace, schedule) and not n15.in_order(simulate(gpipe(4, 2)), schedule)
    early = [s if s.label != "1F0" else Span(s.lane, s.label, 0.0, 0.5, s.kind) for s in trace]
    assert not n15.in_order(Trace(early, trace.lanes), schedule)  # before its input was there


def test_the_tower_is_the_same_on_every_rank_leaves_the_generator_alone_and_is_cut_evenly() -> None:
    before = torch.get_rng_state()
    one, two, other = n15.tower(), n15.tower(), n15.tower(seed=1)
    assert torch.equal(before, torch.get_rng_state())
    assert len(one) == 8 and one(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one[1][0].weight, other[1][0].weight)
    assert [n15.even_balance(8, n) for n in (1, 2, 3, 8)] == [[8], [4, 4], [3, 3, 2], [1] * 8]
    refuses(ValueError, "8 layers can't be cut into 9 stages", n15.even_balance, 8, 9)


def test_the_bytes_of_a_block_are_what_autograd_keeps_and_what_its_weights_take() -> None:
    few, many, x = n15.tower(2).double(), n15.tower(6).double(), torch.rand(16, 1, 8, 8, dtype=torch.float64)
    kept = []
    for model in (few, many):
        with SavedTensors(model.parameters()) as saved:
            loss = model(x).mean()
            kept.append(saved.bytes)
            loss.backward()
    block = n15.block_of(1.0, 2.0)
    assert (kept[1] - kept[0]) / 4 / 16 == block.kept
    assert sum(p.numel() * p.element_size() for p in many[1].parameters()) == block.weights


@pytest.mark.parametrize("m, n", [(4, 2), (8, 4), (32, 8)])
def test_the_bubble_of_a_plan_is_the_closed_form_where_messages_are_free(m: int, n: int) -> None:
    plan = n15.make_plan(64, n, m, bandwidth=1e18)
    assert plan.bubble == pytest.approx(bubble_share(m, n))
    assert plan.compute * 64 == pytest.approx((n15.NOMINAL.forward + n15.NOMINAL.backward) * 128 * 4096)
    assert plan.activations == live_activations(one_f_one_b(m, n))[0] * (128 // n) * plan.rows * n15.NOMINAL.kept


def test_memory_and_traffic_are_sums_by_hand_1f1b_holds_less_than_gpipe_interleaving_idles_less() -> None:
    plan = n15.make_plan(8, 4, 16)
    assert (plan.replicas, plan.rows) == (2, 4096 // 2 // 16)
    assert plan.states == 3 * 32 * n15.NOMINAL.weights  # a quarter of 128 blocks
    assert plan.ring_bytes == 2 * 32 * n15.NOMINAL.weights // 2
    assert plan.neighbour_bytes == 2 * 16 * plan.rows * n15.NOMINAL.boundary
    assert n15.make_plan(1, 1, 1).ring_bytes == n15.make_plan(1, 1, 1).neighbour_bytes == 0
    assert n15.make_plan(4, 4, 1).reduce == 0.0
    plans = {name: n15.make_plan(64, 4, 16, schedule=name) for name in n15.SCHEDULES}
    assert plans["1F1B"].activations * 4 == plans["GPipe"].activations
    assert plans["interleaved 1F1B"].bubble < plans["1F1B"].bubble == pytest.approx(plans["GPipe"].bubble, abs=0.01)
    assert plans["interleaved 1F1B"].neighbour_bytes == 2 * plans["1F1B"].neighbour_bytes


def test_what_cannot_be_divided_is_refused_and_the_fastest_plan_keeps_the_limit() -> None:
    for arguments, words in (
        ((6, 4, 1), "6 ranks do not make pipelines of 4"),
        ((256, 256, 1), "128 blocks do not make 256 equal stages"),
        ((8, 2, 3), "4096 rows do not make 4 x 3 equal micro-batches"),
    ):
        refuses(ValueError, words, n15.make_plan, *arguments)
    with pytest.raises(ValueError, match="schedule must be one of GPipe, 1F1B, interleaved 1F1B, not 'zbv'"):
        n15.make_plan(8, 2, 4, schedule="zbv")
    plans = n15.every_plan(64, 8)
    assert [plan.partitions for plan in plans] == [1, 2, 4, 8, 16, 32, 64]
    assert n15.fastest(plans, 1e12) is min(plans, key=lambda plan: plan.seconds)
    best = n15.fastest(plans, 100e6)
    assert best is not None and best.memory <= 100e6 < min(p.memory for p in plans if p.seconds < best.seconds)
    assert n15.fastest(plans, 1e6) is None
