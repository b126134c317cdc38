"""Schedulers of a clock that readers wrote who had not seen ours: shared queues, errors that count as false."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Empty, Queue

import pytest

from support.n09 import checks as n09
from support.n09.answers import asking_the_error, putting, take
from tests.support.n09.test_wrong_answers import spawn_with


def looking(tasks, in_queues, out_queues, once_for_each_queue):
    """Look into the queues of the partitions that wait, again and again, and return {partition: answer}."""
    for j, task in tasks.items():
        in_queues[j].put(task)
    answers = {}
    while len(answers) < len(tasks):
        looked_into = set()
        for j in [j for j in tasks if j not in answers]:
            if once_for_each_queue and id(out_queues[j]) in looked_into:
                continue
            looked_into.add(id(out_queues[j]))
            try:
                answers[j] = out_queues[j].get_nowait()
            except Empty:
                continue
    return answers


def ended(tasks, answers):
    for j in tasks:
        if not answers[j][0]:
            raise answers[j][1][1]
    for j, task in tasks.items():
        task.finalize(answers[j][1][1])
    return {j: answers[j][1][1] for j in tasks}


def clock_that_looks_for_each_partition(tasks, *queues):
    return ended(tasks, looking(tasks, *queues, once_for_each_queue=False))


def clock_that_looks_into_each_queue(tasks, *queues):
    return ended(tasks, looking(tasks, *queues, once_for_each_queue=True))


def clock_that_goes_backwards_and_asks_whose(tasks, in_queues, out_queues):
    for j, task in tasks.items():
        in_queues[j].put(task)
    answers = {j: out_queues[j].get() for j in reversed(tasks)}
    for j in tasks:
        if not answers[j][0]:
            raise answers[j][1][1]
    batches = {id(task): batch for _, (task, batch) in answers.values()}
    for task in tasks.values():
        task.finalize(batches[id(task)])
    return {j: batches[id(task)] for j, task in tasks.items()}


def clock_that_puts_and_takes_backwards(tasks, in_queues, out_queues):
    for j in reversed(tasks):
        in_queues[j].put(tasks[j])
    return ended(tasks, {j: out_queues[j].get() for j in reversed(tasks)})


def clock_with_error_or(tasks, in_queues, out_queues):
    for j, task in tasks.items():
        in_queues[j].put(task)
    error = None
    batches = {}
    for j in tasks:
        ok, payload = out_queues[j].get()
        if ok:
            batches[j] = payload[1]
        else:
            error = error or payload[1]
    if error is not None:
        raise error
    for j, task in tasks.items():
        task.finalize(batches[j])
    return batches


def by_worker(tasks, in_queues, out_queues):
    """Take the answers worker by worker, and return {partition: answer} in that order."""
    for j, task in tasks.items():
        in_queues[j].put(task)
    workers = {id(out_queues[j]): out_queues[j] for j in tasks}.values()
    return {j: out_queue.get() for out_queue in workers for j in tasks if out_queues[j] is out_queue}


def clock_that_finalizes_by_worker(tasks, *queues):
    answers = by_worker(tasks, *queues)
    for j in tasks:
        if not answers[j][0]:
            raise answers[j][1][1]
    for task, batch in (payload for _, payload in answers.values()):
        task.finalize(batch)
    return {j: payload[1] for j, (_, payload) in answers.items()}


def clock_that_raises_by_worker(tasks, *queues):
    answers = by_worker(tasks, *queues)
    for ok, payload in answers.values():
        if not ok:
            raise payload[1]
    return ended(tasks, answers)


def clock_in_the_order_of_a_set(tasks, *queues):
    partitions = {*tasks}
    return putting(take)({j: tasks[j] for j in partitions}, *queues)


def worker_with_false_for_no_batch(in_queue, out_queue):
    while (task := in_queue.get()) is not None:
        batch = False
        try:
            batch = task.compute()
        except BaseException:
            out_queue.put((False, sys.exc_info()))
        if batch is not False:
            out_queue.put((True, (task, batch)))
    out_queue.put((False, None))


def clock_without_tasks_that_count_as_false(tasks, in_queues, out_queues):
    tasks = {j: task for j, task in tasks.items() if task}
    for j, task in tasks.items():
        in_queues[j].put(task)
    return ended(tasks, {j: out_queues[j].get() for j in tasks})


def clock_without_a_gap(tasks, in_queues, out_queues):
    first = min(tasks)
    for task, in_queue in zip(tasks.values(), in_queues[first:], strict=False):
        in_queue.put(task)
    return ended(tasks, {j: queue.get() for j, queue in zip(tasks, out_queues[first:], strict=False)})


def clock_of_three_at_a_time(tasks, in_queues, out_queues):
    answers = {}
    for chunk in batched(tasks, 3):
        for j in chunk:
            in_queues[j].put(tasks[j])
        answers |= {j: out_queues[j].get() for j in chunk}
    return ended(tasks, answers)


def clock_that_runs_a_lone_task_itself(tasks, *queues):
    if len(tasks) > 1:
        return putting(take)(tasks, *queues)
    [(j, task)] = tasks.items()
    batch = task.compute()
    task.finalize(batch)
    return {j: batch}


def clock_that_puts_one_ahead(tasks, in_queues, out_queues):
    answers = {}
    waiting = []
    for j, task in tasks.items():
        in_queues[j].put(task)
        answers |= {k: out_queues[k].get() for k in waiting}
        waiting = [j]
    return ended(tasks, answers | {k: out_queues[k].get() for k in waiting})


def clock_that_computes_again(tasks, *queues):
    putting(take)(tasks, *queues)
    return {j: task.compute() for j, task in tasks.items()}


def clock_that_drains_with_a_limit(tasks, in_queues, out_queues):
    for j, task in tasks.items():
        in_queues[j].put(task)
    answers = {}
    failed = False
    for j in tasks:
        try:
            answers[j] = out_queues[j].get(timeout=1 if failed else None)
        except Empty:
            continue
        failed |= not answers[j][0]
    return ended(tasks, answers)


def clock_that_finalizes_elsewhere(tasks, *queues):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(putting(take), tasks, *queues).result()


def clock_that_counts(tasks, in_queues, out_queues):
    for j, task in tasks.items():
        in_queues[j].put(task)
    for out_queue in out_queues:
        while out_queue.qsize() < sum(out_queues[j] is out_queue for j in tasks):
            time.sleep(0.001)
    return ended(tasks, {j: out_queues[j].get_nowait() for j in tasks})


def batched(items, many):
    items = list(items)
    return [items[start : start + many] for start in range(0, len(items), many)]


@pytest.mark.parametrize(
    "check, answer, says",
    [
        (n09.check_run_clock, clock_that_finalizes_by_worker, "seen: finalized: task 0, task 3, task 1, task 10."),
        (n09.check_run_clock, clock_that_raises_by_worker, "of task 1; seen: raised the RuntimeError of task 3"),
        (n09.check_run_clock, clock_in_the_order_of_a_set, "seen: finalized: task 0, task 1, task 10, task 3."),
        (n09.check_worker, worker_with_false_for_no_batch, "its batch; seen: no answer to task 3"),
        (n09.check_run_clock, clock_without_tasks_that_count_as_false, "seen: returned {1: 'batch of task 1'"),
        (n09.check_run_clock, clock_without_a_gap, "computed by their own worker: 3; seen: tasks computed by their"),
        (n09.check_run_clock, clock_of_three_at_a_time, "computed together; seen: not all computed together"),
        (n09.check_run_clock, clock_that_looks_for_each_partition, "all partitions share a queue. Expected: returned"),
        (
            n09.check_run_clock,
            clock_that_goes_backwards_and_asks_whose,
            "share a queue. Expected: raised the SystemExit of task 0; seen: raised the RuntimeError of task 1",
        ),
        (n09.check_run_clock, clock_that_drains_with_a_limit, "ValueError, late. Expected: answers left: 0; seen: "),
        (n09.check_run_clock, clock_that_finalizes_elsewhere, "seen: finalized: task 0 in another thread, task 1 in"),
        (n09.check_run_clock, clock_with_error_or, "An error may count as false"),
        (n09.check_worker, asking_the_error, "An error may count as false"),
        (
            n09.check_spawn_workers,
            partial(spawn_with, in_queue=Queue, out_queue=partial(Queue, 64)),
            "and room for every answer",
        ),
    ],
)
def test_a_wrong_answer_is_refused_with_a_true_sentence(check, answer, says, monkeypatch):
    monkeypatch.setattr(n09, "PATIENCE", 0.6)
    verdict = check(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize(
    "answer", [clock_that_looks_into_each_queue, clock_that_puts_and_takes_backwards, clock_that_counts]
)
def test_a_right_answer_passes(answer, monkeypatch):
    monkeypatch.setattr(n09, "PATIENCE", 10.0)
    verdict = n09.check_run_clock(answer)
    assert verdict.status == "right", verdict
