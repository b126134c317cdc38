r"""HTTP/1.1 messages on a socket: what the meta server and its clients need of HTTP, no more.

    POST /rows HTTP/1.1\r\n     the start line; in an answer: HTTP/1.1 200 OK
    Content-Length: 7\r\n       headers
    \r\n                        an empty line ends the head
    [3,1,4]                     the body: as many bytes as Content-Length says

The standard library reads a head line by line and with its e-mail parser, which costs more than all the rest of a
query; here it is one split. Every wait has a deadline for the whole message: a limit on each recv() alone lets a peer
that sends a byte now and then hold a thread for hours. Read more: RFC 9112.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import NamedTuple

MAX_HEAD = 8192
"""Bytes that a start line and its headers may take."""
CHUNK = 65_536  # bytes asked of the socket at a time


class Message(NamedTuple):
    """Hold one message: its start line, its headers (names in lower case), its body."""

    start: str
    headers: dict[str, str]
    body: bytes


class BadMessageError(Exception):
    """What arrived is no message that we take; `status` is the HTTP status that says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Wire:
    """Send and receive whole messages on a connected socket, which it then owns. For one thread at a time.

    Deadlines are times of time.monotonic(). Methods raise TimeoutError when the deadline passes, and ConnectionError or
    another OSError when the peer is gone; after either, and after BadMessageError, only `close` is of use.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._unread = bytearray()
        # Without it a small message may wait for the acknowledgement of the one before it: 40 ms (Nagle's algorithm).
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wait(self, seconds: float) -> bool:
        """Wait for the first byte of a message; return False if the peer hung up or nothing came in time."""
        if self._unread:
            return True
        try:
            return self._more(time.monotonic() + seconds)
        except TimeoutError:
            return False

    def receive(self, deadline: float, max_body: int) -> Message:
        """Return the next message; raises BadMessageError for one that is malformed or larger than we take."""
        unread = self._unread
        while (end := unread.find(b"\r\n\r\n")) < 0 and len(unread) <= MAX_HEAD:
            self._need(deadline)
        if not 0 <= end <= MAX_HEAD:
            raise BadMessageError(431, f"start line and headers may take {MAX_HEAD} bytes")
        start, *lines = unread[:end].decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            name = name.lower()
            if (
                not colon
                or not name
                or name != name.strip()
                or (name == "content-length" and name in headers)
            ):
                raise BadMessageError(400, f"malformed or repeated header {line[:80]!r}")
            headers[name] = value.strip()
        begin, end = end + 4, end + 4 + _body_length(headers, max_body)
        while len(unread) < end:
            self._need(deadline)
        message = Message(start, headers, bytes(unread[begin:end]))
        del unread[:end]  # what is left is the beginning of the next message
        return message

    def send(self, start: str, body: bytes, deadline: float, *headers: str) -> None:
        """Send one message; `body` is JSON."""
        head = [start, *headers, "Content-Type: application/json", f"Content-Length: {len(body)}", "\r\n"]
        self._socket.settimeout(_seconds_left(deadline))
        self._socket.sendall("\r\n".join(head).encode("latin-1") + body)

    def hang_up(self, seconds: float) -> None:
        """Say that nothing more will come, and give the peer some seconds to read it before the caller closes.

        A socket that is closed with unread bytes in it resets the connection, and the peer may lose our last answer.
        """
        deadline = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while self._more(deadline):
                self._unread.clear()

    def close(self) -> None:
        """Close this process's end; a process that was forked off keeps its own."""
        self._socket.close()

    def _need(self, deadline: float) -> None:
        if not self._more(deadline):
            raise ConnectionError("the peer hung up in mid-message" if self._unread else "the peer hung up")

    def _more(self, deadline: float) -> bool:
        self._socket.settimeout(_seconds_left(deadline))
        received = self._socket.recv(CHUNK)
        self._unread += received
        return bool(received)


def _body_length(headers: dict[str, str], max_body: int) -> int:
    if "transfer-encoding" in headers:
        raise BadMessageError(501, "no Transfer-Encoding here; send the body whole, with its Content-Length")
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise BadMessageError(400, f"Content-Length must be a number of bytes, not {text[:80]!r}")
    if len(text) > 18 or int(text) > max_body:
        raise BadMessageError(413, f"a body may take {max_body} bytes, not {text[:80]}")
    return int(text)


def _seconds_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:  # a time-out of 0 would mean: do not wait at all
        raise TimeoutError("timed out")
    return left
