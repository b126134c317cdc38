"""In which order torchgpipe goes backward: run here where it can be imported, recorded elsewhere.

`python -m lib.recordings torchgpipe_order` records it; torchgpipe is none of this project's requirements.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn

from lib.experiments.backward_run import Log, Probe, numbers
from lib.recordings import load, provenance


def torchgpipe_run(micro_batches: int, partitions: int, *, dependencies: bool = True) -> str:
    """Return the order in which torchgpipe goes backward, checkpoint="always". Raises ImportError where it is not."""
    theirs, log = importlib.import_module("torchgpipe"), Log()
    layers = nn.Sequential(*(Probe(j, log, theirs.is_recomputing) for j in range(partitions)))
    devices = ["cpu"] * partitions
    model = theirs.GPipe(layers, [1] * partitions, devices=devices, chunks=micro_batches, checkpoint="always")
    pipeline = importlib.import_module("torchgpipe.pipeline")
    with nullcontext() if dependencies else _replaced(pipeline, "depend", lambda *_: None):
        output = model(numbers(micro_batches))
    output.sum().backward()
    return " ".join(log.ops)


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def torchgpipe_orders() -> tuple[dict[str, str], str]:
    """Return its orders for 3 micro-batches × 2 partitions, and where they come from: run here, or recorded.

    Raises FileNotFoundError where torchgpipe is not and nothing is recorded.
    """
    try:
        return run_both()["orders"], "run here"
    except ImportError:
        record = load("torchgpipe_order")
        return record["orders"], provenance(record)


def run_both() -> dict[str, Any]:
    """Return {"orders": …}, with and without dependencies. Raises ImportError where torchgpipe is not."""
    return {
        "orders": {name: torchgpipe_run(3, 2, dependencies=name == "with") for name in ("with", "without")}
    }
