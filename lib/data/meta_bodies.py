"""How much memory the bodies of requests take, of all connections together, and who must go if that is too much.

Bodies that come at once never meet the limit: it is there for hundreds that are sent halfway and held there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from lib.data.meta_answers import BUSY_SECONDS, SMALL, RefusedError

MAX_BODIES = 1 << 25  # bytes that all bodies together may take, of those that are larger than SMALL
PROMPT_SECONDS = 1.0  # a body that has taken longer to come makes room for others, if they need it


class Body:
    """A body that is on its way, or has come and is not answered yet."""

    def __init__(self, size: int, hang_up: Callable[[], None]) -> None:
        self.size = size
        self.hang_up = hang_up
        self.since = time.monotonic()
        self.all_there = False
        self.made_room = False

    def received(self) -> None:
        """Note that it has come: whoever sent it is not hung up on any more."""
        self.all_there = True

    def slow_at(self) -> float:
        """Return when it will have been too long on its way."""
        return self.since + PROMPT_SECONDS


class BodyMemory:
    """The bodies that are there: `room` makes room for one more."""

    def __init__(self) -> None:
        self._bodies: set[Body] = set()
        self._changed = threading.Condition()

    @property
    def held(self) -> int:
        """The bytes that all bodies may take."""
        return sum(body.size for body in self._bodies)

    @contextlib.contextmanager
    def room(self, size: int, hang_up: Callable[[], None]) -> Iterator[Body]:
        """Hold so much within a `with`. hang_up: called, from another thread, if it came too slowly and others wait.

        Raises RefusedError if others hold the memory for too long.
        """
        body = Body(size if size > SMALL else 0, hang_up)
        if body.size:
            self._take(body)
        try:
            yield body
        finally:
            if body.size:
                with self._changed:
                    self._bodies.discard(body)
                    self._changed.notify_all()

    def _take(self, body: Body) -> None:
        deadline = time.monotonic() + BUSY_SECONDS
        with self._changed:
            while self.held + body.size > MAX_BODIES:
                now = time.monotonic()
                if now >= deadline:
                    raise RefusedError(503, "the requests of others take all memory just now; ask again", "MemoryError")
                coming = [other for other in self._bodies if not (other.all_there or other.made_room)]
                for slow in [other for other in coming if other.slow_at() <= now]:
                    slow.made_room = True
                    slow.hang_up()
                next_look = min([deadline, *(other.slow_at() for other in coming if not other.made_room)])
                self._changed.wait(next_look - now)
            body.since = time.monotonic()
            self._bodies.add(body)
