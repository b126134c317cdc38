"""Deferred batch norm: after a mini-batch in pieces, the running statistics of nn.BatchNorm after the whole of it."""

import copy
import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from lib.pipeline import DeferredBatchNorm, GPipe, convert_deferred_batch_norm
from lib.pipeline.batchnorm import mini_batch
from lib.pipeline.checkpoint import checkpoint
from tests.lib.models import Function
from tests.lib.refusal import refuses

SHAPES = {nn.BatchNorm1d: (3,), nn.BatchNorm2d: (3, 4, 2), nn.BatchNorm3d: (3, 2, 2, 2)}


def rows(count, *shape, mean=0.0, std=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *(shape or (3,)), generator=generator) * std + mean


def pair(kind=nn.BatchNorm1d, chunks=4, **arguments):
    """Return a BatchNorm and its deferred twin."""
    norm = kind(3, **arguments)
    return norm, convert_deferred_batch_norm(copy.deepcopy(norm), chunks)


def feed(deferred, batch, sizes):
    return torch.cat([deferred(part) for part in batch.split(sizes)])


def assert_same_statistics(norm, deferred, **tolerance):
    theirs = norm.state_dict()
    ours = deferred.state_dict()
    assert list(ours) == list(theirs)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], **tolerance)


def assert_alike(norm, deferred, batch, size, **tolerance):
    """Give the batch to one as a whole and to the other in pieces: the same statistics. Returns both outputs."""
    outputs = norm(batch), feed(deferred, batch, size)
    assert_same_statistics(norm, deferred, **tolerance)
    return outputs


def test_it_takes_what_one_of_torchs_batch_norms_takes_and_no_other_shape():
    deferred = DeferredBatchNorm(3)
    for dimensions in (2, 3, 4, 5):
        x = rows(2, 3, *[1] * (dimensions - 2))
        assert deferred(x).shape == x.shape
    for wrong in (torch.ones(3), torch.ones(2, 3, 1, 1, 1, 1)):
        words = f"expected \\(batch, channel, …\\) of 2 to 5 dimensions, got {re.escape(str(tuple(wrong.shape)))}"
        refuses(ValueError, words, deferred, wrong)


# --- equal to the whole batch
@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
@pytest.mark.parametrize("kind", SHAPES)
def test_three_mini_batches_count_as_three(kind, momentum):
    # torchgpipe takes the biased variance: with 8 values a channel its running_var is an eighth too small a step.
    norm, deferred = pair(kind, momentum=momentum)
    for seed in range(3):
        assert_alike(norm, deferred, rows(8, *SHAPES[kind], mean=2.0, std=3.0, seed=seed), 2)
    assert deferred.num_batches_tracked == 3


def test_each_micro_batch_is_normalised_by_itself_and_the_gradients_are_those_of_the_parts():
    norm, deferred = pair()
    batch = rows(8)
    torch.testing.assert_close(feed(deferred, batch, 2), torch.cat([norm(part) for part in batch.split(2)]))
    norm.eval(), deferred.load_state_dict(norm.state_dict()), deferred.eval()
    assert torch.equal(feed(deferred, batch, 2), norm(batch))
    norm, deferred = pair(nn.BatchNorm2d)
    inputs = [rows(8, 3, 4, 2).requires_grad_() for _ in range(2)]
    weight = rows(8, 3, 4, 2, seed=1)
    for each, batch in zip((norm, deferred), inputs, strict=True):
        (feed(each, batch, 2) * weight).sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    torch.testing.assert_close(deferred.weight.grad, norm.weight.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_an_input_of_another_type_is_normalised_as_torch_does(dtype):
    norm, deferred = pair(nn.BatchNorm2d)
    if dtype == torch.float64:
        norm = norm.double()
        deferred = deferred.double()
    outputs = assert_alike(norm, deferred, rows(8, 3, 4, 2, mean=3.0).to(dtype), 2)
    assert outputs[0].dtype == outputs[1].dtype == dtype


def test_a_model_in_half_precision_and_one_without_affine_parameters():
    norm, deferred = pair(nn.BatchNorm2d)
    batch = rows(8, 3, 4, 2, mean=3.0).bfloat16()
    assert_alike(norm.bfloat16(), deferred.bfloat16(), batch, 2, rtol=2**-6, atol=0)
    assert_alike(*pair(affine=False), rows(8), 2)


# --- where a mini-batch begins and ends
def test_alone_it_counts_to_chunks_and_a_commit_of_nothing_is_nothing():
    _, deferred = pair(chunks=4)
    feed(deferred, rows(6), 2)
    assert deferred.num_batches_tracked == 0
    torch.testing.assert_close(deferred.sum, rows(6).sum(0))
    deferred(rows(2))
    assert deferred.num_batches_tracked == 1
    assert not deferred.sum.any()
    alone = DeferredBatchNorm(3)
    alone(rows(2))
    assert alone.chunks == alone.num_batches_tracked == 1 == convert_deferred_batch_norm(nn.BatchNorm1d(3)).chunks
    _, deferred = pair()
    before = copy.deepcopy(deferred.state_dict())
    deferred.commit()
    with mini_batch(deferred):
        deferred.eval()(rows(2))
    assert all(torch.equal(before[name], value) for name, value in deferred.state_dict().items())


def test_a_recomputed_micro_batch_is_not_counted_again_nor_a_gpipe_in_a_recomputed_partition():
    norm, deferred = pair(chunks=1)
    batch = rows(8)
    norm(batch)
    checkpoint(deferred, batch.clone().requires_grad_()).sum().backward()
    assert_same_statistics(norm, deferred)
    assert not deferred.sum.any()
    inner = GPipe(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)), [1, 1], devices=["cpu"] * 2, chunks=2)
    arguments = dict(devices=["cpu"] * 2, chunks=2, checkpoint="always", deferred_batch_norm=True)
    model = GPipe(nn.Sequential(nn.Linear(3, 3), inner), [1, 1], **arguments)
    model(rows(8)).sum().backward()
    assert model[1][0].num_batches_tracked == 2, "one for each of the outer micro-batches"


@pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])
@pytest.mark.parametrize("size, chunks", [(8, 4), (6, 3), (7, 4), (5, 2), (6, 8)])
def test_in_a_gpipe_any_batch_counts_once(size, chunks, checkpoint):
    # Each row gives six values a channel: a micro-batch of one row is a batch as well.
    plain = nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Upsample(scale_factor=6.0), nn.BatchNorm1d(3))
    arguments = dict(chunks=chunks, checkpoint=checkpoint, deferred_batch_norm=True)
    model = GPipe(copy.deepcopy(plain), [1, 2], devices=["cpu"] * 2, **arguments)
    batch = rows(size)
    for _ in range(2):
        plain(batch)
        model(batch.clone().requires_grad_()).square().sum().backward()
    assert_same_statistics(plain, model.to_sequential())


def test_each_thread_that_uses_a_gpipe_has_mini_batches_of_its_own_and_alone_it_counts_right_too():
    norm = nn.BatchNorm1d(3, momentum=None)
    batch = rows(8, mean=5.0)
    parts = nn.Sequential(convert_deferred_batch_norm(copy.deepcopy(norm)), nn.Identity())
    model = GPipe(parts, [1, 1], devices=["cpu"] * 2, chunks=4, deferred_batch_norm=True)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [model(batch) for _ in range(8)], range(4)))
    for _ in range(32):
        norm(batch)
    assert_same_statistics(norm, model[0], rtol=1e-4, atol=1e-5)

    class Slow(list):
        def append(self, value):
            super().append(value)
            time.sleep(1e-4)  # here another thread would come in

    _, deferred = pair(chunks=2)
    batch = rows(2)
    deferred._own = Slow()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [deferred(batch) for _ in range(100)], range(4)))
    assert deferred.num_batches_tracked == 200
    assert not deferred.sum.any()


def test_an_error_in_a_gpipe_leaves_no_trace_in_the_next_mini_batch():
    # torchgpipe keeps the sums of the failed mini-batch and counts on from there.
    def fails_once(x):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("once")
        return x

    norm = nn.BatchNorm1d(3)
    batch = rows(8)
    calls = []
    parts = nn.Sequential(copy.deepcopy(norm), Function(fails_once))
    model = GPipe(parts, [1, 1], devices=["cpu"] * 2, chunks=4, deferred_batch_norm=True)
    refuses(ValueError, "once", model, rows(8, mean=1e6))
    assert model[0].num_batches_tracked == 0
    norm(batch), model(batch)
    assert_same_statistics(norm, model[0])


# --- conversion
def test_state_goes_both_ways_and_conversion_keeps_the_objects_and_the_mode():
    # torchgpipe adds `sum` and `sum_squares`: nn.BatchNorm then refuses the state.
    norm, deferred = pair()
    feed(deferred, rows(8), 2)
    norm.load_state_dict(deferred.state_dict())
    DeferredBatchNorm(3, chunks=2).load_state_dict(norm.state_dict())
    assert_same_statistics(norm, deferred)
    # torchgpipe puts a frozen BatchNorm back into training.
    norm = nn.BatchNorm2d(3, eps=0.5, momentum=None).eval()
    calls = []
    norm.register_forward_hook(lambda *_: calls.append(1))
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(norm))
    assert convert_deferred_batch_norm(model, 3) is model
    deferred = model[1][0]
    assert type(deferred) is DeferredBatchNorm
    assert deferred.weight is norm.weight
    assert deferred.running_var is norm.running_var
    assert (deferred.eps, deferred.momentum, deferred.chunks, deferred.training) == (0.5, None, 3, False)
    deferred(rows(2, 3, 4, 2))
    assert calls == [1]
    assert convert_deferred_batch_norm(deferred, 3) is deferred
    assert convert_deferred_batch_norm(deferred, 4) is not deferred


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: convert_deferred_batch_norm(nn.Sequential(nn.SyncBatchNorm(3)), 4), TypeError, "can't be deferred"),
        (lambda: convert_deferred_batch_norm(nn.Sequential(nn.LazyBatchNorm1d()), 4), TypeError, "can't be deferred"),
        (lambda: DeferredBatchNorm(3, chunks=0), ValueError, "chunks must be at least 1, not 0"),
        (lambda: DeferredBatchNorm(3)(torch.zeros(3)), ValueError, r"2 to 5 dimensions, got \(3,\)"),
        (lambda: DeferredBatchNorm(3)(torch.zeros(1, 3)), ValueError, "more than 1 value per channel"),
    ],
)
def test_a_norm_that_can_not_be_deferred_is_refused(make, error, words):
    refuses(error, words, make)
    untracked = nn.BatchNorm1d(3, track_running_stats=False)
    assert convert_deferred_batch_norm(untracked, 4) is untracked


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_in_mid_batch_goes_on_by_itself(clone):
    norm, deferred = pair(chunks=4)
    batch = rows(8)
    norm(batch)
    feed(deferred, batch[:4], 2)
    again = clone(deferred)
    feed(again, batch[4:], 2)
    assert_same_statistics(norm, again)
    assert deferred.num_batches_tracked == 0
