"""The checks of notebook 09 pass the references, leave stubs alone, and reject famous wrong answers by name."""

from __future__ import annotations

import pytest
from support.n09 import checks as answers
from support.n09 import checks as n09
from support.n09 import checks as n09_probes
from support.n09.figures import clock_trace

from lib.pipeline import clock_cycles
from lib.pipeline.worker import worker as lib_worker


def stub(*arguments): ...


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Wrong answers that hang are given up sooner; the right ones never wait for anything."""
    monkeypatch.setattr(n09_probes, "PATIENCE", 0.6)


@pytest.mark.parametrize(
    "check, reference",
    [
        (n09.check_makespan, answers.true_makespan),
        (n09.check_worker, answers.true_worker),
        (n09.check_run_clock, answers.true_run_clock),
    ],
)
def test_the_reference_passes_and_the_stub_is_neutral(check, reference, monkeypatch):
    monkeypatch.setattr(n09_probes, "PATIENCE", 10.0)
    assert check(reference).status == "right"
    assert check(stub).status == "open"


def test_the_worker_of_lib_passes(monkeypatch):
    import torch

    monkeypatch.setattr(n09_probes, "PATIENCE", 10.0)
    verdict = n09.check_worker(lambda *queues: lib_worker(*queues, torch.device("cpu")))
    assert verdict.status == "right"


def test_the_clocks_are_those_of_lib_pipeline_and_the_makespan_is_that_of_the_predicted_trace():
    for m, seconds in ((1, [2, 3]), (5, [1]), (4, [3, 1, 2]), (2, [1, 4, 1, 1])):
        assert answers.clocks(m, len(seconds)) == list(clock_cycles(m, len(seconds)))
        assert answers.true_makespan(m, seconds) == clock_trace(m, seconds).makespan


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.always_slowest, "expected 13, got 15. Not every clock has a task of the slowest"),
        (answers.no_overlap, "That is the loop"),
        (answers.no_clock, "seconds = [3, 1, 2], expected 16, got 15. Here a clock begins when"),
        (answers.no_ramp, "Before and after the slowest"),
        (answers.mean_task, "not for the mean"),
        (lambda micro_batches, seconds: seconds.reverse(), "returned None"),
    ],
)
def test_wrong_makespans_are_named(wrong, says):
    verdict = n09.check_makespan(wrong)
    assert verdict.status == "wrong"
    assert "micro_batches = 4" in verdict.message
    assert says in verdict.message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.swallows, "seen: no answer to task 1. The error is swallowed"),
        (answers.dies, "seen: no answer to task 1. The error ends the thread"),
        (answers.answers_and_stops, "seen: no answer to task 2. The error is answered, but then"),
        (
            answers.only_exception,
            "raises SystemExit, works. Expected: False, its SystemExit; seen: no answer",
        ),
        (answers.no_sentinel, "seen: still running after None. None is no task"),
        (answers.one_task, "a worker is a loop"),
        (answers.finalizes, "(finalized in the worker). finalize belongs to the scheduler's thread"),
        (answers.only_the_batch, "The scheduler needs the task as well"),
        (
            lambda in_queue, out_queue: in_queue.get(),
            "tasks that do this: works. Expected: True, task 0 and its batch",
        ),
        (lambda in_queue, out_queue: out_queue.put(7), "seen: an answer of another form: int"),
    ],
)
def test_wrong_workers_are_named(wrong, says):
    verdict = n09.check_worker(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.one_by_one, "seen: computed one at a time. You wait for each answer"),
        (answers.raises_at_once, "seen: answers left in the queues: 1. Raised too early"),
        (answers.never_finalizes, "seen: finalized: none. Nobody calls task.finalize"),
        (answers.never_raises, "Expected: raised the ValueError of task 1"),
        (answers.last_error, "seen: raised the RuntimeError of task 1. Of several errors"),
        (answers.takes_first, "Nothing was put, so nobody will ever answer: a deadlock"),
        (answers.backwards, "seen: finalized: task 1, task 0. finalize must go"),
        (lambda tasks, in_queues, out_queues: [], "Expected: computed every task once"),
    ],
)
def test_wrong_schedulers_are_named(wrong, says):
    verdict = n09.check_run_clock(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_an_error_that_is_a_copy_of_the_original_is_noticed():
    def copies(in_queue, out_queue):
        while (task := in_queue.get()) is not None:
            try:
                out_queue.put((True, (task, task.compute())))
            except BaseException as error:
                out_queue.put((False, (type(error), type(error)(*error.args), error.__traceback__)))

    assert "seen: False, another ValueError" in n09.check_worker(copies).message


@pytest.mark.parametrize(
    "comment, right, wrong",
    [
        (lambda guessed: n09.guess_speed_up(guessed, 6, 2), 12 / 7, 4),
        (lambda guessed: n09.guess_size(guessed, {8: 0.8, 64: 1.3, 512: 1.9}), 64, 512),
        (n09.guess_streams, 17, 25),
        (n09.guess_finalize, "scheduler", "worker"),
        (n09.guess_answers, 3, 2),
        (n09.guess_shared_worker, 1, 2),
    ],
)
def test_a_guess_is_only_commented_on(comment, right, wrong):
    assert comment(None).status == comment(right).status == comment(wrong).status == "note"
    assert "No guess yet" in comment(None).message
    assert "that is it" in comment(right).message
    assert "that is it" not in comment(wrong).message


def test_a_machine_without_a_free_core_is_told_so():
    assert "is a second core free?" in n09.guess_size(64, {8: 0.5, 512: 1.0}).message
