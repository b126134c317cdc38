"""The conversation between Dataset, Sampler, DataLoader and training loop, drawn from a recorded run.

draw_conversation   a list of messages as a sequence diagram
draw_messages       the same for one epoch that it runs, up to a step: what the explorer wraps
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.utils.data import Sampler

from lib.data.samplers import RandomSampler, SequentialSampler
from lib.data.toy import IndexDataset, Message, record_epoch
from lib.show.explore import choice, switch, whole
from lib.show.sheet import Cell, draw_cell
from lib.show.style import GREY, INK, MUTED, PAPER, describe, new_figure, pale, styled, title

LIFELINES = {
    "Dataset": (1.0, "holds the items"),
    "Sampler": (3.3, "decides the order"),
    "DataLoader": (5.6, "fetches"),
    "training loop": (7.9, "uses the batch"),
}
ROW, HEAD, SIDE, WINDOW = 0.44, 0.62, 0.32, 8  # inches, but for the window: so many messages
NOW = "#e8f2f9"


class Reversed(Sampler[int]):
    """Yield the last index first."""

    def __init__(self, dataset: IndexDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.dataset) - 1, -1, -1))


class OddFirst(Reversed):
    """Yield the odd indices, then the even ones."""

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        return iter([*range(1, size, 2), *range(0, size, 2)])


SAMPLERS: dict[str, Callable[[IndexDataset], Iterable[int]]] = {
    "sequential": SequentialSampler,
    "random": lambda dataset: RandomSampler(dataset, seed=0),
    "reversed": Reversed,
    "odd first": OddFirst,
}

MESSAGES_CONTROLS = {
    "step": whole(1, 31, 6, "step"),
    "N": whole(1, 10, 7, "N · samples"),
    "batch_size": whole(1, 4, 2, "batch size"),
    "sampler": choice(tuple(SAMPLERS), "random", "sampler"),
    "drop_last": switch(False, "drop_last"),
}


def _heads(axes: Axes, bottom: float) -> None:
    for name, (x, role) in LIFELINES.items():
        axes.plot([x, x], [HEAD, bottom], color=GREY, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        box = {"boxstyle": "round,pad=0.35", "facecolor": INK, "edgecolor": INK}
        axes.text(x, 0.17, name, color=PAPER, weight="bold", ha="center", va="center", bbox=box, zorder=3)
        axes.text(x, 0.5, role, color=MUTED, fontsize=10, ha="center", va="center")


def _message(
    axes: Axes, message: Message, y: float, number: int, first: int, batch_size: int, current: bool
) -> None:
    """Draw one message in the row at y; `first` is the position in the epoch of its first index."""
    start, end = LIFELINES[message.sender][0], LIFELINES[message.receiver][0]
    if current:
        axes.axhspan(y - ROW / 2, y + ROW / 2, color=NOW, zorder=0)
    axes.text(0.12, y, str(number), color=INK if current else MUTED, fontsize=10, ha="center", va="center")
    # a load is a call: the item comes back on the same line
    style = "<|-|>" if message.name == "load" else "-|>"
    arrow = {"arrowstyle": style, "color": INK, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (end, y), (start, y), arrowprops=arrow, zorder=2)
    cells = len(message.payload)
    # the payload lies on the last stretch before the receiver, so that a long arrow's load hides no lifeline
    middle = end + (1.15 if start > end else -1.15)
    label = f" {message.name}" + (f": {message.payload[0]} items " if message.name == "length" else " ")
    width = 0 if message.name == "length" else cells * SIDE
    box = {"boxstyle": "square,pad=0.1", "facecolor": NOW if current else PAPER, "edgecolor": "none"}
    font: dict[str, Any] = {
        "va": "center",
        "fontsize": 10,
        "bbox": box,
        "weight": "bold" if current else "normal",
    }
    if not width:
        axes.text(middle, y, label, ha="center", **font)
        return
    left = middle - (width - 0.55) / 2
    axes.text(left - 0.02, y, label, ha="right", **font)
    for place, index in enumerate(message.payload):
        cell = Cell(index, (first + place) // batch_size)
        draw_cell(axes, left + (place + 0.5) * SIDE, y, cell, size=0.88 * SIDE, font=10)


def _cell(
    axes: Axes, x: float, y: float, index: int | str, batch: int | None, state: str, side: float = SIDE
) -> None:
    """Draw a cell of the order strip: "unknown", "named", "loaded", "used" or "dropped"."""
    if state == "dropped":
        draw_cell(axes, x, y, Cell(index, mark="dropped"), size=0.88 * side, font=10)
        return
    cell = Cell(index, batch, "faded" if state in ("named", "loaded") else "plain")
    patch = draw_cell(axes, x, y, cell, size=0.88 * side, font=10)
    if cell.mark == "faded":
        patch.set_facecolor(PAPER if state == "named" else pale(str(cell.hue), 0.4))


def _order(
    axes: Axes, y: float, messages: Sequence[Message], size: int, batch_size: int, drop_last: bool
) -> None:
    """Draw the epoch's order as a strip, as far as these messages have told it."""
    named = [index for message in messages if message.name == "indices" for index in message.payload]
    loaded, used = (sum(len(m.payload) for m in messages if m.name == name) for name in ("load", "batch"))
    kept = size // batch_size * batch_size if drop_last else size
    axes.text(
        0.05, y - 0.32, "the order of this epoch, as far as the Sampler has told it", color=MUTED, fontsize=10
    )
    x = 0.05 + SIDE / 2
    for place in range(size):
        known = place < len(named)
        state = "used" if place < used else "loaded" if place < loaded else "named"
        if place >= kept:
            state = "dropped"
        batch = place // batch_size if known else None
        _cell(
            axes,
            x,
            y,
            named[place] if known else "?",
            batch,
            state if known or state == "dropped" else "unknown",
        )
        x += SIDE + (0.12 if (place + 1) % batch_size == 0 else 0)
    x = 5.0
    for state in ("named", "loaded", "used") + (("dropped",) if kept < size else ()):
        _cell(axes, x, y, "", 0, state, side=0.26)
        axes.text(x + 0.19, y, state, color=MUTED, fontsize=10, va="center_baseline")
        x += 1.0


def _sentence(message: Message, lost: bool) -> str:
    items = ("item " if len(message.payload) == 1 else "items ") + ", ".join(map(str, message.payload))
    if lost:
        return f"{items} would be a short batch: dropped"
    return {
        "length": f"the Sampler learns that there are {message.payload[0]} items",
        "indices": f"the Sampler orders {items}",
        "load": f"the DataLoader fetches {items} from the Dataset",
        "batch": f"the training loop gets {items}",
    }[message.name]


@styled
def draw_conversation(
    messages: Sequence[Message],
    batch_size: int,
    finding: str = "",
    *,
    drop_last: bool = False,
    upto: int | None = None,
) -> Figure:
    """Draw messages 1..upto (all by default) as a sequence diagram, and below it what is known of the epoch's order.

    Cells carry indices; their colour is the batch. With `upto` only the last few messages are shown, at a fixed height.
    """
    shown = list(messages if upto is None else messages[:upto])
    size = next((message.payload[0] for message in messages if message.name == "length"), 0)
    rows, begin = (len(shown), 0) if upto is None else (WINDOW, max(0, len(shown) - WINDOW))
    bottom = HEAD + rows * ROW + 0.1
    height = bottom + 0.85
    figure, axes = new_figure(9, height + 0.5)  # the rest is for the title
    axes.set(xlim=(0, 9), ylim=(height, 0), aspect="equal")
    axes.axis("off")
    _heads(axes, bottom)
    sent = dict.fromkeys(("length", "indices", "load", "batch"), 0)
    for number, message in enumerate(shown, start=1):
        if number > begin:
            y = HEAD + (number - begin - 0.5) * ROW + 0.08
            current = upto is not None and number == len(shown)
            _message(axes, message, y, number, sent[message.name], batch_size, current)
        sent[message.name] += len(message.payload)
    _order(axes, bottom + 0.62, shown, size, batch_size, drop_last)
    if upto is not None and shown:
        lost = drop_last and shown[-1].name == "indices" and len(shown) == len(messages)
        end = "; the epoch is over" if len(shown) == len(messages) else ""
        finding = f"Message {len(shown)} of {len(messages)}: {_sentence(shown[-1], lost)}{end}"
    batches = sum(message.name == "batch" for message in shown)
    title(axes, finding or f"Length once; then indices, load, batch for each of {batches} batches")
    said = "; ".join(
        f"{number} {message.name}, {message.sender} to {message.receiver}, {', '.join(map(str, message.payload))}"
        for number, message in enumerate(shown, start=1)
    )
    return describe(
        figure,
        f"{axes.get_title('left')}. Sequence diagram of {', '.join(LIFELINES)}. Messages so far: {said}.",
    )


def draw_messages(N: int, batch_size: int, sampler: str, drop_last: bool, step: int) -> Figure:
    """Run one epoch of a real DataLoader and draw its messages up to `step` (at most the last one)."""
    messages = record_epoch(SAMPLERS[sampler], N, batch_size, drop_last)
    return draw_conversation(messages, batch_size, drop_last=drop_last, upto=min(step, len(messages)))
