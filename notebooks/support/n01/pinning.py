"""How a reader's pinning stage is tried, exercise 6 of notebook 01: between two queues, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event
from time import monotonic
from typing import Any

from support.kit.outside import remembering
from support.kit.raised import told_of
from support.kit.threads import Aside

UNPINNED = "A batch was handed on without being pinned."
PINS_ERRORS = "Where an error came there is no batch to pin: hand it on as it is."
RAISES = "An error of `pin` ends the thread, and the trainer waits for ever: hand it on as its batch's error."
DROPS_ERRORS = "An error was not handed on, and the trainer has to hear of it."
COLLECTS = "All is taken before anything is handed on: pin and hand on one batch after the other."
AHEAD = "Each message leaves before the next is taken: meanwhile the trainer may be waiting for it."
ENDS = "It was handed on, and then it ended the thread: go on until None comes."
ONE_ONLY = "Only the first is handed on: go on until None comes."
NUMBERS_LOST = "A message keeps its form, (number, batch, error): the trainer looks for its batch by number."

IN_ITS_PLACE = "An error stands in the third place of its message, not in that of the batch."
LEFT_BESIDE = "Beside an error there is no batch: None stands in its place."
OTHER_ERROR = (
    "The error that came, or that `pin` raised, is itself handed on: another has lost what it carried."
)
TWICE = "A batch is pinned once: each time is a copy of all of it."
GIVES_UP = "A look that finds nothing in time is no end: a batch may take longer than any timeout."
STAYS = "The stage goes on waiting behind None."
ANYTHING = (
    "What `pin` makes may be anything, also None or an exception: that pinning has failed it does not say."
)
EMPTY = "An empty batch is a batch, too, and None as well: whether there is one is said by `error`, not by the batch."

VAIN = 12  # looks with a timeout that find nothing yet
PATIENCE = 20.0  # seconds; who asks for more behind None is found at once
BROKEN = OSError("no such file")
FULL = MemoryError("no pinned memory is left")
LOST = RuntimeError("CUDA error: out of memory")


class PinError(Exception):
    """What a pin raises that is neither memory nor CUDA, and false: nobody knows all classes beforehand."""

    def __bool__(self) -> bool:
        return False


class NoReasonError(Exception):
    """What a worker sends may be false, as one that holds a list of reasons, here of none."""

    def __bool__(self) -> bool:
        return False


class Pair(str):
    """A batch that is neither true nor false, as a tensor of two elements."""

    def __bool__(self) -> bool:
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")


class ListedParts(list[Any]):
    """A batch of several tensors, as `default_collate` makes one; it is looked up as an object."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class NamedParts(dict[str, Any]):
    """A batch whose tensors have names; it is looked up as an object."""

    __hash__ = object.__hash__  # type: ignore[assignment]


OTHER = PinError("the pages can't be locked")
SENT = (
    (0, "zero", None),
    (2, "two", None),
    (1, None, BROKEN),
    (3, "three", None),
    (5, "five", None),
    (4, "four", None),
    (6, "", None),
    (7, Pair("seven"), None),
    (8, "eight", None),
    (9, None, None),
    (10, None, NoReasonError("no reason is given")),
    (11, ValueError("eleven"), None),  # data: nobody has raised it
    (12, "twelve", None),
    (13, "thirteen", None),
    (14, ListedParts(["a", "b"]), None),
    (15, ("c", "d"), None),
    (16, NamedParts(e="f"), None),
)
MADE = {"twelve": None, "thirteen": ValueError("pinned thirteen")}  # as data; of other batches a text is made
LONG = "two"
TAKES = 0.05  # seconds, to pin it
FAILS = {"three": FULL, "five": LOST, "eight": OTHER}


class _Results:
    """Gives messages, and notes how many had been handed on when each was asked for."""

    def __init__(self, data: SimpleQueue[Any]) -> None:
        self.left = [*SENT, None]
        self.data = data
        self.before: list[int] = []
        self.behind_none = Event()
        self.looks = 0  # with a timeout
        self.asked = Event()  # for the next message

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.asked.set()
        if not block or timeout is not None:
            self.looks += 1
            if self.looks <= VAIN:
                raise Empty
        self.before.append(self.data.qsize())
        if self.left:
            return self.left.pop(0)
        self.behind_none.set()
        # Behind None nothing ever comes. `dismiss` finds this queue in our frame.
        nothing: SimpleQueue[Any] = SimpleQueue()
        return nothing.get()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        """Look, as with a timeout; behind None nothing ever comes."""
        self.looks += 1
        if not self.left:
            self.behind_none.set()
        return self.looks <= VAIN or not self.left


def _pin(results: _Results, asked: list[Any], batch: Any) -> Any:
    """Pin a batch; one takes its time, in which nobody may ask for the next."""
    asked.append(batch)
    if batch in FAILS:
        raise FAILS[batch]
    if batch == LONG:
        results.asked.clear()
        results.asked.wait(TAKES)
    return _pinned(batch)


def _pinned(batch: Any) -> Any:
    """Return what a batch becomes."""
    return MADE[batch] if batch in MADE else Pair(f"pinned {batch}")


def fault_of_pinning(stage: Callable[..., Any]) -> str:
    """Say what is wrong with pin_stage, "" if nothing."""
    return remembering(_fault_of_stage)(stage)


def _fault_of_stage(stage: Callable[..., Any]) -> str:
    data: SimpleQueue[Any] = SimpleQueue()
    results = _Results(data)
    asked: list[Any] = []
    with Aside(partial(stage, results, data, partial(_pin, results, asked))) as aside:
        over = _over(aside, results)
        error = aside.error
    out = [data.get() for _ in range(data.qsize())]
    twice = _of_pins(asked)
    if asked.count(None) > 1 and not twice:  # one batch is None
        return f"pin was called where an error had come. {PINS_ERRORS}"
    if any(error is failed for failed in FAILS.values()):
        handed_on = any(error is part for message in out if isinstance(message, tuple) for part in message)
        return f"pin raises {error!r}, and the stage raised it, too. {ENDS if handed_on else RAISES}"
    if isinstance(error, Empty):
        return f"{told_of(error)} {GIVES_UP}"
    if error is not None:
        return told_of(error)
    if results.behind_none.is_set():
        return STAYS
    if not over:
        return "the stage does not end."
    return _of_messages(out) or _of_turns(results) or twice


def _over(aside: Aside, results: _Results) -> bool:
    """Wait until the stage has ended or asks for more behind None; say whether it has ended."""
    deadline = monotonic() + PATIENCE
    while monotonic() < deadline and not results.behind_none.is_set():
        if aside.over(0.01):
            return True
    return False


def _of_pins(asked: list[Any]) -> str:
    again = [batch for batch in asked if batch is not None and asked.count(batch) > 1]
    return f"pin was called {asked.count(again[0])} times with {again[0]!r}. {TWICE}" if again else ""


def _of_messages(out: list[Any]) -> str:
    if len(out) == 1 and isinstance(out[0], tuple) and out[0][:1] == SENT[0][:1]:
        return f"1 message came out, due are {len(SENT)}. {ONE_ONLY}"
    for message, (number, batch, error) in zip(out, SENT, strict=False):
        wanted = None if error is not None else _pinned(batch)
        due: tuple[int, Any, Exception | None] = (number, wanted, error)
        if batch in FAILS:
            due = (number, None, FAILS[batch])
        if not isinstance(message, tuple) or len(message) != 3:
            return f"the message {message!r} came out, due is {due!r}. {NUMBERS_LOST}"
        if message[0] == number and message[1] == due[1] and message[2] is due[2]:
            continue
        said = f"the message {message!r} came out, due is {due!r}."
        if message[0] != number:
            return said
        if batch in MADE:
            return f"{said} {ANYTHING}"
        if message[1] is due[2] is not None:
            return f"{said} {IN_ITS_PLACE}"
        if message[2] is due[2] is not None:
            return f"{said} {LEFT_BESIDE}"
        if message[1] == batch and due[2] is None:
            return f"{said} {UNPINNED if batch else EMPTY}"
        if isinstance(message[2], Exception) and due[2] is not None:
            return f"{said} {OTHER_ERROR}"
        return f"{said} {DROPS_ERRORS}" if message[2] is None is not due[2] else said
    if len(out) != len(SENT):
        return f"{len(out)} messages came out, due are {len(SENT)}."
    return ""


def _of_turns(results: _Results) -> str:
    due = list(range(len(SENT) + 1))
    if results.before[: len(due)] == due:
        return ""
    first = next(turn for turn, before in enumerate(results.before) if before != turn)
    why = AHEAD if any(results.before) else COLLECTS
    return f"message {first} was taken when {results.before[first]} had been handed on. {why}"
