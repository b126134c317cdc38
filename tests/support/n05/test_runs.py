"""The ways to hold a meta file, run for real on a small one, and the model that predicts their memory."""

import http.client
import http.server
import os
import sys
import threading

import pytest

from lib.data.meta import MetaFile
from support.n05 import runs as n05
from tests.bench import headline

pytest.importorskip("psutil")
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells private pages from shared ones")
ROWS = 300_000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("ways") / "captions.txt"
    n05.write_captions(path, ROWS)
    MetaFile(path).close()
    return path


def test_a_str_in_a_list_takes_what_python_says(path):
    with MetaFile(path) as meta_file:
        rows = meta_file.rows(range(10_000))
    measured = [-(-sys.getsizeof(row) // 16) * 16 + 8 for row in rows]
    assert [n05.list_row_bytes(len(row) + 1) for row in rows] == measured
    # Of the mean row less exactly: Python rounds each row up to 16 bytes (5.5 % off on Python 3.12, less on 3.11).
    assert n05.list_row_bytes(n05.ROW_BYTES) == pytest.approx(
        sum(measured) / len(rows), rel=0.05 if sys.version_info < (3, 12) else 0.06
    )


def test_copies_are_counted_by_who_holds_rows_and_an_unknown_way_is_refused(path):
    machine = dict(rows=960, row_bytes=44, world_size=8, workers=2, mini_epochs=4)
    assert [n05.predict(way, **machine).copies for way in n05.WAYS] == [3, 24, 1, 8]
    assert n05.predict("one", rows=960, row_bytes=44).total == 960 * 104
    assert n05.predict("naive", **machine).total == 24 * 960 * 104
    assert n05.predict("server", **machine).total == 960 * (43 + 4)
    assert n05.predict("rank", **machine).each == 960 / (8 * 4) * (43 + 8)
    small, large = (n05.predict("server", rows=rows, row_bytes=44).each / rows for rows in (90_000_000, 400_000_000))
    assert (small, large) == (47, 51)
    with pytest.raises(ValueError, match="way must be one of one, naive, server, rank, not 'best'"):
        n05.predict("best", rows=1, row_bytes=1)
    with pytest.raises(ValueError, match="not 'best'"):
        n05.run_way("best", path)


@linux
@pytest.mark.parametrize("way, workers", [("one", 0), ("naive", 0), ("naive", 1)])
def test_lists_take_as_much_as_predicted(path, way, workers):
    run = n05.run_way(way, path, world_size=2, num_workers=workers)
    assert run.predicted.copies == {("one", 0): 1, ("naive", 0): 2, ("naive", 1): 4}[way, workers]
    assert 0.8 < run.peak / run.predicted.total < 1.5 and run.rows_per_second > 0
    assert run.times == sorted(run.times)


@linux
def test_reading_makes_the_lists_of_workers_their_own(path):
    run = n05.run_way("naive", path, world_size=1, num_workers=2)
    assert max(run.workers) > 1.2 * run.predicted.each  # two workers: two lists, less what is not written


@linux
def test_own_rows_take_a_fraction_and_a_server_holds_them_once(path):
    lists, own = (n05.run_way(way, path, world_size=2, num_workers=0) for way in ("naive", "rank"))
    served = n05.run_way("server", path, world_size=2, num_workers=0, seconds=0.5)
    assert own.peak < lists.peak / 2
    assert max(served.server) > 0.8 * served.predicted.total and max(served.ranks) < lists.predicted.each / 2
    assert len(own.times) == len(own.totals) == len(own.shared)


def test_a_file_that_no_rank_could_open_is_an_error_before_any_rank_starts(tmp_path):
    n05.write_captions(tmp_path / "bad.txt", 100)
    MetaFile(tmp_path / "bad.txt").close()
    (tmp_path / "bad.txt.idx").write_bytes(b"not an index of ours, and longer than its header: " * 3)
    with pytest.raises(ValueError, match="is not an index of ours"):
        n05.run_way("rank", tmp_path / "bad.txt")


def test_a_rank_that_fails_is_an_error_and_no_hang():
    crew = n05._Crew()
    try:
        crew.start("rank 0", len)  # called with its pipe, which has no length
        with pytest.raises(RuntimeError, match="rank 0 ended with exit code 1; its error is printed above"):
            crew.hear("rank 0")
    finally:
        crew.end()


@linux
def test_a_forked_reader_copies_strings_and_not_packed_bytes(path):
    with MetaFile(path) as meta_file:
        packed = meta_file.packed(range(100_000))
    strings = packed.rows(range(len(packed)))
    grown, flat = n05.private_growth(strings), n05.private_growth(packed)
    assert [count for count, _ in grown][-1] == 100_000 and flat[-1][1] < grown[-1][1] / 10
    each = n05.list_row_bytes(n05.ROW_BYTES) - 8
    for count, size in grown[4:]:
        assert 0.7 < size / n05.expected_private(count, len(strings), each) < 1.5


def test_pages_touched_are_those_of_the_birthday_problem_and_without_fork_there_are_none(monkeypatch):
    monkeypatch.delattr(os, "fork", raising=False)
    assert n05.private_growth(["a"]) == []
    rows, each = 4096, 64  # 64 rows a page, 64 pages
    assert n05.expected_private(0, rows, each) == 0
    assert n05.expected_private(1, rows, each) == pytest.approx(4096)
    assert n05.expected_private(2, rows, each) == pytest.approx(4096 * (2 - 1 / 64))
    assert n05.expected_private(10**6, rows, each) == pytest.approx(rows * each)
    assert n05.expected_private(5, rows=3, object_bytes=10) == 4096


@pytest.mark.parametrize("step", [0, 1, 2])
def test_every_plain_server_gives_the_rows(path, step):
    with MetaFile(path) as meta_file:
        rows = meta_file.packed(range(100))
    handler = n05.plain_handler(rows, step)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
            connection.request("GET", "/get/7")
            answer = connection.getresponse()
            assert rows[7] in answer.read().decode().replace("\\", "")
            assert answer.version == (10 if step == 0 else 11)
            connection.close()
        finally:
            server.shutdown()
            thread.join()


def test_all_servers_are_measured_each_way(path):
    table = n05.measure_servers(path, seconds=0.02)
    assert list(table) == list(n05.SERVERS)
    for rates in table.values():
        assert list(rates) == list(n05.HOW)
        assert rates[n05.HOW[2]] > rates[n05.HOW[1]]  # a batch in a request brings more rows


def test_rows_in_an_arrow_file_are_the_rows(tmp_path):
    pytest.importorskip("pyarrow")
    from support.n05.runs import mapped_rows

    mapped = mapped_rows(["a", "b", "c d"], tmp_path / "rows.arrow")
    assert mapped.take([2, 0]).to_pylist() == ["c d", "a"]


@pytest.mark.parametrize("rows", [0, 1, 999, 1000, 1001, 12_345, 1_000_500])
def test_rows_are_numbered_and_captions_differ_in_length(tmp_path, rows):
    path = tmp_path / "captions.txt"
    assert n05.write_captions(path, rows) == path.stat().st_size
    with MetaFile(path) as meta:
        assert len(meta) == rows
        ids = range(max(0, rows - 1500), rows)
        for i, row in zip(ids, meta.rows(ids), strict=True):
            name, caption = row.split(" ", 1)
            assert name == f"img/{i:09}.jpg"
            assert caption[0] == caption[-1] == '"' and 14 <= len(caption) <= 36


def test_a_row_takes_as_many_bytes_as_is_said_and_the_headline_takes_what_fits_on_the_disk(tmp_path):
    assert n05.write_captions(tmp_path / "captions.txt", 10_000) / 10_000 == pytest.approx(n05.ROW_BYTES, abs=0.5)
    with pytest.raises(ValueError, match="rows must be below"):
        n05.write_captions(tmp_path / "captions.txt", 10**9 + 1)
    assert headline.rows_that_fit(400_000_000, 30 * 10**9) == 400_000_000
    fewer = headline.rows_that_fit(400_000_000, 10 * 10**9)
    assert fewer % 1_000_000 == 0
    assert 0.95 * 8 * 10**9 < fewer * (n05.ROW_BYTES + headline.INDEX_BYTES) < 8 * 10**9
    assert headline.rows_that_fit(5_000_000, 10**9) == 0
