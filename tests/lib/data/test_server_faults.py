"""Servers that are gone, slow, strange, killed or another: a dataset asks again where that helps, and else says why."""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from torch.utils.data import DataLoader

from lib.data import MetaFile, MetaServer, ServerDataset, server, server_dataset
from tests.lib.data.serving import (
    HOST,
    LENGTH,
    ListOfRows,
    ask,
    numbered,
    says,
    says_value,
    scripted_server,
    served,
    until,
)
from tests.lib.refusal import refuses

pytestmark = pytest.mark.timeout(60)  # a hang is a failure, in every test
ROOT = Path(__file__).parents[3]


# ---- nobody answers, or too slowly
@pytest.fixture
def free_port():
    with socket.create_server((HOST, 0)) as free:
        return free.getsockname()[1]


@pytest.mark.parametrize("access", [len, lambda rows: rows[0], lambda rows: rows.__getitems__([0])])
def test_the_error_of_an_unreachable_server_says_where_how_often_and_what_to_do(free_port, access):
    rows = ServerDataset(HOST, free_port, timeout=5, retries=2)
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{free_port}, asked 3 times") as caught:
        access(rows)
    assert f"python -m lib.data.server META --port {free_port}" in str(caught.value)


def test_a_host_that_is_not_there_is_named():
    nowhere = ServerDataset("no-such-host.invalid", 80, timeout=20, retries=0)
    refuses(ConnectionError, "no-such-host.invalid:80", nowhere.__getitem__, 0)


def test_retries_end_with_the_timeout(free_port):
    rows = ServerDataset(HOST, free_port, timeout=0.3, retries=1000)
    refuses(ConnectionError, r"asked \d times in 0", rows.__getitem__, 0)


def test_pauses_between_retries_grow_but_never_for_long(free_port, monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    rows = ServerDataset(HOST, free_port, timeout=1e6, retries=200)
    refuses(ConnectionError, "asked 201 times", rows.__getitem__, 0)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, *[2.0] * 194])


def trickle(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(60):
        connection.sendall(b" ")
        time.sleep(0.05)


def trickle_headers(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(60):
        connection.sendall(b"A: b\r\n")
        time.sleep(0.05)


def be_silent(connection):
    time.sleep(1)


@pytest.mark.parametrize("treat", [be_silent, trickle, trickle_headers])
def test_a_server_that_is_silent_or_sends_a_byte_now_and_then_costs_the_timeout_and_no_more(treat):
    late = "asked once in 0.*TimeoutError.*a larger timeout waits longer"
    with scripted_server(treat) as port, pytest.raises(ConnectionError, match=late):
        _ = ServerDataset(HOST, port, timeout=0.25)[0]


def test_a_late_answer_is_not_taken_for_that_to_the_next_question():
    with served(ListOfRows(["first", "second"], seconds=0.6), timeout=0.2) as (_, rows):
        refuses(ConnectionError, "", rows.__getitem__, 0)
        rows.timeout = 10.0
        assert rows[1] == "second"


def test_an_interrupted_question_does_not_shift_the_answers(monkeypatch):
    with served(numbered()) as (_, dataset):
        assert dataset[0] == "row 0"
        ctrl_c = mock.Mock(side_effect=KeyboardInterrupt)
        monkeypatch.setattr(dataset._idle[0], "_line", ctrl_c)  # between question and answer
        refuses(KeyboardInterrupt, "", dataset.__getitem__, 1)
        assert dataset[2] == "row 2"


# ---- answers that break off, and nonsense
WHOLE = says_value(["row 0", "row 1"])
BUSY = b'{"error": "x", "message": "y"}'


def test_whose_answer_breaks_off_and_who_has_no_time_is_asked_again(monkeypatch):
    monkeypatch.setattr(server_dataset, "PAUSE", 0.001)
    half_a_head = WHOLE[:25]
    answers = [WHOLE[:-5], half_a_head, b"", says(b"503 Busy", BUSY), says(b"408 Late", BUSY), WHOLE]
    with scripted_server(*answers) as port:
        rows = ServerDataset(HOST, port, retries=7)
        assert rows.__getitems__([0, 1]) == ["row 0", "row 1"]
        rows.close()


def test_answers_that_always_break_off_are_an_error_in_the_end(monkeypatch):
    monkeypatch.setattr(server_dataset, "PAUSE", 0.001)
    again = "asked 3 times .*hung up in mid-message"
    with scripted_server(*[WHOLE[:-5]] * 3) as port, pytest.raises(ConnectionError, match=again):
        ServerDataset(HOST, port, retries=2).__getitems__([0, 1])


ERROR = b'{"error": "IndexError", "message": "row 0 is out of range"}'
NO_JSON = (b"", b"<html>", b"[1", b"1e400", b"\xff\xfe\x00", b"[" * 99_999, b"9" * 5000)
NO_ERROR = (b"{}", b"[]", b'{"error": "IndexError", "message": 3}', b"null")
NONSENSE = [  # as the answer to whatever is asked
    *map(says_value, (None, True, 3.7, -5, {}, {"rows": 3}, [], [1, 2, 3], ["only one"], [7, 7])),
    *map(says_value, ([True, "x"], [-1, "x"], [2**63, "x"], [1.0, "x"], [5, "x", 1], [5, 5], float("inf"))),
    *(says(b"200 OK", body) for body in NO_JSON),
    *(says(status, ERROR) for status in (b"404 Not Found", b"200 OK", b"400 Bad", b"201 OK", b"301 Moved", b"-1 x")),
    *(says(b"404 Not Found", body) for body in NO_ERROR),
    *(says(status, b'{"error": 1, "message": 2}') for status in (b"500 Error", b"413 Large", b"503 Busy")),
    says(b"two hundred OK"),
    says(b"200"),
    says(b"200 OK", b"5", b"Transfer-Encoding: x"),
    says(b"200", b"5", b"x"),
    *(ask(b"HTTP/1.1 200 OK", LENGTH + length) for length in (b"-1", b"1000000000", b"9" * 30, b"five", b"9" * 5000)),
    ask(b"HTTP/1.1 200 OK", b"Connection: close"),
    b"HTTP/2 200 OK\r\n\r\n",
    b"220 mail.example ESMTP\r\n\r\n",
    b"\x15\x03\x01\x00\x02" * 4000,
]
TOO_LARGE = says(b"413 Large", BUSY)  # which is nonsense where no row was asked for
ASKS = {"len": len, "row": lambda rows: rows[0], "batch": lambda rows: rows.__getitems__([0, 1])}


def refused_as_strange(port, nonsense, access):
    rows = ServerDataset(HOST, port)
    with pytest.raises(ConnectionError, match=f"what listens at {HOST}:{port} is no meta server"):
        pytest.fail(f"{nonsense[:100]!r} was taken for the answer {access(rows)!r}")
    rows.close()


@pytest.mark.parametrize("asked", ASKS)
def test_what_says_nonsense_at_once_is_no_meta_server(asked):
    nonsense = [*NONSENSE, TOO_LARGE]
    treat = [lambda connection, said=said: connection.recv(65_536) and connection.sendall(said) for said in nonsense]
    with scripted_server(*treat) as port:
        for said in nonsense:
            refused_as_strange(port, said, ASKS[asked])


@pytest.mark.parametrize("asked", ["row", "batch"])
def test_what_says_nonsense_after_its_stamp_is_no_meta_server(asked):
    with scripted_server(*NONSENSE) as port:
        for said in NONSENSE:
            refused_as_strange(port, said, ASKS[asked])


def test_what_the_server_cannot_read_reaches_the_client_with_its_reason_and_is_not_asked_again(monkeypatch):
    rows = numbered()
    reads = []

    def gone(ids):
        reads.append(ids)
        raise OSError("the meta file changed while it was open")

    monkeypatch.setattr(rows, "rows", gone)
    with served(rows) as (_, dataset):
        refuses(RuntimeError, "500, OSError: the meta file changed while it was open", dataset.__getitem__, 0)
        assert reads == [[0]]
        assert len(dataset) == 100


# ---- restarts
@pytest.fixture
def files(tmp_path):
    """Two meta files of a hundred rows each: these and other."""
    for name in ("these", "other"):
        (tmp_path / name).write_text("".join(f"{name} {i}\n" for i in range(100)))
    with MetaFile(tmp_path / "these") as these, MetaFile(tmp_path / "other") as other:
        yield these, other


@pytest.fixture
def known(files):
    """The port of a server of these rows, which was closed, and three datasets that know it, each in another way."""
    with MetaServer(files[0]) as serving:
        asked_len, asked_a_row = (ServerDataset(HOST, serving.port) for _ in range(2))
        assert len(asked_len) == 100
        assert asked_a_row[1] == "these 1"
        copy = pickle.loads(pickle.dumps(asked_a_row))
    return serving.port, (asked_len, asked_a_row, copy)


def test_a_restart_on_the_same_port_goes_unnoticed_also_from_memory(files, known):
    these, _ = files
    port, datasets = known
    for rows in (these, these.packed(range(100))):  # as --in-memory does
        with MetaServer(rows, port=port):
            assert [dataset[2] for dataset in datasets] == ["these 2"] * 3


@pytest.mark.parametrize(
    "first, then",
    [
        ([0, 1, 2], [7, 8, 9]),
        ([0, 1, 2], [0, 2, 1]),
        ([0, 0, 1], [0, 1, 1]),
        (range(100), range(99, -1, -1)),
        (range(100), [0] * 100),
        ([5], [6]),
    ],
)
def test_a_server_of_another_selection_of_the_same_file_is_an_error_until_the_right_one_is_back(files, first, then):
    these, other = files
    with MetaServer(these.packed(first)) as serving:
        dataset = ServerDataset(HOST, serving.port)
        row = dataset[0]
    for rows in (these.packed(then), other.packed(first)):
        with MetaServer(rows, port=serving.port):
            refuses(RuntimeError, f"other rows, {len(first)} of them", dataset.__getitem__, 0)
            refuses(RuntimeError, f"other rows, {len(first)} of them", dataset.__getitems__, [0])
    again = pickle.loads(pickle.dumps(these.packed(first)))
    for rows in (these.packed(list(first)), again):
        with MetaServer(rows, port=serving.port):
            assert dataset[0] == row


def test_rows_without_a_stamp_may_be_others_after_a_restart_and_those_with_one_are_known_by_it():
    with MetaServer(numbered()) as serving:
        dataset = ServerDataset(HOST, serving.port)
        assert dataset[0] == "row 0"
        dataset.close()
        assert dataset[1] == "row 1", "another connection to the same server"
    with MetaServer(numbered(), port=serving.port):
        refuses(RuntimeError, "other rows, 100 of them", dataset.__getitem__, 0)
    rows = numbered()
    rows.stamp = "numbers"
    with MetaServer(rows) as serving:
        dataset = ServerDataset(HOST, serving.port)
        assert dataset[0] == "row 0"
    with MetaServer(rows, port=serving.port):
        assert dataset[0] == "row 0"


def test_a_server_of_another_file_on_the_same_port_is_an_error_until_the_right_one_is_back(files, known):
    these, other = files
    port, datasets = known
    with MetaServer(other, port=port) as serving:
        for dataset in datasets:
            for access in (lambda rows: rows[3], lambda rows: rows.__getitems__([3])):
                with pytest.raises(RuntimeError, match=r"other rows, 100 of them \(it had 100\)") as error:
                    access(dataset)
                until(lambda: not serving._listener.connections)  # though the error is still there
                del error
            assert len(dataset) == 100
    with MetaServer(these, port=port):
        assert datasets[0][4] == "these 4"
    with MetaServer(numbered(3), port=port):
        refuses(RuntimeError, r"3 of them \(it had 100\)", datasets[0].__getitem__, 2)
    refuses(ConnectionError, "", ServerDataset(HOST, port, retries=0).__len__)


# ---- the command
@contextlib.contextmanager
def served_by_command(path, port=0, *options):
    """Run `python -m lib.data.server`; give the process and the port that it says it listens on."""
    command = [sys.executable, "-m", "lib.data.server", str(path), "--port", str(port), *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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


def test_the_command_ends_at_ctrl_c(meta, capsys):
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
    assert not end.value.code
    assert capsys.readouterr().out.startswith(f"serving 1000 rows of {meta} at http://{HOST}:")


def test_the_command_refuses_in_one_line(meta, capsys, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with MetaServer(numbered()) as serving:
        for arguments, text in (
            ([meta.parent / "absent.txt"], "absent.txt"),
            ([meta, "--port", serving.port], "port 0 takes a free one"),
            ([meta, "--port", 65536], "65536"),
        ):
            assert server.main([str(word) for word in arguments]) == 2
            output, errors = capsys.readouterr()
            assert output == ""
            assert text in errors
            assert len(errors.splitlines()) == 1


@pytest.mark.timeout(300)  # two processes import torch, and a busy machine may take a minute over each
@pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does")
def test_a_server_killed_in_mid_batch_and_started_again_loses_no_row_and_one_that_stays_away_is_an_error(meta):
    """A process that starts imports torch, so it is one story: killed, started again from memory, ended by SIGTERM."""
    batches = []
    stop = threading.Event()

    def train(rows):
        while not stop.is_set():
            batches.append(rows.__getitems__(range(1000)))

    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        stack.callback(stop.set)  # also where a line below fails: the pool waits for its threads
        process, port = stack.enter_context(served_by_command(meta))
        rows = ServerDataset(HOST, port, timeout=240, retries=10_000)
        assert len(rows) == 1000
        training = pool.submit(train, rows)
        until(lambda: len(batches) > 20, seconds=60)
        process.kill()
        process.wait(10)
        before = len(batches)
        with served_by_command(meta, port, "--in-memory") as (again, _):
            until(lambda: len(batches) > before + 20, seconds=120)
            stop.set()
            training.result(60)
            patient = ServerDataset(HOST, port, retries=2)
            loader = iter(DataLoader(patient, batch_size=10, num_workers=1, timeout=120))
            assert next(loader)[0] == "row 0"
            again.send_signal(signal.SIGTERM)  # with connections still open
            output, errors = again.communicate(timeout=60)
            assert (again.returncode, output, errors) == (0, "", "")
            refuses(ConnectionError, "no answer from a meta server", list, loader)
            loader._shutdown_workers()  # now, and not whenever the garbage is collected
        rows.close()
    assert all(batch == [f"row {i}" for i in range(1000)] for batch in batches)
