"""The model of torch's DataLoader against its closed forms, and against a DataLoader that really runs."""

import math
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lib.timeline import Recorder
from support.digits import Digits, write_digits
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


def test_what_an_epoch_costs_without_workers_with_many_on_few_cores_and_with_a_blocking_copy():
    alone = n01.simulate_loading(5, load=3, step=2)
    assert (alone.lanes, alone.makespan) == ((n01.TRAINER,), 5 * (3 + 2))
    assert [span.label for span in alone][:4] == ["load 0", "step 0", "load 1", "step 1"]
    for workers in (2, 4, 8):  # the first load, and then the slower of two
        epoch = n01.simulate_loading(400, load=8, step=3, num_workers=workers).makespan
        assert epoch == pytest.approx(8 + 400 * max(3, 8 / workers), rel=0.02)
    assert n01.simulate_loading(20, 3, 2, 4, cores=1).makespan == pytest.approx(20 * (3 + 2))
    part = n01.simulate_loading(400, load=24, step=12, num_workers=2, cores=1.5).makespan
    assert part / 400 == pytest.approx((24 + 12) / 1.5, rel=0.02)
    copied = n01.simulate_loading(10, load=2, step=3, num_workers=2, transfer=1)
    assert (copied.makespan, copied.active("transfer")) == (2 + 10 * (1 + 3), 10)


def test_worker_k_loads_every_wth_batch_and_the_trainer_takes_them_in_order():
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
    loads = [1.0] * 30
    loads[20] = 8.0
    epochs = [n01.simulate_loading(30, loads, 1.0, 2, prefetch).makespan for prefetch in (1, 2, 4, 8)]
    # 31 is what it takes without a slow batch; with p places a worker, its load starts 2p steps before its turn
    assert epochs == [31 + 8 - 2, 31 + 8 - 4, 31, 31]


def test_what_computes_needs_a_core_and_what_waits_does_not():
    computing = [n01.simulate_loading(400, 24, 12, workers, cores=2).makespan / 400 for workers in (1, 2, 4)]
    waiting = [n01.simulate_loading(400, 24, 12, w, cores=2, waiting=16).makespan / 400 for w in (1, 2, 4)]
    assert computing == pytest.approx([24, (24 + 12) / 2, (24 + 12) / 2], rel=0.02)
    assert waiting[0] == pytest.approx(24, rel=0.02) and waiting[2] == pytest.approx(12, rel=0.02)
    assert 12 < waiting[1] < 18  # at the edge, where the two workers and the trainer now and then want the same core


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(batches=0), "batches must be at least 1, not 0"),
        (dict(num_workers=-1), "num_workers must be at least 0, not -1"),
        (dict(num_workers=1.5), "num_workers must be an integer"),
        (dict(prefetch_factor=0), "prefetch_factor must be at least 1, not 0"),
        (dict(cores=0), "cores must be at least 1"),
        (dict(load=-1.0), "load must be a number of seconds"),
        (dict(step=float("nan")), "step must be a number of seconds"),
        (dict(load=[1.0, 2.0]), "one for each of 4 batches, not 2 numbers"),
        (dict(waiting=2.0), "waiting is a part of load, so 2.0 must not exceed 1.0"),
    ],
)
def test_bad_arguments_raise_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        n01.simulate_loading(**{"batches": 4, "load": 1.0, "step": 1.0, **arguments})


def test_a_pipeline_takes_one_pass_and_then_the_slowest_hop_for_each_further_batch():
    hops = dict(load=6, pin=1, transfer=2, step=4)
    assert n01.simulate_path(6, hops).makespan == sum(hops.values()) + 5 * max(hops.values())
    assert n01.simulate_path(6, hops, overlap=False).makespan == 6 * sum(hops.values())
    assert n01.simulate_path(6, hops).lanes == tuple(hops)
    with pytest.raises(ValueError, match="at least one hop"):
        n01.simulate_path(6, {})
    with pytest.raises(ValueError, match="pin must be a number of seconds"):
        n01.simulate_path(6, dict(pin=-1))


class Numbers(Dataset):
    """Item i is i."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index


def epoch_of_numbers(workers, prefetch=2, latency=0.002):
    recorder, seen = Recorder(), []
    dataset = n01.TimedDataset(Numbers(), recorder, latency=latency)
    loader = DataLoader(dataset, batch_size=2, num_workers=workers, prefetch_factor=prefetch if workers else None)
    trace = n01.run_epoch(loader, lambda batch: seen.extend(batch.tolist()), recorder)
    return trace, seen


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_measured_epoch_has_the_lanes_labels_and_order_of_the_model(workers):
    measured, seen = epoch_of_numbers(workers)
    predicted = n01.simulate_loading(12, load=2, step=1, num_workers=workers, waiting=1)
    assert seen == list(range(24))
    assert measured.lanes == predicted.lanes
    for lane in measured.lanes:
        for kind in ("read", "load", "step"):
            labels = [[s.label for s in trace.only(lane=lane, kind=kind)] for trace in (measured, predicted)]
            assert labels[0] == labels[1]


@pytest.mark.parametrize("workers, prefetch", [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_torch_keeps_the_rules_of_the_model(workers, prefetch):
    trace = epoch_of_numbers(workers, prefetch)[0]
    depths = [depth for _, depth in n01.queue_depth(trace)]
    assert depths[0] == depths[-1] == min(depths) == 0 and max(depths) <= workers * prefetch
    at = n01.moments(trace)
    places = workers * prefetch
    for batch in range(12):
        assert at["started"][batch] < at["ended"][batch] < at["taken"][batch]
        if batch >= places:  # its place in the queue was free: the trainer had asked for the one that held it
            assert at["started"][batch] > at["asked"][batch - places]
        if batch >= workers:
            assert at["started"][batch] >= at["ended"][batch - workers]


def test_a_second_epoch_of_the_same_workers_is_recorded_on_its_own():
    recorder = Recorder()
    loader = DataLoader(n01.TimedDataset(Numbers(), recorder), 2, num_workers=2, persistent_workers=True)
    first, second = (n01.run_epoch(loader, lambda batch: None, recorder) for _ in range(2))
    assert len(first.only(kind="load")) == len(second.only(kind="load")) == 12 and second.start == 0.0


def test_a_timed_dataset_gives_the_items_of_the_one_inside(tmp_path):
    digits = Digits(write_digits(tmp_path / "digits"), transform=partial(n01.prepare, size=32))
    timed = n01.TimedDataset(digits, Recorder())
    assert len(timed) == len(digits) and torch.equal(timed[3][0], digits[3][0]) and timed[3][1] == digits[3][1]
    assert [label for _, label in timed.__getitems__([5, 7])] == [digits[5][1], digits[7][1]]
    with pytest.raises(ValueError, match="latency must be a number of seconds"):
        n01.TimedDataset(digits, Recorder(), latency=-0.1)


def test_prepared_images_are_of_one_size_in_range_and_the_same_in_every_run():
    image = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    for detail in (1, 2):
        large = n01.prepare(image, size=48, detail=detail)
        assert large.shape == (1, 48, 48) and large.min() >= 0 and large.max() <= 1
        assert torch.equal(large, n01.prepare(image, size=48, detail=detail))
    assert large.mean() == pytest.approx(image.mean().item(), abs=0.1)


def test_the_measured_numbers_are_medians_and_without_a_gpu_copies_are_not_measured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        n01.measure_copies()
    trace = n01.simulate_loading(3, load=[5, 6, 9], step=2, waiting=1)
    assert n01.costs(trace, trace) == {"load": 6, "waiting": 1, "step": 2}
    assert n01.costs(n01.simulate_loading(4, 3, 2)) == {"load": 3, "waiting": 0, "step": 2}
    with pytest.raises(ValueError, match="nothing was measured"):
        n01.costs(trace.only(kind="load"))
