"""The figures of notebook 08: clocks, the bubble, the best m, and a table placed by hand."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.pipeline import clock_cycles
from lib.schedules import (
    Action,
    gpipe,
    interleaved_one_f_one_b,
    live_activations,
    model_parallel,
    one_f_one_b,
    simulate,
    validate,
    waits_for,
)
from lib.schedules.table import in_order
from lib.show.explore import mark
from lib.show.schedules import MAKERS, make, name_of
from lib.show.style import alt_text, new_figure
from support.n08 import figures as n08
from support.n08.hover import explore_hover, hovering, spots
from support.n08.runs import Board, IllegalMoveError


def record(fixed, row=1.0, rows=64):
    """A machine on which a micro-batch of s rows takes `fixed` plus s times `row` seconds."""
    sizes = [rows // 2**k for k in range(7)]
    return {"rows": rows, "size": sizes, "rows_per_second": [s / (fixed + s * row) for s in sizes]}


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 4), (4, 3), (8, 4)])
def test_model_parallelism_takes_as_long_as_one_device_and_a_pipeline_m_plus_n_minus_1(m, n):
    alone, parallel, piped = n08.three_ways(m, n).values()
    assert alone.makespan == parallel.makespan == m * n and piped.makespan == m + n - 1
    assert alone.bubble == 0
    assert parallel.bubble == pytest.approx((n - 1) / n)
    assert piped.bubble == pytest.approx((n - 1) / (m + n - 1))


def test_the_diagonals_tell_the_pairs_of_the_clock_and_one_beyond_the_last_is_the_last():
    assert "pairs (i, j) with i + j = 2: (2, 0), (1, 1), (0, 2)" in alt_text(n08.draw_diagonals(4, 3, 2))
    assert alt_text(n08.draw_diagonals(2, 2, 9)) == alt_text(n08.draw_diagonals(2, 2, 2))


@pytest.mark.parametrize(("m", "n"), [(4, 4), (1, 5), (12, 6), (7, 1)])
def test_the_bubble_has_n_times_n_minus_1_idle_cells_and_its_curves_go_through_the_formula(m, n):
    figure = n08.draw_bubble(m, n)
    assert f"{n * (n - 1)} of {n * (m + n - 1)} cells are idle" in alt_text(figure)
    for several in (2, 4, n, 8, 16):
        formula = [pytest.approx(100 * (several - 1) / (2**k + several - 1)) for k in range(7)]
        assert any(formula == list(line.get_ydata()) for line in figure.axes[1].lines)


def test_what_runs_before_its_input_is_there_is_red():
    at_once = [[(k, j) for j in range(3)] for k in range(4)]
    assert n08.early(at_once) == {(k, k, j) for k in range(4) for j in (1, 2)}
    assert "8 of them run before their input is there" in alt_text(n08.draw_clocks(at_once))
    for m, n in itertools.product((1, 4, 7), (1, 3, 5)):
        assert not n08.early(list(clock_cycles(m, n)))
    assert "each runs after its input is there" in alt_text(n08.draw_clocks(clock_cycles(4, 3)))
    assert alt_text(n08.draw_clocks([]))


def test_free_operators_want_the_most_micro_batches_fixed_costs_one_and_the_figure_says_the_best():
    assert n08.best_m(record(fixed=0.0), partitions=4) == 64
    assert n08.best_m(record(fixed=1.0, row=0.0), partitions=4) == 1
    assert f"Best: m = {n08.best_m(record(2.0), 4)}" in alt_text(n08.draw_best_m(record(2.0), 4))


@pytest.mark.parametrize("fixed", [0.5, 2.0, 9.0])
def test_the_best_m_is_near_the_root_of_the_closed_form(fixed):
    for n in n08.BEST_M_CONTROLS["partitions"].options:
        times = n08.step_seconds(record(fixed), n)
        assert times == {m: pytest.approx((m + n - 1) * (fixed + 64 / m)) for m in times}
        ideal = ((n - 1) * 64 / fixed) ** 0.5  # where the derivative of that is 0
        assert min(1, ideal) / 2 <= n08.best_m(record(fixed), n) <= 2 * ideal


def filled(schedule):
    """Return the board on which a schedule has been placed, action by action."""
    board = Board(schedule.micro_batches, schedule.stages)
    return board.place(*(step.action for step in in_order(schedule)))


def test_a_region_lies_where_it_was_drawn_and_its_words_are_escaped():
    figure, axes = new_figure(4, 2)
    axes.set(xlim=(0, 10), ylim=(0, 1))
    mark(axes, (0, 5, 0, 1), '<b>"half"</b>')
    (spot,) = spots(figure)
    box = axes.get_position()
    assert (spot.left, spot.width) == (pytest.approx(box.x0), pytest.approx(box.width / 2))
    assert (spot.top, spot.height) == (pytest.approx(1 - box.y1), pytest.approx(box.height))
    html = hovering(figure)
    assert "&lt;b&gt;&quot;half&quot;&lt;/b&gt;" in html and "<b>" not in html
    assert spots(new_figure(4, 2)[0]) == []


def test_every_idle_slot_of_the_explorer_tells_what_it_waits_for():
    explorer = explore_hover(n08.draw_schedule_explorer, **n08.SCHEDULE_CONTROLS)
    words = [spot.words for spot in spots(explorer.figure)]
    idle = [text for text in words if text.startswith("idle for")]
    waits = waits_for(interleaved_one_f_one_b(8, 4, 2), forward=0.5, backward=1.0)
    assert sorted(text.split("\n")[1] for text in idle) == sorted(map(str, waits))
    assert "idle for 0.5\nrank 1 waits for 0F0, to do 1F0" in idle
    assert sum("backward of micro-batch" in text for text in words) == 8 * 4 * 2
    assert explorer._frame().count("idt-spot") >= len(words)


def test_what_a_maker_does_not_take_is_said_in_the_title_and_gpipe_with_the_same_costs_beside_each():
    first = {name: control.value for name, control in n08.SCHEDULE_CONTROLS.items()}
    costs = {"forward": [1, 1, 2, 1], "backward": [2, 2, 4, 2], "communicate": 0.5}
    for maker in MAKERS:
        words = alt_text(n08.draw_schedule_explorer(**{**first, "communicate": 0.5, "slow": 2, "maker": maker}))
        assert words.startswith(maker) and name_of(make(maker, 4, 2, 2)[0]) == maker
        if maker == "1F1B":
            assert f"GPipe takes {simulate(gpipe(8, 4), **costs).makespan:g} ticks" in words
    assert "(always v = 1)" in n08.draw_schedule_explorer(**{**first, "maker": "GPipe"}).get_suptitle()
    dual = {**first, "maker": "DualPipeV", "micro_batches": 2, "stages": 3}
    title = n08.draw_schedule_explorer(**dual).get_suptitle().replace("\n", " ")
    assert "m = 8, n = 4, v = 2 (it takes m ≥ 2n, so m = 8, always v = 2)" in title


@pytest.mark.parametrize("maker", [gpipe, one_f_one_b, model_parallel])
def test_a_makers_table_can_be_placed_and_scores_as_itself(maker):
    board = filled(maker(4, 3))
    assert board.left == 0 and board.schedule.ranks == maker(4, 3).compact().ranks
    yours, *_ = board.scores()
    trace = simulate(maker(4, 3))
    assert (yours.ticks, yours.idle) == (trace.makespan, trace.bubble)
    assert yours.held == max(live_activations(maker(4, 3)))


@pytest.mark.parametrize(
    ("moves", "move", "says"),
    [
        ("", "1F0", "1F0 needs 0F0"),
        ("0F0", "0B0", "0B0 needs 1B0"),
        ("0F0 1F0", "1B1", "1B1 needs 1F1"),
        ("0F0", "0F0", "0F0 has been done"),
        ("0F0", "2F0", "2F0 is for stage 2"),
        ("0F0", "0F5", "micro-batch 5"),
        ("0F0 1F0", "1I0", "here a backward is whole, 1B0"),
    ],
)
def test_an_illegal_move_is_refused_with_the_reason(moves, move, says):
    board = Board(2, 2).place(*moves.split())
    assert says in board.refusal(move)
    with pytest.raises(IllegalMoveError, match=says):
        board.place(move)
    with pytest.raises(ValueError, match="no action"):
        board.refusal("forward!")


def test_a_legal_move_has_no_refusal_undo_takes_it_back_and_an_unfinished_table_says_how_much_is_placed():
    empty = Board(2, 2)
    board = empty.place("0F0")
    assert board.refusal("1F0") == board.refusal("0F1") == ""
    assert board.place("1F0").undo() == board and empty.undo() == empty
    assert (empty.verdict(), board.verdict()) == ("0 of 8 actions placed", "1 of 8 actions placed")
    words = alt_text(n08.draw_board(Board(4, 3).place("0F0", "1F0", "2F0")))
    assert "3 of 24 actions placed" in words and "GPipe: 18 ticks, 33 % idle, holds at most 4" in words


@given(st.data(), st.integers(1, 4), st.integers(1, 3))
def test_whoever_places_legal_moves_in_any_order_never_gets_stuck_and_ends_with_a_table_that_runs(data, m, n):
    board = Board(m, n)
    while board.left:
        every = [action for rank in range(n) for action in board.actions(rank)]
        legal = [action for action in every if not board.refusal(action)]
        board = board.place(data.draw(st.sampled_from(legal)))
    validate(board.schedule, stages=n, micro_batches=m)
    assert board.verdict().startswith("Complete: ")


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (one_f_one_b(4, 3), "as fast as GPipe and 1F1B, and holds no more than 1F1B: at most 3"),
        (gpipe(4, 3), "as fast as GPipe and 1F1B, and holds as much as GPipe: at most 4"),
        (model_parallel(4, 3), "18 ticks slower than GPipe and 1F1B, and holds less than 1F1B: at most 1"),
    ],
)
def test_the_verdict_compares_speed_and_memory(schedule, says):
    assert filled(schedule).verdict().startswith(f"Complete: {says} activation")


def test_a_click_places_and_an_illegal_one_says_why_undo_and_clear_go_back():
    game = n08.place_it(2, 2)
    game.press("0F0")
    assert (game.message, game.refused) == ("Placed 0F0.", False)
    figure = game.figure
    game.press("0B0")
    assert game.refused and game.message.startswith("Refused: 0B0 needs 1B0") and game.figure is figure
    assert game.board == Board(2, 2).place("0F0")
    game = n08.PlaceIt(filled(one_f_one_b(2, 2)).undo())
    game.press("0B1")
    assert game.message.startswith("Placed 0B1. Complete: as fast as GPipe and 1F1B")
    game.undo()
    assert game.message == "Took back 0B1." and game.board.left == 1
    game.clear()
    assert game.board == Board(2, 2)
    game.undo()
    assert game.message == "There is nothing to take back."


def test_the_buttons_are_wired_and_the_still_picture_is_stored_beside_the_widget():
    pytest.importorskip("ipywidgets")
    game = n08.place_it(2, 2)
    rows = game.widget.children[:2]
    buttons = {button.description: button for row in rows for button in row.children[1:]}
    assert list(buttons) == [str(Action(op, j, i)) for j in range(2) for op in "FB" for i in range(2)]
    frame, answer = game.widget.children[-1], game.widget.children[-2]
    first = frame.value
    buttons["0F0"].click()
    assert frame.value != first and "Placed 0F0." in answer.value
    assert buttons["0F0"].style.button_color != buttons["0F1"].style.button_color
    second = frame.value
    buttons["1B0"].click()
    assert frame.value == second and "Refused: 1B0 needs 1F0" in answer.value
    data, metadata = game._repr_mimebundle_()
    assert "image/png" in data and metadata["image/png"]["alt"] == alt_text(game.figure)
