"""The tracker of a pipeline: it leads each skip tensor that changes partition through a portal.

    partition that stashes     save() hides it; its way back is Blue's own, or leave() takes it from a Checkpoint
    in between                 copy() moves it, when its micro-batch goes to the partition that pops
    partition that pops        load() shows it again

Where a micro-batch is checkpointed, both partitions do so twice, and the phase says what is left to do: the second time
whoever pops has the tensor already, and its way back ends at the Checkpoint, which was tied to `ways_back`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lib.pipeline.checkpoint import HiddenPhony, Phase, hidden_phonies, phase_here
from lib.pipeline.portal import Portal
from lib.pipeline.skip_layout import SkipLayout
from lib.pipeline.skip_tracker import Key, Namespace, SkipTracker
from lib.runtime.dependency import fork_batch, get_phony
from lib.runtime.device import AbstractStream
from lib.runtime.microbatch import Batch, can_have_a_gradient
from lib.runtime.sharing import Crossing, sharing, version


class _Hidden(NamedTuple):
    """A tensor that a partition has hidden, as it was then."""

    name: str
    portal: Portal
    tensor: Tensor
    version: int
    phony: Tensor

    def as_it_is_now(self) -> _Hidden:
        """Hide it anew if a later layer of the partition has written it: whoever pops it gets that, as in one model."""
        now = version(self.tensor)
        if now == self.version:
            return self
        if phase_here.value is not Phase.SECOND:
            self.portal.put_tensor(self.tensor, self.portal.tensor_life)
        return self._replace(phony=self.portal.hide(self.tensor), version=now)

    def needs_a_way_back(self) -> bool:
        """Say whether a gradient may come to it."""
        # In a Checkpoint there is no graph yet: any tensor that could have a gradient may turn out to have one.
        return self.phony.requires_grad or (phase_here.value is Phase.FIRST and can_have_a_gradient(self.tensor))


class SkipTrackerThroughPortals(SkipTracker):
    """Lead a skip tensor that changes partition through a portal; one tracker for each micro-batch of a pipeline."""

    def __init__(self, skip_layout: SkipLayout) -> None:
        super().__init__()
        self.skip_layout = skip_layout
        self.portals: dict[Key, Portal] = {}
        # which tensors of the micro-batch have memory in common with each other, or with hidden ones
        self.shared: tuple[int, ...] = ()
        self._shared: set[Key] = set()  # and these hidden ones: nobody may write them
        self.begin(Crossing())

    def begin(self, crossing: Crossing) -> None:
        """Let a partition begin with the micro-batch; `crossing` notes what it pops."""
        self._crossing = crossing
        self._hidden: list[_Hidden] = []

    # ---- by the layers of a partition

    def save(self, batch: Batch, ns: Namespace | None, name: str, tensor: Tensor | None) -> None:
        """Hide a stashed tensor in a portal, if it is popped elsewhere."""
        if not self.skip_layout.requires_copy(ns, name):
            super().save(batch, ns, name, tensor)
            return
        portal = self.portals.setdefault((ns, name), Portal(None, 0))
        if phase_here.value is Phase.SECOND:
            # Whoever pops it has it already: only its gradient has still to come here.
            phony = None if tensor is None else portal.hide(tensor)
        else:
            # Blue now, orange later; once more orange if the partition that pops is going to be computed again.
            portal.put_tensor(tensor, tensor_life=3 if phase_here.value is Phase.FIRST else 2)
            phony = portal.blue()
        if phony is not None and tensor is not None:
            self._hidden.append(_Hidden(name, portal, tensor, version(tensor), phony))

    def load(self, batch: Batch, ns: Namespace | None, name: str) -> Tensor | None:
        """Show a hidden tensor in the partition that pops it."""
        if not self.skip_layout.requires_copy(ns, name):
            return super().load(batch, ns, name)
        portal = self.portals[ns, name]
        phony = portal.way_back
        if phase_here.value is Phase.SECOND:
            # A graph of its own, which ends here: the Checkpoint leads further back.
            if phony is not None:
                phony = get_phony(phony.device, requires_grad=True)
            if _graph_is_kept():
                portal.tensor_life += 1  # for the recomputation of a further backward
        tensor = portal.orange(phony)
        if tensor is not None:
            again = phase_here.value is Phase.FIRST
            self._crossing.note(f"skip tensor '{name}'", tensor, shared=(ns, name) in self._shared, again=again)
        return tensor

    # ---- by the pipeline, when a partition has ended

    def end(self, output: Batch) -> None:
        """Note the ways back of what the partition has hidden, and who shares memory with its output, as it ends.

        Raises RuntimeError if there is no way back.
        """
        self._crossing = Crossing()  # and let go of what has come to this one
        hidden = [one.as_it_is_now() for one in self._hidden]
        self._hidden = [one for one in hidden if one.needs_a_way_back()]
        if phase_here.value is not Phase.SECOND:
            self.look_who_shares(output)
        if hidden_phonies.value is not None:
            hidden_phonies.value += [HiddenPhony(one.phony, one.portal) for one in self._hidden]
        if phase_here.value is Phase.FIRST:
            self._refuse_without_way_back(output)
            return
        if phase_here.value is Phase.ONLY:
            # Straight to Blue, and not along the output: backward would come by layers whose gradient is None.
            for one in self._hidden:
                one.portal.way_back = one.phony
        self._hidden = []  # in a recomputation backward begins at the phonies, whether an output has a gradient or not

    def _refuse_without_way_back(self, output: Batch) -> None:
        if any(map(can_have_a_gradient, output)):
            return
        for one in self._hidden:
            raise RuntimeError(
                f"the gradient of skip tensor '{one.name}' has no way back: the partition that stashes it returns "
                "no tensor that could carry a gradient; let a floating-point tensor go beside it, pop it in the "
                "partition that stashes it, or use checkpoint='never'"
            )

    def leave(self, output: Batch) -> None:
        """Take from the output of a Checkpoint, where it is in the graph, the way back of what it has hidden."""
        if self._hidden:
            way_back = fork_batch(output)
            for one in self._hidden:
                one.portal.way_back = way_back
        self._hidden = []

    def look_who_shares(self, batch: Batch) -> None:
        """Note which tensors of the micro-batch have memory in common with each other, or with a hidden one."""
        tensors = list(batch)
        held = [(key, portal.tensor) for key, portal in self.portals.items() if portal.tensor is not None]
        shared = sharing([*tensors, *(tensor for _, tensor in held)])
        self._shared.update(key for k, (key, _) in enumerate(held, start=len(tensors)) if k in shared)
        self.shared = tuple(k for k in shared if k < len(tensors))

    def now_shared(self) -> tuple[int, ...]:
        """Return `shared` as it is when called: once a partition has ended, of its output."""
        return self.shared

    # ---- by the pipeline, on the way to the partition that pops

    def copy(self, batch: Batch, prev: AbstractStream, next: AbstractStream, ns: Namespace | None, name: str) -> None:
        """Move a hidden tensor to the partition that pops it, when `batch` goes there."""
        portal = self.portals[ns, name]
        portal.way_back = portal.copy(prev, next, portal.way_back)

    def ways_back(self, j: int) -> list[Tensor]:
        """Return the phonies of what partition j pops, as far as a gradient goes back."""
        phonies = [self.portals[ns, name].way_back for _, ns, name in self.skip_layout.copy_policy(j)]
        return [phony for phony in phonies if phony is not None and phony.requires_grad]


def _graph_is_kept() -> bool:
    """Say whether the backward that runs here, if one does, was called with retain_graph=True."""
    if torch._C._current_graph_task_id() == -1:
        return False
    kept: bool = torch._C._autograd._get_current_graph_task_keep_graph()
    return kept


SkipTrackerThroughPotals = SkipTrackerThroughPortals  # as torchgpipe spells it
