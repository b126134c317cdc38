"""Figures of notebook 02, samplers: who asks whom for what, the orders that come of it, and padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.utils.data import RandomSampler, SequentialSampler

from lib.data.samplers import RandomSampler as SeededSampler
from lib.show import sheet, style
from lib.show.explore import choice, steps, switch, whole
from lib.show.sheet import Cell, cell_font, draw_cell, label_row, write
from lib.show.style import INK, MUTED, PAPER, describe, styled, title
from lib.text import format_share, plural
from support.n02 import runs, streams
from support.n02.runs import IndexDataset, Message, record_epoch

# ---- The conversation between Dataset, Sampler, DataLoader and training loop, drawn from a recorded run.

LIFELINES = {
    "Dataset": (1.0, "holds the items"),
    "Sampler": (3.3, "decides the order"),
    "DataLoader": (5.6, "fetches"),
    "training loop": (7.9, "uses the batch"),
}
# inches, but for the window: so many messages
ROW = 0.44
HEAD = 0.62
SIDE = 0.32
WINDOW = 8
NOW = "#e8f2f9"


SAMPLERS: dict[str, Callable[[IndexDataset], Iterable[int]]] = {  # torch's own
    "sequential": SequentialSampler,
    "random": lambda dataset: RandomSampler(dataset, generator=torch.Generator().manual_seed(0)),
}

MESSAGES_CONTROLS = {
    "step": whole(1, 32, 6, "step"),
    "N": whole(1, 10, 7, "N · items"),
    "batch_size": whole(1, 4, 2, "batch size"),
    "sampler": choice(tuple(SAMPLERS), "random", "sampler"),
    "drop_last": switch(False, "drop_last"),
}


def _heads(axes: Axes, bottom: float) -> None:
    for name, (x, role) in LIFELINES.items():
        axes.plot([x, x], [HEAD, bottom], color=style.GREY, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        sheet.box(axes, x, 0.17, 1.35, 0.3, name, face=INK, edge=INK, writing={"weight": "bold"})
        write(axes, x, 0.5, role, color=MUTED)
    sheet.note(axes, 0.05, bottom + 0.12, "each arrow leads to the one who asked")


def _message(
    axes: Axes, message: Message, y: float, number: int, first: int, batch_size: int, current: bool
) -> None:
    """Draw one message in the row at y; `first` is the position in the epoch of its first index."""
    start = LIFELINES[message.sender][0]
    end = LIFELINES[message.receiver][0]
    if current:
        axes.axhspan(y - ROW / 2, y + ROW / 2, color=NOW, zorder=0)
    write(axes, 0.12, y, str(number), color=INK if current else MUTED)
    sheet.arrow(axes, (start, y), (end, y), gap=(0, 4), zorder=2)
    # the payload lies on the last stretch before the receiver, so that a long arrow's load hides no lifeline
    middle = end + (1.15 if start > end else -1.15)
    paper = {"boxstyle": "square,pad=0.1", "facecolor": NOW if current else PAPER, "edgecolor": "none"}
    weight = "bold" if current else "normal"
    if message.name == "length":
        often = f", {message.times} ×" if message.times > 1 else ""
        write(axes, middle, y, f" length: {message.payload[0]}{often} ", bbox=paper, weight=weight)
        return
    left = middle - (len(message.payload) * SIDE - 0.55) / 2
    write(axes, left - 0.02, y, f" {message.name} ", ha="right", bbox=paper, weight=weight)
    for place, index in enumerate(message.payload):
        cell = Cell(index, (first + place) // batch_size)
        draw_cell(axes, left + (place + 0.5) * SIDE, y, cell, size=0.88 * SIDE, font=10)


def _cell(
    axes: Axes, x: float, y: float, index: int | str, batch: int | None, state: str, side: float
) -> None:
    """Draw a cell of the order strip: "unknown", "named", "loaded", "used" or "dropped"."""
    marks: dict[str, Any] = {"dropped": "dropped", "named": "faded", "loaded": "faded"}
    mark = marks.get(state, "plain")
    cell = Cell(index, None if mark == "dropped" else batch, mark)
    patch = draw_cell(axes, x, y, cell, size=0.88 * side, font=10)
    if mark == "faded":
        patch.set_facecolor(PAPER if state == "named" else style.pale(str(cell.hue), 0.4))


def _order(
    axes: Axes, y: float, messages: Sequence[Message], size: int, batch_size: int, drop_last: bool
) -> None:
    """Draw the epoch's order as a strip, as far as these messages have told it."""
    # what these messages tell: an index is named by the Sampler, then loaded, then used in a batch
    named = [index for message in messages if message.name == "indices" for index in message.payload]
    loaded, used = (sum(len(m.payload) for m in messages if m.name == name) for name in ("load", "batch"))
    kept = size // batch_size * batch_size if drop_last else size
    sheet.note(axes, 0.05, y - 0.32, "the order of this epoch, as far as the Sampler has told it")
    x = 0.05 + SIDE / 2
    for place in range(size):
        known = place < len(named)
        if place >= kept:
            state = "dropped"
        elif place < used:
            state = "used"
        elif place < loaded:
            state = "loaded"
        else:
            state = "named" if known else "unknown"
        index = named[place] if known else "?"
        _cell(axes, x, y, index, place // batch_size if known else None, state, SIDE)
        x += SIDE + (0.12 if (place + 1) % batch_size == 0 else 0)
    write(axes, 4.83, y, "in this strip:", color=MUTED, ha="right", va="center_baseline")
    x = 5.0
    for state in ("named", "loaded", "used") + (("dropped",) if kept < size else ()):
        _cell(axes, x, y, "", 0, state, 0.26)
        write(axes, x + 0.19, y, state, color=MUTED, ha="left", va="center_baseline")
        x += 1.0


def _sentence(message: Message, lost: bool) -> str:
    items = ("item " if len(message.payload) == 1 else "items ") + ", ".join(map(str, message.payload))
    if lost:
        return f"{items} would be a short batch: dropped"
    return {
        "length": f"the Sampler is told the length, {message.payload[0]}",
        "indices": f"the Sampler names {items}",
        "load": f"the Dataset loads {items} for the DataLoader",
        "batch": f"the training loop gets {items}",
    }[message.name]


@styled
def draw_conversation(
    messages: Sequence[Message], batch_size: int, *, drop_last: bool = False, upto: int | None = None
) -> Figure:
    """Draw messages 1..upto (all by default) as a sequence diagram, and below it what is known of the epoch's order.

    Cells carry indices; their colour is the batch. With `upto` only the last few messages are shown, at a fixed height.
    """
    shown = list(messages if upto is None else messages[:upto])
    size = next((message.payload[0] for message in messages if message.name == "length"), 0)
    rows, begin = (len(shown), 0) if upto is None else (WINDOW, max(0, len(shown) - WINDOW))
    bottom = HEAD + rows * ROW + 0.1
    figure, axes = sheet.inch_sheet(bottom + 1.1)
    _heads(axes, bottom)
    if begin:
        sheet.note(axes, 4.87, bottom + 0.12, f"messages 1 to {begin} are above the first one shown")
    sent = dict.fromkeys(("length", "indices", "load", "batch"), 0)
    for number, message in enumerate(shown, start=1):
        if number > begin:
            y = HEAD + (number - begin - 0.5) * ROW + 0.08
            current = upto is not None and number == len(shown)
            _message(axes, message, y, number, sent[message.name], batch_size, current)
        sent[message.name] += len(message.payload)
    _order(axes, bottom + 0.85, shown, size, batch_size, drop_last)
    batches = sum(message.name == "batch" for message in shown)
    askers = {message.receiver for message in shown if message.name == "length"}
    asked = sum(message.times for message in shown if message.name == "length")
    finding = f"Only the {' and the '.join(sorted(askers))} asks for the length ({asked} ×)"
    finding += f"; the epoch has {plural(batches, 'batch', 'batches')}"
    if upto is not None and shown:
        over = len(shown) == len(messages)
        lost = drop_last and shown[-1].name == "indices" and sent["indices"] > size // batch_size * batch_size
        finding = f"Message {len(shown)} of {len(messages)}: {_sentence(shown[-1], lost)}"
        finding += "; the epoch is over" if over else ""
    title(axes, finding)
    said = "; ".join(
        f"{number} {message.name}, {message.sender} to {message.receiver}, {', '.join(map(str, message.payload))}"
        for number, message in enumerate(shown, start=1)
    )
    return describe(figure, f"{finding}. Sequence diagram of {', '.join(LIFELINES)}: {said}.")


def draw_messages(N: int, batch_size: int, sampler: str, drop_last: bool, step: int) -> Figure:
    """Run one epoch of a real DataLoader and draw its messages up to `step` (at most the last one)."""
    messages = record_epoch(SAMPLERS[sampler], N, batch_size, drop_last)
    return draw_conversation(messages, batch_size, drop_last=drop_last, upto=min(step, len(messages)))


# ---- Orders as strips of index cells: what a sampler yields, position by position.

GAP = 0.3  # columns between two batches


def _room(labels: Iterable[str]) -> float:
    """Return the inches that the names of rows need."""
    return 0.3 + 0.085 * max(map(len, labels), default=0)


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
    length = max([expected, 1, *(len(row) for row in rows.values())])

    def at(place: int) -> float:
        return place + GAP * (place // batch_size if batch_size else 0)

    figure, axes = sheet.cell_sheet(at(length - 1) + 1, len(rows) + 1.1, labels=_room(rows))
    font = cell_font(axes, 11)
    for y, (label, row) in enumerate(rows.items()):
        label_row(axes, y, label)
        for place, index in enumerate(row):
            batch = place // batch_size if batch_size else 0
            group = groups[label][place] if groups else batch
            if index is not None:
                draw_cell(axes, at(place), y, Cell(index, group), font=font)
        for place in range(len(row), expected):
            draw_cell(axes, at(place), y, Cell("", mark="dropped"), font=font)
    for place in range(length):
        write(axes, at(place), len(rows) - 0.2, str(place), size=9, color=MUTED)
    write(axes, at(length - 1) / 2, len(rows) + 0.35, positions, color=MUTED)
    title(axes, finding)
    said = "; ".join(f"{label}: {_listed(row)}" for label, row in rows.items())
    return describe(figure, f"{finding}. Strips of indices by {positions}. {said}.")


def draw_rows(rows: Mapping[str, Sequence[int]], where: str = "") -> Figure:
    """Draw each worker's random numbers as a strip, with one colour for all rows that are equal; `where`: a remark."""
    different = list(dict.fromkeys(map(tuple, rows.values())))
    groups = {label: [different.index(tuple(row))] * len(row) for label, row in rows.items()}
    few = f"only {len(different)} different"
    count = {1: "all the same", len(rows): "all different"}.get(len(different), few)
    finding = f"{len(rows)} rows of random numbers{' ' * bool(where)}{where}: {count}"
    return draw_orders(rows, finding, groups=groups, positions="position in the worker's batch")


@styled
def draw_ahead(handed_out: Mapping[str, Sequence[int]], size: int, batch_size: int) -> Figure:
    """Draw, for each loader and each batch that arrives, which indices are used, on their way, and not yet asked for.

    handed_out: by the loader's name, how many indices its sampler had given when batch 0, 1, … arrived.
    """
    batches = max(len(counts) for counts in handed_out.values())
    labels = [f"batch {number} arrives" for number in range(batches)]
    block = size + 1.6
    figure, axes = sheet.cell_sheet(block * len(handed_out) - 1.6, batches + 2.4, labels=_room(labels))
    font = cell_font(axes, 11)
    for number, label in enumerate(labels):
        label_row(axes, number + 0.9, label)
    for part, (name, counts) in enumerate(handed_out.items()):
        x = part * block
        write(axes, x - 0.45, -0.05, name, size=11, weight="bold", ha="left", va="center_baseline")
        for number, given in enumerate(counts):
            used = min(size, (number + 1) * batch_size)
            for index in range(size):
                batch = index // batch_size
                on_its_way = Cell(index, batch, "faded") if index < given else Cell(index)
                cell = Cell(index, batch) if index < used else on_its_way
                draw_cell(axes, x + index, number + 0.9, cell, font=font)
    legend = (
        (0, Cell("", 0), "arrived"),
        (4.2, Cell("", 0, "faded"), "on its way"),
        (9, Cell(""), "not asked for"),
    )
    for x, cell, meaning in legend:
        sheet.draw_legend(axes, [(cell, meaning)], x=x, y=batches + 1.25, step=0)
    ahead = ", ".join(f"{name} {counts[0] - min(size, batch_size)}" for name, counts in handed_out.items())
    finding = f"Indices on their way when the first batch arrives: {ahead}"
    title(axes, finding)
    told = "; ".join(f"{name}: {_listed(list(counts))}" for name, counts in handed_out.items())
    return describe(figure, f"{finding}. Handed out when batch 0, 1, … of {batch_size} arrived: {told}.")


# ---- Padding, drawn: what a batch of sentences of different lengths holds, shuffled and sorted inside pools.

PADDING_CONTROLS = {
    "batch_size": steps((2, 4, 8, 16), 4, "batch size"),
    "pool": steps((1, 2, 4, 8, 16), 4, "batches a pool"),
}


def _panel(
    axes: Axes, lengths: Sequence[int], batches: Sequence[Sequence[int]], heading: str, pool: int = 0
) -> None:
    """Draw batches from top to bottom, a bar a sentence; a dashed line ends each pool of `pool` batches."""
    y = 0.0
    padding: Any = dict(color=PAPER, edgecolor=style.GREY, hatch=style.HATCH["padding"], linewidth=0.6)
    name: Any = dict(size=9, ha="left", va="center_baseline", weight="bold")
    for number, batch in enumerate(batches):
        color = style.rank_color(number)
        words = [lengths[i] for i in batch]
        rows = [y + row for row in range(len(batch))]
        axes.barh(rows, words, height=0.84, color=color)
        axes.barh(rows, [max(words) - word for word in words], left=words, height=0.84, **padding)
        for row, i in zip(rows, batch, strict=True):
            write(axes, 0.4, row, str(i), color=style.ink_on(color), **name)
        y += len(batch) + 0.55
        if pool and (number + 1) % pool == 0 and number + 1 < len(batches):
            axes.axhline(y - 0.78, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set(ylim=(y - 0.55, -0.8), yticks=[], xlim=(0, max(lengths) + 1), xlabel="words (hatched: padding)")
    axes.spines["left"].set_visible(False)
    axes.set_title(heading, fontsize=11, color=INK, weight="normal")


@styled
def draw_padding(batch_size: int, pool: int, count: int = 32) -> Figure:
    """Draw the batches of `count` made-up sentences, as shuffled and as sorted by length in pools of `pool`."""
    lengths = runs.sentence_lengths(count)
    order = list(SeededSampler(lengths, seed=0))
    most = -(-count // batch_size)
    shuffled = [order[start : start + batch_size] for start in range(0, count, batch_size)]
    pooled = runs.pooled_batches(lengths, order, batch_size, min(pool, most))
    before, after = (format_share(runs.padding_share(lengths, batches)) for batches in (shuffled, pooled))
    figure, (left, right) = style.new_figure(9, 6.2, cols=2)
    _panel(left, lengths, shuffled, f"shuffled: {before} padding")
    pools = f"pools of {plural(pool, 'batch', 'batches')}" if pool < most else "one pool: the whole epoch"
    _panel(right, lengths, pooled, f"{pools}: {after} padding", pool)
    cut = f"Pools of {pool} batches cut" if pool < most else "One pool for the whole epoch cuts"
    finding = f"{cut} padding from {before} to {after}"
    if pool == 1:
        finding = f"A pool of one batch changes no batch: {after} padding"
    style.headline(figure, finding)
    said = "; ".join(f"{list(batch)} holds up to {max(lengths[i] for i in batch)} words" for batch in pooled)
    return describe(figure, f"{finding}. {count} sentences, batches of {batch_size}; sorted: {said}.")


# ---- A shuffle buffer: how far items move, and how mixed the batches are.

BUFFER_CONTROLS = {
    "size": steps((1, 10, 50, 100, 300, 500, 1000), 100, "buffer holds"),
    "files": steps((1, 2, 5, 10), 1, "files read in turns"),
    "epoch": whole(0, 2, 0, "epoch"),
}


def _hue(file: int) -> str:
    """Return the colour of a file's class: ranks have eight, and two dark ones make ten that stand apart."""
    dark = (INK, style.mixed(style.RED, INK, 0.6))
    return (*style.RANKS, *dark)[file]


@styled
def draw_buffer(size: int, files: int, epoch: int) -> Figure:
    """Draw where each photo of a sorted archive leaves a shuffle buffer, and which of ten classes the batches hold."""
    order = streams.through_buffer(size, files, seed=epoch)
    read = list(streams.in_turns(streams.archive(), files))
    place_of = {photo: place for place, photo in enumerate(read)}
    early = max(place_of[photo] - turn for turn, photo in enumerate(order))
    late = max(turn - place_of[photo] for turn, photo in enumerate(order))
    figure, (left, right) = style.new_figure(9, 4.6, cols=2)
    left.scatter(
        [place_of[photo] for photo in order],
        range(len(order)),
        s=5,
        color=[_hue(photo // streams.PHOTOS) for photo in order],
    )
    left.plot([size - 1, len(order)], [0, len(order) - size + 1], color=INK, linewidth=1)
    left.set(
        xlabel="place in the stream (colour: class)",
        ylabel="place in the epoch",
        xlim=(-10, 1010),
        ylim=(1010, -10),
    )
    left.set_title(f"at most {early} places early, {late} late", fontsize=11, color=INK, weight="normal")
    _compositions(right, order)
    mean = streams.classes_in_batches(order)
    together = plural(files, "file")
    finding = (
        f"A batch of {streams.BATCH} holds {mean:.1f} of 10 classes: buffer for {size}, {together} at a time"
    )
    style.headline(figure, finding)
    said = f"photos leave at most {early} places early and {late} late"
    return describe(figure, f"{finding}. 1,000 photos in files of one class each, epoch {epoch}; {said}.")


def _compositions(axes: Axes, order: Sequence[int]) -> None:
    """Draw each batch as a column of its photos' classes."""
    for number, start in enumerate(range(0, len(order), streams.BATCH)):
        classes = sorted(photo // streams.PHOTOS for photo in order[start : start + streams.BATCH])
        bottom = 0
        for file in sorted(set(classes)):
            height = classes.count(file)
            axes.bar(number, height, bottom=bottom, width=0.9, color=_hue(file), linewidth=0)
            bottom += height
    axes.set(xlabel="batch", ylabel="photos of each class", xlim=(-0.6, 49.6), yticks=[0, 10, 20])
