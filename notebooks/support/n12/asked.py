"""What a MiniGPipe of notebook 12 does in its own thread: it ties, and asks its method `layer` what computes a pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from threading import Thread, current_thread
from typing import Any, TypeAlias
from unittest.mock import Mock, patch

import torch
from torch import Tensor, nn

from lib.runtime import dependency
from support import built
from support.kit.threads import Aside

_Pair: TypeAlias = tuple[int, int]


class AskedForLayers:
    """Let a pipeline note for which pairs it asks, and in which thread, and for which it calls what it was given."""

    def __init__(self, model: Any, caller: Thread | None) -> None:
        self.asked: Counter[_Pair] = Counter()
        self.elsewhere: Counter[_Pair] = Counter()  # in another thread
        self.called: Counter[_Pair] = Counter()
        self.caller = caller
        self.inside = model.layer
        model.layer = self.layer

    def layer(self, i: int, j: int) -> Callable[[Any], Any]:
        """Return what computes a pair, and notes that it does."""
        if current_thread() is self.caller:
            self.asked[i, j] += 1
        else:
            self.elsewhere[i, j] += 1
        inside = self.inside(i, j)

        def noted(x: Any) -> Any:
            self.called[i, j] += 1
            return inside(x)

        return noted

    def fault(self, m: int, n: int) -> str:
        """Say whether a pair was not asked for, or more than once, or something else has computed it."""
        pairs = list(product(range(m), range(n)))
        for i, j in pairs:
            if self.asked[i, j] != 1:
                return (
                    f"in its own thread forward asked self.layer({i}, {j}) {self.asked[i, j]} ×, not once: what "
                    f"computes micro-batch {i} in partition {j} is for `layer` to say"
                )
        for i, j in self.asked:
            if (i, j) not in pairs:
                return f"forward asked self.layer({i}, {j}), but m is {m} and n is {n}: i and j begin at 0"
        for i, j in pairs:
            if not self.called[i, j]:
                return f"what self.layer({i}, {j}) returned was never called: something else has computed this pair"
        return self._fault_of_more()

    def _fault_of_more(self) -> str:
        for (i, j), times in sorted((self.asked + self.elsewhere).items()):
            if times > 1:
                return (
                    f"forward and backward asked self.layer({i}, {j}) {times} × in all: once is enough, in forward's "
                    "own thread"
                )
        return ""

    def fault_of_recompute(self, m: int, n: int, again: int) -> str:
        """Say whether something else has computed a pair again: the first micro-batches are computed twice."""
        for i, j in product(range(m), range(n)):
            times = 1 + (i < again)
            if self.called[i, j] != times:
                return (
                    f"what self.layer({i}, {j}) returned was called {self.called[i, j]} ×, not {times} ×: in backward "
                    "something else has computed its pair again, or it another pair"
                )
        return self._fault_of_more()


def fault_of_an_interrupt(answer: Callable[..., Any], patience: float) -> str:
    """Say whether threads are left where forward asks for a layer, and a KeyboardInterrupt comes."""
    stop = KeyboardInterrupt()  # keeps the frames that it ends, as a notebook's last traceback does
    model = answer(nn.Sequential(nn.Identity(), nn.Identity()), [1, 1], 2)
    model.layer = Mock(side_effect=stop)
    with Aside(lambda: model(torch.ones(2, 1))) as aside:
        left = len(aside.left(0.2)) if aside.over(patience) else 0
    if not left:
        return ""
    return f"interrupted in forward's own thread: {left} threads are left when forward has ended."


def fault_of_ties_elsewhere(answer: Callable[..., Any], patience: float) -> str:
    """Say whether another thread than forward's own makes a tie: two that write into one list overwrite each other's.

    Looked at are the Joins of lib and those of notebook 11, of which every tie is made.
    """
    callers: list[Thread] = []
    ties: list[Thread] = []

    def noting(join: Callable[..., Any]) -> Any:
        def forward(ctx: Any, *tensors: Tensor) -> Any:
            ties.append(current_thread())
            return join(ctx, *tensors)

        return staticmethod(forward)

    model = answer(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), [1, 1], 3)

    def work() -> None:
        callers.append(current_thread())
        model(torch.ones(3, 2))

    watched = [
        patch.object(each, "forward", noting(each.forward)) for each in (dependency.Join, built.MyJoin)
    ]
    with watched[0], watched[1], Aside(work) as aside:
        aside.over(patience)
    if {*ties} <= {*callers}:
        return ""
    return "a tie is made in a worker's thread: ties are for forward's own thread, or two workers write into one list."
