"""On a real GPU: kernels in one stream run one after the other, in two streams side by side."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and torch sees none here"),
]


def test_two_streams_overlap_and_one_does_not():
    from support.n09.runs import measure_streams

    one, two = measure_streams(1), measure_streams(2)
    assert all(a.end <= b.start for a, b in zip(one.spans, one.spans[1:], strict=False))
    assert two.makespan < 0.75 * one.makespan
