"""What is run in a process of its own comes back, and nothing else of it does."""

import os
import signal
import time

import pytest

from support.kit import apart
from support.kit.apart import in_a_process_of_its_own
from support.kit.raised import Finding

pytestmark = pytest.mark.skipif(not apart.CAN_FORK, reason="this system can't copy a process")
KEPT = []


def keep(value):
    KEPT.append(value)
    return list(KEPT)


def test_what_a_function_returns_comes_back_and_what_it_keeps_does_not():
    assert [in_a_process_of_its_own(lambda: keep(1)) for _ in range(2)] == [[1], [1]]
    assert KEPT == []


def test_an_exception_is_told_with_the_line_that_raised_it():
    with pytest.raises(Finding, match=r"your code raised KeyError: 'missing' \(in <lambda>"):
        in_a_process_of_its_own(lambda: {}["missing"])


def test_what_never_ends_is_ended(monkeypatch):
    monkeypatch.setattr(apart, "PATIENCE", 1)
    with pytest.raises(Finding, match="did not come to an end within 1 seconds"):
        in_a_process_of_its_own(signal.pause)


def test_a_copy_that_the_system_ends_is_no_fault_of_the_answer():
    with pytest.raises(ChildProcessError, match="died without an answer"):
        in_a_process_of_its_own(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_a_file_that_was_written_since_is_not_there_and_an_older_one_is(tmp_path):
    old = tmp_path / "old"
    new = tmp_path / "new"
    old.write_text("old")
    time_of_old = old.stat().st_mtime
    os.utime(old, (time_of_old - 60, time_of_old - 60))
    begun = time.time()
    in_a_process_of_its_own(lambda: new.write_text("new"))
    assert new.read_text() == "new"
    assert in_a_process_of_its_own(old.read_text, no_file_since=begun) == "old"
    for how in ("r", "r+", "a+"):
        with pytest.raises(Finding, match="FileNotFoundError"):
            in_a_process_of_its_own(lambda how=how: new.open(how).read(), no_file_since=begun)
    assert in_a_process_of_its_own(lambda: new.write_text("again"), no_file_since=begun) == 5
