"""Runs of a plan, schedulers and spawns that passed though they break a clause of their contract."""

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from support.built import Task
from support.n09 import checks as n09
from support.n09.answers import putting, run_plan, spawning, take
from tests.support.n09.test_other_clocks import ended
from tests.support.n09.test_right_answers import spawn_by_executor
from tests.support.n09.test_wrong_answers import answers_of


def plan_from_another_thread(compute, batches, *rest):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run_plan, compute, batches, *rest).result()


@torch.no_grad()
def plan_without_gradients(compute, batches, *rest):
    return run_plan(compute, batches, *rest)


def plan_of_other_batches(compute, batches, *rest, other):
    return run_plan(compute, other(batches), *rest)


def plan_on_one_thread(*given):
    torch.set_num_threads(1)
    return run_plan(*given)


def plan_by_data_flow(compute, batches, n, in_queues, out_queues):
    values = list(batches)

    def put(i, j):
        in_queues[j].put(Task(None, compute=partial(compute, values[i], i, j)))

    for i in range(len(values)):
        put(i, 0)
    for i in range(len(values)):
        for j in range(n):
            _, (_, values[i]) = out_queues[j].get()
            if j + 1 < n:
                put(i, j + 1)
    return values


def plan_that_ends_the_workers(compute, batches, n, in_queues, out_queues):
    outputs = run_plan(compute, batches, n, in_queues, out_queues)
    for in_queue in in_queues:
        in_queue.put(None)
    return outputs


def clock_that_puts_twice(tasks, in_queues, out_queues):
    answers = answers_of(tasks, in_queues, out_queues)
    answers_of(tasks, in_queues, out_queues)
    return ended(tasks, answers)


def clock_that_tries_once_more(tasks, in_queues, out_queues):
    answers = answers_of(tasks, in_queues, out_queues)
    for j, task in tasks.items():
        if not answers[j][0]:
            in_queues[j].put(task)
            answers[j] = out_queues[j].get()
    return ended(tasks, answers)


def clock_that_raises_exceptions_first(tasks, *queues):
    answers = answers_of(tasks, *queues)
    for ok, payload in answers.values():
        if not ok and isinstance(payload[1], Exception):
            raise payload[1]
    return ended(tasks, answers)


def clock_that_copies(tasks, *queues):
    return copy.deepcopy(putting(take)(tasks, *queues))


def clock_that_detaches(tasks, *queues):
    batches = putting(take)(tasks, *queues)
    return {j: batch.detach() if isinstance(batch, torch.Tensor) else batch for j, batch in batches.items()}


def batch_of(answer):
    ok, payload = answer
    if not ok:
        raise payload[1]
    return payload[1]


def clock_through_a_map(tasks, *queues):
    batches = dict(zip(tasks, map(batch_of, answers_of(tasks, *queues).values()), strict=False))
    for j, batch in batches.items():
        tasks[j].finalize(batch)
    return batches


def clock_through_a_generator(tasks, *queues):
    batches = dict((j, batch_of(answer)) for j, answer in answers_of(tasks, *queues).items())  # noqa: C402
    for j, batch in batches.items():
        tasks[j].finalize(batch)
    return batches


def clock_that_lets_an_escape_out(tasks, *queues):
    batches = {}
    errors = []
    for j, answer in answers_of(tasks, *queues).items():
        try:
            batches[j] = batch_of(answer)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            errors.append(error)
    for error in errors:
        raise error
    for j, batch in batches.items():
        tasks[j].finalize(batch)
    return batches


def clock_with_tasks_for_keys(tasks, *queues):
    answers = answers_of(tasks, *queues)
    for answer in answers.values():
        batch_of(answer)
    batches = dict(payload for _, payload in answers.values())
    for task in tasks.values():
        task.finalize(batches[task])
    return {j: batches[task] for j, task in tasks.items()}


def clock_that_looks_tasks_up(tasks, *queues):
    answers = answers_of(tasks, *queues)
    for answer in answers.values():
        batch_of(answer)
    order = list(tasks.values())
    found = {order.index(task): batch for _, (task, batch) in answers.values()}
    batches = {j: found[place] for place, j in enumerate(tasks)}
    for j, batch in batches.items():
        tasks[j].finalize(batch)
    return batches


def spawn_by_a_name_without_zeros(devices):
    return spawning(lambda j, device: j if device.type == "cpu" else str(device).rstrip(":0"))(devices)


def spawn_by_a_pool_of_the_usual_size(devices):
    return spawn_by_executor(devices, threads=lambda keys: None)


@pytest.mark.parametrize(
    "check, answer, says",
    [
        (
            n09.check_run_plan,
            plan_from_another_thread,
            "no_grad: compute ran with gradients on; where run_plan was called they are off.",
        ),
        (n09.check_run_plan, plan_without_gradients, "cpu: compute ran with gradients off; where run_plan was called"),
        (n09.check_run_plan, partial(plan_of_other_batches, other=copy.deepcopy), "support the deepcopy protocol"),
        (
            n09.check_run_plan,
            partial(plan_of_other_batches, other=lambda batches: [x.detach() for x in batches]),
            "cpu: backward finds no way from output 0 to its input.",
        ),
        (
            n09.check_run_plan,
            partial(plan_of_other_batches, other=lambda batches: [x.detach().requires_grad_() for x in batches]),
            "cpu: backward finds no way from output 0 to its input.",
        ),
        (
            n09.check_run_plan,
            plan_on_one_thread,
            "cpu: compute ran with 1 thread an operation; where run_plan was called it is 3.",
        ),
        (
            n09.check_run_plan,
            plan_by_data_flow,
            "put as numbers [2, 3] should be those of clock 1, for the partitions [0, 1]; they are for [0, 0].",
        ),
        (
            n09.check_spawn_workers,
            spawn_by_a_name_without_zeros,
            "cuda:1, cuda:10. Expected: 4 in_queues, 3 different; 4 out_queues, 3 different; seen: 4 in_queues, 2",
        ),
        (
            n09.check_run_plan,
            plan_that_ends_the_workers,
            "cpu: None was put into an in_queue: no worker is there for the next run.",
        ),
        (
            n09.check_run_clock,
            clock_that_tries_once_more,
            "Expected: tasks computed by their own worker: 3; seen: tasks computed by their own worker: 4.",
        ),
        (n09.check_run_clock, clock_that_puts_twice, "computed by their own worker: 3; seen: tasks computed by their"),
        (
            n09.check_run_clock,
            clock_that_raises_exceptions_first,
            "SystemExit of task 0; seen: raised the RuntimeError",
        ),
        (n09.check_run_clock, clock_through_a_map, "StopIteration of task 0; seen: returned {}"),
        (n09.check_run_clock, clock_through_a_generator, "in place of the StopIteration of task 0"),
        (n09.check_run_clock, clock_that_lets_an_escape_out, "of task 0; seen: raised the Escape of task 1"),
        (n09.check_run_clock, clock_with_tasks_for_keys, "TypeError: unhashable type: 'ProbeTask'"),
        (n09.check_run_clock, clock_that_looks_tasks_up, "seen: raised KeyError: 1"),
        (n09.check_run_clock, clock_that_copies, "seen: returned copies of batches: 1"),
        (n09.check_run_clock, clock_that_detaches, "returns a tensor, works. Expected: nothing more; seen: returned"),
        pytest.param(
            n09.check_spawn_workers,
            spawn_by_a_pool_of_the_usual_size,
            "for 33 × cpu. Expected: threads started: 33; seen: threads started: ",
            marks=pytest.mark.costly,
        ),
    ],
)
def test_an_answer_that_breaks_one_clause_is_refused(check, answer, says, monkeypatch):
    monkeypatch.setattr(n09, "PATIENCE", 0.6)
    monkeypatch.setattr(n09, "_recognised", lambda *given: "")  # which famous mistake it is doesn't matter here
    verdict = check(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message
