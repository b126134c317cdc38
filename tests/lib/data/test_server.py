"""Rows that come from a meta server are the rows of its file, whoever asks; and a server begins and ends well."""

import http.client
import json
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lib.data import MetaServer, ServerDataset, meta_answers, meta_server, server_dataset
from tests.lib.data.serving import HOST, ListOfRows, numbered, served
from tests.lib.forks import FORK, in_fork, needs_fork
from tests.lib.refusal import refuses

pytestmark = pytest.mark.timeout(60)  # a hang is a failure, in every test


@pytest.fixture
def dataset():
    """A dataset of the rows "row 0" … "row 99", from a server in a thread."""
    with served(numbered()) as (_, rows):
        yield rows


# ---- what is asked arrives
def test_a_served_dataset_is_a_dataset(dataset):
    assert isinstance(dataset, torch.utils.data.Dataset)
    assert len(dataset) == 100
    for index in (17, np.int64(17), torch.tensor(17)):
        assert dataset[index] == "row 17"
    assert dataset.__getitems__([3, 1, 4, 1]) == ["row 3", "row 1", "row 4", "row 1"]
    assert dataset.__getitems__(torch.tensor([7, 0])) == ["row 7", "row 0"]
    assert dataset.__getitems__([]) == []
    assert list(dataset) == [f"row {i}" for i in range(100)], "iteration ends at the IndexError"
    for wrong in (1.0, "1", True, None):
        refuses(TypeError, "index must be an integer", dataset.__getitem__, wrong)


def test_eight_threads_at_once_each_get_their_own_rows(dataset):
    def batch_and_row(number, turn):
        ids = [(number * 13 + turn * j) % 100 for j in range(number + 1)]
        assert dataset.__getitems__(ids) == [f"row {j}" for j in ids]
        assert dataset[number] == f"row {number}"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(batch_and_row, list(range(8)) * 50, range(400)))


def test_a_transform_is_applied_to_each_row(dataset):
    dataset.transform = len
    assert dataset[5] == 5
    assert dataset.__getitems__([5, 50]) == [5, 6]


def test_a_pickled_copy_takes_its_settings_and_no_connection_and_what_is_closed_connects_anew(dataset):
    assert dataset[0] == "row 0"
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy._idle == []
    assert copy.timeout == dataset.timeout
    assert len(copy) == 100
    assert copy[10] == "row 10"
    copy.close()
    copy.close()
    assert copy[10] == "row 10"


def test_every_row_arrives_as_it_is_even_what_is_no_utf8_also_from_a_file(tmp_path):
    no_utf8 = b"latin \xe9, half a \xf0\x9f\x98, and \xed\xa0\x80".decode("utf-8", "surrogateescape")
    odd = ["", 'img/1.png "a \\ and a \x00"', "手写的七 \U0001f600 \u2028\u2029", no_utf8, "long " * 100_000]
    with served(ListOfRows(odd)) as (_, rows):
        assert rows.__getitems__(range(5)) == odd
        assert [rows[i] for i in range(5)] == odd
    path = tmp_path / "meta.txt"
    path.write_bytes(b'# file "caption"\n0.png "a seven"\r\n\n1.png "\xff"\n')
    with served(path) as (serving, rows):
        assert len(serving) == 2
        assert rows.__getitems__([1, 0]) == ['1.png "\udcff"', '0.png "a seven"']


def test_a_dataloaders_batch_is_one_request():
    rows = numbered()
    with served(rows) as (_, counted):
        batches = list(DataLoader(counted, batch_size=25))
    assert [row for batch in batches for row in batch] == rows.list
    assert rows.reads == 4


def test_a_batch_above_the_servers_number_of_rows_is_several_requests(dataset, monkeypatch):
    monkeypatch.setattr(server_dataset, "MAX_IDS", 40)
    monkeypatch.setattr(meta_answers, "MAX_IDS", 40)
    assert dataset.__getitems__(range(100)) == [f"row {i}" for i in range(100)]


def test_a_batch_above_the_servers_bytes_is_halved_until_it_fits_and_a_row_above_them_is_an_error(dataset, monkeypatch):
    monkeypatch.setattr(meta_answers, "MAX_ANSWER", 30)
    assert dataset.__getitems__(range(100)) == [f"row {i}" for i in range(100)]
    monkeypatch.setattr(meta_answers, "MAX_ANSWER", 5)
    assert dataset.__getitems__([1, 2]) == ["row 1", "row 2"]
    monkeypatch.setattr(meta_answers, "MAX_ANSWER", 3)
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
        assert len(rows) == 0
        assert rows.__getitems__([]) == []
        refuses(IndexError, "row 0 is out of range for 0 rows; there are none", rows.__getitem__, 0)


NO_LIST = {"error": "TypeError", "message": "the body must be a JSON list of integers, as in [3,1,4]"}


@pytest.mark.parametrize(
    "method, path, body, status, value",
    [
        ("GET", "/get/7", None, 200, "row 7"),
        ("POST", "/rows", "[3, 1]", 200, ["row 3", "row 1"]),
        ("POST", "/rows", "3", 400, NO_LIST),
        ("GET", "/len", None, 200, 100),
    ],
)
def test_any_http_client_can_ask_twice_on_one_connection(dataset, method, path, body, status, value):
    plain = http.client.HTTPConnection(HOST, dataset.port, timeout=5)
    for _ in range(2):
        plain.request(method, path, body)
        answer = plain.getresponse()
        assert answer.getheader("Content-Type") == "application/json"
        assert answer.status == status
        assert json.loads(answer.read()) == value
        assert plain.sock is not None, "the connection is kept"
    plain.close()


# ---- threads and processes
@pytest.mark.parametrize(
    "start", [pytest.param("fork", marks=needs_fork), pytest.param("spawn", marks=pytest.mark.costly)]
)
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
        answer, address = in_fork(lambda: (rows[1], rows._idle[0].socket.getsockname()))
        assert answer == "row 1"
        assert address != kept.socket.getsockname(), "one connection each"
        assert rows[2] == "row 2"
        assert rows._idle == [kept]


# ---- beginning and end
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
    assert not serving._listener.connections


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
        assert len(ServerDataset(HOST, serving.port)) == 100
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


def test_it_listens_on_this_machine_only_unless_told_otherwise():
    with MetaServer(numbered()) as serving:
        assert serving.host == "127.0.0.1"
        assert serving._listener.socket.getsockname()[0] == "127.0.0.1"


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
