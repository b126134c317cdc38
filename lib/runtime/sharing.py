"""Tensors that cross a cut: who else needs them as they are, and what becomes of a layer that writes into them.

In one model a tensor is one piece of memory with one history. Where the model is cut, each part goes on by itself, and
what nn.ReLU(inplace=True) writes behind the cut may be wrong for somebody who never hears of it:

    another tensor that crosses the cut too, and has bytes in common with it       `sharing` finds them
    a recomputation, which begins with the same tensor again                       Crossing refuses to write into either
    other micro-batches, views of one mini-batch: autograd takes all for changed   Lending gives a copy, to write into
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lib.runtime.microbatch import Batch, Function, check
from lib.runtime.regions import region_of


def sharing(tensors: Sequence[Tensor]) -> list[int]:
    """Return the numbers of those tensors that have bytes in common with another of them."""
    if len(tensors) < 2:
        return []
    by_storage: dict[int, list[int]] = defaultdict(list)
    for k, x in enumerate(tensors):
        if x.layout is torch.strided:
            by_storage[x.untyped_storage()._cdata].append(k)
    found = set()
    for group in by_storage.values():
        regions = {k: region_of(tensors[k], "") for k in group} if len(group) > 1 else {}
        for k in regions:
            if any(regions[k].meets(regions[other]) for other in regions if other != k):
                found.add(k)
    return sorted(found)


def nothing_shared() -> Sequence[int]:
    """Return the numbers of the tensors that share memory, where none does: what `shared_after` is, if nobody says."""
    return ()


def version(tensor: Tensor) -> int:
    """Return how often a tensor has been written; 0 in inference mode, where torch does not count that."""
    return 0 if tensor.is_inference() else tensor._version


# ---- to refuse a write

SHARED = (
    ", and has memory in common with another tensor that crosses the same cut: that one, or its gradient, would not "
    "know of it; use inplace=False (or clone one of them first), or cut the model elsewhere"
)
AGAIN = (
    ": a recomputation would begin with the changed one, and the gradients be wrong; use inplace=False (or clone it "
    "first), or checkpoint='never'"
)


class _Crossed(NamedTuple):
    name: str
    tensor: Tensor
    version: int
    needed: str  # why nobody may write it; empty if one may


class Crossing:
    """Note what comes across a cut, and look afterwards which of it was written."""

    def __init__(self) -> None:
        self._noted: list[_Crossed] = []

    def note(self, name: str, tensor: Tensor, *, shared: bool = False, again: bool = False) -> None:
        """Note a tensor, and whether it has memory in common with another one or is to be computed with again."""
        needed = AGAIN if again else ""
        self._noted.append(_Crossed(name, tensor, version(tensor), SHARED if shared else needed))

    def note_input(self, tensors: Iterable[Tensor], *, shared: Sequence[int] = (), again: Sequence[int] = ()) -> None:
        """Note the tensors of an input; `shared` and `again` are the numbers of those of which this is true."""
        for k, x in enumerate(tensors):
            self.note(f"tensor {k} of the input", x, shared=k in shared, again=k in again)

    def written(self) -> list[bool]:
        """Return of each whether it has been written since."""
        return [version(one.tensor) != one.version for one in self._noted]

    def refuse_writes(self) -> None:
        """Raise RuntimeError if one has been written that somebody else needs as it was."""
        for one, written in zip(self._noted, self.written(), strict=True):
            if written and one.needed:
                raise RuntimeError(f"{one.name} was changed in place{one.needed}")


# ---- to allow it


class Lending:
    """Call a function with an input that others need, too: with copies, until it has shown that it writes into none.

    writes: whether it does, None if that is not known yet. A function that has written once gets copies for good; one
    that has not gets the input itself from then on, and its writes are refused.
    """

    def __init__(self, writes: bool | None = None) -> None:
        self.writes = writes

    def may_write(self) -> bool:
        """Say whether the function has written, or has not yet shown that it does not."""
        return self.writes is not False

    def lend(self, batch: Batch, shared: Sequence[int] = ()) -> Batch:
        """Return what to call the function with."""
        if not self.may_write():
            return batch
        # Copies would have nothing in common any more, with each other or with hidden tensors: these stay, and may not
        # be written.
        stay = {*shared, *sharing(list(batch))}
        lent = tuple(x if k in stay else x.clone() for k, x in enumerate(batch))
        return Batch(lent[0] if batch.atomic else lent)

    def call(
        self,
        function: Function,
        batch: Batch,
        shared: Sequence[int] = (),
        shared_after: Callable[[], Sequence[int]] = nothing_shared,
    ) -> Batch:
        """Return function(batch); what it hands on as it came is the batch's, not a copy. Raises TypeError for none.

        shared: which tensors of the batch have memory in common with others. shared_after: called once the function has
        returned, says which of its output do.
        """
        lent = self.lend(batch, shared)
        crossing = Crossing()
        crossing.note_input(lent, again=[k for k, (x, y) in enumerate(zip(lent, batch, strict=True)) if x is y])
        output = lent.call(function)
        check(output.value)
        crossing.refuse_writes()
        if lent is not batch:
            written = crossing.written()
            self.learn(any(written))
            _give_back(output, lent, batch, written, shared_after())
        return output

    def learn(self, written: bool) -> None:
        """Take note that the function has written into what it was lent, or has not."""
        self.writes = self.writes is True or written


def _give_back(output: Batch, lent: Batch, batch: Batch, written: list[bool], shared: Sequence[int]) -> None:
    # Where the function hands on a copy as it came, the original takes its place: that one stands in the graph. A copy
    # that was written holds a value of its own, and one that others have a part of has to stay what they have.
    original = {id(x): y for x, y, new in zip(lent, batch, written, strict=True) if not new}
    output[:] = tuple(y if k in shared else original.get(id(y), y) for k, y in enumerate(output))
