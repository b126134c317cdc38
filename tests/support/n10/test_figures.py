"""The figures of notebook 10 draw what was predicted and counted: every corner is drawn, its numbers checked."""

import math

import pytest

from lib.show.style import alt_text
from support.n10 import faults, staircase
from support.n10 import figures as n10
from support.n10.blocks import course_of
from tests.pictures import told


def test_held_tensors_are_counted_as_predicted():
    for values, words in told(n10.draw_held, n10.HELD_CONTROLS, 6):
        cut = min(values["segments"], values["layers"])
        steps = staircase.predict(values["layers"], cut, values["micro_batches"], values["mode"])
        assert f"peak of {staircase.peak(steps)} tensors" in words
        assert "in every step as predicted" in words


def test_the_bars_cover_exactly_the_steps_in_which_a_tensor_is_held_and_have_the_reason():
    for mode in staircase.MODES:
        steps = staircase.predict(6, 3, 2, mode)
        lives = n10.lives(steps, 6, 3, staircase.checkpointed(2, mode))
        assert {(tensor, t) for tensor, a, b, _ in lives for t in range(a, b)} == {
            (tensor, t) for t, step in enumerate(steps) for tensor in step.held
        }
    steps = staircase.predict(4, 2)
    reasons = {(k, a): why for (_, k), a, _, why in n10.lives(steps, 4, 2, 1)}
    assert {why for (k, _), why in reasons.items() if k in (1, 3, 4)} == {"recomputed"}
    assert [why for (k, _), why in sorted(reasons.items()) if k == 2] == ["boundary", "recomputed"]
    assert {why for *_, why in n10.lives(staircase.predict(4, 2, 1, "never"), 4, 2, 0)} == {"inside"}
    reasons = [(k, why) for (_, k), _, _, why in n10.lives(staircase.predict(3, 3), 3, 3, 1)]
    assert reasons.count((1, "boundary")) == reasons.count((1, "recomputed")) == 1


@pytest.mark.costly
def test_the_course_of_a_step_says_which_way_the_checkpoint_of_attention_moves_the_peak():
    for values, words in told(n10.draw_course, n10.COURSE_CONTROLS, 2):
        plain, attention = (
            course_of(way, values["blocks"], values["positions"]).peak
            for way in ("keep everything", "recompute attention")
        )
        assert ("attention lowers the peak" if attention < plain else "attention raises the peak") in words
        assert f"recompute attention: {course_of('recompute attention', *values.values()).held:.0f} u after" in words
    assert "1 block, 256 positions: to recompute attention raises the peak" in alt_text(n10.draw_course())
    assert "attention lowers the peak" in alt_text(n10.draw_course(2, 256))


def test_staircases_state_all_peaks_ways_what_they_keep_and_cost_and_the_table_every_outcome():
    text = alt_text(n10.draw_staircases(9, (1, 3)))
    assert "without: peak 10 over 18 steps; 1 segment: peak 10 over 27 steps; 3 segments: peak 6 over 27 steps" in text
    peaks = {"all": (24.0, 24.0), "some": (16.0, 18.0)}
    text = alt_text(n10.draw_ways(peaks, {"all": 0.0, "some": -0.25}, {"all": 0.0, "some": 0.1}, "in u"))
    assert "some: peak 18 (predicted 16), FLOPs -25%, time +10%" in text
    assert "Furthest apart, some: -25% FLOPs, +10% time." in text
    text = alt_text(n10.draw_ways(peaks, {"all": 0.0, "some": math.nan}, {"all": 0.0, "some": 0.1}, "in u"))
    assert "some: peak 18 (predicted 16), FLOPs not counted, time +10%" in text
    assert "Furthest apart, all: +0% FLOPs, +0% time." in text
    figure = n10.draw_ways(peaks, {"all": 0.0, "some": 0.05}, {"all": 0.0, "some": 0.4, "asking": 0.3}, "in u")
    assert "asking, a control: time +30%" in alt_text(figure)
    assert figure.axes[1].get_xlim() == figure.axes[2].get_xlim(), "FLOPs and time on one scale"
    row: dict[str, faults.Outcome] = {"a": "wrong", "b": "no gradient", "c": "error", "d": "warned"}
    other: dict[str, faults.Outcome] = {"a": "same", "b": "wrong", "c": "counted twice", "d": "same"}
    figure = n10.draw_faults({"x": row, "y": other})
    assert alt_text(figure).startswith("Silent faults, of 2 cases: a 1, b 2, c 1, d 0. Silent in every column: none; f")
    both: dict[str, faults.Outcome] = {"a": "wrong", "b": "no gradient", "c": "counted twice", "d": "wrong"}
    text = alt_text(n10.draw_faults({"x": both, "y": other}))
    assert "Silent in every column: x; fewest: a, 1 of 2." in text
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert all(n10.LOOK[outcome][2] in words for outcome in n10.LOOK)
