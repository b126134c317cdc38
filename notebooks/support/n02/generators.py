"""The random generators that everybody shares, put back; and what else is another one in another process."""

from __future__ import annotations

import inspect
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import distributed


def states() -> list[Any]:
    """Return the states of Python's, NumPy's and torch's global generators."""
    numpy_state: Any = np.random.get_state()  # noqa: NPY002 it is looked at, not used
    return [random.getstate(), numpy_state[1].tolist(), numpy_state[2], torch.get_rng_state().tolist()]


@contextmanager
def put_back() -> Iterator[None]:
    """Leave the global generators as they were: a wrong answer may draw from them, or seed them."""
    python_state = random.getstate()
    numpy_state: Any = np.random.get_state()  # noqa: NPY002 it is put back
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002 it is put back


def seed_all(seed: int) -> None:
    """Seed the global generators, as somebody else may."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 it is what somebody does
    torch.manual_seed(seed)


@contextmanager
def another_process(*functions: Callable[..., Any]) -> Iterator[None]:
    """Play another process to some functions: its number, its rank, its clock and the hash of a text are others there.

    Python salts the hashes of texts anew in each process. Only the functions' own module gets the other `hash`.
    The clock is a day on, as after a restart.
    """
    tomorrow = time.time_ns() + 86_400 * 10**9
    spaces: list[dict[str, Any]] = [getattr(inspect.unwrap(each), "__globals__", {}) for each in functions]
    spaces = [space for space in spaces if "hash" not in space]
    for space in spaces:
        space["hash"] = _salted
    try:
        with (
            patch.object(os, "getpid", return_value=os.getpid() + 1),
            patch.object(time, "time", return_value=tomorrow / 10**9),
            patch.object(time, "time_ns", return_value=tomorrow),
            patch.dict(os.environ, {"RANK": "1", "LOCAL_RANK": "1"}),
            patch.object(distributed, "is_initialized", return_value=True, create=True),
            patch.object(distributed, "get_rank", return_value=1, create=True),
        ):
            yield
    finally:
        for space in spaces:
            space.pop("hash", None)  # two functions may have one module


def _salted(thing: object) -> int:
    return hash(("another salt", thing)) if _holds_text(thing) else hash(thing)


def _holds_text(thing: object) -> bool:
    if isinstance(thing, (tuple, frozenset)):
        return any(map(_holds_text, thing))
    return isinstance(thing, (str, bytes))
