"""How data reaches many ranks: samplers, an O(1)-memory shuffle, libtorch's contiguous shards, the digits."""

from lib.data.libtorch import DistributedRandomSampler, DistributedSequentialSampler
from lib.data.permutation import Permutation
from lib.data.samplers import DistributedSampler, RandomSampler, SequentialSampler

__all__ = [
    "DistributedRandomSampler",
    "DistributedSampler",
    "DistributedSequentialSampler",
    "Permutation",
    "RandomSampler",
    "SequentialSampler",
]
