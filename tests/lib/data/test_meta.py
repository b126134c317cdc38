"""A meta file gives any of its rows, whatever its bytes; its index is right, rebuilt or refused, never just trusted."""

import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from lib.data import meta_index, progress
from lib.data.meta import MetaFile
from lib.data.rank_dataset import NaiveDataset
from tests.lib.forks import FORK, in_fork, needs_fork
from tests.lib.refusal import refuses

ROOT = Path(__file__).resolve().parents[3]
NO_UTF8 = bytes(byte for byte in range(256) if byte != 10)


def all_rows(path, **arguments):
    with MetaFile(path, **arguments) as meta:
        rows = meta.rows(range(len(meta)))
        assert rows == NaiveDataset(meta).rows
        few = range(0, len(rows), max(1, len(rows) // 100))  # a few rows take a shorter way, which must agree
        assert [meta.rows([i])[0] for i in few] == [rows[i] for i in few]
        return rows


def index_of(path):
    return path.with_name(path.name + ".idx")


@pytest.fixture
def thousand(tmp_path):
    meta_path = tmp_path / "captions.txt"
    meta_path.write_text("".join(f'img/{i:04}.png "number {i}"\n' for i in range(1000)))
    return meta_path


def row(i):
    return f'img/{i:04}.png "number {i}"'


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
        assert len(meta) == 1000 and meta.rows([7, 999, 0, 7]) == [row(7), row(999), row(0), row(7)]
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


# --- the index file
def test_the_index_is_written_once_and_small(thousand):
    MetaFile(thousand).close()
    written = index_of(thousand).stat()
    assert written.st_size <= 64 + 2.25 * (1000 + 63)
    MetaFile(thousand).close()
    assert index_of(thousand).stat().st_mtime_ns == written.st_mtime_ns
    assert sorted(os.listdir(thousand.parent)) == ["captions.txt", "captions.txt.idx"]


def test_an_index_of_another_format_or_text_though_of_the_same_size_and_date_is_rebuilt(thousand):
    MetaFile(thousand).close()
    date = thousand.stat().st_mtime_ns
    text = thousand.read_bytes()
    thousand.write_bytes(text.replace(b"\n", b" ", 1))
    os.utime(thousand, ns=(date, date))
    assert len(all_rows(thousand)) == 999
    for version in (b"\2", b"c"):  # the one that had no checks, one to come
        change_index(thousand, 8, version)
        assert len(all_rows(thousand)) == 999 and index_of(thousand).read_bytes()[8:9] == b"\3"


def change_index(path, place, content):
    """Write an index, and other bytes at a place in it."""
    MetaFile(path).close()
    with open(index_of(path), "r+b") as file:
        file.seek(place)
        file.write(content)


@pytest.mark.parametrize("place", [13, 34, 45, 50, 64 + 144])
def test_a_damaged_index_is_refused_in_its_header_when_opened_elsewhere_when_read(thousand, place):
    """A machine that lost power may leave a file with its size but without all of its content, a hole of zeros."""
    change_index(thousand, place, b"\xa5" if place < 64 else bytes(144))
    if place < 64:
        refuses(ValueError, "damaged", MetaFile, thousand)
        return
    with MetaFile(thousand) as meta:
        for what, lost in (("damaged", 70), ("cut short", 999)):
            assert meta.rows([0]) == [row(0)]
            for read in (meta.rows, meta.packed):
                refuses(ValueError, what, read, [lost])
            os.truncate(index_of(thousand), 500)  # while it is open


def refused(index):
    return pytest.raises(ValueError, match=rf"{re.escape(str(index))} is damaged: delete it .* or keep .* index=")


@pytest.mark.parametrize("width", [2, 4, 8])
def test_records_that_changed_places_and_bytes_that_changed_anywhere_are_found(thousand, monkeypatch, width):
    record = meta_index.RECORDS[width]
    monkeypatch.setattr(meta_index, "RECORDS", {width: record})  # as for longer rows
    assert len(all_rows(thousand)) == 1000
    index = index_of(thousand)
    whole = index.read_bytes()
    head = whole[:64]
    size = record.itemsize
    one = np.frombuffer(whole[64 : 64 + size], np.uint8)
    changed = np.tile(one, (size, 1))
    for by in range(1, 256):  # each byte of a record, to each other value
        changed[np.diag_indices(size)] = one ^ by
        assert meta_index.remainders(changed.view(record)[:, 0], width, np.zeros(size, np.int64)).all()
    swapped = head + whole[64 + size : 64 + 2 * size] + whole[64 : 64 + size] + whole[64 + 2 * size :]
    for content, ids in ((swapped, [64]), (head + bytes(len(whole) - 64), [0]), (whole + whole[-1:], [])):
        index.write_bytes(content)
        for read in (MetaFile.rows, MetaFile.packed):
            with refused(index), MetaFile(thousand) as meta:
                read(meta, ids)


@pytest.mark.parametrize("ids", [[0, 10_000, 19_999], [*range(0, 20_000, 640)]], ids=["far apart", "near each other"])
def test_only_the_records_of_the_rows_that_are_asked_for_are_checked(tmp_path, ids):
    path = tmp_path / "many.txt"
    path.write_text("".join(f"row {i}\n" for i in range(20_000)))
    change_index(path, 64 + 144 * 101, b"\xff")  # one between them: checking it, too, would cost more than reading it
    with MetaFile(path) as meta:
        assert meta.rows(np.array(ids)) == [f"row {i}" for i in ids]
        with refused(index_of(path)):
            meta.rows(np.array([*ids, 64 * 101]))


@pytest.mark.parametrize("many", [1, 50])
def test_an_index_that_does_not_fit_its_text_is_refused_where_that_is_seen(thousand, many):
    """Rows that should lie behind the end, or where nothing is: an index of another text, with this one's stamp."""
    lines = [b"x\n"] * 20_000
    thousand.write_bytes(b"".join(lines))
    date = thousand.stat().st_mtime_ns
    index = index_of(thousand)
    MetaFile(thousand).close()
    thousand.write_bytes(b"".join([*lines[:5000], *[b"\r\n"] * 100, *lines[5100:]]))  # no sample looks there
    os.utime(thousand, ns=(date, date))
    with MetaFile(thousand) as meta, refused(index):
        meta.rows([*range(5050, 5050 + many)])
    body = index.read_bytes()[64:]
    thousand.write_bytes(b"x\n" * 10)
    with open(thousand, "rb") as text:
        stamp = meta_index.Stamp.of(text.fileno())
    fields = (meta_index.MAGIC, meta_index.VERSION, 2, 0, stamp.sample, stamp.size, stamp.modified, 20_000)
    checksum = zlib.crc32(meta_index.HEADER.pack(*fields, 0)[:48])
    index.write_bytes(meta_index.HEADER.pack(*fields, checksum) + body)
    with MetaFile(thousand) as meta, refused(index):
        meta.rows([*range(500, 500 + many)])


@pytest.mark.parametrize("content", [b"an index of another program", b"\x89row", b"# captions\n"])
def test_a_foreign_file_in_its_place_is_refused_and_kept(thousand, content):
    index_of(thousand).write_bytes(content)
    refuses(ValueError, r"captions.txt.idx is .*delete it.*index=", MetaFile, thousand)
    assert index_of(thousand).read_bytes() == content
    assert all_rows(thousand, index=thousand.with_name("elsewhere.idx"))[3] == row(3)
    text = thousand.read_bytes()
    refuses(ValueError, "not an index", MetaFile, thousand, index=thousand)
    assert thousand.read_bytes() == text


# --- writing the index where things go wrong
@needs_fork
def test_a_folder_that_cannot_be_written_needs_an_index_elsewhere():
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        path = Path(folder) / "captions.txt"
        path.write_text("one\ntwo\n")
        os.chmod(folder, 0o555)
        os.chmod(other, 0o777)

        def as_nobody(**arguments):
            if os.geteuid() == 0:
                os.setuid(65534)  # root may write everywhere
            return MetaFile(path, **arguments).rows([1])

        try:
            message = in_fork(as_nobody)
            assert message.startswith("PermissionError") and "index=" in message and "captions.txt" in message
            assert in_fork(lambda: as_nobody(index=f"{other}/captions.idx")) == ["two"]
            os.chmod(folder, 0o755)
            MetaFile(path).close()
            os.chmod(folder, 0o555)
            assert in_fork(as_nobody) == ["two"]
        finally:
            os.chmod(folder, 0o755)


@needs_fork
def test_a_full_disk_leaves_no_half_index(thousand):
    size = 64 + 16 * 144

    def with_little_room():
        import resource

        for room in (0, 30, 64, 1000, size - 100, size - 1):  # the last write may be the one for which it is too little
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, -1))
            refuses(OSError, "cannot write the index of .*captions.txt, .* index=", MetaFile, thousand)
            assert os.listdir(thousand.parent) == ["captions.txt"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, -1))
        return len(all_rows(thousand))

    assert in_fork(with_little_room) == 1000


@pytest.mark.skipif(os.name == "nt", reason="kills as POSIX does")
def test_a_process_killed_while_writing_leaves_nothing_that_is_taken_for_an_index(thousand):
    code = f"""
import os, signal, sys
from lib.data import meta_index
from lib.data.meta import MetaFile
starts = meta_index.row_starts
def killed(file, size):
    for block in starts(file, size):
        yield block
        os.kill(os.getpid(), signal.SIGKILL)
meta_index.row_starts = killed
MetaFile({str(thousand)!r})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = thousand.parent.glob(".*.part")
    assert len(all_rows(thousand)) == 1000
    assert left.exists()  # it might be that of a process that is still writing
    os.utime(left, (0, 0))
    index_of(thousand).unlink()
    assert len(all_rows(thousand)) == 1000 and not left.exists()


@needs_fork
def test_of_eight_processes_that_start_at_once_one_builds_and_all_can_read(thousand, monkeypatch):
    built = FORK.Value("i", 0)
    write = meta_index._build

    def count_and_write(*arguments):
        with built.get_lock():
            built.value += 1
        time.sleep(0.2)
        write(*arguments)

    monkeypatch.setattr(meta_index, "_build", count_and_write)
    barrier = FORK.Barrier(8)

    def rank(number):
        barrier.wait(30)
        with MetaFile(thousand) as meta:
            return meta.rows([number, 999])

    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(in_fork, lambda number=number: rank(number)) for number in range(8)]
        assert [each.result() for each in found] == [[row(number), row(999)] for number in range(8)]
    assert built.value == 1
    assert sorted(os.listdir(thousand.parent)) == ["captions.txt", "captions.txt.idx"]


@needs_fork
def test_a_process_that_hangs_while_building_does_not_hang_the_others(thousand, monkeypatch):
    import fcntl

    monkeypatch.setattr(meta_index, "WAIT_SECONDS", 0.2)
    with open(thousand) as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as a stopped process would, for ever
        assert len(all_rows(thousand)) == 1000


def test_on_a_file_system_without_locks_all_build_at_once_and_do_not_disturb_each_other(thousand, monkeypatch):
    monkeypatch.setattr(meta_index, "_one_at_a_time", lambda text: contextlib.nullcontext())
    with ThreadPoolExecutor(8) as pool:
        for meta in pool.map(MetaFile, [thousand] * 8):
            with meta:
                assert meta.rows([999]) == [row(999)]


# --- the progress bar
def test_a_bar_appears_only_where_something_takes_long(thousand, monkeypatch, capsys):
    def shown():
        index_of(thousand).unlink(missing_ok=True)
        MetaFile(thousand).close()
        return capsys.readouterr().err

    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    assert shown() == ""
    pytest.importorskip("tqdm")
    monkeypatch.setattr(progress, "BAR_DELAY", -1.0)
    threads = threading.active_count()
    assert "index of captions.txt" in shown() and threading.active_count() == threads
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert shown() == ""
    monkeypatch.delenv("TQDM_DISABLE")
    monkeypatch.setitem(sys.modules, "tqdm", None)  # not installed
    assert shown() == ""
