"""What tests of RankDataset and its loaders share: what ranks got, and what is still running."""

import gc
import multiprocessing
import threading
import time

from lib.data.rank_dataset import RankDataset

N = 1000  # rows of the fixture `meta`
alive_before: set[object] = set()  # threads and processes


def number(row):
    return int(row[4:8])


def dealt(meta, world_size, epoch=0, **arguments):
    """What each rank gets in each mini-epoch, as numbers: [rank][mini-epoch][item]."""
    ranks = []
    for rank in range(world_size):
        dataset = RankDataset(meta, world_size, rank, transform=number, **arguments)
        dataset.set_epoch(epoch)
        parts = []
        for mini_epoch in range(dataset.mini_epochs):
            dataset.load(mini_epoch)
            parts.append([dataset[i] for i in range(len(dataset))])
        ranks.append(parts)
    return ranks


def batches(loader):
    return [row if isinstance(row, str) else int(row) for batch in loader for row in batch]


def note_what_runs_already():
    """Note the threads and workers that other tests of this process have left: they are not counted here."""
    alive_before.clear()
    alive_before.update(threading.enumerate(), multiprocessing.active_children())


def nothing_left_behind():
    """Wait a little: the threads that feed a dead worker's queue end by themselves."""
    gc.collect()
    names = ("mini-epoch", "QueueFeeder", "Thread-")
    deadline = time.monotonic() + 10
    while any(t.name.startswith(names) for t in {*threading.enumerate()} - alive_before):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return not {*multiprocessing.active_children()} - alive_before
