"""What notebook 12 shows of four devices, from its recording: the laws of time, and what each mode holds."""

import inspect
import json

import pytest
import torch

from support import recordings
from support.devices import InPlaceOfADevice
from support.n12 import on_device
from support.n12.balance import clock_by_clock, held_after_forward, held_at_most, launched_ahead, time_of_recompute
from support.n12.guesses import guess_counted, guess_m, guess_step
from tools.project import ROOT

NOTEBOOK = json.loads((ROOT / "notebooks" / "12_gpipe.ipynb").read_text(encoding="utf-8"))
INSIDE = 5


@pytest.fixture
def recorded():
    return InPlaceOfADevice(recordings.load("four_devices"), on_device)


@pytest.mark.parametrize("flops", on_device.SPEEDS)
def test_the_recorded_forward_is_nearer_to_launches_ahead_than_to_clocks_that_wait(recorded, flops):
    (f, _), (o, _), *forward = recorded.run(on_device.speeds, flops, on_device.MS)
    rows = list(zip(on_device.MS, (seconds for seconds, _ in forward), strict=True))
    off = {law: sum(abs(law(m, 4, f, o) - seconds) for m, seconds in rows) for law in (launched_ahead, clock_by_clock)}
    assert off[launched_ahead] < off[clock_by_clock]
    best = min(rows, key=lambda row: row[1])[0]
    assert f / o / 2.5 < best < 2.5 * f / o


def test_faster_devices_want_fewer_micro_batches(recorded):
    best = []
    for flops in on_device.SPEEDS:
        forward = [row[0] for row in recorded.run(on_device.speeds, flops, on_device.MS)[2:]]
        best.append(on_device.MS[forward.index(min(forward))])
    assert best[0] > best[1]


def test_the_laws_agree_where_the_host_costs_nothing_and_part_where_it_does():
    assert clock_by_clock(8, 4, 16.0, 0.0) == launched_ahead(8, 4, 16.0, 0.0) == 22.0
    assert clock_by_clock(8, 4, 16.0, 1.0) == 33.0
    assert launched_ahead(8, 4, 16.0, 1.0) == 22.0
    assert launched_ahead(32, 4, 16.0, 1.0) == 35.0
    assert round(time_of_recompute(2.0), 2) == 1.33
    assert round(time_of_recompute(2.0, 0.5), 2) == 1.17


@pytest.mark.parametrize("m", [8, 16])
def test_the_recorded_devices_hold_what_the_formulas_say_and_always_saves_little_at_the_peak(recorded, m):
    found = {mode: recorded.run(on_device.held_on_device, mode, m) for mode in on_device.MODES}
    for mode, (after, peak) in found.items():
        assert after == pytest.approx(held_after_forward(mode, m, INSIDE), abs=0.02)
        assert 0 < peak - held_at_most(mode, m, INSIDE) < 8 / m
    saved = [found["except_last"][k] - found["always"][k] for k in (0, 1)]
    assert abs(saved[1]) < saved[0]
    assert saved[1] < saved[0] / 2
    assert held_at_most("always", m, INSIDE) == held_at_most("except_last", m, INSIDE)


def test_of_many_partitions_on_one_device_always_holds_less_at_the_peak_and_of_four_about_the_same(recorded):
    found = {
        (together, mode): recorded.run(on_device.held_on_device, mode, 8, together)
        for together in on_device.TOGETHER
        for mode in on_device.MODES[1:]
    }
    assert found[8, "always"][1] < found[8, "except_last"][1] - 1
    assert found[4, "always"][1] == pytest.approx(found[4, "except_last"][1], abs=0.5)
    for mode, on_top in (("except_last", 1.5), ("always", 3.0)):
        for together in on_device.TOGETHER:
            after, peak = found[together, mode]
            assert peak - after == pytest.approx(on_top, abs=0.3)


def test_the_fastest_m_and_its_neighbours_of_about_the_same_time_count_and_no_other():
    seconds = {4: 0.03, 8: 0.0215, 16: 0.02, 32: 0.0205, 64: 0.03}
    assert "You said 16: that is it" in guess_m(16, seconds).message
    said = guess_m(32, seconds).message
    assert "You said 32: beside the fastest here, m = 16, and 2% longer, so it counts" in said
    assert "so it counts" in guess_m(8, seconds).message
    assert guess_m("32", seconds).message == said
    assert guess_m(8, seconds | {8: 0.023}).message == "You said 8: beside the fastest here, m = 16, and 15% longer."
    assert "10% longer, so it counts" in guess_m(8, seconds | {8: 0.02208}).message
    for wrong in (4, 64, 24, None, "many", torch.tensor(32)):
        assert "so it counts" not in guess_m(wrong, seconds).message


@pytest.mark.parametrize(
    "guess, mine, says",
    [
        (guess_step, 39, "that is the mean of 78 and 0"),
        (guess_step, "39 %", "that is the mean of 78 and 0"),
        (guess_step, 17.07, "You said 17: that is it, the gain of a step = 17 %"),
        (guess_step, 0.17, "You said 17: that is it"),
        (guess_step, 1.17, "You said 1.17 (in per cent, please)"),
        (guess_step, 2, "You said 2; the gain"),
        (guess_counted, "8", "that is `always`: here the last is not computed again"),
        (guess_counted, 7.0, "You said 7: that is it"),
    ],
)
def test_a_guess_is_told_the_same_however_it_is_written(guess, mine, says):
    assert says in guess(mine).message


def test_yours_and_libs_equal_the_plain_layers_in_the_recording(recorded):
    assert max(recorded.run(on_device.apart, 4)) < 1e-4


@pytest.mark.parametrize(
    "function",
    [on_device.found_by, on_device.apart, on_device.pipe_seconds, on_device.speeds, on_device.held_on_device],
)
def test_the_notebook_has_the_functions_of_its_room_line_by_line(function):
    shown = {line.strip() for cell in NOTEBOOK["cells"] for line in "".join(cell["source"]).splitlines()}
    own = [line.strip() for line in inspect.getsource(function).splitlines()]
    assert [line for line in own if line and line not in shown] == []
