"""How a reader's loader of notebook 01 is tried on real processes: their pipes fill up, and none may be left."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import queues
from queue import Empty
from typing import Any

import torch

from lib.text import plural
from support.n01.solved import load_in_order
from support.n01.solved import work as right_work
from support.ranks import in_a_process

PATIENCE = 10.0  # seconds without a word, where a right loader needs milliseconds
SLOW = 10  # times as long as a right loader takes on this machine now: so long a loader may take at least
LARGE = 200_000  # bytes of an item; a pipe holds 64 kB
VAIN = 12  # looks into a queue that find nothing yet
AT_MOST = 3.0  # seconds for which a late trainer stays away; a worker that goes is gone in milliseconds

AFTER_EPOCH = "after an epoch"
AFTER_BREAK = "after a `break`"
AFTER_ERROR = "after an error"
AFTER_NO_LIST = "behind an error of the batch sampler"
AT_NO_LIST = "where the batch sampler raises in the first orders"
TWO_LOOPS = "where two loops take turns"
TENSORS = f"with tensors, {AFTER_EPOCH}"
TENSORS_LEFT = f"with tensors, {AFTER_BREAK}"
TENSORS_FAIL = f"with tensors, {AFTER_ERROR}"
RIGHT_ENDS = (AFTER_EPOCH, TWO_LOOPS, TENSORS)
ALL_ENDS = (
    AFTER_EPOCH,
    AFTER_BREAK,
    AFTER_ERROR,
    AFTER_NO_LIST,
    AT_NO_LIST,
    TWO_LOOPS,
    TENSORS,
    TENSORS_LEFT,
    TENSORS_FAIL,
)
LISTS = {AFTER_NO_LIST: 5, AT_NO_LIST: 2}  # that come before the sampler raises; of others all eight

HANGS = "all wait for ever"
HOME = "A process ends only when all that it has put has been taken from the pipe."
SHARED = "Each loop has a buffer, numbers and queues of its own."
GONE = "A worker was sent home before all its batches were received, and its tensors have gone with it."
TIMED = (
    "A look that finds nothing yet is no end of them: what was ordered still comes, however long it takes."
)


class _SlowQueue(queues.Queue):  # type: ignore[type-arg]
    """A queue in which the first looks with a timeout find nothing yet: a batch may take longer than any."""

    vain: Callable[[], object] = bool  # called behind each such look of the training process
    looks = 0
    trainer = 0

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take what is there; raises Empty."""
        patient = block and timeout is None
        if not patient and self._finds_nothing():
            raise Empty
        return super().get(block, timeout)

    def empty(self) -> bool:
        """Say whether nothing is there yet."""
        return self._finds_nothing() or super().empty()

    def _finds_nothing(self) -> bool:
        self.looks += 1
        if self.looks > VAIN:
            return False
        if os.getpid() == self.trainer:
            self.vain()
        return True


class _Context:
    """In place of the module multiprocessing: its processes, and queues that are slow."""

    def __init__(self, vain: Callable[[], object]) -> None:
        self.fork = multiprocessing.get_context("fork")
        self.Process = self.fork.Process
        self.SimpleQueue = self.fork.SimpleQueue
        self.vain = vain

    def Queue(self, maxsize: int = 0) -> _SlowQueue:
        """Make a queue, under the name that multiprocessing has."""
        made = _SlowQueue(maxsize, ctx=self.fork)
        made.vain = self.vain
        made.trainer = os.getpid()
        return made


class _Lists:
    """Eight lists of one index each, some of which come before the sampler raises KeyError, if any is missing."""

    def __init__(self, come: int) -> None:
        self.come = come

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(len(self)):
            if number == self.come:
                raise KeyError(number)
            yield [number]


def _trainer(work: Any, load: Any, ends: Sequence[str], patience: float, tell: Callable[[str], None]) -> None:
    """Take an epoch to its end, break one off, meet an error, as asked; tell each before it is tried."""
    for end in ends:
        if end == TWO_LOOPS:
            tell(f"{end}, {HANGS}. {SHARED}")
            try:
                said = _of_two_loops(work, load)
            except Exception as error:
                said = f"{end}, your code raised {error!r}. {SHARED}"
            if said:
                tell(said)
                return
            continue
        if end in (TENSORS, TENSORS_LEFT, TENSORS_FAIL):
            said = _of_tensors(work, load, end, tell)
            if said:
                tell(said)
                return
            continue
        moment = f"with large batches, {end}"
        tell(f"{moment}, {HANGS}. {HOME}")
        in_vain: list[bool] = []

        def vain(moment: str = moment, in_vain: list[bool] = in_vain) -> None:
            in_vain.append(True)
            tell(f"{moment}, {HANGS}. {HOME} {TIMED}")

        context = _Context(vain)
        first = 1 if end == AFTER_ERROR else 0  # item 0 raises KeyError where it is missing
        items = {i: bytes(LARGE) for i in range(first, 8)}
        lists = _Lists(LISTS.get(end, 8))
        iterator = load(work, items, lists, list, workers=2, context=context)
        try:
            with suppress(KeyError):
                next(iterator)
                if end == AFTER_BREAK:
                    iterator.close()
                else:
                    list(iterator)
        except Exception as error:
            tell(f"{moment}, {_what_came(error)}. {TIMED if in_vain else ''}".strip())
            return
        left = _still_there(patience, partial(tell, f"{moment}, {HANGS}. {HOME}"))
        if left:
            tell(f"{moment}, {plural(left, 'worker')} {'is' if left == 1 else 'are'} still there. {HOME}")
            return
    tell("")


def _what_came(error: Exception) -> str:
    """Say what came in place of the first batch, or behind it: a generator that only ends has raised nothing itself."""
    return "no batch came" if isinstance(error, StopIteration) else f"your code raised {error!r}"


def _of_two_loops(work: Any, load: Any) -> str:
    """Take two epochs of different items in turns; say what is wrong."""
    context = multiprocessing.get_context("fork")
    epochs = [
        load(work, [place + i for i in range(8)], [[i] for i in range(8)], list, workers=2, context=context)
        for place in (0, 100)
    ]
    got = list(zip(*epochs, strict=True))
    due = [([i], [100 + i]) for i in range(8)]
    return "" if got == due else f"{TWO_LOOPS}, they give {got[:3]} and so on, due are {due[:3]}. {SHARED}"


def _still_there(seconds: float, tell: Callable[[], object]) -> int:
    """Return how many processes that were started here are not over after so long; tell now and then, to go on."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (children := multiprocessing.active_children()):
        children[0].join(seconds / 10)
        tell()
    return len(multiprocessing.active_children())


class _LateQueue(queues.Queue):  # type: ignore[type-arg]
    """A queue in which a trainer that has said None looks only when the workers have gone."""

    sent_home: list[bool]  # shared by the queues of a loader
    gone: Callable[[], object] = bool  # called when what a worker has sent can't be received any more

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item; None is the last that a worker hears."""
        if item is None:
            self.sent_home.append(True)
        super().put(item, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take what is there; raises Empty, or what torch raises over a tensor of a process that has ended."""
        for worker in multiprocessing.active_children() if self.sent_home else ():
            worker.join(AT_MOST)
        if self.sent_home and block and not multiprocessing.active_children():
            block = False  # whatever is to come is there
        try:
            return super().get(block, timeout)
        except (OSError, EOFError):
            self.gone()
            raise


class _LateContext:
    """In place of the module multiprocessing: its processes, and queues of a trainer that is late."""

    def __init__(self, gone: Callable[[], object]) -> None:
        self.fork = multiprocessing.get_context("fork")
        self.Process = self.fork.Process
        self.gone = gone
        self.sent_home: list[bool] = []

    def Queue(self, maxsize: int = 0) -> _LateQueue:
        """Make a queue, under the name that multiprocessing has."""
        made = _LateQueue(maxsize, ctx=self.fork)
        made.sent_home = self.sent_home
        made.gone = self.gone
        return made

    SimpleQueue = Queue


def _of_tensors(work: Any, load: Any, end: str, tell: Callable[[str], None]) -> str:
    """Take an epoch of tensors, leave it, or meet an error; say what is wrong, the same of all."""
    tell(f"{end}, {HANGS}.")
    lost: list[str] = []

    def gone() -> None:
        lost.append(f"a batch of tensors can't be received any more. {GONE}")
        tell(lost[0])

    items = {i: torch.full((4,), float(i)) for i in range(8)}
    due: list[type[Exception]] = []
    if end == TENSORS_FAIL:
        del items[0]
        due.append(KeyError)
    iterator = load(work, items, _Lists(8), torch.stack, workers=2, context=_LateContext(gone))
    try:
        with suppress(*due):
            next(iterator)
            if end == TENSORS_LEFT:
                iterator.close()
            else:
                list(iterator)
    except Exception as error:
        return lost[0] if lost else f"{end}, {_what_came(error)}."
    return ""


def _tried(work: Any, load: Any, ends: Sequence[str], patience: float) -> str:
    """Return the last that is told."""
    told = in_a_process(partial(_trainer, work, load, ends, patience), patience)
    return ["at the start, all wait for ever.", *told][-1]


def fault_on_processes(work: Any, load: Any, ends: Sequence[str]) -> str:
    """Try a loader on processes, with large batches; return what is wrong, "" if nothing.

    What hangs is given up after `PATIENCE`, and only after many times what a right loader takes on this machine now.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        return ""
    said = _tried(work, load, ends, PATIENCE)
    if not said:
        return ""
    begun = time.monotonic()
    _tried(right_work, load_in_order, ends, 10 * PATIENCE)
    needed = SLOW * (time.monotonic() - begun)
    if needed > PATIENCE:
        said = _tried(work, load, ends, needed)
    return f"on real processes, {said}" if said else ""
