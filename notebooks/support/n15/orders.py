"""Orders of forwards and backwards: what a schedule gives a rank to do, and orders that nobody has named."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeAlias

from lib.schedules import Schedule

ActionPair: TypeAlias = tuple[str, int]
"""An action of a rank: ("F", 0) is the forward of micro-batch 0."""


def pairs_of(schedule: Schedule, rank: int) -> list[ActionPair]:
    """Return what a rank does in turn, as ("F", 0): the operation and its micro-batch."""
    return [(action.op, action.micro_batch) for action in schedule.actions(rank)]


def drawn_order(ranks: int, micro_batches: int, seed: int) -> list[list[ActionPair]]:
    """Return a random order for each rank in which nobody waits for ever, if sends only begin.

    Forwards come as 0, 1, 2, …; backwards in a random order, the same on all ranks. An order is drawn as a run is: one
    of the actions that can be done now is done, until all are.
    """
    dice = random.Random(seed)
    back = dice.sample(range(micro_batches), micro_batches)
    done: list[list[ActionPair]] = [[] for _ in range(ranks)]

    def next_of(rank: int) -> list[ActionPair]:
        """Return what a rank can do now: its next forward, its next backward."""
        own = done[rank]
        forwards = sum(op == "F" for op, _ in own)
        backwards = len(own) - forwards
        found: list[ActionPair] = []
        if forwards < micro_batches and (rank == 0 or ("F", forwards) in done[rank - 1]):
            found.append(("F", forwards))
        if backwards < micro_batches:
            i = back[backwards]
            arrived = rank + 1 == ranks or ("B", i) in done[rank + 1]
            if arrived and ("F", i) in own:
                found.append(("B", i))
        return found

    while True:
        possible = [(rank, pair) for rank in range(ranks) for pair in next_of(rank)]
        if not possible:
            return done
        rank, pair = dice.choice(possible)
        done[rank].append(pair)


def far_apart(micro_batches: int, ranks: int) -> list[list[ActionPair]]:
    """Return an order that lets ranks drift apart: the first goes all forward, the others back after each forward."""
    numbers = range(micro_batches)
    all_forwards = [("F", i) for i in numbers] + [("B", i) for i in numbers]
    one_by_one = [(op, i) for i in numbers for op in ("F", "B")]
    return [all_forwards, *[one_by_one] * (ranks - 1)]


def shown(pairs: Sequence[ActionPair]) -> str:
    """Write actions as tables do: F0 F1 B0."""
    return " ".join(f"{op}{i}" for op, i in pairs)
