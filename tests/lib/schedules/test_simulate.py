"""The simulator against the closed forms: bubble, makespan, live activations, and what idle ranks wait for."""

import numpy as np
import pytest

from lib.schedules.legal import ScheduleError, slotted, validate
from lib.schedules.makers import bubble_share, gpipe, model_parallel, one_f_one_b, pipedream
from lib.schedules.simulate import live_activations, simulate, waits_for
from lib.schedules.table import Action, Schedule
from tests.lib.refusal import refuses

SIZES = [(m, n) for m in (1, 2, 4, 7, 16) for n in (1, 2, 3, 5)]


def table(text):
    return Schedule.from_text("table", text)


def spans_of(trace):
    return " ".join(f"{span.label}:{span.kind[0]}{span.start:g}-{span.end:g}" for span in trace)


def test_one_timeline_by_hand_and_costs_that_differ_by_op_and_stage_but_not_by_idle_slots():
    trace = simulate(gpipe(2, 2), forward=1, backward=2)
    assert trace.lanes == ("rank 0", "rank 1")
    assert spans_of(trace.only(lane="rank 0")) == "0F0:f0-1 0F1:f1-2 0B0:b5-7 0B1:b7-9"
    assert spans_of(trace.only(lane="rank 1")) == "1F0:f1-2 1F1:f2-3 1B0:b3-5 1B1:b5-7"
    four = simulate(table("0F0 0I0 0W0 0F1 0B1"), forward=1, backward=5, weight=2)
    assert spans_of(four) == "0F0:f0-1 0I0:i1-4 0W0:w4-6 0F1:f6-7 0B1:b7-12"
    assert {span.kind for span in four} == {"forward", "input", "weight", "backward"}
    assert [span.duration for span in simulate(table("0F0 0I0 0W0"), backward=5)] == [1, 2.5, 2.5]
    assert [span.duration for span in simulate(table("0F0 0I0 0W0"), backward=5, weight=5)] == [1, 0, 5]
    trace = simulate(gpipe(1, 3), forward=[1, 2, 3], backward=np.array([10.0, 20.0, 30.0]))
    assert [(span.label, span.duration) for span in trace] == [
        ("0F0", 1), ("1F0", 2), ("2F0", 3), ("2B0", 30), ("1B0", 20), ("0B0", 10),
    ]  # fmt: skip
    assert simulate(gpipe(4, 3), forward=(1, 1, 3), backward=(1, 1, 3)).busy("rank 2") == 4 * 6
    for make in (model_parallel, gpipe, one_f_one_b):
        schedule = make(4, 3)
        assert simulate(schedule, 1, 3) == simulate(schedule.compact(), 1, 3)


def test_a_table_that_is_being_filled_can_be_simulated_and_one_that_cannot_run_is_refused():
    trace = simulate(table("0F0 0F1\n1F0\n."))
    assert [span.label for span in trace] == ["0F0", "0F1", "1F0"]
    assert trace.lanes[2] == "rank 2"
    assert len(simulate(table(".\n."))) == 0
    for ask in (simulate, waits_for):
        refuses(ScheduleError, "rank 0, slot 0: 0B0 needs 0F0, which the same rank does only", ask, table("0B0 0F0"))


@pytest.mark.parametrize(
    "costs, why",
    [
        ({"forward": [1, 2]}, "forward has 2 costs for 3 stages; give one number or one a stage"),
        ({"backward": [1, 2, 3, 4]}, "backward has 4 costs for 3 stages; give one number or one a stage"),
        ({"backward": -1}, "backward must be a finite number, 0 or more, not -1"),
        ({"communicate": float("inf")}, "communicate must be a finite number, 0 or more, not inf"),
        ({"weight": [0, 0, float("nan")]}, "weight must be a finite number, 0 or more, not nan"),
        ({"weight": 3}, "weight is a part of backward, but at stage 0 it is 3.0 of 2.0"),
    ],
)
def test_a_cost_that_makes_no_sense_is_refused(costs, why):
    for ask in (simulate, waits_for):
        refuses(ValueError, why, ask, gpipe(2, 3), **costs)


@pytest.mark.parametrize("name", ["forward", "backward", "weight", "communicate"])
def test_a_cost_in_words_is_refused_by_its_name(name):
    for ask in (simulate, waits_for):
        refuses(TypeError, f"{name} must be a number, such as 0.5, not 'fast'", ask, gpipe(2, 3), **{name: "fast"})


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
@pytest.mark.parametrize("forward, backward", [(1, 1), (1, 2), (3, 1)])
def test_the_bubble_of_gpipe_and_1f1b(make, forward, backward):
    for m, n in SIZES:
        trace = simulate(make(m, n), forward, backward)
        assert trace.makespan == (m + n - 1) * (forward + backward)
        assert trace.bubble == pytest.approx(bubble_share(m, n)) == pytest.approx((n - 1) / (m + n - 1))


def test_model_parallelism_idles_in_all_but_one_the_slowest_stage_decides_and_more_stages_idle_less():
    for m, n in SIZES:
        trace = simulate(model_parallel(m, n))
        assert trace.makespan == m * n * 3
        assert trace.bubble == pytest.approx((n - 1) / n)
    m = 16
    slow = 4
    trace = simulate(one_f_one_b(m, 3), forward=(1, slow, 1), backward=(1, slow, 1))
    assert trace.makespan == 1 + m * 2 * slow + 1  # to the slow one, m times through it, and back
    assert trace.busy("rank 1") == m * 2 * slow
    assert bubble_share(8, 4) == pytest.approx(3 / 11)
    assert bubble_share(8, 4, 2) == pytest.approx(3 / 19)
    assert bubble_share(5, 1) == 0
    assert bubble_share(1, 4) == pytest.approx(3 / 4)
    refuses(ValueError, "stages_per_rank must be at least 1, not 0", bubble_share, 8, 4, 0)


def test_live_activations_are_m_for_gpipe_at_most_n_for_1f1b_and_end_with_the_weight_half():
    for m, n in SIZES:
        assert live_activations(model_parallel(m, n)) == [1] * n
        assert live_activations(gpipe(m, n)) == [m] * n
        assert live_activations(one_f_one_b(m, n)) == [min(m, n - j) for j in range(n)]
    assert live_activations(table("0F0 0F1 0B0 0B1")) == [2]
    assert live_activations(table("0F0 0I0 0F1 0I1 0W0 0W1")) == [2]
    assert live_activations(table("0F0 0I0 0W0 0F1 0I1 0W1")) == [1]
    assert live_activations(table(".\n0F0")) == [0, 1]
    fifo = gpipe(5, 3)
    lifo = Schedule("as autograd does it", [[*fifo.actions(j)[:5], *reversed(fifo.actions(j)[5:])] for j in range(3)])
    assert simulate(lifo).bubble == simulate(fifo).bubble
    assert live_activations(lifo) == live_activations(fifo)


def steady(trace, first, last, n):
    start = max(span.start for span in trace if span.label in {f"{j}B{first}" for j in range(n)})
    return start, min(span.end for span in trace if span.label in {f"{j}B{last}" for j in range(n)})


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("forward, backward", [(1, 1), (1, 2), (3, 2)])
def test_pipedream_has_no_bubble_in_its_steady_state(n, forward, backward):
    m = 24
    start, end = steady(simulate(pipedream(m, n), forward, backward), n, m - n, n)
    assert end - start >= (m - 3 * n) * (forward + backward)
    for wait in waits_for(pipedream(m, n), forward, backward):
        assert wait.end <= start or wait.start >= end


def test_a_flush_costs_a_bubble_each_time_and_each_wait_names_what_it_is_for():
    flushed = 5 * simulate(one_f_one_b(4, 3)).makespan
    streamed = simulate(pipedream(5 * 4, 3)).makespan
    assert flushed - streamed == (5 - 1) * (3 - 1) * (1 + 2)
    waits = waits_for(one_f_one_b(2, 2), forward=1, backward=2)
    assert [(str(wait), wait.start, wait.end) for wait in waits] == [("rank 0 waits for 1B0, to do 0B0", 2, 4),
        ("rank 0 waits for 1B1, to do 0B1", 6, 7), ("rank 1 waits for 0F0, to do 1F0", 0, 1),
        ("rank 1 has no more work", 7, 9)]  # fmt: skip
    assert [tuple(wait) for wait in waits_for(table("0F0\n1F0"), forward=1, communicate=2)] == [(0, 1, 4, None, None),
        (1, 0, 3, Action("F", 1, 0), Action("F", 0, 0))]  # fmt: skip


@pytest.mark.parametrize("ask", [simulate, waits_for, live_activations, validate, slotted])
def test_what_is_no_schedule_is_refused_and_a_maker_is_to_be_called(ask):
    refuses(TypeError, r"not the function one_f_one_b that makes one: call it, one_f_one_b\(m, n\)", ask, one_f_one_b)
    for given in ("x", None, [["0F0"]]):
        refuses(TypeError, r"expected a Schedule, such as one_f_one_b\(m, n\)", ask, given)
