"""Workers that are right one at a time, and wrong as soon as there are two."""

import sys
from threading import Lock

import pytest

from support.n09 import checks as n09


def worker_with_a_lock(in_queue, out_queue, lock=Lock()):  # noqa: B008  (all workers share it)
    while (task := in_queue.get()) is not None:
        try:
            with lock:
                answer = True, (task, task.compute())
        except BaseException:
            answer = False, sys.exc_info()
        out_queue.put(answer)
    out_queue.put((False, None))


def worker_with_a_common_batch(in_queue, out_queue, batch=[]):  # noqa: B006  (all workers share it)
    while (task := in_queue.get()) is not None:
        batch.clear()
        try:
            batch.append(task.compute())
            answer = True, (task, batch[0])
        except BaseException:
            answer = False, sys.exc_info()
        out_queue.put(answer)
    out_queue.put((False, None))


def worker_with_a_common_error(in_queue, out_queue, errors=[]):  # noqa: B006  (all workers share it)
    while (task := in_queue.get()) is not None:
        errors.clear()
        batch = None
        try:
            batch = task.compute()
        except BaseException:
            errors.append(sys.exc_info())
        out_queue.put((False, errors[0]) if errors else (True, (task, batch)))
    out_queue.put((False, None))


@pytest.mark.parametrize(
    "worker, says",
    [
        (worker_with_a_common_batch, " and batch of task "),
        (
            worker_with_a_common_error,
            "Expected: True, task 1 and its batch; seen: False, the ValueError of task 0, not of",
        ),
    ],
)
def test_what_workers_must_not_share_is_seen_where_two_compute_at_the_same_time(worker, says, monkeypatch):
    monkeypatch.setattr(n09, "PATIENCE", 0.6)
    monkeypatch.setattr(n09, "_recognised", lambda *given: "")  # which famous mistake it is doesn't matter here
    verdict = n09.check_worker(worker)
    assert verdict.status == "wrong"
    assert "two workers do one each at the same time" in verdict.message
    assert says in verdict.message


def test_a_lock_that_workers_share_is_named(monkeypatch):
    monkeypatch.setattr(n09, "PATIENCE", 0.6)
    verdict = n09.check_worker(worker_with_a_lock)
    assert verdict.status == "wrong"
    assert "two workers do one each at the same time" in verdict.message
    assert "computed one at a time. A lock that workers share lets one of them compute" in verdict.message
