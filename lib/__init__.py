"""Inside distributed training: the code behind the notebooks, small enough to read.

Public names load on first use: `import lib` by itself imports no torch, starts no CUDA, sets no seed and draws nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lib._lazy import load_on_use
from lib.data import HOME as _DATA

if TYPE_CHECKING:
    from lib.data import DistributedRandomSampler as DistributedRandomSampler
    from lib.data import DistributedSampler as DistributedSampler
    from lib.data import DistributedSequentialSampler as DistributedSequentialSampler
    from lib.data import MetaFile as MetaFile
    from lib.data import MetaServer as MetaServer
    from lib.data import NaiveDataset as NaiveDataset
    from lib.data import Permutation as Permutation
    from lib.data import RandomSampler as RandomSampler
    from lib.data import RankDataset as RankDataset
    from lib.data import SequentialSampler as SequentialSampler
    from lib.data import ServerDataset as ServerDataset
    from lib.data import mini_epoch_loaders as mini_epoch_loaders
    from lib.measure import compare as compare
    from lib.measure import measure as measure
    from lib.pipeline import GPipe as GPipe
    from lib.streams import DevicePrefetcher as DevicePrefetcher
    from lib.streams import StreamPipeline as StreamPipeline
    from lib.timeline import Recorder as Recorder
    from lib.timeline import Span as Span
    from lib.timeline import Trace as Trace

_HOME = {
    **_DATA,
    "DevicePrefetcher": "lib.streams",
    "GPipe": "lib.pipeline",
    "Recorder": "lib.timeline",
    "Span": "lib.timeline",
    "StreamPipeline": "lib.streams",
    "Trace": "lib.timeline",
    "compare": "lib.measure",
    "measure": "lib.measure",
}

__version__ = "0.1.0"
__all__ = sorted(_HOME)
__getattr__, __dir__ = load_on_use(__name__, _HOME)
