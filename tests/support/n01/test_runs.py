"""The model of torch's DataLoader against its closed forms, and against a DataLoader that really runs."""

import math
import time

import pytest
from torch.utils.data import DataLoader, Dataset, get_worker_info

from lib.timeline import Recorder
from support.n01 import runs as n01

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores: on purpose


def exact(batches, load, step, workers):
    """The longer of two paths: through all steps, or through the last worker's loads and the steps that then remain."""
    rounds = math.ceil(batches / workers)
    left = batches - workers * (rounds - 1)
    return max(load + batches * step, rounds * load + left * step)


@pytest.mark.parametrize("load, step", [(1, 1), (2, 1), (6, 2), (7, 3), (1, 5), (0, 2), (4, 0)])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("prefetch", [2, 4])
def test_with_even_batches_the_epoch_is_the_longer_of_two_paths(load, step, workers, prefetch):
    for batches in (1, 2, 3, 7, 12):
        predicted = n01.simulate_loading(batches, load, step, workers, prefetch).makespan
        assert predicted == pytest.approx(exact(batches, load, step, workers))


def test_without_workers_times_add_up_and_worker_k_loads_every_wth_batch_and_they_are_taken_in_order():
    alone = n01.simulate_loading(5, load=3, step=2)
    assert (alone.lanes, alone.makespan) == ((n01.TRAINER,), 5 * (3 + 2))
    assert [span.label for span in alone][:4] == ["load 0", "step 0", "load 1", "step 1"]
    trace = n01.simulate_loading(7, load=[9, 1, 1, 1, 1, 1, 1], step=1, num_workers=3)
    assert [span.label for span in trace.only(lane="worker 1")] == ["load 1", "load 4"]
    assert [span.label for span in trace.only(kind="step")] == [f"step {batch}" for batch in range(7)]


def test_one_slow_batch_is_waited_for_and_a_deeper_queue_absorbs_it():
    loads = [1.0] * 12
    loads[4] = 10.0
    trace = n01.simulate_loading(12, loads, step=1, num_workers=2)
    assert max(depth for _, depth in n01.queue_depth(trace)) == 3
    waits = [span.label for span in trace.only(kind="wait")]
    assert waits == ["wait 0", "wait 4"]
    assert max(n01.queue_held_up(trace)) == 2, "batches 5 and 7 lie ready while 4 is loaded"
    assert not any(n01.queue_held_up(n01.simulate_loading(12, 1.0, 1.0, 2)))
    loads = [1.0] * 30
    loads[20] = 8.0
    epochs = [n01.simulate_loading(30, loads, 1.0, 2, prefetch).makespan for prefetch in (1, 2, 4, 8)]
    # 31 is what it takes without a slow batch; with p places a worker, its load starts 2p steps before its turn
    assert epochs == [31 + 8 - 2, 31 + 8 - 4, 31, 31]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(batches=0), "batches must be at least 1, not 0"),
        (dict(num_workers=-1), "num_workers must be at least 0, not -1"),
        (dict(num_workers=1.5), "num_workers must be an integer"),
        (dict(prefetch_factor=0), "prefetch_factor must be at least 1, not 0"),
        (dict(load=-1.0), "load must be a number of seconds"),
        (dict(step=float("nan")), "step must be a number of seconds"),
        (dict(load=[1.0, 2.0]), "one for each of 4 batches, not 2"),
    ],
)
def test_bad_arguments_raise_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        n01.simulate_loading(**{"batches": 4, "load": 1.0, "step": 1.0, **arguments})


def test_a_path_without_overlap_takes_the_sum_of_its_hops_and_bad_hops_are_refused():
    hops = dict(load=6, pin=1, transfer=2, step=4)
    assert n01.simulate_path(6, hops, overlap=False).makespan == 6 * sum(hops.values())
    assert n01.simulate_path(6, hops).lanes == tuple(hops)
    with pytest.raises(ValueError, match="at least one hop"):
        n01.simulate_path(6, {})
    with pytest.raises(ValueError, match="pin must be a number of seconds"):
        n01.simulate_path(6, dict(pin=-1))


class Numbers(Dataset):
    def __init__(self, recorder):
        self.recorder = recorder

    def __len__(self):
        return 24

    def __getitems__(self, indices):
        info = get_worker_info()
        lane = n01.TRAINER if info is None else n01.worker_lane(info.id)
        with self.recorder.span(lane, "read", "read"):
            time.sleep(0.002)
        with self.recorder.span(lane, "load", "load"):
            return indices


def epoch_of_numbers(workers, prefetch=2):
    recorder = Recorder()
    seen = []
    dataset = Numbers(recorder)
    loader = DataLoader(dataset, batch_size=2, num_workers=workers, prefetch_factor=prefetch if workers else None)
    trace = n01.run_epoch(loader, lambda batch: seen.extend(batch.tolist()), recorder)
    return trace, seen


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_measured_epoch_has_the_lanes_labels_and_order_of_the_model(workers):
    measured, seen = epoch_of_numbers(workers)
    predicted = n01.simulate_loading(12, load=2, step=1, num_workers=workers)
    assert seen == list(range(24))
    assert measured.lanes == predicted.lanes
    for lane in measured.lanes:
        for kind in ("load", "step"):
            labels = [[s.label for s in trace.only(lane=lane, kind=kind)] for trace in (measured, predicted)]
            assert labels[0] == labels[1]


@pytest.mark.parametrize("workers, prefetch", [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_torch_keeps_the_rules_of_the_model(workers, prefetch):
    trace = epoch_of_numbers(workers, prefetch)[0]
    depths = [depth for _, depth in n01.queue_depth(trace)]
    at = n01.moments(trace)
    places = workers * prefetch
    # torch gives a place away before it hands the batch over: on a busy machine the next lies ready by then
    assert depths[0] == depths[-1] == min(depths) == 0 and max(depths) <= places + 1
    for batch in range(12):
        assert at["started"][batch] < at["ended"][batch] < at["taken"][batch]
        if batch >= places:  # its place in the queue was free: the trainer had asked for the one that held it
            assert at["started"][batch] > at["asked"][batch - places]
        if batch >= workers:
            assert at["started"][batch] >= at["ended"][batch - workers]


def test_a_second_epoch_of_the_same_workers_is_recorded_on_its_own():
    recorder = Recorder()
    loader = DataLoader(Numbers(recorder), 2, num_workers=2, persistent_workers=True)
    first, second = (n01.run_epoch(loader, lambda batch: None, recorder) for _ in range(2))
    assert len(first.only(kind="load")) == len(second.only(kind="load")) == 12 and second.start == 0.0


def test_the_verdict_blames_a_miss_on_the_machine_only_where_it_was_disturbed():
    assert "explains this run" in n01.verdict(0.12, quiet=True) == n01.verdict(0.25, quiet=False)
    assert "do not rely on the model" in n01.verdict(0.40, quiet=True)
    assert "measure again" in n01.verdict(0.40, quiet=False)
