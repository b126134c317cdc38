"""The users of a prefetcher that exercise 3 of notebook 13 looks at: where they work, and when they leave."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from lib.streams.pretend import PretendGPU
from lib.streams.pretend_memory import Block, Pools
from lib.streams.pretend_tensor import PretendTensor
from lib.streams.races import Operation, learn

Prefetch: TypeAlias = Callable[[Iterable[Any], Any], Iterator[Any]]
BLOCKS = 4  # of memory are enough for any number of batches
STEP = "F"  # begins the label of what the user launches
NEXT_OWNER = "its next owner"


class MarkingPools(Pools):
    """Take a block back as torch does: behind the drop stands a mark, and it is free when the host has seen *that*.

    Who has waited for an event in front of the drop does not know of the mark, though a device mostly has passed it.
    """

    def _give_back(self, block: Block, users: set[str]) -> None:
        for lane in users - {block.stream}:
            learn(self._clocks.lanes.setdefault(lane, {}), {lane: self._clocks.lanes[lane].get(lane, 0) + 1})
        super()._give_back(block, users)


class SlowestGPU(PretendGPU):
    """A PretendGPU whose allocator has no luck: what it may need at most."""

    def __init__(self) -> None:
        super().__init__()
        self._pools = MarkingPools(self.operations, self._clocks)


@dataclass
class Issued:
    """What a prefetcher did for one user: operations, the batches' numbers in order, what is wrong with an item."""

    operations: list[Operation]
    seen: list[float] = field(default_factory=list)
    greed: str = ""
    problem: str = ""


@dataclass
class _Loader:
    """What a prefetcher goes through: no iterator itself, as a DataLoader is none."""

    batches: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.batches()


class User:
    """Use each batch in a kernel F0, F1, … of the stream that was current when it was asked for, and drop it at once.

    A user may have habits, several as well.
    keeps: the name holds a batch until the next one is there, as in most loops.
    moves: behind the first batch the host waits for its kernel, and the user goes on in another stream.
    wanders: before each batch the user goes on in another stream, and waits for nothing.
    stops: the user leaves behind batch 1, and somebody else gets its memory.
    stops at once, stops at the end: the same behind the first batch, or behind the last.
    ends: somebody else gets it behind the last batch.
    unlucky: a block that could be free again is not yet.
    """

    def __init__(self, *habits: str) -> None:
        self.habits = frozenset(habits)
        self.gpu = SlowestGPU() if "unlucky" in habits else PretendGPU()
        self.issued = Issued(self.gpu.operations)
        self.stream = self.gpu.current_stream()  # the one that this user has chosen

    def use(self, prefetch: Prefetch, batches: int) -> Issued:
        """Run a prefetcher to its end, or to that of its user."""
        self.shape = [4 if batches > 2 else 3]  # one within an epoch
        leaves = {"stops at once": 1, "stops": 2, "stops at the end": batches}
        self.last = next((leaves[habit] for habit in leaves if habit in self.habits), None)
        self._use_each(prefetch, batches)
        # Nobody holds the generator any more, and it gets no turn.
        if self.last or "ends" in self.habits:
            self._pass_on()
        return self.issued

    def _use_each(self, prefetch: Prefetch, batches: int) -> None:
        with ExitStack() as place:
            items = prefetch(_Loader(partial(self._batches, batches)), self.gpu)
            if "wanders" in self.habits:
                self._go_on(place)
            for batch in items:
                if not self._step(batch):
                    return
                if len(self.issued.seen) > batches:
                    self.issued.problem = "more come out than go in."
                    return
                if not (self.last or "keeps" in self.habits):
                    del batch
                self._go_on(place)
                if len(self.issued.seen) == self.last:
                    if isinstance(items, Generator):
                        items.close()  # Python would do it, too, and only print what it raises
                    return

    def _go_on(self, place: ExitStack) -> None:
        """Go on in another stream, if this user does."""
        first = len(self.issued.seen) == 1
        if "moves" in self.habits and first:
            self.gpu.current_stream().synchronize()  # whose blocks are free from now on
        if "wanders" in self.habits or ("moves" in self.habits and first):
            self.stream = self.gpu.new_stream("another")
            place.enter_context(self.gpu.use_stream(self.stream))

    def _batches(self, batches: int) -> Iterator[Any]:
        given = list[ReferenceType[Any]]()
        for i in range(batches):
            held = sum(batch() is not None for batch in given)
            if held > 2 * BLOCKS:
                told = f"{held} batches of the loader are still held when batch {i} is asked for"
                self.issued.greed = f"{told}: let go of each."
            ahead = len(self.issued.seen)
            if i > ahead + 2:
                self.issued.greed = (
                    f"batch {i} is asked for before batch {ahead} is handed over: take one at a time."
                )
            pinned = self.gpu.host(torch.full(self.shape, float(i)), f"batch {i}")
            given.append(ref(pinned))
            yield pinned
            del pinned

    def _step(self, batch: Any) -> bool:
        seen = self.issued.seen
        if not (isinstance(batch, PretendTensor) and batch.block.on_device):
            self.issued.problem = f"item {len(seen)} is not a tensor on the device"
            return False
        if list(batch.shape) != self.shape:
            self.issued.problem = f"item {len(seen)} has shape {list(batch.shape)}, its batch {self.shape}."
            return False
        stream = self.gpu.current_stream()
        if stream is not self.stream:
            ran = f"{STEP}{len(seen)} ran in {stream.name}"
            self.issued.problem = f"{ran}: you yield inside `use_stream`, so the caller's kernels go there."
            return False
        with self.gpu.span(stream, "", f"{STEP}{len(seen)}"):
            result = batch + 0
        seen.append(float(result.as_subclass(Tensor)[0]))  # to look is no operation of the GPU
        return True

    def _pass_on(self) -> None:
        # torch has 32 streams of a kind: somebody gets this one, and what is in its pool
        for stream in self.gpu.streams:
            with self.gpu.use_stream(stream), self.gpu.span(stream, "", NEXT_OWNER):
                _all_of_it = [self.gpu.empty_like(torch.zeros(4)).fill_(0.0) for _ in range(2 * BLOCKS)]


def issued(prefetch: Prefetch, batches: int, *habits: str) -> Issued:
    """Run a prefetcher with a user of these habits."""
    return User(*habits).use(prefetch, batches)
