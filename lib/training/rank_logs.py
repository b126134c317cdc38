"""What the ranks said, and which of them failed first.

When a rank dies, the others fail too: their peer does not answer. What one wants to know is the first, not the
loudest. So, of the ranks of the last attempt:

    1  killed by a signal that torchrun did not send        SIGKILL: often the system, out of memory
    2  ended with an error of its own                       ValueError: …
    3  ended with an exit code, without an error            sys.exit(3)
    4  ended because the connection to a peer was lost      RuntimeError: … Connection closed by peer …
    5  ended by torchrun, because another had failed        SIGTERM

torchrun writes a log of each rank, and an error file for scripts whose main function is decorated with `record`.
"""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path

_TABLE = re.compile(r"rank\s+: (\d+) \(local_rank: \d+\)\s+exitcode\s+: (-?\d+)")
_RANK_PREFIX = re.compile(
    r"^\[rank\d+\]: ?"
)  # torch puts it before a traceback, once a process group was made
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
        if self._killed:
            how = f"was killed by {signal_name(self.exitcode)}"
            crashed = self.exitcode not in (-signal.SIGKILL, -signal.SIGTERM)  # then it could still say why
            how += f": {self.said}" if crashed and self.said else ""
        elif self.error:
            how = f"ended with {self.error}"
        else:
            how = f"ended with exit code {self.exitcode}" + (f": {self.said}" if self.said else "")
        return f"{who} {how}" + (f"\n\n{self.traceback}" if self.traceback and not self._killed else "")

    @property
    def _killed(self) -> bool:
        return self.exitcode < 0 and not (self.exitcode in _AFTERWARDS and self.error)

    @property
    def order(self) -> int:
        """Which kind of end it was, in the order above."""
        if self._killed and self.exitcode != -signal.SIGTERM:
            return 1
        if self.error:
            return 4 if _LOST_PEER.search(self.error) else 2
        return 5 if self.exitcode == -signal.SIGTERM else 3


def signal_name(exitcode: int) -> str:
    """Return "SIGKILL" for -9."""
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


class RankLogs:
    """Follow the logs that torchrun writes below a folder; `lines` is what came so far."""

    def __init__(self, folder: str | Path, show: bool = True) -> None:
        self.folder, self.show = Path(folder), show
        self.agent_log = self.folder / "torchrun.log"
        self.lines: list[str] = []
        self._read: dict[Path, int] = {}
        self._last: dict[int, str] = {}

    def read(self, *, to_the_end: bool = False) -> None:
        """Take the lines that are new; one that is not complete waits, but for the end."""
        files = [(f"[rank {path.parent.name}]", path) for path in self._rank_logs()]
        for prefix, path in [*files, ("[torchrun]", self.agent_log)]:
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
            complete = new if to_the_end else new[: new.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(complete)
            for line in complete.decode("utf-8", "replace").splitlines():
                self._take(prefix, _RANK_PREFIX.sub("", line))

    def _take(self, prefix: str, line: str) -> None:
        self.lines.append(f"{prefix} {line}")
        if prefix != "[torchrun]":
            if line.strip():
                self._last[int(prefix[6:-1])] = line.strip()
            if self.show:
                print(f"{prefix} {line}", flush=True)

    def _rank_logs(self) -> list[Path]:
        found = self.folder.glob("ranks/*/attempt_*/*/std*.log")
        return sorted(found, key=lambda path: (_attempt(path.parents[1]), int(path.parent.name), path.name))

    def last_words(self, ranks: int) -> list[str]:
        """Return what each rank said last."""
        said = [self._last.get(rank) for rank in range(ranks)]
        return [f"rank {r} said {'nothing' if s is None else 'last: ' + s}" for r, s in enumerate(said)]

    def cause(self, returncode: int) -> Failure:
        """Return the first failure of the last attempt, or torchrun's own if no rank has failed."""
        text = self.agent_log.read_text("utf-8", "replace")
        if returncode < 0:  # nobody is left who could say what the ranks did
            return Failure(None, returncode)
        attempts = sorted(self.folder.glob("ranks/*/attempt_*"), key=_attempt)
        exitcodes = {int(rank): int(code) for rank, code in _TABLE.findall(text)}
        failures = []
        for folder in attempts[-1].iterdir() if attempts else ():
            rank = int(folder.name)
            error, traceback, said = _last_error(folder)
            if rank in exitcodes or traceback:
                failures.append(Failure(rank, exitcodes.get(rank, 1), error, traceback, said))
        if failures:
            return min(failures, key=lambda failure: (failure.order, failure.rank))
        return Failure(None, returncode, said=_last(text.splitlines()))


def _attempt(folder: Path) -> int:
    return int(folder.name.removeprefix("attempt_"))


def _last(lines: list[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _last_error(folder: Path) -> tuple[str, str, str]:
    """Return the error that a rank ended with, in one line, its traceback, and the last line of stderr; "" for none."""
    log = folder / "stderr.log"
    text = log.read_text("utf-8", "replace") if log.exists() else ""
    lines = [_RANK_PREFIX.sub("", line) for line in text.splitlines()]
    try:
        message = json.loads((folder / "error.json").read_text("utf-8"))["message"]
        error, traceback = message["message"].splitlines()[0], message["extraInfo"]["py_callstack"].rstrip()
        return error, traceback, _last(lines)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    # a script that can't be compiled has no "Traceback", but its file and line
    starts = [
        i for i, line in enumerate(lines) if line.startswith(("Traceback (most recent call last)", "  File"))
    ]
    headed = [i for i in starts if lines[i].startswith("Traceback")] or starts
    end = (
        next((i for i in range(headed[-1] + 1, len(lines)) if _ERROR.match(lines[i])), None)
        if headed
        else None
    )
    if end is None:
        return "", "", _last(lines)
    return lines[end], "\n".join(lines[headed[-1] : end + 1]), _last(lines)
