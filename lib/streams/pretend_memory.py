"""The memory of a PretendGPU: blocks, and pools that give them away as torch's caching allocator does."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from itertools import count, product
from string import ascii_uppercase

import torch

from lib.streams.races import HOST, Clocks, Operation, VectorClock, learn

_CPU = torch.device("cpu")


class Block:
    """A piece of memory: its name, its place, its bytes, and the streams that `record_stream` named."""

    def __init__(self, name: str, device: torch.device, size: int, stream: str, pinned: bool = False) -> None:
        self.name = name
        self.device = device
        self.size = size
        self.stream = stream  # to whose pool it goes back
        self.pinned = pinned
        self.users: set[str] = set()

    @property
    def on_device(self) -> bool:
        """Whether it is memory of a GPU; else it is the host's."""
        return self.device != _CPU


class Pools:
    """Give blocks away and take them back: each stream has a pool of its own. Both are written down in `operations`."""

    def __init__(self, operations: list[Operation], clocks: Clocks) -> None:
        self.names = _letters()
        self._operations = operations
        self._clocks = clocks
        self._free: list[tuple[Block, VectorClock]] = []  # with what its users must have done
        self._on_host = Counter[str]()  # how many blocks have been given this name

    def name_on_host(self, wanted: str) -> str:
        """Return a name for memory of the host, with a number behind it where there is such a block already."""
        name = wanted or f"host {next(self.names)}"
        self._on_host[name] += 1
        number = self._on_host[name]
        return name if number == 1 else f"{name} ({number})"

    def take(self, size: int, device: torch.device, stream: str) -> Block:
        """Return a block of a stream's pool, or a new one; it goes back when nobody holds it any more."""
        block = self._reused(size, stream)
        if block is None:
            block = Block(next(self.names), device, size, stream)
        # the tensors hold this one: when the last of them is gone, the block goes back
        handle = Block(block.name, device, size, stream)
        self._operations.append(Operation("allocate", stream, block.name))
        weakref.finalize(handle, self._give_back, block, handle.users)
        return handle

    def _reused(self, size: int, stream: str) -> Block | None:
        """Take a block of the stream's pool whose users the host knows to be done; None without one."""
        host = self._clocks.lanes[HOST]
        fit: list[tuple[Block, VectorClock]] = []
        for block, users in self._free:
            done = all(host.get(lane, 0) >= time for lane, time in users.items())
            if block.size == size and block.stream == stream and done:
                fit.append((block, users))
        if not fit:
            return None
        # Of several CUDA takes the one with the lowest address: that which was made first, as the names tell.
        chosen = min(fit, key=lambda entry: (len(entry[0].name), entry[0].name))
        self._free.remove(chosen)
        return chosen[0]

    def _give_back(self, block: Block, users: set[str]) -> None:
        self._operations.append(Operation("free", HOST, block.name))
        # As CUDA records an event in each of them now: all that is launched there, and all that it waits for, must be
        # done before the block may be given away.
        until: VectorClock = {}
        for lane in users - {block.stream}:
            learn(until, self._clocks.lanes.get(lane, {}))
        self._free.append((block, until))


def _letters() -> Iterator[str]:
    """Yield A to Z, AA, AB and so on."""
    for size in count(1):
        for letters in product(ascii_uppercase, repeat=size):
            yield "".join(letters)
