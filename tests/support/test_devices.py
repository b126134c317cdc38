"""A device for cells in which streams must really run: CUDA first, and what is no GPU's is never called one's."""

import inspect
from importlib import import_module

import pytest
import torch

from support import devices, recordings
from support.devices import InPlaceOfADevice, RealStreams, key_of, start_device


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(devices, "_started", None)


@pytest.fixture
def cuda(monkeypatch):
    """Pretend that torch sees a GPU; return the cycles that it was told to sleep."""
    slept = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU of the test")
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
    monkeypatch.setattr(devices, "start", lambda *args, **more: pytest.fail("a simulated device beside CUDA"))
    return slept


def test_where_there_is_a_gpu_it_is_taken_and_named_and_nothing_is_simulated(cuda, capsys):
    device = start_device("early_read")
    assert device.device == torch.device("cuda")
    assert devices.started() is device
    assert capsys.readouterr().out == "Streams really run here, on a GPU of the test.\n"
    device.sleep(0.5)
    assert cuda == [0.5 * devices.CUDA_CYCLES]


def test_two_gpus_are_taken_where_two_are_asked_for_and_one_is_not_enough(cuda, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    device = start_device("two_devices", count=2)
    assert device.devices == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert capsys.readouterr().out == "Streams really run here, on a GPU of the test and a GPU of the test.\n"
    with monkeypatch.context() as patch:
        patch.setattr(device, "synchronize", lambda: None)
        with device.slow(kernel=1.0, copy=1.0):  # nobody slows a real GPU down: the fixture fails where it is tried
            pass

    def refuse(count, memory):
        raise RuntimeError("a real accelerator is here. Hide it")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(devices, "start", refuse)
    assert isinstance(start_device("two_devices", count=2), InPlaceOfADevice)
    assert "Nothing can run on a device here: a real accelerator is here." in capsys.readouterr().out


def test_simulated_devices_are_slow_within_a_with_and_as_they_were_behind_it(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "start", lambda count, **costs: asked.append((count, costs)))
    monkeypatch.setattr(devices, "synchronize", lambda device: None)
    monkeypatch.setattr(devices, "SIMULATED_KIND", "privateuseone")  # its name, before a simulated device is there
    device = start_device("two_devices", count=2)
    assert str(device) == "2 simulated devices, no GPUs"
    with device.slow(kernel=0.5, copy=0.25):
        count, costs = asked[-1]
        assert count == 2
        assert costs["kernel"] == devices.Kernel(seconds=0.5)
        assert costs["peer_link"] == costs["host_link"] == devices.Link(latency=0.25)
    with device.slow_copies(2.0):
        assert asked[-1] == (2, {"memory": None, "host_link": devices.Link(bandwidth=2.0)})
    assert asked[-1] == (2, {"memory": None})


def test_a_limit_of_memory_reaches_the_allocator_beside_what_the_libraries_of_a_gpu_have_taken(cuda, monkeypatch):
    limited = []
    monkeypatch.setattr(torch, "ones", lambda *shape, device: torch.zeros(shape))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 100)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (900, 1000))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limited.append)
    assert start_device("early_read", memory=200).memory == 200
    assert limited == [0.3]


def test_a_simulated_device_is_started_with_its_limit_and_keeps_it_when_its_copies_become_slow(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "start", lambda count, **costs: asked.append((count, costs["memory"])))
    monkeypatch.setattr(devices, "SIMULATED_KIND", "meta")
    monkeypatch.setattr(devices, "synchronize", lambda device: None)
    device = start_device("early_read", memory=200)
    with device.slow_copies(1e6):
        pass
    assert asked == [(1, 200)] * 3


def test_where_nothing_can_be_started_the_reason_stands_in_one_line_above_the_recordings_origin(monkeypatch, capsys):
    def refuse(count, memory):
        raise RuntimeError("torch has something else here. Do this or that")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "start", refuse)
    device = start_device("early_read")
    assert isinstance(device, InPlaceOfADevice)
    assert devices.started() is None
    record = recordings.load("early_read")
    assert capsys.readouterr().out == (
        f"Nothing can run on a device here: torch has something else here.\n{recordings.provenance(record)}\n"
    )


def test_without_a_recording_there_is_nothing_to_show_in_its_place(monkeypatch):
    def refuse(count, memory):
        raise RuntimeError("no")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "start", refuse)
    with pytest.raises(FileNotFoundError, match="nobody_recorded_this"):
        start_device("nobody_recorded_this")


def test_a_recording_answers_by_the_arguments_and_names_those_that_it_has():
    device = InPlaceOfADevice({"results": {key_of(True, 0.5): 3.0}})

    def program(gpu, waits, late):
        raise AssertionError("a recording runs nothing")

    assert device.run(program, True, 0.5) == 3.0
    with pytest.raises(LookupError, match=r"program is recorded for \(True, 0.5\), not for \(False, 0.5\)"):
        device.run(program, False, 0.5)


def written(text, folder):
    """Return the function early_read as a cell of this text would define it."""
    file = folder / "cell.py"
    file.write_text(text)
    names = {"torch": torch}
    exec(compile(text, str(file), "exec"), names)
    return names["early_read"]


def test_a_recording_refuses_a_function_that_was_edited_and_another_one(tmp_path):
    module = import_module("support.n13.on_device")
    device = InPlaceOfADevice(recordings.load("early_read"), module)
    assert device.run(module.early_read, True, 0.5) == 1_000_000
    source = inspect.getsource(module.early_read)
    edited = written(source.replace("torch.ones", "torch.zeros"), tmp_path)

    def another(gpu, waits, late):
        raise AssertionError("a recording runs nothing")

    for program in (edited, another):
        refused = rf"{program.__name__} is not the function that was recorded: what it gives needs a GPU, or a C\+\+"
        with pytest.raises(LookupError, match=refused):
            device.run(program, True, 0.5)
        with pytest.raises(LookupError, match=refused):
            device.run_often(200, program, True, 0)


def test_a_comment_and_a_blank_line_are_no_edit(tmp_path):
    module = import_module("support.n13.on_device")
    source = inspect.getsource(module.early_read)
    same = written("# a comment\n\n" + source.replace("side = ", "# another\n\n    side = "), tmp_path)
    device = InPlaceOfADevice(recordings.load("early_read"), module)
    assert device.run(same, True, 0.5) == 1_000_000


def test_it_has_pinned_memory_by_the_name_that_a_pretend_gpu_has(cuda, monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda shape, *, dtype, pin_memory: (shape, dtype, pin_memory))
    assert start_device("early_read").pinned((2, 3), torch.int32) == ((2, 3), torch.int32, True)


def test_what_a_program_raises_comes_behind_the_end_of_what_it_had_launched():
    waited = []

    class Watched(RealStreams):
        def synchronize(self):
            waited.append("waited")

    def program(gpu):
        raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program"):
        Watched(torch.device("cuda")).run(program)
    assert waited == ["waited"]
