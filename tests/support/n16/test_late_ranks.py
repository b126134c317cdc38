"""A rank that is late in starting: on a busy machine that is no hang."""

import os
import signal
import threading
from contextlib import suppress

import pytest

from support.n16 import warm

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops a process by a signal"),
]


def whose(dist):
    return dist.get_rank()


def go_on(pid: int) -> None:
    with suppress(ProcessLookupError):  # it was done before it was stopped
        os.kill(pid, signal.SIGCONT)


def test_ranks_that_have_not_met_yet_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    started = warm._started

    def started_late(*order):
        processes, lines = started(*order)
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
            threading.Timer(2 * warm.QUIET, go_on, (process.pid,)).start()
        return processes, lines

    monkeypatch.setattr(warm, "_started", started_late)
    stands = warm.on_ranks(whose, 2, {})
    assert [(stand.how, stand.value) for stand in stands] == [("done", 0), ("done", 1)]
