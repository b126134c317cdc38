"""What notebook 10 shows of a device with 64 MiB: from its recording, and on a simulated one, a process of its own."""

import inspect
import json
import os
import subprocess
import sys

import pytest

from support import recordings
from support.devices import InPlaceOfADevice
from support.n10 import on_device
from support.n10.staircase import peak, predict
from tools.project import ROOT

NOTEBOOK = json.loads((ROOT / "notebooks" / "10_checkpoint_recompute.ipynb").read_text(encoding="utf-8"))


@pytest.fixture
def recorded():
    return InPlaceOfADevice(recordings.load("memory_limit"), on_device)


def test_the_model_fits_once_it_is_checkpointed_and_not_as_one_segment(recorded):
    fit = {segments: recorded.run(on_device.fits, 16_384, segments)[0] for segments in on_device.SEGMENTS}
    assert fit == {0: 0, 1: 0, 2: 1, 4: 1, 8: 1, 16: 0}
    assert recorded.run(on_device.fits, 24_576, 4)[0] == 1
    assert recorded.run(on_device.fits, 12_288, 0)[0] == 1


@pytest.mark.parametrize("segments", on_device.SEGMENTS)
def test_what_the_allocator_says_lies_a_little_above_the_staircase(recorded, segments):
    _, mib = recorded.run(on_device.fits, 256, segments)
    weights = 16 * (64 * 64 + 64) * 4 / on_device.MIB
    tensors = (mib - weights) * on_device.MIB / (256 * 64 * 4)
    held = peak(predict(16, segments or 1, 1, "always" if segments else "never"))
    assert held < tensors < held + 5


def test_dropout_on_a_device_is_the_same_twice_where_its_state_is_kept(recorded):
    assert recorded.run(on_device.same_mask, "MyCheckpoint") == 1
    assert 0.4 < recorded.run(on_device.same_mask, "hook_checkpoint") < 0.6


@pytest.mark.parametrize("function", [on_device.deep, on_device.send, on_device.fits, on_device.same_mask])
def test_the_notebook_has_the_functions_of_its_room_line_by_line(function):
    shown = {line.strip() for cell in NOTEBOOK["cells"] for line in "".join(cell["source"]).splitlines()}
    own = [line.split("  # ")[0].strip() for line in inspect.getsource(function).splitlines()]
    assert [line for line in own if line and not any(seen.startswith(line) for seen in shown)] == []


LIVE = """
from support.devices import start_device
from support.n10 import on_device

device = start_device("memory_limit", memory=on_device.MEMORY)
print([device.run(on_device.fits, 16_384, segments)[0] for segments in (0, 1, 4)])
print(device.run(on_device.same_mask, "MyCheckpoint"))
"""


def printed_by(code):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "notebooks")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.costly
def test_on_a_simulated_device_memory_ends_and_a_checkpoint_makes_room():
    assert printed_by(LIVE)[-2:] == ["[0.0, 0.0, 1.0]", "1.0"]


LATE = """
import threading, time, torch
from support.devices import start_device

def half_and_more(gpu):
    x = torch.zeros(10 * 2**20, device=gpu.device)
    threading.Thread(target=lambda kept: time.sleep(0.3), args=(x,)).start()
    return torch.tensor(x.nbytes)

device = start_device("memory_limit", memory=64 * 2**20)
print(device.run_often(3, half_and_more))
"""


@pytest.mark.costly
def test_a_run_has_the_memory_that_another_thread_lets_go_of_behind_the_run_before():
    """As autograd's does with a backward that failed: on a busy machine the next run came first, and failed, too."""
    assert printed_by(LATE)[-1] == "[41943040, 41943040, 41943040]"


def stored(*names):
    """Return the code of some cells of the notebook, and what all of them have printed."""
    cells = {cell["id"]: cell for cell in NOTEBOOK["cells"]}
    code = "\n".join("".join(cells[name]["source"]) for name in names)
    outputs = [output for name in names for output in cells[name]["outputs"]]
    return code, "".join("".join(output["text"]) for output in outputs)


@pytest.mark.costly
def test_without_a_compiler_the_recording_prints_what_the_notebook_has_stored(tmp_path):
    code, _ = stored("n10-02", "n10-03", "n10-06", "n10-04")
    _, printed = stored("n10-06", "n10-04")
    file = tmp_path / "cell.py"  # a recording reads the text of a function, which `python -c` does not keep
    file.write_text(code, encoding="utf-8")
    hidden = {"PATH": "", "CXX": "", "XDG_CACHE_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "notebooks")])
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": paths, **hidden},
    )
    assert done.returncode == 0, done.stderr
    assert "Recorded" in done.stdout
    assert done.stdout.endswith(printed)
