"""Loaders with workers that empty what `collate` may keep, or leave the trainer's queues to a thread of its own."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from queue import Queue
from threading import Condition, Thread

import pytest

from support.kit.mistakes import edited
from support.n01 import checks as n01
from support.n01 import trials
from support.n01.solved import load_in_order, sendable, work

LOADS = "items = [dataset[index] for index in indices]\n            "
EMPTIED = {
    "behind collate": n01._work(
        (
            n01._LOADED,
            LOADS + "batch = collate(items)\n            items.clear()\n            results.put((number, batch, None))",
        )
    ),
    "behind the message": n01._work((n01._LOADED, LOADS + n01._LOADED_ITEMS + "\n            items.clear()")),
}


@pytest.mark.parametrize("check", [n01.check_order, n01.check_loader])
@pytest.mark.parametrize("answer", EMPTIED.values(), ids=EMPTIED)
def test_a_list_that_is_emptied_behind_collate_is_told(check, answer):
    verdict = check(answer, load_in_order)
    assert verdict.status == "wrong"
    assert trials.EMPTIED in verdict.message


def received_by_a_thread(work, dataset, batches, collate, workers=1, prefetch=2, context=None):
    todo = enumerate(batches)
    results = context.Queue()
    orders = [context.Queue() for _ in range(workers)]
    team = [context.Process(target=work, args=(dataset, collate, queue, results)) for queue in orders]
    for worker in team:
        worker.start()
    early = {}
    news = Condition()

    def receive():
        for _ in range(len(batches)):
            number, batch, _error = results.get()
            with news:
                early[number] = batch
                news.notify()

    def hand_out(count):
        for number, indices in islice(todo, count):
            orders[number % workers].put((number, indices))

    def quietly():
        with suppress(SystemExit):  # by which a check ends threads
            receive()

    thread = Thread(target=quietly, daemon=True)
    thread.start()
    hand_out(workers * prefetch)
    for number in range(len(batches)):
        with news:
            news.wait_for(lambda number=number: number in early, 5)
            batch = early.pop(number)
        hand_out(1)
        yield batch
    thread.join()
    for queue in orders:
        queue.put(None)
    for worker in team:
        worker.join()


IN_A_THREAD = "ThreadPoolExecutor(1).submit({}).result()"
BY_THREADS = {
    "receives": received_by_a_thread,
    "receives by an executor": edited(
        load_in_order,
        ("= results.get()", f"= {IN_A_THREAD.format('results.get')}"),
        names={"ThreadPoolExecutor": ThreadPoolExecutor},
    ),
    "gives orders": edited(
        load_in_order,
        (
            "orders[number % workers].put((number, indices))",
            IN_A_THREAD.format("orders[number % workers].put, (number, indices)"),
        ),
        names={"ThreadPoolExecutor": ThreadPoolExecutor},
    ),
}


@pytest.mark.parametrize("check", [n01.check_order, n01.check_loader])
@pytest.mark.parametrize("answer", BY_THREADS.values(), ids=BY_THREADS)
def test_a_thread_in_the_place_of_the_trainer_is_told_and_nothing_else(check, answer):
    verdict = check(work, answer)
    assert verdict.status == "wrong"
    assert verdict.message.endswith(trials.THREADS)
    assert not [sentence for sentence in check.mistakes if sentence in verdict.message]


def sends_by_a_thread(dataset, collate, orders, results):
    """A worker may have threads."""
    made = Queue()

    def send():
        for message in iter(made.get, None):
            results.put(message)

    sender = Thread(target=send)
    sender.start()
    while (order := orders.get()) is not None:
        number, indices = order
        try:
            made.put((number, collate([dataset[index] for index in indices]), None))
        except Exception as error:
            made.put((number, None, sendable(error)))
    made.put(None)
    sender.join()


@pytest.mark.parametrize("check", [n01.check_order, n01.check_loader])
def test_a_thread_of_a_worker_is_not_told_of_the_trainer(check):
    assert trials.THREADS not in check(sends_by_a_thread, load_in_order).message


EQUALS_NOTHING = edited(
    load_in_order,
    ("while number not in early", "while early.get(number, missed) == missed"),
    ("arrived, *early[arrived] = results.get()", "arrived, early[arrived], error = results.get()"),
    ("batch, error = early.pop(number)", "batch = early.pop(number)"),
    names={"missed": object()},
)


@pytest.mark.parametrize("check", [n01.check_order, n01.check_loader])
def test_a_batch_that_is_asked_whether_it_equals_another_says_that_it_can_not_tell(check):
    verdict = check(work, EQUALS_NOTHING)
    assert verdict.status == "wrong"
    assert "your code raised RuntimeError: Boolean value of Tensor" in verdict.message
