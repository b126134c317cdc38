"""The figures of notebook 10 draw what was predicted and counted: every corner is drawn, its numbers checked."""

import itertools
import re

import pytest
import torch

from lib.show.style import alt_text
from lib.timeline import Trace
from support.n10 import figures as n10
from support.n10 import runs
from tests.pictures import told


def test_held_tensors_are_counted_as_predicted():
    for values, words in told(n10.draw_held, n10.HELD_CONTROLS, 20):
        cut = min(values["segments"], values["layers"])
        steps = runs.predict(values["layers"], cut, values["micro_batches"], values["mode"])
        assert f"peak of {runs.peak(steps)} tensors" in words and "in every step as predicted" in words


def test_the_bars_cover_exactly_the_steps_in_which_a_tensor_is_held():
    for mode in runs.MODES:
        steps = runs.predict(6, 3, 2, mode)
        bars = {
            (tensor, t) for tensor, a, b, _ in n10.lives(steps, 6, 3, runs.checkpointed(2, mode)) for t in range(a, b)
        }
        assert bars == {(tensor, t) for t, step in enumerate(steps) for tensor in step.held}


def test_a_life_has_the_reason_for_which_it_is_held():
    steps = runs.predict(4, 2)
    reasons = {(k, a): why for (_, k), a, _, why in n10.lives(steps, 4, 2, 1)}
    assert {why for (k, _), why in reasons.items() if k in (1, 3, 4)} == {"recomputed"}
    assert [why for (k, _), why in sorted(reasons.items()) if k == 2] == ["boundary", "recomputed"]
    assert {why for *_, why in n10.lives(runs.predict(4, 2, 1, "never"), 4, 2, 0)} == {"inside"}
    reasons = [(k, why) for (_, k), _, _, why in n10.lives(runs.predict(3, 3), 3, 3, 1)]
    assert reasons.count((1, "boundary")) == reasons.count((1, "recomputed")) == 1


def test_staircases_state_the_peaks_of_all_ways_and_the_numbers_of_segments_with_the_least():
    text = alt_text(n10.draw_staircases(9, (1, 3)))
    assert "without: peak 10 over 18 steps; 1 segment: peak 10 over 27 steps; 3 segments: peak 6 over 27 steps" in text
    assert alt_text(n10.draw_segments(16)).startswith("16 layers need least, 8 tensors, in 3 to 6 segments.")


def test_recompute_is_at_work_before_checkpoint_in_backward():
    texts = [alt_text(n10.draw_two_functions(step)) for step in range(1, 7)]
    active = [text.split("At work: ")[1].split(".")[0] for text in texts]
    backward = [k for k, text in enumerate(texts) if "(backward" in text]
    assert next(k for k in backward if "Recompute" in active[k]) < next(
        k for k in backward if "Checkpoint" in active[k]
    )
    assert all("with graph" in texts[k] for k in (3, 4))


def test_early_recompute_saves_one_forward_for_each_partition_but_the_last():
    for n, m in itertools.product(range(1, 6), range(1, 6)):
        for mode, backward in itertools.product(("always", "except_last"), (1.0, 2.0)):
            late, early = (
                runs.predict_early(n, m, early=e, mode=mode, backward=backward).makespan for e in (False, True)
            )
            if mode == "always":
                assert late - early == n - 1
            assert early <= late
    for values, words in told(n10.draw_early, n10.EARLY_CONTROLS):
        assert int(re.findall(r"\d+", words)[0]) == runs.predict_early(**values).makespan


def test_predicted_backward_keeps_its_order_and_never_overlaps_in_a_lane():
    trace = runs.predict_early(3, 4, early=True)
    for lane in trace.lanes:
        spans = trace.only(lane=lane)
        assert all(a.end <= b.start for a, b in itertools.pairwise(spans))
        assert [s.label for s in spans] == ["R3", "B3", "R2", "B2", "R1", "B1", "R0", "B0"]


def test_a_measured_step_does_the_pieces_that_were_predicted():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    threads = torch.get_num_threads()
    assert Trace(runs.predict_step(1.0, 2.0, 2, "always")).lanes == ("always",)
    steps = runs.measure_steps(model, torch.ones(6, 4), 3, repeats=1)
    assert torch.get_num_threads() == threads
    for mode in runs.MODES:
        expected = [span.label for span in runs.predict_step(1.0, 2.0, 3, mode)]
        assert [span.label for span in steps[mode]] == expected
    text = alt_text(n10.draw_steps(steps, 1e-3, 2e-3, 3))
    assert "always takes" in text and "Predicted: 23 spans" in text


def test_one_thread_gives_the_threads_back_after_an_error():
    threads = torch.get_num_threads()

    with pytest.raises(KeyError, match="^1$"), runs.one_thread():
        raise KeyError(torch.get_num_threads())
    assert torch.get_num_threads() == threads


def test_gpu_rows_are_called_predicted_where_nothing_was_measured():
    rows = runs.predicted_rows()
    assert min(rows, key=lambda row: row["predicted_mib"])["segments"] == 4
    assert rows[1]["predicted_mib"] > rows[0]["predicted_mib"]  # one segment saves nothing
    text = alt_text(n10.draw_gpu(rows, "nobody"))
    assert text.startswith("4 segments should need ")
    measured = [{**row, "mib": 100.0 + k, "ms": 5.0 + k} for k, row in enumerate(rows)]
    assert alt_text(n10.draw_gpu(measured, "a GPU")).startswith("1 segment needs 101% of the memory")
    if not torch.cuda.is_available():
        source = runs.rows_and_source()[1]
        assert source.startswith(("Predicted, not measured", "Recorded"))


def test_masks_state_the_share_that_differs_and_running_means_the_momentum_that_acts():
    first = torch.tensor([[True, False], [True, True]])
    assert "The same mask twice" in alt_text(n10.draw_masks(first, first))
    assert "50% of the units differ" in alt_text(n10.draw_masks(first, torch.tensor([[True, True], [False, True]])))
    assert n10.kept(torch.tensor([0.0, 2.0])).tolist() == [False, True]
    once, twice = ([1 - factor**k for k in range(5)] for factor in (0.9, 0.81))
    assert "Momentum 0.10 acts as 0.19" in alt_text(n10.draw_running({"plain": once, "checkpoint": twice}))
    assert alt_text(n10.draw_running({"plain": once, "deferred": once})).startswith("Momentum 0.10 everywhere")


def test_the_table_counts_silent_faults_and_shows_every_outcome():
    row: dict[str, runs.Outcome] = {"a": "wrong", "b": "no gradient", "c": "error"}
    figure = n10.draw_faults({"x": row, "y": {"a": "same", "b": "wrong", "c": "counted twice"}})
    assert alt_text(figure).startswith("Silent faults in 2 cases: a 1, b 2, c 0.")
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert all(n10.LOOK[outcome][2] in words for outcome in n10.LOOK)
