"""Inside distributed training: the code behind the notebooks, small enough to read.

`import lib` needs torch and numpy; it starts nothing, opens no CUDA, sets no seed and draws nothing.
"""

from lib.data import (
    DistributedRandomSampler,
    DistributedSampler,
    DistributedSequentialSampler,
    MetaFile,
    MetaServer,
    NaiveDataset,
    Permutation,
    RandomSampler,
    RankDataset,
    SequentialSampler,
    ServerDataset,
    mini_epoch_loaders,
)
from lib.measure import compare, measure
from lib.pipeline import GPipe
from lib.streams import DevicePrefetcher, StreamPipeline
from lib.timeline import Recorder, Span, Trace

__version__ = "0.3.0"

# fmt: off
__all__ = [
    "DevicePrefetcher", "DistributedRandomSampler", "DistributedSampler", "DistributedSequentialSampler", "GPipe",
    "MetaFile", "MetaServer", "NaiveDataset", "Permutation", "RandomSampler", "RankDataset", "Recorder",
    "SequentialSampler", "ServerDataset", "Span", "StreamPipeline", "Trace", "compare", "measure", "mini_epoch_loaders",
]
