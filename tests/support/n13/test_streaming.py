"""Exercise 4 of notebook 13: outputs in turn, a wait for all streams, and waits in a stream that does nothing."""

import pytest

from support.kit.mistakes import edited
from support.n13 import checks as n13


def in_lists(gpu, stage, chunks, results):
    """Keep outputs by number; each loses its name before the next takes its place."""
    into = gpu.new_stream("in")
    compute = gpu.current_stream()
    out = gpu.new_stream("out")
    with gpu.use_stream(into):
        buffers = [gpu.empty_like(chunks[0]) for _ in range(2)]
    outputs = [None] * 2
    computed = []
    fetched = []
    for i, x in enumerate(chunks):
        k = i % len(outputs)
        if i >= 2:
            into.wait_event(computed[i - 2])
        with gpu.use_stream(into):
            buffers[i % 2].copy_(x, non_blocking=True)
        compute.wait_event(into.record_event())
        if i >= len(outputs):
            compute.wait_event(fetched[i - len(outputs)])
        outputs[k] = None
        outputs[k] = stage(buffers[i % 2])
        computed.append(compute.record_event())
        out.wait_event(computed[i])
        with gpu.use_stream(out):
            results[i].copy_(outputs[k], non_blocking=True)
        fetched.append(out.record_event())
    out.synchronize()


def test_the_host_may_wait_for_all_streams_in_one_call():
    for right in (in_lists, edited(in_lists, ("    out.synchronize()", "    gpu.synchronize()"))):
        verdict = n13.check_streamed(right)
        assert verdict.status == "right", verdict.message


@pytest.mark.parametrize(
    "says, edits",
    [
        ("2 blocks of device memory are in use for inputs, 3 for outputs", [("[None] * 2", "[None] * 3")]),
        ("An output that still has a name when the next is made", [("        outputs[k] = None\n", "")]),
        (
            "Stream compute 2 is told to wait, and nothing is ever launched there: stage runs in compute",
            [("gpu.current_stream()", 'gpu.new_stream("compute")')],
        ),
        (
            "the host waits 2 times",
            [("    out.synchronize()", "    out.synchronize()\n    gpu.synchronize()")],
        ),
    ],
)
def test_a_loop_with_a_third_output_or_a_stream_that_does_nothing_is_told_so(says, edits):
    verdict = n13.check_streamed(edited(in_lists, *edits))
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message
