"""What notebook 09 shows of a device, from its recording: the model's ticks, and a read that nobody ordered."""

import inspect
import json

import pytest

from support import recordings
from support.devices import InPlaceOfADevice
from support.n09 import on_device
from support.n09.plans import backwards
from support.n09.two_streams import simulate_streams
from tools.project import ROOT

NOTEBOOK = json.loads((ROOT / "notebooks" / "09_streams_tasks_workers.ipynb").read_text(encoding="utf-8"))


@pytest.fixture
def recorded():
    return InPlaceOfADevice(recordings.load("two_streams"))


@pytest.mark.parametrize("way", on_device.WAYS)
def test_the_recorded_device_ends_when_the_model_says(recorded, way):
    streams, threads, waits = way
    _, ended = recorded.run(on_device.ends_of, *way)
    model = simulate_streams(streams, threads, kernel=3, launch=1, waits=waits).end
    assert model <= ended < model + 1.5


def test_what_nobody_waited_for_is_read_too_early(recorded):
    assert [recorded.run(on_device.summed_late, waits) for waits in (False, True)] == [0, 1000]


@pytest.mark.parametrize("function", [on_device.ends_of, on_device.launch_all, on_device.summed_late, backwards])
def test_the_notebook_has_the_functions_of_its_room_line_by_line(function):
    shown = {line.strip() for cell in NOTEBOOK["cells"] for line in "".join(cell["source"]).splitlines()}
    own = [line.split("  # ")[0].strip() for line in inspect.getsource(function).splitlines()]
    assert [line for line in own if line and not any(seen.startswith(line) for seen in shown)] == []
