"""Orders that a plan may take: how long each takes, what it holds, and behind what reduction and gathering can hide.

A layer's gradient is complete when its *last* micro-batch has gone back through it; a layer's new weights are needed
when its *first* micro-batch comes. With one stage a rank both lie within one pass of a micro-batch. A rank with several
stages is done with some of them while it still works on others: there the reduction begins earlier. It is all read from
the timeline that `simulate` predicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from lib.schedules import Schedule, live_activations, simulate
from lib.schedules.makers import MAKERS, Maker
from lib.timeline import Span


class PlannedOrder(NamedTuple):
    """An order of m micro-batches on n ranks; a forward of one micro-batch through a rank's layers takes 1.

    seconds: until the last rank is done. held: micro-batches whose activations a rank holds at most. stages: of a rank.
    halves: its backward is cut in two.
    complete: for the 1st, 2nd, … layer of a rank whose gradient is complete, when that is on the slowest rank, counted
    from the end of the pipeline, so never above 0. needed: when a rank needs the new weights of its 1st, 2nd, … layer.
    """

    name: str = ""
    seconds: float = math.inf
    held: float = 0.0
    stages: int = 1
    halves: bool = False
    complete: tuple[float, ...] = ()
    needed: tuple[float, ...] = ()

    def left_of(self, reduce: float) -> float:
        """Return how long a reduction of so many seconds is still under way when the pipeline has ended."""
        layers = len(self.complete)
        last = (moment + reduce * (layers - k) / layers for k, moment in enumerate(self.complete))
        return max(last)

    def late_by(self, gather: float) -> float:
        """Return how late the pipeline gets at most by a gathering of so many seconds, if each layer waits for its own.

        As late as the latest layer: no idle time behind it is counted upon.
        """
        layers = len(self.needed)
        return max(gather * (k + 1) / layers - moment for k, moment in enumerate(self.needed))


@lru_cache(maxsize=512)
def planned_orders(n: int, layers: int, rounds: float, message: float, m: int) -> tuple[PlannedOrder, ...]:
    """Return all orders of lib that flush, with every number of stages a rank, for n ranks of `layers` / n layers each.

    rounds, message: a backward and a message, in forwards of a rank. A table has 2n micro-batches at most; each further
    one takes and holds what it does between 2n and 4n, and hides nothing more.
    """
    first = min(m, 2 * n)
    found = []
    for maker in MAKERS.values():
        quickest = math.inf
        for parameters in _sizes_of(maker, n, layers):
            try:
                table = maker.make(first, n, **parameters)
            except ValueError:  # too few micro-batches for it
                break
            if layers % table.stages:
                continue
            order = _order_of(maker.name, table, n, layers, rounds, message)
            if maker.ahead and order.seconds >= quickest:
                break  # whoever goes further ahead holds more
            quickest = order.seconds
            if m > first:
                longer = _order_of(
                    maker.name, maker.make(2 * first, n, **parameters), n, layers, rounds, message
                )
                each = (longer.seconds - order.seconds) / first
                more = (longer.held - order.held) / first
                order = order._replace(
                    seconds=order.seconds + (m - first) * each, held=order.held + (m - first) * more
                )
            found.append(order)
    return tuple(found)


def _sizes_of(maker: Maker, n: int, layers: int) -> Iterator[dict[str, int]]:
    """Yield what `make` takes besides m and n."""
    if not maker.flushes:
        return
    if maker.looped:
        for v in range(2, layers // n + 1):
            if layers % (n * v) == 0:
                yield {"stages_per_rank": v}
    elif maker.ahead:
        for ahead in range(2, 2 * n):
            yield {"ahead": ahead}
    else:
        yield {}


def _order_of(name: str, table: Schedule, n: int, layers: int, rounds: float, message: float) -> PlannedOrder:
    """Predict a table, and read from its timeline when gradients are complete and weights are needed."""
    per_rank = table.stages // n
    forward = 1 / per_rank
    trace = simulate(table, forward, rounds * forward, forward, communicate=message)
    spans = {span.label: span for span in trace}
    complete = []
    needed = []
    for rank in range(n):
        first: dict[int, Span] = {}
        last: dict[int, Span] = {}
        for action in table.actions(rank):
            span = spans[str(action)]
            if action.op == "F":
                first.setdefault(action.stage, span)
            elif action.op != "I":
                last[action.stage] = span
        parts = layers // table.stages
        # layers of a stage are equal: the first is used at once, and the gradient of the last one ends with its span
        complete.append(
            sorted(
                _moment(span, k + 1, parts) - trace.makespan for span in last.values() for k in range(parts)
            )
        )
        needed.append(sorted(_moment(span, k, parts) for span in first.values() for k in range(parts)))
    return PlannedOrder(
        name=name,
        seconds=trace.makespan,
        held=max(live_activations(table)) / per_rank,
        stages=per_rank,
        halves=any(action.op == "W" for _, action in table),
        complete=tuple(max(of_ranks) for of_ranks in zip(*complete, strict=True)),
        needed=tuple(min(of_ranks) for of_ranks in zip(*needed, strict=True)),
    )


def _moment(span: Span, k: int, parts: int) -> float:
    """Return when k of the equal parts of a span are over."""
    return span.start + (span.end - span.start) * k / parts
