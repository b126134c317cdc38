"""The model of torch's DataLoader against its closed forms, and against a DataLoader that really runs."""

import math
import time

import pytest
from torch.utils.data import DataLoader, Dataset, get_worker_info

from lib.timeline import Recorder, Span, Trace
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


@pytest.mark.parametrize("load, step, most", [(6, 8, 2), (1, 8, 3), (6, 4, 0)])
def test_a_hop_begins_only_when_a_place_behind_it_is_free_so_no_queue_holds_more(load, step, most):
    trace = n01.simulate_path(8 if load == 1 else 6, dict(load=load, step=step))
    assert n01.most_waiting(trace, "load", "step") == most
    deep = n01.simulate_path(8, dict(load=1, step=8), places=9)
    assert n01.most_waiting(deep, "load", "step") == 7


def test_out_of_order_the_trainer_never_waits_for_the_slow_batch_and_no_place_is_added():
    loads = [12] * 12 + [72] + [12] * 7
    in_order, free = (n01.simulate_loading(20, loads, 12, 2, in_order=order) for order in (True, False))
    assert (in_order.makespan, free.makespan) == (276, 252)
    taken = [n01.number_of(span) for span in free.only(kind="step")]
    assert sorted(taken) == list(range(20))
    assert taken != list(range(20))
    assert n01.broken_rules(in_order, 2) == []
    assert [rule[:6] for rule in n01.broken_rules(free, 2)] == ["rule 1", "rule 2"]


def spans(*rows):
    return Trace([Span(lane, label, start, end, label.split()[0]) for lane, label, start, end in rows])


STEPS = [("trainer", f"step {b}", 2 + b, 3 + b) for b in range(3)]
KEPT = [("worker 0", "load 0", 0, 1), ("worker 0", "load 1", 1, 2), ("worker 0", "load 2", 3, 4)]


def test_each_rule_is_seen_to_be_broken_where_it_is():
    assert n01.broken_rules(spans(*STEPS, *KEPT), 1) == []
    swapped = [("trainer", f"step {b}", start, end) for b, (_, _, start, end) in zip((1, 0, 2), STEPS, strict=True)]
    assert n01.broken_rules(spans(*swapped, *KEPT), 1) == ["rule 1: in turn 0 the trainer got batch 1"]
    other = [("worker 1", "load 1", 1, 2)]
    assert n01.broken_rules(spans(*STEPS, KEPT[0], *other, KEPT[2]), 1) == [
        "rule 2: batch 1 was loaded by worker 1, not by worker 0"
    ]
    early = [*KEPT[:2], ("worker 0", "load 2", 1.5, 2)]  # before the trainer asks for batch 1, at 3
    waits = [("trainer", "wait 0", 0, 2)]
    late = [(lane, label, start + 2, end + 2) for lane, label, start, end in STEPS]
    assert n01.broken_rules(spans(*waits, *late, *early), 1, prefetch=1) == [
        "rule 3: with 1 places, batch 2 was begun when 1 batches had been asked for"
    ]


class Numbers(Dataset):
    """Item i is (0, 0, i); some take longer. It records as the notebook's datasets do."""

    def __init__(self, recorder, slow=()):
        self.recorder = recorder
        self.slow = slow

    def __len__(self):
        return 24

    def __getitem__(self, index):
        info = get_worker_info()
        lane = n01.TRAINER if info is None else n01.worker_lane(info.id)
        with self.recorder.span(lane, f"load {index // 2}", "load"):
            time.sleep(0.3 if index in self.slow else 0.002)
            return 0, 0, index


def epoch_of_numbers(workers, prefetch=2, slow=(), **more):
    recorder = Recorder()
    seen = []
    dataset = Numbers(recorder, slow)
    loader = DataLoader(dataset, 2, num_workers=workers, prefetch_factor=prefetch if workers else None, **more)
    trace = n01.run_epoch(loader, lambda batch: seen.extend(batch[2].tolist()), recorder, 2)
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
    assert n01.broken_rules(trace, workers, prefetch) == []
    at = n01.moments(trace)
    assert all(at["started"][b] < at["ended"][b] < at["taken"][b] for b in range(12))


def test_without_order_torch_breaks_rules_1_and_2_and_the_batches_say_so():
    trace, seen = epoch_of_numbers(2, slow=(4,), in_order=False)
    assert sorted(seen) == list(range(24))
    assert [rule[:6] for rule in n01.broken_rules(trace, 2)] == ["rule 1", "rule 2"]


def test_a_second_epoch_of_the_same_workers_is_recorded_on_its_own():
    recorder = Recorder()
    loader = DataLoader(Numbers(recorder), 2, num_workers=2, persistent_workers=True)
    first, second = (n01.run_epoch(loader, lambda batch: None, recorder, 2) for _ in range(2))
    assert len(first.only(kind="load")) == len(second.only(kind="load")) == 12
    assert second.start == 0.0
