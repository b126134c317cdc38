"""Measured here, else recorded, else predicted: numbers of machines that a reader may not have.

A recording is notebooks/recorded/NAME.json. It says on what machine, when, with which versions and by which command it
was made; without that it is refused. RECORDINGS lists those that need a GPU, a package that is no requirement, or a C++
compiler for the simulated device:

python -m support.recordings [NAME …]     make some, or all for which a GPU is enough: under 8 minutes, no Jupyter
python -m support.recordings --list       what there is, and what is there

Each has a process of its own: what fails does not stop the others. Exit code 1 if one failed, or if there is no GPU.

What a Recorder takes down, spans on a clock, is something else: lib.timeline and lib.runtime.recording.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from lib.files import whole_or_not_at_all
from lib.machine import machine_card
from lib.timeline import Span, Trace

Record = dict[str, Any]
MODULE = "support.recordings"
PROVENANCE = ("machine", "python", "torch", "numpy", "date", "command", "commit")
"""What every recording says about itself, each a str that is not empty; a GPU's adds "gpu", "driver" and "cuda",
a simulated device's adds "device", which says that it is none."""
SIMULATED = "a simulated device, no GPU"

TYPES = {
    "rows": list,
    "size": list,
    "rows_per_second": list,
    "alone": dict,
    "traces": dict,
    "orders": dict,
    "results": dict,
}
LIMIT = 180  # seconds for one of them,
BUDGET = 470  # and for all
_REPOSITORY = Path(__file__).resolve().parents[2]


class Recording(NamedTuple):
    """Name a recording, the notebook that shows it, "module:function" that measures it, and the keys of its data.

    A key is a number, unless TYPES says more. package: what it needs instead of a GPU. simulated: it is made on a
    simulated device, and never on a GPU.
    """

    name: str
    notebook: str
    measures: str
    keys: str
    package: str = ""
    simulated: bool = False

    @property
    def needs_gpu(self) -> bool:
        """Whether it can only be made on a GPU."""
        return not self.package and not self.simulated

    @property
    def more_provenance(self) -> tuple[str, ...]:
        """What it says about itself beside PROVENANCE."""
        if self.simulated:
            return ("device",)
        return (self.package,) if self.package else ("gpu", "driver", "cuda")

    @property
    def command(self) -> str:
        """What a reader types."""
        return f"python -m {MODULE} {self.name}"


RECORDINGS = (
    Recording("chunk_speed_gpu", "07", "support.chunk_speed:gpu_speed", "size rows_per_second"),
    Recording("torchgpipe_order", "11", "support.n11.runs:run_both", "orders", "torchgpipe"),
    Recording("copy_seconds", "01", "support.n01.copies:record_copies", "results", simulated=True),
    Recording("two_streams", "09", "support.n09.on_device:record_two_streams", "results", simulated=True),
    Recording("memory_limit", "10", "support.n10.on_device:record_memory", "results", simulated=True),
    Recording("two_devices", "11", "support.n11.on_device:record_two_devices", "results", simulated=True),
    Recording("four_devices", "12", "support.n12.on_device:record_four_devices", "results", simulated=True),
    Recording("early_read", "13", "support.n13.on_device:record_streams", "results", simulated=True),
    Recording("late_messages", "14", "support.n14.on_device:record_late_messages", "results", simulated=True),
)
_KNOWN = {recording.name: recording for recording in RECORDINGS}


def load(name: str) -> Record:
    """Return the recording `name`: its data, and its provenance under "provenance".

    It is looked for in the repository's notebooks/recorded, then below the current directory. Raises FileNotFoundError,
    and ValueError for a name that is a path, a file that is no JSON object, or one whose provenance is not complete.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(f"name a recording by its bare name, such as 'samplers_cpu', not {name!r}")
    for folder in (_REPOSITORY / "notebooks", Path.cwd(), Path.cwd() / "notebooks"):
        file = folder / "recorded" / f"{name}.json"
        if file.is_file():
            record: Record = json.loads(file.read_text(encoding="utf-8"))
            _check_provenance(record, file.name, PROVENANCE)
            return record
    raise FileNotFoundError(
        f"no recording {name}.json in notebooks/recorded; run the benchmark that records it"
    )


def module_of(name: str) -> ModuleType:
    """Return the module that measures the recording `name`."""
    module, _, _ = _KNOWN[name].measures.partition(":")
    return import_module(module)


def save_recording(name: str, data: Record, *, command: str, folder: Path | None = None, **more: str) -> Path:
    """Write a recording with the provenance of this process, whole or not at all, and return its file.

    command: what a reader types to measure again. more: further provenance, such as gpu="…". Raises ValueError
    if `data` has a provenance of its own or one field would be empty.
    """
    if "provenance" in data:
        raise ValueError("data must not hold a 'provenance': save() makes it")
    card = machine_card()
    today = datetime.now(UTC).date().isoformat()
    machine = f"{card.cpu}, {card.cores_usable} cores, {card.system}"
    values = (machine, card.python, card.torch, version("numpy"), today, command, _commit())
    origin: dict[str, str] = {}
    if "gpu" in more:
        origin = {"driver": card.driver or "unknown", "cuda": card.cuda or "none"}
    origin |= dict(zip(PROVENANCE, values, strict=True)) | more
    record = {"provenance": origin, **data}
    _check_provenance(record, name, PROVENANCE)
    file = (folder or _REPOSITORY / "notebooks" / "recorded") / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_or_not_at_all(file) as unfinished:
        unfinished.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return file


def provenance(record: Mapping[str, Any]) -> str:
    """Say in two lines where a recording comes from; they stand under every recorded table or figure."""
    origin = record["provenance"]
    on = ", ".join(origin[name] for name in ("gpu", "device", "driver", "machine") if name in origin)
    lines = "Recorded {date} on {on}\n(Python {python}, torch {torch}, numpy {numpy}, commit {commit}) by {command}"
    return lines.format(on=on, **origin)


def check_recording(record: Record, recording: Recording) -> None:
    """Raise ValueError unless a recording has a whole provenance, was made by its command, and has its data."""
    name = recording.name
    _check_provenance(record, name, (*PROVENANCE, *recording.more_provenance))
    made_by = record["provenance"]["command"]
    if made_by != recording.command:
        raise ValueError(f"{name} was made by {made_by!r}, not by {recording.command!r}: record it again")
    missing = [key for key in recording.keys.split() if not record.get(key)]
    if missing:
        raise ValueError(f"{name} has no {', '.join(missing)}: record it again")
    for key in recording.keys.split():
        if not isinstance(record[key], TYPES.get(key, (int, float))):
            raise ValueError(f"{key} of {name} is a {type(record[key]).__name__}: record it again")


def _check_provenance(record: object, where: str, names: Sequence[str]) -> None:
    origin = record.get("provenance") if isinstance(record, dict) else None
    if not isinstance(origin, dict):
        raise ValueError(f"{where} has no provenance: a number without it is not shown")
    gaps = [name for name in names if not _says_something(origin.get(name))]
    if gaps:
        raise ValueError(f"the provenance of {where} lacks {', '.join(gaps)}")
    date.fromisoformat(origin["date"])


def _says_something(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _commit() -> str:
    """Return the commit that the measured code is, marked where files differ from it."""
    ask = ("git", "-C", str(_REPOSITORY), "describe", "--always", "--dirty=, changed since")
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none yet"


def need_gpu(what: str) -> None:
    """Raise RuntimeError where torch sees no GPU."""
    if not torch.cuda.is_available():
        raise RuntimeError(f"{what} needs a CUDA device; without one, show the recording or the prediction")


def measured_or_recorded(name: str, measure: Callable[[], Record]) -> tuple[Record | None, str]:
    """Return data and a sentence that says where they come from; None where there is neither GPU nor recording."""
    if torch.cuda.is_available():
        return measure(), f"Measured here, on {torch.cuda.get_device_name()}"
    try:
        record = load(name)
    except FileNotFoundError:
        return None, "No GPU here, and no recording yet"
    return record, provenance(record)


def rows_and_source(
    name: str, measure: Callable[[], Record], predict: Callable[[], list[Record]]
) -> tuple[list[Record], str]:
    """Return the best rows there are, measured, recorded or predicted, and a sentence that says which."""
    data, source = measured_or_recorded(name, measure)
    if data is None:
        return predict(), f"Predicted, not measured: {source[0].lower()}{source[1:]}"
    return data["rows"], source


def origin_of(data: Record | None) -> str | None:
    """Return the provenance of a recording; None for what was measured here, and for nothing."""
    if data and "provenance" in data:
        return provenance(data)
    return None


def as_rows(trace: Trace) -> list[list[Any]]:
    """Return the spans as lists, for JSON."""
    return [[span.lane, span.label, span.start, span.end, span.kind] for span in trace]


def as_trace(rows: Iterable[Sequence[Any]], lanes: Iterable[str]) -> Trace:
    """Return the trace of such lists."""
    return Trace((Span(*row) for row in rows), lanes)


def make_recording(name: str) -> Path:
    """Measure in this process, however long it takes, and write the recording."""
    recording = _KNOWN[name]
    _, _, function = recording.measures.partition(":")
    data = getattr(module_of(name), function)()
    needed: Any
    if recording.simulated:
        needed = {"device": SIMULATED}
    elif recording.package:
        needed = {recording.package: version(recording.package)}
    else:
        needed = {"gpu": torch.cuda.get_device_name()}
    return save_recording(name, data, command=recording.command, **needed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, or list; return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="Make the GPU recordings.")
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--list", action="store_true", help="show what there is, measure nothing")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in _KNOWN]
    if unknown:
        parser.error(f"there is no recording {unknown[0]!r}; there are {', '.join(_KNOWN)}")
    chosen = [_KNOWN[name] for name in asked.names or _KNOWN]
    if asked.list:
        for recording in chosen:
            _, state = _state(recording)
            print(f"{recording.name:<16} notebook {recording.notebook}  {state:<24} {recording.command}")
        return 0
    if not asked.names:  # what needs something else than a GPU is made when it is asked for by name
        chosen = [recording for recording in chosen if recording.needs_gpu]
    if not torch.cuda.is_available() and (not chosen or any(recording.needs_gpu for recording in chosen)):
        print("torch sees no CUDA device here, so there is nothing to record; the notebooks run without.")
        return 1
    start = time.monotonic()
    made = 0
    for recording in chosen:
        begun = time.monotonic()
        whole, state = _make_apart(recording, min(LIMIT, BUDGET - (begun - start)))
        made += whole
        print(f"{recording.name:<16} {time.monotonic() - begun:5.0f} s  {state}", flush=True)
    print(f"{made} of {len(chosen)} recorded in {time.monotonic() - start:.0f} s")
    return int(made < len(chosen))


def _environment(recording: Recording) -> dict[str, str]:
    """Let a new process find lib and support, wherever this one was started; what is simulated sees no GPU."""
    folders = [str(_REPOSITORY), str(_REPOSITORY / "notebooks"), os.environ.get("PYTHONPATH", "")]
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if recording.simulated else {}
    return {**os.environ, **hidden, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def _make_apart(recording: Recording, limit: float) -> tuple[bool, str]:
    """Make it in a process of its own; return as _state does."""
    if limit <= 0:
        return False, "not tried: no time was left"
    command = [
        sys.executable,
        "-c",
        f"from {MODULE} import make_recording; make_recording({recording.name!r})",
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit,
            cwd=_REPOSITORY,
            env=_environment(recording),
        )
    except subprocess.TimeoutExpired:
        return False, f"took more than {limit:.0f} s"
    if done.returncode:
        last_line = done.stderr.strip().split("\n")[-1]
        return False, f"failed: {last_line or f'exit code {done.returncode}'}"
    whole, state = _state(recording)
    if not whole:
        state = f"failed: {state}"
    return whole, state


def _state(recording: Recording) -> tuple[bool, str]:
    """Return whether it is recorded, and when and on what, or what is wrong."""
    try:
        record = load(recording.name)
        check_recording(record, recording)
    except FileNotFoundError:
        return False, "no recording yet"
    except ValueError as error:
        return False, str(error)
    origin = record["provenance"]
    return True, f"{origin['date']}, {origin.get('gpu') or origin.get('device') or 'CPU'}"


if __name__ == "__main__":
    sys.exit(main())
