"""The functions of section 9 run on a torch.cuda that is none: their calls exist and fit together."""

import ast
import json
import re
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

from lib.timeline import Span, Trace, overlap_share
from support.n13 import checks, runs
from support.overlap import predict_chunks
from tools.project import ROOT

NOTEBOOK = ROOT / "notebooks" / "13_cuda_streams.ipynb"


class Placed(TorchFunctionMode):
    """What is asked to be on a GPU is on the CPU, and counts as pinned."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.pin_memory or func is torch.Tensor.cuda:
            return args[0].clone()
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        args = tuple("cpu" if isinstance(x, str) and x == "cuda" else x for x in args)
        return func(*args, **kwargs)


class Stream:
    """Takes the calls of a torch.cuda.Stream."""

    def record_event(self):
        return object()

    def synchronize(self):
        return None

    def wait_event(self, event):
        assert event is not None

    def wait_stream(self, stream):
        assert isinstance(stream, Stream)


def timed(work, cuda):
    """Time by events; a ModelGPU takes no time for what runs on the CPU, and the section divides by times."""
    return max(1.0, checks.check_device_ms.reference(work, cuda))


@pytest.fixture
def section(monkeypatch):
    """Return the names that the notebook's definitions make, on a torch.cuda of this file."""
    clock = runs.ModelGPU()
    current = [Stream()]

    @contextmanager
    def stream(one):
        current.append(one)
        yield
        current.pop()

    fakes = {"Stream": Stream, "stream": stream, "current_stream": lambda: current[-1]}
    fakes |= {"synchronize": clock.synchronize, "Event": clock.Event, "_sleep": clock.launch}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    space = {"torch": torch, "time": time, "predict_chunks": predict_chunks, "modes": []}
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", space["modes"].append)
    space |= {"Path": Path, "Span": Span, "Trace": Trace, "timed": timed}
    space |= {"stream": checks.check_streamed.reference, "prefetch": checks.check_prefetch.reference}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if re.match(r"n13-(49|5\d)", cell["id"]) and cell["cell_type"] == "code":
            parts = ast.parse("".join(cell["source"])).body
            parts = [part for part in parts if isinstance(part, (ast.FunctionDef, ast.ClassDef))]
            exec(compile(ast.Module(parts, []), "section 9", "exec"), space)
    with Placed():
        yield space


def test_every_function_of_the_section_runs_and_says_what_it_measured_and_the_loop_streams(section, capsys, tmp_path):
    section["time_a_kernel"](8)
    section["price_of_pinning"](1)
    section["see_a_race"]()
    section["find_silent_waits"]()
    assert section["modes"] == ["warn", "default"]
    out = capsys.readouterr().out
    assert "by events" in out
    assert out.count("GB/s") == 3
    assert out.count("is 1048576") == 2
    section["stream_on_the_gpu"](rows=64, width=8, times=2)  # it asserts the result itself
    assert capsys.readouterr().out.count("chunks:") == 7


class Profile:
    """Stands in for torch.profiler.profile: on the device it saw a copy and, from its middle on, a kernel."""

    def __init__(self, activities):
        assert len(activities) == 2

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def export_chrome_trace(self, file):
        rows = [("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 10), ("kernel", "sin", 12), ("cpu_op", "aten::sin", 0)]
        same = {"ph": "X", "dur": 4, "pid": 0}
        events = [{**same, "cat": kind, "name": name, "ts": at, "tid": kind} for kind, name, at in rows]
        Path(file).write_text(json.dumps({"traceEvents": events}))


def test_the_profile_of_a_prefetched_epoch_is_read_as_copies_and_kernels_and_its_file_removed(
    section, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch.profiler, "profile", Profile)
    trace = section["profile_prefetching"](str(tmp_path / "profile.json"), steps=2, numbers=8)
    assert {(span.lane, span.kind) for span in trace} == {("copy", "copy"), ("compute", "compute")}
    assert overlap_share(trace) == pytest.approx(0.5)
    assert list(tmp_path.iterdir()) == []
