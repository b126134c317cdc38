"""The meta server and its dataset: every row arrives as it is, and faults end in a clear error, not in a wait."""

import contextlib
import http.client
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lib.data import MetaFile, MetaServer, ServerDataset, meta_server, server, server_dataset
from tests.lib.forks import FORK, in_fork, needs_fork
from tests.lib.refusal import refuses

pytestmark = pytest.mark.timeout(60)  # a hang is a failure, in every test

ROOT = Path(__file__).parents[3]
HOST = "127.0.0.1"


class ListOfRows:
    """Rows without a file, which count how often they are read and may be slow."""

    def __init__(self, rows, seconds=0.0):
        self.list, self.seconds, self.reads = list(rows), seconds, 0
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


@pytest.fixture
def dataset():
    """A dataset of the rows "row 0" … "row 99", from a server in a thread."""
    with served(numbered()) as (_, rows):
        yield rows


def ask(start, *headers, body=b""):
    """Return a message's bytes; no header is there that is not given."""
    return b"\r\n".join([start, *headers, b"", body])


def get(path):
    return ask(b"GET %s HTTP/1.1" % path)


def post(body, *headers, path=b"/rows"):
    return ask(b"POST %s HTTP/1.1" % path, b"Content-Length: %d" % len(body), *headers, body=body)


def says(start, body=b"", *headers):
    return ask(b"HTTP/1.1 " + start, b"Content-Length: %d" % len(body), *headers, body=body)


def http_answer(value):
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


# What is asked arrives
def test_a_served_dataset_is_a_dataset(dataset):
    assert isinstance(dataset, torch.utils.data.Dataset) and len(dataset) == 100
    assert dataset[17] == dataset[np.int64(17)] == dataset[torch.tensor(17)] == "row 17"
    assert dataset.__getitems__([3, 1, 4, 1]) == ["row 3", "row 1", "row 4", "row 1"]
    assert dataset.__getitems__(torch.tensor([7, 0])) == ["row 7", "row 0"] and dataset.__getitems__([]) == []
    assert list(dataset) == [f"row {i}" for i in range(100)], "iteration ends at the IndexError"

    def right(number, turn):
        ids = [(number * 13 + turn * j) % 100 for j in range(number + 1)]
        return dataset.__getitems__(ids) == [f"row {j}" for j in ids] and dataset[number] == f"row {number}"

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(right, list(range(8)) * 50, range(400))), "eight threads at once each get their own"
    for wrong in (1.0, "1", True, None):
        refuses(TypeError, "index must be an integer", dataset.__getitem__, wrong)
    dataset.transform = len
    assert dataset[5] == 5 and dataset.__getitems__([5, 50]) == [5, 6]
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy._idle == [] and copy.timeout == dataset.timeout, "it takes its settings and no connection"
    assert len(copy) == 100 and copy[10] == 6
    copy.close()
    copy.close()
    assert copy[10] == 6, "closed, it connects anew"


def test_every_row_arrives_as_it_is_even_what_is_no_utf8_also_from_a_file(tmp_path):
    no_utf8 = b"latin \xe9, half a \xf0\x9f\x98, and \xed\xa0\x80".decode("utf-8", "surrogateescape")
    odd = ["", 'img/1.png "a \\ and a \x00"', "手写的七 \U0001f600 \u2028\u2029", no_utf8, "long " * 100_000]
    with served(ListOfRows(odd)) as (_, rows):
        assert rows.__getitems__(range(5)) == odd and [rows[i] for i in range(5)] == odd
    path = tmp_path / "meta.txt"
    path.write_bytes(b'# file "caption"\n0.png "a seven"\r\n\n1.png "\xff"\n')
    with served(path) as (serving, rows):
        assert len(serving) == 2 and rows.__getitems__([1, 0]) == ['1.png "\udcff"', '0.png "a seven"']


def test_a_dataloaders_batch_is_one_request_and_above_the_servers_limits_several(dataset, monkeypatch):
    rows = numbered()
    with served(rows) as (_, counted):
        batches = list(DataLoader(counted, batch_size=25))
    assert [row for batch in batches for row in batch] == rows.list and rows.reads == 4
    with monkeypatch.context() as patch:
        patch.setattr(server_dataset, "MAX_IDS", 40)
        patch.setattr(meta_server, "MAX_IDS", 40)
        assert dataset.__getitems__(range(100)) == [f"row {i}" for i in range(100)]
    monkeypatch.setattr(meta_server, "MAX_ANSWER", 30)  # bytes: halved until it fits
    assert dataset.__getitems__(range(100)) == [f"row {i}" for i in range(100)]
    monkeypatch.setattr(meta_server, "MAX_ANSWER", 5)
    assert dataset.__getitems__([1, 2]) == ["row 1", "row 2"]
    monkeypatch.setattr(meta_server, "MAX_ANSWER", 3)
    refuses(ValueError, "row 1 is too large for this server: one answer may hold 3 bytes", dataset.__getitems__, [1, 2])
    with served(ListOfRows(["abc", "ab\u624b"])) as (_, chinese):
        assert chinese[0] == "abc"
        refuses(ValueError, "may hold 3 bytes", chinese.__getitem__, 1)


def test_outside_the_rows_is_an_index_error_as_for_a_list(dataset):
    for index in (100, 10**17, -1, -100):
        refuses(IndexError, str(index), dataset.__getitem__, index)
        refuses(IndexError, str(index), dataset.__getitems__, [0, index])
    assert dataset[0] == "row 0", "and the connection is still good"
    with served(numbered(0)) as (_, rows):
        assert len(rows) == 0 and rows.__getitems__([]) == []
        refuses(IndexError, "row 0 is out of range for 0 rows; there are none", rows.__getitem__, 0)


def test_any_http_client_can_ask(dataset):
    plain = http.client.HTTPConnection(HOST, dataset.port, timeout=5)
    no_list = {"error": "TypeError", "message": "the body must be a JSON list of integers, as in [3,1,4]"}
    for method, path, body, *expected in [
        ("GET", "/get/7", None, 200, "row 7"),
        ("POST", "/rows", "[3, 1]", 200, ["row 3", "row 1"]),
        ("POST", "/rows", "3", 400, no_list),
        ("GET", "/len", None, 200, 100),
    ]:
        plain.request(method, path, body)
        answer = plain.getresponse()
        assert answer.getheader("Content-Type") == "application/json"
        assert [answer.status, json.loads(answer.read())] == expected
    plain.close()


# Requests that are wrong: the connection goes on after those of WRONG and ends with those of BROKEN
ROWS, LENGTH = b"POST /rows HTTP/1.1", b"Content-Length: "
WRONG = {
    (404, "nothing at '/"): [get(b"/etc/passwd"), get(b"/"), get(b"/../../etc/passwd")],
    (400, "asked for by its number"): [
        get(b"/get/" + row) for row in (b"../../etc/passwd", b"%2e%2e%2f1", b"", b"1.0", "\u0663".encode(), b"9" * 5000)
    ],
    (404, "row 100 is out of range for 100 rows; rows are 0..99"): [get(b"/get/100"), post(b"[0, 100]")],
    (404, "is out of range"): [get(b"/get/-1"), post(b"[" + b"9" * 100 + b"]")],
    (405, "/len is asked with GET, not POST"): [post(b"[1]", path=b"/len")],
    (405, "/rows is asked with POST, not GET"): [get(b"/rows")],
    (400, "the body is no JSON"): [
        post(body) for body in (b"", b"[1, 2", b"\xff\xfe\x00", b"[" * 100_000, b"[" + b"1" * 10_000 + b"]")
    ],
    (400, "a JSON list of integers"): [post(body) for body in b'3 {"0":1} ["1"] [1.0] [true] [1e999] [null]'.split()],
    (413, "may ask for 65536 rows, not 65537"): [post(b"[" + b"0," * 65_536 + b"0]")],
}
BROKEN = {
    (405, "asked with GET, not DELETE"): [ask(b"DELETE /get/1 HTTP/1.1")],
    (405, "asked with GET, not HEAD"): [ask(b"HEAD /len HTTP/1.1")],
    (400, "no HTTP/1 request"): [b"\x16\x03\x01\x02\x00 TLS\r\n\r\n", b"\r\n\r\n", ask(b"PRI * HTTP/2.0")],
    (400, "header"): [ask(b"GET /len HTTP/1.1", b"Host"), ask(b"GET /len HTTP/1.1", b"A: b", b" folded: c")],
    (431, "may take 8192 bytes"): [ask(b"GET /len HTTP/1.1", *[b"A: b"] * 3000), b"G" * 20_000],
    (411, "needs a Content-Length"): [ask(ROWS)],
    (501, "Transfer"): [ask(ROWS, b"Transfer-Encoding: chunked", body=b"3\r\n[1]\r\n0\r\n\r\n")],
    (413, "1048576 bytes"): [
        ask(ROWS, LENGTH + length, body=b"[1]") for length in (b"1048577", b"99999999999", b"9" * 7000)
    ],
    (400, "a number of bytes"): [ask(ROWS, LENGTH + length, body=b"[1]") for length in (b"-1", b"0x3")],
    (400, "repeated"): [ask(ROWS, LENGTH + b"3", LENGTH + b"4", body=b"[1]")],
}
CASES = [
    pytest.param(request_, *told, goes_on, id=f"{told[0]}-{request_[:30].decode('latin-1')}")
    for table, goes_on in ((WRONG, True), (BROKEN, False))
    for told, requests in table.items()
    for request_ in requests
]


@pytest.mark.parametrize("request_, status, text, goes_on", CASES)
def test_a_wrong_request_is_told_why_and_the_next_is_served_if_it_can_be(dataset, request_, status, text, goes_on):
    answer = talk(dataset.port, request_, ask(b"GET /len HTTP/1.1", b"Connection: close"))
    assert statuses(answer) == ([status, 200] if goes_on else [status])
    assert text in json.loads(re.search(rb"{.*}", answer)[0])["message"]
    assert dataset[3] == "row 3", "others are served as before"


def test_a_client_that_is_still_sending_gets_the_refusal_all_the_same_and_the_server_is_quiet(dataset, capfd):
    with socket.create_connection((HOST, dataset.port), timeout=5) as raw:
        raw.sendall(ask(ROWS, LENGTH + b"2000000"))
        for _ in range(20):  # a reset in the middle of this would throw the answer away
            raw.sendall(b" " * 10_000)
            time.sleep(0.01)
        assert statuses(raw.recv(65_536)) == [413]
    for request_, *_ in (case.values for case in CASES):
        with contextlib.suppress(OSError), socket.create_connection((HOST, dataset.port), timeout=5) as raw:
            raw.sendall(request_)  # and gone, without reading
    assert dataset[3] == "row 3" and capfd.readouterr() == ("", "")


def test_requests_may_come_at_once_or_byte_by_byte_but_not_for_ever(dataset, monkeypatch):
    four = get(b"/get/1") + get(b"/get/2") + post(b"[3]", b"Host: here") + ask(b"GET /len HTTP/1.0")  # and hung up on
    answer = talk(dataset.port, four + get(b"/len"))
    assert statuses(answer) == [200] * 4
    assert re.findall(rb'"row \d"', answer) == [b'"row 1"', b'"row 2"', b'"row 3"']
    request_ = ask(b"GET /get/1 HTTP/1.1", b"Connection: close")
    assert b'"row 1"' in talk(dataset.port, *(request_[i : i + 1] for i in range(len(request_))), pause=0.001)
    monkeypatch.setattr(meta_server, "MESSAGE_SECONDS", 0.2)
    for unfinished in (b"GET /len HT", ask(ROWS, LENGTH + b"9", body=b"[1")):
        assert statuses(talk(dataset.port, unfinished)) == [408]


def test_clients_that_are_idle_or_take_no_answer_hold_no_thread_and_the_dataset_does_not_notice(monkeypatch):
    monkeypatch.setattr(meta_server, "MESSAGE_SECONDS", 0.2)
    with MetaServer(ListOfRows(["x" * 16_000_000])) as serving, socket.create_connection((HOST, serving.port)) as raw:
        raw.sendall(get(b"/get/0"))
        until(lambda: serving._listener.open)
        until(lambda: not serving._listener.open)
    monkeypatch.setattr(meta_server, "IDLE_SECONDS", 0.05)
    with served(numbered()) as (serving, rows):
        for i in range(3):
            assert rows[i] == f"row {i}"
            until(lambda: not serving._listener.open)


def test_for_a_connection_above_the_limit_the_one_that_is_idle_for_longest_goes_and_nobody_is_locked_out(monkeypatch):
    monkeypatch.setattr(meta_server, "MAX_CONNECTIONS", 2)
    with MetaServer(numbered()) as serving:
        first, second, third = (ServerDataset(HOST, serving.port, retries=1) for _ in range(3))
        assert [first[0], second[1], first[2], second[3]] == [f"row {i}" for i in range(4)]
        kept = second._idle[0]
        assert third[3] == "row 3" and len(serving._listener.open) == 2
        assert second[4] == "row 4" and second._idle == [kept], "it was the first that had asked nothing for longest"
        assert first[5] == "row 5", "which connects anew"
        for client in (first, second, third):
            client.close()


def test_who_waits_for_an_answer_is_never_hung_up_on(monkeypatch):
    monkeypatch.setattr(meta_server, "MAX_CONNECTIONS", 1)
    rows, go_on = numbered(), threading.Event()
    monkeypatch.setattr(rows, "rows", lambda ids: rows.reading.set() or (go_on.wait(10) and ["late"]))
    with served(rows) as (serving, first), ThreadPoolExecutor() as pool:
        asked = pool.submit(lambda: first[1])
        assert rows.reading.wait(10)
        refuses(ConnectionError, "", len, ServerDataset(HOST, serving.port, retries=1))
        go_on.set()
        assert asked.result(10) == "late"


def test_there_are_no_more_connections_than_files_may_be_open(monkeypatch):
    resource = pytest.importorskip("resource", reason="ulimit")
    for files, room in ((1024, 512), (256, 192), (64, 1), (resource.RLIM_INFINITY, 512)):
        monkeypatch.setattr(resource, "getrlimit", lambda what, files=files: (files, resource.RLIM_INFINITY))
        assert MetaServer(numbered())._listener.limit == room


def test_when_no_connection_can_be_taken_an_idle_one_goes_and_the_server_does_not_spin(monkeypatch):
    get_request, sleep, slept, full = meta_server._Listener.__mro__[1].get_request, time.sleep, [], [True] * 3

    def no_file_left(listener):
        if full:
            full.pop()
            raise OSError(24, "Too many open files")
        return get_request(listener)

    with served(numbered()) as (serving, idle), monkeypatch.context() as patch:
        assert idle[0] == "row 0"
        patch.setattr(meta_server._Listener.__mro__[1], "get_request", no_file_left, raising=False)
        patch.setattr(meta_server, "ACCEPT_SECONDS", 0.0123)
        patch.setattr(time, "sleep", lambda seconds: slept.append(seconds) or sleep(seconds))
        other = ServerDataset(HOST, serving.port, retries=0)
        assert other[1] == "row 1" and slept.count(0.0123) == 3
        until(lambda: len(serving._listener.open) == 1)
        other.close()


# Large rows
LARGE = 300_000


@pytest.fixture
def large(tmp_path):
    """A file of three rows of 300 kB."""
    path = tmp_path / "large.txt"
    path.write_text("".join(f"{letter * LARGE}\n" for letter in "abc"), encoding="utf-8")
    with MetaFile(path) as meta_file:
        yield meta_file


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("count", [8, 256])
def test_what_is_too_much_is_refused_before_it_is_read(large, monkeypatch, in_memory, count):
    monkeypatch.setattr(meta_server, "MAX_ANSWER", 4 * LARGE)
    rows = large.packed(range(3)) if in_memory else large
    with served(rows) as (serving, dataset):
        assert dataset[1] == "b" * LARGE
        tracemalloc.start()
        answer = talk(dataset.port, post(json.dumps([0] * count).encode(), b"Connection: close"))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert statuses(answer) == [413] and b"one answer may hold 1200000 bytes" in answer
        assert peak < 12 * LARGE, "of 256 rows"
        assert dataset.__getitems__([0, 1, 2] * 4) == [letter * LARGE for letter in "abc"] * 4, "asked for by halves"
        until(lambda: serving._listener.memory == meta_server.MAX_MEMORY)  # all of it was given back


def test_all_answers_together_have_a_limit(large, monkeypatch):
    monkeypatch.setattr(meta_server, "MAX_MEMORY", limit := meta_server.GROWTH * LARGE)
    with served(large, retries=0) as (serving, dataset):
        assert dataset.__getitems__([0]) == ["a" * LARGE]
        (listener := serving._listener).memory = 1  # all the rest is held for others
        monkeypatch.setattr(meta_server, "BUSY_SECONDS", 0.01)
        refuses(ConnectionError, "answers 503: the answers to others take all memory just now", dataset.__getitem__, 0)
        assert len(dataset) == 3, "what is small is served all the same"
        listener.memory = limit
        assert dataset[2] == "c" * LARGE
        until(lambda: listener.memory == limit)


def test_an_answer_that_nobody_takes_holds_its_json_and_who_needs_that_memory_waits_for_it(tmp_path, monkeypatch):
    size = 15_000_000
    (tmp_path / "one.txt").write_text("x" * size)
    monkeypatch.setattr(meta_server, "MAX_MEMORY", limit := meta_server.GROWTH * size)
    monkeypatch.setattr(meta_server, "BUSY_SECONDS", 30.0)
    with served(tmp_path / "one.txt", retries=0) as (serving, dataset), ThreadPoolExecutor() as pool:
        with socket.create_connection((HOST, serving.port)) as raw:
            raw.sendall(get(b"/get/0"))
            until(lambda: serving._listener.memory == limit - size - 2)
            asked = pool.submit(lambda: len(dataset[0]))
            until(lambda: serving._listener.given_back._waiters)
        assert asked.result(20) == size
        until(lambda: serving._listener.memory == limit)


# Threads and processes
@pytest.mark.parametrize("start", [pytest.param("fork", marks=needs_fork), "spawn"])
def test_workers_of_a_dataloader_ask_for_themselves(dataset, start):
    assert dataset[0] == "row 0", "the parent has a connection before the workers begin"
    workers = 2 if start == "fork" else 1  # one that is spawned imports torch
    loader = DataLoader(dataset, batch_size=10, num_workers=workers, multiprocessing_context=start)
    for turn, batch in enumerate(loader):
        assert batch == [f"row {i}" for i in range(10 * turn, 10 * turn + 10)]
        assert dataset[turn] == f"row {turn}", "the parent asks in between"


@needs_fork
def test_a_forked_process_leaves_the_parents_connection_alone():
    with served(numbered()) as (_, rows):
        assert rows[0] == "row 0"
        (kept,) = rows._idle
        answer, address = in_fork(lambda: (rows[1], rows._idle[0]._socket.getsockname()))
        assert answer == "row 1" and address != kept._socket.getsockname(), "one connection each"
        assert rows[2] == "row 2" and rows._idle == [kept]


# Servers that fail
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
                            connection.sendall(http_answer([100, "stamp"]))
                            connection.recv(65_536)
                            connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_an_unreachable_server_is_asked_after_longer_pauses_and_the_error_says_where_and_what_to_do(monkeypatch):
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    rows = ServerDataset(HOST, port, timeout=5, retries=2)
    for access in (lambda: len(rows), lambda: rows[0], lambda: rows.__getitems__([0])):
        with pytest.raises(ConnectionError, match=f"127.0.0.1:{port}, asked 3 times") as caught:
            access()
        assert f"python -m lib.data.server META --port {port}" in str(caught.value)
    rows = ServerDataset(HOST, port, timeout=0.3, retries=1000)
    refuses(ConnectionError, r"asked \d times in 0", rows.__getitem__, 0)  # retries end with the timeout
    nowhere = ServerDataset("no-such-host.invalid", 80, timeout=20, retries=0)
    refuses(ConnectionError, "no-such-host.invalid:80", nowhere.__getitem__, 0)
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    refuses(ConnectionError, "asked 2001 times", ServerDataset(HOST, port, timeout=1e6, retries=2000).__getitem__, 0)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, *[2.0] * 1994])  # never for long


def test_a_server_that_is_silent_or_sends_a_byte_now_and_then_costs_the_timeout_and_no_more():
    def trickle(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(60):
            connection.sendall(b" ")
            time.sleep(0.05)

    for treat in (lambda connection: time.sleep(1), trickle):
        late = "TimeoutError.*a larger timeout waits longer"
        with scripted_server(treat) as port, pytest.raises(ConnectionError, match=late):
            _ = ServerDataset(HOST, port, timeout=0.25)[0]


def test_neither_a_late_answer_nor_an_interrupted_question_shifts_the_answers(dataset, monkeypatch):
    with served(ListOfRows(["first", "second"], seconds=0.6), timeout=0.2) as (_, rows):
        refuses(ConnectionError, "", rows.__getitem__, 0)
        rows.timeout = 10.0
        assert rows[1] == "second"
    assert dataset[0] == "row 0"
    ctrl_c = mock.Mock(side_effect=KeyboardInterrupt)  # between question and answer
    monkeypatch.setattr(dataset._idle[0], "receive", ctrl_c)
    refuses(KeyboardInterrupt, "", dataset.__getitem__, 1)
    assert dataset[2] == "row 2"


def test_whose_answer_breaks_off_and_who_has_no_time_is_asked_again(monkeypatch):
    monkeypatch.setattr(server_dataset, "PAUSE", 0.001)
    whole = http_answer(["row 0", "row 1"])
    busy = [says(status, b'{"error": "x", "message": "y"}') for status in (b"503 Busy", b"408 Late")]
    with scripted_server(whole[:-5], b"", *busy, whole) as port:
        rows = ServerDataset(HOST, port)
        assert rows.__getitems__([0, 1]) == ["row 0", "row 1"]
        rows.close()
    again = "asked 3 times .*hung up in mid-message"
    with scripted_server(*[whole[:-5]] * 3) as port, pytest.raises(ConnectionError, match=again):
        ServerDataset(HOST, port, retries=2).__getitems__([0, 1])


ERROR = b'{"error": "IndexError", "message": "row 0 is out of range"}'
NONSENSE = [  # as the answer to whatever is asked
    *map(http_answer, (None, True, 3.7, -5, {}, {"rows": 3}, [], [1, 2, 3], ["only one"], [7, 7])),
    *map(http_answer, ([True, "x"], [-1, "x"], [2**63, "x"], [1.0, "x"], [5, "x", 1], [5, 5], float("inf"))),
    *(says(b"200 OK", body) for body in (b"", b"<html>", b"[1", b"1e400", b"\xff\xfe\x00", b"[" * 99_999, b"9" * 5000)),
    *(says(status, ERROR) for status in (b"404 Not Found", b"200 OK", b"400 Bad", b"201 OK", b"301 Moved", b"-1 x")),
    *(says(b"404 Not Found", body) for body in (b"{}", b"[]", b'{"error": "IndexError", "message": 3}', b"null")),
    *(says(status, b'{"error": 1, "message": 2}') for status in (b"500 Error", b"413 Large", b"503 Busy")),
    says(b"two hundred OK"), says(b"200"), says(b"200 OK", b"5", b"Transfer-Encoding: x"), says(b"200", b"5", b"x"),
    *(ask(b"HTTP/1.1 200 OK", LENGTH + length) for length in (b"-1", b"1000000000", b"9" * 30, b"five")),
    b"HTTP/2 200 OK\r\n\r\n", b"220 mail.example ESMTP\r\n\r\n", b"\x15\x03\x01\x00\x02" * 4000,
]  # fmt: skip


@pytest.mark.parametrize("connects", [False, True])
def test_what_is_no_meta_server_is_one_error_at_once_whatever_it_says(connects):
    asks = [lambda rows: rows[0], lambda rows: rows.__getitems__([0, 1])] + [len] * (not connects)
    talk = NONSENSE if connects else [*NONSENSE, says(b"413 Large", b'{"error": "x", "message": "y"}')]  # of no row
    answers = [n if connects else lambda to, n=n: to.recv(65_536) and to.sendall(n) for n in talk for _ in asks]
    with scripted_server(*answers) as port:
        for nonsense in talk:
            for access in asks:
                rows = ServerDataset(HOST, port)
                with pytest.raises(ConnectionError, match=f"what listens at {HOST}:{port} is no meta server"):
                    pytest.fail(f"{nonsense[:100]!r} was taken for the answer {access(rows)!r}")
                rows.close()


def test_what_the_server_cannot_read_reaches_the_client_with_its_reason(monkeypatch):
    rows, reads = numbered(), []

    def gone(ids):
        reads.append(ids)
        raise OSError("the meta file changed while it was open")

    monkeypatch.setattr(rows, "rows", gone)
    with served(rows) as (_, dataset):
        refuses(RuntimeError, "500, OSError: the meta file changed while it was open", dataset.__getitem__, 0)
        assert reads == [[0]], "asking again would not help"
        assert len(dataset) == 100


def test_a_restart_on_the_same_port_goes_unnoticed_but_another_file_does_not(tmp_path):
    for name in ("these", "other"):
        (tmp_path / name).write_text("".join(f"{name} {i}\n" for i in range(100)))
    these, other = MetaFile(tmp_path / "these"), MetaFile(tmp_path / "other")
    with MetaServer(these) as serving:
        port = serving.port
        asked_len, asked_a_row, of_three = (ServerDataset(HOST, port) for _ in range(3))
        assert len(asked_len) == 100 and asked_a_row[1] == "these 1"
        copy = pickle.loads(pickle.dumps(asked_a_row))
    for rows in (these, these.packed(range(100))):  # as --in-memory does
        with MetaServer(rows, port=port):
            assert [dataset[2] for dataset in (asked_len, asked_a_row, copy)] == ["these 2"] * 3
    with MetaServer(other, port=port) as serving:
        for dataset in (asked_len, asked_a_row, copy):
            for access in (lambda: dataset[3], lambda: dataset.__getitems__([3])):  # noqa: B023
                with pytest.raises(RuntimeError, match=r"another file, of 100 rows \(it had 100\)") as error:
                    access()
                until(lambda: not serving._listener.open)
                assert error, "which is still there, and the connection is not"
            assert len(dataset) == 100
    with MetaServer(these, port=port):
        assert asked_len[4] == "these 4", "the right one is back"
    with MetaServer(numbered(3), port=port):
        assert of_three[0] == "row 0"
        refuses(RuntimeError, r"of 3 rows \(it had 100\)", asked_len.__getitem__, 2)
    refuses(ConnectionError, "", ServerDataset(HOST, port, retries=0).__len__)


@contextlib.contextmanager
def served_by_command(path, port=0, *options):
    """Run `python -m lib.data.server`; give the process and the port that it says it listens on."""
    command = [sys.executable, "-m", "lib.data.server", str(path), "--port", str(port), *options]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen(command, cwd=ROOT, **pipes)
    try:
        line = process.stdout.readline()
        yield process, int(line.strip().rpartition(":")[2])
    finally:
        process.kill()
        process.communicate(timeout=10)


@pytest.fixture
def meta(tmp_path):
    path = tmp_path / "meta.txt"
    path.write_text("".join(f"row {i}\n" for i in range(1000)), encoding="utf-8")
    return path


def test_the_command_ends_at_ctrl_c_and_refuses_in_one_line(meta, capsys, monkeypatch):
    def press(serving):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with mock.patch.object(MetaServer, "serve_forever", press), pytest.raises(SystemExit) as end:
            server.main([str(meta)])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert not end.value.code and capsys.readouterr().out.startswith(f"serving 1000 rows of {meta} at http://{HOST}:")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with MetaServer(numbered()) as serving:
        for arguments in ([meta.parent / "absent.txt"], [meta, "--port", serving.port], [meta, "--port", 65536]):
            assert server.main([str(word) for word in arguments]) == 2
    output, errors = capsys.readouterr()
    assert output == "" and len(errors.splitlines()) == 3
    assert "absent.txt" in errors and "port 0 takes a free one" in errors and "65536" in errors


@pytest.mark.skipif(os.name == "nt", reason="kills as POSIX does")
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_server_killed_in_mid_batch_and_started_again_loses_no_row_and_one_that_stays_away_is_an_error(meta):
    """A process that starts imports torch, so it is one story: killed, started again from memory, ended by SIGTERM."""
    got, stop = [], threading.Event()

    def train(rows):
        while not stop.is_set():
            got.append(rows.__getitems__(range(1000)))

    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        stack.callback(stop.set)  # also where a line below fails: the pool waits for its threads
        process, port = stack.enter_context(served_by_command(meta))
        rows = ServerDataset(HOST, port, timeout=60, retries=1000)
        assert len(rows) == 1000
        training = pool.submit(train, rows)
        until(lambda: len(got) > 20)
        process.kill()
        process.wait(10)
        before = len(got)
        with served_by_command(meta, port, "--in-memory") as (again, _):
            until(lambda: len(got) > before + 20, seconds=40)
            stop.set()
            training.result(20)
            patient = ServerDataset(HOST, port, retries=2)
            loader = iter(DataLoader(patient, batch_size=10, num_workers=1, timeout=30))
            assert next(loader)[0] == "row 0"
            again.send_signal(signal.SIGTERM)  # with connections still open
            output, errors = again.communicate(timeout=20)
            assert (again.returncode, output, errors) == (0, "", "")
            refuses(ConnectionError, "no answer from a meta server", list, loader)
            loader._shutdown_workers()  # now, and not whenever the garbage is collected
        rows.close()
    assert all(batch == [f"row {i}" for i in range(1000)] for batch in got)


# Beginning and end
def test_closing_does_not_wait_for_idle_clients_and_lets_busy_ones_finish():
    slow = ListOfRows(["the row"], seconds=0.3)
    serving = MetaServer(slow).start()
    idle = [ServerDataset(HOST, serving.port) for _ in range(5)]
    assert [len(rows) for rows in idle] == [1] * 5
    with ThreadPoolExecutor() as pool:
        busy = pool.submit(lambda: ServerDataset(HOST, serving.port, retries=0)[0])
        slow.reading.wait(5)
        begin = time.monotonic()
        serving.close()
        took = time.monotonic() - begin
        assert busy.result(10) == "the row"
    assert took < meta_server.GRACE_SECONDS, "nobody had to be waited for until the end of grace"
    assert not serving._listener.open


def test_closing_ends_even_when_a_read_hangs_and_so_does_serving_forever(monkeypatch):
    monkeypatch.setattr(meta_server, "GRACE_SECONDS", 0.1)
    stuck = ListOfRows(["a"], seconds=3)
    with ThreadPoolExecutor() as pool, MetaServer(stuck) as serving:
        forever = pool.submit(serving.serve_forever)
        asking = pool.submit(lambda: ServerDataset(HOST, serving.port, retries=0)[0])
        stuck.reading.wait(5)
        serving.close()
        assert isinstance(asking.exception(10), ConnectionError)
        forever.result(10)


def test_a_server_holds_its_port_closes_once_and_does_not_start_again():
    serving = MetaServer(numbered())
    refuses(ConnectionError, "", ServerDataset(HOST, serving.port, retries=0).__len__)  # not started: not left waiting
    taken = f"cannot listen on 127.0.0.1:{serving.port}: .*; port 0 takes a free one"
    with serving, serving:
        assert ServerDataset(HOST, serving.port).__len__() == 100
        refuses(OSError, taken, MetaServer, numbered(), port=serving.port)
    serving.close()
    refuses(RuntimeError, "this server was closed; make a new one", serving.start)
    MetaServer(numbered()).close()  # never started


@needs_fork
def test_the_port_is_free_again_although_a_forked_process_still_lives():
    serving = MetaServer(numbered()).start()
    child = FORK.Process(target=time.sleep, args=(30,), daemon=True)
    child.start()  # holds a copy of the listening socket
    serving.close()
    refuses(ConnectionError, "Refused", ServerDataset(HOST, serving.port, timeout=2, retries=0).__len__)
    with MetaServer(numbered(7), port=serving.port):
        assert len(ServerDataset(HOST, serving.port)) == 7
    child.terminate()
    child.join(10)


def test_an_ipv6_address_serves_as_well():
    try:
        serving = MetaServer(numbered(), host="::1")
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with serving:
        assert serving.url == f"http://[::1]:{serving.port}"
        assert ServerDataset("::1", serving.port)[1] == "row 1"


def test_bad_arguments_are_refused_at_once():
    for port, text in ((-1, "at least"), (65_536, "port must be below 65536"), ("80", "an integer")):
        for make in (ServerDataset, lambda host, port: MetaServer(numbered(), host, port)):
            refuses(ValueError, text, make, HOST, port)
    refuses(ValueError, "port must be at least 1, not 0", ServerDataset, HOST, 0)  # a server takes a free one
    for name, value in (("timeout", 0), ("timeout", float("inf")), ("retries", -1)):
        refuses(ValueError, f"{name} must be .*{value}", ServerDataset, HOST, 80, **{name: value})
