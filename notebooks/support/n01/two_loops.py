"""Two loops of a reader's loader at once, on watched threads: one ends while the other one is open."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from support.kit.threads import EndedError
from support.n01.on_processes import HANGS, SHARED, TWO_LOOPS
from support.n01.watched import Stuck, WatchedTeam

#: Lists of the first loop, how many of its batches come before the second loop begins, and lists of the second.
LENGTHS = (
    (4, 3, 1),  # what is counted anew with the second loop is too little for the first
    (2, 1, 4),  # what the second loop adds is too much for it
)


def fault_of_two_loops(work: Any, load: Any) -> str:
    """Begin a loop, begin another one, end the first and then the second; say what is wrong, "" if nothing."""
    return next(filter(None, (_fault(work, load, *lengths) for lengths in LENGTHS)), "")


def _fault(work: Any, load: Any, first: int, before: int, second: int) -> str:
    team = WatchedTeam()
    one, other = (
        load(work, range(200), [[place + i] for i in range(lists)], list, context=team)
        for place, lists in ((0, first), (100, second))
    )
    try:
        got = [next(one) for _ in range(before)]
        begun = next(other)
        got += [*one, begun, *other]
    except Stuck:
        return f"{TWO_LOOPS}, {HANGS}. {SHARED}"
    except Exception as error:
        return f"{TWO_LOOPS}, your code raised {error!r}. {SHARED}"
    finally:
        for each in (one, other):
            with suppress(Exception, Stuck, EndedError):
                each.close()
        team.close()
    due = [[i] for i in range(first)] + [[100 + i] for i in range(second)]
    return "" if got == due else f"{TWO_LOOPS}, they give {got}, due are {due}. {SHARED}"
