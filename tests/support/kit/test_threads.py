"""The threads of a reader: what is left of one that nobody can end."""

import subprocess
import sys
from pathlib import Path

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
