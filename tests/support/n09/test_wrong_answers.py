"""Wrong answers to the exercises of notebook 09 that readers wrote who had not seen ours.

Those that the room knows by a sentence of their own are tried in test_detectors.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from queue import LifoQueue, Queue, SimpleQueue
from threading import Thread

import pytest

from support.built import Task, clock_cycles, run_clock
from support.built import worker as serve
from support.n09 import checks as n09
from support.n09.answers import run_plan
from tests.support.n09.test_right_answers import keys_of


def worker_that_answers_none_and_goes_on(in_queue, out_queue):
    while True:
        task = in_queue.get()
        if task is None:
            out_queue.put((False, None))
            continue
        serve_one = SimpleQueue()
        serve_one.put(task)
        serve_one.put(None)
        answers = SimpleQueue()
        serve(serve_one, answers)
        out_queue.put(answers.get())


def worker_that_takes_stop_iteration_for_the_end(in_queue, out_queue):
    while True:
        try:
            task = in_queue.get()
            if task is None:
                raise StopIteration
            out_queue.put((True, (task, task.compute())))
        except StopIteration:
            out_queue.put((False, None))
            return
        except BaseException:
            out_queue.put((False, sys.exc_info()))


def worker_that_takes_an_exception_for_an_error(in_queue, out_queue):
    while (task := in_queue.get()) is not None:
        try:
            batch = task.compute()
        except BaseException as error:
            batch = error
        if isinstance(batch, BaseException):
            out_queue.put((False, (type(batch), batch, batch.__traceback__)))
        else:
            out_queue.put((True, (task, batch)))
    out_queue.put((False, None))


@contextmanager
def spawn_by_identity(devices):
    """Take one object for one device, also where it stands for several CPU partitions."""
    made = {id(device): (SimpleQueue(), SimpleQueue()) for device in devices}
    pairs = [made[id(device)] for device in devices]
    threads = [Thread(target=serve, args=pair) for pair in made.values()]
    for thread in threads:
        thread.start()
    try:
        yield [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    finally:
        for in_queue, _ in made.values():
            in_queue.put(None)
        for thread in threads:
            thread.join()


@contextmanager
def spawn_with(devices, in_queue, out_queue):
    """Start a worker for each partition, with queues of other kinds."""
    pairs = [(in_queue(), out_queue()) for _ in devices]
    threads = [Thread(target=serve, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    try:
        yield [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    finally:
        for pair in pairs:
            pair[0].put(None)
        for thread in threads:
            thread.join()


@contextmanager
def spawn_that_waits_otherwise(devices, wait):
    keys = keys_of(devices)
    made = {key: (SimpleQueue(), SimpleQueue()) for key in keys}
    for pair in made.values():
        Thread(target=serve, args=pair, daemon=True).start()
    try:
        yield [made[key][0] for key in keys], [made[key][1] for key in keys]
    finally:
        for in_queue, _ in made.values():
            in_queue.put(None)
        for pair in made.values():
            wait(*pair)


def for_the_last_word(in_queue, out_queue):
    while out_queue.get() != (False, None):
        pass


def for_an_empty_queue(in_queue, out_queue):
    while not in_queue.empty():
        time.sleep(0.001)


def clock_that_asks_whoever_is_there(tasks, in_queues, out_queues):
    for j, task in tasks.items():
        in_queues[j].put(task)
    answers = {}
    while len(answers) < len(tasks):
        for j in tasks:
            if j not in answers and not out_queues[j].empty():
                answers[j] = out_queues[j].get()
    for j in tasks:
        if not answers[j][0]:
            raise answers[j][1][1]
    for j in tasks:
        answers[j][1][0].finalize(answers[j][1][1])
    return {j: answers[j][1][1] for j in tasks}


def clock_that_raises_what_came_first(tasks, in_queues, out_queues):
    for j, task in tasks.items():
        in_queues[j].put(task)
    batches = {}
    errors = []
    waiting = list(tasks)
    while waiting:
        for j in [j for j in waiting if not out_queues[j].empty()]:
            waiting.remove(j)
            ok, payload = out_queues[j].get()
            if ok:
                batches[j] = payload[1]
            else:
                errors.append(payload[1])
        time.sleep(0.001)
    if errors:
        raise errors[0]
    for j, task in tasks.items():
        task.finalize(batches[j])
    return {j: batches[j] for j in tasks}


def clock_with_a_limit(tasks, in_queues, out_queues, limit=5):
    for j, task in tasks.items():
        in_queues[j].put(task)
    answers = {j: out_queues[j].get(timeout=limit) for j in tasks}
    for ok, payload in answers.values():
        if not ok:
            raise payload[1]
    for task, batch in (payload for _, payload in answers.values()):
        task.finalize(batch)
    return {j: payload[1] for j, (_, payload) in answers.items()}


def clock_that_keeps_the_first_error_and_finalizes(tasks, in_queues, out_queues):
    for j, task in tasks.items():
        in_queues[j].put(task)
    batches = {}
    error = None
    for j in tasks:
        ok, payload = out_queues[j].get()
        if not ok:
            error = error or payload[1]
        elif error is None:
            batches[j] = payload[1]
            payload[0].finalize(payload[1])
    if error is not None:
        raise error
    return batches


def plan_in_threads_of_its_own(compute, batches, n, in_queues, out_queues):
    values = list(batches)
    with ThreadPoolExecutor(n) as pool:
        for clock in clock_cycles(len(batches), n):
            done = {i: pool.submit(compute, values[i], i, j) for i, j in clock}
            for i, future in done.items():
                values[i] = future.result()
    return values


def threads_in_order(in_queue, out_queue):
    """Keep the order of the answers, but begin a task while another is at work."""
    with ThreadPoolExecutor(4) as pool:
        futures = []
        while (task := in_queue.get()) is not None:
            futures.append((task, pool.submit(task.compute)))
            if in_queue.empty():
                for task, future in futures:
                    try:
                        out_queue.put((True, (task, future.result())))
                    except BaseException:
                        out_queue.put((False, sys.exc_info()))
                futures.clear()
    out_queue.put((False, None))


def clock_that_asks_the_batch(tasks, in_queues, out_queues):
    for j in tasks:
        in_queues[j].put(tasks[j])
    answers = {j: out_queues[j].get()[1] for j in tasks}
    for _, error in ((payload[0], payload[1]) for payload in answers.values()):
        if isinstance(error, BaseException):
            raise error
    for task, batch in answers.values():
        task.finalize(batch)
    return {j: batch for j, (_, batch) in answers.items()}


def plan_with_late_names(compute, batches, n, in_queues, out_queues):
    values = list(batches)
    for clock in clock_cycles(len(batches), n):
        tasks = {}
        for i, j in clock:
            tasks[j] = Task(None, compute=lambda i=i, x=values[i]: compute(x, i, j))  # noqa: B023
        done = run_clock(tasks, in_queues, out_queues)
        for i, j in clock:
            values[i] = done[j]
    return values


def plan_that_swallows(compute, batches, n, in_queues, out_queues):
    try:
        return run_plan(compute, batches, n, in_queues, out_queues)
    except ValueError:
        return []


def plan_by_micro_batches(compute, batches, n, in_queues, out_queues):
    values = list(batches)
    for clock in clock_cycles(len(batches), n):
        tasks = {i: Task(None, compute=partial(compute, values[i], i, j)) for i, j in clock}
        for i, batch in run_clock(tasks, in_queues, out_queues).items():
            values[i] = batch
    return values


def plan_of_two_tasks_at_a_time(compute, batches, n, in_queues, out_queues):
    values = list(batches)
    for clock in clock_cycles(len(batches), n):
        tasks = [(j, Task(None, compute=partial(compute, values[i], i, j))) for i, j in clock]
        done = run_clock(dict(tasks[:2]), in_queues, out_queues)
        done |= run_clock(dict(tasks[2:]), in_queues, out_queues)
        for i, j in clock:
            values[i] = done[j]
    return values


def plan_turned_round(compute, batches, n, in_queues, out_queues):
    values = list(batches)
    for clock in clock_cycles(n, len(batches)):
        tasks = {j: Task(None, compute=partial(compute, values[i], i, j)) for j, i in clock}
        done = run_clock(tasks, in_queues, out_queues)
        for j, i in clock:
            values[i] = done[j]
    return values


def worker_that_takes_all_that_wait(in_queue, out_queue):
    going = True
    while going:
        waiting = [in_queue.get()]
        while not in_queue.empty():
            waiting.append(in_queue.get())
        going = not any(task is None for task in waiting)
        for task in waiting if going else waiting[:-1]:
            try:
                out_queue.put((True, (task, task.compute())))
            except BaseException:
                out_queue.put((False, sys.exc_info()))
    out_queue.put((False, None))


def worker_with_a_thread_at_a_time(in_queue, out_queue):
    """Keep the order, but give each task a thread of its own."""
    while (task := in_queue.get()) is not None:
        one = SimpleQueue()
        one.put(task)
        one.put(None)
        answers = SimpleQueue()
        thread = Thread(target=serve, args=(one, answers))
        thread.start()
        thread.join()
        out_queue.put(answers.get())
    out_queue.put((False, None))


def worker_whose_queue_has_no_task_done(in_queue, out_queue):
    while (task := in_queue.get()) is not None:
        out_queue.put((True, (task, task.compute())))
        in_queue.task_done()
    out_queue.put((False, None))


def worker_that_computes_nothing(in_queue, out_queue):
    while (task := in_queue.get()) is not None:
        out_queue.put((True, (task, task.batch)))
    out_queue.put((False, None))


def worker_that_knows_an_error_by_its_form(in_queue, out_queue):
    while (task := in_queue.get()) is not None:
        try:
            batch = task.compute()
        except BaseException:
            batch = sys.exc_info()
        failed = isinstance(batch, tuple) and isinstance(batch[1], BaseException)
        out_queue.put((False, batch) if failed else (True, (task, batch)))
    out_queue.put((False, None))


def answers_of(tasks, in_queues, out_queues):
    for j, task in tasks.items():
        in_queues[j].put(task)
    return {j: out_queues[j].get() for j in tasks}


def clock_that_finalizes_before_it_raises(tasks, *queues):
    answers = answers_of(tasks, *queues)
    for ok, payload in answers.values():
        if ok:
            payload[0].finalize(payload[1])
    for ok, payload in answers.values():
        if not ok:
            raise payload[1]
    return {j: payload[1] for j, (_, payload) in answers.items()}


def clock_that_leaves_first(tasks, *queues):
    """Raise what is no Exception before any Exception."""
    answers = answers_of(tasks, *queues)
    errors = [payload[1] for ok, payload in answers.values() if not ok]
    for error in sorted(errors, key=lambda error: isinstance(error, Exception)):
        raise error
    for task, batch in (payload for _, payload in answers.values()):
        task.finalize(batch)
    return {j: payload[1] for j, (_, payload) in answers.items()}


def clock_that_remembers(tasks, *queues, answers={}):  # noqa: B006  (kept between the calls)
    answers |= answers_of(tasks, *queues)
    for ok, payload in answers.values():
        if not ok:
            raise payload[1]
    for j in tasks:
        answers[j][1][0].finalize(answers[j][1][1])
    return {j: answers[j][1][1] for j in tasks}


def plan_that_remembers(compute, batches, n, *queues, known={}):  # noqa: B006  (kept between the calls)
    if (len(batches), n) not in known:
        known[len(batches), n] = run_plan(compute, batches, n, *queues)
    return list(known[len(batches), n])


@pytest.mark.parametrize(
    "check, answer, says",
    [
        (n09.check_worker, worker_that_takes_all_that_wait, "(another was taken before its answer)"),
        (
            n09.check_worker,
            worker_whose_queue_has_no_task_done,
            "no answer to task 1 (the worker raised AttributeError: ",
        ),
        (n09.check_worker, worker_that_computes_nothing, "seen: True, task 0 and its batch (never computed)."),
        (n09.check_worker, worker_that_knows_an_error_by_its_form, "its type doesn't say whether the task has failed"),
        (n09.check_worker, worker_with_a_thread_at_a_time, "(computed in another thread)"),
        (n09.check_run_clock, clock_that_finalizes_before_it_raises, "seen: raised KeyError"),
        (n09.check_run_clock, clock_that_leaves_first, "of task 0; seen: raised the Escape of task 1"),
        (n09.check_run_clock, clock_that_remembers, "seen: raised ValueError: task 2"),
        (n09.check_run_plan, plan_that_remembers, "each on cpu, once more: pairs (i, j) that were computed never"),
        (n09.check_worker, worker_that_answers_none_and_goes_on, "when it comes, the thread must end"),
        (n09.check_worker, threads_in_order, "(computed in another thread). A partition has one thread"),
        (n09.check_worker, worker_that_takes_stop_iteration_for_the_end, "Expected: False, its StopIteration"),
        (n09.check_worker, worker_that_takes_an_exception_for_an_error, "A batch may be an exception"),
        (n09.check_spawn_workers, spawn_by_identity, "One worker for all CPU partitions"),
        (
            n09.check_spawn_workers,
            partial(spawn_with, in_queue=LifoQueue, out_queue=Queue),
            "Tasks that wait are never computed",
        ),
        (
            n09.check_spawn_workers,
            partial(spawn_with, in_queue=Queue, out_queue=partial(Queue, 1)),
            "and room for every answer",
        ),
        (n09.check_run_clock, clock_that_raises_what_came_first, "raise that of the first partition"),
        (n09.check_run_clock, clock_with_a_limit, "longer than any limit"),
        (
            n09.check_run_plan,
            plan_of_two_tasks_at_a_time,
            "3 partitions, each on cpu: the tasks of a clock did not meet",
        ),
        (n09.check_run_clock, clock_that_asks_the_batch, "returns a ValueError, works. Expected: returned {0: "),
        (n09.check_run_plan, plan_with_late_names, "The name j is looked up when the task runs"),
        (n09.check_run_plan, plan_that_swallows, "this very error is expected; it returned []"),
        (
            n09.check_spawn_workers,
            partial(spawn_that_waits_otherwise, wait=for_the_last_word),
            "A thread may still be alive",
        ),
        (
            n09.check_spawn_workers,
            partial(spawn_that_waits_otherwise, wait=for_an_empty_queue),
            "A thread may still be alive",
        ),
        (
            n09.check_spawn_workers,
            partial(spawn_that_waits_otherwise, wait=lambda *pair: time.sleep(0.5)),
            "A thread may still be alive",
        ),
        (n09.check_run_clock, clock_that_asks_whoever_is_there, "share a queue"),
        (n09.check_run_clock, clock_that_keeps_the_first_error_and_finalizes, "Take all answers before you finalize"),
        (n09.check_run_plan, plan_in_threads_of_its_own, "0 tasks went through the in_queues"),
        (n09.check_run_plan, plan_by_micro_batches, "An index is beyond its list"),
        (n09.check_run_plan, plan_turned_round, "those of clock 1, for the partitions [0, 1]; they are for [1, 0]"),
        (n09.check_devices, ["cuda", "cuda:0"], "5 devices are expected, one for each partition, not 2"),
        (n09.check_devices, ["cuda"] * 5, "a CPU is asked for among the devices"),
        (n09.check_devices, [], "5 devices are expected, one for each partition, not 0"),
        (n09.check_devices, ["cuda:0", "cuda:1", "cpu", "cpu", "meta"], "5 values are right"),
        (n09.check_devices, ["cuda"] * 3 + ["cpu", "cpu"], "3 values are right, those of the partitions 1, 3, 4"),
        (n09.check_devices, "cuda", "a list of names"),
    ],
)
def test_another_wrong_answer_is_refused_with_a_true_sentence(check, answer, says, monkeypatch):
    monkeypatch.setattr(n09, "PATIENCE", 0.6)
    verdict = check(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message
