"""One score for all ranks of notebook 03: which answers are exact, and what of a wrong one is told."""

import re
from functools import partial

import numpy
import pytest
import torch

from support.kit.mistakes import edited
from support.n03 import checks as n03
from support.n03.solved import exact_score


def by_gathering(ddp, loader, dist):
    """Right in another way: under no_grad from the start, counts in Python, gathered and not summed."""
    with torch.no_grad():
        for buffer in ddp.module.buffers():
            dist.broadcast(buffer, src=0)
        model = ddp.module.eval()
        right = 0
        images = 0
        for x, y in loader:
            right += int((model(x).argmax(dim=1) == y).sum())
            images += len(y)
        own = torch.tensor([float(right), float(images)], dtype=torch.float64)
        of_all = [torch.zeros(2, dtype=torch.float64) for _ in range(dist.get_world_size())]
        dist.all_gather(of_all, own)
    hits, count = torch.stack(of_all).sum(dim=0)
    return hits / count


@pytest.mark.costly
def test_a_score_that_is_gathered_passes_and_one_that_another_rank_gets_alone_does_not():
    assert n03.check_score(by_gathering)

    def rank_zero_only(ddp, loader, dist):
        score = exact_score(ddp, loader, dist)
        return score if dist.get_rank() == 0 else 0.0

    verdict = n03.check_score(rank_zero_only)
    assert "rank 1 says 0.000000" in verdict.message

    def nothing_but_on_rank_zero(ddp, loader, dist):
        score = exact_score(ddp, loader, dist)
        return score if dist.get_rank() == 0 else None

    assert "rank 1: your function returned None" in n03.check_score(nothing_but_on_rank_zero).message

    def in_words(ddp, loader, dist):
        return f"{exact_score(ddp, loader, dist):.2f}"

    assert "is no score" in n03.check_score(in_words).message

    def to_four_places(ddp, loader, dist):
        return round(exact_score(ddp, loader, dist), 4)

    assert "0.695652; rank 0 says 0.695700" in n03.check_score(to_four_places).message


@pytest.mark.costly
def test_a_score_that_says_no_sync_around_the_model_inside_is_right_and_around_the_wrapper_it_is_not():
    def score(ddp, loader, dist):
        with ddp.no_sync():
            return exact_score(ddp, loader, dist)

    assert n03.check_score(score)

    def of_a_wrapper_that_is_told_to_be_silent(ddp, loader, dist, name):
        for buffer in ddp.module.buffers():
            dist.broadcast(buffer, 0)
        setattr(ddp, name, False)
        counts = torch.zeros(2, dtype=torch.int64)
        with torch.no_grad():
            for x, y in loader:
                counts += torch.tensor([(ddp.eval()(x).argmax(1) == y).sum(), len(y)])
        dist.all_reduce(counts)
        return int(counts[0]) / int(counts[1])

    for name in ("require_forward_param_sync", "broadcast_buffers"):  # torch's own names
        assert n03.check_score(partial(of_a_wrapper_that_is_told_to_be_silent, name=name)), name

    def of_the_wrapper(ddp, loader, dist):
        counts = torch.zeros(2, dtype=torch.int64)
        with torch.no_grad(), ddp.eval().no_sync():
            for x, y in loader:
                counts += torch.tensor([(ddp(x).argmax(1) == y).sum(), len(y)])
        dist.all_reduce(counts)
        return int(counts[0]) / int(counts[1])

    assert "on 3 ranks with 1, 1, 0 batches" in n03.check_score(of_the_wrapper).message


def with_buffers_like(word):
    """Makes only some of the buffers equal."""

    def score(ddp, loader, dist):
        for name, buffer in ddp.module.named_buffers():
            if word in name:
                dist.broadcast(buffer, 0)
        return counted_as(torch.int64)(ddp, loader, dist)

    return score


def counted_as(kind, of_images=None):
    """Counts in types that may be too small; the buffers are as the caller has left them."""

    def score(ddp, loader, dist):
        counts = [torch.zeros((), dtype=kind), torch.zeros((), dtype=of_images or kind)]
        with torch.no_grad():
            model = ddp.module.eval()
            for x, y in loader:
                counts[0] += (model(x).argmax(1) == y).sum()
                counts[1] += len(y)
        for count in counts:
            dist.all_reduce(count)
        return float(counts[0]) / float(counts[1])

    return score


def with_all_buffers(score):
    def whole(ddp, loader, dist):
        for buffer in ddp.module.buffers():
            dist.broadcast(buffer, 0)
        return score(ddp, loader, dist)

    return whole


def sent_as(kind, gathered=False):
    """Counts in Python, and sends the hits in another type."""

    def score(ddp, loader, dist):
        for buffer in ddp.module.buffers():
            dist.broadcast(buffer, 0)
        model = ddp.module.eval()
        right = 0
        images = 0
        with torch.no_grad():
            for x, y in loader:
                right += int((model(x).argmax(1) == y).sum())
                images += len(y)
        counts = [torch.tensor(right, dtype=kind), torch.tensor(images)]
        for number, own in enumerate(counts):
            if gathered:
                of_all = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
                dist.all_gather(of_all, own)
                counts[number] = torch.stack(of_all).sum()
            else:
                dist.all_reduce(own)
        return int(counts[0]) / int(counts[1])

    return score


@pytest.mark.costly
@pytest.mark.parametrize("gathered", [False, True])
def test_counts_are_not_rounded_on_their_way(gathered):
    assert n03.check_score(sent_as(torch.float64, gathered))
    verdict = n03.check_score(sent_as(torch.float32, gathered))
    assert "as float32, which can't hold 16777217. The ranks' counts travel as a float of 32 bits" in verdict.message


@pytest.mark.costly
def test_whole_counts_that_travel_as_bfloat16_are_not_told_that_they_stop_growing():
    message = n03.check_score(sent_as(torch.bfloat16)).message
    assert "as bfloat16, which can't hold 257. The ranks' counts travel as a float of 32 bits or fewer" in message
    assert "stops growing" not in message


@pytest.mark.costly
def test_each_buffer_decides_and_a_count_that_runs_over_or_stops_growing_is_noticed():
    message = n03.check_score(with_buffers_like("running")).message
    assert "a model that adds a buffer of its own to its output" in message
    assert "A buffer beside the running averages is not rank 0's" in message
    assert "the running variances are not" in n03.check_score(with_buffers_like("mean")).message
    assert not n03.check_score(with_buffers_like("var"))
    for kind in (torch.uint8, torch.int16):
        assert "Your counts run over" in n03.check_score(with_all_buffers(counted_as(kind))).message
    for kinds in ((torch.float32, torch.int64), (torch.int64, torch.float32)):
        assert "A count of yours stops growing" in n03.check_score(with_all_buffers(counted_as(*kinds))).message
    assert "you say nan" in n03.check_score(with_all_buffers(counted_as(torch.float16))).message
    assert n03.check_score(with_all_buffers(counted_as(torch.int32)))


def with_count(count, kind=torch.int64):
    """Makes rank 0's buffers everybody's, and counts as `count(model, loader)` does: hits and images."""

    def score(ddp, loader, dist):
        for buffer in ddp.module.buffers():
            dist.broadcast(buffer, 0)
        ddp.eval()
        with torch.no_grad():
            counts = torch.tensor(count(ddp.module, loader), dtype=kind)
        dist.all_reduce(counts)
        return float(counts[0]) / float(counts[1])

    return score


def shares_times_lengths(kind):
    """A share is rounded: 1/107 of 107 images is not 1."""

    def counted(model, loader):
        each = [(float((model(x).argmax(1) == y).to(kind).mean() * len(y)), len(y)) for x, y in loader]
        return [sum(hits for hits, _ in each), sum(images for _, images in each)]

    return counted


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_count_that_is_no_whole_number_is_refused(kind):
    verdict = n03.check_score(with_count(shares_times_lengths(kind), torch.float64))
    assert "A quotient is rounded: add up whole counts" in verdict.message, verdict


def hits_and_misses_in_float32(model, loader):
    counts = torch.zeros(2)
    for x, y in loader:
        counts += torch.bincount((model(x).argmax(1) == y).long(), minlength=2)
    return [int(counts[1]), sum(map(int, counts))]


def misses_in_float32(model, loader):
    misses = torch.zeros(())
    images = 0
    for x, y in loader:
        misses += (model(x).argmax(1) != y).sum()
        images += len(y)
    return [images - int(misses), images]


@pytest.mark.costly
@pytest.mark.parametrize(
    "count", [hits_and_misses_in_float32, misses_in_float32, lambda *given: image_by_image(*given, kind=torch.float32)]
)
def test_whatever_is_counted_in_float32_stops_growing_though_whole_numbers_are_sent(count):
    verdict = n03.check_score(with_count(count))
    assert "A count of yours stops growing" in verdict.message, verdict


def batches_summed_in_bfloat16(model, loader):
    each = [((model(x).argmax(1) == y).bfloat16().sum(), len(y)) for x, y in loader]
    return [sum(int(hits) for hits, _ in each), sum(images for _, images in each)]


@pytest.mark.costly
def test_the_hits_of_a_batch_are_counted_exactly_too():
    assert not n03.check_score(with_count(batches_summed_in_bfloat16))


def parts_of_a_whole(ddp, loader, dist):
    """Sums right answers over all images: its counts are whole, and what it sums is not."""
    images = torch.tensor(sum(len(y) for _, y in loader))
    dist.all_reduce(images)
    return (
        with_count(lambda model, loader: [in_two_passes(model, loader)[0] / int(images), 0.5], torch.float64)(
            ddp, loader, dist
        )
        * dist.get_world_size()
        / 2
    )


def test_a_sum_of_quotients_is_told_nothing_of_lengths():
    verdict = n03.check_score(parts_of_a_whole)
    assert "which is no whole number. A quotient is rounded" in verdict.message, verdict


def in_inference_mode(ddp, loader, dist):
    """Right: what is made in inference mode can be sent outside of it, by gloo as by NCCL."""
    for buffer in ddp.module.buffers():
        dist.broadcast(buffer, 0)
    model = ddp.module.eval()
    right = images = torch.tensor(0)
    with torch.inference_mode():
        for x, y in loader:
            right = right + (model(x).argmax(1) == y).sum()
            images = images + len(y)
    images = images.clone()
    dist.all_reduce(right)
    dist.all_reduce(images)
    return float(right / images)


@pytest.mark.costly
def test_who_counts_in_inference_mode_is_right():
    assert n03.check_score(in_inference_mode), n03.check_score(in_inference_mode)


def sent_by_broadcast(ddp, loader, dist):
    """Each rank sends its counts to all, as float32."""
    for buffer in ddp.module.buffers():
        dist.broadcast(buffer, 0)
    ddp.eval()
    with torch.no_grad():
        own = torch.tensor(in_two_passes(ddp.module, loader))
    total = torch.zeros(2, dtype=torch.int64)
    for rank in range(dist.get_world_size()):
        counts = own.float()
        dist.broadcast(counts, rank)
        total += counts.long()
    return float(total[0]) / float(total[1])


@pytest.mark.costly
@pytest.mark.parametrize(
    "answer", [sent_by_broadcast, lambda *given: with_count(image_by_image, torch.float32)(*given)]
)
def test_counts_that_a_billion_images_would_round_are_refused_however_they_are_counted_and_sent(answer):
    verdict = n03.check_score(answer)
    assert "as float32, which can't hold 16777217. The ranks' counts travel as a float of 32 bits" in verdict.message


@pytest.mark.costly
def test_whatever_state_training_has_left_the_wrapper_in_the_buffers_are_sent():
    def sent_while_training(ddp, loader, dist):
        if ddp.training:
            for buffer in ddp.module.buffers():
                dist.broadcast(buffer, 0)
        return counted_as(torch.int64)(ddp, loader, dist)

    verdict = n03.check_score(sent_while_training)
    assert "left in eval()" in verdict.message
    assert "beside the running averages" not in verdict.message


def image_by_image(model, loader, kind=torch.int64):
    """Changes one tensor in place, by every image."""
    hits = torch.zeros((), dtype=kind)
    images = 0
    for x, y in loader:
        for hit in model(x).argmax(1) == y:
            hits += hit
            images += 1
    return [int(hits), images]


def in_python(model, loader):
    counts = [0, 0]
    for x, y in loader:
        for answer, label in zip(model(x).argmax(1).tolist(), y.tolist(), strict=True):
            counts[0] += answer == label
            counts[1] += 1
    return counts


def in_two_passes(model, loader):
    images = sum(len(y) for _, y in loader)
    return [sum(int((model(x).argmax(1) == y).sum()) for x, y in loader), images]


def a_number_for_each_batch(model, loader):
    each = [((model(x).argmax(1) == y).sum(), len(y)) for x, y in loader]
    return [int(sum(hits for hits, _ in each)), sum(images for _, images in each)]


def a_mark_for_each_image(model, loader):
    marks = [bool(hit) for x, y in loader for hit in model(x).argmax(1) == y]
    return [sum(marks), len(marks)]


def a_tensor_of_marks(model, loader):
    marks = torch.cat([torch.zeros(0, dtype=torch.bool)] + [model(x).argmax(1) == y for x, y in loader])
    return [int(marks.sum()), len(marks)]


def an_array_of_marks(model, loader):
    marks = numpy.zeros(0, dtype=bool)
    for x, y in loader:
        marks = numpy.concatenate([marks, (model(x).argmax(1) == y).numpy()])
    return [int(marks.sum()), len(marks)]


def bytes_of_marks(model, loader):
    marks = bytearray()
    for x, y in loader:
        marks.extend((model(x).argmax(1) == y).tolist())
    return [sum(marks), len(marks)]


def outputs_first(model, loader):
    outputs = [(model(x), y) for x, y in loader]
    return [sum(int((out.argmax(1) == y).sum()) for out, y in outputs), sum(len(y) for _, y in outputs)]


def the_whole_share(model, loader):
    return a_number_for_each_batch(model, list(loader))


@pytest.mark.costly
@pytest.mark.parametrize("count", [image_by_image, in_python, in_two_passes, a_number_for_each_batch])
def test_who_counts_and_keeps_nothing_of_an_image_is_right_however_he_counts(count):
    assert n03.check_score(with_count(count))


@pytest.mark.parametrize(
    "count",
    [a_mark_for_each_image, a_tensor_of_marks, an_array_of_marks, bytes_of_marks, outputs_first, the_whole_share],
)
def test_who_keeps_something_of_every_image_is_told_how_much(count):
    verdict = n03.check_score(with_count(count))
    assert re.search(r"on average (1 byte an image stays|\d+ bytes an image stay),", verdict.message), verdict
    assert "keep nothing of an image" in verdict.message


@pytest.mark.parametrize(
    "source", [lambda dist: dist.get_world_size() - 1, lambda dist: min(1, dist.get_world_size() - 1)]
)
def test_buffers_of_another_rank_are_not_taken_for_their_mean(source):
    def score(ddp, loader, dist):
        for buffer in ddp.module.buffers():
            dist.broadcast(buffer, source(dist))
        return counted_as(torch.int64)(ddp, loader, dist)

    verdict = n03.check_score(score)
    assert not verdict
    assert "mean of all ranks" not in verdict.message
    assert "on 5 of rank 1's 11 images" in verdict.message  # the counterexample, share by share


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


def test_who_evaluates_the_batch_normalisation_alone_leaves_dropout_to_chance():
    one_kind = "for layer in ddp.modules():\n        layer.train(not hasattr(layer, 'running_mean'))"
    assert n03.check_score(edited(exact_score, ("ddp.eval()", one_kind))).status == "wrong"
