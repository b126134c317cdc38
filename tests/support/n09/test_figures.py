"""The figures of notebook 09: the steps of a run, streams, clocks, what two threads gain."""

import itertools
import json
import threading
from functools import partial

import pytest
import torch

from lib.pipeline import clock_cycles
from lib.pipeline.worker import Task, spawn_workers
from lib.pipeline.worker import worker as lib_worker
from lib.runtime.device import CPUStream
from lib.show.sheet import drawn_cells
from lib.show.style import alt_text
from lib.timeline import Span, Trace
from support.n09 import figures as n09
from support.n09 import lock
from support.n09.clocks import gaps, slowest_tasks
from support.n09.lock import PYTHON_LOOP, round_of
from support.n09.two_streams import simulate_streams
from tools.project import ROOT

NOTEBOOK = json.loads((ROOT / "notebooks" / "09_streams_tasks_workers.ipynb").read_text(encoding="utf-8"))


def heading(figure):
    return figure.axes[0].get_title("left").replace("\n", " ")


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_the_picture_shows_in_every_clock_what_a_real_run_computes(partitions):
    ran = []
    with spawn_workers([torch.device("cpu")] * partitions) as (in_queues, out_queues):
        for k, clock in enumerate(clock_cycles(n09.MICRO_BATCHES, partitions)):
            for pair in clock:
                in_queues[pair[1]].put(Task(CPUStream, compute=partial(ran.append, pair), finalize=None))
            for _, j in clock:
                assert out_queues[j].get(timeout=30)[0]
            scene = n09.scene_at(5, k, partitions)
            assert {(i, j) for j, i in scene.running.items()} == set(clock) == scene.now
            assert scene.done == set(ran) - set(clock)


def test_the_tasks_of_a_clock_go_from_queue_to_worker_to_queue_to_scheduler():
    places = [n09.scene_at(step, 2, 3) for step in range(1, 8)]
    assert [scene.workers for scene in places] == [False] + [True] * 6
    assert [scene.held for scene in places] == [False, False] + [True] * 5
    expected = {0: 2, 1: 1, 2: 0}  # partition: micro-batch
    assert [places[3].queued, places[4].running, places[5].answered, places[6].taken] == [expected] * 4
    for number, name in enumerate(n09.NAMES, start=1):
        assert heading(n09.draw_runtime(number, 2, 3)).startswith(f"Step {number} of 7, {name}: ")
    assert "3 partitions, no worker yet" in alt_text(n09.draw_runtime(1, 2, 3))
    assert "3 workers" in alt_text(n09.draw_runtime(2, 2, 3))


def test_a_cell_is_a_micro_batch_in_the_colour_of_its_partition_and_the_deadlock_a_ring_of_waits():
    strong = [patch.cell for patch in drawn_cells(n09.draw_runtime(5, 2, 3)) if patch.cell.rank is not None]
    assert [(cell.index, cell.rank) for cell in strong] == [(2, 0), (1, 1), (0, 2)]
    assert alt_text(n09.draw_runtime(5, 6, 2)) == alt_text(n09.draw_runtime(5, n09.MICRO_BATCHES, 2))
    stuck = n09.draw_stuck(0.5)
    assert "a ring of 4 waits" in alt_text(stuck)
    assert "0.5 s" in heading(stuck)


def test_two_streams_overlap_in_order_of_launch():
    one, two = (simulate_streams(streams, kernel=3, launch=1) for streams in (1, 2))
    assert [s.label for s in one.only(kind="compute")] == ["A0", "A1", "A2", "A3", "B0", "B1", "B2", "B3"]
    assert (one.end, two.end) == (25, 17)
    said = "Two streams, side by side for 8 ticks (B's launches come late): done at 17"
    assert heading(n09.draw_streams(2, 1, 3, 1, False)) == said
    assert simulate_streams(2, 2, kernel=3, launch=1).end == 13  # B need not wait for A's launches
    assert [simulate_streams(s, kernel=2, launch=3).end for s in (1, 2)] == [8 * 3 + 2] * 2  # launches decide


def test_gains_are_drawn_where_they_were_measured_threads_beside_processes():
    gains = [n09.Gain("512 × 512", 3e-3, 1.9, 1.95), n09.Gain("8 × 8", 1e-6, 0.74, 1.8)]
    loop = n09.Gain("Python loop", 3e-4, 0.95, 1.97)
    figure = n09.draw_lock(gains, loop)
    assert heading(figure) == "Two threads: 0.74 × (8 × 8), 1.90 × (512 × 512), 0.95 × (Python loop)"
    assert "8 × 8, 1.00 µs: 0.74, 1.80" in alt_text(figure)
    busy = [gain._replace(processes=1.1) for gain in gains]
    assert heading(n09.draw_lock(busy, loop._replace(processes=1.1))) == "No second core is free just now"


def test_a_round_measures_products_and_a_loop_alone_and_two_at_once():
    for size in (8, PYTHON_LOOP):
        assert min(round_of(size)) > 0
    one_after_the_other = [(0.0, 12.0), (12.0, 24.0)]  # the second had to wait for the lock before it could begin
    assert lock._seconds(one_after_the_other) == 24


def test_a_clock_beyond_the_last_is_told_as_the_last():
    assert heading(n09.draw_runtime(4, 6, 3)) == "Step 4 of 7, put: in clock 5, the last, F3 waits in its queue"
    assert heading(n09.draw_runtime(4, 2, 3)).endswith("in clock 2, F2, F1 and F0 wait in their queues")


def test_a_task_that_starts_late_makes_a_gap_and_longer_tasks_make_none():
    recorded = {"F0 0": (0, 10), "F1 0": (10.1, 20.1), "F0 1": (14.1, 24.1), "F1 1": (24.1, 44.1)}
    spans = [Span(f"partition {name[3]}", name[:2], *ends) for name, ends in recorded.items()]
    trace = Trace(spans, [f"partition {j}" for j in range(2)])
    assert slowest_tasks(trace, 2, 2) == pytest.approx([10, 10, 20])
    assert gaps(trace, 2, 2) == pytest.approx([4.1, 0])


def test_two_threads_wait_as_one_does_for_an_event_that_must_first_be_recorded():
    trace = simulate_streams(2, 2, kernel=3, launch=1, waits=True)
    launched = {s.label: s for s in trace.only(kind="launch")}
    assert launched["B0"].start == launched["A1"].end
    assert trace.end == simulate_streams(2, 1, kernel=3, launch=1, waits=True).end == 19


def test_a_wait_is_a_reason_in_the_title_only_where_b_would_start_sooner_without_it():
    for threads, kernel, launch in itertools.product((1, 2), (2, 6), (1, 4)):
        starts = []
        for waits in (False, True):
            trace = simulate_streams(2, threads, kernel=kernel, launch=launch, waits=waits)
            starts += [span.start for span in trace.only(kind="compute") if span.label == "B0"]
        told = "B waits for A1" in heading(n09.draw_streams(2, threads, kernel, launch, True))
        assert told == (starts[0] < starts[1])


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernel, launch", [(3, 1), (1, 4), (6, 1)])
@pytest.mark.parametrize("waits", [False, True])
def test_streams_keep_their_promises(streams, threads, kernel, launch, waits):
    trace = simulate_streams(streams, threads, kernel=kernel, launch=launch, waits=waits)
    launched = {s.label: s.end for s in trace.only(kind="launch")}
    ran = {s.label: s for s in trace.only(kind="compute")}
    assert len(ran) == 8
    assert all(span.start >= launched[label] for label, span in ran.items())
    for lane in trace.lanes:
        spans = trace.only(lane=lane).spans
        assert all(a.end <= b.start for a, b in itertools.pairwise(spans)), "one at a time"
        ends = [launched[span.label] for span in spans]
        assert ends == sorted(ends), "in order of launch"
    if waits:
        assert ran["B0"].start >= ran["A1"].end


def source_with(line):
    """Return the one cell of the notebook that has a line with this beginning."""
    found = ["".join(cell["source"]) for cell in NOTEBOOK["cells"]]
    return next(source for source in found if any(each.startswith(line) for each in source.splitlines()))


def test_the_notebook_predicts_the_makespan_of_a_run_that_keeps_its_law():
    task = 1.0
    hand_over = 0.5
    clocks = list(enumerate(clock_cycles(6, 2)))
    starts = [k * (task + hand_over) for k, _ in clocks]
    run = Trace(
        Span(f"partition {j}", f"F{i}", starts[k], starts[k] + task, "forward") for k, clock in clocks for i, j in clock
    )
    seen = {"M": 6, "N": 2, "predicted_tasks": sum(slowest_tasks(run, 6, 2)), "empty": hand_over}
    exec(source_with("CLOCKS = "), seen)
    law = next(line for line in source_with("predicted = ").splitlines() if line.startswith("predicted = "))
    exec(law, seen)
    assert seen["predicted"] == run.makespan


def test_the_notebook_counts_no_worker_that_computes_among_those_that_wait():
    source = source_with("waiting = ")
    line = next(line for line in source.splitlines() if line.startswith("waiting = "))
    seen = {"serve": lib_worker, "stacks": [["run", "worker"], ["run", "worker", "compute", "forward"], ["main"]]}
    exec(line, seen)
    assert seen["waiting"] == [True, False, False]


def test_the_notebook_counts_threads_and_not_their_names():
    source = source_with("def noting(")
    ran = {"forward": set(), "backward": set()}
    seen = {"current_thread": threading.current_thread}
    exec(source[source.index("def noting(") : source.index("ran = ")], seen)
    parameter = torch.ones(1, requires_grad=True)
    work = partial(seen["noting"], ran, parameter, torch.ones(1))
    workers = [threading.Thread(target=work, name="worker") for _ in range(2)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    assert len(ran["forward"]) == 2
