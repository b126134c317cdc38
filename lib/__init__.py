"""Inside distributed training: the code behind the notebooks, small enough to read.

Public names load on first use: `import lib` by itself imports no torch, starts no CUDA, sets no seed and draws nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lib.data.libtorch import DistributedRandomSampler as DistributedRandomSampler
    from lib.data.libtorch import DistributedSequentialSampler as DistributedSequentialSampler
    from lib.data.permutation import Permutation as Permutation
    from lib.data.samplers import DistributedSampler as DistributedSampler
    from lib.data.samplers import RandomSampler as RandomSampler
    from lib.data.samplers import SequentialSampler as SequentialSampler
    from lib.measure import compare as compare
    from lib.measure import measure as measure
    from lib.timeline import Recorder as Recorder
    from lib.timeline import Span as Span
    from lib.timeline import Trace as Trace

_HOME = {
    "DistributedRandomSampler": "lib.data.libtorch",
    "DistributedSampler": "lib.data.samplers",
    "DistributedSequentialSampler": "lib.data.libtorch",
    "Permutation": "lib.data.permutation",
    "RandomSampler": "lib.data.samplers",
    "Recorder": "lib.timeline",
    "SequentialSampler": "lib.data.samplers",
    "Span": "lib.timeline",
    "Trace": "lib.timeline",
    "compare": "lib.measure",
    "measure": "lib.measure",
}

__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"lib has no {name!r}; its public names are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
