"""Run a function in a process of its own: what it leaves in memory ends with it.

CAN_FORK                 whether this system can copy a process; a page and Windows can't
in_a_process_of_its_own  a function, run in a copy of this process
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from support.kit.raised import Finding, told_of

CAN_FORK = hasattr(os, "fork") and sys.platform != "emscripten"
PATIENCE = 20  # seconds; beyond them the system ends the process
CLOCKS = 0.1  # seconds by which the time of a file may be behind ours


def in_a_process_of_its_own(work: Callable[[], Any], no_file_since: float = math.inf) -> Any:
    """Return what the function returns when a copy of this process calls it.

    no_file_since: the copy finds no file that was written at this time.time() or later, as on another machine.
    Raises Finding with the sentence about an exception that was raised there, or if it takes too long;
    ChildProcessError if the copy dies: some systems end a copy of a process that has threads.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, from Python 3.12 on: the copy waits for none
        child = os.fork()
    if child == 0:
        _answer_and_end(work, no_file_since, writing)
    os.close(writing)
    try:
        with open(reading, "rb") as pipe:
            said = pipe.read()
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        raise Finding(f"in a process of its own your code did not come to an end within {PATIENCE} seconds.")
    if not said:
        raise ChildProcessError(f"the copy of this process died without an answer, status {status}")
    result, fault = pickle.loads(said)
    if fault:
        raise Finding(fault)
    return result


def _answer_and_end(work: Callable[[], Any], no_file_since: float, writing: int) -> NoReturn:
    """Write result and fault into the pipe, and end without what Python does at its end: that is the parent's."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(PATIENCE)
    sys.addaudithook(partial(_no_file_of_the_others, no_file_since))
    try:
        said = pickle.dumps((work(), ""))
    except BaseException as error:
        said = pickle.dumps((None, told_of(error)))
    with suppress(BaseException), open(writing, "wb") as pipe:
        pipe.write(said)
    os._exit(0)


def _no_file_of_the_others(since: float, event: str, arguments: tuple[Any, ...]) -> None:
    """Tell whoever opens a file to read in it that it is not there, where it was written too late."""
    if event not in ("open", "sqlite3.connect") or not isinstance(arguments[0], (str, bytes, os.PathLike)):
        return
    flags = arguments[2] if event == "open" else os.O_RDWR
    begins_anew = flags & os.O_TRUNC or flags & os.O_WRONLY
    if begins_anew or not os.path.exists(arguments[0]):
        return
    if os.stat(arguments[0]).st_mtime > since - CLOCKS:
        raise FileNotFoundError(2, "No such file in a new process", str(arguments[0]))
