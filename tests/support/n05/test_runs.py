"""The ways to hold a meta file, run for real on a small one, and the model that predicts their memory."""

import sys

import pytest

from lib.data import MetaFile, ServerDataset
from support import captions
from support.captions import ROW_BYTES, WAYS, list_row_bytes, predict_holding, write_captions
from support.n05 import runs as n05
from tests.bench import headline

pytest.importorskip("psutil")
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much of a shared page is whose")
ROWS = 300_000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("ways") / "captions.txt"
    write_captions(path, ROWS)
    MetaFile(path).close()
    return path


def test_a_str_in_a_list_takes_what_python_says(path):
    with MetaFile(path) as meta_file:
        rows = meta_file.rows(range(10_000))
    measured = [-(-sys.getsizeof(row) // 16) * 16 + 8 for row in rows]
    assert [list_row_bytes(len(row) + 1) for row in rows] == measured
    # Of the mean row less exactly: Python rounds each row up to 16 bytes (5.5 % off on Python 3.12, less on 3.11).
    assert list_row_bytes(ROW_BYTES) == pytest.approx(
        sum(measured) / len(rows), rel=0.05 if sys.version_info < (3, 12) else 0.06
    )


def test_copies_are_counted_by_who_holds_rows_and_an_unknown_way_is_refused():
    machine = dict(rows=960, row_bytes=44, world_size=8, workers=2, mini_epochs=4)
    assert [predict_holding(way, **machine).copies for way in WAYS] == [24, 1, 8, 0, 1]
    assert predict_holding("naive", **machine).total == 24 * 960 * list_row_bytes(44)
    assert predict_holding("server", **machine).total == predict_holding("mapped", **machine).total == 960 * (43 + 4)
    assert predict_holding("rank", **machine).each == 960 / (8 * 4) * (43 + 8)
    assert predict_holding("file", **machine).total == 0
    assert predict_holding("file", **machine).cached == 960 * (44 + 2.25)
    assert predict_holding("server", rows=400_000_000, row_bytes=44).each / 400_000_000 == 51
    with pytest.raises(ValueError, match="way must be one of naive, server, rank, file, mapped, not 'best'"):
        predict_holding("best", rows=1, row_bytes=1)


@linux
def test_lists_take_what_is_predicted_and_every_other_way_far_less(path):
    lists = n05.run_way("naive", path, world_size=2, workers=1)
    assert 0.8 < lists.peak / lists.predicted.total < 1.6
    assert lists.rows_per_second > 0
    for way in ("rank", "file", "mapped", "server"):
        run = n05.run_way(way, path, world_size=2, workers=0, seconds=0.3)
        assert run.predicted.total < run.peak < lists.peak / 1.5, way
        assert run.rows_per_second > 0, way


def test_a_file_that_no_rank_could_open_or_a_process_that_fails_is_an_error_and_no_hang(tmp_path):
    write_captions(tmp_path / "bad.txt", 100)
    MetaFile(tmp_path / "bad.txt").close()
    (tmp_path / "bad.txt.idx").write_bytes(b"not an index of ours, and longer than its header: " * 3)
    with pytest.raises(ValueError, match="is not an index of ours"):
        n05.run_way("rank", tmp_path / "bad.txt")
    message = "rank 0 ended with exit code 1; its error is printed above"
    with n05._started("rank 0", len) as peer, pytest.raises(RuntimeError, match=message):
        peer.hear()  # len is called with its pipe, which has none


def test_a_server_serves_the_rows_from_a_process_of_its_own(path):
    with n05.serving(path) as port, MetaFile(path) as meta_file:
        client = ServerDataset("127.0.0.1", port)
        assert client.__getitems__([3, 1]) == meta_file.rows([3, 1])
        client.close()


@pytest.mark.parametrize("rows", [0, 1, 999, 1000, 1001, 12_345, 1_000_500])
def test_rows_are_numbered_and_captions_differ_in_length(tmp_path, rows):
    path = tmp_path / "captions.txt"
    assert write_captions(path, rows) == path.stat().st_size
    with MetaFile(path) as meta:
        assert len(meta) == rows
        ids = range(max(0, rows - 1500), rows)
        for i, row in zip(ids, meta.rows(ids), strict=True):
            name, caption = row.split(" ", 1)
            assert name == f"img/{i:09}.jpg"
            assert caption[0] == caption[-1] == '"'
            assert 14 <= len(caption) <= 36


def test_a_row_takes_as_many_bytes_as_is_said_and_the_headline_takes_what_fits_on_the_disk(tmp_path):
    assert write_captions(tmp_path / "captions.txt", 10_000) / 10_000 == pytest.approx(captions.ROW_BYTES, abs=0.5)
    with pytest.raises(ValueError, match="rows must be below"):
        write_captions(tmp_path / "captions.txt", 10**9 + 1)
    assert headline.rows_that_fit(400_000_000, 30 * 10**9) == 400_000_000
    fewer = headline.rows_that_fit(400_000_000, 10 * 10**9)
    assert fewer % 1_000_000 == 0
    assert 0.95 * 8 * 10**9 < fewer * (captions.ROW_BYTES + headline.INDEX_BYTES) < 8 * 10**9
    assert headline.rows_that_fit(5_000_000, 10**9) == 0
