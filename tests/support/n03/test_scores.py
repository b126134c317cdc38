"""One score for all ranks of notebook 03: which answers are exact, and what of a wrong one is told."""

import torch

from support.n03 import checks as n03
from support.n03 import scores
from support.n03.solved import exact_score


def by_gathering(ddp, loader, dist):
    """Right in another way: under no_grad from the start, counts gathered and not summed, averages sent as one."""
    with torch.no_grad():
        for buffer in ddp.module.buffers():
            dist.broadcast(buffer, src=0)
        model = ddp.module.eval()
        right = [bool(hit) for x, y in loader for hit in model(x).argmax(dim=1) == y]
        own = torch.tensor([float(sum(right)), float(len(right))])
        of_all = [torch.zeros(2) for _ in range(dist.get_world_size())]
        dist.all_gather(of_all, own)
    hits, count = torch.stack(of_all).sum(dim=0)
    return hits / count


def test_a_score_that_is_gathered_passes_and_one_that_another_rank_gets_alone_does_not():
    assert n03.check_score(by_gathering)

    def rank_zero_only(ddp, loader, dist):
        score = exact_score(ddp, loader, dist)
        return score if dist.get_rank() == 0 else 0.0

    verdict = n03.check_score(rank_zero_only)
    assert "rank 1 says 0.0000" in verdict.message

    def in_words(ddp, loader, dist):
        return f"{exact_score(ddp, loader, dist):.2f}"

    assert "is no score" in n03.check_score(in_words).message


def with_buffers_like(word):
    """Makes only some of the buffers equal."""

    def score(ddp, loader, dist):
        for name, buffer in ddp.module.named_buffers():
            if word in name:
                dist.broadcast(buffer, 0)
        return counted_as(torch.int64)(ddp, loader, dist)

    return score


def counted_as(kind):
    """Counts in a type that may be too small; the buffers are as the caller has left them."""

    def score(ddp, loader, dist):
        counts = torch.zeros(2, dtype=kind)
        with torch.no_grad():
            model = ddp.module.eval()
            for x, y in loader:
                counts[0] += (model(x).argmax(1) == y).sum()
                counts[1] += len(y)
        dist.all_reduce(counts)
        return float(counts[0]) / float(counts[1])

    return score


def with_all_buffers(score):
    def whole(ddp, loader, dist):
        for buffer in ddp.module.buffers():
            dist.broadcast(buffer, 0)
        return score(ddp, loader, dist)

    return whole


def test_each_buffer_decides_and_a_count_that_runs_over_is_noticed():
    assert n03.check_score(with_buffers_like("running"))  # the third counts batches: no answer depends on it
    assert "the running variances are not" in n03.check_score(with_buffers_like("mean")).message
    assert not n03.check_score(with_buffers_like("var"))
    for kind in (torch.uint8, torch.int16, torch.float16, torch.bfloat16):
        assert "do not fit into their type" in n03.check_score(with_all_buffers(counted_as(kind))).message
    for kind in (torch.int32, torch.float32, torch.float64):
        assert n03.check_score(with_all_buffers(counted_as(kind)))
    assert max(size for size, *_ in scores.SCORED) > 2**16


def with_gradients(ddp, loader, dist):
    ddp.eval()
    for x, _ in loader:
        ddp(x)
    counts = torch.ones(2)
    dist.all_reduce(counts)
    return counts[0] / counts[1]


def test_a_rank_that_waits_for_others_in_vain_is_told_who_waits_where():
    verdict = n03.check_score(with_gradients)
    assert "on 2 ranks with 12, 11 batches" in verdict.message
    assert "broadcast" in verdict.message
    assert "all_reduce" in verdict.message
