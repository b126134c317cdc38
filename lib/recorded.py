"""Measurements that were made before, with their provenance: notebooks/recorded/NAME.json.

A notebook shows them where the reader's machine can't measure (no GPU) or where measuring takes longer than reading. A
recording says on what machine, when, with which versions and by which command it was made; without that it is refused.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

PROVENANCE = ("machine", "python", "torch", "numpy", "date", "command", "commit")
"""What every recording says about itself, each a str that is not empty; a GPU's adds "gpu", "driver" and "cuda"."""

_REPOSITORY = Path(__file__).resolve().parents[1]


def load(name: str) -> dict[str, Any]:
    """Return the recording `name`: its data, and its provenance under "provenance".

    It is looked for in the repository's notebooks/recorded, then below the current directory. Raises FileNotFoundError,
    and ValueError for a name that is a path, a file that is no JSON object, or one whose provenance is not complete.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(f"name a recording by its bare name, such as 'samplers_cpu', not {name!r}")
    here = Path.cwd()
    folders = (_REPOSITORY / "notebooks" / "recorded", here / "recorded", here / "notebooks" / "recorded")
    found = next((file for folder in folders if (file := folder / f"{name}.json").is_file()), None)
    if found is None:
        raise FileNotFoundError(
            f"no recording {name}.json in notebooks/recorded; run the benchmark that records it"
        )
    record = json.loads(found.read_text(encoding="utf-8"))
    if not isinstance(record, dict):
        raise ValueError(f"{name}.json holds a {type(record).__name__}, not an object with a provenance")
    _check(record.get("provenance"), f"{name}.json")
    return record


def save(
    name: str, data: Mapping[str, Any], *, command: str, folder: str | Path | None = None, **more: str
) -> Path:
    """Write a recording with the provenance of this process, whole or not at all, and return its file.

    command: what a reader types to measure again. more: further provenance, such as gpu="…". Raises ValueError
    if `data` has a provenance of its own or one field would be empty.
    """
    if "provenance" in data:
        raise ValueError("data must not hold a 'provenance': save() makes it")
    record = {"provenance": {**_provenance(command, gpu="gpu" in more), **more}, **data}
    _check(record["provenance"], name)
    folder = _REPOSITORY / "notebooks" / "recorded" if folder is None else Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(prefix=f".{name}-", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1, allow_nan=False)
            file.write("\n")
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, folder / f"{name}.json")
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return folder / f"{name}.json"


def provenance(record: Mapping[str, Any]) -> str:
    """Say in two lines where a recording comes from; they stand under every recorded table or figure."""
    origin = record["provenance"]
    on = ", ".join(origin[name] for name in ("gpu", "driver", "machine") if name in origin)
    versions = f"Python {origin['python']}, torch {origin['torch']}, numpy {origin['numpy']}"
    return (
        f"Recorded {origin['date']} on {on}\n({versions}, commit {origin['commit']}) by {origin['command']}"
    )


def _check(origin: object, where: str) -> None:
    if not isinstance(origin, dict):
        raise ValueError(f"{where} has no provenance: a number without it is not shown")
    wrong = [name for name in PROVENANCE if not (isinstance(origin.get(name), str) and origin[name].strip())]
    if wrong:
        raise ValueError(f"the provenance of {where} lacks {', '.join(wrong)}")
    date.fromisoformat(origin["date"])


def _provenance(command: str, gpu: bool) -> dict[str, str]:
    import numpy as np

    from lib.machine import machine_card

    card = machine_card()
    return {
        **({"driver": card.driver or "unknown", "cuda": card.cuda or "none"} if gpu else {}),
        "machine": f"{card.cpu}, {card.cores_usable} cores, {card.system}",
        "python": card.python,
        "torch": card.torch,
        "numpy": np.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "commit": _commit(),
    }


def _commit() -> str:
    """Return the commit that the measured code is, marked where files differ from it."""
    ask = ("git", "-C", str(_REPOSITORY), "describe", "--always", "--dirty=, changed since")
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none yet"
