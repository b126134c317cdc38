"""A socket that waits until a moment and not for a while: the meta server and its client speak HTTP on such ones."""

from __future__ import annotations

import socket
import time
from typing import Any


class DeadlineSocket(socket.socket):
    """A connected socket whose reads and writes end at `deadline`, a time of time.monotonic(), with TimeoutError.

    The time limit of an ordinary socket begins anew with each read: a peer that sends a byte now and then holds a
    thread for hours. Files that `makefile` returns, as http.server and http.client use them, keep the deadline too.
    Set it before each message.
    """

    deadline = 0.0

    @classmethod
    def of(cls, connection: socket.socket) -> DeadlineSocket:
        """Take an ordinary socket over: the connection is then that of the socket returned."""
        return cls(connection.family, connection.type, connection.proto, connection.detach())

    def recv_into(self, *arguments: Any) -> int:
        """As of socket, until the deadline."""
        self.settimeout(seconds_left(self.deadline))
        return super().recv_into(*arguments)

    def send(self, *arguments: Any) -> int:
        """As of socket, until the deadline."""
        self.settimeout(seconds_left(self.deadline))
        return super().send(*arguments)

    def sendall(self, *arguments: Any) -> None:
        """As of socket, until the deadline."""
        self.settimeout(seconds_left(self.deadline))
        super().sendall(*arguments)


def seconds_left(deadline: float) -> float:
    """Return the seconds until a time of time.monotonic(); raises TimeoutError when it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:  # a time-out of 0 would mean: do not wait at all
        raise TimeoutError("timed out")
    return left
