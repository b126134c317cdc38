"""What is particular about the checks of notebook 01; what all have in common is in test_detectors."""

import multiprocessing
import multiprocessing.dummy as threads

import pytest
from torch.utils.data import DataLoader

from support.n01 import checks as n01
from support.n01 import trials, watched
from support.n01.runs import simulate_loading
from support.n01.solved import load_in_order, predict_epoch, work

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


@pytest.mark.parametrize(
    "answer, says",
    [
        ((work, n01._load(("try:", "if True:"), ("finally:", "if True:"))), n01.LEFT),  # right if nobody breaks off
        (
            (work, lambda _, data, lists, collate, **more: (collate([data[i] for i in ids]) for ids in lists)),
            n01.BY_HAND,
        ),
        (
            (
                work,
                lambda _, data, lists, collate, **_more: iter(
                    DataLoader(data, batch_sampler=lists, collate_fn=collate)
                ),
            ),
            n01.BY_HAND,
        ),
        ((n01._work(("None, error)", "error, None)")), load_in_order), n01.LOST),
        ((n01._work(("collate([", "tuple([")), load_in_order), f"batch 0 is (0, 1), due is [0, 1]. {n01.UNCOLLATED}"),
        ((work, n01._load(("raise error", "continue"))), n01.LOST),
        ((work, n01._load(("raise error", "raise RuntimeError(error)"))), n01.AS_TEXT),
        ((lambda *_: print(end=""), load_in_order), "all wait for each other"),
        ((lambda dataset, *_: dataset.nothing, load_in_order), "in a worker your code raised AttributeError"),
    ],
)
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
    verdict = n01.check_loader(work, n01._load((n01.END_ALL, end)))
    assert f"on real processes, with large batches, {moment}, all wait for ever. {trials.HOME}" in verdict.message


@pytest.mark.parametrize(
    "context", [threads, pytest.param(multiprocessing.get_context("fork"), marks=pytest.mark.ranks)]
)
def test_the_solution_runs_on_real_processes_and_on_threads_and_the_notebook_goes_on_with_it(context):
    load = n01.use_loader(None, None)
    assert list(load(range(7), [[0, 1], [2, 3, 4], [5], [6]], sum, workers=2, context=context)) == [1, 9, 5, 6]
