"""How data reaches many ranks: samplers, an O(1)-memory shuffle, meta files and what reads them, the digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lib._lazy import load_on_use

if TYPE_CHECKING:
    from lib.data.client import ServerDataset as ServerDataset
    from lib.data.libtorch import DistributedRandomSampler as DistributedRandomSampler
    from lib.data.libtorch import DistributedSequentialSampler as DistributedSequentialSampler
    from lib.data.meta import MetaFile as MetaFile
    from lib.data.permutation import Permutation as Permutation
    from lib.data.rank_dataset import NaiveDataset as NaiveDataset
    from lib.data.rank_dataset import RankDataset as RankDataset
    from lib.data.rank_dataset import mini_epoch_loaders as mini_epoch_loaders
    from lib.data.samplers import DistributedSampler as DistributedSampler
    from lib.data.samplers import RandomSampler as RandomSampler
    from lib.data.samplers import SequentialSampler as SequentialSampler
    from lib.data.server import MetaServer as MetaServer

HOME = {
    "DistributedRandomSampler": "lib.data.libtorch",
    "DistributedSampler": "lib.data.samplers",
    "DistributedSequentialSampler": "lib.data.libtorch",
    "MetaFile": "lib.data.meta",
    "MetaServer": "lib.data.server",
    "NaiveDataset": "lib.data.rank_dataset",
    "Permutation": "lib.data.permutation",
    "RandomSampler": "lib.data.samplers",
    "RankDataset": "lib.data.rank_dataset",
    "SequentialSampler": "lib.data.samplers",
    "ServerDataset": "lib.data.client",
    "mini_epoch_loaders": "lib.data.rank_dataset",
}

__all__ = sorted(HOME)
__getattr__, __dir__ = load_on_use(__name__, HOME)
