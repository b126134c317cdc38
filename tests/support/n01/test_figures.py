"""The figures of notebook 01 say what the model says."""

import pytest
import torch

from lib.show.style import alt_text
from lib.timeline import Span, Trace
from support.n01 import figures as n01
from support.n01.runs import simulate_loading
from tests.pictures import told


def test_the_path_says_what_the_pipeline_gains():
    assert "Busy in the pipeline: load 84%" in alt_text(n01.draw_path(6, 6, 1, 2, 4))
    for settings, words in told(n01.draw_path, n01.PATH_CONTROLS):
        hops = [settings[f"{hop}_ms"] for hop in ("load", "pin", "transfer", "step")]
        pipeline = sum(hops) + (settings["batches"] - 1) * max(hops)
        assert f"{settings['batches'] * sum(hops)} ms one after the other, {pipeline} ms as a pipeline" in words


@pytest.mark.parametrize(
    "hops, filled",
    [((6, 1, 2, 4), [1, 1, 1]), ((2, 1, 2, 4), [1, 1, 3]), ((1, 2, 4, 8), [3, 3, 3]), ((2, 8, 1, 1), [3, 1, 1])],
)
def test_a_queue_fills_in_front_of_a_hop_that_is_slower_than_all_before(hops, filled):
    patches = n01.draw_path(4, *hops).axes[0].patches
    slots = [p for p in patches if type(p).__name__ == "Rectangle" and p.get_height() == 0.38]
    full = [slot.get_facecolor()[:3] != (1, 1, 1) for slot in slots]  # three places in memory of three slots each
    assert [sum(full[i : i + 3]) for i in range(0, 9, 3)] == filled


def test_the_ladder_counts_gpus_and_the_processes_that_load():
    assert [rung.processes for rung in n01.LADDER] == [1, 1, 4, 8, 8]
    words = alt_text(n01.draw_ladder())
    assert "DataParallel: 4 GPUs, 1 process; DDP, one machine: 4 GPUs, 4 processes" in words


@pytest.mark.parametrize("controls", [n01.WORKER_CONTROLS, n01.QUEUE_CONTROLS, n01.core_controls(1.8)])
def test_every_position_of_the_model_gives_an_epoch_between_its_bounds(controls):
    for settings, words in told(n01.draw_loading_model, controls, 12):
        epoch = float(words.split(": ")[1].split(" ms")[0])
        load, step = settings.get("load_ms", 12), settings.get("step_ms", 12)
        longest = 20 * (load + step) + load * (settings.get("slow_batch", 1) - 1)
        assert load + 20 * step <= epoch <= longest


def test_the_epoch_is_that_of_the_model_and_a_deeper_queue_saves_the_trainer_from_a_slow_batch():
    trace = simulate_loading(16, 20, 12, 2)
    assert alt_text(n01.draw_loading_model(2, 2, 20, 12, batches=16)).startswith(f"2 workers: {trace.makespan:.0f} ms")
    waits = [alt_text(n01.draw_loading_model(2, prefetch, slow_batch=6)) for prefetch in (1, 2, 3)]
    assert [words.split(" ms")[0] for words in waits] == [f"2 workers: {ms}" for ms in (300, 276, 252)]


def test_measured_epochs_stand_beside_the_model_and_the_cores_of_the_machine_are_among_the_choices():
    assert n01.core_controls(1.77)["cores"].value == 1.8
    assert n01.core_controls(2)["cores"].options == (1, 2, 4, 8, "enough")
    words = alt_text(n01.draw_loading_model(1, measured={0: [0.5, 0.4, 0.6], 1: [0.3]}))
    assert "Measured, in ms, by workers: 0: 500; 1: 300." in words


def test_a_faster_device_leaves_the_load_and_digits_are_drawn_before_and_after():
    words = alt_text(n01.draw_faster_device(0.024, 0.012))
    assert words.startswith("A device 16 × as fast makes the epoch only 1.5 × as fast")
    assert "16 times as fast: 97%" in words
    figure = n01.draw_prepared([torch.zeros(1, 8, 8)] * 2, [torch.zeros(1, 64, 64)] * 2, ["0", "1"])
    assert "From 8 × 8 pixels in a file to 64 × 64" in alt_text(figure)


def test_scaling_draws_model_limit_and_measurement_of_each_case():
    case = n01.Epochs(0.024, 0.016, 0.012, {0: [0.43, 0.44], 1: [0.32, 0.34], 2: [0.2, 0.22]})
    figure = n01.draw_scaling({"slow": case, "again": case}, batches=12, cores=2)
    for axes in figure.axes:
        enough, model, floor = (list(line.get_ydata()) for line in axes.lines[:3])
        assert model[0] == enough[0] == pytest.approx(12 * 36)
        assert floor[0] == pytest.approx(12 * 12)
        assert model[2] == pytest.approx(1e3 * case.predicted(12, 2, 2))
    assert alt_text(figure).startswith("slow: 2.1 × as fast; again: 2.1 × as fast")


def test_the_start_of_workers_is_the_time_before_any_of_them_loads():
    late = Trace([Span("trainer", "wait 0", 0, 3, "wait"), Span("worker 0", "load 0", 2, 3, "load")])
    assert alt_text(n01.draw_startup({"new": [late, late], "kept": [late]})).startswith(
        "Start-up takes 67% with new, 67% with kept. All epochs: new 6000 ms, kept 3000 ms."
    )


def test_measured_copies_say_where_and_without_a_gpu_and_a_recording_they_are_predicted():
    trace = n01.predict_copies(5, transfer=4e-3, step=6e-3)
    assert trace.only(lane="pageable: trainer").end == pytest.approx(5 * 10e-3)
    assert trace.only(lane="pinned: trainer").end == pytest.approx(4e-3 + 5 * 6e-3)
    assert alt_text(n01.draw_copies()).startswith("No recording yet. Predicted: pageable 50 ms, pinned 34 ms.")
    row = dict(megabytes=64.0, pageable_call=9e-3, pageable_done=10e-3, pinned_call=1e-4, pinned_done=2e-3)
    words = alt_text(n01.draw_copies([row], recorded="Recorded on a GPU of the test"))
    assert words.startswith("64 MB from pinned memory: 5.0 × as fast, CPU free 90 × as soon.")
    assert "Recorded on a GPU of the test" in words and "Measured here" in alt_text(n01.draw_copies([row]))
