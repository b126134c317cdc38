"""How data reaches many ranks: samplers, an O(1)-memory shuffle, meta files and what reads them, the digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lib._lazy import load_on_use

if TYPE_CHECKING:
    from lib.data.datasets import NaiveDataset as NaiveDataset
    from lib.data.datasets import RankDataset as RankDataset
    from lib.data.libtorch import DistributedRandomSampler as DistributedRandomSampler
    from lib.data.libtorch import DistributedSequentialSampler as DistributedSequentialSampler
    from lib.data.meta import MetaFile as MetaFile
    from lib.data.mini_epochs import mini_epoch_loaders as mini_epoch_loaders
    from lib.data.permutation import Permutation as Permutation
    from lib.data.samplers import DistributedSampler as DistributedSampler
    from lib.data.samplers import RandomSampler as RandomSampler
    from lib.data.samplers import SequentialSampler as SequentialSampler
    from lib.data.server import MetaServer as MetaServer
    from lib.data.server_dataset import ServerDataset as ServerDataset

HOME = {
    "DistributedRandomSampler": "lib.data.libtorch",
    "DistributedSampler": "lib.data.samplers",
    "DistributedSequentialSampler": "lib.data.libtorch",
    "MetaFile": "lib.data.meta",
    "MetaServer": "lib.data.server",
    "NaiveDataset": "lib.data.datasets",
    "Permutation": "lib.data.permutation",
    "RandomSampler": "lib.data.samplers",
    "RankDataset": "lib.data.datasets",
    "SequentialSampler": "lib.data.samplers",
    "ServerDataset": "lib.data.server_dataset",
    "mini_epoch_loaders": "lib.data.mini_epochs",
}

__all__ = sorted(HOME)
__getattr__, __dir__ = load_on_use(__name__, HOME)
