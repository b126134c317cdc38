"""Figures of notebook 05: what one server hands out.

draw_queries   rows a second, by server and by way to ask
draw_late      why a kept connection may be slow: the second of two small writes waits for an acknowledgement
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from lib.data.queries import HOW
from lib.show.style import BLUE, GREEN, INK, MUTED, ORANGE, RED, describe, new_figure, styled, title

LOOKS = dict(zip(HOW, ((ORANGE, "o"), (BLUE, "s"), (GREEN, "^")), strict=True))


@styled
def draw_queries(table: Mapping[str, Mapping[str, float]], claimed: float = 1000) -> Figure:
    """Draw rows a second on a log scale, a line a server, a mark a way to ask; claimed: what the article says."""
    figure, axes = new_figure(9, 1.6 + 0.62 * len(table))
    for y, rates in enumerate(table.values()):
        axes.plot([min(rates.values()), max(rates.values())], [y, y], color=MUTED, linewidth=1)
        for how, rate in rates.items():
            color, mark = LOOKS[how]
            axes.plot(rate, y, mark, color=color, markersize=9, label=how if not y else None)
            axes.annotate(_short(rate), (rate, y), (0, 8 if how != HOW[1] else -17), textcoords="offset points",
                          ha="center", fontsize=9.5, color=INK)  # fmt: skip
    axes.axvline(claimed, color=RED, linestyle=(0, (5, 3)), linewidth=1.4)
    axes.text(claimed, -0.62, f"the article: {_short(claimed)}", color=RED, ha="center", fontsize=10)
    axes.set_yticks(range(len(table)), list(table), color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set(xscale="log", xlim=(8, 4e6), ylim=(len(table) - 0.4, -0.8), xlabel="rows a second, one client")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.legend(loc="lower center", bbox_to_anchor=(0.42, 1.0), ncols=3)
    every = [rate for row in table.values() for rate in row.values()]
    finding = f"The same rows from one server: {_short(min(every))} to {_short(max(every))} a second"
    title(axes, finding)
    axes.set_title(axes.get_title("left"), pad=34)
    told = "; ".join(
        f"{name}: " + ", ".join(f"{how} {_short(r)}" for how, r in row.items()) for name, row in table.items()
    )
    return describe(figure, f"{finding}. {told}.")


def _short(rate: float) -> str:
    digits = f"{float(f'{rate:.2g}'):,.0f}"
    return digits if rate < 10_000 else f"{rate / 1e3:,.0f} k" if rate < 1e6 else f"{rate / 1e6:.1f} M"


@styled
def draw_late(delay: float = 0.04) -> Figure:
    """Draw one query to a server that sends head and body apart: the body waits for the late acknowledgement."""
    figure, axes = new_figure(9, 2.7)
    ms = 1e3 * delay
    messages = [
        (0.0, "client", "GET /get/17", BLUE),
        (0.06 * ms, "server", "head, sent at once", GREEN),
        (ms, "client", f"acknowledgement, {ms:.0f} ms late", RED),
        (1.06 * ms, "server", "body, held back until now", GREEN),
    ]
    top = {"client": 0.0, "server": 1.0}
    for name, y in top.items():
        axes.plot([0, 1.5 * ms], [y, y], color=MUTED, linewidth=1.2, zorder=0)
        axes.text(-0.02 * ms, y, name, ha="right", va="center", fontweight="bold")
    for when, sender, text, color in messages:
        start, end = top[sender], 1 - top[sender]
        arrow = {"arrowstyle": "-|>", "color": color, "lw": 2.2}
        axes.annotate("", (when + 0.05 * ms, end), (when, start), arrowprops=arrow)
        at, align = (when + 0.05 * ms, "left") if sender == "server" else (when - 0.005 * ms, "right")
        if not when:
            at, align = 0.12 * ms, "left"
        height = 0.12 if not when else 0.25 if sender == "client" else 0.72
        axes.text(at, height, text, color=color, ha=align, va="center", fontsize=10)
    axes.annotate("", (ms, 0.5), (0.14 * ms, 0.5), arrowprops={"arrowstyle": "<->", "color": MUTED})
    axes.text(0.57 * ms, 0.49, "nothing moves", ha="center", va="bottom", color=MUTED)
    axes.set(xlim=(-0.14 * ms, 1.5 * ms), ylim=(1.12, -0.12), xlabel="time (ms)", yticks=[])
    axes.spines["left"].set_visible(False)
    title(axes, f"Two small writes: a query takes {ms:.0f} ms, so {1 / delay:.0f} queries a second at most")
    return describe(
        figure,
        f"One query: the client asks, the server sends the head, the client acknowledges it {ms:.0f} ms later, only "
        f"then the body leaves: at most {1 / delay:.0f} queries a second.",
    )
