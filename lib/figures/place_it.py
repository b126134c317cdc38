"""Place a schedule yourself: a button for each action, an answer to each move, a score beside GPipe's and 1F1B's.

draw_board  the table so far as a timeline, and the scores: a pure function of a Board
PlaceIt     the buttons over it; the game itself is in place_board
"""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib._units import format_share
from lib.figures.place_board import Board, Score
from lib.pipeline.schedule import Action, waits_for
from lib.pipeline.schedule.simulate import KINDS
from lib.show.explore import bundle, hovering
from lib.show.schedules import draw_ranks
from lib.show.style import (
    GREEN,
    GREY,
    INK,
    MUTED,
    PAPER,
    RED,
    alt_text,
    color_of,
    describe,
    headline,
    new_figure,
    png,
    shown_size,
    styled,
)


@styled
def draw_board(board: Board) -> Figure:
    """Draw the table so far, and ticks and held activations beside those of GPipe and 1F1B."""
    scores = board.scores()
    end = max(board.trace.end, 1.08 * max(score.ticks for score in scores[1:]))
    figure, panels = new_figure(
        9, 2.9 + 0.42 * board.partitions, rows=2, height_ratios=[board.partitions, 2.4]
    )
    waits = waits_for(board.schedule, board.forward, board.backward) if board.moves else []
    idle = [
        wait for wait in waits if wait.needed is not None or not board.left
    ]  # the rest may still be filled
    draw_ranks(panels[0], board.schedule, board.trace, idle, end, 0.42)
    panels[0].set_xlabel("time (ticks)")
    panels[1].axis("off")
    lower = panels[1].get_subplotspec().subgridspec(1, 3, wspace=0.1)
    columns = [figure.add_subplot(lower[k]) for k in range(3)]
    shown = "{:g}".format
    _bars(columns[0], "ticks", scores, [score.ticks for score in scores], shown, board.left)
    _bars(
        columns[1],
        "idle",
        scores,
        [100 * score.idle for score in scores],
        lambda v: format_share(v / 100),
        board.left,
    )
    _bars(columns[2], "activations held", scores, [score.held for score in scores], shown, board.left)
    for axes in columns[1:]:
        axes.set_yticks([])
    headline(figure, board.verdict())
    table = "; ".join(board.schedule.to_text().splitlines())
    said = "; ".join(map(str, scores))
    return describe(figure, f"{board.verdict()}. {said}. The table: {table}.")


def _bars(
    axes: Axes, what: str, scores: Sequence[Score], values: Sequence[float], shown: Any, left: int
) -> None:
    names = [f"{score.name} so far" if k == 0 and left else score.name for k, score in enumerate(scores)]
    colors = [INK if k == 0 else GREY for k in range(len(scores))]
    bars = axes.barh(range(len(scores)), values, height=0.62, color=colors)
    if left:
        bars[0].set(facecolor=PAPER, edgecolor=INK, linewidth=1.4)  # not yet final: an outline
    most = max(*values, 1)
    for k, value in enumerate(values):
        axes.text(value + 0.03 * most, k, shown(value), va="center_baseline", fontsize=10)
    axes.set(ylim=(len(scores) - 0.4, -0.6), xlim=(0, 1.25 * most), xticks=[])
    axes.set_yticks(range(len(scores)), names, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title(what, fontsize=10, fontweight="normal", color=MUTED, pad=3)


class PlaceIt:
    """Hold a Board and show it: `press` is a click on an action, `undo` and `clear` go back.

    `board` is the table so far, `message` the answer to the last move. A still page shows the picture as it is now.
    """

    def __init__(self, board: Board) -> None:
        self.start = self.board = board
        self.message = "Click on an action: it goes to the end of its rank's row."
        self.refused = False
        self.figure = draw_board(board)
        self._box: Any = None
        self._show: Any = None

    def press(self, action: Action | str) -> None:
        """Place an action at the end of its rank's row, or say why that can't be."""
        action = Action.parse(str(action))
        if reason := self.board.refusal(action):
            self._answer(self.board, f"Refused: {reason}.", refused=True)
        else:
            board = self.board.place(action)
            self._answer(board, f"Placed {action}." if board.left else f"Placed {action}. {board.verdict()}.")

    def undo(self) -> None:
        """Take the last move back."""
        said = f"Took back {self.board.moves[-1]}." if self.board.moves else "There is nothing to take back."
        self._answer(self.board.undo(), said)

    def clear(self) -> None:
        """Take all moves back."""
        self._answer(
            Board(self.board.micro_batches, self.board.partitions, self.board.forward, self.board.backward),
            "Empty.",
        )

    def _answer(self, board: Board, message: str, refused: bool = False) -> None:
        changed, self.board, self.message, self.refused = board is not self.board, board, message, refused
        if changed:
            self.figure = draw_board(board)
        if self._show is not None:
            self._show(changed)

    def _frame(self) -> str:
        width, _ = shown_size(self.figure)
        picture = base64.b64encode(png(self.figure)).decode()
        image = (
            f'<img class="idt-frame" alt="{html.escape(alt_text(self.figure))}" '
            f'src="data:image/png;base64,{picture}" style="width:{width}px;max-width:100%;background:white">'
        )
        return hovering(image, self.figure)

    def _said(self) -> str:
        edge = RED if self.refused else GREEN
        return (
            f'<div class="idt-answer" role="status" style="border-left:5px solid {edge};padding:4px 12px;'
            f'background:#f6f8fa;color:{INK};font-size:14px;line-height:1.5">{html.escape(self.message)}</div>'
        )

    @property
    def widget(self) -> Any:
        """The ipywidgets box: a row of buttons for each rank, the answer, the picture. Made once."""
        if self._box is None:
            self._box = self._widget()
        return self._box

    def _widget(self) -> Any:
        import ipywidgets

        frame, answer = ipywidgets.HTML(self._frame()), ipywidgets.HTML(self._said())
        buttons: dict[Action, Any] = {}
        rows = []
        small = ipywidgets.Layout(width="52px", margin="1px")
        for rank in range(self.board.partitions):
            row = [ipywidgets.HTML(f"<b>rank {rank}</b>", layout=ipywidgets.Layout(width="60px"))]
            for action in self.board.actions(rank):
                button = ipywidgets.Button(description=str(action), layout=small)
                button.on_click(lambda _, action=action: self.press(action))
                row.append(button)
                buttons[action] = button
            rows.append(ipywidgets.HBox(row, layout=ipywidgets.Layout(flex_flow="row wrap")))
        steps = []
        for name, back in (("Undo", self.undo), ("Clear", self.clear)):
            step = ipywidgets.Button(description=name, layout=ipywidgets.Layout(width="80px"))
            step.on_click(lambda _, back=back: back())
            steps.append(step)

        def show(changed: bool) -> None:
            if changed:
                frame.value = self._frame()
            answer.value = self._said()  # last: who reads it, may look at the picture
            _color(buttons, self.board)

        self._show = show
        _color(buttons, self.board)
        box = ipywidgets.VBox([*rows, ipywidgets.HBox(steps), answer, frame])
        box.add_class("idt-place")
        return box

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle(self.figure, self.widget)


def _color(buttons: dict[Action, Any], board: Board) -> None:
    """Give a button the colour of its kind until its action is placed."""
    for action, button in buttons.items():
        placed = action in board.moves
        button.style.button_color = "#e3e6ea" if placed else color_of(KINDS[action.op])
        button.style.text_color = MUTED if placed else PAPER


def place_it(micro_batches: int = 4, partitions: int = 3, moves: Sequence[str] = ()) -> PlaceIt:
    """Show a table to be filled by clicks, with some moves made. Raises IllegalMoveError for a wrong one."""
    return PlaceIt(Board(micro_batches, partitions).place(*moves))
