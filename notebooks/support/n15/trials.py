"""What steps of a pipeline of processes are tried with: a tiny tower on imitated ranks, in threads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lib.schedules import Schedule, eager_one_f_one_b, gpipe, one_f_one_b
from lib.text import plural
from support.kit.judged import Fault
from support.kit.raised import Finding
from support.n15.orders import ActionPair, drawn_order, far_apart
from support.n15.orders import pairs_of as pairs_of
from support.n15.sets import fault_of_names
from support.n15.tiny_job import LAST_FIRST, WHOLE, TinyJob

#: Ranks, micro-batches, whether gradients are there already, the rows of a micro-batch, how the job differs.
_JOBS = (
    (2, 4, True, 2, ""),
    (2, 1, True, 2, ""),
    (3, 4, True, 2, ""),
    (2, 3, False, 2, LAST_FIRST),
    (4, 2, True, 3, ""),
    (2, 6, True, 3, WHOLE),
)


@contextmanager
def _keeping_nothing(answer: Any, where: str) -> Iterator[None]:
    """Run ranks; if that fails and a default of the answer has grown meanwhile, it is this that is told."""
    named = {name: each.default for name, each in inspect.signature(answer).parameters.items()}
    held = {name: default for name, default in named.items() if isinstance(default, (list, dict, set))}
    sizes = {name: len(default) for name, default in held.items()}
    try:
        yield
    except Finding:
        raise
    except Exception as error:
        for name, default in held.items():
            if len(default) != sizes[name]:
                raise Finding(
                    f"{where}: The default `{name}` is not what it was before the call: a default is made once, and is "
                    "the same one in every call and on every rank here."
                ) from error
        raise


def fault_of_step(answer: Any) -> str:
    """Run a tiny tower on 2 to 4 imitated ranks; say what differs first from one process, and what was done when."""
    for n, m, left, rows, how in _JOBS:
        where = _named(f"{n} ranks", m, how)
        job = TinyJob(n, m, left, rows, how=how)

        def step(rank: int, *given: Any) -> Any:
            return answer(*given)

        with _keeping_nothing(answer, where):
            wrong = job.fault(step, where)
        found = (
            wrong
            or job.fault_of_number()
            or job.fault_of_pace()
            or job.fault_of_halves()
            or job.fault_of_ticks([pairs_of(gpipe(m, n), rank) for rank in range(n)])
        )
        if found:
            return _in(where, found)
    return fault_of_names(answer)


def _named(ranks: str, m: int, how: str) -> str:
    return ", ".join(filter(None, [ranks, plural(m, "micro-batch", "micro-batches"), how]))


#: Orders of lib, their ranks and micro-batches.
_ORDERS: tuple[tuple[str, Callable[[int, int], Schedule], int, int], ...] = (
    ("1F1B", one_f_one_b, 2, 4),
    ("1F1B", one_f_one_b, 3, 5),
    ("1F1B", one_f_one_b, 2, 1),
    ("GPipe", gpipe, 3, 2),
    ("eager 1F1B", eager_one_f_one_b, 3, 4),
)
#: Orders that are drawn at random: ranks, micro-batches, seed.
_DRAWN = ((2, 3, 0), (3, 4, 1), (2, 5, 2), (3, 3, 3), (4, 4, 4))
_OTHERWISE = {"random order 0": WHOLE, "random order 2": LAST_FIRST}


def fault_of_follow(answer: Any) -> str:
    """Run orders of lib and random ones on 2 to 4 imitated ranks; say what differs first from one process."""
    tables = [(name, [pairs_of(make(m, n), rank) for rank in range(n)], m) for name, make, n, m in _ORDERS]
    tables += [(f"random order {seed}", drawn_order(n, m, seed), m) for n, m, seed in _DRAWN]
    tables += [("GPipe before one by one", far_apart(40, 3), 40)]
    for name, table, m in tables:
        n = len(table)
        how = _OTHERWISE.get(name, "")
        where = _named(f"{name} on {n} ranks", m, how)
        job = TinyJob(n, m, left=name != "GPipe", how=how)
        given_to = [list(row) for row in table]

        def step(rank: int, *given: Any, actions: Sequence[list[ActionPair]] = given_to) -> Any:
            return answer(actions[rank], *given)

        found = job.fault(step, where)
        if found and _only_early(step, TinyJob(n, m, job.left, at_once=True, how=how)):
            found = f"{found} With recv in place of irecv it is right: a tensor is used before its message is there."
        found = found or job.fault_of_number() or job.fault_of_order(table) or job.fault_of_ticks(table)
        if not found and given_to != table:
            found = "the actions are other ones after the step: they are the caller's."
        if found:
            return _in(where, found)
    return fault_of_names(answer)


def _only_early(step: Any, job: TinyJob) -> bool:
    """Say whether a step is right where no message is late."""
    try:
        return not job.fault(step, "")
    except Exception:
        return False


def _in(where: str, found: str) -> str:
    """Say in which job a fault was found; it stays known by what it was known by."""
    return Fault(f"{where}: {found}", f"{where}: {found.known_by if isinstance(found, Fault) else found}")
