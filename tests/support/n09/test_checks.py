"""What is particular about the checks of notebook 09; what all exercises have in common is in test_exercises."""

import pytest
import torch

from lib.pipeline.worker import worker as lib_worker
from support.n09 import checks as n09
from support.n09.figures import clock_trace


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Wrong answers that hang are given up sooner; the right ones never wait for anything."""
    monkeypatch.setattr(n09, "PATIENCE", 0.6)


def test_the_worker_of_lib_passes(monkeypatch):
    monkeypatch.setattr(n09, "PATIENCE", 10.0)
    assert n09.check_worker(lambda *queues: lib_worker(*queues, torch.device("cpu")))


def test_the_makespan_is_that_of_the_predicted_trace_and_a_machine_without_a_free_core_is_told_so():
    for m, seconds in ((1, [2, 3]), (5, [1]), (4, [3, 1, 2]), (2, [1, 4, 1, 1])):
        assert n09.check_makespan.reference(m, seconds) == clock_trace(m, seconds).makespan
    assert "is a second core free?" in n09.guess_size(64, {8: 0.5, 512: 1.0}).message


def copies(in_queue, out_queue):
    while (task := in_queue.get()) is not None:
        try:
            out_queue.put((True, (task, task.compute())))
        except BaseException as error:
            out_queue.put((False, (type(error), type(error)(*error.args), error.__traceback__)))


@pytest.mark.parametrize(
    "check, wrong, says",
    [
        (n09.check_makespan, "Here a clock begins", "micro_batches = 4, seconds = [3, 1, 2], expected 16, got 15"),
        (n09.check_worker, "The error is swallowed", "Expected: False, its ValueError; seen: no answer to task 1"),
        (n09.check_worker, "The error is answered", "seen: no answer to task 2"),
        (n09.check_worker, "SystemExit is no", "raises SystemExit, works. Expected: False, its SystemExit; seen: no"),
        (n09.check_worker, "None is no task", "seen: still running after None"),
        (n09.check_worker, "finalize belongs", "(finalized in the worker)"),
        (n09.check_worker, lambda *queues: queues[0].get(), "do this: works. Expected: True, task 0 and its batch"),
        (n09.check_worker, lambda *queues: queues[1].put(7), "seen: an answer of another form: int"),
        (n09.check_worker, copies, "seen: False, another ValueError"),
        (n09.check_run_clock, "You wait for each", "seen: computed one at a time"),
        (n09.check_run_clock, "Raised too early", "seen: answers left in the queues: 1"),
        (n09.check_run_clock, "Nobody calls", "seen: finalized: none"),
        (n09.check_run_clock, "The errors are dropped", "Expected: raised the ValueError of task 1"),
        (n09.check_run_clock, "Of several errors", "seen: raised the RuntimeError of task 1"),
        (n09.check_run_clock, "finalize must go", "seen: finalized: task 1, task 0"),
        (n09.check_run_clock, lambda tasks, *queues: [], "Expected: computed every task once"),
    ],
)
def test_a_wrong_answer_is_told_what_was_seen_of_it(check, wrong, says):
    """`wrong` is an answer, or how the sentence on a famous one begins."""
    if isinstance(wrong, str):
        (wrong,) = [known for why, known in check.mistakes.items() if why.startswith(wrong)]
    verdict = check(wrong)
    assert verdict.status == "wrong" and says in verdict.message
