"""What is particular about the checks of notebooks 00 and 01; what all have in common is in test_exercises."""

import multiprocessing
import multiprocessing.dummy as threads
from itertools import islice

import pytest

from support.n00 import checks as n00
from support.n01 import checks as n01
from support.n01 import watched
from support.n01.runs import simulate_loading
from support.n01.solved import load_in_order, predict_epoch, work


@pytest.mark.parametrize("check, number, says", [
    (n00.check_makespan, 0, "for times = [(1, 2), (4, 6)], expected 5, got 3. You added the durations up"),
    (n00.check_makespan, 1, "expected 5, got 6. You took the last end"),
])  # fmt: skip
def test_the_first_counterexample_of_a_wrong_answer(check, number, says):
    assert says in check([*check.mistakes.values()][number]).message


NONE = dict(read=0, collate=0, send=0, receive=0, cores=99)


@pytest.mark.parametrize("workers, prefetch", [(0, 2), (1, 1), (2, 1), (2, 2), (3, 3)])
def test_the_readers_model_is_the_one_that_the_figures_draw(workers, prefetch):
    for loads in ([20] * 9, [3] * 9, [5, 1, 40, 1, 1, 1, 9, 1]):
        drawn = simulate_loading(len(loads), loads, 7, workers, prefetch).makespan
        assert predict_epoch(loads, workers, step=7, prefetch=prefetch, **NONE) == drawn


def test_the_readers_model_shares_cores_and_charges_sending_only_with_workers():
    times = dict(read=1, collate=2, send=4, receive=8, step=16)
    assert predict_epoch([32] * 3, 0, 99, **times) == 3 * (32 + 1 + 2 + 16)
    assert predict_epoch([32] * 3, 9, 99, **times) == 32 + 1 + 2 + 4 + 3 * (8 + 16)
    assert predict_epoch([32] * 300, 9, 2, **times) == 300 * (32 + 2 + 4 + 8 + 16) / 2


def collector(work, dataset, batches, collate, workers=1, prefetch=2, context=None):
    """Wait for all results, sort, and hand them over: nothing overlaps and everything is held."""
    results, orders = context.Queue(), [context.Queue() for _ in range(workers)]
    team = [context.Process(target=work, args=(dataset, collate, queue, results)) for queue in orders]
    [worker.start() for worker in team]
    given = list(enumerate(batches))
    [orders[number % workers].put((number, indices)) for number, indices in given]
    [queue.put(None) for queue in orders]
    yield from (batch for _, batch, _ in sorted((results.get() for _ in given), key=lambda result: result[0]))


def one_by_one(work, dataset, batches, collate, workers=1, prefetch=2, context=None):
    """Order a batch, wait for it, hand it over: no look-ahead."""
    results, orders = context.Queue(), [context.Queue() for _ in range(workers)]
    [context.Process(target=work, args=(dataset, collate, queue, results)).start() for queue in orders]
    for number, indices in enumerate(batches):
        orders[number % workers].put((number, indices))
        yield results.get()[1]
    [queue.put(None) for queue in orders]


def ends_only_at_the_end(work, dataset, batches, collate, workers=1, prefetch=2, context=None):
    """Right as long as nobody breaks off and nothing is raised: there is no `finally`."""
    results, orders = context.Queue(), [context.Queue() for _ in range(workers)]
    team = [context.Process(target=work, args=(dataset, collate, queue, results)) for queue in orders]
    [worker.start() for worker in team]
    todo, early = enumerate(batches), {}

    def hand_out(count):
        for number, indices in islice(todo, count):
            orders[number % workers].put((number, indices))

    hand_out(workers * prefetch)
    for number in range(len(batches)):
        while number not in early:
            arrived, *early[arrived] = results.get()
        batch, error = early.pop(number)
        hand_out(1)
        if error is not None:
            raise error
        yield batch
    [queue.put(None) for queue in orders]
    [worker.join() for worker in team]


def in_the_trainer(work, dataset, batches, collate, workers=1, prefetch=2, context=None):
    """The loader of notebook 02, with no worker at all."""
    for indices in batches:
        yield collate([dataset[index] for index in indices])


def by_the_books_of_torch(work, dataset, batches, collate, workers=1, prefetch=2, context=None):
    """torch's own loader behind the name: the stand-in sees no worker."""
    from torch.utils.data import DataLoader

    yield from DataLoader(dataset, batch_sampler=batches, collate_fn=collate)


def swallowing(dataset, collate, orders, results):
    """A worker that gives an error back as if it were the batch."""
    while (order := orders.get()) is not None:
        try:
            results.put((order[0], collate([dataset[index] for index in order[1]]), None))
        except Exception as error:
            results.put((order[0], error, None))


def forgetful(dataset, collate, orders, results):
    """A worker that returns items and forgets to collate."""
    while (order := orders.get()) is not None:
        results.put((order[0], tuple(dataset[index] for index in order[1]), None))


@pytest.mark.parametrize("answer, says", [
    ((work, collector), n01.UNBOUND),
    ((work, one_by_one), n01.STARVED),
    ((work, ends_only_at_the_end), n01.LEFT),
    ((work, in_the_trainer), n01.BY_HAND),
    ((work, by_the_books_of_torch), n01.BY_HAND),
    ((swallowing, load_in_order), n01.LOST),
    ((forgetful, load_in_order), f"batch 0 is (0, 1), due is [0, 1]. {n01.UNCOLLATED}"),
    ((work, n01._load_but(("raise error", "continue"))), n01.LOST),
    ((work, n01._load_but(("raise error", "raise RuntimeError(error)"))), n01.AS_TEXT),
    ((lambda *_: print(end=""), load_in_order), "all wait for each other"),
    ((lambda dataset, *_: dataset.nothing, load_in_order), "in a worker your code raised AttributeError"),
])  # fmt: skip
def test_another_wrong_loader_is_told_its_fault_at_once(answer, says):
    verdict = n01.check_loader(*answer)
    assert verdict.status == "wrong" and says in verdict.message


@pytest.mark.ranks
@pytest.mark.parametrize("moment, end", [
    ("after a `break`", "send_home(team, orders, results, ())"),
    ("after an error", "send_home(team, orders, results, missing if number == 0 and error is None else ())"),
])  # fmt: skip
def test_a_loader_that_leaves_large_results_unfetched_is_ended_and_told_so(monkeypatch, moment, end):
    monkeypatch.setattr(watched, "PIPES_PATIENCE", 0.5)
    verdict = n01.check_loader(work, n01._load_but((n01._END_ALL, end)))
    assert f"on real processes, with large batches, {moment}, all wait for ever. {n01.HOME}" in verdict.message


@pytest.mark.parametrize(
    "context", [threads, pytest.param(multiprocessing.get_context("fork"), marks=pytest.mark.ranks)]
)
def test_the_solution_runs_on_real_processes_and_on_threads_and_the_notebook_goes_on_with_it(context):
    load = n01.use_loader(None, None)
    assert list(load(range(7), [[0, 1], [2, 3, 4], [5], [6]], sum, workers=2, context=context)) == [1, 9, 5, 6]
