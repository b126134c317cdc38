"""Right answers to the exercises of notebook 09 that readers wrote who had not seen ours."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import permutations, product
from queue import Empty, Queue, SimpleQueue
from threading import Event, Thread

import pytest
import torch

from support.built import Task, clock_cycles, run_clock
from support.built import worker as serve
from support.n09 import checks as n09
from support.n09.checks import KINDS, mixed_devices


def keys_of(devices):
    return [j if d.type == "cpu" else (d.type, d.index or 0) for j, d in enumerate(devices)]


def worker_by_iter(in_queue, out_queue):
    for task in iter(in_queue.get, None):
        try:
            out_queue.put((True, (task, task.compute())))
        except BaseException:
            out_queue.put((False, sys.exc_info()))
    out_queue.put((False, None))


def worker_by_function(in_queue, out_queue):
    def answer(task):
        try:
            return True, (task, task.compute())
        except BaseException as error:
            return False, (type(error), error, error.__traceback__)

    try:
        while (task := in_queue.get()) is not None:
            out_queue.put(answer(task))
    finally:
        out_queue.put((False, None))


def idle_by_polling(in_queue, out_queue):
    while True:
        try:
            task = in_queue.get(timeout=0.05)
        except Empty:
            continue
        if task is None:
            break
        try:
            out_queue.put((True, (task, task.compute())))
        except BaseException:
            out_queue.put((False, sys.exc_info()))
    out_queue.put((False, None))


@contextmanager
def spawn_by_executor(devices, threads=len):
    """Serve in a pool. threads: how many it has, of the keys."""
    keys = keys_of(devices)
    made = {key: (SimpleQueue(), SimpleQueue()) for key in keys}
    with ThreadPoolExecutor(max_workers=threads(made)) as pool:
        for pair in made.values():
            pool.submit(serve, *pair)
        try:
            yield [made[key][0] for key in keys], [made[key][1] for key in keys]
        finally:
            for in_queue, _ in made.values():
                in_queue.put(None)


@contextmanager
def spawn_by_stack(devices):
    with ExitStack() as stack:
        by_device = {}
        pairs = []
        for device in devices:
            name = device.type, device.index or 0
            if device.type == "cpu" or name not in by_device:
                by_device[name] = SimpleQueue(), SimpleQueue()
                thread = Thread(target=serve, args=by_device[name])
                thread.start()
                stack.callback(thread.join)
                stack.callback(by_device[name][0].put, None)
            pairs.append(by_device[name])
        yield [pair[0] for pair in pairs], [pair[1] for pair in pairs]


class SpawnByClass:
    room = 0

    def __init__(self, devices):
        keys = keys_of(devices)
        self.pairs = {key: (Queue(self.room), Queue()) for key in keys}
        self.queues = [self.pairs[key][0] for key in keys], [self.pairs[key][1] for key in keys]
        self.threads = [Thread(target=serve, args=pair) for pair in self.pairs.values()]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self.queues

    def __exit__(self, *error):
        for in_queue, _ in self.pairs.values():
            in_queue.put(None)
        for thread in self.threads:
            while thread.is_alive():
                thread.join(0.1)


def clock_by_task(tasks, in_queues, out_queues):
    for j, task in tasks.items():
        in_queues[j].put(task)
    answers = [out_queues[j].get() for j in tasks]
    for ok, payload in answers:
        if not ok:
            raise payload[1].with_traceback(payload[2])
    batches = {id(task): batch for _, (task, batch) in answers}
    for task in tasks.values():
        task.finalize(batches[id(task)])
    return {j: batches[id(task)] for j, task in tasks.items()}


def plan_by_defaults(compute, batches, n, in_queues, out_queues):
    values = [*batches]
    for clock in map(list, clock_cycles(len(values), n)):
        tasks = {j: Task(None, compute=lambda x=values[i], i=i, j=j: compute(x, i, j)) for i, j in clock}
        for (i, _), batch in zip(clock, run_clock(tasks, in_queues, out_queues).values(), strict=True):
            values[i] = batch
    return values


def plan_by_hand(compute, batches, n, in_queues, out_queues):
    m = len(batches)
    held = {}
    outputs = []
    for k in range(m + n - 1):
        tasks = {}
        for j in range(max(0, k - m + 1), min(n, k + 1)):
            x = batches[k] if j == 0 else held[j - 1]
            tasks[j] = Task(None, compute=partial(compute, x, k - j, j))
        held = run_clock(tasks, in_queues, out_queues)
        outputs += [held[n - 1]] if n - 1 in held else []
    return outputs


def plan_of_clones(compute, batches, n, in_queues, out_queues):
    return plan_by_defaults(compute, [x.clone() for x in batches], n, in_queues, out_queues)


@pytest.mark.parametrize(
    "check, answer",
    [
        (n09.check_worker, worker_by_iter),
        (n09.check_worker, worker_by_function),
        (n09.check_worker, idle_by_polling),
        (n09.check_spawn_workers, spawn_by_executor),
        (n09.check_spawn_workers, spawn_by_stack),
        (n09.check_spawn_workers, SpawnByClass),
        (n09.check_run_clock, clock_by_task),
        (n09.check_run_plan, plan_by_defaults),
        (n09.check_run_plan, plan_by_hand),
        (n09.check_run_plan, plan_of_clones),
        (n09.check_devices, ["cpu", *["cuda:0"] * 4]),
        (n09.check_devices, [*map(torch.device, ("cuda:1", "cpu", "cuda:1", "meta", "meta"))]),
        (n09.check_devices, ("mps", "mps", "cpu", "cuda", "cuda:0")),
    ],
)
def test_another_right_answer_passes(check, answer, monkeypatch):
    monkeypatch.setattr(n09, "PATIENCE", 10.0)
    verdict = check(answer)
    assert verdict.status == "right", verdict


def test_a_worker_that_rests_where_no_task_waits_seldom_rests():
    rests = []

    def worker_that_rests(in_queue, out_queue):
        while True:
            if in_queue.empty():
                rests.append(Event().wait(0.001))
                continue
            task = in_queue.get()
            if task is None:
                break
            try:
                out_queue.put((True, (task, task.compute())))
            except BaseException:
                out_queue.put((False, sys.exc_info()))
        out_queue.put((False, None))

    assert n09.check_worker(worker_that_rests)
    assert len(rests) < 1000, "among 2,200 tasks"


def test_all_kinds_of_devices_meet_in_the_mixed_lists():
    lists = mixed_devices(count=5)
    assert lists == mixed_devices(count=5)
    met = {pair for names in lists for pair in permutations(names, 2)}
    assert [(one, other) for one, other in product(KINDS, repeat=2) if (one, other) not in met] == []
