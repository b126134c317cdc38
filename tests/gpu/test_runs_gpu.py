"""What notebooks 09 and 11 measure on a real GPU: copies and kernels overlap only on streams of their own."""

from support.n09.runs import measure_streams
from support.n11.runs import measure_copies


def test_only_on_a_stream_of_their_own_copies_overlap_with_computing():
    one, own = measure_copies(False), measure_copies(True)
    assert one.overlap("copy", "compute") < 0.05 * one.makespan
    assert own.overlap("copy", "compute") > 0.2 * own.active("copy") and own.makespan < one.makespan


def test_kernels_of_two_streams_overlap_and_of_one_do_not():
    one, two = measure_streams(1), measure_streams(2)
    assert all(a.end <= b.start for a, b in zip(one.spans, one.spans[1:], strict=False))
    assert two.makespan < 0.75 * one.makespan
