"""The figures of notebook 01 draw what the model says: numbers in their words, bars and lines in the picture."""

import math

import pytest
import torch
from matplotlib.collections import PolyCollection
from support.n01.figures import (
    LADDER,
    PATH_CONTROLS,
    QUEUE_CONTROLS,
    WORKER_CONTROLS,
    Epochs,
    core_controls,
    draw_copies,
    draw_faster_device,
    draw_ladder,
    draw_loading_model,
    draw_path,
    draw_prepared,
    draw_scaling,
    draw_startup,
    predict_copies,
)
from support.n01.runs import simulate_loading

from lib.show.explore import explore
from lib.show.style import alt_text, png
from lib.timeline import Span, Trace


def bars(axes):
    """Return how many bars the panel has, tracks included."""
    return sum(len(c.get_paths()) for c in axes.collections if isinstance(c, PolyCollection))


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_the_path_says_what_the_pipeline_gains():
    figure = draw_path(6, 6, 1, 2, 4)
    assert alt_text(figure).startswith("6 batches: 78 ms one after the other, 43 ms as a pipeline; load sets the pace")
    assert "Busy in the pipeline: load 84%" in alt_text(figure)
    _, serial, pipeline = figure.axes
    assert bars(serial) == bars(pipeline) == 4 + 4 * 6
    assert serial.lines[-1].get_xdata()[0] == 78 and pipeline.lines[-1].get_xdata()[0] == 43


def full_queues(figure):
    """Return how many slots are filled in each of the three places in memory."""
    slots = [p for p in figure.axes[0].patches if type(p).__name__ == "Rectangle" and p.get_height() == 0.38]
    filled = [slot.get_facecolor()[:3] != (1, 1, 1) for slot in slots]
    return [sum(filled[i : i + 3]) for i in range(0, 9, 3)]


@pytest.mark.parametrize(
    "hops, filled",
    [
        ((6, 1, 2, 4), [1, 1, 1]),
        ((2, 1, 2, 4), [1, 1, 3]),
        ((1, 2, 4, 8), [3, 3, 3]),
        ((2, 8, 1, 1), [3, 1, 1]),
    ],
)
def test_a_queue_fills_in_front_of_a_hop_that_is_slower_than_all_before(hops, filled):
    assert full_queues(draw_path(4, *hops)) == filled


def test_every_position_of_the_path_can_be_drawn():
    for settings in explore(draw_path, **PATH_CONTROLS).corners():
        words = alt_text(draw_path(**settings))
        hops = [settings[f"{hop}_ms"] for hop in ("load", "pin", "transfer", "step")]
        pipeline = sum(hops) + (settings["batches"] - 1) * max(hops)
        assert f"{settings['batches'] * sum(hops)} ms one after the other, {pipeline} ms as a pipeline" in words


def test_the_ladder_has_an_arrow_for_every_process_that_loads():
    figure = draw_ladder()
    arrows = [p for p in figure.axes[0].patches if type(p).__name__ == "FancyArrowPatch"]
    assert [rung.processes for rung in LADDER] == [1, 1, 4, 8, 8]
    assert len(arrows) == sum(rung.processes for rung in LADDER)
    assert "DataParallel: 4 GPUs, 1 process; DDP, one machine: 4 GPUs, 4 processes" in alt_text(figure)


def test_the_model_is_drawn_with_its_lanes_queue_and_curve():
    figure = draw_loading_model(2, 2, 20, 12, batches=16)
    lanes, queue, curve = figure.axes
    trace = simulate_loading(16, 20, 12, 2)
    assert bars(lanes) == 3 + len(trace)
    assert [label.get_text() for label in lanes.get_yticklabels()] == ["worker 0", "worker 1", "trainer"]
    assert texts(queue) == ["4 places"]
    expected = [simulate_loading(16, 20, 12, workers).makespan for workers in range(7)]
    assert list(curve.lines[0].get_ydata()) == expected
    assert list(curve.lines[1].get_xdata()) == [2]
    assert alt_text(figure).startswith(f"2 workers: {trace.makespan:.0f} ms")


def test_a_deeper_queue_saves_the_trainer_from_a_slow_batch():
    waits = [draw_loading_model(2, prefetch, slow_batch=6) for prefetch in (1, 2, 3)]
    assert [alt_text(figure).split(" ms")[0] for figure in waits] == [
        "2 workers: 300",
        "2 workers: 276",
        "2 workers: 252",
    ]


@pytest.mark.parametrize("controls", [WORKER_CONTROLS, QUEUE_CONTROLS, core_controls(1.8)])
def test_every_position_of_the_model_can_be_drawn(controls):
    for settings in explore(draw_loading_model, **controls).corners():
        epoch = float(alt_text(draw_loading_model(**settings)).split(": ")[1].split(" ms")[0])
        load, step = settings.get("load_ms", 12), settings.get("step_ms", 12)
        longest = 20 * (load + step) + load * (settings.get("slow_batch", 1) - 1)
        assert load + 20 * step <= epoch <= longest


@pytest.mark.parametrize("controls", [WORKER_CONTROLS, QUEUE_CONTROLS, core_controls(2)])
def test_every_control_changes_the_picture_by_one_step(controls):
    explorer = explore(draw_loading_model, **controls)
    before = png(explorer.figure)
    for name, control in controls.items():
        place = control.options.index(control.value)
        neighbour = control.options[place + 1 if place + 1 < len(control.options) else place - 1]
        assert png(explorer.draw(**{**explorer.values, name: neighbour})) != before, name


def test_the_cores_of_the_machine_are_among_the_choices():
    assert core_controls(1.77)["cores"].value == 1.8
    assert core_controls(2)["cores"].options == (1, 2, 4, 8, "enough")


def test_measured_epochs_lie_over_the_curve():
    figure = draw_loading_model(1, measured={0: [0.5, 0.4, 0.6], 1: [0.3]})
    points = figure.axes[2].lines[2]
    assert list(points.get_xdata()) == [0, 1]
    assert points.get_ydata() == pytest.approx([500, 300])
    assert "Measured, in ms, by workers: 0: 500; 1: 300." in alt_text(figure)


def test_a_faster_device_leaves_the_load():
    words = alt_text(draw_faster_device(0.024, 0.012))
    assert words.startswith("A device 16 × as fast makes the epoch only 1.5 × as fast")
    assert "16 times as fast: 97%" in words


def test_scaling_draws_model_limit_and_measurement_of_each_case():
    case = Epochs(0.024, 0.016, 0.012, {0: [0.43, 0.44], 1: [0.32, 0.34], 2: [0.2, 0.22]})
    figure = draw_scaling({"slow": case, "again": case}, batches=12, cores=2)
    for axes in figure.axes:
        enough, model, floor = axes.lines[:3]
        assert model.get_ydata()[0] == enough.get_ydata()[0] == pytest.approx(12 * 36)
        assert floor.get_ydata()[0] == pytest.approx(12 * 12)
        assert math.isclose(model.get_ydata()[2], 1e3 * case.predicted(12, 2, 2))
    assert alt_text(figure).startswith("slow: 2.1 × as fast; again: 2.1 × as fast")


def test_the_start_of_workers_is_the_time_before_any_of_them_loads():
    late = Trace([Span("trainer", "wait 0", 0, 3, "wait"), Span("worker 0", "load 0", 2, 3, "load")])
    assert alt_text(draw_startup({"new": [late, late], "kept": [late]})).startswith(
        "Start-up takes 67% with new, 67% with kept. All epochs: new 6000 ms, kept 3000 ms."
    )


def test_without_a_gpu_and_a_recording_copies_are_predicted_and_said_to_be():
    trace = predict_copies(5, transfer=4e-3, step=6e-3)
    assert trace.only(lane="pageable: trainer").end == pytest.approx(5 * 10e-3)
    assert trace.only(lane="pinned: trainer").end == pytest.approx(4e-3 + 5 * 6e-3)
    assert alt_text(draw_copies()).startswith("No recording yet. Predicted: pageable 50 ms, pinned 34 ms.")


def test_measured_copies_say_where_they_were_measured():
    row = dict(megabytes=64.0, pageable_call=9e-3, pageable_done=10e-3, pinned_call=1e-4, pinned_done=2e-3)
    words = alt_text(draw_copies([row], recorded="Recorded on a GPU of the test"))
    assert words.startswith("64 MB from pinned memory: 5.0 × as fast, CPU free 90 × as soon.")
    assert "Recorded on a GPU of the test" in words
    assert "Measured here" in alt_text(draw_copies([row]))


def test_digits_are_drawn_before_and_after():
    figure = draw_prepared([torch.zeros(1, 8, 8)] * 2, [torch.zeros(1, 64, 64)] * 2, ["0", "1"])
    assert "From 8 × 8 pixels in a file to 64 × 64" in alt_text(figure)
    assert [axes.images[0].get_array().shape for axes in figure.axes] == [(8, 8)] * 2 + [(64, 64)] * 2
