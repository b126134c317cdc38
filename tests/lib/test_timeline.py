"""What a Trace says about its spans, and who may record them."""

import gc
import itertools
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.utils.data import DataLoader, Dataset

from lib.timeline import Recorder, Span, Trace, Work, play
from tests.lib.refusal import refuses

LOADS = [Span("worker", f"load {i}", i, i + 1, "load") for i in (0, 1)]
PIPELINE = Trace([*LOADS, *(Span("model", f"step {i}", i + 1, i + 2, "step") for i in (0, 1))])


# --- one span ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("start", "end"), [(2, 1), (0, float("inf")), (float("nan"), 1), (0, float("nan"))])
def test_impossible_times_are_refused_with_the_values(start, end):
    with pytest.raises(ValueError, match=rf"'F0' in lane 'rank 0'.*start {float(start)} and end {float(end)}"):
        Span("rank 0", "F0", start, end)
    with pytest.raises(ValueError, match="start <= end"):  # when it is recorded, not when it is read
        Recorder().add("rank 0", "F0", start, end)
    refuses(TypeError, "are str, not 0, 'F0'", Span, 0, "F0", 0, 1)


# --- what a trace says --------------------------------------------------------------------------------------------
def test_two_lanes_that_overlap_for_one_second_of_three():
    span = PIPELINE[0]
    assert (span.duration, span.kind, type(span.start)) == (1.0, "load", float)
    assert Span("a", "x", 1, 3).kind == "compute"
    assert PIPELINE.lanes == ("worker", "model")
    assert PIPELINE.kinds == ("load", "step")
    assert (PIPELINE.start, PIPELINE.end, PIPELINE.makespan) == (0.0, 3.0, 3.0)
    assert PIPELINE.busy("worker") == PIPELINE.active("step") == 2.0
    assert PIPELINE.overlap("load", "step") == 1.0
    assert PIPELINE.bubble == pytest.approx(2 / 6)
    refuses(KeyError, r"no lane 'modal' in this trace; its lanes are worker, model", PIPELINE.busy, "modal")


def test_the_order_of_lanes_can_be_given_and_new_ones_follow():
    assert Trace(PIPELINE, lanes=("model",)).lanes == ("model", "worker")
    refuses(ValueError, "lanes must differ: model, model", Trace, PIPELINE, lanes=("model", "model"))
    refuses(TypeError, "not the one string 'model'", Trace, PIPELINE, lanes="model")


def test_a_trace_is_a_sequence_in_order_of_start_and_equal_to_its_like():
    backwards = Trace(reversed(PIPELINE), lanes=PIPELINE.lanes)
    assert [span.start for span in backwards] == [0, 1, 1, 2]
    assert PIPELINE[0] in PIPELINE
    assert PIPELINE[-1].label == "step 1"
    assert PIPELINE[:2] == Trace(PIPELINE.spans[:2], PIPELINE.lanes)
    assert Trace(list(PIPELINE)) == PIPELINE != PIPELINE.shift(1)
    assert len({PIPELINE, Trace(PIPELINE)}) == 1
    with pytest.raises(AttributeError):
        PIPELINE.spans = ()


def test_moved_merged_and_chosen_spans_keep_their_lanes():
    trace = Trace([Span("a", "x", 1, 3)], lanes=("a", "idle"))
    assert [(s.start, s.end) for s in trace.shift(2).scale(10)] == [(30, 50)]
    assert [(s.start, s.end) for s in trace.from_zero()] == [(0, 2)]
    assert trace.shift(2).scale(10).lanes == ("a", "idle")
    both = Trace([Span("a", "x", 5, 6)]).merge(Trace([Span("b", "y", 0, 1)], lanes=("idle",)))
    assert both.lanes == ("a", "idle", "b")
    assert [span.label for span in both] == ["y", "x"]
    assert {span.lane for span in PIPELINE.only(kind="load")} == {"worker"}
    assert PIPELINE.only(kind="load").lanes == ("worker", "model"), "all lanes stay: the others are idle now"
    assert PIPELINE.only(lane="model").lanes == ("model",)
    assert PIPELINE.only(kind=("load", "step"), lane=("worker", "model")) == PIPELINE
    for factor in (0, -1, float("nan")):
        refuses(ValueError, "factor must be a positive number", trace.scale, factor)


def test_the_text_is_aligned_and_in_one_unit():
    trace = Trace([Span("worker 0", "a", 0, 0.002), Span("m", "b", 0.001, 0.0025)])
    assert str(trace).splitlines() == [
        "2 lanes, 2.50 ms, 30 % idle",
        "lane      spans     busy  idle",
        "worker 0      1  2.00 ms  20 %",
        "m             1  1.50 ms  40 %",
    ]
    assert str(Trace()).startswith("0 lanes, 0 s, 0 % idle")
    assert Trace().from_zero() == Trace() == Trace().merge()
    assert Trace([Span("p 0", "F0", 0, 1)]).to_text("clock").splitlines()[0] == "1 lane, 1 clock, 0 % idle"


# --- Chrome traces ------------------------------------------------------------------------------------------------
def test_a_chrome_file_is_what_perfetto_reads_and_comes_back_the_same(tmp_path):
    trace = Trace([*PIPELINE.scale(1e-3), Span('<"ü">', "", 0, 0.1, "")], lanes=("idle", "model"))
    trace.to_chrome(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    step = next(event for event in events if event["name"] == "step 1")
    assert (step["ph"], step["cat"], step["ts"], step["dur"]) == ("X", "step", 2000.0, 1000.0)
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["tid"] == step["tid"]] == ["model"]
    assert Trace.from_chrome(tmp_path / "trace.json") == trace
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"], "nothing temporary stays behind"


def test_spans_that_touch_still_touch_in_the_file(tmp_path):
    edges = [k / 3 for k in range(50)]  # none of these is a whole number of nanoseconds
    trace = Trace([Span("a", str(k), start, end) for k, (start, end) in enumerate(itertools.pairwise(edges))])
    trace.to_chrome(tmp_path / "trace.json")
    read = Trace.from_chrome(tmp_path / "trace.json")
    assert all(before.end == after.start for before, after in itertools.pairwise(read))
    assert [span.start for span in read] == pytest.approx([span.start for span in trace], abs=1e-9)


def test_a_trace_that_torch_profiler_exported_can_be_read(tmp_path):
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 7, "ts": 10.5, "dur": 2.0},
        {"ph": "X", "cat": "kernel", "name": "add_kernel", "pid": 0, "tid": "stream 7", "ts": 12.0, "dur": 4.0},
        {"ph": "i", "name": "a mark that is no span", "pid": 7, "tid": 7, "ts": 0},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "args": {"name": "python"}},
    ]
    (tmp_path / "torch.json").write_text(json.dumps(events))
    trace = Trace.from_chrome(tmp_path / "torch.json")
    assert trace.lanes == ("python", "0 / stream 7")
    assert trace.overlap("cpu_op", "kernel") == pytest.approx(0.5e-6)


def test_a_failed_write_leaves_the_old_file_and_no_debris_and_a_missing_folder_is_named(tmp_path, monkeypatch):
    PIPELINE.to_chrome(tmp_path / "trace.json")

    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    refuses(OSError, "disk full", Trace().to_chrome, tmp_path / "trace.json")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    assert Trace.from_chrome(tmp_path / "trace.json") == PIPELINE
    with pytest.raises(FileNotFoundError, match=r"missing.trace.json' does not exist: make it first"):
        PIPELINE.to_chrome(tmp_path / "missing" / "trace.json")


# --- the recorder: one process ------------------------------------------------------------------------------------
def test_a_recorder_starts_at_zero_unless_the_clock_is_wanted_and_keeps_what_raises():
    recorder = Recorder()
    start = recorder.now()
    recorder.add("main", "x", start, start + 1)
    assert (recorder.trace().start, recorder.trace(from_zero=False).start) == (0.0, start)
    recorder.clear()
    assert len(recorder.trace()) == 0
    with pytest.raises(ZeroDivisionError), recorder.span("main", "fails", "compute"):
        _ = 1 / 0
    assert [(span.label, span.duration >= 0) for span in recorder.trace()] == [("fails", True)]


def test_threads_lose_no_span():
    recorder = Recorder()

    def work(lane):
        for i in range(200):
            with recorder.span(lane, str(i)):
                pass

    lanes = [f"thread {t}" for t in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, lanes))
    assert [len(recorder.trace().only(lane=lane)) for lane in lanes] == [200] * 4
    assert recorder.trace(lanes[::-1]).lanes == (*lanes[::-1],)


# --- the recorder: several processes ------------------------------------------------------------------------------
class Recorded(Dataset[int]):
    """Items that are their index; fetching one is recorded in the lane of the process that does it."""

    def __init__(self, recorder):
        self.recorder = recorder

    def __len__(self):
        return 8

    def __getitem__(self, index):
        with self.recorder.span(f"process {os.getpid()}", f"load {index}", "load"):
            return index


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.costly)])
def test_dataloader_workers_record_into_the_trace_of_the_main_process(start_method):
    if start_method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {start_method}")
    recorder = Recorder()
    loader = DataLoader(
        Recorded(recorder), batch_size=2, num_workers=2, persistent_workers=True, multiprocessing_context=start_method
    )
    began = recorder.now()
    for batch in loader:
        with recorder.span("main", f"step {batch[0]}", "step"):
            pass
    ended = recorder.now()
    trace = recorder.trace(from_zero=False)
    assert sorted(span.label for span in trace.only(kind="load")) == [f"load {i}" for i in range(8)]
    assert len(trace.only(lane="main")) == 4
    assert len(trace.lanes) == 3
    assert f"process {os.getpid()}" not in trace.lanes
    assert began <= trace.start <= trace.end <= ended, "all processes read the same clock"

    # the same worker processes serve the next epoch, and only that is in the trace after clear()
    recorder.clear()
    assert sum(len(batch) for batch in loader) == 8
    assert sorted(span.label for span in recorder.trace()) == [f"load {i}" for i in range(8)]
    assert set(recorder.trace().lanes) <= set(trace.lanes)


def _record(recorder, lane, then=None):
    recorder.add(lane, "once", 0, 1)
    if then:
        then()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def in_fork(child):
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0


@needs_fork
def test_a_forked_child_does_not_carry_its_parents_spans_away_or_its_folder():
    recorder = Recorder()
    recorder.add("parent", "before the fork", 0, 1)
    fork = multiprocessing.get_context("fork")

    def child():
        grandchild = fork.Process(target=_record, args=(recorder, "grandchild"))
        _record(recorder, "child", then=grandchild.start)
        grandchild.join()
        _record(recorder, "child")

    in_fork(child)
    lanes = [span.lane for span in recorder.trace()]
    assert sorted(lanes) == ["child", "child", "grandchild", "parent"]

    recorders = [Recorder()]
    folder = recorders[0]._folder
    in_fork(lambda: [recorders.clear(), gc.collect()])  # it lets its copy go
    assert folder.is_dir(), "and leaves the folder to the owner"


@needs_fork
def test_a_killed_process_leaves_every_complete_span_readable():
    recorder = Recorder()

    def forever():
        for i in range(10**9):
            recorder.add("child", "x" * (i % 500), i, i + 1)

    process = multiprocessing.get_context("fork").Process(target=forever)
    process.start()
    while len(recorder.trace()) < 100 and process.is_alive():
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    numbers = [span.start for span in recorder.trace()]
    assert numbers == [float(i) for i in range(len(numbers))]
    assert len(numbers) >= 100


@pytest.mark.costly
@pytest.mark.skipif(os.name == "nt", reason="kills as POSIX does")
def test_processes_that_are_no_children_share_a_folder(tmp_path):
    folder = tmp_path / "spans"
    _record(Recorder(folder), "main")
    (file,) = folder.glob("*.jsonl")
    with file.open("a") as lines:
        lines.write('["main", "half a sp')  # an incomplete last line is not read
    code = "import sys; from lib.timeline import Recorder; Recorder(sys.argv[1]).add(sys.argv[2], 'F0', 0, 1)"
    for rank in range(2):
        subprocess.run([sys.executable, "-c", code, str(folder), f"rank {rank}"], check=True, timeout=60)
    assert sorted(Recorder(folder).trace().lanes) == ["main", "rank 0", "rank 1"]
    assert folder.is_dir(), "a folder that the reader named stays"


def test_a_recorder_pickles_as_its_folder_whose_owner_sees_what_the_copy_records_and_takes_it_away():
    recorder = Recorder()
    folder = recorder._folder
    _record(pickle.loads(pickle.dumps(recorder)), "copy")
    assert recorder.trace().lanes == ("copy",)
    assert any(folder.iterdir())
    del recorder
    gc.collect()
    assert not folder.exists()


def test_tasks_play_in_the_order_of_their_lanes_as_soon_as_their_inputs_are_there():
    second = [Work("b", f"G{i}", 2, after=[f"F{i}"], message=0.5) for i in (0, 1)]
    within = Work("a", "H", 1, after=["F1"], message=0.5)  # no message within a lane
    trace = play([Work("a", "F0", 3), Work("a", "F1", 1), *second, within])
    times = {span.label: (span.start, span.end) for span in trace}
    assert times == {"F0": (0, 3), "F1": (3, 4), "G0": (3.5, 5.5), "G1": (5.5, 7.5), "H": (4, 5)}
    assert trace.lanes == ("a", "b")


def test_data_flow_is_not_clock_by_clock():
    """Tasks of 3, 1 and 3 over three lanes, 4 micro-batches: 16 where each starts when it can, 18 clock by clock."""
    costs = (3, 1, 3)
    micro_batches = 4
    trace = play(
        Work(f"lane {j}", f"{j}F{i}", cost, [f"{j - 1}F{i}"] if j else [])
        for i in range(micro_batches)
        for j, cost in enumerate(costs)
    )
    clocks = [max(costs[j] for j in range(3) if 0 <= k - j < micro_batches) for k in range(micro_batches + 3 - 1)]
    assert (trace.makespan, sum(clocks)) == (16, 18)


@pytest.mark.parametrize("tasks, says", [
    ([Work("a", "F0", 1), Work("b", "F0", 1)], "two tasks are labelled 'F0'"),
    ([Work("b", "G0", 1, ["F0"]), Work("a", "F0", 1)], "'G0' needs 'F0', which does not stand before it"),
])  # fmt: skip
def test_tasks_that_cannot_play_are_refused(tasks, says):
    refuses(ValueError, says, play, tasks)
