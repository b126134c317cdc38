"""A table placed by hand: what may come next, why not, the score; and that the widget only passes clicks on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.n08.figures import PlaceIt, draw_board, place_it
from support.n08.runs import Board, IllegalMoveError

from lib.schedules import Action, gpipe, live_activations, model_parallel, one_f_one_b, simulate, validate
from lib.schedules.table import in_order
from lib.show.style import alt_text


def filled(schedule):
    """Return the board on which a schedule has been placed, action by action."""
    board = Board(schedule.micro_batches, schedule.stages)
    return board.place(*(step.action for step in in_order(schedule)))


@pytest.mark.parametrize("maker", [gpipe, one_f_one_b, model_parallel])
def test_a_makers_table_can_be_placed_and_scores_as_itself(maker):
    board = filled(maker(4, 3))
    assert board.left == 0
    assert board.schedule.ranks == maker(4, 3).compact().ranks
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


def test_what_is_no_action_is_an_error_and_not_a_move():
    with pytest.raises(ValueError, match="no action"):
        Board(2, 2).refusal("forward!")


def test_a_legal_move_has_no_refusal_and_undo_takes_it_back():
    board = Board(2, 2).place("0F0")
    assert board.refusal("1F0") == board.refusal("0F1") == ""
    assert board.place("1F0").undo() == board
    assert Board(2, 2).undo() == Board(2, 2)


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


def test_an_unfinished_table_says_how_much_is_placed():
    assert Board(4, 3).verdict() == "0 of 24 actions placed"
    assert Board(4, 3).place("0F0").verdict() == "1 of 24 actions placed"


def test_the_picture_hatches_gaps_but_not_what_is_still_open():
    figure = draw_board(Board(4, 3).place("0F0", "1F0", "2F0"))
    hatched = [c for c in figure.axes[0].collections if c.get_hatch()]
    gaps = sorted(
        (round(float(x0), 6), round(float(x1), 6))
        for c in hatched
        for (x0, _), (x1, _) in (path.get_extents().get_points() for path in c.get_paths())
    )
    assert gaps == [(0, 1), (0, 2)]
    assert "3 of 24 actions placed" in alt_text(figure)
    assert "GPipe: 18 ticks, 33 % idle, holds at most 4" in alt_text(figure)


# ---- the widget


def test_a_click_places_and_an_illegal_one_says_why_and_changes_nothing():
    game = place_it(2, 2)
    game.press("0F0")
    assert (game.message, game.refused) == ("Placed 0F0.", False)
    figure = game.figure
    game.press("0B0")
    assert game.refused and game.message.startswith("Refused: 0B0 needs 1B0")
    assert game.figure is figure
    assert game.board == Board(2, 2).place("0F0")


def test_undo_and_clear_go_back_and_the_last_action_brings_the_verdict():
    game = PlaceIt(filled(one_f_one_b(2, 2)).undo())
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
    game = place_it(2, 2)
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
