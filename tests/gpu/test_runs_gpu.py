"""What notebook 11 measures on a real GPU: copies and kernels overlap only on streams of their own."""

from support.n11.runs import measure_copies


def test_only_on_a_stream_of_their_own_copies_overlap_with_computing():
    one, own = measure_copies(False), measure_copies(True)
    assert one.overlap("copy", "compute") < 0.05 * one.makespan
    assert own.overlap("copy", "compute") > 0.2 * own.active("copy") and own.makespan < one.makespan
