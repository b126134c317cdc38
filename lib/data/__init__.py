"""How data reaches many ranks: samplers, an O(1)-memory shuffle, meta files and what reads them, headspace."""

from lib.data.file_dataset import FileDataset
from lib.data.headspace import Headspace, headspace
from lib.data.libtorch import DistributedRandomSampler, DistributedSequentialSampler
from lib.data.meta import MetaFile
from lib.data.meta_server import MetaServer
from lib.data.mini_epochs import mini_epoch_loaders
from lib.data.permutation import Permutation
from lib.data.rank_dataset import NaiveDataset, RankDataset
from lib.data.samplers import DistributedSampler, RandomSampler, SequentialSampler
from lib.data.server_dataset import ServerDataset

# fmt: off
__all__ = [
    "DistributedRandomSampler", "DistributedSampler", "DistributedSequentialSampler", "FileDataset", "Headspace",
    "MetaFile", "MetaServer", "NaiveDataset", "Permutation", "RandomSampler", "RankDataset", "SequentialSampler",
    "ServerDataset", "headspace", "mini_epoch_loaders",
]
