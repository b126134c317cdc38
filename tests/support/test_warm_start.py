"""A warm process is a copy of a server that has imported torch: there at once, and without a past."""

import multiprocessing
import os
import sys

import pytest

from support.warm_start import start_warm

TOLD = "import builtins, os, sys; line.send((os.getppid(), 'torch' in sys.modules, hasattr(builtins, 'seen')))"
LEAVES_A_TRACE = f"{TOLD}; builtins.seen = True"


def started(text):
    here, there = multiprocessing.Pipe()
    process = start_warm(exec, text, {"line": there})
    there.close()
    assert here.poll(60)
    told = here.recv()
    process.join(60)
    assert process.exitcode == 0
    return told


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere such a process is a new one")
def test_two_warm_processes_are_copies_of_one_server_and_the_second_knows_nothing_of_the_first():
    first = started(LEAVES_A_TRACE)
    server, has_torch, trace = started(TOLD)
    assert server != os.getpid()
    assert first == (server, True, False)
    assert has_torch
    assert not trace


def test_the_environment_of_this_process_stays_as_it_was():
    before = dict(os.environ)
    started(TOLD)
    assert dict(os.environ) == before
