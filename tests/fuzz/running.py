"""Try many cases: in this process, or in workers of which one that hangs can be ended."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from tests.fuzz.drawing import draw_case
from tests.fuzz.shrinking import shrink
from tests.fuzz.trial import EQUAL, FAULT, REFUSED, Verdict, try_case


class Tried(NamedTuple):
    seed: int
    verdict: Verdict


class Tally:
    """What came of the cases."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.faults: dict[str, Tried] = {}  # of each kind the first one

    def add(self, tried: Tried) -> bool:
        """Count a case; return whether it is a fault of a kind that is new."""
        verdict = tried.verdict
        self.counts[verdict.kind, verdict.reason] += 1
        if verdict.kind != FAULT or verdict.reason in self.faults:
            return False
        self.faults[verdict.reason] = tried
        return True

    @property
    def cases(self) -> int:
        return self.counts.total()

    def share(self, kind: str) -> float:
        """Return the share of the cases that came out so."""
        return sum(count for (found, _), count in self.counts.items() if found == kind) / max(1, self.cases)

    def __str__(self) -> str:
        lines = [f"{self.cases} cases: {self.share(EQUAL):.1%} equal, {self.share(REFUSED):.1%} refused"]
        for (kind, reason), count in sorted(self.counts.items(), key=lambda item: -item[1]):
            lines.append(f"{count:8}  {kind}{': ' if reason else ''}{reason}")
        return "\n".join(lines)


def try_seeds(seeds: Iterable[int], *, compiled: bool = True) -> Tally:
    """Try the cases of these seeds here, one after another; leave out those with compiled layers if told so."""
    tally = Tally()
    for seed in seeds:
        case = draw_case(seed)
        if compiled or not case.has("compiled"):
            tally.add(Tried(seed, try_case(case)))
    return tally


def told(tried: Tried, tries: int = 400) -> str:
    """Return a fault as a few lines that show it again: the smallest case that fails alike."""
    kind, reason, _ = tried.verdict
    case = draw_case(tried.seed)
    if reason != HANGS:
        case = shrink(case, lambda candidate: try_case(candidate)[:2] == (kind, reason), tries)
    lines = [
        f"# seed {tried.seed}: {reason}",
        "from tests.fuzz.cases import Case",
        "from tests.fuzz.trial import try_case",
    ]
    details = "" if reason == HANGS else try_case(case).details
    return "\n".join([*lines, "", f"print(try_case({case}))", "", details[-1500:]])


# ---- in workers


HANGS = "does not end"


def work(connection: Connection) -> None:
    """Try each case that comes, in a worker."""
    while True:
        seed = connection.recv()
        connection.send(Tried(seed, try_case(draw_case(seed))))


class Worker:
    """A process that tries one case at a time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork has the caller's threads in an unknown state
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.seed = 0
        self.deadline = 0.0

    def give(self, seed: int, limit: float) -> None:
        self.seed = seed
        self.deadline = time.monotonic() + limit
        self.connection.send(seed)

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def try_in_workers(seeds: Iterator[int], workers: int, limit: float) -> Iterator[Tried]:
    """Yield what comes of the seeds. A case that takes longer than `limit` seconds, or ends its process, is a fault."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    busy: list[Worker] = []
    try:
        for _ in range(workers):
            busy.append(Worker())
            busy[-1].give(next(seeds), limit * 2)  # it imports torch first
        while True:
            ready = wait([worker.connection for worker in busy], timeout=1.0)
            for k, worker in enumerate(busy):
                if worker.connection in ready:
                    try:
                        yield worker.connection.recv()
                    except EOFError:
                        yield Tried(worker.seed, Verdict(FAULT, "its process has ended"))
                        busy[k] = Worker()
                elif time.monotonic() > worker.deadline:
                    yield Tried(worker.seed, Verdict(FAULT, HANGS))
                    worker.end()
                    busy[k] = Worker()
                else:
                    continue
                busy[k].give(next(seeds), limit)
    finally:
        for worker in busy:
            worker.end()
