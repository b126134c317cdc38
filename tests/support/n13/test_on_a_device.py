"""What notebook 13 runs where streams really run: in processes of their own, as it changes torch for the process."""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from itertools import product
from pathlib import Path

import pytest
import torch

from support import recordings
from support.devices import RealStreams, key_of
from support.n13 import device_judge, on_device
from tools.project import ROOT

NOTEBOOK = ROOT / "notebooks" / "13_cuda_streams.ipynb"


def cells(*names):
    """Return the code of some cells of the notebook, and what their last one has printed."""
    stored = {cell["id"]: cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]}
    code = "\n".join("".join(stored[name]["source"]) for name in names)
    return code, "".join(stored[names[-1]]["outputs"][0]["text"])


def python(code, **environment):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "notebooks")])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "cell.py")  # a recording reads the text of a function, which `python -c` does not keep
        file.write_text(textwrap.dedent(code), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(file)],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PYTHONPATH": paths, **environment},
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def without_a_compiler(tmp_path):
    """Hide every compiler, and whatever was built before."""
    return {"PATH": "", "CXX": "", "XDG_CACHE_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}


IMPORTS = "import torch\nfrom lib.streams import PretendGPU, find_races\n"


@pytest.mark.costly
def test_without_a_compiler_one_line_says_so_and_the_recorded_number_stands_where_the_measured_one_would(
    without_a_compiler,
):
    code, stored = cells("n13-02c", "n13-02e")
    said, *origin, number, race = python(IMPORTS + code, **without_a_compiler).splitlines()
    assert said.startswith(
        "Nothing can run on a device here: the simulated device needs a C++ compiler; looked for g++"
    )
    assert re.match(r"Recorded \d{4}-\d\d-\d\d on a simulated device, no GPU, ", origin[0])
    assert origin[1].endswith("by python -m support.recordings early_read")
    assert f"{number}\n{race}\n" == stored


@pytest.mark.costly
def test_without_a_compiler_the_switch_moves_the_number_too_and_what_is_not_recorded_is_refused(without_a_compiler):
    code, _ = cells("n13-02c", "n13-02e")
    moved = code.replace("waits = False", "waits = True")
    assert python(IMPORTS + moved, **without_a_compiler).endswith("the sum of a million ones: 1000000\nno race\n")
    refused = """
try:
    device.run(early_read, False, 0.1)
except LookupError as error:
    print(error)
"""
    said = python(IMPORTS + code + refused, **without_a_compiler)
    assert "early_read is recorded for (False, 0), (False, 0.5), (200 times False, 0), (True, 0), " in said
    assert "not for (False, 0.1)" in said


@pytest.mark.costly
def test_on_a_device_it_prints_what_is_stored_and_the_wait_makes_it_right():
    code, stored = cells("n13-02c", "n13-02e")
    moved = code + "\nprint(device.run(early_read, True, late))"
    assert python(IMPORTS + moved).endswith(f"{stored}1000000.0\n")


def functions_of(text):
    tree = ast.parse(re.sub(r"(?m)^(\s*)[!%].*$", r"\1pass", text))
    return {part.name: ast.dump(part) for part in tree.body if isinstance(part, ast.FunctionDef)}


def test_what_runs_on_the_device_is_recorded_word_for_word_as_the_notebook_has_it():
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in stored if cell["cell_type"] == "code" and "setup" not in cell["metadata"].get("tags", [])]
    shown = functions_of("\n".join("".join(cell["source"]) for cell in code))
    room = ROOT / "notebooks" / "support" / "n13"
    ours = {}
    for file in ("on_device.py", "exhibits.py"):
        ours |= functions_of((room / file).read_text(encoding="utf-8"))
    recorded = recordings.load("early_read")["results"].keys() - {"numbers_without"}  # imported from the room
    assert len(recorded) == 11
    assert {name: shown[name] for name in recorded} == {name: ours[name] for name in recorded}


def test_the_recording_says_that_no_gpu_made_it_and_holds_both_positions_of_the_switch():
    record = recordings.load("early_read")
    assert record["provenance"]["device"] == recordings.SIMULATED
    assert "gpu" not in record["provenance"]
    results = record["results"]["early_read"]
    assert results["False, 0.5"] == 0
    assert results["True, 0.5"] == 1_000_000
    assert set(results["200 times True, 0"]) == {1_000_000}
    hurried = results["200 times False, 0"]
    assert len(hurried) == 200
    assert {0, 1_000_000} < set(hurried) <= set(range(1_000_001)), "some lie between"


def test_the_times_that_the_text_proposes_are_recorded_for_each_loop():
    results = recordings.load("early_read")["results"]["epoch"]
    text = NOTEBOOK.read_text(encoding="utf-8")
    copy, load = (float(re.search(rf"Set `{name}` to ([\d.]+)", text).group(1)) for name in ("copy", "load"))
    for loop, drops in product(on_device.LOOPS, (False, True)):
        for times in ((0.01, 0.02, drops, 0), (copy, 0.02, drops, 0), (0.01, 0.02, drops, load)):
            assert key_of(loop, *times) in results


JUDGED = """
from functools import partial
from support.devices import start_device
from support.n13 import checks
from support.n13.device_judge import wrong_numbers
from support.n13.streaming import stream_chunks

def missing(edge):
    return partial(stream_chunks, kept="123405".replace(edge, ""))

without = {edge: checks.check_streamed(missing(edge)).message for edge in "012345"}
device = start_device("early_read")
assert wrong_numbers(device, stream_chunks) == ""
assert checks.check_streamed(stream_chunks)
for edge in "012345":
    verdict = checks.check_streamed(missing(edge))
    assert verdict.status == "wrong"
    assert verdict.message.startswith(without[edge]), verdict.message
    print(edge, verdict.message[len(without[edge]):])

def raises(gpu, stage, chunks, results):
    raise ValueError("mine")

print(checks.check_streamed(raises).message)
"""


@pytest.mark.costly
def test_exercise_4_is_judged_by_order_without_a_device_and_with_one_each_missing_wait_is_seen_as_a_number_too():
    *edges, raised = python(JUDGED).splitlines()[1:]
    assert [line[0] for line in edges] == [*"012345"]
    for line in edges:
        told = r"With 4 chunks and (late kernels|slow copies), on .*, they came back as .*; right is 2 3 4 5 "
        assert re.search(told + r"\(chunk i holds i \+ 1, and this stage adds 1\)\.", line)
        explained = line.endswith(" A chunk with nan was read before anybody wrote it.")
        assert ("nan" in line.split("right is")[0]) == explained
    assert raised.count("ValueError: mine") == 1


def test_on_a_real_gpu_a_loop_runs_with_late_kernels_and_nothing_is_called_slow_copies(monkeypatch):
    asked = []

    def right(device, streamed, late):
        asked.append(late)
        return [2.0, 3.0, 4.0, 5.0]

    monkeypatch.setattr(device_judge, "numbers_of", right)
    assert device_judge.wrong_numbers(RealStreams(torch.device("cuda")), None) == ""
    assert asked == [device_judge.KERNEL]


def test_no_module_of_a_room_starts_a_device_when_it_is_imported():
    assert device_judge.started() is None
