"""Start real ranks from a notebook cell: `torchrun("06_train.py", "--out", "run", ranks=2)`.

    this process ── torchrun's agent ──┬── rank 0   meet() … leave()    a session each, so nothing that we send to one
                                       ├── rank 1   meet() … leave()    (an interrupt in Jupyter) reaches the others
                                       └── …

The agent starts the ranks, tells each its number and where to meet, watches them, and if one dies it ends the others
and, with max_restarts, starts all of them again. Why a script of its own, and not functions of the notebook: a started
process has to import what it runs, and the cells of a notebook can't be imported.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from lib.arguments import integer, seconds_above_zero
from lib.memory import import_psutil
from lib.training.failures import Failure, RankLogs

REPOSITORY = Path(__file__).resolve().parents[2]
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
POLL = 0.05  # seconds between two looks at the logs
ROLL_CALL = 0.5  # seconds between two looks at which processes there are
MARK = "TORCHRUN_FOLDER"  # names the run in the environment: so those are found that lost their parent before we looked
PATIENCE = 10.0  # seconds for killed processes to be gone: one in a driver call takes its time
ANSWER = 2.0  # seconds for ranks to say where they stand
_FRAME = re.compile(r'File "(.*)", line (\d+) in ')


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

    def __init__(self, failure: Failure, run: Run, message: str = "") -> None:
        super().__init__(message or failure.message())
        self.rank = failure.rank
        self.exitcode = failure.exitcode
        self.error = failure.error
        self.traceback = failure.traceback
        self.run = run


class RankTimeoutError(RankError, TimeoutError):
    """The ranks were not done in time; they were ended.

    It says what each has printed last, and of one that has called `meet` in which line of the script it stood.
    """


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

    `torchrun("train.py", "--epochs", 3, ranks=4)` is `torchrun --nproc-per-node 4 train.py --epochs 3` of a terminal.
    max_restarts: how often torchrun may start all ranks anew after one has died. timeout: seconds for everything.
    environment: more variables for the ranks; they have this repository and its notebooks in PYTHONPATH, and one OpenMP
    thread each. quiet: keep the lines in the result, print none. What torchrun itself says is only kept.

    Whatever happens, no process stays that a rank has started, not even of an agent that was killed: on Linux whoever
    loses its parent becomes a child of a process above the agent (lib.training.loopback); elsewhere it is known by its
    environment, or because it was seen before. Should a rank kill that process above, too, it is so on Linux as well.
    Raises RankError if a rank fails and no restart is left, RankTimeoutError (also
    a TimeoutError), FileNotFoundError for a script that is none, ValueError for ranks < 1 or timeout <= 0, ImportError
    without psutil. An interrupt stays a KeyboardInterrupt.
    """
    if not Path(script).is_file():
        raise FileNotFoundError(f"no script {str(script)!r} in {Path.cwd()}")
    ranks = integer("ranks", ranks, at_least=1)
    max_restarts = integer("max_restarts", max_restarts, at_least=0)
    timeout = seconds_above_zero("timeout", timeout)
    import_psutil("torchrun")  # before there is a process that only psutil could find
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
                env=_environment(environment) | {MARK: folder},
                stdin=subprocess.DEVNULL,
                stdout=own,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        family = _Family(agent, folder)
        try:
            in_time = _watch(agent, family, logs, began + timeout)
            stands = {} if in_time else family.where_they_stand(Path(script).resolve())
        finally:
            family.end()
        logs.read(to_the_end=True)
        run = Run(agent.returncode, tuple(logs.lines), time.monotonic() - began)
        if not in_time:
            words = f"not done after {timeout:g} s, so it was ended; {'; '.join(logs.last_words(ranks, stands))}"
            raise RankTimeoutError(Failure(None, agent.returncode), run, words)
        if agent.returncode != 0:
            raise RankError(logs.cause(agent.returncode), run)
    return run


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    folders = [str(REPOSITORY), str(REPOSITORY / "notebooks"), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, folders))
    ours = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    # The ranks talk to each other over the network, even here: over its loopback, that no other machine hears.
    network = {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
    return {**network, **os.environ, **ours, **(more or {})}


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

    def __init__(self, agent: subprocess.Popen[bytes], folder: str) -> None:
        self._psutil = import_psutil("torchrun")
        self._agent = agent
        self._folder = folder
        self._known: set[Any] = {self._psutil.Process(agent.pid)}
        self._next_call = 0.0

    def call_the_roll(self) -> None:
        """Note who is there, now and then: one that has cleared its environment has no token."""
        if time.monotonic() >= self._next_call:
            self._next_call = time.monotonic() + ROLL_CALL
            self._known |= self._children()

    def where_they_stand(self, script: Path) -> dict[int, str]:
        """Ask the ranks that have met for their stacks; return by rank in which line of the script each stands.

        Windows has no such signal: there it is empty.
        """
        asked: dict[int, Path] = {}
        for process in self._marked():
            for path in Path(self._folder).glob(f"stack-*-{process.pid}"):
                self._each({process}, "send_signal", sig=signal.SIGUSR1)
                asked[int(path.name.split("-")[1])] = path
        deadline = time.monotonic() + ANSWER
        while any("in <module>" not in path.read_text("utf-8", "replace") for path in asked.values()):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL)
        stands = {}
        for rank, path in asked.items():
            frames = _FRAME.findall(path.read_text("utf-8", "replace"))  # the innermost first
            lines = [line for file, line in frames if Path(file).resolve() == script]
            if lines:
                stands[rank] = f"line {lines[0]}"
        return stands

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
        while new := self._known.union(self._children(), self._marked()) - stopped:
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
        return set().union(*self._each(self._known, "children", recursive=True))

    def _marked(self) -> set[Any]:
        marked = set()
        for process in self._psutil.process_iter(["environ"]):
            environment = process.info["environ"] or {}  # None: not ours to read
            if environment.get(MARK) == self._folder:
                marked.add(process)
        return marked

    def _each(self, processes: set[Any], what: str, **how: Any) -> list[Any]:
        """Ask something of each process and return the answers of those that are still there."""
        answers = []
        for process in processes:
            with contextlib.suppress(self._psutil.Error):
                answers.append(getattr(process, what)(**how))
        return answers

    def _alive(self, process: Any) -> bool:
        try:
            return bool(process.is_running() and process.status() != self._psutil.STATUS_ZOMBIE)
        except self._psutil.Error:
            return False


# ---- in a rank


def meet(timeout: timedelta) -> tuple[Store, int, int]:
    """Return store, rank and world size, for `init_process_group`, of a process that torchrun has started.

    torchrun as it comes keeps its store when it starts the ranks anew, and with it the addresses of the dead ones; the
    new ones take them for each other's: "Connection refused" (torch 2.13; pytorch #135712, #167288). So each attempt
    writes under a name of its own. Without restarts, `init_process_group("gloo")` alone does the same. Raises
    RuntimeError in a process that torchrun has not started.
    """
    if "TORCHELASTIC_RESTART_COUNT" not in os.environ:
        raise RuntimeError(
            "this process has no rank: start the script with torchrun --nproc-per-node RANKS SCRIPT, or from Python "
            "with lib.training.launch.torchrun"
        )
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    if MARK in os.environ and hasattr(faulthandler, "register"):  # torchrun above may ask where this rank stands
        stack = open(f"{os.environ[MARK]}/stack-{rank}-{os.getpid()}", "w")  # noqa: SIM115 until the process ends
        faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
    return PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store), rank, world_size


def leave() -> None:
    """Wait for the others, leave the group, and end this process: the last line of a rank that has done its work.

    DistributedDataParallel keeps gloo's threads alive. One that lets go of its last tensor while Python is being taken
    down aborts the process (SIGABRT, now and then, on a busy machine; pytorch #179291). So Python is not taken down.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
