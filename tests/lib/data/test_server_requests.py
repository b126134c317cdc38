"""Whatever clients send, or how many there are: the server says what is wrong, and others are served as before."""

import contextlib
import json
import re
import select
import socket
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from lib.data import MetaFile, MetaServer, ServerDataset, meta_answers, meta_bodies, meta_server
from tests.lib.data.serving import (
    HOST,
    LENGTH,
    ROWS,
    ListOfRows,
    ask,
    get,
    numbered,
    post,
    served,
    statuses,
    talk,
    until,
)
from tests.lib.refusal import refuses

pytestmark = pytest.mark.timeout(60)  # a hang is a failure, in every test


@pytest.fixture
def dataset():
    """A dataset of the rows "row 0" … "row 99", from a server in a thread."""
    with served(numbered()) as (_, rows):
        yield rows


# ---- requests that are wrong: the connection goes on after those of WRONG and ends with those of BROKEN
NOT_JSON = (b"", b"[1, 2", b"\xff\xfe\x00", b"[" * 100_000, b"[" + b"1" * 10_000 + b"]")
NO_LIST_OF_INTEGERS = b'3 {"0":1} ["1"] [1.0] [true] [1e999] [null]'.split()
NO_NUMBER = (b"../../etc/passwd", b"%2e%2e%2f1", b"", b"1.0", "\u0663".encode(), b"9" * 5000)
WRONG = {
    (404, "nothing at '/"): [get(b"/etc/passwd"), get(b"/"), get(b"/../../etc/passwd")],
    (400, "asked for by its number"): [get(b"/get/" + row) for row in NO_NUMBER],
    (404, "row 100 is out of range for 100 rows; rows are 0..99"): [get(b"/get/100"), post(b"[0, 100]")],
    (404, "is out of range"): [get(b"/get/-1"), post(b"[" + b"9" * 100 + b"]")],
    (405, "/len is asked with GET, not POST"): [post(b"[1]", path=b"/len")],
    (405, "/rows is asked with POST, not GET"): [get(b"/rows")],
    (400, "the body is no JSON"): [post(body) for body in NOT_JSON],
    (400, "no JSON list of integers"): [post(b"[" + b"[]," * 100_000 + b"[]]"), post(b"{" + b" " * 20_000 + b"}")],
    (400, "a JSON list of integers"): [post(body) for body in NO_LIST_OF_INTEGERS],
    (413, "may ask for 65536 rows, not 65537"): [post(b"[" + b"0," * 65_536 + b"0]")],
}
TOO_LONG = (b"1048577", b"99999999999", b"9" * 7000)
NO_LENGTH = ([LENGTH + b"-1"], [LENGTH + b"0x3"], [LENGTH + b"3", LENGTH + b"4"])
BROKEN = {
    (405, "asked with GET, not DELETE"): [ask(b"DELETE /get/1 HTTP/1.1")],
    (405, "asked with GET, not HEAD"): [ask(b"HEAD /len HTTP/1.1")],
    (400, "HTTP"): [b"\x16\x03\x01\x02\x00 TLS\r\n\r\n", b"\r\n\r\n"],
    (505, "Invalid HTTP version"): [ask(b"PRI * HTTP/2.0")],
    (400, "malformed headers"): [ask(b"GET /len HTTP/1.1", b"Host")],
    (431, "Too many headers"): [ask(b"GET /len HTTP/1.1", *[b"A: b"] * 300)],
    (431, "may take 8192 bytes"): [ask(b"GET /len HTTP/1.1", b"A: " + b"b" * 9000), b"G" * 20_000],
    (411, "needs a Content-Length"): [ask(ROWS)],
    (501, "Transfer"): [ask(ROWS, b"Transfer-Encoding: chunked", body=b"3\r\n[1]\r\n0\r\n\r\n")],
    (413, "1048576 bytes"): [ask(ROWS, LENGTH + length, body=b"[1]") for length in TOO_LONG],
    (400, "one number of bytes"): [ask(ROWS, *headers, body=b"[1]") for headers in NO_LENGTH],
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


def test_a_client_that_is_still_sending_gets_the_refusal_all_the_same(dataset):
    with socket.create_connection((HOST, dataset.port), timeout=5) as raw:
        raw.sendall(ask(ROWS, LENGTH + b"2000000"))
        for _ in range(20):  # a reset in the middle of this would throw the answer away
            raw.sendall(b" " * 10_000)
            time.sleep(0.01)
        assert statuses(raw.recv(65_536)) == [413]


def test_of_clients_that_are_gone_before_their_answer_the_server_says_nothing(dataset, capfd):
    for request_, *_ in (case.values for case in CASES):
        with contextlib.suppress(OSError), socket.create_connection((HOST, dataset.port), timeout=5) as raw:
            raw.sendall(request_)  # and gone, without reading
    assert dataset[3] == "row 3"
    assert capfd.readouterr() == ("", "")


def test_several_requests_may_come_at_once(dataset):
    four = get(b"/get/1") + get(b"/get/2") + post(b"[3]", b"Host: here") + ask(b"GET /len HTTP/1.0")
    answer = talk(dataset.port, four + get(b"/len"))  # HTTP/1.0 is hung up on after its answer
    assert statuses(answer) == [200] * 4
    assert re.findall(rb'"row \d"', answer) == [b'"row 1"', b'"row 2"', b'"row 3"']


def test_a_client_may_wait_for_100_continue_before_it_sends_its_body(dataset):
    with socket.create_connection((HOST, dataset.port), timeout=5) as raw:
        raw.sendall(ask(ROWS, LENGTH + b"3", b"Expect: 100-continue"))
        assert statuses(raw.recv(65_536)) == [100]
        raw.sendall(b"[7]")
        assert b'["row 7"]' in raw.recv(65_536)


# ---- clients that take their time
def test_a_request_may_come_byte_by_byte(dataset):
    request_ = ask(b"GET /get/1 HTTP/1.1", b"Connection: close")
    assert b'"row 1"' in talk(dataset.port, *(request_[i : i + 1] for i in range(len(request_))), pause=0.001)


@pytest.mark.parametrize("unfinished", [b"GET /len HT", ask(ROWS, LENGTH + b"9", body=b"[1")], ids=["head", "body"])
def test_a_request_that_does_not_end_is_hung_up_on(dataset, monkeypatch, unfinished):
    monkeypatch.setattr(meta_server, "MESSAGE_SECONDS", 0.2)
    assert statuses(talk(dataset.port, unfinished)) == [408]


@pytest.mark.parametrize("start", [b"GET /len HTTP/1.1\r\nA: ", ask(ROWS, LENGTH + b"1000")], ids=["head", "body"])
def test_a_client_that_trickles_holds_a_thread_no_longer_than_one_that_is_silent(dataset, monkeypatch, start):
    monkeypatch.setattr(meta_server, "MESSAGE_SECONDS", 0.3)
    bytes_sent = 0
    with socket.create_connection((HOST, dataset.port), timeout=5) as raw, contextlib.suppress(ConnectionError):
        raw.sendall(start)
        raw.settimeout(0.02)
        for bytes_sent in range(500):  # noqa: B007  # a byte each 20 ms: each would begin a limit on each read anew
            raw.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                assert statuses(raw.recv(65_536)) == [408]
                break
    assert bytes_sent < 400, "for 8 s"


def test_half_bodies_take_no_more_memory_than_their_limit_and_who_sends_whole_ones_is_served(monkeypatch):
    size = 40_000
    most = []

    def room(memory, *arguments):
        most.append(memory.held)
        return real(memory, *arguments)

    real = meta_bodies.BodyMemory.room
    monkeypatch.setattr(meta_bodies.BodyMemory, "room", room)
    monkeypatch.setattr(meta_bodies, "MAX_BODIES", 3 * size)
    monkeypatch.setattr(meta_bodies, "BUSY_SECONDS", 30.0)
    half = ask(ROWS, LENGTH + b"%d" % size, body=b"[" + b" " * (size // 2))
    whole = [i % 100 for i in range(10_000)]
    with served(numbered(), retries=0) as (serving, dataset), contextlib.ExitStack() as stack:
        bodies = serving._listener.bodies
        senders = [stack.enter_context(socket.create_connection((HOST, serving.port))) for _ in range(40)]
        for sender in senders:
            sender.sendall(half)
        until(lambda: bodies.held == 3 * size)
        assert dataset.__getitems__([1, 2, 3]) == ["row 1", "row 2", "row 3"], "small bodies are not counted"
        monkeypatch.setattr(meta_bodies, "PROMPT_SECONDS", 0.01)
        assert dataset.__getitems__(whole) == [f"row {i}" for i in whole], "a slow one made room"
        answered, _, _ = select.select(senders, [], [], 20)
        assert statuses(answered[0].recv(65_536)) == [503]
    assert max(most) <= 3 * size
    until(lambda: bodies.held == 0)


def test_a_large_body_that_finds_no_room_in_time_is_told_to_ask_again(monkeypatch):
    monkeypatch.setattr(meta_bodies, "MAX_BODIES", 30_000)
    monkeypatch.setattr(meta_bodies, "BUSY_SECONDS", 0.05)
    half = ask(ROWS, LENGTH + b"20000", body=b"[")
    with served(numbered(), retries=0) as (serving, dataset):
        with socket.create_connection((HOST, serving.port)) as sender:
            sender.sendall(half)
            until(lambda: serving._listener.bodies.held == 20_000)
            refuses(ConnectionError, "answers 503: the requests of others take", dataset.__getitems__, [1] * 10_000)
            assert dataset[1] == "row 1"
        until(lambda: serving._listener.bodies.held == 0)
        assert len(dataset.__getitems__([1] * 10_000)) == 10_000


def test_a_client_that_takes_no_answer_holds_no_thread(monkeypatch):
    monkeypatch.setattr(meta_server, "MESSAGE_SECONDS", 0.2)
    with MetaServer(ListOfRows(["x" * 16_000_000])) as serving, socket.create_connection((HOST, serving.port)) as raw:
        raw.sendall(get(b"/get/0"))
        until(lambda: serving._listener.connections)
        until(lambda: not serving._listener.connections)


def test_an_idle_client_holds_no_thread_and_its_dataset_does_not_notice(monkeypatch):
    monkeypatch.setattr(meta_server, "IDLE_SECONDS", 0.05)
    with served(numbered()) as (serving, rows):
        for i in range(3):
            assert rows[i] == f"row {i}"
            until(lambda: not serving._listener.connections)


# ---- more clients than there is room for
def test_for_a_connection_above_the_limit_the_one_that_is_idle_for_longest_goes_and_nobody_is_locked_out(monkeypatch):
    monkeypatch.setattr(meta_server, "MAX_CONNECTIONS", 2)
    with MetaServer(numbered()) as serving:
        first, second, third = (ServerDataset(HOST, serving.port, retries=1) for _ in range(3))
        assert [first[0], second[1], first[2], second[3]] == [f"row {i}" for i in range(4)]
        kept = second._idle[0]
        assert third[3] == "row 3"
        assert len(serving._listener.connections) == 2
        assert second[4] == "row 4"
        assert second._idle == [kept], "it was the first that had asked nothing for longest"
        assert first[5] == "row 5", "which connects anew"
        for client in (first, second, third):
            client.close()


def test_who_waits_for_an_answer_is_never_hung_up_on(monkeypatch):
    monkeypatch.setattr(meta_server, "MAX_CONNECTIONS", 1)
    go_on = Event()

    class Waiting(ListOfRows):
        def rows(self, ids):
            self.reading.set()
            assert go_on.wait(10)
            return ["late"]

    rows = Waiting(["row 0", "row 1"])
    with served(rows) as (serving, first), ThreadPoolExecutor() as pool:
        asked = pool.submit(lambda: first[1])
        assert rows.reading.wait(10)
        refuses(ConnectionError, "", len, ServerDataset(HOST, serving.port, retries=1))
        go_on.set()
        assert asked.result(10) == "late"


@pytest.mark.parametrize("files, room", [(1024, 512), (256, 192), (64, 1), ("unlimited", 512)])
def test_there_are_no_more_connections_than_files_may_be_open(monkeypatch, files, room):
    resource = pytest.importorskip("resource", reason="ulimit")
    soft = resource.RLIM_INFINITY if files == "unlimited" else files
    monkeypatch.setattr(resource, "getrlimit", lambda what: (soft, resource.RLIM_INFINITY))
    assert MetaServer(numbered())._listener.limit == room


def test_when_no_connection_can_be_taken_an_idle_one_goes_and_the_server_does_not_spin(monkeypatch):
    listener = meta_server._Listener.__mro__[1]
    get_request = listener.get_request
    sleep = time.sleep
    failures = 3
    slept = []

    def no_file_left(self):
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(24, "Too many open files")
        return get_request(self)

    with served(numbered()) as (serving, idle), monkeypatch.context() as patch:
        assert idle[0] == "row 0"
        patch.setattr(listener, "get_request", no_file_left, raising=False)
        patch.setattr(meta_server, "ACCEPT_SECONDS", 0.0123)
        patch.setattr(time, "sleep", lambda seconds: slept.append(seconds) or sleep(seconds))
        other = ServerDataset(HOST, serving.port, retries=0)
        assert other[1] == "row 1"
        assert slept.count(0.0123) == 3
        until(lambda: len(serving._listener.connections) == 1)
        other.close()


# ---- answers that are large
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
    monkeypatch.setattr(meta_answers, "MAX_ANSWER", 4 * LARGE)
    rows = large.packed(range(3)) if in_memory else large
    with served(rows) as (serving, dataset):
        assert dataset[1] == "b" * LARGE
        tracemalloc.start()
        answer = talk(dataset.port, post(json.dumps([0] * count).encode(), b"Connection: close"))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert statuses(answer) == [413]
        assert b"one answer may hold 1200000 bytes" in answer
        assert peak < 12 * LARGE, "of 256 rows"
        assert dataset.__getitems__([0, 1, 2] * 4) == [letter * LARGE for letter in "abc"] * 4, "asked for by halves"
        until(lambda: serving._listener.memory.free == meta_answers.MAX_MEMORY)  # all of it was given back


def test_all_answers_together_have_a_limit(large, monkeypatch):
    limit = meta_answers.GROWTH * LARGE
    monkeypatch.setattr(meta_answers, "MAX_MEMORY", limit)
    with served(large, retries=0) as (serving, dataset):
        memory = serving._listener.memory
        assert dataset.__getitems__([0]) == ["a" * LARGE]
        until(lambda: memory.free == limit)
        memory.free = 1  # all the rest is held for others
        monkeypatch.setattr(meta_answers, "BUSY_SECONDS", 0.01)
        refuses(ConnectionError, "answers 503: the answers to others take all memory just now", dataset.__getitem__, 0)
        assert len(dataset) == 3, "what is small is served all the same"
        memory.free = limit
        assert dataset[2] == "c" * LARGE
        until(lambda: memory.free == limit)


def test_an_answer_that_nobody_takes_holds_its_json_and_who_needs_that_memory_waits_for_it(tmp_path, monkeypatch):
    size = 15_000_000
    limit = meta_answers.GROWTH * size
    (tmp_path / "one.txt").write_text("x" * size)
    monkeypatch.setattr(meta_answers, "MAX_MEMORY", limit)
    monkeypatch.setattr(meta_answers, "BUSY_SECONDS", 30.0)
    with served(tmp_path / "one.txt", retries=0) as (serving, dataset), ThreadPoolExecutor() as pool:
        memory = serving._listener.memory
        with socket.create_connection((HOST, serving.port)) as raw:
            raw.sendall(get(b"/get/0"))
            until(lambda: memory.free == limit - size - 2)  # its JSON has two quotation marks
            asked = pool.submit(lambda: len(dataset[0]))
            until(lambda: memory._changed._waiters)
        assert asked.result(20) == size
        until(lambda: memory.free == limit)
