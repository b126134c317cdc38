"""Tasks that run in processes leave a span each, and a process that fails is reported."""

import os

import pytest
from support.runs import count, run_in_processes


def test_every_task_leaves_a_span_in_its_processs_lane():
    trace = run_in_processes(count, processes=2, tasks=5)
    assert sorted((span.lane, span.label) for span in trace) == [
        ("process 0", "0"),
        ("process 0", "2"),
        ("process 0", "4"),
        ("process 1", "1"),
        ("process 1", "3"),
    ]


def test_a_process_that_dies_is_an_error_not_a_wait():
    with pytest.raises(RuntimeError, match="process 0 .exit code"):
        run_in_processes(os.abort, processes=1, tasks=1)


def test_counts_below_one_are_refused():
    with pytest.raises(ValueError, match="processes must be at least 1, not 0"):
        run_in_processes(count, processes=0)
