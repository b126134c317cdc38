"""Ranks for a notebook's cells: real ones in processes, and from support/imitated.py imitated ones in threads.

in_threads(function, W)   runs `function(dist)` on W threads; `dist` imitates torch.distributed
Ranks(W)                  W processes with one gloo group, which stay: `run(function, …)` runs `function(dist)` on each;
                          there `dist` is torch.distributed itself
unknown_to_a_rank(thing)  names what a function or class needs and is not sent to a rank with it
in_a_process(function)    runs what may hang in a process, and ends it with all that it started
"""

from __future__ import annotations

import builtins
import dis
import multiprocessing
import os
import pickle
import signal
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from types import CodeType, FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from lib.arguments import integer
from lib.training.failures import signal_name
from lib.training.launch import LOOPBACK
from support.imitated import World as World
from support.imitated import in_threads as in_threads
from support.kit.source import source_of
from support.kit.threads import StuckError as StuckError
from support.warm_start import start_warm

AFTER = 3.0  # seconds that the others may take when a real rank has failed
COLLECTIVE = 60.0  # seconds that a rank waits for the others in a collective


class Ranks:
    """Real ranks that stay: `world_size` processes, one gloo group, one thread each; they end with this process.

    They start when they are first needed, and anew after a run in which one has died or may have hung.
    """

    def __init__(self, world_size: int = 2) -> None:
        self.world_size = integer("world_size", world_size, at_least=1)
        self._processes: list[Any] = []
        self._lines: list[Connection] = []

    def run(
        self, function: Callable[..., Any], *definitions: Any, patience: float = 60.0, **given: Any
    ) -> list[Any]:
        """Run `function(dist, **given)` on every rank and return what each returned.

        definitions: functions and classes of cells that it uses; `torch`, `nn`, `F`, `DDP`, `time` are there. Functions
        of cells among the arguments are sent as text, too, and arrive as what they are: arguments, of any name.
        Raises RuntimeError with a rank's own error, or with the signal that killed it, TimeoutError after `patience` s.
        """
        if not self._processes:
            self._start()
        text = "\n\n\n".join(source_of(thing) for thing in (*definitions, function))
        told = {name: _Told(value) if _of_a_cell(value) else value for name, value in given.items()}
        order = pickle.dumps((text, function.__name__, told))
        for line in self._lines:
            line.send_bytes(order)
        began = time.monotonic()
        try:
            answers = self._answers(patience)
        except BaseException:
            self.close()
            raise
        if time.monotonic() - began >= COLLECTIVE:  # one may have timed out: then no other gets through
            self.close()
        errors = [f"rank {rank}: {said}" for rank, (how, said) in sorted(answers.items()) if how == "error"]
        if errors:
            raise RuntimeError("\n".join(errors))
        return [answers[rank][1] for rank in range(self.world_size)]

    def _answers(self, patience: float) -> dict[int, tuple[str, Any]]:
        """Return by rank ("done", its result) or ("error", what it said); not of all of them if one has failed."""
        answers: dict[int, tuple[str, Any]] = {}
        while len(answers) < self.world_size:
            rank_of = {line: rank for rank, line in enumerate(self._lines) if rank not in answers}
            failed = any(how == "error" for how, _ in answers.values())
            ready: list[Any] = wait(list(rank_of), min(patience, AFTER) if failed else patience)
            if not ready and failed:
                self.close()  # they wait for the one that has failed
                break
            if not ready:
                missing = ", ".join(f"rank {rank}" for rank in sorted(rank_of.values()))
                raise TimeoutError(f"{missing} not done after {patience:g} s; all ranks were ended")
            for line in ready:
                rank = rank_of[line]
                try:
                    answers[rank] = pickle.loads(line.recv_bytes())
                except EOFError:
                    raise RuntimeError(
                        f"rank {rank} {self._how_it_ended(rank)}; all ranks were ended"
                    ) from None
        return answers

    def _how_it_ended(self, rank: int) -> str:
        process = self._processes[rank]
        process.join(5)
        code = process.exitcode or 0
        return f"was killed by {signal_name(code)}" if code < 0 else f"ended with exit code {code}"

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(5)
        self._processes = []
        self._lines = []

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        for rank in range(self.world_size):
            here, there = multiprocessing.Pipe()
            store = f"{self._folder.name}/store"
            process = start_warm(_serve, rank, self.world_size, store, COLLECTIVE, there)
            there.close()  # the process has its own: if it ends, our line ends
            self._processes.append(process)
            self._lines.append(here)


def _serve(rank: int, world_size: int, store: str, collective: float, line: Connection) -> None:
    """Be a rank: run what comes over the line, until its other end is gone."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Jupyter's stop button: the kernel then ends its ranks
    torch.set_num_threads(1)
    meeting = dist.FileStore(store, world_size)  # type: ignore[attr-defined]
    patience = timedelta(seconds=collective)
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=world_size, timeout=patience)
    with suppress(EOFError, OSError):
        while True:
            text, name, given = pickle.loads(line.recv_bytes())
            line.send_bytes(pickle.dumps(_answer(text, name, given)))
    os._exit(0)  # Python is not taken down: see lib.training.launch.leave


#: What a rank knows, beside the texts that it is sent.
TOOLS = {"torch": torch, "nn": nn, "F": functional, "os": os, "time": time, "DDP": DistributedDataParallel}


def unknown_to_a_rank(thing: Any, *sent: str) -> str:
    """Name what the text of a function or class uses and a rank doesn't know, also not from `sent`; "" if nothing."""
    try:
        text = compile(source_of(thing), "<cell>", "exec")
    except ValueError:  # none of its own, as of what tests nest
        text = None
    code = text or getattr(thing, "__code__", None)
    known = {*TOOLS, *vars(builtins), *sent, thing.__name__, *_global_names(code, "STORE_GLOBAL")}
    unknown = next((name for name in _global_names(code, "LOAD_GLOBAL") if name not in known), "")
    if unknown or not text:
        return unknown
    try:  # defaults, decorators and bases are needed as it is defined
        exec(text, TOOLS | dict.fromkeys(sent))
    except NameError as error:
        return error.name or ""
    except Exception:
        return ""
    return ""


def _global_names(code: CodeType | None, operation: str) -> list[str]:
    """Return the names to which a code, or one inside it, does this."""
    if code is None:
        return []
    names = [step.argval for step in dis.get_instructions(code) if step.opname == operation]
    for part in code.co_consts:
        if isinstance(part, CodeType):
            names += _global_names(part, operation)
    return names


def _of_a_cell(value: Any) -> bool:
    """Say whether this is a function of a notebook; what stands in a module a rank can import."""
    return isinstance(value, FunctionType) and value.__module__ == "__main__"


class _Told:
    """A function as it is sent: its text, and the name that this text gives it."""

    def __init__(self, function: FunctionType) -> None:
        self.text = source_of(function)
        self.name = function.__name__

    def read(self, space: dict[str, Any]) -> Any:
        """Return the function, which then knows what is in this space, and itself by its own name."""
        own = dict(space)
        exec(compile(self.text, "<cell>", "exec"), own)
        return own[self.name]


def _answer(text: str, name: str, given: dict[str, Any]) -> tuple[str, Any]:
    """Run the function of that name in the text; return ("done", its result), or ("error", what it raised)."""
    try:
        space: dict[str, Any] = dict(TOOLS)
        exec(compile(text, "<cell>", "exec"), space)
        known = {
            key: value.read(space) if isinstance(value, _Told) else value for key, value in given.items()
        }
        return "done", space[name](dist, **known)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = textwrap.shorten(f"{type(error).__name__}: {error}", 400)
        said += f" (line {last.lineno}, in {last.name})"
        if isinstance(error, NameError):
            said += f"; a rank knows {', '.join(TOOLS)} and what you send along"
        return "error", said


def in_a_process(function: Callable[[Callable[[str], None]], None], patience: float) -> Iterator[str]:
    """Run `function(tell)` in a forked process; yield what it tells, and its error, until it ends or hangs.

    patience: the seconds without a word after which it hangs; then it is ended with all processes that it started.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        os.setsid()  # a group of its own
        try:
            function(theirs.send)
        except Exception as error:
            theirs.send(f"your code raised {type(error).__name__}: {error}")
        theirs.send(None)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    try:
        while ours.poll(patience):
            told = ours.recv()
            if told is None:  # it is done
                break
            yield told
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()
        process.join()
