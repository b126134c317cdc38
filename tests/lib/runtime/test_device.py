"""Devices under one set of names: a CPU, an accelerator of any kind, and what is not there."""

import ast
import copy
import pickle

import pytest
import torch

from lib.runtime.device import (
    CPUStream,
    accelerators,
    as_cuda,
    current_stream,
    default_generator,
    default_stream,
    device_name,
    get_device,
    has_streams,
    is_cuda,
    locate,
    named_device,
    new_stream,
    on_accelerator,
    record_stream,
    synchronize,
    synchronize_used,
    timed_event,
    use_device,
    use_stream,
    wait_stream,
    with_index,
)
from tests.lib.accelerators import FakeAccelerator
from tests.lib.refusal import refuses
from tools.project import ROOT

CPU = torch.device("cpu")


# --- a CPU
def test_a_cpu_has_one_stream_that_stays_the_only_one():
    assert new_stream(CPU) is CPUStream
    assert current_stream(CPU) is CPUStream
    assert default_stream(CPU) is CPUStream
    assert pickle.loads(pickle.dumps(CPUStream)) is CPUStream
    assert copy.deepcopy(CPUStream) is CPUStream
    assert get_device(CPUStream) == CPU
    assert not on_accelerator(CPUStream)


def test_on_a_cpu_there_is_nothing_to_switch_and_nothing_to_wait_for():
    assert with_index(CPU) == CPU
    assert default_generator(CPU) is torch.default_generator
    with use_device(CPU), use_stream(CPUStream):
        wait_stream(CPUStream, CPUStream)
        record_stream(torch.zeros(1), CPUStream)
        synchronize(CPU)


# --- an accelerator that is not CUDA
def test_the_functions_of_a_device_are_those_of_the_module_of_its_kind(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    first, second = gpu.devices
    assert has_streams(first)
    side = new_stream(second)
    assert on_accelerator(side)
    assert get_device(side) == second
    with use_stream(side):
        assert current_stream(second) is side
        assert current_stream(first) is gpu.stream
    assert current_stream(second) is not side
    assert default_generator(second) is gpu.module.default_generators[1]
    synchronize(first)
    assert gpu.waited == 1


def test_a_device_without_a_number_is_the_current_one_of_its_kind(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    kind = torch.device(gpu.device.type)
    assert with_index(kind) == gpu.devices[0]
    with use_device(gpu.devices[1]):
        assert with_index(kind) == gpu.devices[1]
        assert locate(kind) == gpu.devices[1]
    assert locate(kind) == gpu.devices[0]


def test_a_stream_waits_for_another_by_itself_and_a_cpu_stands_still(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    source, target = gpu.streams
    asked = []
    source.wait_stream = asked.append
    target.synchronize = lambda: asked.append("the host")
    wait_stream(source, target)
    wait_stream(CPUStream, target)
    wait_stream(source, CPUStream)
    assert asked == [target, "the host"]


def test_an_event_notes_when_its_stream_came_to_it(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    start = timed_event(gpu.stream)
    gpu.work(2.0)
    assert start.elapsed_time(timed_event(gpu.stream)) == pytest.approx(2000)


def test_a_kind_without_default_stream_has_number_0(monkeypatch):  # torch.xpu
    gpu = FakeAccelerator(monkeypatch)
    del gpu.module.default_stream
    gpu.stream.device_index = 0
    gpu.stream.device_type = 20
    asked = {}
    monkeypatch.setattr(torch, "Stream", lambda **what: asked.update(what))
    default_stream(gpu.device)
    assert asked == {"stream_id": 0, "device_index": 0, "device_type": 20}


def test_what_has_no_streams_is_treated_like_a_cpu():
    for name in ("mps", "meta"):
        device = torch.device(name)
        assert not has_streams(device)
        assert current_stream(device) is CPUStream
        assert with_index(device) == device
        synchronize(device)


# --- which accelerators are here
def test_cuda_comes_first_where_a_process_holds_another_kind_beside_it(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert accelerators() == gpu.devices
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert accelerators() == [torch.device("cuda", number) for number in range(3)]


def test_an_accelerator_without_streams_is_none_of_them(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    assert accelerators() == []


def test_what_is_not_there_is_told_by_its_name(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    for without in ("meta", "cpu"):
        words = f"device must be an accelerator with streams, such as 'cuda', not '{without}'"
        refuses(ValueError, words, locate, torch.device(without))
    far = torch.device(gpu.device.type, 7)
    refuses(RuntimeError, f"no '{far}': torch sees 2 PRIVATEUSEONE device", locate, far)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = "torch sees no CUDA device here, so there is no 'cuda:1'; use 'cpu'"
    refuses(RuntimeError, words, locate, torch.device("cuda", 1))


def test_a_name_that_torch_does_not_know_is_refused_with_names_that_it_does_and_how_a_simulated_device_starts():
    refuses(RuntimeError, "no device is called 'gpu0': .*'cpu', 'cuda:0'", named_device, "gpu0")
    refuses(TypeError, "not 2.5", named_device, 2.5)
    assert named_device("cpu") == torch.device("cpu")
    if not hasattr(torch, "simgpu"):
        refuses(RuntimeError, r"'simgpu:1'.*lib\.simulated\.start\(\) first", named_device, "simgpu:1")


def test_only_accelerators_in_use_are_waited_for(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", None)
    synchronize_used()
    assert gpu.waited == 1
    monkeypatch.setattr(gpu.module, "is_initialized", lambda: False)
    synchronize_used()
    assert gpu.waited == 1


def test_torchgpipes_names_for_a_stream_of_an_accelerator_are_kept(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    assert is_cuda(gpu.stream)
    assert not is_cuda(CPUStream)
    assert as_cuda(gpu.stream) is gpu.stream


def test_torch_has_what_is_asked_of_a_module():
    """Each kind that torch brings has all the names, but for the default stream of torch.xpu."""
    asked = {name.removeprefix("on_") for name in dir(FakeAccelerator) if name.startswith("on_")}
    for kind in (torch.cuda, torch.xpu, torch.mtia):
        missing = asked - set(dir(kind))
        assert missing <= {"default_stream"}, kind.__name__


def test_no_other_file_of_lib_asks_torch_for_a_kind_of_device():
    kinds = {"cuda", "xpu", "mps", "mtia", "accelerator", "get_device_module"}
    found = {}
    for path in sorted((ROOT / "lib").rglob("*.py")):
        dotted = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))
        asked = {node.attr for node in dotted if ast.unparse(node.value) == "torch" and node.attr in kinds}
        is_a_device_itself = path.parent.name == "simulated"
        if asked and not is_a_device_itself:
            found[path.relative_to(ROOT).as_posix()] = asked
    assert found.pop("lib/runtime/device.py") == {"accelerator"}
    assert found == {"lib/machine.py": {"cuda"}}, "the machine card names the driver of an NVIDIA GPU, and nothing else"


def test_what_has_no_streams_is_called_cpu():
    assert device_name(torch.device("cpu")) == "CPU"
