"""Busy neighbours are there within a `with`, keep all cores but one busy, and are gone behind it."""

import subprocess

from lib.machine import usable_cores
from support.n12 import neighbours


def test_neighbours_count_while_the_with_lasts_and_end_with_it(monkeypatch):
    started = []

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            started.append(self)

    monkeypatch.setattr(neighbours.subprocess, "Popen", Noted)
    with neighbours.busy_neighbours() as count:
        assert count == len(started) == max(1, usable_cores() - 1)
        assert all(neighbour.poll() is None for neighbour in started)
    assert all(neighbour.returncode for neighbour in started)
