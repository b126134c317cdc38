"""Streams, phonies, dependencies, copies, tasks and workers: the parts of which a run is made."""

import copy
import pickle
import sys
import threading
import time
import weakref

import pytest
import torch

from lib.pipeline.copy import Copy, Wait
from lib.pipeline.pipeline import Pipeline, clock_cycles
from lib.pipeline.worker import Task, Workers, spawn_workers
from lib.runtime import device as streams
from lib.runtime.dependency import Fork, Join, fork, fork_batch, get_phony, join, join_batch
from lib.runtime.device import CPUStream
from lib.runtime.microbatch import Batch
from tests.lib.models import Function, hooked
from tests.lib.refusal import refuses

CPU = torch.device("cpu")


class FakeDevice:
    """A device that is no CPU, so that its partitions share a worker by its identity."""

    type, index = "fake", None


# --- streams
def test_a_cpu_has_one_stream_that_stays_the_only_one_and_nothing_to_wait_for():
    assert streams.new_stream(CPU) is streams.current_stream(CPU) is streams.default_stream(CPU) is CPUStream
    assert pickle.loads(pickle.dumps(CPUStream)) is copy.deepcopy(CPUStream) is CPUStream
    assert streams.get_device(CPUStream) == CPU and not streams.is_cuda(CPUStream)
    with streams.use_device(CPU), streams.use_stream(CPUStream):
        streams.wait_stream(CPUStream, CPUStream)
        streams.record_stream(torch.zeros(1), CPUStream)


# --- phonies, fork, join
def test_a_phony_is_made_once_and_serves_autograd_in_inference_mode_and_fork_keeps_no_node_alive():
    get_phony.cache_clear()
    with torch.inference_mode():
        with_grad, without = (get_phony(CPU, requires_grad=flag) for flag in (True, False))
    assert with_grad.shape == without.shape == (0,) and with_grad.untyped_storage().nbytes() == 0
    assert without.untyped_storage().nbytes() == 0, "it holds no data"
    assert with_grad.requires_grad and not without.requires_grad and with_grad is get_phony(CPU, requires_grad=True)
    x = torch.ones(1, requires_grad=True)
    join(x, with_grad * 1).backward()
    assert x.grad.item() == 1

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, kept, x):
            ctx.kept = kept
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            ctx.kept.append(weakref.ref(ctx))
            return None, grad

    kept = []
    x, phony = Fork.apply(Kept.apply(kept, torch.ones(1, requires_grad=True)))
    x = Join.apply(x, phony)
    x.backward()
    del x, phony
    assert kept[0]() is None


@pytest.mark.parametrize("tied, expected", [(False, ["a", "b"]), (True, ["b", "a"])])
def test_backward_comes_to_what_is_before_a_fork_only_after_what_follows_its_join(tied, expected):
    log, leaf, other = [], torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    a = hooked(leaf, lambda _: log.append("a"))
    a.grad_fn._set_sequence_nr(1_000_000)  # autograd would take it first
    if tied:
        a, phony = fork(a)
        other = join(other, phony)
    b = hooked(other, lambda _: log.append("b"))
    (a + b).backward()
    assert log == expected


def test_fork_and_join_change_nothing_without_a_gradient_and_a_batch_is_tied_by_all_that_have_one():
    x, y = torch.ones(1), torch.ones(1, requires_grad=True)
    same, phony = fork(x)
    assert same is x and not phony.requires_grad and join(x, phony) is x
    _, phony = fork(y)
    assert phony.requires_grad and join(x, phony).requires_grad
    with torch.no_grad():
        assert fork(y)[0] is y and join(y, phony) is y and fork_batch(Batch(y)) is None
    mask, ids = torch.tensor([True]), torch.tensor([1])
    a, b = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    fixed = torch.ones(1)
    batch = Batch((mask, a, ids, b, fixed))
    phony = fork_batch(batch)
    assert batch[0] is mask and batch[2] is ids and batch[4] is fixed
    assert batch[1].grad_fn is batch[3].grad_fn and batch[1].grad_fn.name() == "ForkBackward"
    assert join_batch(batch, phony) and batch[3].grad_fn.name() == "JoinBackward"
    batch[3].backward()  # the loss uses only one of them
    assert b.grad.item() == 1 and a.grad is None
    assert fork_batch(Batch((mask, fixed))) is None and not join_batch(Batch((mask, fixed)), phony)


# --- copy and wait
def test_copy_and_wait_hand_on_values_and_gradients():
    a, b = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    x, y = Wait.apply(CPUStream, CPUStream, *Copy.apply(CPUStream, CPUStream, a, b))
    assert x.grad_fn is y.grad_fn
    (x * 3 + y).sum().backward()
    assert a.grad.tolist() == [3, 3, 3] and b.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize("function", [Copy, Wait])
def test_what_has_no_gradient_gets_none_on_the_way(function):
    x, fixed, ids, mask = torch.ones(2, requires_grad=True), torch.ones(2), torch.arange(2), torch.ones(2) > 0
    outputs = function.apply(CPUStream, CPUStream, x, fixed, ids, mask)
    assert [y.requires_grad for y in outputs] == [True, False, False, False]
    (outputs[0] * outputs[1] * outputs[3]).sum().backward()
    assert x.grad.tolist() == [1, 1]


# --- clock
def test_clock_cycles():  # all other sizes: tests/property/test_pipeline_properties.py
    assert list(clock_cycles(3, 2)) == [[(0, 0)], [(1, 0), (0, 1)], [(2, 0), (1, 1)], [(2, 1)]]


# --- tasks and workers
def task(compute, finalize=None):
    return Task(CPUStream, compute=compute, finalize=finalize)


def ask(in_queue, out_queue, compute):
    in_queue.put(task(compute))
    return out_queue.get(timeout=20)


def test_a_task_computes_in_a_worker_and_finalizes_with_the_caller():
    threads = []
    with spawn_workers([CPU]) as (in_queues, out_queues):
        note = lambda batch: threads.append((threading.current_thread(), batch))  # noqa: E731
        done = task(lambda: threads.append(threading.current_thread()) or Batch(torch.ones(1)), note)
        in_queues[0].put(done)
        ok, (same, batch) = out_queues[0].get(timeout=20)
    same.finalize(batch)
    assert ok and same is done and threads[0] is not threading.current_thread()
    assert threads[1] == (threading.current_thread(), batch)


@pytest.mark.parametrize("fails", [False, True])
def test_leaving_waits_for_running_tasks(fails):
    done = []
    try:
        with spawn_workers([CPU] * 5) as (in_queues, _):
            for in_queue in in_queues:
                in_queue.put(task(lambda: time.sleep(0.05) or done.append(1) or Batch(())))
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    assert len(done) == 5


def test_a_cpu_partition_has_a_worker_of_its_own_a_device_shares_one_and_none_ends_with_a_word(monkeypatch):
    one, other = FakeDevice(), FakeDevice()
    workers = Workers([CPU, torch.device("cpu", 0), one, other, one])
    workers.stop()
    assert workers.in_queues[2] is workers.in_queues[4] and len(set(workers.in_queues)) == 4
    workers.join()
    assert len(workers.threads) == 4 and not any(thread.is_alive() for thread in workers.threads)
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    Workers.__new__(Workers)
    assert told == []


def test_of_two_errors_in_a_clock_the_first_partitions_is_raised_also_where_partitions_share_a_queue():
    def fails(name, of):
        def layer(x):
            if x.item() == of:
                raise ValueError(name)
            return x

        return torch.nn.Sequential(Function(layer))

    one = FakeDevice()
    workers = Workers([one, one])
    batches = [Batch(torch.tensor([[float(i)]])) for i in range(2)]
    partitions = [fails("first", of=1), fails("second", of=0)]  # in clock 1
    try:
        refuses(ValueError, "first", Pipeline(batches, partitions).run, workers)
    finally:
        workers.stop()


def modes_seen():
    product = torch.ones(2, 2) @ torch.ones(2, 2)
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    return Batch(torch.tensor([*modes, product.dtype == torch.bfloat16]))


@pytest.mark.parametrize("mode, expected", [
    (torch.enable_grad, [True, False, False, False]), (torch.no_grad, [False, False, False, False]),
    (torch.inference_mode, [False, True, False, False]),
    (lambda: torch.autocast("cpu", dtype=torch.bfloat16), [True, False, True, True]),
])  # fmt: skip
def test_a_task_runs_in_the_modes_of_who_made_it_and_leaves_none_behind(mode, expected):
    with spawn_workers([CPU]) as (in_queues, out_queues):
        with mode():
            _, (_, batch) = ask(in_queues[0], out_queues[0], modes_seen)
        assert batch.tensor.tolist() == expected
        _, (_, batch) = ask(in_queues[0], out_queues[0], modes_seen)
        assert batch.tensor.tolist() == [True, False, False, False]


def test_a_worker_follows_set_num_threads():
    before = torch.get_num_threads()
    try:
        with spawn_workers([CPU]) as (in_queues, out_queues):
            for threads in (2, 1):
                torch.set_num_threads(threads)
                _, (_, batch) = ask(in_queues[0], out_queues[0], lambda: Batch(torch.tensor(torch.get_num_threads())))
                assert batch.tensor.item() == threads
    finally:
        torch.set_num_threads(before)
