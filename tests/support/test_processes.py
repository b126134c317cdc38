"""Tasks in processes leave a span each, and a process that dies is told."""

import os

import pytest

from support.processes import count, run_in_processes


@pytest.mark.costly
def test_every_task_leaves_a_span_in_its_processs_lane():
    trace = run_in_processes(count, processes=2, tasks=5)
    dealt = [("process 0", "0"), ("process 0", "2"), ("process 0", "4"), ("process 1", "1"), ("process 1", "3")]
    assert sorted((span.lane, span.label) for span in trace) == dealt


def test_a_process_that_dies_is_an_error():
    with pytest.raises(RuntimeError, match="process 0 .exit code"):
        run_in_processes(os.abort, processes=1, tasks=1)


def test_a_count_below_one_is_refused():
    with pytest.raises(ValueError, match="processes must be at least 1, not 0"):
        run_in_processes(count, processes=0)
