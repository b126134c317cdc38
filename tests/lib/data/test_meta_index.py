"""The index of a meta file is right, rebuilt or refused, never just trusted; and whoever writes it leaves no half."""

import contextlib
import os
import re
import signal
import stat
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

from lib.data import meta_index, progress
from lib.data.meta import MetaFile
from tests.lib.data.meta_files import all_rows, index_of, row
from tests.lib.forks import FORK, in_fork, needs_fork
from tests.lib.refusal import refuses

ROOT = Path(__file__).resolve().parents[3]


# --- the index file
def test_the_index_is_written_once_and_small(thousand):
    MetaFile(thousand).close()
    written = index_of(thousand).stat()
    assert written.st_size <= 64 + 2.25 * (1000 + 63)
    MetaFile(thousand).close()
    assert index_of(thousand).stat().st_mtime_ns == written.st_mtime_ns
    assert sorted(os.listdir(thousand.parent)) == ["captions.txt", "captions.txt.idx"]


@pytest.mark.skipif(os.name == "nt", reason="Windows knows no such modes")
def test_whoever_may_read_the_texts_folder_may_read_the_index_and_only_its_owner_may_write_it(thousand):
    """Whatever the mask of the process that built it: ranks of another user read the same index."""
    mask = os.umask(0o077)
    try:
        MetaFile(thousand).close()
    finally:
        os.umask(mask)
    assert stat.S_IMODE(index_of(thousand).stat().st_mode) == 0o644


def test_an_index_of_another_format_or_text_though_of_the_same_size_and_date_is_rebuilt(thousand):
    MetaFile(thousand).close()
    date = thousand.stat().st_mtime_ns
    text = thousand.read_bytes()
    thousand.write_bytes(text.replace(b"\n", b" ", 1))
    os.utime(thousand, ns=(date, date))
    assert len(all_rows(thousand)) == 999
    for version in (b"\2", b"c"):  # the one that had no checks, one to come
        change_index(thousand, 8, version)
        assert len(all_rows(thousand)) == 999
        assert index_of(thousand).read_bytes()[8:9] == b"\3"


def change_index(path, place, content):
    """Write an index, and other bytes at a place in it."""
    MetaFile(path).close()
    with open(index_of(path), "r+b") as file:
        file.seek(place)
        file.write(content)


@pytest.mark.parametrize("place", [13, 34, 45, 50, 64 + 144])
def test_a_damaged_index_is_refused_in_its_header_when_opened_elsewhere_when_read(thousand, place):
    """A machine that lost power may leave a file with its size but without all of its content, a hole of zeros."""
    if place < 64:
        MetaFile(thousand).close()
        there = index_of(thousand).read_bytes()[place]  # a size, a date: any byte, so that only another one is damage
        change_index(thousand, place, bytes([there ^ 0xFF]))
        refuses(ValueError, "damaged", MetaFile, thousand)
        return
    change_index(thousand, place, bytes(144))
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
            assert message.startswith("PermissionError")
            assert "index=" in message
            assert "captions.txt" in message
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
    assert len(all_rows(thousand)) == 1000
    assert not left.exists()


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
    assert "index of captions.txt" in shown()
    assert threading.active_count() == threads
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert shown() == ""
    monkeypatch.delenv("TQDM_DISABLE")
    monkeypatch.setitem(sys.modules, "tqdm", None)  # not installed
    assert shown() == ""
