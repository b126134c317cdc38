"""Recordings: none is shown without provenance; `python -m support.recordings` makes whole ones or says why not."""

import inspect
import json
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from lib.timeline import Span, Trace
from support import recordings

ROOT = Path(__file__).resolve().parents[2]
FILES = [file.stem for file in sorted((ROOT / "notebooks" / "recorded").glob("*.json"))]
EVERY = {recording.name: recording for recording in recordings.RECORDINGS}
GPU_PROVENANCE = (*recordings.PROVENANCE, "gpu", "driver", "cuda")
PROBES = {  # recordings that no notebook has: what is said of all holds whatever is left to record
    f"probe_{k}": recordings.Recording(f"probe_{k}", "07", "support.chunk_speed:gpu_speed", "rows") for k in range(5)
}
KNOWN = dict.fromkeys(GPU_PROVENANCE, "known") | {"date": "2026-01-01"}


@pytest.fixture
def probes(monkeypatch):
    """Let the list of recordings be the probes, and the one that needs a package instead of a GPU."""
    listed = {**PROBES, "torchgpipe_order": EVERY["torchgpipe_order"]}
    monkeypatch.setattr(recordings, "RECORDINGS", tuple(listed.values()))
    monkeypatch.setattr(recordings, "_KNOWN", listed)
    return listed


def nothing_recorded(name):
    raise FileNotFoundError("no recording")


@pytest.fixture
def save(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def save(data, command="python -m probe", **more):
        return recordings.save_recording("probe", data, command=command, folder=tmp_path / "recorded", **more)

    return save


def test_what_is_saved_is_loaded_and_lines_under_a_table_name_machine_date_versions_and_command(save):
    save({"rows": [{"who": "ours", "seconds": 0.5}]})
    record = recordings.load("probe")
    assert record["rows"] == [{"who": "ours", "seconds": 0.5}]
    expected = {"torch": torch.__version__, "numpy": version("numpy"), "command": "python -m probe"}
    assert expected.items() <= record["provenance"].items()
    save({}, gpu="GPU of the test", driver="1.2")
    record = recordings.load("probe")
    lines = recordings.provenance(record)
    assert lines.count("\n") == 1
    assert "on GPU of the test, 1.2, " in lines
    assert all(record["provenance"][name] in lines for name in recordings.PROVENANCE)


GAPS = [({"provenance": KNOWN | {name: " "}}, f"lacks {name}$") for name in recordings.PROVENANCE]


@pytest.mark.parametrize("content, says", [*GAPS, *((x, "no provenance") for x in ([], {}, {"provenance": "known"}))])
def test_a_recording_with_a_gap_in_its_provenance_is_refused(save, content, says):
    save({}).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=says):
        recordings.load("probe")


@pytest.mark.parametrize("name", ["../secret", "samplers.json", "", "a/b"])
def test_a_name_is_a_bare_name_and_no_path(name):
    with pytest.raises(ValueError, match="bare name"):
        recordings.load(name)
    with pytest.raises(FileNotFoundError, match="nobody_made_this"):
        recordings.load("nobody_made_this")


@pytest.mark.parametrize("data", [{"seconds": float("nan")}, {"seconds": object()}])
def test_a_recording_that_fails_leaves_the_old_one_and_no_rubbish(save, data):
    file = save({"seconds": 1.0})
    with pytest.raises((TypeError, ValueError)):
        save(data)
    assert recordings.load("probe")["seconds"] == 1.0
    assert list(file.parent.iterdir()) == [file]


def test_data_cannot_bring_its_own_provenance_and_a_measurement_names_its_command(save):
    with pytest.raises(ValueError, match="must not hold a 'provenance'"):
        save({"provenance": {}})
    with pytest.raises(ValueError, match="lacks command"):
        save({}, command="")


@pytest.mark.parametrize("gpu, data, says", [
    (True, {"rows": ["measured"]}, "Measured here, on a GPU"),
    (False, {"rows": ["recorded"], "provenance": {}}, "Recorded"),
    (False, None, "No GPU here, and no recording yet"),
])  # fmt: skip
def test_what_is_best_is_shown_and_a_sentence_says_what_it_is(monkeypatch, gpu, data, says):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(recordings, "load", (lambda name: data) if data else nothing_recorded)
    monkeypatch.setattr(recordings, "provenance", lambda record: "Recorded")
    assert recordings.measured_or_recorded("probe", lambda: {"rows": ["measured"]}) == (data, says)
    assert recordings.origin_of(data) == ("Recorded" if says == "Recorded" else None)
    best = recordings.rows_and_source("probe", lambda: data, lambda: ["predicted"])
    prediction = (["predicted"], "Predicted, not measured: no GPU here, and no recording yet")
    assert best == ((data["rows"], says) if data else prediction)


def test_a_trace_survives_json():
    trace = Trace([Span("a", "x", 0.0, 0.1, "copy"), Span("b", "y", 0.1, 0.3)], ["b", "a", "idle"])
    assert recordings.as_trace(json.loads(json.dumps(recordings.as_rows(trace))), trace.lanes) == trace


@pytest.mark.parametrize("name", EVERY)
def test_each_recording_has_a_function_that_measures_it_and_a_notebook_that_shows_it(name):
    module, _, function = EVERY[name].measures.partition(":")
    inspect.signature(getattr(import_module(module), function)).bind()  # it needs no argument
    assert f'"{name}"' in inspect.getsource(import_module(module)), "the module finds this recording"
    assert list((ROOT / "notebooks").glob(f"{EVERY[name].notebook}_*.ipynb"))


def test_no_two_have_one_name_or_one_function():
    assert len(EVERY) == len({r.measures for r in EVERY.values()}) == len(recordings.RECORDINGS)


@pytest.mark.parametrize("name", FILES)
def test_every_file_has_a_whole_provenance_and_its_data(name):
    assert recordings.provenance(recordings.load(name))
    if name in EVERY:
        recordings.check_recording(recordings.load(name), EVERY[name])


def good(recording, **change):
    values = {list: [1], dict: {"1": [1]}, None: 1.0}
    data = {key: values[recordings.TYPES.get(key)] for key in recording.keys.split()}
    return {"provenance": KNOWN | {"command": recording.command} | change, **data}


def test_a_whole_recording_passes_and_each_gap_is_named():
    recording = PROBES["probe_0"]
    theirs = EVERY["torchgpipe_order"]
    recordings.check_recording(good(recording), recording)
    recordings.check_recording(good(theirs, torchgpipe="0.0.7", gpu=""), theirs)  # a package instead of a GPU
    faults = [(good(recording, **{name: " "}), f"lacks {name}") for name in GPU_PROVENANCE]
    faults += [(good(recording, gpu=5), "lacks gpu"), (good(recording, command="by hand"), "record it again")]
    for key in ("rows",):
        faults.append((good(recording) | {key: []}, f"has no {key}"))
        faults.append((good(recording) | {key: "text"}, f"{key} of probe_0 is a str"))
    for record, says in [*faults, ({}, "provenance")]:
        with pytest.raises(ValueError, match=says):
            recordings.check_recording(record, recording)
    with pytest.raises(ValueError, match="lacks torchgpipe"):
        recordings.check_recording(good(theirs), theirs)


def test_a_recording_is_made_by_its_function_with_gpu_driver_and_cuda(tmp_path, monkeypatch, probes):
    monkeypatch.setattr(recordings, "_REPOSITORY", tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
    monkeypatch.setattr("support.chunk_speed.gpu_speed", lambda: {"rows": [1]})
    record = json.loads(recordings.make_recording("probe_0").read_text())
    recordings.check_recording(record, PROBES["probe_0"])
    assert record["rows"] == [1]
    assert record["provenance"]["gpu"] == "some GPU"


def test_what_a_simulated_device_gave_is_made_with_every_gpu_hidden_and_says_that_it_is_none(monkeypatch):
    simulated = EVERY["early_read"]
    assert not simulated.needs_gpu
    assert simulated.more_provenance == ("device",)
    assert recordings._environment(simulated)["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert recordings._environment(PROBES["probe_0"])["CUDA_VISIBLE_DEVICES"] == "1"
    record = recordings.load("early_read")
    assert "on a simulated device, no GPU, " in recordings.provenance(record)
    assert "gpu" not in record["provenance"]
    without = {**record, "provenance": {**record["provenance"], "device": ""}}
    with pytest.raises(ValueError, match="lacks device"):
        recordings.check_recording(without, simulated)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_it_says_so_and_fails(capsys, probes):
    assert recordings.main([]) == recordings.main(["torchgpipe_order", "probe_0"]) == 1
    assert capsys.readouterr().out.count("no CUDA device") == 2


def test_the_list_measures_nothing_and_needs_no_jupyter(capsys):
    code = (
        "import sys, support.recordings as r; r.main(['--list']); print({'IPython', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT / "notebooks", check=True
    )
    *lines, loaded = done.stdout.splitlines()
    assert loaded == "set()"
    assert [line.split()[0] for line in lines] == list(EVERY)
    assert all(line.endswith(f"python -m support.recordings {line.split()[0]}") for line in lines)
    assert recordings.main(["--list", "torchgpipe_order"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    with pytest.raises(SystemExit):
        recordings.main(["bandwith"])  # codespell:ignore
    assert "there is no recording 'bandwith'" in capsys.readouterr().err


FAILED = {"late": "took more than 180 s", "error": "failed: RuntimeError: broken", "nothing": "failed: no rec"}


@pytest.mark.parametrize("ends", [*FAILED, "well"])
def test_what_fails_does_not_stop_the_others_and_all_end_within_eight_minutes(monkeypatch, capsys, probes, ends):
    now = [0.0]
    limits = []

    def run(command, timeout, **kwargs):
        limits.append(timeout)
        if ends == "late":
            now[0] += timeout
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, ends == "error", "", "Traceback …\nRuntimeError: broken")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(recordings.subprocess, "run", run)
    monkeypatch.setattr(recordings.time, "monotonic", lambda: now[0])
    well = ends == "well"
    found = (lambda name: good(probes[name])) if well else nothing_recorded
    monkeypatch.setattr(recordings, "load", found)
    assert recordings.main(["probe_0", "probe_1"]) == (not well)
    out = capsys.readouterr().out
    assert f"{2 * well} of 2 recorded" in out
    assert out.count(FAILED.get(ends, "2026-01-01, known")) == 2
    assert recordings.main([]) == (not well)
    out = capsys.readouterr().out
    assert f"{5 * well} of 5 recorded" in out
    assert out.count("not tried: no time was left") == 2 * (ends == "late")
    assert limits == [180] * 2 + ([180, 180, 110] if ends == "late" else [180] * 5)
