"""Ranks for the cases of notebook 16: real processes in a gloo group, which start warm (support/warm_start.py).

    on_ranks(job, 2, {…})     a Stand for each rank: its result, its error, or the line in which it stands

A hang is not waited out. Who computes uses CPU time, and who waits for a peer uses none: once no rank that is not done
has used any for QUIET seconds, each is asked where it stands, and all are ended.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import getsource
from multiprocessing.connection import Connection, wait
from typing import Any

from lib.arguments import integer
from lib.memory import import_psutil
from support.kit.source import source_of
from support.n16.rank import JobOrder, Stand, be_a_rank
from support.warm_start import start_warm

QUIET = 1.5  # seconds without any CPU time
LIMIT = 30.0  # seconds for everything
POLL = 0.1


def on_ranks(
    job: Callable[..., Any],
    world_size: int,
    given: Mapping[str, Any],
    *definitions: Any,
    environment: Mapping[str, str] | None = None,
) -> list[Stand]:
    """Run `job(dist, **given)` on so many new ranks and return how each ended, or where it stands.

    definitions: functions and classes that its text uses. environment: variables of the ranks. Never raises for what
    the job does: an error is a Stand, too, and so is a rank that was killed.
    """
    integer("world_size", world_size, at_least=1)
    texts = [text_of(thing) for thing in (*(each for each in definitions if each is not job), job)]
    name = job.__code__.co_name
    order = pickle.dumps(JobOrder("\n\n\n".join(texts), name, given, environment or {}))
    with tempfile.TemporaryDirectory(prefix="case-") as folder:
        processes, lines = _started(world_size, f"{folder}/store", order)
        try:
            return _ends(processes, lines)
        finally:
            for process in processes:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
            for process in processes:
                process.join(10)


def text_of(thing: Any) -> str:
    """Return the text of a function or class, of one that goes by another name, too."""
    try:
        return source_of(thing)
    except ValueError:
        return textwrap.dedent(getsource(thing.__code__))


def stands_told(stands: list[Stand]) -> str:
    """Say of every rank where it is: "rank 0 stands (line 7: `…`), rank 1 has ended"."""
    return ", ".join(f"rank {rank} {stand.told}" for rank, stand in enumerate(stands))


def tell(stands: list[Stand]) -> None:
    """Print what each rank has printed, and where it is."""
    for rank, stand in enumerate(stands):
        for line in stand.said:
            print(f"rank {rank}: {line}")
        print(f"rank {rank} {stand.told}")


def _started(world_size: int, store: str, order: bytes) -> tuple[list[Any], list[Connection]]:
    processes = []
    lines = []
    for rank in range(world_size):
        here, there = multiprocessing.Pipe()
        process = start_warm(be_a_rank, rank, world_size, store, there, order)
        there.close()  # the process has its own: if it ends, our line ends
        processes.append(process)
        lines.append(here)
    return processes, lines


def _ends(processes: list[Any], lines: list[Connection]) -> list[Stand]:
    """Wait until all ranks are done, or nobody moves any more.

    Who is not inside the job yet has to meet the others first, which on a busy machine takes a while and hardly a core.
    """
    found: dict[int, Stand] = {}
    deadline = time.monotonic() + LIMIT
    used = -1.0
    still_since = time.monotonic()
    while len(found) < len(lines) and time.monotonic() < deadline:
        left = {line: rank for rank, line in enumerate(lines) if rank not in found}
        for line in wait(list(left), POLL):
            stand = _received(line)  # type: ignore[arg-type]
            if stand.how != "stands":  # an answer that came too late to be waited for
                found[left[line]] = stand  # type: ignore[index]
        now = _cpu_seconds([processes[rank] for rank in left.values() if rank not in found])
        if now != used:
            used = now
            still_since = time.monotonic()
        elif time.monotonic() - still_since > QUIET:
            stands = _all_asked(lines, found)
            if all(stand.how != "stands" or stand.where for stand in stands.values()):
                found |= stands
            found |= {rank: stand for rank, stand in stands.items() if stand.how != "stands"}
            still_since = time.monotonic()
    found |= _all_asked(lines, found)
    return [found[rank] for rank in range(len(lines))]


def _all_asked(lines: list[Connection], found: Mapping[int, Stand]) -> dict[int, Stand]:
    """Ask all ranks that are not done where they stand."""
    return {rank: _asked(line) for rank, line in enumerate(lines) if rank not in found}


def _received(line: Connection) -> Stand:
    try:
        stand: Stand = pickle.loads(line.recv_bytes())
    except (EOFError, OSError):
        return Stand("raised", "nothing: its process has died")
    return stand


def _asked(line: Connection) -> Stand:
    with suppress(OSError):
        line.send_bytes(b"where?")
        if line.poll(5):
            return _received(line)
    return Stand("stands")


def _cpu_seconds(processes: list[Any]) -> float:
    """Return what these and all below them have used, and a number that no other has as long as one is at work."""
    psutil = import_psutil("the casebook")
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):
            top = psutil.Process(process.pid)
            for each in (top, *top.children(recursive=True)):
                times = each.cpu_times()
                total += times.user + times.system
                if each.status() == psutil.STATUS_RUNNING:  # also one that waits for a core
                    total += time.monotonic()
    return total
