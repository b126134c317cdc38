"""The clock, tasks and workers: who computes what, where, and in which modes."""

import sys
import threading
import time

import pytest
import torch

from lib.pipeline.pipeline import Pipeline, clock_cycles
from lib.pipeline.worker import Inline, Task, Workers, spawn_workers
from lib.runtime.device import CPUStream
from lib.runtime.microbatch import Batch
from tests.lib.models import Function
from tests.lib.refusal import refuses

CPU = torch.device("cpu")


class FakeDevice:
    """A device that is no CPU, so that its partitions share a worker by its identity."""

    type = "fake"
    index = None


# --- clock
def test_in_clock_k_run_the_pairs_whose_numbers_add_up_to_k():
    # all other sizes: tests/property/test_pipeline_properties.py
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
    assert ok
    assert same is done
    assert threads[0] is not threading.current_thread()
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
    one = FakeDevice()
    other = FakeDevice()
    workers = Workers([CPU, torch.device("cpu", 0), one, other, one])
    workers.stop()
    assert workers.in_queues[2] is workers.in_queues[4]
    assert len(set(workers.in_queues)) == 4
    workers.join()
    assert len(workers.threads) == 4
    assert not any(thread.is_alive() for thread in workers.threads)
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


@pytest.mark.parametrize("runner", [Inline, lambda: Workers([CPU] * 2)])
def test_answers_come_by_partition_from_workers_and_from_the_thread_that_asks_alike(runner):
    runner = runner()
    threads = []

    def compute():
        threads.append(threading.current_thread())
        return Batch(torch.ones(1))

    good = task(compute)
    runner.put(0, good)
    runner.put(1, task(lambda: 1 / 0))
    answers = runner.answers([0, 1])
    assert answers[0].ok
    assert answers[0].payload[0] is good
    assert answers[0].batch.tensor.item() == 1
    assert not answers[1].ok
    assert isinstance(answers[1].error, ZeroDivisionError)
    assert (threads == [threading.current_thread()]) == isinstance(runner, Inline)


def test_a_worker_that_has_ended_says_so():
    workers = Workers([CPU])
    workers.stop()
    (answer,) = workers.answers([0]).values()
    assert not answer.ok
    assert str(answer.error) == "a worker has ended"


def modes_seen():
    product = torch.ones(2, 2) @ torch.ones(2, 2)
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    return Batch(torch.tensor([*modes, product.dtype == torch.bfloat16]))


@pytest.mark.parametrize(
    "mode, expected",
    [
        (torch.enable_grad, [True, False, False, False]),
        (torch.no_grad, [False, False, False, False]),
        (torch.inference_mode, [False, True, False, False]),
        (lambda: torch.autocast("cpu", dtype=torch.bfloat16), [True, False, True, True]),
    ],
)
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
