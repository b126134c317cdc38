"""What notebook 11 shows of two devices: from its recording, and, in a process of its own, where they run."""

import ast
import inspect
import json
import os
import subprocess
import sys

import pytest

from support import recordings
from support.devices import InPlaceOfADevice
from support.n11 import on_device
from tools.project import ROOT

NOTEBOOK = json.loads((ROOT / "notebooks" / "11_backward_order.ipynb").read_text(encoding="utf-8"))


@pytest.fixture
def recorded():
    return InPlaceOfADevice(recordings.load("two_devices"), on_device)


def test_recorded_copies_beside_computing_are_faster_and_a_hasty_one_is_wrong(recorded):
    seen = {way: [float(x) for x in recorded.run(on_device.there_and_back, way)] for way in on_device.WAYS}
    assert seen["yours"][:2] == seen[".to()"][:2]
    assert seen["yours"][2] < 0.85 * seen[".to()"][2]
    assert seen["hasty"][:2] != seen[".to()"][:2]
    assert seen["hasty"][2] < seen["yours"][2]


def test_the_recorded_partition_ends_when_the_model_says(recorded):
    for way, model in zip(on_device.NODES, (12, 9, 9), strict=True):
        assert model <= recorded.run(on_device.ends_at, way) < model + 1


@pytest.mark.parametrize(
    "function",
    [on_device.there_and_back, on_device.ends_at, on_device.one_partition, on_device.Act, on_device.WaitsItself],
)
def test_the_notebook_has_the_functions_of_its_room_line_by_line(function):
    shown = {line.strip() for cell in NOTEBOOK["cells"] for line in "".join(cell["source"]).splitlines()}
    once = "".join("".join(cell["source"]) for cell in NOTEBOOK["cells"]).replace("ctx.wait, ctx.function = ", "")
    own = [line.strip() for line in inspect.getsource(function).splitlines()]
    missing = [line for line in own if line and line not in shown]
    assert [line for line in missing if line.partition(" = ")[2] not in once] == []


def python(code):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "notebooks")])
    environment = {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


JUDGED = """
import json
from support.devices import start_device
from support.kit.mistakes import edited
from support.n11 import checks
from support.n11.on_device import wrong_number

device = start_device("two_devices", count=2)
assert wrong_number(device, checks.check_copy_wait.reference) == ""
assert checks.check_copy_wait(*checks.check_copy_wait.reference)
mistakes = checks.check_copy_wait.mistakes
print(json.dumps({sentence: checks.check_copy_wait(*answer).message for sentence, answer in mistakes.items()}))
"""


@pytest.mark.costly
def test_where_devices_run_a_right_answer_stays_right_and_a_forgotten_wait_is_seen_as_a_number_too():
    told = json.loads(python(JUDGED).splitlines()[-1])
    assert all(sentence in message for sentence, message in told.items())
    with_number = [sentence for sentence, message in told.items() if "the weights' gradients added up to" in message]
    forgotten = (
        "here nobody does",
        "it is prev_stream that has to wait",
        "next_stream must wait for what prev_stream has launched",
    )
    for words in forgotten:
        assert any(words in sentence for sentence in with_number), words
    assert not any("`.to` works in the streams" in sentence for sentence in with_number), "right, only slow"


def test_no_module_of_this_room_starts_a_device_when_it_is_imported():
    assert on_device.started() is None


@pytest.mark.costly
def test_without_a_compiler_the_cells_show_what_was_recorded(tmp_path):
    stored = {cell["id"]: "".join(cell["source"]) for cell in NOTEBOOK["cells"]}
    code = [stored[name] for name in ("n11-80", "n11-82", "n11-98", "n11-83")]
    ways = "\n".join(f"print({way!r}, tried({way!r})[:2])" for way in on_device.WAYS)
    file = tmp_path / "cell.py"  # a recording reads the text of a function, which `python -c` does not keep
    file.write_text("\n".join(["import torch", *code, ways]), encoding="utf-8")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "notebooks")])
    hidden = {"PATH": "", "CXX": "", "XDG_CACHE_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": paths, **hidden},
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("Nothing can run on a device here: the simulated device needs a C++ compiler")
    assert [line.split()[0] for line in said[-3:]] == [*on_device.WAYS]
    assert said[-3].partition(" ")[2] == said[-2].partition(" ")[2] != said[-1].partition(" ")[2]


#: Names that cells of the encore need, and that a reader who comes back to it later must find as they were.
NEEDED = {"WAYS", "copy_in_compute_streams", "nobody_waits", "there_and_back", "tried", "device", "HastyWait"}


def test_whoever_comes_back_to_the_encore_of_copies_finds_its_names_as_they_were():
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    after = [cell["id"] for cell in cells].index("n11-b1") + 1
    later = ast.parse("\n".join("".join(cell["source"]) for cell in cells[after:]))
    bound = {node.id for node in ast.walk(later) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.name for node in later.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert not bound & NEEDED
