"""The order of backward: in each partition micro-batch i before i - 1, and every Recompute before any Checkpoint.

autograd follows edges, and runs of the nodes that are ready the one with the highest number first. So there are two
ways to say what shall go first, and a pipeline needs both: an edge that carries no data, and a number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lib.runtime.dependency import fork_batch, get_phony, join, join_batch
from lib.runtime.microbatch import Batch, can_have_a_gradient


class BackwardOrder:
    """Say in which order backward goes through one run of a pipeline. checkpoint_stop: as of Pipeline."""

    def __init__(self, checkpoint_stop: int) -> None:
        self.checkpoint_stop = checkpoint_stop
        self._ties: dict[int, Tensor] = {}  # by micro-batch: the phony that its next Checkpoint takes
        self._turn = 0  # the number that the next Checkpoint gets

    def begin(self, checkpoints: int) -> None:
        """Set numbers for so many Checkpoints aside; call it in the thread that builds the graph."""
        if self.checkpoint_stop:
            self._turn = _below_all_nodes_to_come(checkpoints)

    def depend(self, batches: list[Batch], i: int) -> None:
        """Let backward finish micro-batch i, as far as it is now, before it comes to what i - 1 is now."""
        phony = fork_batch(batches[i - 1])
        batch = batches[i]
        if phony is None or join_batch(batch, phony):
            return
        # The input of the model, without gradient. A Checkpoint can be tied by its own phony; a plain partition only by
        # its input, which costs the gradient of that input: not worth it where nothing is recomputed.
        if i < self.checkpoint_stop:
            self._ties[i] = phony
        elif self.checkpoint_stop:
            lane = next((k for k, x in enumerate(batch) if can_have_a_gradient(x)), None)
            if lane is not None:
                batch[lane] = join(batch[lane], phony)

    def take_tie(self, i: int, device: torch.device, ways_back: Iterable[Tensor]) -> Tensor | None:
        """Return the phony for the next Checkpoint of micro-batch i, on `device`; None where its input says it all.

        After that Checkpoint backward goes to i - 1, if the input could not be tied, and to all `ways_back`.
        """
        phony = self._ties.pop(i, None)
        for way_back in ways_back:
            if phony is None:
                phony = get_phony(device, requires_grad=True)
            phony = join(phony, way_back)
        return phony

    def number(self, batch: Batch) -> None:
        """Number the Checkpoint that made `batch`: of the nodes that are ready, autograd runs the highest number first.

        By itself each worker thread counts for itself, and the order of backward on a CPU would hang on how many nodes
        a thread has ever made. So, of the nodes that are ready: every Recompute before any Checkpoint (this thread's
        numbers are all above _turn), the Checkpoints last computed first. Where a plain micro-batch goes among those of
        others, its edges leave open: its nodes keep the numbers that its workers' threads gave them.
        """
        node: Any = next((x.grad_fn for x in batch if x.grad_fn is not None), None)
        if node is not None:
            node._set_sequence_nr(self._turn)
            self._turn += 1


def _below_all_nodes_to_come(nodes: int) -> int:
    """Return the first of `nodes` numbers that lie below that of every node which this thread will add to a graph."""
    newest = _number_of_a_new_node()
    while newest < nodes:  # a young thread, which counts from 0: use its low numbers up
        newest = _number_of_a_new_node()
    return newest - nodes


def _number_of_a_new_node() -> int:
    node: Any = (get_phony(torch.device("cpu"), requires_grad=True) * 1).grad_fn
    number: int = node._sequence_nr()
    return number
