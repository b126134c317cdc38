"""Ways to spawn and to wait for workers that readers of notebook 09 may write, and what is seen of them."""

import time
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, Queue, SimpleQueue
from threading import Event, Thread

import pytest

from support.built import worker as serve
from support.n09.trials import ask_spawn
from tests.support.n09.test_right_answers import SpawnByClass
from tests.support.n09.test_wrong_answers import spawn_that_waits_otherwise, spawn_with

THREE = ("cpu", "cpu", "cpu")


@contextmanager
def spawn_that_polls(devices, rest, times=100):
    """Look whether the threads have ended, so many times, and rest in between."""
    pairs = [(SimpleQueue(), SimpleQueue()) for _ in devices]
    threads = [Thread(target=serve, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    try:
        yield [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    finally:
        for in_queue, _ in pairs:
            in_queue.put(None)
        for _ in range(times):
            if any(thread.is_alive() for thread in threads):
                rest(threads)


def rest_in_sleep(threads):
    time.sleep(0.01)


def rest_in_an_event(threads):
    Event().wait(0.01)


def rest_in_join(threads):
    threads[0].join(0.01)


def rest_in_a_queue(threads):
    with suppress(Empty):
        Queue().get(timeout=0.01)


@contextmanager
def spawn_whose_threads_die(devices, kind=SimpleQueue):
    pairs = [(kind(), kind()) for _ in devices]
    threads = [Thread(target=serve, args=pair[:1]) for pair in pairs]
    for thread in threads:
        thread.start()
    yield [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for thread in threads:
        thread.join()


class SpawnWithRoomForOne(SpawnByClass):
    room = 1


def spawn_with_room(devices, room_for_tasks, room_for_answers=0):
    return spawn_with(devices, partial(Queue, room_for_tasks), partial(Queue, room_for_answers))


@pytest.mark.parametrize("rest", [rest_in_sleep, rest_in_an_event, rest_in_join, rest_in_a_queue])
def test_looks_that_are_counted_end_before_a_task_that_lasts(rest):
    seen = ask_spawn(partial(spawn_that_polls, rest=rest), THREE, patience=0.6)
    assert any(said.startswith("threads alive after the with: 3") for said in seen.said), seen.said


def test_looks_without_an_end_are_a_way_to_wait():
    for rest in (rest_in_sleep, rest_in_an_event, rest_in_a_queue):

        def until_all_have_ended(threads, rest=rest):
            while any(thread.is_alive() for thread in threads):
                rest(threads)

        seen = ask_spawn(partial(spawn_that_polls, rest=until_all_have_ended), THREE, patience=5.0)
        assert "threads alive after the with: 0" in seen.said
        assert "tasks that waited are computed: True" in seen.said


def test_to_wait_for_an_event_that_nobody_sets_is_to_wait_for_nobody():
    answer = partial(spawn_that_waits_otherwise, wait=lambda *pair: Event().wait(1))
    seen = ask_spawn(answer, THREE, patience=0.6)
    assert "threads alive after the with: 3, and for good: 0" in seen.said


@pytest.mark.parametrize("kind", [SimpleQueue, Queue])
def test_the_error_by_which_a_thread_has_died_stands_beside_its_missing_answer(kind):
    seen = ask_spawn(partial(spawn_whose_threads_die, kind=kind), THREE, patience=0.2)
    (told,) = [said for said in seen.said if said.startswith("no answer to task 0")]
    assert told.startswith("no answer to task 0 (a thread raised TypeError: worker() missing 1 required")


def test_a_queue_with_room_for_one_task_is_filled_and_not_waited_for():
    start = time.monotonic()
    seen = ask_spawn(partial(spawn_with_room, room_for_tasks=1), THREE, patience=10.0)
    assert time.monotonic() - start < 10, "the patience is for what is stuck"
    assert seen.said[-2:] == ["threads alive after the with: 0", "tasks that waited are computed: True"]


def test_tasks_that_share_a_queue_with_room_for_one_keep_no_other_worker_waiting():
    seen = ask_spawn(SpawnWithRoomForOne, ("cuda:0", "cuda:0", "cuda:0", "cpu"), patience=0.6)
    assert "computed at the same time" in seen.said
    assert seen.said[-1] == "tasks that waited are computed: True"


def test_room_for_one_answer_is_too_little_however_few_tasks_have_room():
    seen = ask_spawn(partial(spawn_with_room, room_for_tasks=1, room_for_answers=1), THREE, patience=0.3)
    assert seen.said[-1] == "the with never ended"
