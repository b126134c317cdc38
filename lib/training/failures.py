"""Which rank failed first: what all of them said and left behind, and the failure that explains the others.

When a rank dies, the others fail too: their peer does not answer. What one wants to know is the first, not the
loudest. So, of the ranks of the last attempt:

    1  killed by a signal that torchrun did not send        SIGKILL: often the system, out of memory
    2  ended with an error of its own                       ValueError: …
    3  crashed, perhaps because a peer had gone             SIGSEGV, now and then in Gloo's threads
    4  ended with an exit code, without an error            sys.exit(3)
    5  ended because the connection to a peer was lost      RuntimeError: … Connection closed by peer …
    6  ended by torchrun, because another had failed        SIGTERM
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_TABLE = re.compile(r"rank\s+: (\d+) \(local_rank: \d+\)\s+exitcode\s+: (-?\d+) \(pid: (\d+)\)")
_FORCED = re.compile(r"Unable to shutdown process (\d+) via")
# from torch, before a traceback, once there is a process group
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:: |$)")
_LOST_PEER = re.compile(
    r"Connection (?:closed|reset|refused)|Broken pipe|[Tt]imed out|connectFullMesh|gloo/transport|ncclRemoteError"
    r"|recvValue failed|DistNetworkError|DistStoreError|NCCL communicator was aborted"
)
# What may still come after an error: torchrun's end, and an abort of gloo's threads when Python is taken down.
_AFTERWARDS = (-signal.SIGTERM, -signal.SIGABRT)


@dataclass(frozen=True)
class Failure:
    """How a rank ended (rank None: torchrun itself).

    exitcode: negative for a signal. error: "ValueError: …", traceback: what led to it; empty if it ended without one.
    said: the last line that it wrote to stderr.
    """

    rank: int | None
    exitcode: int
    error: str = ""
    traceback: str = ""
    said: str = ""

    def message(self) -> str:
        """Say it: "rank 1 ended with ValueError: …", then the traceback."""
        who = "torchrun itself" if self.rank is None else f"rank {self.rank}"
        said = f": {self.said}" if self.said else ""
        if self._killed:
            crashed = self.exitcode not in (-signal.SIGKILL, -signal.SIGTERM)  # then it could still say why
            return f"{who} was killed by {signal_name(self.exitcode)}" + (said if crashed else "")
        last_word = self.error or f"exit code {self.exitcode}{said}"
        traceback = f"\n\n{self.traceback}" if self.traceback else ""
        return f"{who} ended with {last_word}{traceback}"

    @property
    def _killed(self) -> bool:
        return self.exitcode < 0 and not (self.exitcode in _AFTERWARDS and self.error)

    @property
    def order(self) -> int:
        """Which kind of end it was, in the order above."""
        if self._killed and self.exitcode != -signal.SIGTERM:
            return 3 if self.exitcode == -signal.SIGSEGV else 1
        if self.error:
            return 5 if _LOST_PEER.search(self.error) else 2
        return 6 if self.exitcode == -signal.SIGTERM else 4


def signal_name(exitcode: int) -> str:
    """Return "SIGKILL" for -9."""
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


class RankLogs:
    """Follow the logs that torchrun writes below a folder; `lines` is what came so far."""

    def __init__(self, folder: str | Path, show: bool = True) -> None:
        self.folder = Path(folder)
        self.show = show
        self.agent_log = self.folder / "torchrun.log"
        self.lines: list[str] = []
        self._read: dict[Path, int] = {}
        self._last: dict[int, str] = {}

    def read(self, *, to_the_end: bool = False) -> None:
        """Take the lines that are new; one that is not complete waits, but for the end."""
        found = self.folder.glob("ranks/*/attempt_*/*/std*.log")
        logs = sorted(found, key=lambda path: (_attempt(path.parents[1]), int(path.parent.name), path.name))
        for path in [*logs, self.agent_log]:
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
            complete = new if to_the_end else new[: new.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(complete)
            rank = None if path == self.agent_log else int(path.parent.name)
            for line in complete.decode("utf-8", "replace").splitlines():
                self._take(rank, _RANK_PREFIX.sub("", line))

    def _take(self, rank: int | None, line: str) -> None:
        self.lines.append(f"[torchrun] {line}" if rank is None else f"[rank {rank}] {line}")
        if rank is not None and line.strip():
            self._last[rank] = line.strip()
        if rank is not None and self.show:
            print(self.lines[-1], flush=True)

    def last_words(self, ranks: int, stands: Mapping[int, str] = MappingProxyType({})) -> list[str]:
        """Return what each rank said last, and where those stand of which it is known."""
        said = {rank: f"last: {line}" for rank, line in self._last.items()}
        where = {rank: f", and stood in {place}" for rank, place in stands.items()}
        return [f"rank {rank} said {said.get(rank, 'nothing')}{where.get(rank, '')}" for rank in range(ranks)]

    def cause(self, returncode: int) -> Failure:
        """Return the first failure of the last attempt, or torchrun's own if no rank has failed."""
        text = self.agent_log.read_text("utf-8", "replace")
        if returncode < 0:  # nobody is left who could say what the ranks did
            return Failure(None, returncode)
        attempts = sorted(self.folder.glob("ranks/*/attempt_*"), key=_attempt)
        # who did not mind torchrun's SIGTERM for half a minute was ended by it all the same, with SIGKILL
        forced = _FORCED.findall(text)
        exitcodes = {}
        for rank_said, code, pid in _TABLE.findall(text):
            exitcodes[int(rank_said)] = -signal.SIGTERM if pid in forced else int(code)
        failures = []
        for folder in attempts[-1].iterdir() if attempts else ():
            rank = int(folder.name)
            failure = Failure(rank, exitcodes.get(rank, 1), *_last_error(folder))
            if rank in exitcodes or failure.traceback:
                failures.append(failure)
        own = Failure(None, returncode, said=_last_line(text))
        return min(failures, key=lambda failure: (failure.order, failure.rank), default=own)


def _attempt(folder: Path) -> int:
    return int(folder.name.removeprefix("attempt_"))


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _last_error(folder: Path) -> tuple[str, str, str]:
    """Return the error that a rank ended with, in one line, its traceback, and the last line of stderr; "" for none."""
    log = folder / "stderr.log"
    text = _RANK_PREFIX.sub("", log.read_text("utf-8", "replace") if log.exists() else "")
    lines = text.splitlines()
    said = _last_line(text)
    # @record of torch writes the error to a file too; there may be none, or half of one
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        message = json.loads((folder / "error.json").read_text("utf-8"))["message"]
        return message["message"].splitlines()[0], message["extraInfo"]["py_callstack"].rstrip(), said
    heads = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    # a script that can't be compiled has none, but its file and line
    heads = heads or [i for i, line in enumerate(lines) if line.startswith("  File")]
    ends = [i for i, line in enumerate(lines) if heads and i > heads[-1] and _ERROR.match(line)]
    return (lines[ends[0]], "\n".join(lines[heads[-1] : ends[0] + 1]), said) if ends else ("", "", said)
