"""The figures of notebook 01 say what the model says."""

import pytest

from lib.show.style import alt_text
from support.n01 import figures as n01
from support.n01.runs import simulate_loading
from tests.pictures import told


@pytest.mark.costly
def test_the_path_says_what_the_pipeline_gains():
    assert "Busy in the pipeline: load 84%" in alt_text(n01.draw_path(6, 6, 1, 2, 4))
    for settings, words in told(n01.draw_path, n01.PATH_CONTROLS):
        hops = [settings[f"{hop}_ms"] for hop in ("load", "pin", "transfer", "step")]
        pipeline = sum(hops) + (settings["batches"] - 1) * max(hops)
        assert f"{settings['batches'] * sum(hops)} ms one after the other, {pipeline} ms as a pipeline" in words


def test_two_hops_that_are_equally_slow_set_the_pace_together():
    figure = n01.draw_path(6, load_ms=4, pin_ms=1, transfer_ms=2, step_ms=4)
    assert "; load and step set the pace." in alt_text(figure)


@pytest.mark.parametrize(
    "hops, filled",
    [((6, 1, 2, 4), [0, 0, 0]), ((6, 1, 2, 8), [0, 0, 2]), ((1, 2, 4, 8), [3, 3, 3]), ((2, 8, 1, 1), [3, 0, 0])],
)
def test_a_queue_shows_as_many_batches_as_ever_lie_in_it(hops, filled):
    patches = n01.draw_path(6, *hops).axes[0].patches
    slots = [p for p in patches if type(p).__name__ == "Rectangle" and p.get_height() == 0.38]
    full = [slot.get_facecolor()[:3] != (1, 1, 1) for slot in slots]  # three places in memory of three slots each
    assert [sum(full[i : i + 3]) for i in range(0, 9, 3)] == filled


def test_workers_beyond_the_cores_pay_for_what_waits_and_on_one_core_nothing_that_computes_is_gained():
    words = alt_text(n01.draw_cores(2, 0, 12))
    assert words.startswith("2.0 × with 2 workers; more than that gain nothing.")
    assert alt_text(n01.draw_cores(2, 90, 3)).startswith("7.7 × with 8 workers")
    assert alt_text(n01.draw_cores(1, 0, 12)).startswith("Workers gain nothing here.")
    assert "with 2 workers; more" in alt_text(n01.draw_cores(1, 25, 6)), "the second still gains half a per cent"


def test_without_order_the_picture_tells_the_order_in_which_the_batches_came():
    words = alt_text(n01.draw_loading_model(2, 2, slow_batch=6, in_order=False))
    assert words.startswith("2 workers: 252 ms")
    assert "Taken as they arrive: 0 1 2 3 4 5 6 7 8 9 10 11 13" in words
    assert "Taken as they arrive" not in alt_text(n01.draw_loading_model(2, 2, slow_batch=6))


@pytest.mark.costly
@pytest.mark.parametrize("controls", [n01.WORKER_CONTROLS, n01.QUEUE_CONTROLS])
def test_every_position_of_the_model_gives_an_epoch_between_its_bounds(controls):
    for settings, words in told(n01.draw_loading_model, controls, 12):
        epoch = float(words.split(": ")[1].split(" ms")[0])
        load = settings.get("load_ms", 12)
        step = settings.get("step_ms", 12)
        longest = 20 * (load + step) + load * (settings.get("slow_batch", 1) - 1)
        assert load + 20 * step <= epoch <= longest


def test_the_epoch_is_that_of_the_model_and_a_deeper_queue_saves_the_trainer_from_a_slow_batch():
    trace = simulate_loading(16, 20, 12, 2)
    assert alt_text(n01.draw_loading_model(2, 2, 20, 12, batches=16)).startswith(f"2 workers: {trace.makespan:.0f} ms")
    waits = [alt_text(n01.draw_loading_model(2, prefetch, slow_batch=6)) for prefetch in (1, 2, 3)]
    assert [words.split(" ms")[0] for words in waits] == [f"2 workers: {ms}" for ms in (300, 276, 252)]


def test_scaling_tells_measured_and_predicted_epochs_and_the_gain_and_short_epochs_are_compared():
    words = alt_text(n01.draw_scaling({"slow": [0.4, 0.2]}, {"slow": [[0.44], [0.2, 0.21, 0.9]]}, {"slow": 0.1}, 1.5))
    assert words.startswith("With 1.50 cores, best speed with workers against none: slow 2.1 ×.")
    assert "slow: measured 440/210 ms, predicted 400/200 ms" in words
    worse = alt_text(n01.draw_scaling({"slow": [0.4, 0.2]}, {"slow": [[0.44], [0.5]]}, {"slow": 0.1}, 1))
    assert "slow 0.9 ×" in worse
    rows = {"without workers": (0.0, 0.02), "with 4 workers": (0.05, 0.06)}
    words = alt_text(n01.draw_short_epochs(rows, 3))
    assert words.startswith("Time against no workers: with 4 workers 3.0 ×.")
    assert "with 4 workers 60 ms, of which 50 before any load" in words
