"""The figures of notebook 10 draw what was predicted and counted: every corner is drawn, its numbers checked."""

from lib.show.style import alt_text
from support.n10 import figures as n10
from support.n10 import runs
from tests.pictures import told


def test_held_tensors_are_counted_as_predicted():
    for values, words in told(n10.draw_held, n10.HELD_CONTROLS, 6):
        cut = min(values["segments"], values["layers"])
        steps = runs.predict(values["layers"], cut, values["micro_batches"], values["mode"])
        assert f"peak of {runs.peak(steps)} tensors" in words
        assert "in every step as predicted" in words


def test_the_bars_cover_exactly_the_steps_in_which_a_tensor_is_held_and_have_the_reason():
    for mode in runs.MODES:
        steps = runs.predict(6, 3, 2, mode)
        lives = n10.lives(steps, 6, 3, runs.checkpointed(2, mode))
        assert {(tensor, t) for tensor, a, b, _ in lives for t in range(a, b)} == {
            (tensor, t) for t, step in enumerate(steps) for tensor in step.held
        }
    steps = runs.predict(4, 2)
    reasons = {(k, a): why for (_, k), a, _, why in n10.lives(steps, 4, 2, 1)}
    assert {why for (k, _), why in reasons.items() if k in (1, 3, 4)} == {"recomputed"}
    assert [why for (k, _), why in sorted(reasons.items()) if k == 2] == ["boundary", "recomputed"]
    assert {why for *_, why in n10.lives(runs.predict(4, 2, 1, "never"), 4, 2, 0)} == {"inside"}
    reasons = [(k, why) for (_, k), _, _, why in n10.lives(runs.predict(3, 3), 3, 3, 1)]
    assert reasons.count((1, "boundary")) == reasons.count((1, "recomputed")) == 1


def test_staircases_state_all_peaks_ways_what_they_keep_and_the_table_every_outcome():
    text = alt_text(n10.draw_staircases(9, (1, 3)))
    assert "without: peak 10 over 18 steps; 1 segment: peak 10 over 27 steps; 3 segments: peak 6 over 27 steps" in text
    held = {"all": (24.0, 24.0), "some": (16.0, 18.0), "none": (1.0, 1.0)}
    again = {"all": (0.0, 0.0), "some": (0.08, 0.08), "none": (1 / 3, 1 / 3)}
    text = alt_text(n10.draw_ways(held, again, "units"))
    assert text.startswith("some -25%, none -96%.")
    assert "18.0 (predicted 16.0)" in text
    row: dict[str, runs.Outcome] = {"a": "wrong", "b": "no gradient", "c": "error", "d": "warned"}
    other: dict[str, runs.Outcome] = {"a": "same", "b": "wrong", "c": "counted twice", "d": "same"}
    figure = n10.draw_faults({"x": row, "y": other})
    assert alt_text(figure).startswith("Silent faults, of 2 cases: a 1, b 2, c 1, d 0.")
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert all(n10.LOOK[outcome][2] in words for outcome in n10.LOOK)
