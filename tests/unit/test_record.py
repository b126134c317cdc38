"""`python -m lib.record`: what it would record, what it says without a GPU, and what a recording must hold."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from lib import record, recorded

ROOT = Path(__file__).resolve().parents[2]
EVERY = {recording.name: recording for recording in record.RECORDINGS}


@pytest.mark.parametrize("name", EVERY)
def test_each_recording_has_a_command_and_the_notebook_that_shows_it(name):
    recording = EVERY[name]
    assert find_spec(recording.module), recording.module
    module = (ROOT / (recording.module.replace(".", "/") + ".py")).read_text()
    assert f'"{name}"' in module, "the module writes this recording"
    assert list((ROOT / "notebooks").glob(f"{recording.notebook}_*.ipynb"))


@pytest.mark.parametrize("name", EVERY)
def test_whatever_is_recorded_names_its_gpu_and_holds_its_data(name):
    try:
        found = recorded.load(name)
    except FileNotFoundError:
        pytest.skip(f"no recording {name} yet: nobody ran python -m lib.record on a GPU")
    record.check(found, EVERY[name])


@pytest.mark.parametrize(
    "file", sorted((ROOT / "notebooks" / "recorded").glob("*.json")), ids=lambda f: f.stem
)
def test_every_file_has_a_whole_provenance(file):
    assert recorded.provenance(recorded.load(file.stem))


def test_no_two_have_one_name_or_one_command():
    assert len(EVERY) == len({recording.command for recording in record.RECORDINGS}) == len(record.RECORDINGS)


def good(recording):
    origin = dict.fromkeys(record.GPU_PROVENANCE, "known") | {"command": recording.command}
    values = {list: [1], dict: {"1": [1]}, None: 1.0}
    return {"provenance": origin, **{key: values[record.TYPES.get(key)] for key in recording.keys}}


def test_a_whole_recording_passes_and_each_gap_is_named():
    recording = EVERY["stream_chunks"]
    record.check(good(recording), recording)
    for name in record.GPU_PROVENANCE:
        bad = good(recording)
        bad["provenance"][name] = " "
        with pytest.raises(ValueError, match=name):
            record.check(bad, recording)
    for key in recording.keys:
        with pytest.raises(ValueError, match=f"has no {key}"):
            record.check({**good(recording), key: []}, recording)
        with pytest.raises(ValueError, match=f"{key} of stream_chunks is a str"):
            record.check({**good(recording), key: "text"}, recording)
    bad = good(recording)
    bad["provenance"]["gpu"] = 5
    with pytest.raises(ValueError, match="lacks gpu"):
        record.check(bad, recording)
    bad = good(recording)
    bad["provenance"]["command"] = "by hand"
    with pytest.raises(ValueError, match="record it again"):
        record.check(bad, recording)
    with pytest.raises(ValueError, match="provenance"):
        record.check({}, recording)


def test_a_recording_of_a_gpu_gets_driver_and_cuda_by_itself(tmp_path):
    file = recorded.save("probe", {"rows": [1]}, command="python -m probe", folder=tmp_path, gpu="some GPU")
    origin = json.loads(file.read_text())["provenance"]
    assert all(origin[name] for name in record.GPU_PROVENANCE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_it_says_so_and_fails(capsys):
    assert record.main([]) == 1
    assert "no CUDA device" in capsys.readouterr().out


def test_the_list_measures_nothing(capsys):
    assert record.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(EVERY)
    assert all("python -m lib." in line for line in lines)
    assert record.main(["--list", "bandwidth"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_an_unknown_name_is_told(capsys):
    with pytest.raises(SystemExit):
        record.main(["bandwith"])
    assert "there is no recording 'bandwith'" in capsys.readouterr().err


@pytest.fixture
def pretend(monkeypatch):
    """A machine with a GPU, on which each command ends as the test wants."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def ends(how):
        def run(command, **kwargs):
            if how == "late":
                raise subprocess.TimeoutExpired(command, 1)
            return subprocess.CompletedProcess(
                command, how == "error", "", "Traceback …\nRuntimeError: broken"
            )

        monkeypatch.setattr(record.subprocess, "run", run)

    return ends


@pytest.mark.parametrize(
    "how, says",
    [("late", "took more than"), ("error", "failed: RuntimeError: broken"), ("nothing", "failed: no rec")],
)
def test_what_fails_does_not_stop_the_others(pretend, capsys, monkeypatch, how, says):
    monkeypatch.setattr(
        recorded, "load", lambda name: (_ for _ in ()).throw(FileNotFoundError("no recording"))
    )
    pretend(how)
    assert record.main(["bandwidth", "preprocess"]) == 1
    out = capsys.readouterr().out
    assert out.count(says) == 2 and "0 of 2 recorded" in out


def test_what_succeeds_is_checked_and_counted(pretend, capsys, monkeypatch):
    monkeypatch.setattr(recorded, "load", lambda name: good(EVERY[name]))
    pretend("well")
    assert record.main([]) == 0
    assert f"{len(EVERY)} of {len(EVERY)} recorded" in capsys.readouterr().out


def test_as_a_command_it_needs_no_jupyter():
    code = (
        "import sys, lib.record as r; r.main(['--list']); print({'IPython', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip().endswith("set()")


def test_all_together_end_within_eight_minutes(pretend, capsys, monkeypatch):
    now, limits = [0.0], []

    def run(command, timeout, **kwargs):
        limits.append(timeout)
        now[0] += timeout
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(record.subprocess, "run", run)
    monkeypatch.setattr(record.time, "monotonic", lambda: now[0])
    assert record.main([]) == 1
    assert sum(limits) < 8 * 60
    assert "no time was left" in capsys.readouterr().out
