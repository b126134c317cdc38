"""What is particular about the checks of notebook 09; what all exercises have in common is in test_detectors."""

import re
import threading
from contextlib import contextmanager, nullcontext, suppress
from queue import SimpleQueue

import pytest
import torch

from lib.pipeline.worker import worker as lib_worker
from support.kit.raised import InCaseError
from support.n09 import checks as n09
from support.n09 import plans
from support.n09.answers import by_arrival, putting, spawning
from support.n09.clock_trials import ask_scheduler
from support.n09.trials import BY_AN_ERROR, ask_spawn


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(n09, "PATIENCE", 0.6)


def test_the_worker_of_lib_passes_and_a_machine_without_a_free_core_is_told_so(monkeypatch):
    monkeypatch.setattr(n09, "PATIENCE", 10.0)
    assert n09.check_worker(lambda *queues: lib_worker(*queues, torch.device("cpu")))
    assert "is a second core free?" in n09.guess_size(64, {8: 0.5, 512: 1.0}).message


def waits_elsewhere(tasks, in_queues, out_queues):
    answers = out_queues[0]
    elsewhere = SimpleQueue()
    elsewhere.get()
    return answers


def test_what_ends_a_scheduler_that_is_stuck_counts_as_no_answer_of_a_worker():
    seen = ask_scheduler(waits_elsewhere, ("works",), patience=0.05)
    assert "still waiting for an answer" in seen.said
    assert "answers left: 0" in seen.said


def copies(in_queue, out_queue):
    while (task := in_queue.get()) is not None:
        try:
            out_queue.put((True, (task, task.compute())))
        except BaseException as error:
            out_queue.put((False, (type(error), type(error)(*error.args), error.__traceback__)))
    out_queue.put((False, None))


def copied(tasks, in_queues, out_queues):
    for j, task in tasks.items():
        in_queues[j].put(task)
    answers = {j: out_queues[j].get() for j in tasks}
    for ok, payload in answers.values():
        if not ok:
            raise payload[0](*payload[1].args)
    for j, task in tasks.items():
        task.finalize(answers[j][1][1])
    return {j: payload[1] for j, (_, payload) in answers.items()}


def endless():
    while True:
        pass


@contextmanager
def spawn_that_asks_the_error(devices):
    """Raise the body's error behind the end, unless it counts as false."""
    raised = None
    with spawning()(devices) as queues:
        try:
            yield queues
        except BaseException as error:
            raised = error
    if raised:
        raise raised


def clock_that_waits_once_too_often(tasks, in_queues, out_queues):
    """Behind an error take an answer of each task that has no batch, also of the one that has raised."""
    batches = {}
    for j, task in tasks.items():
        in_queues[j].put(task)
    try:
        for j in tasks:
            ok, payload = out_queues[j].get()
            if not ok:
                raise payload[1]
            batches[j] = payload[1]
    finally:
        for j in tasks.keys() - batches.keys():
            out_queues[j].get()
    for j, task in tasks.items():
        task.finalize(batches[j])
    return batches


@pytest.mark.parametrize(
    "check, wrong, says",
    [
        (n09.check_worker, "Nobody is told", "Expected: False, its ValueError; seen: no answer to task 1"),
        (n09.check_worker, "The error is answered", "seen: the last answer, (False, None), although tasks are left"),
        (n09.check_worker, "SystemExit is no", "raises SystemExit, works. Expected: False, its SystemExit; seen: no"),
        (n09.check_worker, "None is no task", "seen: still running after None"),
        (n09.check_worker, "finalize belongs", "(finalized in the worker)"),
        (n09.check_worker, "Say goodbye", "seen: no last answer (False, None)"),
        (
            n09.check_worker,
            lambda *queues: queues[0].get(),
            "do this: works, works. Expected: True, task 0 and its batch",
        ),
        (n09.check_worker, lambda *queues: queues[1].put(7), "seen: an answer of another form: int"),
        (n09.check_worker, copies, "seen: False, another ValueError"),
        (n09.check_worker, "One goodbye", "seen: last answer (False, None), and 1 more behind it"),
        (n09.check_worker, "An error of somebody", "raises Escape(BaseException), works. Expected: False, its Escape"),
        (
            n09.check_worker,
            "A batch may be None",
            "works and returns None, works. Expected: True, task 0 and its batch",
        ),
        (n09.check_worker, "Each answer is a tuple", "seen: an answer of another form: [True, (ProbeTask, str)]"),
        (n09.check_worker, "A function that calls", "seen: False, the RecursionError of maximum recursion depth"),
        (n09.check_worker, "A task may count", "works, but bool(task) is False, works. Expected: True, task 1"),
        (n09.check_worker, "Answer each task", "seen: no answer to task 0 until None came"),
        (n09.check_worker, "With False comes", "seen: an answer of another form: (False, ValueError)"),
        (n09.check_worker, "Call sys.exc_info", "seen: an answer of another form: (False, (None, None, None))"),
        (n09.check_worker, "Without the traceback", "seen: False, its ValueError without a traceback"),
        (n09.check_worker, "A partition has one thread", "task 0 and its batch (computed in another thread)"),
        (n09.check_worker, "A while without tasks is no end", "without tasks. Expected: True, task 0 and its batch"),
        (n09.check_worker, "A while without tasks is not", "without tasks. Expected: True, task 0 and its batch"),
        (n09.check_worker, "A batch may be a tuple", "returns a tuple of three, works. Expected: True, task 0 and"),
        (n09.check_worker, "A layer may raise", "raises AttributeError, raises StopIteration"),
        (n09.check_worker, "Compute a task once", "seen: False, its ValueError (computed 2 times)"),
        (n09.check_run_clock, "The answer says", "raises SystemExit, works. Expected: raised the SystemExit of task 0"),
        (n09.check_run_plan, "clock_runner takes", "F1 of partition 0 raises: an answer is left in an out_queue"),
        (n09.check_run_plan, "The number of partitions", "computed never (0, 2), (1, 2). The number of partitions"),
        (n09.check_run_plan, "The name j is", "computed too often (1, 1), (2, 1), (3, 1); never (1, 0)"),
        (n09.check_spawn_workers, "Yield an entry", "3 out_queues, 2 different; seen: 2 in_queues, 2 different"),
        (n09.check_spawn_workers, "cuda:0 and cuda:1", "3 out_queues, 2 different; seen: 3 in_queues, 1 different"),
        (n09.check_spawn_workers, "Tasks that wait", "computed: True; seen: tasks that waited are computed: False"),
        (n09.check_run_clock, "You call compute", "seen: not all computed together"),
        (n09.check_run_clock, copied, "another exception in place of the ValueError of task 1. Raise the very exc"),
        (
            n09.check_run_clock,
            "Two partitions",
            "do this: works, works, all partitions share a queue. Expected: returned {0: 'batch of",
        ),
        (n09.check_spawn_workers, "A thread works only", "Expected: threads started: 3; seen: threads started: 0"),
        (n09.check_spawn_workers, "What you wait for", "seen: the with never ended"),
        (n09.check_spawn_workers, "A thread may still", "with: 3, and for good: 0"),
        (n09.check_spawn_workers, "An error in the body", "for cpu, cpu, leaves by an error. Expected: threads alive"),
        (n09.check_spawn_workers, "Two partitions", "for cuda:0, cuda:1, cuda:0. Expected: 3 in_queues, 2 different"),
        (n09.check_spawn_workers, "A task may last", "with: 3, and for good: 0, as a limit of a join was over"),
        (n09.check_spawn_workers, "cpu:0 is a CPU", "for cpu:0, cpu:0. Expected: 2 in_queues, 2 different"),
        (n09.check_spawn_workers, lambda devices: nullcontext(([], [])), "seen: 0 in_queues, 0 different"),
        (n09.check_spawn_workers, lambda devices: endless(), "seen: the with never began"),
        (n09.check_worker, lambda *queues: endless(), "seen: no answer to task 0"),
        (n09.check_run_clock, clock_that_waits_once_too_often, "seen: still waiting for an answer"),
        (n09.check_run_clock, "Put all tasks", "seen: not all computed together"),
        (n09.check_run_clock, "Raised too early", "seen: answers left: 1"),
        (n09.check_run_clock, "An answer that is still", "raises ValueError, late. Expected: answers left: 0"),
        (n09.check_run_clock, "Take all answers", "its finalize raises KeyError, late. Expected: answers left: 0"),
        (n09.check_run_clock, "Raise the exception as", "seen: raised the ValueError of task 1 without its traceback"),
        (n09.check_run_clock, "Nobody calls", "seen: finalized: none"),
        (n09.check_run_clock, "The errors are dropped", "Expected: raised the ValueError of task 1"),
        (n09.check_run_clock, "Of several errors", "seen: raised the RuntimeError of task 1"),
        (n09.check_run_clock, "finalize must go", "seen: finalized: task 2, task 1, task 0"),
        (n09.check_run_clock, lambda tasks, *queues: {}, "seen: returned {}"),
    ],
)
def test_a_wrong_answer_is_told_what_was_seen_of_it(check, wrong, says):
    """`wrong` is an answer, or how the sentence on a famous one begins."""
    if isinstance(wrong, str):
        (wrong,) = [known for why, known in check.mistakes.items() if why.startswith(wrong)]
    others = {*threading.enumerate()}  # an earlier file's, such as the one that hands out shared memory
    verdict = check(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message
    assert {*threading.enumerate()} <= others, "a thread of the answer is left"


def test_an_error_of_the_body_that_counts_as_false_must_come_out_too():
    (falsy,) = [case for case in BY_AN_ERROR if "bool is False" in case]
    seen = ask_spawn(spawn_that_asks_the_error, ("cpu", falsy), patience=0.2)
    assert "the body's FalsyEscape is swallowed" in seen.said


def test_a_scheduler_may_take_the_last_answer_first_if_it_keeps_the_order_in_a_queue():
    def as_lib_does(tasks, in_queues, out_queues):
        for j, task in tasks.items():
            in_queues[j].put(task)
        last_first = sorted(tasks, key=lambda j: out_queues.index(out_queues[j]), reverse=True)
        answers = {j: out_queues[j].get() for j in last_first}
        for j in tasks:
            if not answers[j][0]:
                raise answers[j][1][1]
        for j, task in tasks.items():
            task.finalize(answers[j][1][1])
        return {j: answers[j][1][1] for j in tasks}

    assert n09.check_run_clock(as_lib_does)


def test_a_stub_that_wears_a_decorator_is_untouched():
    @contextmanager
    def spawn_workers(devices):
        raise NotImplementedError

    assert n09.check_spawn_workers(spawn_workers).status == "open"


def test_to_finalize_in_the_order_of_arrival_is_refused_every_time():
    assert all(n09.check_run_clock(putting(by_arrival)).status == "wrong" for _ in range(3))


def test_a_guess_is_read_as_it_was_meant_and_quoted_as_it_was_given():
    assert "You said [0]: that is it" in n09.guess_late(0).message
    assert "that is it" in n09.guess_streams("17 ticks").message
    assert "You said [True, False];" in n09.guess_late([True, False]).message


def test_a_task_of_a_plan_that_meets_nobody_is_waited_for_once_and_known_last(monkeypatch):
    broken = []

    class Counted(threading.Barrier):
        def wait(self, timeout=None):
            try:
                return super().wait(timeout)
            except threading.BrokenBarrierError:
                broken.append(self)
                raise

    def waits(mistake):
        broken.clear()
        with suppress(InCaseError):
            plans.fault_of_plan(mistake, 0.2)
        return len(broken)

    monkeypatch.setattr(plans, "Barrier", Counted)
    waited = [waits(mistake) for mistake in n09.check_run_plan.mistakes.values()]
    assert max(waited) <= 2, "both workers at the same time, and nobody after them"
    assert [bool(times) for times in waited] == sorted(bool(times) for times in waited)


def test_of_the_mistakes_in_spawning_those_that_keep_one_waiting_are_tried_last():
    case = ("cpu", "cpu", "cpu")
    seen = [" ".join(ask_spawn(known, case, 0.2).said) for known in n09.check_spawn_workers.mistakes.values()]
    waits = [bool(re.search("never|no answer|for good: [1-9]", said)) for said in seen]
    assert waits == sorted(waits)
