"""How data reaches many ranks: samplers, an O(1)-memory shuffle, meta files and what reads them, headspace.

samplers, permutation, libtorch             who decides the order; a shuffle that is computed; libtorch's two samplers
meta, meta_index, meta_text                 a text file of which any rows can be read; where each begins; its lines
rank_dataset, mini_epochs                   the rows of one rank and one part of an epoch, and the loaders over them
file_dataset                                rows that are read when they are asked for
server_dataset                              rows that another process reads: the client
meta_server, meta_answers, meta_bodies      the server: its connections, what it answers, the memory that requests take
server, deadline, progress                  the server as a command; sockets that wait until a moment; a bar
headspace                                   whether the loader is the bottleneck at all
"""

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
