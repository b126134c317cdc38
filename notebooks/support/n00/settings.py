"""Settings of torch that an answer could leave changed: told by name, and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: Name: how it is read, how it is set.
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the seed of random numbers": (torch.initial_seed, torch.manual_seed),
    "the detection of anomalies": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "the demand for deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
}


@contextmanager
def watched_settings() -> Iterator[list[str]]:
    """Put torch's settings back at the end; the list that it gives then says of each changed one what it was."""
    before = {name: read() for name, (read, _) in SETTINGS.items()}
    changes: list[str] = []
    try:
        yield changes
    finally:
        for name, value in before.items():
            read, put = SETTINGS[name]
            if read() != value:
                changes.append(f"{name}, which is {read()} afterwards and was {value}")
                put(value)
