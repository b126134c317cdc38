"""The functions of section 9 run on a torch.cuda that is none: their calls exist and fit together."""

import ast
import json
import time
from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode

from support.n13 import timing
from tools.project import ROOT

NOTEBOOK = ROOT / "notebooks" / "13_cuda_streams.ipynb"


class Placed(TorchFunctionMode):
    """What is asked to be on a GPU is on the CPU, and counts as pinned."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.pin_memory:
            return args[0].clone()
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        args = tuple("cpu" if isinstance(x, str) and x == "cuda" else x for x in args)
        return func(*args, **kwargs)


class Graph:
    """Takes the calls of a torch.cuda.CUDAGraph."""

    def replay(self):
        return None


@contextmanager
def graph(one):
    assert isinstance(one, Graph)
    yield


@pytest.fixture
def section(monkeypatch):
    """Return the names that the section's definitions make, on a torch.cuda of this file."""
    clock = timing.ModelGPU()
    cuda = timing.ModelCuda(clock)
    modes = []
    fakes = {"synchronize": clock.synchronize, "Event": cuda.Event, "set_sync_debug_mode": modes.append}
    fakes |= {"CUDAGraph": Graph, "graph": graph}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    space = {"torch": torch, "time": time, "timed": timing.device_ms, "modes": modes}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["id"] in ("n13-50", "n13-51c"):
            exec(compile(ast.parse("".join(cell["source"])), "section 9", "exec"), space)
    with Placed():
        yield space


def test_every_function_of_the_section_runs_and_says_what_it_measured(section, capsys):
    section["page_locking"](1)
    section["find_silent_waits"]()
    section["replay_a_graph"](5)
    assert section["modes"] == ["warn", "default"]
    out = capsys.readouterr().out
    assert out.count("copy without pinning") == 3
    assert out.count("as a graph: ") == out.count("one by one: ") == 1
