"""What tests do in a process of their own."""

import multiprocessing
import os

import pytest

FORK = multiprocessing.get_context("fork") if hasattr(os, "fork") else None
needs_fork = pytest.mark.skipif(FORK is None, reason="needs fork, which this system does not have")


def in_fork(task):
    """Run `task` in a forked process and return what it returns, or its error as text."""

    def run(end):
        try:
            end.send(task())
        except BaseException as error:
            end.send(f"{type(error).__name__}: {error}")

    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=run, args=(theirs,))
    process.start()
    try:
        assert ours.poll(60), "the process hangs"
        return ours.recv()
    finally:
        process.join(10)
        process.kill()
