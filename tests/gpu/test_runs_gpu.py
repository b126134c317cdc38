"""What notebooks 01 and 11 measure on a real GPU: copies and kernels overlap only on streams of their own."""

from support.n01.runs import measure_copies as measure_calls
from support.n11.runs import measure_copies


def test_from_pinned_memory_the_cpu_is_free_before_the_copy_is_done():
    (row,) = measure_calls((64,), repeats=5)
    assert row["pinned_call"] < 0.5 * row["pinned_done"]
    assert row["pinned_done"] < 1.2 * row["pageable_done"]


def test_only_on_a_stream_of_their_own_copies_overlap_with_computing():
    one, own = measure_copies(False), measure_copies(True)
    assert one.overlap("copy", "compute") < 0.05 * one.makespan
    assert own.overlap("copy", "compute") > 0.2 * own.active("copy") and own.makespan < one.makespan
