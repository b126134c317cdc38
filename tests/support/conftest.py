"""What the tests of all rooms share: a loader that hangs is given up sooner than where a reader waits."""

import multiprocessing

import pytest


@pytest.fixture(autouse=True)
def _a_loader_that_hangs_is_given_up_soon(monkeypatch):
    monkeypatch.setattr("support.n01.on_processes.PATIENCE", 3.0)  # it is more where a right loader is slow now


@pytest.fixture(autouse=True)
def _no_worker_outlives_the_answer_that_began_it():
    """A wrong answer may hold its loader in a cycle: a later test that counts processes would find its workers."""
    yield
    for process in multiprocessing.active_children():
        process.terminate()
        process.join()
