"""Start real ranks from a notebook cell: `torchrun("06_train.py", "--out", "run", ranks=2)`.

    this process ── torchrun's agent ──┬── rank 0          a session each, so nothing that we send to one
                                       ├── rank 1          (an interrupt in Jupyter) reaches the others by itself
                                       └── …

The agent starts the ranks, tells each its number and where to meet, watches them, and if one dies it ends the others
and, with max_restarts, starts all of them again. Why a script of its own, and not functions of the notebook: a started
process has to import what it runs, and the cells of a notebook can't be imported.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lib._arguments import integer
from lib.training.rank_logs import Failure, RankLogs

REPOSITORY = Path(__file__).resolve().parents[2]
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
POLL = 0.05  # seconds between two looks at the logs
ROLL_CALL = 0.5  # seconds between two looks at which processes there are
PATIENCE = 10.0  # seconds for killed processes to be gone: one in a driver call takes its time


@dataclass(frozen=True)
class Run:
    """Say how a run ended: exit code, all lines with `[rank r]` or `[torchrun]` in front, seconds from start to end."""

    returncode: int
    lines: tuple[str, ...]
    seconds: float

    def __repr__(self) -> str:
        return f"<Run: exit code {self.returncode}, {len(self.lines)} lines, {self.seconds:.1f} s>"


class RankError(RuntimeError):
    """A rank failed, and with it the run. `rank`: which one, None if it was torchrun itself; `run`: what was said.

    exitcode: that of the rank, negative for a signal. error: its last word, such as "ValueError: …"; traceback: the
    lines before that. The message has all of them, the last word first.
    """

    def __init__(self, message: str, failure: Failure, run: Run) -> None:
        super().__init__(message)
        self.rank, self.exitcode = failure.rank, failure.exitcode
        self.error, self.traceback, self.run = failure.error, failure.traceback, run


class RankTimeoutError(RankError, TimeoutError):
    """The ranks were not done in time; they were ended."""


def torchrun(
    script: str | os.PathLike[str],
    *arguments: object,
    ranks: int = 2,
    max_restarts: int = 0,
    timeout: float = 120.0,
    environment: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> Run:
    """Run a script on so many ranks on this machine, print their lines as they come, and return when all are done.

    As `torchrun --nproc-per-node RANKS SCRIPT ARGUMENTS` in a terminal. max_restarts: how often torchrun may start all
    ranks anew after one has died. timeout: seconds for everything. environment: more variables for the ranks; they have
    this repository in PYTHONPATH and one OpenMP thread each. quiet: keep the lines in the result, print none. What
    torchrun itself says is only kept.

    Whatever happens, no process stays. Raises RankError if a rank fails and no restart is left, RankTimeoutError (also
    a TimeoutError), FileNotFoundError for a script that is none, ValueError for ranks < 1 or timeout <= 0. An
    interrupt stays a KeyboardInterrupt.
    """
    if not Path(script).is_file():
        raise FileNotFoundError(f"no script {str(script)!r} in {Path.cwd()}")
    ranks = integer("ranks", ranks, at_least=1)
    max_restarts = integer("max_restarts", max_restarts, at_least=0)
    if not 0 < timeout < float("inf"):
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchrun-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "lib.training.loopback", "--rdzv-backend", "loopback"]
        command += ["--nproc-per-node", str(ranks), "--max-restarts", str(max_restarts)]
        command += ["--monitor-interval", "0.1", "--local-addr", "127.0.0.1"]
        command += ["--log-dir", f"{folder}/ranks", "--redirects", "3"]
        command += [os.fspath(script), *map(str, arguments)]
        logs = RankLogs(folder, show=not quiet)
        with open(logs.agent_log, "wb") as own:
            agent = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=own,
                stderr=subprocess.STDOUT,
                env=_environment(environment),
                start_new_session=True,
            )
        family = _Family(agent)
        try:
            in_time = _watch(agent, family, logs, began + timeout)
        finally:
            family.end()
        logs.read(to_the_end=True)
        run = Run(agent.returncode, tuple(logs.lines), time.monotonic() - began)
        if not in_time:
            words = "; ".join(logs.last_words(ranks))
            failure = Failure(None, agent.returncode)
            raise RankTimeoutError(f"not done after {timeout:g} s, so it was ended; {words}", failure, run)
        if agent.returncode != 0:
            failure = logs.cause(agent.returncode)
            raise RankError(failure.message(), failure, run)
    return run


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    ours = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    # The ranks talk to each other over the network, even here: over its loopback, that no other machine hears.
    return {
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "NCCL_SOCKET_IFNAME": LOOPBACK,
        **os.environ,
        **ours,
        **(more or {}),
    }


def _watch(agent: subprocess.Popen[bytes], family: _Family, logs: RankLogs, deadline: float) -> bool:
    """Print lines until the agent ends (True) or it is too late (False)."""
    while agent.poll() is None:
        if time.monotonic() > deadline:
            return False
        family.call_the_roll()
        logs.read()
        time.sleep(POLL)
    return True


class _Family:
    """The agent and every process below it: known by more than their ids, so that no other can be hit."""

    def __init__(self, agent: subprocess.Popen[bytes]) -> None:
        self._agent = agent
        self._known: set[Any] = {psutil.Process(agent.pid)}
        self._next_call = 0.0

    def call_the_roll(self) -> None:
        """Note who is there, now and then: when its parent is dead, a process can't be found any more."""
        if time.monotonic() >= self._next_call:
            self._next_call = time.monotonic() + ROLL_CALL
            self._known |= self._children()

    def end(self) -> None:
        """End whoever is left."""
        try:
            self._end()
        except BaseException:  # the reader has pressed the stop button once more
            self._end()
            raise

    def _end(self) -> None:
        # All are stopped before one is killed: whoever runs may start another while we look. Nor is the agent asked to
        # end its ranks: while it starts them, it would forget those that it has begun with.
        stopped: set[Any] = set()
        while new := (self._known | self._children()) - stopped:
            self._each(new, "suspend")
            stopped |= new
            self._known |= new
        self._each(self._known, "kill")
        deadline = time.monotonic() + PATIENCE
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agent.wait(PATIENCE)
        while any(map(self._alive, self._known)) and time.monotonic() < deadline:
            time.sleep(POLL)

    def _children(self) -> set[Any]:
        found = set()
        for process in self._known:
            with contextlib.suppress(psutil.Error):
                found.update(process.children(recursive=True))
        return found

    def _each(self, processes: set[Any], what: str) -> None:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                getattr(process, what)()

    def _alive(self, process: Any) -> bool:
        try:
            return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False
