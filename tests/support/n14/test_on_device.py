"""What notebook 14 shows of four devices, from its recording: predicted and measured, and who wins when."""

import gc
import inspect
import json
import weakref
from contextlib import nullcontext

import pytest
import torch

from lib.schedules import gpipe, zbv
from lib.schedules.simulate import live_activations, simulate
from support import recordings
from support.devices import InPlaceOfADevice
from support.n14 import on_device, solved
from tests.support.n14 import split_answers
from tools.project import ROOT

NOTEBOOK = json.loads((ROOT / "notebooks" / "14_schedules.ipynb").read_text(encoding="utf-8"))


@pytest.fixture
def recorded():
    return InPlaceOfADevice(recordings.load("late_messages"), on_device)


@pytest.mark.parametrize("message", on_device.MESSAGES)
def test_the_recorded_devices_follow_the_law_of_data_flow(recorded, message):
    alone = on_device.measure_alone(recorded, message=message)
    assert message <= alone.message < message + 1
    for name, schedule in on_device.shown_orders().items():
        measured = on_device.measured_step(recorded, schedule, message=message)
        predicted = alone.predict(schedule)
        assert measured.makespan == pytest.approx(predicted.makespan, rel=0.15), name
        assert [span.label for span in measured.only(lane="rank 0")] == [str(a) for a in schedule.actions(0)]


def test_the_winner_changes_with_the_messages(recorded):
    def ends(message):
        orders = on_device.shown_orders().items()
        return {name: on_device.measured_step(recorded, made, message=message).makespan for name, made in orders}

    free, late = map(ends, on_device.MESSAGES)
    assert min(free, key=free.get) in ("ZB-H1", "both"), "they are equally fast, and hold 4 and 7"
    assert late["both"] < late["warmed up"] < late["ZB-H1"] < late["interleaved"] < late["1F1B"]
    assert free["interleaved"] < free["1F1B"]


def _most(device, **how):
    return {
        name: on_device.measured_peaks(device, schedule, **how) for name, schedule in on_device.weighed_orders().items()
    }


def test_the_recorded_bytes_follow_the_count_if_the_host_waits(recorded):
    found = _most(recorded)
    for name, schedule in on_device.weighed_orders().items():
        more = [most - held for most, held in zip(found[name], live_activations(schedule), strict=True)]
        assert min(more) > 0.9
        assert max(more) < 2.5, name
    assert max(found["GPipe"]) > 1.5 * max(found["ZB-H1"])
    assert abs(max(found["ZB-H1"]) - max(found["1F1B"])) < 0.5
    four = _most(recorded, tanhs=4)
    assert four["ZB-H1"][-1] < 3 < 4 == live_activations(on_device.shown_orders()["ZB-H1"])[-1]


def test_what_was_not_recorded_is_no_number_of_bytes(recorded):
    assert on_device.measured_peaks(recorded, zbv(8, 4)) is None


def test_between_i_and_w_no_gradient_of_an_input_is_kept():
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(4, 4, generator=draw).requires_grad_() for _ in range(2)]
    rows = torch.randn(2, 4, generator=draw)
    lacking = solved.table("", [[("F", 0, 0), ("I", 0, 0)], [("F", 1, 0), ("I", 1, 0)]])
    left = on_device.run_orders(lacking, weights, [rows], lambda y, i: y.sum(), Here(), solved.SplitLinear)
    for owed in left.values():
        kept = dict(zip(owed[0].__code__.co_freevars, owed[0].__closure__, strict=True))
        assert kept["x"].cell_contents.grad is None


@pytest.mark.parametrize("linear", [solved.SplitLinear, split_answers.Detached, split_answers.ReadsCtx])
def test_no_input_outlives_its_w_even_if_the_function_holds_its_list(linear):
    inputs = []

    class Watched:
        @staticmethod
        def apply(x, weight, later):
            inputs.append(weakref.ref(x))
            return linear.apply(x, weight, later)

    weights = [torch.ones(4, 4, requires_grad=True) for _ in range(2)]
    parts = [torch.ones(2, 4) for _ in range(2)]
    gc.disable()  # a circle would wait for it, and memory with it
    try:
        on_device.run_orders(gpipe(2, 2), weights, parts, lambda y, i: y.sum(), Here(), Watched)
        assert [x for x in inputs if x() is not None] == []
    finally:
        gc.enable()


def test_what_was_not_recorded_is_no_time_and_predicted_from_what_is_asked(recorded):
    assert on_device.measured_step(recorded, zbv(8, 4)) is None
    alone = on_device.measure_alone(recorded, (1, 2, 3), 4)
    assert alone == on_device.Measured((1, 2, 3), (0, 0, 0, 0), 4)
    assert alone.predict(gpipe(2, 2)).makespan == pytest.approx(1e-3 * simulate(gpipe(2, 2), 1, 5, None, 4).makespan)
    assert str(alone) == "F 1.00, I 2.00, W 3.00, a message 4.00 ms"


def test_small_stages_take_their_share_of_what_is_asked_and_all_of_what_comes_besides():
    alone = on_device.Measured((6, 6, 6), (1, 1, 1, 2), 0)
    found = {span.label: round(1e3 * span.duration, 6) for span in alone.predict(zbv(8, 4))}
    assert (found["0F0"], found["0I0"], found["0W0"]) == (4, 4, 4)


class Here:
    """As the notebook has it."""

    def doing(self, rank, task, parcel):
        return nullcontext(parcel)

    def sent(self, tensor, rank, to):
        return tensor


@pytest.mark.parametrize("schedule", [*on_device.shown_orders().values(), zbv(8, 4)], ids=lambda made: made.name)
def test_every_order_gives_the_gradients_of_the_plain_model_and_leaves_no_w(schedule):
    draw = torch.Generator().manual_seed(0)
    m = schedule.micro_batches
    weights = [torch.randn(4, 4, generator=draw).requires_grad_() for _ in range(schedule.stages)]
    rows, wanted = torch.randn(2, 2 * m, 4, generator=draw)
    loss = on_device.share_of_loss(wanted.chunk(m))
    left = on_device.run_orders(schedule, weights, rows.chunk(m), loss, Here(), solved.SplitLinear)
    assert not [owed for owed in left.values() if owed]
    on_device._see_that_it_is_right([w.detach() for w in weights], rows, wanted, weights)
    weights[1].grad += 1
    with pytest.raises(RuntimeError, match="stage 1 is not that of the plain model"):
        on_device._see_that_it_is_right([w.detach() for w in weights], rows, wanted, weights)


def test_the_two_ways_of_measuring_alone_do_one_thing_at_a_time():
    for schedule in on_device.one_by_one(4):
        assert max(live_activations(schedule)) <= 3
        assert set(schedule.rank_of.values()) == {0, 1, 2, 3}


@pytest.mark.parametrize("function", [on_device.run_orders, on_device.as_they_begin, on_device.share_of_loss])
def test_the_notebook_has_the_functions_of_its_room_line_by_line(function):
    shown = {line.strip() for cell in NOTEBOOK["cells"] for line in "".join(cell["source"]).splitlines()}
    own = [line.strip() for line in inspect.getsource(function).splitlines()]
    assert [line for line in own if line and line not in shown] == []
