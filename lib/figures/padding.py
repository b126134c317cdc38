"""Padding, drawn: what a batch of sentences of different lengths holds, shuffled and sorted inside pools."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib._units import format_share
from lib.data.buckets import padding_share, pooled_batches, sentence_lengths
from lib.data.samplers import RandomSampler
from lib.show.explore import steps
from lib.show.style import GREY, HATCH, INK, PAPER, describe, headline, ink_on, new_figure, rank_color, styled

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
