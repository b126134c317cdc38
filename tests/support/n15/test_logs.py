"""What the ranks of 15_scale_out.py leave behind, and what is read from it."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lib.schedules import gpipe, one_f_one_b, simulate
from lib.timeline import Recorder, Span, Trace
from support.n15 import logs
from support.training import Step, StepLog
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
    assert [place["data"] for place in logs.read_places(run)] == [0, 0, 1, 1]
    assert logs.read_losses(run) == [0.5, 1.5]  # the mean of the last stages; the first ones know none
    assert logs.read_rows(run) == [[0, 0, 0, 1], [2, 0, 2, 1]]  # of one rank of each replica
    traces = logs.read_traces(run)  # in order of their number, from 0
    assert [trace.makespan for trace in traces] == [9.0, 10.0]
    assert traces[0].start == 0.0
    assert traces[0].lanes == tuple(f"rank {rank}" for rank in range(4))


def test_the_seconds_of_a_rank_are_parted_into_forwards_backwards_and_the_rest() -> None:
    trace = simulate(one_f_one_b(4, 2), [1.0, 2.0], [3.0, 4.0])
    assert logs.accounts(trace, 0) == pytest.approx((4.0, 12.0, trace.makespan - 16.0))
    assert sum(logs.accounts(trace, 1)) == pytest.approx(trace.makespan)


def test_costs_read_from_a_simulated_run_are_its_own_and_another_order_than_the_tables_is_seen() -> None:
    schedule = one_f_one_b(4, 2)
    trace = simulate(schedule, [1.0, 2.0], [3.0, 4.0], communicate=0.25)
    costs, message = logs.measured_costs([trace, trace.shift(7.0)], schedule)
    assert costs[:2] == ([1.0, 2.0], [3.0, 4.0])
    assert message == pytest.approx(0.25)
    assert logs.ran_in_order(trace, schedule)
    assert not logs.ran_in_order(simulate(gpipe(4, 2)), schedule)
    early = [s if s.label != "1F0" else Span(s.lane, s.label, 0.0, 0.5, s.kind) for s in trace]
    assert not logs.ran_in_order(Trace(early, trace.lanes), schedule)  # before its input was there


@pytest.mark.parametrize("wanted, gpus", [("cuda", 0), (None, 1)])
def test_a_job_with_fewer_gpus_than_ranks_is_refused_and_does_not_go_on_with_the_cpu(wanted, gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for name, value in {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    join = runpy.run_path(str(ROOT / "notebooks" / "15_scale_out.py"))["join"]
    words = f"2 ranks on this machine, but torch sees {gpus} GPU.*start no more than there are, or say --device cpu"
    with pytest.raises(RuntimeError, match=words):
        join(wanted)


def test_a_step_is_played_again_with_its_own_tasks_and_what_is_left_over_are_waits() -> None:
    schedule = one_f_one_b(4, 2)
    trace = simulate(schedule, [1.0, 2.0], [3.0, 5.0], communicate=0.5)
    again = logs.played_again(trace, schedule, 0.5)
    assert again.makespan == pytest.approx(trace.makespan)
    assert logs.played_again(trace, schedule, 0.0).makespan < trace.makespan
    late = [replace(span, start=span.start + 9.0, end=span.end + 9.0) for span in trace if span.label != "0F0"]
    begun = next(span for span in trace if span.label == "0F0")
    waited = Trace([begun, *late])
    assert logs.played_again(waited, schedule, 0.5).makespan == pytest.approx(waited.makespan - 9.0)
