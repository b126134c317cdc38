"""Stands in until w-s-atlas is merged: a notebook as it is stored."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Executed:
    """What one run of a notebook gave."""

    notebook: dict[str, Any]
    atlases: dict[str, list[str]]
    guesses: dict[str, list[dict[str, Any]]]


def executed(path: Path, *, cache: Path, limit: int = 400, sample: int | None = None) -> Executed:
    """Return the stored run."""
    return Executed(json.loads(path.read_text(encoding="utf-8")), {}, {})
