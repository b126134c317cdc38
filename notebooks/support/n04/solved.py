"""The exercises of notebook 04 as its solution has them, word for word, with what they stand on."""

# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: D101, D102, D103

from lib.data.libtorch import DistributedRandomSampler


def std_shuffle(order, epoch):
    sampler = DistributedRandomSampler(len(order))
    sampler.set_epoch(epoch)
    return [order[place] for place in sampler]


class Cursor:
    def __init__(self, size, num_replicas, rank, shuffle=False, allow_duplicates=True):
        self.size, self.num_replicas, self.rank = size, num_replicas, rank
        self.shuffle, self.allow_duplicates = shuffle, allow_duplicates
        self.epoch = 0
        self.reset()

    def reset(self, new_size=None):
        self.size = self.size if new_size is None else new_size
        length = (self.size + (self.num_replicas - 1) * self.allow_duplicates) // self.num_replicas
        self.begin = self.position = self.rank * length
        self.end, positions = self.begin + length, range(length * self.num_replicas)
        if self.shuffle:
            indices = std_shuffle([p if p < self.size else p - self.size for p in positions], self.epoch)
        else:
            indices = [p % self.size for p in positions]
        self.indices = indices[self.begin : self.end]

    def next(self, batch_size):
        if self.position == self.end:
            return None
        start, self.position = self.position, min(self.position + batch_size, self.end)
        return self.indices[start - self.begin : self.position - self.begin]


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
