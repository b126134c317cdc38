"""Ranks for a notebook's cells: imitated ones in threads, which a check can judge, and real ones in processes.

in_threads(function, W)   runs `function(dist)` on W threads; `dist` imitates torch.distributed and notices what real
                          ranks would only hang of: nobody can go on, calls that do not match, a wait forgotten
Ranks(W)                  W processes with one gloo group, which stay: `run(function, …)` runs `function(dist)` on each;
                          there `dist` is torch.distributed itself
in_a_process(function)    runs what may hang in a process, and ends it with all that it started
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import textwrap
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from lib.arguments import integer
from lib.training.failures import signal_name
from lib.training.launch import LOOPBACK
from support.kit.source import source_of
from support.kit.threads import Aside, StuckError, Waits

PATIENCE = 20.0  # seconds for ranks in threads, whose work takes milliseconds
AFTER = 3.0  # seconds that the others may take when a real rank has failed


class World(Waits):
    """What imitated ranks share: messages on their way, collectives begun, who waits, and counts for a check.

    sent: values that each rank has sent. posted: (from, to) of each message. events: (rank, what) in the order in which
    it happened: collectives begun, "waited" when an all_reduce is waited for, "waited again" when something is once
    more. unwaited: by rank, what was begun and never waited for.
    """

    def __init__(self, size: int) -> None:
        super().__init__(everybody=lambda: self.size - len(self._ended))
        self.size = integer("world_size", size, at_least=1)
        self.messages: dict[tuple[int, int], deque[InTransit]] = {}
        self.calls: list[dict[int, tuple[str, Any, Tensor]]] = []
        self.sent: Counter[int] = Counter()
        self.posted: list[tuple[int, int]] = []
        self.events: list[tuple[int, str]] = []
        self.unwaited: dict[int, list[str]] = {rank: [] for rank in range(size)}
        self._ended: set[int] = set()

    def end(self, rank: int) -> None:
        """Note that a rank has returned, or raised."""
        with self.changed:
            self._ended.add(rank)
            self.look()

    def told(self) -> str:
        """Say what each rank waits for, and which have ended."""
        waiting = [f"rank {rank} waits in {self.waiting[rank][0]}" for rank in sorted(self.waiting)]
        return ", ".join(waiting + [f"rank {rank} has ended" for rank in sorted(self._ended)])


class InTransit:
    """A tensor on its way: read when it is received, as a real one may be until `wait()` has returned."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.taken = False


class Handle:
    """What isend, irecv and async_op=True return."""

    def __init__(self, owner: Imitation, what: str, finish: Callable[[], None]) -> None:
        self._owner = owner
        self._what = what
        self._finish = finish
        owner.world.unwaited[owner.get_rank()].append(what)

    def wait(self) -> bool:
        """Return when it is done."""
        begun = self._owner.world.unwaited[self._owner.get_rank()]
        if self._what in begun:
            begun.remove(self._what)
            self._finish()
        else:
            self._owner.world.events.append((self._owner.get_rank(), "waited again"))
        return True


class Imitation:
    """Imitate what notebooks use of torch.distributed, for one rank. A send waits for its receive, as gloo's does."""

    ReduceOp = dist.ReduceOp

    def __init__(self, world: World, rank: int) -> None:
        self.world = world
        self._rank = rank
        self._count = 0
        self._begun = 0

    def get_rank(self) -> int:
        """Return this rank's number."""
        return self._rank

    def get_world_size(self) -> int:
        """Return how many ranks there are."""
        return self.world.size

    def isend(self, tensor: Tensor, dst: int) -> Handle:
        """Begin to send."""
        return self._send(tensor, dst, "isend")

    def send(self, tensor: Tensor, dst: int) -> None:
        """Send, and return when it has been received."""
        self._send(tensor, dst, "send").wait()

    def irecv(self, tensor: Tensor, src: int) -> Handle:
        """Begin to receive."""
        self._peer(src)
        return Handle(self, self._name(f"irecv from rank {src}"), lambda: self.recv(tensor, src))

    def recv(self, tensor: Tensor, src: int) -> None:
        """Receive into a tensor, and return when it is there. Raises ValueError for another size."""
        self._peer(src)
        with self.world.changed:
            queue = self.world.messages.setdefault((src, self._rank), deque())
            self.world.wait(self._rank, f"recv from rank {src}", lambda: bool(queue))
            message = queue.popleft()
            if message.tensor.numel() != tensor.numel():
                sizes = f"{tensor.numel()} values of rank {src}, which sends {message.tensor.numel()}"
                raise ValueError(f"rank {self._rank} receives {sizes}")
            with torch.no_grad():
                tensor.copy_(message.tensor.view_as(tensor))
            message.taken = True
            self.world.changed.notify_all()

    def broadcast(self, tensor: Tensor, src: int) -> None:
        """Give every rank the tensor of one."""
        given = self._collective("broadcast", tensor.numel(), tensor, src)
        with torch.no_grad():
            tensor.copy_(given()[src])

    def all_reduce(
        self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, async_op: bool = False
    ) -> Handle | None:
        """Give every rank the sum of all tensors; with async_op when the handle's `wait()` has returned."""
        if op == dist.ReduceOp.AVG:
            raise ValueError(f"gloo, which this imitates, can't average: sum, then divide; not {op}")
        if op != dist.ReduceOp.SUM:
            raise ValueError(f"this imitation of gloo only sums, and a mean comes of a sum; not {op}")
        given = self._collective("all_reduce", tensor.numel(), tensor)

        def finish() -> None:
            self.world.events.append((self._rank, "waited"))
            with torch.no_grad():
                tensor.copy_(torch.stack([part.view_as(tensor) for part in given()]).sum(dim=0))

        handle = Handle(self, self._name(f"all_reduce of {tensor.numel()} values"), finish)
        if async_op:
            return handle
        handle.wait()
        return None

    def all_gather(self, tensors: Sequence[Tensor], tensor: Tensor) -> None:
        """Give every rank the tensors of all, into a list that it has made."""
        if len(tensors) != self.world.size:
            raise ValueError(f"all_gather needs a list of {self.world.size} tensors, not {len(tensors)}")
        given = self._collective("all_gather", tensor.numel(), tensor)
        with torch.no_grad():
            for own, part in zip(tensors, given(), strict=True):
                own.copy_(part)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._collective("barrier", 0, torch.zeros(0))()

    def _peer(self, rank: int) -> None:
        if not 0 <= rank < self.world.size or rank == self._rank:
            raise ValueError(
                f"rank {self._rank} has no peer {rank}: peers are 0..{self.world.size - 1} without itself"
            )

    def _name(self, what: str) -> str:
        self._begun += 1
        return f"{what} (its call {self._begun})"

    def _send(self, tensor: Tensor, dst: int, what: str) -> Handle:
        self._peer(dst)
        world = self.world
        message = InTransit(tensor.detach())
        with world.changed:
            world.messages.setdefault((self._rank, dst), deque()).append(message)
            world.sent[self._rank] += tensor.numel()
            world.posted.append((self._rank, dst))
            world.changed.notify_all()

        def finish() -> None:
            with world.changed:
                world.wait(self._rank, f"{what} to rank {dst}", lambda: message.taken)

        return Handle(self, self._name(f"{what} to rank {dst}"), finish)

    def _collective(
        self, kind: str, size: int, tensor: Tensor, detail: Any = None
    ) -> Callable[[], list[Tensor]]:
        """Join the next collective; return what waits for the others and gives their tensors, by rank."""
        world = self.world
        number = self._count
        with world.changed:
            self._count += 1
            world.events.append((self._rank, kind))
            if number == len(world.calls):
                world.calls.append({})
            call = world.calls[number]
            for other, (theirs, what, _) in call.items():
                if (theirs, what) != (kind, (size, detail)):
                    both = {self._rank: _call(kind, size, detail), other: _call(theirs, *what)}
                    low, high = sorted(both)  # the same sentence whoever came first
                    raise ValueError(
                        f"collective {number}: rank {low} is in {both[low]}, rank {high} in {both[high]}"
                    )
            call[self._rank] = kind, (size, detail), tensor.detach().clone()
            world.changed.notify_all()

        def given() -> list[Tensor]:
            with world.changed:
                world.wait(self._rank, f"{kind}, its collective {number}", lambda: len(call) == world.size)
            return [call[rank][2] for rank in range(world.size)]

        return given


def _call(kind: str, size: int, source: int | None) -> str:
    """Name a collective as an error does; source: the rank from which it comes, of a broadcast."""
    return f"{kind} of {size} values" + ("" if source is None else f" from rank {source}")


def in_threads(function: Callable[[Any], Any], world_size: int) -> tuple[list[Any], World]:
    """Run `function(dist)` on so many imitated ranks; return their results, and the world with its counts.

    Raises what a rank raised, its own errors before the StuckError of those that waited for it; TimeoutError.
    """
    world = World(world_size)

    def live(rank: int) -> Any:
        try:
            return function(Imitation(world, rank))
        finally:
            world.end(rank)

    with Aside(*(partial(live, rank) for rank in range(world_size))) as aside:
        over = aside.over(PATIENCE)
        world.close()
    if not over:
        raise TimeoutError(f"the ranks were not done after {PATIENCE:g} s")
    errors = [run.error for run in aside.runs if run.error is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, StuckError))
    return [run.result for run in aside.runs], world


# ---- real ranks


class Ranks:
    """Real ranks that stay: `world_size` processes, one gloo group, one thread each; they end with this process.

    They start when they are first needed, and anew after a run in which one has died or hung.
    """

    def __init__(self, world_size: int = 2) -> None:
        self.world_size = integer("world_size", world_size, at_least=1)
        self._processes: list[Any] = []
        self._lines: list[Connection] = []

    def run(
        self, function: Callable[..., Any], *definitions: Any, patience: float = 60.0, **given: Any
    ) -> list[Any]:
        """Run `function(dist, **given)` on every rank and return what each returned.

        definitions: functions and classes of cells that it uses; `torch`, `nn`, `F`, `DDP`, `time` are there. Raises
        RuntimeError with a rank's own error, or with the signal that killed it, TimeoutError after `patience` seconds.
        """
        if not self._processes:
            self._start()
        text = "\n\n\n".join(source_of(thing) for thing in (*definitions, function))
        order = pickle.dumps((text, function.__name__, given))
        for line in self._lines:
            line.send_bytes(order)
        try:
            answers = self._answers(patience)
        except BaseException:
            self.close()
            raise
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
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        for rank in range(self.world_size):
            here, there = context.Pipe()
            target = (rank, self.world_size, f"{self._folder.name}/store", there)
            process = context.Process(target=_serve, args=target, daemon=True)
            with mock.patch.dict(os.environ, QUIET):
                process.start()
            there.close()  # the process has its own: if it ends, our line ends
            self._processes.append(process)
            self._lines.append(here)


def _serve(rank: int, world_size: int, store: str, line: Connection) -> None:
    """Be a rank: run what comes over the line, until its other end is gone."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Jupyter's stop button: the kernel then ends its ranks
    torch.set_num_threads(1)
    patience = timedelta(seconds=60)
    meeting = dist.FileStore(store, world_size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=world_size, timeout=patience)
    with suppress(EOFError, OSError):
        while True:
            text, name, given = pickle.loads(line.recv_bytes())
            line.send_bytes(pickle.dumps(_answer(text, name, given)))
    os._exit(0)  # Python is not taken down: see lib.training.launch.leave


#: What gloo logs of a failure, it raises as well, and without a time of day that differs in every run.
QUIET = {"TORCH_CPP_LOG_LEVEL": "FATAL"}
#: What a rank knows, beside the texts that it is sent.
TOOLS = {"torch": torch, "nn": nn, "F": functional, "os": os, "time": time, "DDP": DistributedDataParallel}


def _answer(text: str, name: str, given: dict[str, Any]) -> tuple[str, Any]:
    """Run the function of that name in the text; return ("done", its result), or ("error", what it raised)."""
    try:
        space: dict[str, Any] = dict(TOOLS)
        exec(compile(text, "<cell>", "exec"), space)
        return "done", space[name](dist, **given)
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
