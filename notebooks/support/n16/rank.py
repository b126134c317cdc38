"""A rank of a case: a process that runs one function, says where it stands when it is asked, and ends with its parent.

The server of ranks imports this module once. Each rank is a copy of that server, so it has torch from its first moment,
and nothing of the rank before it: neither its process group nor its global state.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    get_worker_info,
)

from lib.training.launch import LOOPBACK

FILE = "<job>"
LEFT = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
GONE = "RuntimeError: Connection closed by peer"
#: Longer than anybody looks at a hang: no time-out ends it before we have looked.
PATIENCE = timedelta(seconds=120)

#: What a job knows, beside its own text.
TOOLS = {
    "torch": torch,
    "nn": nn,
    "F": functional,
    "os": os,
    "json": json,
    "threading": threading,
    "timedelta": timedelta,
    "DDP": DistributedDataParallel,
    "DataLoader": DataLoader,
    "Dataset": Dataset,
    "DistributedSampler": DistributedSampler,
    "IterableDataset": IterableDataset,
    "Sampler": Sampler,
    "get_worker_info": get_worker_info,
}


@dataclass(frozen=True)
class JobOrder:
    """What a rank is to run: the function `name` of a text, with what it is given, in an environment."""

    text: str
    name: str
    given: Mapping[str, Any]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Stand:
    """How a rank has ended, or where it stands.

    how: "done", with `value`; "raised", with the error in `value`; "stands". where: the lines of the job that it was
    in, outermost first, each with its number. said: what it has printed.
    """

    how: Literal["done", "raised", "stands"]
    value: Any = None
    where: tuple[tuple[int, str], ...] = ()
    said: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """Say it behind "rank 0 "."""
        if self.how == "done":
            return "has ended"
        line = f" (line {self.where[-1][0]}: `{self.where[-1][1]}`)" if self.where else ""
        return (
            f"raised {self.value}{line}" if self.how == "raised" else f"stands{line or ' outside of the job'}"
        )


def be_a_rank(rank: int, world_size: int, store: str, line: Connection, order: bytes) -> None:
    """Meet the others, run the order, send a Stand.

    A rank that is done leaves, as under torchrun: whoever still waits for it gets an error. One that has raised stays
    until somebody ends it, so that the others stand where they are, and the first error is not buried under theirs.
    """
    os.setsid()  # whoever ends this rank ends its workers, too
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have workers
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork", force=True)  # a job's classes are known to no other process
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what goes wrong is told in a Stand, warnings are not told
    todo: JobOrder = pickle.loads(order)
    said: list[str] = []
    main = threading.get_ident()
    lines = todo.text.splitlines()
    threading.Thread(target=_say_where, args=(line, main, lines, said), daemon=True).start()
    os.environ.update({"GLOO_SOCKET_IFNAME": LOOPBACK, **todo.environment})
    dist.set_debug_level_from_env()  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    torch.manual_seed(1000 + rank)
    numpy_of_a_process()
    meeting = dist.FileStore(store, world_size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=world_size, timeout=PATIENCE)
    meeting.set(f"{rank} is here", "")
    # Before that nobody may be done, and leave.
    meeting.wait([f"{each} is here" for each in range(world_size)])

    def note(*words: object, sep: str | None = None, **_: object) -> None:
        # Whoever debugs a hang says flush=True, too.
        said.append((" " if sep is None else sep).join(map(str, words)))

    space: dict[str, Any] = TOOLS | {"print": note, "hash": hash_of_a_process()}
    try:
        exec(compile(todo.text, FILE, "exec"), space)
        stand = Stand("done", space[todo.name](dist, **todo.given), said=tuple(said))
        content = pickle.dumps(stand)
    except (Exception, SystemExit) as error:
        where = _lines_of(traceback.extract_tb(error.__traceback__), lines)
        stand = Stand("raised", first_line(error), where, tuple(said))
        content = pickle.dumps(stand)
    line.send_bytes(content)
    if stand.how == "raised":
        threading.Event().wait()


def hash_of_a_process() -> Callable[[object], int]:
    """Return `hash` as a process has it that is no copy of another: of text and bytes, with a salt of its own."""
    salt = os.urandom(8)

    def salted(thing: object) -> int:
        if isinstance(thing, tuple):
            return hash(tuple(map(salted, thing)))
        return hash((thing, salt)) if isinstance(thing, (str, bytes)) else hash(thing)

    return salted


def numpy_of_a_process() -> None:
    """Seed numpy, if it is loaded, as it is in a process that is no copy of another."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def first_line(error: BaseException) -> str:
    """Return type and first line of an error; GONE for all that gloo says of a peer that has left.

    Which of its words that is, and from which port, is a matter of chance.
    """
    line = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
        line += "; a rank gets the job's own text alone: define and import inside it"
    return GONE if any(word in line for word in LEFT) else line


def _lines_of(frames: Iterable[traceback.FrameSummary], lines: list[str]) -> tuple[tuple[int, str], ...]:
    """Return the lines of the job among these frames."""
    own = [frame.lineno for frame in frames if frame.filename == FILE and frame.lineno]
    return tuple((number, lines[number - 1].strip()) for number in own)


def _say_where(line: Connection, main: int, lines: list[str], said: list[str]) -> None:
    """Answer each time when the parent asks where the main thread is; end the process when the parent has gone."""
    try:
        while True:
            line.recv_bytes()
            frames = traceback.extract_stack(sys._current_frames()[main])
            line.send_bytes(pickle.dumps(Stand("stands", None, _lines_of(frames, lines), tuple(said))))
    except (EOFError, OSError):
        os._exit(0)
