"""The threads of a reader: what is left of one that nobody can end."""

import gc
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.kit.threads import Aside

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"

#: Lines of a process of their own: where this goes wrong, no alarm and no timeout of Python gets through any more.
TRACED_AFTER = """
import sys, threading
from support.kit.threads import Aside

def under_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def endless():
    while True:
        pass

with Aside({work}) as aside:
    aside.over(0.1)
calls = []
sys.settrace(lambda frame, event, argument: calls.append(event))
(lambda: None)()
sys.settrace(None)
print(len(calls), aside.runs[0].thread.is_alive())
"""


def traced_after(work):
    command = [sys.executable, "-c", TRACED_AFTER.format(work=work)]
    return subprocess.run(command, cwd=NOTEBOOKS, capture_output=True, text=True, timeout=60).stdout.split()


def test_a_thread_that_waits_where_nobody_can_end_it_leaves_the_interpreter_as_it_was():
    """The exception that it never received marks all of Python 3.11: a traced call then never returns."""
    calls, alive = traced_after("under_a_lock")
    assert int(calls) >= 1
    assert alive == "True"


def test_a_thread_that_computes_for_ever_is_ended():
    calls, alive = traced_after("endless")
    assert int(calls) >= 1
    assert alive == "False"


class InACircle:
    """Garbage, as a loader with workers may be; notes in which thread it is collected."""

    def __init__(self, ended_in):
        self.itself = self
        self.ended_in = ended_in

    def __del__(self):
        self.ended_in.append(threading.current_thread())


def test_what_others_have_left_is_not_collected_in_a_readers_thread():
    ended_in = []
    gc.collect()
    InACircle(ended_in)
    with Aside(lambda: [[] for _ in range(100_000)]) as aside:
        assert aside.over(60)
    assert gc.isenabled()
    gc.collect()
    assert ended_in == [threading.current_thread()]


def takes_the_lock_of_logging_and_never_ends():
    logging._acquireLock()
    while True:
        pass


def starts_one_that_does():
    threading.Thread(target=takes_the_lock_of_logging_and_never_ends).start()


@pytest.mark.parametrize("work", [takes_the_lock_of_logging_and_never_ends, starts_one_that_does])
def test_a_thread_that_is_ended_while_it_holds_the_lock_of_logging_leaves_it_to_the_others(work):
    """A worker of GPipe that compiled its layer once waited for it for ever."""
    with Aside(work) as aside:
        aside.over(0.1)
    for thread in [aside.runs[0].thread, *aside.started]:
        thread.join(10)
    free = logging._lock.acquire(timeout=5)
    if free:
        logging._lock.release()
    assert free
