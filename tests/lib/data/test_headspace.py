"""headspace: whether step or loader limits, by how much, and how many workers the arithmetic asks for."""

import importlib
import multiprocessing
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lib.data.headspace import Headspace, headspace
from tests.lib.accelerators import FakeAccelerator
from tests.lib.refusal import refuses


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    """What follows for a node doesn't hang on the machine of the tests."""
    monkeypatch.setattr(importlib.import_module("lib.data.headspace"), "usable_cores", lambda: 8)


class Clock:
    """A clock that moves when something says that it takes time."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def step(self, seconds):
        def step(batch):
            self.now += seconds

        return step


class Loader:
    """A loader that takes `seconds` a batch: between the steps, or with workers beside them. Starting takes 100 s."""

    def __init__(self, clock, seconds, num_workers=0, length=1000, friction=0.0):
        self.clock = clock
        self.seconds = seconds
        self.num_workers = num_workers
        self.length = length
        self.friction = friction
        self.opened = 0
        self.closed = 0

    def __iter__(self):
        self.opened += 1
        ready = self.clock.now + 100
        self.clock.now = ready
        try:
            for i in range(self.length):
                if self.num_workers == 0:
                    self.clock.now += self.seconds
                else:
                    ready += self.seconds
                    self.clock.now = max(self.clock.now, ready)
                yield i
                self.clock.now += self.friction * (self.opened == 2)  # a step beside workers is slower
        finally:
            self.closed += 1


def measured(step, loader, num_workers=0, friction=0.0, **arguments):
    clock = Clock()
    made = Loader(clock, loader, num_workers, friction=friction)
    return headspace(made, clock.step(step), clock=clock, cores=8, **arguments)


def times(found):
    return pytest.approx((found.step, found.loader, found.both))


# --- what limits, and what it asks for
@pytest.mark.parametrize("step, loader, workers, both, limits, gain, needed", [
    (0.1, 0.4, 2, 0.4, "loader", 4.0, 8),  # loader-bound: 2 workers give a batch in 0.4 s, so one needs 0.8 s
    (0.1, 0.3, 2, 0.3, "loader", 3.0, 6),  # 2 · 0.3 / 0.1 is 6.000000000000001 in floats, and no seventh worker
    (0.1, 0.01, 4, 0.1, "step", 1.0, 1),  # step-bound: one of the four would do
    (0.1, 0.1, 2, 0.1, "step", 1.0, 2),  # balanced
    (0.1, 0.105, 2, 0.105, "step", 1.05, 2),  # within the noise: no third worker for 5 %
    (0.1, 0.1, 0, 0.2, "loader", 2.0, 1),  # one process: the times add up, one worker hides the loader
    (0.1, 0.25, 0, 0.35, "loader", 3.5, 3),
    (0.1, 0.005, 0, 0.105, "step", 1.05, 0),  # nothing to hide
])  # fmt: skip
def test_three_times_say_what_limits_and_how_many_workers(step, loader, workers, both, limits, gain, needed):
    found = measured(step, loader, workers)
    assert times(found) == (step, loader, both), "neither the 100 s of a start nor anything else is in them"
    assert found.undisturbed == pytest.approx(both)
    assert (found.limits, found.workers_needed) == (limits, needed)
    assert found.gain == pytest.approx(gain)


def test_a_loader_that_keeps_up_alone_but_not_beside_the_step_does_not_ask_for_workers():
    found = measured(0.1, 0.08, 2, friction=0.05)
    assert times(found) == (0.1, 0.08, 0.15)
    assert found.limits == "sharing"
    assert found.workers_needed == 2
    assert "150 ms a batch, as in training; 100 ms if they took nothing from each other" in str(found)
    assert "memory or disk, or as batches differ; 1.50 times as fast at most" in str(found)


@pytest.mark.parametrize(
    "loader, both, limits", [(17.2, 89.4, "sharing"), (40.0, 60.0, "loader"), (40.0, 65.0, "sharing")]
)
def test_of_a_slow_loader_and_a_disturbance_the_one_with_the_larger_part_limits(loader, both, limits):
    found = Headspace(step=16.0, loader=loader, both=both, workers=2, ranks=1, cores=8)
    assert found.limits == limits
    assert ("disturbed" in str(found)) == (limits == "sharing")


@pytest.mark.parametrize("ranks, cores, fit, within_reach", [
    (1, 9, 8, 0.1), (1, 64, 8, 0.1), (8, 40, 5, 0.18), (8, 72, 8, 0.1), (2, 3, 2, 0.6), (2, 2, 0, 0.9), (4, 2, 0, 1.8),
])  # fmt: skip
def test_ranks_of_a_node_divide_its_cores_among_their_loads_and_steps(ranks, cores, fit, within_reach):
    """8 workers are asked for, each of which makes a batch in 0.8 s on a core of its own."""
    found = Headspace(step=0.1, loader=0.4, both=0.4, workers=2, ranks=ranks, cores=cores, measured_on=8)
    assert found.workers_that_fit == fit
    assert found.within_reach == pytest.approx(within_reach)


@pytest.mark.parametrize("load, step, cores", [(24, 12, 2), (20.9, 4.81, 2), (40, 8, 4), (10, 20, 1), (6, 12, 3)])
def test_at_best_is_the_fastest_that_any_number_of_computing_workers_reaches(load, step, cores):
    """By the rules of the loader: a batch from each worker, one step at a time, and all that computes on the cores."""
    paces = [max(step, load / workers, (load + step) / cores) for workers in range(1, 20)]
    found = Headspace(step, load, load, workers=1, ranks=1, cores=cores)
    assert found.within_reach == pytest.approx(min(paces))
    if cores > 1:
        assert paces[found.workers_that_fit - 1] == pytest.approx(min(paces)), "as many as pay, and no fewer"
        assert found.workers_that_fit == 1 + paces.index(min(paces))


@pytest.mark.parametrize("step, loader, both, needed, within_reach", [
    (0.005, 0.010, 0.0125, 4, 0.0125), (0.012, 0.012, 0.018, 2, 0.018),
])  # fmt: skip
def test_eight_workers_on_two_cores_load_two_batches_at_a_time(step, loader, both, needed, within_reach):
    found = Headspace(step, loader, both, workers=8, ranks=1, cores=2)
    assert found.workers_needed == needed
    assert found.within_reach == pytest.approx(within_reach)


def test_at_best_counts_the_whole_step_and_the_printed_line_says_so_of_the_step_as_well():
    """A step that waits for a GPU takes no core meanwhile: neither number nor sentence may hold for it unsaid."""
    cheap, dear = (Headspace(step, 0.4, 0.4, workers=1, ranks=1, cores=2) for step in (0.0001, 0.3))
    assert dear.within_reach - cheap.within_reach == pytest.approx((0.3 - 0.0001) / 2)
    line = str(dear).splitlines()[-1]
    assert line.startswith("at best") and "if loader and step compute" in line


def test_what_is_printed_says_it_all_in_aligned_lines():
    assert str(measured(0.1, 0.4, 2, ranks=2)).splitlines() == [
        "step     100 ms a batch, on batches that are kept",
        "loader   400 ms a batch, alone",
        "both     400 ms a batch, as in training; 400 ms if they took nothing from each other",
        "limit    the loader; 4.00 times as fast at most, if batches cost nothing",
        "workers  load 800 ms / step 100 ms asks for 8, the loader has 2",
        "node     2 ranks on 8 cores, for a rank's load and step: of 8 workers 4 can pay",
        "at best  225 ms a batch by the cores, if loader and step compute and never wait",
    ]
    assert "asks for 3, the loader has none: step and loader take turns, so their times add" in str(measured(0.1, 0.25))
    assert str(measured(0.1, 0.005)).splitlines()[-1].startswith("limit    the step; 1.05 times")


# --- how it is measured
def test_the_step_gets_kept_batches_first_then_those_of_the_loader_and_warm_up_is_not_counted():
    clock = Clock()
    got = []

    def step(batch):
        got.append(batch)
        clock.now += 7.0 if len(got) == 1 else 0.1  # the first one sets things up

    loader = Loader(clock, 0.4, num_workers=2)
    found = headspace(loader, step, batches=5, cached=3, clock=clock)
    assert got == [0, 1, 2, 0, 1, 2, 0, *range(7)], "two to warm up, one for each worker, and five"
    assert times(found) == (0.1, 0.4, 0.4)
    assert (loader.opened, loader.closed) == (2, 2)
    assert found.cores >= 1 == found.ranks


def test_a_short_epoch_is_measured_as_far_as_it_goes_and_an_empty_one_is_refused():
    clock = Clock()
    found = headspace(Loader(clock, 0.2, length=2), clock.step(0.1), clock=clock)
    assert times(found) == (0.1, 0.2, 0.3)
    for length, workers, got in ((0, 0, "0 batches, and 2 are"), (1, 0, "1 batch, and 2"), (4, 4, "4 batches, and 5")):
        loader = Loader(clock, 0.2, workers, length)
        says = f"the loader gives {got} .* pass one with a longer epoch .*drop_last"
        refuses(ValueError, says, headspace, loader, clock.step(0.1), clock=clock)
        assert loader.closed == loader.opened == 1
    dropped = DataLoader(TensorDataset(torch.zeros(3)), batch_size=4, drop_last=True)
    refuses(ValueError, "0 batches", headspace, dropped, len)


def test_arguments_that_measure_nothing_are_refused_before_anything_runs():
    clock = Clock()
    loader = Loader(clock, 0.1)
    for wrong in ({"batches": 0}, {"cached": 0}, {"ranks": 0}, {"cores": 0}, {"batches": 2.5}):
        refuses(ValueError, next(iter(wrong)), headspace, loader, clock.step(0.1), **wrong)
    refuses(TypeError, "a function of one batch, not None", headspace, loader, None)
    refuses(TypeError, r"can't be an iterator .* pass the loader itself", headspace, iter([1, 2]), clock.step(0.1))
    assert loader.opened == 0
    with pytest.raises(ValueError, match=r"the time of a step must be .* above 0, not 0\.0"):
        headspace(loader, clock.step(0.0), clock=clock)


def test_a_step_that_only_makes_a_generator_has_not_run():
    def generator(batch):
        yield batch

    async def coroutine(batch):
        return batch

    for step in (generator, coroutine):
        with pytest.raises(TypeError, match=f"returned a {step.__name__}: it hasn't run; write it without yield"):
            headspace([1, 2, 3], step)


def test_work_on_a_gpu_is_waited_for_where_a_time_is_taken_and_only_there(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    clock = Clock()
    queued = []

    def synchronize():
        clock.now += sum(queued)
        queued.clear()

    monkeypatch.setattr(gpu.module, "synchronize", synchronize)
    found = headspace(Loader(clock, 0.4, num_workers=1), lambda batch: queued.append(0.3), batches=20, clock=clock)
    assert found.step == pytest.approx(0.3), "the step returns at once, the GPU is done after 0.3 s"


# --- real loaders
class Slow(Dataset):
    """64 items, each of which takes a while."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return index


def test_a_real_loader_is_measured_its_workers_ended_and_it_is_whole_again():
    loader = DataLoader(Slow(0.005), batch_size=2, num_workers=1, persistent_workers=True)
    found = headspace(loader, lambda batch: batch + 1, batches=10)
    assert found.limits != "step", "on a busy machine the loader may be slower beside the step than alone"
    assert found.workers == 1
    assert found.gain > 2
    assert found.workers_needed > 2, "10 ms for a batch, microseconds for a step"
    assert not multiprocessing.active_children()
    assert torch.cat([*loader]).tolist() == [*range(64)]
    loader._iterator._shutdown_workers()


def test_a_step_that_raises_is_told_as_it_is_and_leaves_no_worker():
    loader = DataLoader(Slow(0.0), num_workers=1)
    seen = []

    def step(batch):
        seen.append(batch)
        if len(seen) > 8:  # in the third pass
            raise FloatingPointError("the loss is nan")

    refuses(FloatingPointError, "the loss is nan", headspace, loader, step, batches=5)
    assert len(seen) == 9
    assert not multiprocessing.active_children()
