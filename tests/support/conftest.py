"""What the tests of all rooms share: a loader that hangs is given up sooner than where a reader waits."""

import pytest


@pytest.fixture(autouse=True)
def _a_loader_that_hangs_is_given_up_soon(monkeypatch):
    monkeypatch.setattr("support.n01.on_processes.PATIENCE", 3.0)  # it is more where a right loader is slow now
