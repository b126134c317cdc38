"""Copies to a real GPU: the call from pinned memory returns before the copy is done."""

from support.n01.runs import measure_copies


def test_from_pinned_memory_the_cpu_is_free_before_the_copy_is_done():
    (row,) = measure_copies((64,), repeats=5)
    assert row["pinned_call"] < 0.5 * row["pinned_done"]
    assert row["pinned_done"] < 1.2 * row["pageable_done"]
