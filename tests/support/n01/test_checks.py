"""What is particular about the checks of notebook 01; what all have in common is in test_detectors."""

import multiprocessing
import queue

import pytest
from torch.utils.data import DataLoader

from support.n01 import checks as n01
from support.n01 import trials
from support.n01.prediction import received_at
from support.n01.runs import simulate_loading
from support.n01.solved import load_in_order, predict_epoch, sendable, work
from support.n01.threads import threads

NONE = dict(read=0, send=0, receive=0, cores=99)


@pytest.mark.parametrize("workers, prefetch", [(0, 2), (1, 1), (2, 1), (2, 2), (3, 3)])
def test_the_readers_model_is_the_one_that_the_figures_draw(workers, prefetch):
    for loads in ([20] * 9, [3] * 9, [5, 1, 40, 1, 1, 1, 9, 1]):
        drawn = simulate_loading(len(loads), loads, 7, workers, prefetch).makespan
        assert predict_epoch(loads, workers, step=7, prefetch=prefetch, **NONE) == drawn


def test_the_readers_model_shares_cores_and_charges_sending_only_with_workers():
    times = dict(read=1, send=4, receive=8, step=16)
    assert predict_epoch([32] * 3, 0, 99, **times) == 3 * (32 + 1 + 16)
    assert predict_epoch([32] * 3, 9, 99, **times) == 32 + 1 + 4 + 3 * (8 + 16)
    assert predict_epoch([32] * 300, 9, 2, **times) == 300 * (32 + 4 + 8 + 16) / 2


def by_events(loads, workers, cores, read, send, receive, step, prefetch=2):
    """Predict an epoch by another way: each worker keeps its own clock, and orders are counted off."""
    free = [0] * workers
    orders = [0] * min(len(loads), workers * prefetch)
    now = 0
    if not workers:
        return max(sum(load + read + step for load in loads), sum(load + step for load in loads) / cores)
    for b, load in enumerate(loads):
        k = b % workers
        free[k] = max(free[k], orders[b]) + read + load + send
        now = max(now, free[k]) + receive
        orders.append(now)
        now += step
    return max(now, sum(load + send + receive + step for load in loads) / cores)


def test_a_prediction_that_is_written_otherwise_is_right():
    assert n01.check_predict(by_events).status == "right"


def test_the_case_that_the_notebook_works_out_by_hand_is_what_it_says():
    assert received_at([9, 99, 9, 9, 30], 2, 99, 0, 0, 0, 2, prefetch=1) == [9, 99, 101, 108, 131]


def gives(loads, workers, cores, read, send, receive, step, prefetch=2):
    return predict_epoch(loads, workers, cores, read, send, receive, step + 1, prefetch)


def test_an_unknown_prediction_is_told_when_the_batches_are_received():
    assert (
        "by the rules the batches are received at 35, 61, 87, 113"
        in n01.check_predict(
            lambda *given, **named: gives(*given, **named) if named["workers"] else predict_epoch(*given, **named)
        ).message
    )


# ---- the loader: two right ones that are built otherwise


def work_by_class(dataset, collate, orders, results):
    while True:
        order = orders.get()
        if order is None:
            return
        try:
            made = collate([dataset[i] for i in order[1]])
        except Exception as error:
            results.put({"number": order[0], "error": sendable(error)})
        else:
            results.put({"number": order[0], "batch": made})


class Pool:
    """Everything about the workers in an object; results lie in slots of their numbers."""

    def __init__(self, work, dataset, batches, collate, workers, prefetch, context):
        self.lists = iter(batches)
        self.queues = [context.Queue() for _ in range(workers)]
        self.results = context.Queue()
        self.given = self.came = 0
        self.slots = {}
        self.team = [context.Process(target=work, args=(dataset, collate, q, self.results)) for q in self.queues]
        for worker in self.team:
            worker.start()
        self.places = workers * prefetch

    def fill(self):
        for _ in range(self.places):
            self.order()

    def order(self):
        indices = next(self.lists, None)
        if indices is not None:
            self.queues[self.given % len(self.queues)].put((self.given, indices))
            self.given += 1

    def receive(self):
        result = self.results.get()
        self.came += 1
        self.slots[result["number"]] = result

    def end(self):
        while self.came < self.given:
            self.receive()
        for q in self.queues:
            q.put(None)
        for worker in self.team:
            worker.join()


def load_by_class(work, dataset, batches, collate, workers=1, prefetch=2, context=None):
    pool = Pool(work, dataset, batches, collate, workers, prefetch, context)
    try:
        pool.fill()
        turn = 0
        while turn < pool.given:
            while turn not in pool.slots:
                pool.receive()
            result = pool.slots.pop(turn)
            pool.order()
            if "error" in result:
                raise result["error"]
            yield result["batch"]
            turn += 1
    finally:
        pool.end()


def load_polling(work, dataset, batches, collate, workers=1, prefetch=2, context=None):
    """Look into the queue again and again; right as long as it ends."""
    pool = Pool(work, dataset, batches, collate, workers, prefetch, context)
    results = pool.results
    pool.results = type("Patient", (), {"get": lambda self: patient(results)})()
    try:
        pool.fill()
        for turn in range(len(batches)):
            while turn not in pool.slots:
                pool.receive()
            result = pool.slots.pop(turn)
            pool.order()
            if "error" in result:
                raise result["error"]
            yield result["batch"]
    finally:
        pool.end()


def patient(results):
    while True:
        try:
            return results.get(timeout=5)
        except queue.Empty:
            continue


@pytest.mark.ranks
@pytest.mark.parametrize("load", [load_by_class, load_polling])
@pytest.mark.parametrize("check", [n01.check_order, n01.check_loader])
def test_a_loader_that_is_built_otherwise_is_right(check, load):
    verdict = check(work_by_class, load)
    assert verdict.status == "right", verdict


def work_simply(dataset, collate, orders, results):
    while (order := orders.get()) is not None:
        results.put((order[0], collate([dataset[i] for i in order[1]])))


def load_simply(work, dataset, batches, collate, workers=1, prefetch=2, context=None):
    pool = Pool(work, dataset, batches, collate, workers, prefetch, context)
    early = {}
    pool.fill()
    for turn in range(len(batches)):
        while turn not in early:
            number, batch = pool.results.get()
            early[number] = batch
        batch = early.pop(turn)
        pool.order()
        yield batch
    for q in pool.queues:
        q.put(None)
    for worker in pool.team:
        worker.join()


@pytest.mark.costly
@pytest.mark.ranks
def test_what_suffices_for_exercise_3_fails_in_exercise_4():
    assert n01.check_order(work_simply, load_simply).status == "right"
    said = n01.check_loader(work_simply, load_simply).message
    assert "item 7 raises KeyError, and the loop waits for ever" in said
    assert trials.LOST in said


@pytest.mark.parametrize(
    "answer, says",
    [
        ((work, n01._load(("try:", "if True:"), ("finally:", "if True:"))), trials.LEFT_EARLY),
        (
            (work, lambda _, data, lists, collate, **more: (collate([data[i] for i in ids]) for ids in lists)),
            trials.BY_HAND,
        ),
        (
            (
                work,
                lambda _, data, lists, collate, **_more: iter(
                    DataLoader(data, batch_sampler=lists, collate_fn=collate)
                ),
            ),
            trials.BY_HAND,
        ),
        ((n01._work(("None, sendable(error))", "sendable(error), None)")), load_in_order), trials.LOST),
        (
            (n01._work(("collate([", "tuple([")), load_in_order),
            f"batch 0 is (0, 1), due is [0, 1]. {trials.UNCOLLATED}",
        ),
        (
            (n01._work(("collate([", "([")), load_in_order),
            f"batch 0 is [0, 1], due is what `collate` makes of it. {trials.UNCOLLATED}",
        ),
        ((work, n01._load(("raise error", "continue"))), trials.LOST),
        ((work, n01._load(("raise error", "raise RuntimeError(error)"))), trials.AS_TEXT),
        ((work, n01._load(("yield batch", "yield batch; batches[number]"))), "A batch sampler has no places"),
        ((lambda *_: print(end=""), load_in_order), "all wait for each other"),
        ((lambda dataset, *_: dataset.nothing, load_in_order), "in a worker your code raised AttributeError"),
    ],
)
def test_another_wrong_loader_is_told_its_fault_at_once(answer, says):
    verdict = n01.check_loader(*answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.ranks
def test_a_loader_of_daemons_that_closes_what_it_made_is_right_and_the_notebook_goes_on_with_it_also_on_threads():
    closes = n01._load(
        ("queue, results))", "queue, results), daemon=True)"),
        (n01.END_ALL, f"{n01.END_ALL}; [made.close() for made in (results, *orders, *team)]"),
    )
    load = n01.use_loader(n01.work, closes)
    assert load.func is closes
    assert n01.use_loader(None, None).func is n01.load_in_order
    for context in (threads, multiprocessing.get_context("fork")):
        assert list(load(range(7), [[0, 1], [2, 3, 4], [5], [6]], sum, workers=2, context=context)) == [1, 9, 5, 6]


def test_a_choice_may_be_written_with_a_capital_and_another_word_is_told_to_be_none():
    assert "that is it" in n01.guess_who_gains(" Slow").message
    assert "'fast', which is none of heavy, slow, same" in n01.guess_who_gains("fast").message
    assert "that is it" in n01.guess_who_loads(0).message
    assert "that is it" in n01.guess_who_loads("Worker 0").message


# ---- the pinning stage
