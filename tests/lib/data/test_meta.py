"""A meta file gives any of its rows, whatever its bytes, or says that it has changed."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from lib.data import meta, meta_index
from lib.data.meta import MetaFile
from tests.lib.data.meta_files import all_rows, index_of, row
from tests.lib.refusal import refuses

NO_UTF8 = bytes(byte for byte in range(256) if byte != 10)


# --- which lines are rows, and what a row is
@pytest.mark.parametrize(
    "content, rows",
    [
        (b"# head\none\r\r\n# middle\n \t\r\n #\ntwo\r", ["one\r", " #", "two"]),
        (b"row " + NO_UTF8 + b"\nnext\n", ["row " + NO_UTF8.decode("utf-8", "surrogateescape"), "next"]),
        (b"\xef\xbb\xbf# head\n\none\n\xef\xbb\xbftwo", ["one", "\ufefftwo"]),
        ("Bär \u2028 \x85 \x0b \x0c \x1c 雪\r\nb".encode(), ["Bär \u2028 \x85 \x0b \x0c \x1c 雪", "b"]),
        (b" \x0b\x0c \n \xc2\xa0\n", [" \xa0"]),  # a no-break space is more than a blank
        (b" " * 5000 + b"\n" + b" " * 5000 + b"x\n" + b" " * 5000, [" " * 5000 + "x"]),
    ],
)
def test_every_line_is_a_row_but_headers_and_blank_ones(tmp_path, content, rows):
    path = tmp_path / "captions.txt"
    path.write_bytes(content)
    assert all_rows(path) == rows


def test_a_row_of_ten_megabytes_among_short_ones(tmp_path):
    path = tmp_path / "captions.txt"
    long = "".join(f"{i:07} " for i in range(1_250_000))
    rows = [*map(row, range(100)), long, *map(row, range(100))]
    path.write_text("\n".join(rows))
    assert all_rows(path) == rows
    with MetaFile(path) as meta:
        assert meta.rows([100, 0, 100]) == [long, row(0), long]


@pytest.mark.parametrize("gap", [0, 2000, 70_000])
def test_the_index_widens_its_numbers_where_rows_are_long(tmp_path, gap):
    path = tmp_path / "captions.txt"
    rows = [f"{i} " + "x" * gap for i in range(200)]
    path.write_text("\n".join(rows))
    with MetaFile(path) as meta:
        assert meta._index.width == (2 if gap == 0 else 4)
        for ids in ([199, 0, 64, 63], [*range(199, -1, -7)]):
            assert meta.rows(ids) == list(meta.packed(ids)) == [rows[k] for k in ids]


# --- asking for rows
def test_rows_come_in_the_order_asked_for_and_as_often(thousand):
    with MetaFile(thousand) as meta:
        assert len(meta) == 1000
        assert meta.rows([7, 999, 0, 7]) == [row(7), row(999), row(0), row(7)]
        for ids in (np.array([3, 1]), np.array([3, 1], np.uint8), torch.tensor([3, 1]), (3, 1)):
            assert meta.rows(ids) == [row(3), row(1)]
        assert meta.rows([]) == [] == meta.rows(np.empty(0, np.int64))
        packed = meta.packed(range(500, 600))
        assert (len(packed), packed[0], packed[-1]) == (100, row(500), row(599))
        assert packed.nbytes == packed.data.nbytes + 4 * 101

        def right(seed):
            many = np.random.default_rng(seed).integers(0, 1000, (50, 40))
            return all(meta.rows(ids) == [row(i) for i in ids] for ids in many)

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(right, range(4))), "many threads may ask at once"
        assert (packed := meta.packed([5, 4])).nbytes == packed.data.nbytes + 4 * 3 + 4 * 2, "and each item's place"
        packed = meta.packed(range(500, 600))
        assert list(meta.packed([5, 4])) == list(pickle.loads(pickle.dumps(meta.packed([5, 4])))) == [row(5), row(4)]
    assert packed[0] == row(500), "also of a file that is closed; but"
    refuses(ValueError, "closed", meta.rows, [0])


def test_ids_that_are_no_rows_are_refused_with_the_bounds(thousand):
    with MetaFile(thousand) as meta:
        for ids in ([1000], [-1], [0, 5, 12345], np.array([2**63], np.uint64)):
            refuses(IndexError, r"out of range: .*captions.txt has 0\.\.999", meta.rows, ids)
        for ids in ([0.5], ["a"], [True, False]):
            refuses(TypeError, "must be integers", meta.rows, ids)
        refuses(TypeError, r"rows\(\[i\]\)\[0\]", meta.rows, 3)
        refuses(IndexError, "there are 2", meta.packed([1, 2]).__getitem__, 2)
        refuses(IndexError, "2 items", meta.packed([1, 2]).rows, [0, 2])
    thousand.write_bytes(b"")
    with MetaFile(thousand) as meta:
        refuses(IndexError, "has none", meta.rows, [0])


@pytest.mark.parametrize("missing", [("preadv",), ("preadv", "pread")])
def test_it_works_on_systems_without_positioned_reads(thousand, monkeypatch, missing):
    for name in missing:
        monkeypatch.delattr(os, name)
    assert all_rows(thousand)[999] == row(999)


# --- the file itself
def test_what_is_no_file_is_refused_at_once_as_text_and_as_index_and_kept(thousand, tmp_path):
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    (tmp_path / "loop").symlink_to("loop")
    refuses(FileNotFoundError, "", MetaFile, tmp_path / "nothing.txt")
    for place in filter(os.path.exists, (tmp_path, os.devnull, tmp_path / "pipe")):
        refuses(ValueError, "not a regular file", MetaFile, place)
        refuses(ValueError, r"is not a regular file: choose another place .* index=", MetaFile, thousand, index=place)
    refuses(OSError, "loop", MetaFile, thousand, index=tmp_path / "loop")
    for given in (None, 3, b"captions.txt"):
        refuses(TypeError, "path must be a string or a Path", MetaFile, given)
    assert {*os.listdir(tmp_path)} <= {"captions.txt", "pipe", "loop"}


@pytest.mark.parametrize("content, left", [(b"one more\n", 1001), (None, 1)])
def test_a_file_that_grows_or_shrinks_while_open_is_an_error_not_other_rows(thousand, content, left):
    with MetaFile(thousand) as meta:
        if content:
            thousand.write_bytes(thousand.read_bytes() + content)
        else:
            os.truncate(thousand, 20)
        for read in (meta.rows, meta.packed):
            refuses(RuntimeError, "has changed since it was opened .* open it anew with MetaFile", read, [999])
    assert len(all_rows(thousand)) == left


@pytest.mark.parametrize("change", [lambda text: os.truncate(text, 100), lambda text: os.utime(text, ns=(0, 0))])
@pytest.mark.parametrize("step, read", [("bounds", "packed"), ("bounds_of", "rows")])
def test_a_file_that_changes_in_the_middle_of_a_read_is_an_error(thousand, monkeypatch, step, read, change):
    with MetaFile(thousand) as meta:
        bounds = getattr(meta._index, step)

        def change_then_answer(ids):
            change(thousand)
            return bounds(ids)

        monkeypatch.setattr(meta._index, step, change_then_answer)
        refuses(RuntimeError, "has changed", getattr(meta, read), [999, 3])


def test_a_file_that_grows_while_it_is_indexed_is_an_error(thousand, monkeypatch):
    starts = meta_index.row_starts

    def grow(file, size):
        yield from starts(file, size)
        with open(thousand, "a") as text:
            text.write("one more\n")

    monkeypatch.setattr(meta_index, "row_starts", grow)
    refuses(RuntimeError, "has changed while it was read", MetaFile, thousand)
    assert os.listdir(thousand.parent) == ["captions.txt"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_no_file_stays_open(thousand):
    opened = lambda: len(os.listdir("/proc/self/fd"))  # noqa: E731
    before = opened()
    MetaFile(thousand)
    with MetaFile(thousand) as meta:
        meta.rows([0])
        meta.close()
    index_of(thousand).write_bytes(b"foreign")
    refuses(ValueError, "not an index", MetaFile, thousand)
    assert opened() == before


def test_a_pickled_meta_file_opens_the_same_file_again_and_no_other(thousand, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(MetaFile("captions.txt"))
    monkeypatch.chdir("/")
    assert pickle.loads(pickled).rows([5]) == [row(5)]
    thousand.write_text("other\n")
    refuses(RuntimeError, "has changed", pickle.loads, pickled)
    with MetaFile(thousand) as meta:
        thousand.with_name("new").write_text("something else\n")
        os.replace(thousand.with_name("new"), thousand)  # an open one stays what it was
        assert meta.rows([0]) == ["other"]
    assert all_rows(thousand) == ["something else"]


def test_rows_that_are_far_larger_than_the_average_fit_however_often_they_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(meta, "CHUNK", 4)
    (tmp_path / "meta.txt").write_text("a\n" * 2000 + "b" * 30_000 + "\n")
    with MetaFile(tmp_path / "meta.txt") as file:
        ids = [0, 1, 2, 3, *[2000] * 9, 4]
        assert file.rows(ids) == ["a"] * 4 + ["b" * 30_000] * 9 + ["a"]
