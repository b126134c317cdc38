"""What tests of the meta server share: rows without a file, a server in a thread, requests as bytes."""

import contextlib
import json
import re
import socket
import threading
import time

from lib.data import MetaServer, ServerDataset

HOST = "127.0.0.1"
ROWS = b"POST /rows HTTP/1.1"
LENGTH = b"Content-Length: "


class ListOfRows:
    """Rows without a file, which count how often they are read and may be slow."""

    def __init__(self, rows, seconds=0.0):
        self.list = list(rows)
        self.seconds = seconds
        self.reads = 0
        self.reading = threading.Event()

    def __len__(self):
        return len(self.list)

    def rows(self, ids):
        self.reads += 1
        self.reading.set()
        time.sleep(self.seconds)
        return [self.list[i] for i in ids]


def numbered(size=100):
    return ListOfRows(f"row {i}" for i in range(size))


@contextlib.contextmanager
def served(rows, **options):
    """Serve rows from a thread; give the server and a dataset that asks it."""
    with MetaServer(rows) as serving:
        dataset = ServerDataset(HOST, serving.port, **options)
        yield serving, dataset
        dataset.close()


def ask(start, *headers, body=b""):
    """Return a message's bytes; no header is there that is not given."""
    return b"\r\n".join([start, *headers, b"", body])


def get(path):
    return ask(b"GET %s HTTP/1.1" % path)


def post(body, *headers, path=b"/rows"):
    return ask(b"POST %s HTTP/1.1" % path, LENGTH + b"%d" % len(body), *headers, body=body)


def says(start, body=b"", *headers):
    """Return an answer's bytes."""
    return ask(b"HTTP/1.1 " + start, LENGTH + b"%d" % len(body), *headers, body=body)


def says_value(value):
    return says(b"200 OK", json.dumps(value).encode())


def talk(port, *parts, pause=0.0):
    """Send bytes to the server as they are; return all that comes back until it hangs up (or 5 s of silence)."""
    with socket.create_connection((HOST, port), timeout=5) as raw:
        for part in parts:
            raw.sendall(part)
            time.sleep(pause)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := raw.recv(65_536):
                received += chunk
        return received


def statuses(answer):
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", answer)]


def until(true, seconds=10):
    """Wait until `true()`; fail if that takes too long."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "this should have happened long ago"
        time.sleep(0.01)


@contextlib.contextmanager
def scripted_server(*answers):
    """Listen, and treat the n-th connection with the n-th answer: a function, or bytes to say after the stamp."""
    with socket.create_server((HOST, 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):  # the peer hung up, or the listener was shut down
                for answer in answers:
                    with listener.accept()[0] as connection:
                        if callable(answer):
                            answer(connection)
                        elif connection.recv(65_536):
                            connection.sendall(says_value([100, "stamp"]))
                            connection.recv(65_536)
                            connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
