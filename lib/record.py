"""Make all GPU recordings of the notebooks: `python -m lib.record`, on a machine with a CUDA GPU; no Jupyter is needed.

python -m lib.record              all of them, one after the other: under 8 minutes
python -m lib.record NAME …       some of them
python -m lib.record --list       what there is, and what is there

Each is a command of its own, in a process of its own: what fails does not stop the others. Exit code 1 if something
failed, or if there is no GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lib import recorded

GPU_PROVENANCE = (*recorded.PROVENANCE, "gpu", "driver", "cuda")
TYPES = {"rows": list, "size": list, "rows_per_second": list, "alone": dict, "traces": dict}  # else a number
LIMIT, BUDGET = 180, 470  # seconds for one of them, and for all


class Recording(NamedTuple):
    """Name a recording, the notebook that shows it, the command that makes it, and the keys of its data."""

    name: str
    notebook: str
    module: str
    keys: tuple[str, ...]
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What a reader types."""
        return " ".join(("python -m", self.module, *self.arguments))


RECORDINGS = (
    Recording("pinned_copies", "01", "lib.data.copies", ("rows",)),
    Recording(
        "chunk_speed_gpu", "07", "lib.experiments.chunk_speed", ("size", "rows_per_second"), ("--record",)
    ),
    Recording("two_streams", "09", "lib.experiments.two_streams", ("traces",)),
    Recording("checkpoint_gpu", "10", "lib.experiments.recompute_gpu", ("rows",)),
    Recording("copy_streams", "11", "lib.experiments.copy_streams", ("traces",)),
    Recording("gpipe_gpu", "12", "lib.experiments.gpipe_gpu", ("rows",)),
    Recording("bandwidth", "13", "lib.experiments.bandwidth", ("rows",)),
    Recording("stream_chunks", "13", "lib.experiments.stream_chunks", ("alone", "rows", "traces")),
    Recording("stream_prefetch", "13", "lib.experiments.stream_prefetch", ("rows", "traces")),
    Recording("preprocess", "13", "lib.experiments.preprocess", ("cpu", "gpu", "copy_bytes", "copy_floats")),
    Recording("executor_gpu", "14", "lib.experiments.executor_gpu", ("rows",)),
)


def check(record: Mapping[str, Any], recording: Recording) -> None:
    """Raise ValueError unless a recording has its data, and names GPU, driver, CUDA, torch, date, command, commit."""
    origin = record.get("provenance")
    origin = origin if isinstance(origin, Mapping) else {}
    gaps = [
        name for name in GPU_PROVENANCE if not (isinstance(origin.get(name), str) and origin[name].strip())
    ]
    if gaps:
        raise ValueError(f"the provenance of {recording.name} lacks {', '.join(gaps)}")
    if origin["command"] != recording.command:
        raise ValueError(
            f"{recording.name} was made by {origin['command']!r}, not by {recording.command!r}: record it again"
        )
    if missing := [key for key in recording.keys if not record.get(key)]:
        raise ValueError(f"{recording.name} has no {', '.join(missing)}: record it again")
    if wrong := [key for key in recording.keys if not isinstance(record[key], TYPES.get(key, (int, float)))]:
        raise ValueError(
            f"{wrong[0]} of {recording.name} is a {type(record[wrong[0]]).__name__}: record it again"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, or list; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lib.record", description="Make the GPU recordings.")
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--list", action="store_true", help="show what there is, measure nothing")
    asked = parser.parse_args(arguments)
    known = {recording.name: recording for recording in RECORDINGS}
    if unknown := [name for name in asked.names if name not in known]:
        parser.error(f"there is no recording {unknown[0]!r}; there are {', '.join(known)}")
    chosen = [known[name] for name in asked.names] or list(RECORDINGS)
    if asked.list:
        print("\n".join(f"{r.name:<16} notebook {r.notebook}  {_state(r):<24} {r.command}" for r in chosen))
        return 0
    import torch

    if not torch.cuda.is_available():
        print("torch sees no CUDA device here, so there is nothing to record; the notebooks run without.")
        return 1
    start, failed = time.monotonic(), 0
    for recording in chosen:
        begun = time.monotonic()
        left = BUDGET - (begun - start)
        problem = _make(recording, min(LIMIT, left)) if left > 0 else "not tried: no time was left"
        failed += bool(problem)
        print(
            f"{recording.name:<16} {time.monotonic() - begun:5.0f} s  {problem or _state(recording)}",
            flush=True,
        )
    print(f"{len(chosen) - failed} of {len(chosen)} recorded in {time.monotonic() - start:.0f} s")
    return int(failed > 0)


def _make(recording: Recording, limit: float) -> str:
    """Run one command, and return what went wrong, or ""."""
    command = [sys.executable, "-m", recording.module, *recording.arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit,
            cwd=Path(__file__).resolve().parents[1],
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"took more than {limit:.0f} s"
    if done.returncode:
        return "failed: " + (done.stderr.strip().split("\n")[-1] or f"exit code {done.returncode}")
    try:
        check(recorded.load(recording.name), recording)
    except (FileNotFoundError, ValueError) as error:
        return f"failed: {error}"
    return ""


def _state(recording: Recording) -> str:
    """Say when and on what it was recorded, or that it was not."""
    try:
        record = recorded.load(recording.name)
        check(record, recording)
    except FileNotFoundError:
        return "no recording yet"
    except ValueError as error:
        return str(error)
    origin = record["provenance"]
    return f"{origin['date']}, {origin['gpu']}"


if __name__ == "__main__":
    sys.exit(main())
