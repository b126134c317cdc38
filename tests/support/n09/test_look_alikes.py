"""Wrong answers of notebook 09 that look like a famous one from outside: none is told that one's sentence."""

import copy
import sys
import traceback
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

import pytest

from support.built import Task, clock_cycles, run_clock
from support.built import worker as serve
from support.n09 import checks as n09
from support.n09.answers import worker_that
from tests.support.n09.test_other_clocks import (
    clock_that_computes_again,
    clock_that_puts_one_ahead,
    clock_that_runs_a_lone_task_itself,
)
from tests.support.n09.test_wrong_answers import answers_of, spawn_with


def worker_that_says_last(in_queue, out_queue, last_word):
    worker_that(done=0)(in_queue, out_queue)
    out_queue.put(last_word)


def worker_that_leaves_an_empty_queue(in_queue, out_queue):
    task = in_queue.get()
    while task is not None:
        try:
            out_queue.put((True, (task, task.compute())))
        except BaseException:
            out_queue.put((False, sys.exc_info()))
        task = None if in_queue.empty() else in_queue.get()
    out_queue.put((False, None))


def worker_that_asks_for_none_behind_a_task(in_queue, out_queue):
    task = in_queue.get()
    while True:
        try:
            out_queue.put((True, (task, task.compute())))
        except BaseException:
            out_queue.put((False, sys.exc_info()))
        task = in_queue.get()
        if task is None:
            break
    out_queue.put((False, None))


def worker_that_takes_a_layers_empty_for_its_own(in_queue, out_queue):
    while True:
        try:
            task = in_queue.get(timeout=0.2)
            if task is None:
                break
            out_queue.put((True, (task, task.compute())))
        except Empty:
            continue
        except BaseException:
            out_queue.put((False, sys.exc_info()))
    out_queue.put((False, None))


def in_words():
    return (*sys.exc_info()[:2], traceback.format_exc())


@contextmanager
def spawn_that_hands_out(devices, make):
    with spawn_with(devices, SimpleQueue, SimpleQueue) as queues:
        yield make(*queues)


@contextmanager
def spawn_for_the_last_pair(devices):
    in_queues = [SimpleQueue() for _ in devices]
    out_queues = [SimpleQueue() for _ in devices]
    threads = [Thread(target=serve, args=(in_queues[-1], out_queues[-1]), daemon=True) for _ in devices]
    for thread in threads:
        thread.start()
    try:
        yield in_queues, out_queues
    finally:
        for in_queue in in_queues:
            in_queue.put(None)
        for thread in threads:
            thread.join()


def clock_that_finalizes_with_the_number(tasks, *queues):
    answers = answers_of(tasks, *queues)
    for ok, payload in answers.values():
        if not ok:
            raise payload[1]
    for j, task in tasks.items():
        task.finalize(j)
    return {j: payload[1] for j, (_, payload) in answers.items()}


def clock_that_sends_the_workers_home(tasks, in_queues, out_queues):
    answers = answers_of(tasks, in_queues, out_queues)
    for j in tasks:
        in_queues[j].put(None)
    for ok, payload in answers.values():
        if not ok:
            raise payload[1]
    for task, batch in (payload for _, payload in answers.values()):
        task.finalize(batch)
    return {j: payload[1] for j, (_, payload) in answers.items()}


def worker_that_breaks(in_queue, out_queue):
    while (task := in_queue.get()) is not None:
        try:
            out_queue.put((True, (task, task.compute())))
        except BaseException:
            break
    out_queue.put((False, None))


def worker_that_copies_tasks(in_queue, out_queue):
    while (task := in_queue.get()) is not None:
        task = copy.copy(task)
        out_queue.put((True, (task, task.compute())))
    out_queue.put((False, None))


def worker_that_puts_errors_back(in_queue, out_queue):
    while (task := in_queue.get()) is not None:
        try:
            out_queue.put((True, (task, task.compute())))
        except BaseException:
            in_queue.put((False, sys.exc_info()))
    out_queue.put((False, None))


def worker_with_flags_of_its_own(in_queue, out_queue):
    while (task := in_queue.get()) is not None:
        out_queue.put(("done", (task, task.compute())))
    out_queue.put((False, None))


def worker_whose_answers_are(in_queue, out_queue, made):
    while (task := in_queue.get()) is not None:
        try:
            out_queue.put(made((True, (task, task.compute()))))
        except BaseException:
            out_queue.put(made((False, sys.exc_info())))
    out_queue.put((False, None))


def with_a_list(answer):
    return answer[0], list(answer[1])


def with_a_list_for_an_error(answer):
    return answer if answer[0] else with_a_list(answer)


@contextmanager
def spawn_that_looks_at_all(devices):
    shared = any(device.type != "cpu" for device in devices)
    keys = [(d.type, d.index or 0) if shared else j for j, d in enumerate(devices)]
    made = {key: (SimpleQueue(), SimpleQueue()) for key in keys}
    threads = [Thread(target=serve, args=pair, daemon=True) for pair in made.values()]
    for thread in threads:
        thread.start()
    try:
        yield [made[key][0] for key in keys], [made[key][1] for key in keys]
    finally:
        for in_queue, _ in made.values():
            in_queue.put(None)
        for thread in threads:
            thread.join()


@contextmanager
def spawn_with_queues_that_nobody_knows(devices):
    known = [(SimpleQueue(), SimpleQueue()) for _ in devices]
    others = [(SimpleQueue(), SimpleQueue()) for _ in devices]
    threads = [Thread(target=serve, args=pair, daemon=True) for pair in others]
    for thread in threads:
        thread.start()
    yield [pair[0] for pair in known], [pair[1] for pair in known]
    for pair in known:
        pair[0].put(None)
    for thread in threads:
        thread.join()


def plan_of_last_pairs(compute, batches, n, in_queues, out_queues):
    values = list(batches)
    for clock in clock_cycles(len(batches), n):
        for i, j in clock:
            task = Task(None, compute=partial(compute, values[i], i, j))
        done = run_clock({j: task for _, j in clock}, in_queues, out_queues)
        for i, j in clock:
            values[i] = done[j]
    return values


def one_for_all():
    queue = SimpleQueue()
    return lambda: queue


@pytest.mark.parametrize(
    "check, answer, says",
    [
        (
            n09.check_worker,
            partial(worker_that_says_last, last_word=(True, None)),
            "seen: last answer (True, None).",
        ),
        (n09.check_worker, partial(worker_that_says_last, last_word=None), "seen: last answer None."),
        (
            n09.check_worker,
            partial(worker_that_says_last, last_word=[False, None]),
            "seen: last answer [False, None].",
        ),
        (n09.check_worker, worker_that_leaves_an_empty_queue, "gone after its first answer: only None ends it."),
        (
            n09.check_worker,
            worker_that_asks_for_none_behind_a_task,
            "tasks that do this: nothing, only None comes. Expected: last answer (False, None); "
            "seen: still running after None.",
        ),
        (
            n09.check_worker,
            worker_that_takes_a_layers_empty_for_its_own,
            "and returns False. Expected: False, its Empty; seen: no answer to task 2.",
        ),
        (n09.check_worker, worker_that_breaks, "seen: the last answer, (False, None), although tasks are left."),
        (n09.check_worker, worker_that_copies_tasks, "seen: True, a copy of task 0 and batch of task 0."),
        (
            n09.check_worker,
            worker_that_puts_errors_back,
            "Nobody is told of the error: the scheduler waits for an answer for ever.",
        ),
        (
            n09.check_worker,
            partial(worker_whose_answers_are, made=list),
            "form: [True, (ProbeTask, str)]. Each answer is a tuple: a list may change before the scheduler reads it.",
        ),
        (n09.check_worker, partial(worker_whose_answers_are, made=with_a_list), "form: (True, [ProbeTask, str])."),
        (
            n09.check_worker,
            partial(worker_whose_answers_are, made=with_a_list_for_an_error),
            "form: (False, [type, ValueError, traceback]).",
        ),
        (n09.check_worker, worker_with_flags_of_its_own, "form: (str, (ProbeTask, str))."),
        (
            n09.check_spawn_workers,
            spawn_that_looks_at_all,
            "Each partition has a device of its own: none speaks for the others.",
        ),
        (
            n09.check_spawn_workers,
            spawn_with_queues_that_nobody_knows,
            "A worker waits for tasks in another queue than the one that you hand out for them.",
        ),
        (
            n09.check_spawn_workers,
            partial(spawn_that_hands_out, make=lambda *queues: tuple(dict(enumerate(q)) for q in queues)),
            "two lists of queues: (dict, dict).",
        ),
        (
            n09.check_run_plan,
            plan_of_last_pairs,
            "All tasks of a clock compute its last pair: a function looks i and j up when it runs.",
        ),
        (n09.check_worker, worker_that(told=in_words), "form: (False, (type, ValueError, str))."),
        (
            n09.check_spawn_workers,
            partial(spawn_with, in_queue=one_for_all(), out_queue=one_for_all()),
            "seen: 3 in_queues, 1 different; 3 out_queues, 1 different.",
        ),
        (
            n09.check_spawn_workers,
            partial(spawn_that_hands_out, make=lambda *queues: None),
            "two lists of queues: None.",
        ),
        (
            n09.check_spawn_workers,
            partial(spawn_that_hands_out, make=lambda in_queues, out_queues: in_queues),
            "two lists of queues: [SimpleQueue, SimpleQueue, SimpleQueue].",
        ),
        (n09.check_spawn_workers, spawn_for_the_last_pair, "a function looks its names up when it runs."),
        (
            n09.check_run_clock,
            clock_that_finalizes_with_the_number,
            "seen: finalized: task 0 with another batch, task 1 with another batch, task 2 with another batch.",
        ),
        (n09.check_run_clock, clock_that_sends_the_workers_home, "seen: workers sent home: 3."),
        (n09.check_run_clock, clock_that_runs_a_lone_task_itself, "seen: tasks computed by their own worker: 0."),
        (
            n09.check_run_clock,
            clock_that_puts_one_ahead,
            "not all computed together. Put all tasks of the clock before you wait for the first answer.",
        ),
        (n09.check_run_clock, clock_that_computes_again, "You call compute yourself: that is for the worker."),
    ],
)
def test_a_wrong_answer_is_told_only_what_is_true_of_it(check, answer, says, monkeypatch):
    monkeypatch.setattr(n09, "PATIENCE", 0.6)
    verdict = check(answer)
    assert verdict.status == "wrong"
    assert verdict.message.endswith(says), verdict.message


def test_two_threads_gain_from_a_size_on_if_they_gain_at_each_larger_one():
    assert "= 256." in n09.guess_size(64, {8: 1.3, 64: 0.9, 256: 1.4, 512: 1.9}).message
    assert "none of these" in n09.guess_size(64, {64: 1.3, 512: 0.9}).message


@pytest.mark.parametrize(
    "guess, given", [(n09.guess_streams, "17 ticks"), *((n09.guess_late, given) for given in (0, "[0]", range(1)))]
)
def test_a_right_guess_in_other_words_is_right(guess, given):
    assert "that is it" in guess(given).message
