"""The exercises of notebook 04 as its solution has them, word for word, with what they stand on."""

# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: D101, D102, D103

import numpy as np

from lib.data.libtorch import DistributedRandomSampler


def my_batches(size, world_size, rank, batch_size):
    together = world_size * batch_size
    mine = []
    for begin in range(0, size, together):
        count = min(together, size - begin)
        first = begin + count * rank // world_size
        end = begin + count * (rank + 1) // world_size
        mine.append(list(range(first, end)))
    return mine


def std_shuffle(order, epoch):
    sampler = DistributedRandomSampler(len(order))
    sampler.set_epoch(epoch)
    return [order[place] for place in sampler]


class Cursor:
    def __init__(self, size, num_replicas, rank):
        self.size, self.num_replicas, self.rank = size, num_replicas, rank
        self.epoch = 0
        self.reset()

    def reset(self):
        length = -(-self.size // self.num_replicas)
        padded = [place % self.size for place in range(length * self.num_replicas)]
        self.begin = self.position = self.rank * length
        self.shard = std_shuffle(padded, self.epoch)[self.begin : self.begin + length]
        self.epoch_of_shard = self.epoch

    def next(self, batch_size):
        batch = self.shard[self.position - self.begin :][:batch_size]
        self.position += len(batch)
        return batch or None

    def save(self):
        return self.epoch_of_shard, self.epoch, self.position

    def load(self, state):
        self.epoch, epoch, position = state
        self.reset()
        self.epoch, self.position = epoch, position


def resume(size, runs, world_size, rank):
    epoch = consumed = 0
    for ranks, batch_size, steps in runs:
        for _ in range(steps):
            consumed += ranks * batch_size
            if consumed >= size:
                epoch, consumed = epoch + 1, 0
    return epoch, list(range(consumed + rank, size, world_size))


def scramble(half, factor, key, bits):
    """Return the hash F of one half, `bits` bits of it."""
    word = (half * factor + key) % 2**32
    word = (word ^ word >> 16) * 0x9E3779B1 % 2**32
    return word >> 32 - bits


def halves(n):
    """Return how many bits the low and the high half have, for the positions 0..n - 1."""
    bits = (n - 1).bit_length()
    return bits - bits // 2, bits // 2


def inverse(number, n, keys):
    low_bits, high_bits = halves(n)
    while True:
        high, low = divmod(number, 2**low_bits)
        for k, (factor, key) in reversed(list(enumerate(keys))):
            if k % 2 == 0:
                high ^= scramble(low, factor, key, high_bits)
            else:
                low ^= scramble(high, factor, key, low_bits)
        number = high * 2**low_bits + low
        if number < n:
            return number


def walk(ids, n, network, block):
    images = ids.copy()
    outside = np.arange(len(ids))
    while len(outside):
        for begin in range(0, len(outside), block):
            places = outside[begin : begin + block]
            images[places] = network(images[places])
        outside = outside[images[outside] >= n]
    return images
