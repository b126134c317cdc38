"""How long what ranks did would take, if each forward and each backward took one tick and messages took none.

Log       what one rank did, in its order: ("F", micro-batch), ("B", micro-batch), ("send", rank), ("recv", rank)
AtOnce    a `dist` whose messages are there as soon as irecv is called
Listening a `dist` that writes messages into such a log
ticks_taken how long logs of all ranks take, by data flow: a message is there when its sender has got so far
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

from support.kit.raised import Finding
from support.n15.orders import ActionPair

Log: TypeAlias = "list[tuple[str, int]]"


class Listening:
    """The `dist` of a rank in one step, which notes when a message is sent, and when the rank waits for one.

    A handle is for the step and the rank that got it: whoever waits for another one raises Finding.
    """

    def __init__(self, dist: Any, log: Log) -> None:
        self._dist = dist
        self._log = log
        self._rank = threading.current_thread()
        self._over = False

    def end(self) -> None:
        """Note that the step is over."""
        self._over = True

    def belongs(self) -> None:
        """Raise Finding if a handle of this step is waited for after it, or by another rank."""
        whose = "in another step" if self._over else "by another rank"
        if self._over or threading.current_thread() is not self._rank:
            raise Finding(
                f"A handle is waited for that was begun {whose}: something is kept between calls. A default such as "
                "`handles=[]` is made once, and is the same list in every call."
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dist, name)

    def send(self, tensor: Any, dst: int) -> None:
        """Note a message, and send it."""
        self._log.append(("send", dst))
        self._dist.send(tensor, dst)

    def isend(self, tensor: Any, dst: int) -> Any:
        """Note a message, and begin to send it."""
        self._log.append(("send", dst))
        return _Going(self._dist.isend(tensor, dst), self)

    def recv(self, tensor: Any, src: int) -> None:
        """Note that a message is needed now, and receive it."""
        self._log.append(("recv", src))
        self._dist.recv(tensor, src)

    def irecv(self, tensor: Any, src: int) -> Any:
        """Begin to receive; its handle notes when the message is needed."""
        handle = self._dist.irecv(tensor, src)
        return _Coming(handle, self, src, self._log)


class AtOnce:
    """The `dist` of a rank whose irecv receives before it returns: no message is late."""

    def __init__(self, dist: Any) -> None:
        self._dist = dist

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dist, name)

    def irecv(self, tensor: Any, src: int) -> Any:
        """Receive; the handle has nothing to wait for."""
        handle = self._dist.irecv(tensor, src)
        handle.wait()
        return handle


class _Going:
    """The handle of a message that goes."""

    def __init__(self, handle: Any, step: Listening) -> None:
        self._handle = handle
        self._step = step

    def wait(self) -> Any:
        self._step.belongs()
        return self._handle.wait()


class _Coming:
    """The handle of a message that comes: it is needed when it is waited for, not when its coming began."""

    def __init__(self, handle: Any, step: Listening, src: int, log: Log) -> None:
        self._handle = handle
        self._step = step
        self._src = src
        self._log = log
        self._noted = False

    def wait(self) -> Any:
        self._step.belongs()
        if not self._noted:
            self._log.append(("recv", self._src))
            self._noted = True
        return self._handle.wait()


def log_of(actions: Sequence[ActionPair], rank: int, ranks: int) -> Log:
    """Return what a rank writes down that receives just before it computes, and sends just after."""
    log: Log = []
    for op, i in actions:
        source, target = (rank - 1, rank + 1) if op == "F" else (rank + 1, rank - 1)
        if 0 <= source < ranks:
            log.append(("recv", source))
        log.append((op, i))
        if 0 <= target < ranks:
            log.append(("send", target))
    return log


def ticks_taken(logs: Sequence[Log], actions: str = "FB") -> int:
    """Return the ticks until the last of these actions is done: all, or "F", the forwards.

    A send never waits here, and messages of one rank to another come in their order. Raises ValueError where a rank
    waits for a message that nobody sends.
    """
    clock = [0] * len(logs)
    place = [0] * len(logs)
    sent: dict[tuple[int, int], list[int]] = {}
    end = 0
    moved = True
    while moved:
        moved = False
        for rank, log in enumerate(logs):
            while place[rank] < len(log):
                what, peer = log[place[rank]]
                if what == "recv":
                    line = sent.get((peer, rank))
                    if not line:
                        break
                    clock[rank] = max(clock[rank], line.pop(0))
                elif what == "send":
                    sent.setdefault((rank, peer), []).append(clock[rank])
                else:
                    clock[rank] += 1
                    end = max(end, clock[rank]) if what in actions else end
                place[rank] += 1
                moved = True
    if any(done < len(log) for done, log in zip(place, logs, strict=True)):
        raise ValueError(f"ranks wait for messages that nobody sends: {place} of {[*map(len, logs)]}")
    return end
