"""Figures of notebook 02, samplers: who asks whom for what, the orders that come of it, and padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch.utils.data import Sampler

from lib._values import format_share
from lib.data.samplers import RandomSampler, SequentialSampler
from lib.show.explore import choice, steps, switch, whole
from lib.show.sheet import Cell, cell_axes, cell_font, draw_cell, draw_cells, draw_legend
from lib.show.style import (
    GREY,
    HATCH,
    INK,
    MUTED,
    PAPER,
    describe,
    headline,
    ink_on,
    new_figure,
    pale,
    rank_color,
    styled,
    title,
)
from support.n02.runs import (
    IndexDataset,
    Message,
    padding_share,
    pooled_batches,
    record_epoch,
    sentence_lengths,
)

# ---- The conversation between Dataset, Sampler, DataLoader and training loop, drawn from a recorded run.

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
    # what these messages tell: an index is named by the Sampler, then loaded, then used in a batch
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


# ---- Orders as strips of index cells: what a sampler yields, position by position.

GAP = 0.3  # columns between two batches
LEAST = 21.0  # a figure is at least so many columns wide, or a short strip would have huge cells
INCHES = 8.8  # of its 9 inches for the columns


def _sheet(columns: float, rows: float, labels: Sequence[str]) -> tuple[Figure, Axes]:
    """Make a figure for `columns` × `rows` cells with the labels' room to their left (0.1 inch a letter)."""
    room = 0.094 * max((len(label) for label in labels), default=0) + 0.15
    wide = max(columns, LEAST * (INCHES - room) / INCHES)
    left = room * wide / (INCHES - room)
    figure, axes = new_figure(9, rows * INCHES / (wide + left) + 0.55)
    return figure, cell_axes(axes, columns=wide, rows=rows, left=left)


def _label(axes: Axes, y: float, text: str) -> None:
    axes.text(axes.get_xlim()[0], y, text, ha="left", va="center_baseline", fontsize=10.5, color=INK)


def _listed(values: Sequence[object]) -> str:
    return ", ".join("–" if value is None else str(value) for value in values) or "nothing"


@styled
def draw_orders(
    rows: Mapping[str, Sequence[int | None]],
    finding: str,
    *,
    batch_size: int | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    expected: int = 0,
    positions: str = "position in the epoch",
) -> Figure:
    """Draw each row of indices as a strip under its label.

    The colour is the batch (with batch_size), or the number that `groups` gives each cell, or one for all. A row with
    less than `expected` indices is filled up with crossed cells: nothing came. None leaves its place blank.
    """
    length = max([expected, *(len(row) for row in rows.values())])

    def at(place: int) -> float:
        return place + GAP * (place // batch_size if batch_size else 0)

    figure, axes = _sheet(at(max(length, 1) - 1) + 1, len(rows) + 1.1, list(rows))
    font = cell_font(axes, 11)
    for y, (label, row) in enumerate(rows.items()):
        _label(axes, y, label)
        for place, index in enumerate(row):
            group = place // batch_size if batch_size else 0
            group = groups[label][place] if groups else group
            if index is not None:
                draw_cell(axes, at(place), y, Cell(index, group), font=font)
        for place in range(len(row), expected):
            draw_cell(axes, at(place), y, Cell("", mark="dropped"), font=font)
    for place in range(length):
        axes.text(at(place), len(rows) - 0.2, str(place), ha="center", va="center", fontsize=9, color=MUTED)
    axes.text(
        at(length - 1) / 2, len(rows) + 0.35, positions, ha="center", va="center", fontsize=10, color=MUTED
    )
    title(axes, finding)
    said = "; ".join(f"{label}: {_listed(row)}" for label, row in rows.items())
    return describe(figure, f"{finding}. Strips of indices by {positions}. {said}.")


@styled
def draw_ahead(handed_out: Mapping[str, Sequence[int]], size: int, batch_size: int) -> Figure:
    """Draw, for each loader and each batch that arrives, which indices are used, on their way, and not yet asked for.

    handed_out: by the loader's name, how many indices its sampler had given when batch 0, 1, … arrived.
    """
    batches = max(len(counts) for counts in handed_out.values())
    labels = [f"batch {number} arrives" for number in range(batches)]
    block = size + 1.6
    columns = block * len(handed_out) - 1.6
    figure, axes = _sheet(columns, batches + 2.4, labels)
    font = cell_font(axes, 11)
    for number, label in enumerate(labels):
        _label(axes, number + 0.9, label)
    for part, (name, counts) in enumerate(handed_out.items()):
        x = part * block
        axes.text(x - 0.45, -0.05, name, fontsize=11, weight="bold", va="center_baseline", color=INK)
        for number, count in enumerate(counts):
            used = min(size, (number + 1) * batch_size)
            for index in range(size):
                batch = index // batch_size
                on_its_way = Cell(index, batch, "faded") if index < count else Cell(index)
                draw_cell(
                    axes,
                    x + index,
                    number + 0.9,
                    Cell(index, batch) if index < used else on_its_way,
                    font=font,
                )
    legend = [
        (Cell("", 0), "arrived"),
        (Cell("", 0, "faded"), "handed out, on its way"),
        (Cell(""), "not asked for yet"),
    ]
    for x, entry in zip((0, 4.2, 12.2), legend, strict=True):
        draw_legend(axes, [entry], x=x, y=batches + 1.25, step=0)
    ahead = ", ".join(f"{name} {counts[0] - min(size, batch_size)}" for name, counts in handed_out.items())
    title(axes, f"Indices on their way when the first batch arrives: {ahead}")
    told = "; ".join(f"{name}: {_listed(list(counts))}" for name, counts in handed_out.items())
    return describe(
        figure,
        f"{axes.get_title('left')}. Indices handed out when batch 0, 1, … of {batch_size} arrived: {told}.",
    )


@styled
def draw_weighted(drawn: Sequence[int], weights: Sequence[float]) -> Figure:
    """Draw a row per index with one cell for each time it was drawn, and dashed how many its weight asks for."""
    counts = [list(drawn).count(index) for index in range(len(weights))]
    due = [len(drawn) * weight / sum(weights) for weight in weights]
    labels = [f"index {index}, weight {weight:g}" for index, weight in enumerate(weights)]
    figure, axes = _sheet(max(*counts, *due) + 5, len(weights), labels)
    for index, (count, expected, label) in enumerate(zip(counts, due, labels, strict=True)):
        _label(axes, index, label)
        draw_cells(axes, [Cell(index, 0)] * count, y=index, font=9.5)
        frame = Rectangle(
            (-0.5, index - 0.5), expected, 1, fill=False, edgecolor=INK, linestyle=(0, (3, 2)), zorder=4
        )
        axes.add_patch(frame)
        x = max(count, expected) - 0.2
        axes.text(
            x, index, f"{count} drawn, {expected:.3g} due", fontsize=9.5, va="center_baseline", color=MUTED
        )
    odd = max(range(len(weights)), key=lambda index: abs(counts[index] - due[index]))
    title(
        axes,
        f"Weights set odds, not counts: of {len(drawn)} draws index {odd} got {counts[odd]}, {due[odd]:.3g} were due",
    )
    pairs = "; ".join(f"index {i}: {counts[i]} drawn, {due[i]:.3g} due" for i in range(len(weights)))
    return describe(figure, f"{axes.get_title('left')}. One cell for each of {len(drawn)} draws: {pairs}.")


# ---- Padding, drawn: what a batch of sentences of different lengths holds, shuffled and sorted inside pools.

SENTENCES = 32

PADDING_CONTROLS = {
    "batch_size": steps((2, 4, 8, 16), 4, "batch size"),
    "pool": steps((1, 2, 4, 8, 16), 4, "batches a pool"),
}


def _panel(
    axes: Axes,
    lengths: Sequence[int],
    batches: Sequence[Sequence[int]],
    heading: str,
    pool: int | None = None,
) -> None:
    """Draw batches from top to bottom, a bar a sentence; a dashed line ends each pool of `pool` batches."""
    y = 0.0
    for number, batch in enumerate(batches):
        color = rank_color(number)
        longest = max(lengths[i] for i in batch)
        for i in batch:
            axes.barh(y, lengths[i], height=0.84, color=color, gid=f"words {i}")
            rest = longest - lengths[i]
            axes.barh(
                y,
                rest,
                left=lengths[i],
                height=0.84,
                color=PAPER,
                edgecolor=GREY,
                hatch=HATCH["padding"],
                linewidth=0.6,
                gid=f"padding {i}",
            )
            axes.text(0.4, y, str(i), fontsize=9, va="center_baseline", color=ink_on(color), weight="bold")
            y += 1
        y += 0.55
        if pool and (number + 1) % pool == 0 and number + 1 < len(batches):
            axes.axhline(y - 0.78, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set(ylim=(y - 0.55, -0.8), yticks=[], xlim=(0, max(lengths) + 1), xlabel="words (hatched: padding)")
    axes.spines["left"].set_visible(False)
    axes.set_title(heading, fontsize=11, color=INK, weight="normal")


@styled
def draw_padding(batch_size: int, pool: int, count: int = SENTENCES) -> Figure:
    """Draw the batches of `count` made-up sentences, as shuffled and as sorted by length in pools of `pool`."""
    lengths = sentence_lengths(count)
    order = list(RandomSampler(lengths, seed=0))
    most = -(-count // batch_size)
    plain, pooled = (
        pooled_batches(lengths, order, batch_size, 1),
        pooled_batches(lengths, order, batch_size, min(pool, most)),
    )
    before, after = padding_share(lengths, plain), padding_share(lengths, pooled)
    figure, (left, right) = new_figure(9, 6.2, cols=2)
    shuffled = [order[start : start + batch_size] for start in range(0, count, batch_size)]
    _panel(left, lengths, shuffled, f"shuffled: {format_share(before)} padding")
    pools = f"pools of {pool} batches" if pool < most else "one pool: the whole epoch"
    _panel(right, lengths, pooled, f"sorted inside {pools}: {format_share(after)}", pool)
    if pool == 1:
        finding = f"A pool of one batch changes no batch: {format_share(after)} of the words are padding"
    else:
        finding = f"Sorting inside pools cuts padding from {format_share(before)} to {format_share(after)}"
    headline(figure, finding)
    said = "; ".join(f"{list(batch)} holds up to {max(lengths[i] for i in batch)} words" for batch in pooled)
    return describe(
        figure, f"{finding}. {count} sentences in batches of {batch_size}; sorted batches: {said}."
    )
