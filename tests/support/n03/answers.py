"""Right answers to exercises 1, 2 and 4 of notebook 03, as readers may write them."""

import torch


def share(order, world_size, rank, drop_last=False):
    steps = len(order) // world_size if drop_last else -(-len(order) // world_size)
    while len(order) < steps * world_size:
        order = order + order
    return order[: steps * world_size][rank::world_size]


def share_by_places(order, world_size, rank, drop_last=False):
    """As somebody writes it who thinks of places, and of no list but the order."""
    count, rest = divmod(len(order), world_size)
    if rest and not drop_last:
        count += 1
    return [order[(rank + turn * world_size) % len(order)] for turn in range(count)]


class Written:
    """As a reader may write it: no torch sampler in it, not even its base class."""

    def __init__(self, dataset, num_replicas, rank, shuffle=True, seed=0, drop_last=False):
        if rank not in range(num_replicas):
            raise ValueError("no such rank")
        self.size = len(dataset)
        self.drop_last = drop_last
        self.world_size = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def __iter__(self):
        order = list(range(self.size))
        if self.shuffle:
            order = torch.randperm(self.size, generator=torch.Generator().manual_seed(self.seed + self.epoch)).tolist()
        return iter(share(order, self.world_size, self.rank, self.drop_last))

    def __len__(self):
        return len(share(list(range(self.size)), self.world_size, self.rank, self.drop_last))

    def set_epoch(self, epoch):
        self.epoch = epoch


class Prepared(Written):
    """As somebody writes it who draws in set_epoch, and only gives out in __iter__."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.set_epoch(0)

    def set_epoch(self, epoch):
        super().set_epoch(epoch)
        self.drawn = [*Written.__iter__(self)]

    def __iter__(self):
        return iter(self.drawn)


def in_order(gathered, size):
    return [answer for batch in gathered for step in zip(*batch, strict=True) for answer in step][:size]


def in_order_by_places(gathered, size):
    world = len(gathered[0])
    answers = [None] * size
    turns = 0
    for batch in gathered:
        for rank, own in enumerate(batch):
            for turn, answer in enumerate(own, start=turns):
                if turn * world + rank < size:
                    answers[turn * world + rank] = answer
        turns += len(batch[0])
    return answers


def written(**methods):
    """Make a sampler that is right but for these methods."""
    return type("Written", (Written,), methods)
