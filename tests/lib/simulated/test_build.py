"""The library is built once, appears whole or not at all, and where it can't be built one error says the way out."""

import os
import stat
import subprocess
import sys
import time

import pytest

from lib.simulated import build as module
from lib.simulated.build import BuildError, build_library, library_path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiler(folder, script):
    """Write a compiler that does what a shell script says; $target is the file that it shall write."""
    path = folder / "compiler"
    find = 'while [ $# -gt 0 ]; do [ "$1" = -o ] && target="$2"; shift; done\n'
    path.write_text(f"#!/bin/sh\n{find}{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_without_a_compiler_the_error_names_those_that_were_looked_for_and_how_to_get_one(cache, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match=r"looked for g\+\+, clang\+\+ and c\+\+.*apt-get install g\+\+"):
        build_library()


def test_a_compiler_that_is_named_and_not_there_is_named_in_the_error(cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="CXX=no-such-compiler, which is not there"):
        build_library()


def test_a_compiler_that_fails_is_told_with_its_error_and_leaves_no_library(cache, tmp_path, monkeypatch):
    script = 'echo half > "$target"; echo "simulated.cpp:1: error: no such thing" >&2; exit 1'
    monkeypatch.setenv("CXX", str(compiler(tmp_path, script)))
    with pytest.raises(BuildError, match="error: no such thing"):
        build_library()
    assert not library_path().exists()
    assert list(library_path().parent.iterdir()) == []


def test_a_compiler_that_says_nothing_is_told_by_how_it_ended(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(compiler(tmp_path, "exit 3")))
    with pytest.raises(BuildError, match="it ended with 3 and said nothing"):
        build_library()


def test_a_compiler_that_hangs_is_ended(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MINUTES", 0.002)
    monkeypatch.setenv("CXX", str(compiler(tmp_path, "exec sleep 60")))
    with pytest.raises(BuildError, match="did not end within"):
        build_library()


def test_a_cache_that_is_a_file_is_told_with_the_way_out(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler(tmp_path, 'echo whole > "$target"')))
    with pytest.raises(BuildError, match="set XDG_CACHE_HOME"):
        build_library()


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_cache_that_cannot_be_written_to_is_told_before_a_compiler_works(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self")  # where not even root can make a folder
    monkeypatch.setenv("CXX", str(compiler(tmp_path, f"touch {tmp_path}/called")))
    with pytest.raises(BuildError, match="stored in /proc/self/.*: set XDG_CACHE_HOME"):
        build_library()
    assert not (tmp_path / "called").exists()


@pytest.mark.skipif(sys.platform == "win32" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_without_the_right_to_write_is_told_too(cache, tmp_path, monkeypatch):
    library_path().parent.mkdir(parents=True)
    library_path().parent.chmod(0o500)
    monkeypatch.setenv("CXX", str(compiler(tmp_path, f"touch {tmp_path}/called")))
    with pytest.raises(BuildError, match="Permission denied.*set XDG_CACHE_HOME"):
        build_library()
    assert not (tmp_path / "called").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_a_full_disk_is_told_with_the_folders_that_need_room_and_leaves_nothing(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(compiler(tmp_path, 'echo half > "$target"; cat /proc/version > /dev/full || exit 1')))
    with pytest.raises(BuildError, match=r"no room to build .* 30 MB in .*cache.* XDG_CACHE_HOME and TMPDIR"):
        build_library()
    assert list(library_path().parent.iterdir()) == []


def test_on_windows_the_error_names_what_it_is_for(cache, monkeypatch):
    monkeypatch.setattr(module.sys, "platform", "win32")
    with pytest.raises(BuildError, match="for Linux and macOS"):
        build_library()


def test_it_is_built_once_and_says_so(cache, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CXX", str(compiler(tmp_path, f'echo . >> {tmp_path}/calls; echo whole > "$target"')))
    first = build_library()
    assert first.read_text() == "whole\n"
    assert "Building the simulated GPU with compiler" in capsys.readouterr().out
    assert build_library() == first
    assert (tmp_path / "calls").read_text() == ".\n"
    assert capsys.readouterr().out == ""


def two_at_once():
    code = "from lib.simulated.build import build_library; print(build_library().read_text())"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    return [process.communicate(timeout=120)[0].splitlines()[-1] for process in both]


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A compiler that takes longer than two processes differ in starting; return the file that has a line per call."""
    calls = tmp_path / "calls"
    script = f'echo . >> {calls}; printf whole > "$target"; sleep 2; printf " and built" >> "$target"'
    monkeypatch.setenv("CXX", str(compiler(tmp_path, script)))
    return calls


@pytest.mark.costly
def test_of_two_processes_at_once_one_builds_and_both_get_a_whole_library(cache, slow):
    assert two_at_once() == ["whole and built"] * 2
    assert slow.read_text() == ".\n"


@pytest.mark.costly
def test_where_folders_have_no_locks_two_processes_at_once_both_get_a_whole_library(cache, slow, tmp_path, monkeypatch):
    (tmp_path / "fcntl.py").write_text("LOCK_EX = 2\ndef flock(place, how):\n    raise OSError(95, 'not supported')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert two_at_once() == ["whole and built"] * 2


@pytest.mark.costly
def test_who_is_killed_while_building_keeps_nobody_waiting(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(compiler(tmp_path, 'echo whole > "$target"; exec sleep 60')))
    code = "from lib.simulated.build import build_library; build_library()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as process:
        while not library_path().parent.exists() or not any(path.stat().st_size for path in found_in(cache)):
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    monkeypatch.setenv("CXX", str(compiler(tmp_path, 'echo whole > "$target"')))
    assert build_library().read_text() == "whole\n"


def found_in(cache):
    return [path for path in cache.rglob("*.tmp") if path.is_file()]


def test_another_source_or_another_torch_is_another_library(cache, monkeypatch):
    here = library_path()
    monkeypatch.setattr(module.torch, "__version__", "9.9")
    assert library_path() != here
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(module, "FLAGS", (*module.FLAGS, "-O2"))
    assert library_path() != here


def test_importing_lib_neither_builds_nor_loads_it():
    code = "import sys, lib, lib.streams, lib.pipeline; print('lib.simulated' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
