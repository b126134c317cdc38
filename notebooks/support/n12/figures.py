"""Figures of notebook 12, GPipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from lib._values import format_share, plural
from lib.pipeline.balance import partition
from lib.pipeline.pipeline import clock_cycles
from lib.show.charts import beside
from lib.show.explore import Control, choice, steps, whole
from lib.show.sheet import arrow, box, write
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    HATCH,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PINK,
    describe,
    headline,
    new_figure,
    pale,
    rank_color,
    source_note,
    styled,
    title,
)
from lib.show.timeline import bar, draw_timeline, idle, lane_rows
from lib.timeline import Span, Trace

Row = Mapping[str, Any]
Point = tuple[float, float]

# --- a balance, and the clocks that follow from it

COSTS: dict[str, tuple[int, ...]] = {
    "early layers dear": (6, 5, 4, 3, 2, 2, 1, 1, 1, 1),
    "all alike": (3,) * 10,
    "one heavy layer": (1, 1, 1, 1, 12, 2, 2, 2, 2, 2),
}

BALANCE_CONTROLS: dict[str, Control] = {
    "costs": choice(tuple(COSTS), "early layers dear", "costs of the layers"),
    "first": whole(1, 8, 4, "layers in partition 0"),
    "second": whole(1, 8, 3, "layers in partition 1"),
    "chunks": whole(1, 16, 4, "m · micro-batches"),
    "overhead": steps((0.0, 0.1, 0.2, 0.5, 1.0), 0.1, "overhead of a task, ticks"),
}


def block_costs(costs: Sequence[float], balance: Sequence[int]) -> list[float]:
    """Return what each partition costs: the sums of its layers."""
    return [sum(costs[a:b]) for a, b in pairwise([0, *accumulate(balance)])]


def predicted_forward(seconds: Sequence[float], chunks: int) -> Trace:
    """Return the spans of a forward pass, clock by clock, in which a task of partition j takes seconds[j]."""
    now, spans, lanes = 0.0, [], [f"partition {j}" for j in range(len(seconds))]
    for clock in clock_cycles(chunks, len(seconds)):
        spans += [Span(lanes[j], f"F{i}", now, now + seconds[j], "forward") for i, j in clock]
        now += max(seconds[j] for _, j in clock)
    return Trace(spans, lanes)


def speedup(costs: Sequence[float], balance: Sequence[int], chunks: int, overhead: float) -> float:
    """Return how many times as fast as one device, with the whole batch, the clocks are."""
    tasks = [cost / chunks + overhead for cost in block_costs(costs, balance)]
    return (sum(costs) + overhead) / predicted_forward(tasks, chunks).makespan


def owners(balance: Sequence[int]) -> list[int]:
    """Return the partition of each layer."""
    return [j for j, size in enumerate(balance) for _ in range(size)]


@styled
def draw_balance(costs: str, first: int, second: int, chunks: int, overhead: float) -> Figure:
    """Draw ten layers in three partitions, and the predicted forward pass of `chunks` micro-batches."""
    layers = COSTS[costs]
    first = min(first, len(layers) - 2)
    second = min(second, len(layers) - first - 1)
    balance = [first, second, len(layers) - first - second]
    blocks, best = block_costs(layers, balance), partition(layers, 3)
    gain, possible = (speedup(layers, cut, chunks, overhead) for cut in (balance, best))
    trace = predicted_forward([block / chunks + overhead for block in blocks], chunks)

    figure, (upper, lower) = new_figure(9, 4.9, rows=2, height_ratios=[1, 1.9])
    _draw_layers(upper, layers, balance, blocks)
    _draw_clocks(lower, trace, chunks)
    slowest = [j for j, block in enumerate(blocks) if block == max(blocks)]
    who = f"partition {slowest[0]} decides" if len(slowest) == 1 else "no partition alone decides"
    better = f"{best} gives {possible:.2f} ×" if possible > gain + 5e-3 else "the best there is"
    finding = f"{balance}: {who}, {gain:.2f} × one device; {better}"
    title(upper, finding)
    facts = ", ".join(f"partition {j} costs {block:g} ticks" for j, block in enumerate(blocks))
    said = f"{chunks} micro-batches. Layers cost {', '.join(map(str, layers))}; {facts}."
    ends = f"The forward pass ends after {trace.makespan:.1f} ticks, {format_share(trace.bubble)} idle."
    return describe(figure, f"{finding}. {said} {ends}")


def _draw_layers(axes: Axes, layers: Sequence[int], balance: Sequence[int], blocks: Sequence[float]) -> None:
    starts = accumulate(layers, initial=0)
    for start, cost, j in zip(starts, layers, owners(balance), strict=False):
        bar(axes, 0, start, cost, rank_color(j), str(cost), size=10, height=1, linewidth=1.5)
    for j, (at, block) in enumerate(zip(accumulate(blocks, initial=0), blocks, strict=False)):
        axes.plot([at + 0.1, at + block - 0.1], [0.72, 0.72], color=rank_color(j), linewidth=3)
        write(axes, at + block / 2, 0.88, f"{j}: {block:g}", va="top")
    lane_rows(axes, ["layers"], -0.2, sum(layers) + 0.2)
    axes.set(xticks=[], ylim=(1.45, -0.6))
    axes.spines["bottom"].set_visible(False)


def _draw_clocks(axes: Axes, trace: Trace, chunks: int) -> None:
    end = trace.makespan
    for j, lane in enumerate(trace.lanes):
        idle(axes, j, [(0, end)])
        for i, span in enumerate(trace.only(lane=lane)):
            text = str(i) if span.duration > end / 45 else ""
            bar(axes, j, span.start, span.duration, rank_color(j), text, size=9.5, linewidth=1)
        write(axes, end * 1.01, j, f"{format_share(trace.busy(lane) / end)} busy", color=MUTED, ha="left")
    for start in sorted({span.start for span in trace}):
        axes.axvline(start, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
    lane_rows(axes, trace.lanes, 0, end * 1.13)
    axes.set_xlabel(f"time (ticks); a number is a micro-batch of 1/{chunks}, dashed lines part the clocks")


def draw_balance_run(measured: Trace, costs: Sequence[float], balance: Sequence[int], chunks: int) -> Figure:
    """Draw a measured forward pass below what the costs of the layers predict.

    costs: seconds of the layers for one micro-batch. Machines are not equally busy at all times, so the predicted
    tasks are scaled to the same sum as the measured ones: what is compared is their shares, and the order.
    """
    blocks, lanes = block_costs(costs, balance), [f"partition {j}" for j in range(len(balance))]
    shares = [block / sum(blocks) for block in blocks]
    busy = [measured.busy(lane) for lane in lanes]
    predicted = predicted_forward([share * sum(busy) / chunks for share in shares], chunks)
    slowest = max(range(len(busy)), key=busy.__getitem__)
    does, should = format_share(busy[slowest] / sum(busy)), format_share(shares[slowest])
    finding = f"Balance {list(balance)}: partition {slowest} does {does} of the work, predicted {should}"
    return draw_timeline(measured.from_zero(), predicted, title=finding, lanes=lanes, unit="ms")


def work(trace: Trace) -> Trace:
    """Return the forward and backward spans of a recorded pipeline, without copies; forward is its "compute"."""
    kept = trace.only(kind=("compute", "backward"))
    names = {"compute": "forward", "backward": "backward"}
    return Trace((replace(span, kind=names[span.kind]) for span in kept), kept.lanes)


def most_at_once(trace: Trace) -> int:
    """Return how many lanes were busy at the same time, at most."""
    edges = sorted((time, step) for span in trace for time, step in ((span.start, 1), (span.end, -1)))
    return max(accumulate(step for _, step in edges), default=0)


# --- the model, cut


@styled
def draw_cut(names: Sequence[str], balance: Sequence[int], skip: tuple[int, int] | None = None) -> Figure:
    """Draw the layers by name in their partitions; skip: the layers that stash and pop.

    Raises ValueError if the balance does not fit the layers.
    """
    if sum(balance) != len(names):
        raise ValueError(f"balance {list(balance)} is for {sum(balance)} layers, there are {len(names)}")
    owner, last, middle = owners(balance), len(balance) - 1, 1.25
    x = [k + 0.8 * j for k, j in enumerate(owner)]
    figure, axes = new_figure(9, 3.6)
    for j, (a, b) in enumerate(pairwise([0, *accumulate(balance)])):
        center, width, color = (x[a] + x[b - 1]) / 2, x[b - 1] - x[a] + 1.1, rank_color(j)
        box(axes, center, middle, width, 3.3, face=pale(color), edge=color, line=1.6, radius=0.2, zorder=1)
        write(axes, center, -0.75, f"partition {j}")
        write(axes, center, -1.2, f"devices[{j}]")
        if j < last:
            arrow(axes, (center + width / 2, middle), (center + width / 2 + 0.5, middle), gap=2)
    for at, name, j in zip(x, names, owner, strict=True):
        look: Any = {"face": rank_color(j), "line": 0, "radius": 0.12, "writing": {"rotation": 90}}
        box(axes, at, middle, 0.8, 2.9, name, size=10.5, **look)
    end = x[-1] + 0.55
    arrow(axes, (-1.6, middle), (-0.57, middle), gap=2)
    write(axes, -1.7, middle, "input", size=11, ha="right")
    write(axes, -1.7, 0.8, "devices[0]", color=MUTED, ha="right")
    arrow(axes, (end, middle), (end + 0.9, middle), gap=2)
    write(axes, end + 1.0, middle, "loss", size=11, ha="left", weight="bold")
    arrow(axes, (end + 1.6, -0.55), (end + 1.6, 0.95), gap=2)
    write(axes, end + 1.6, -0.75, "target", size=11)
    write(axes, end + 1.6, -1.2, f"devices[{last}]", color=MUTED)
    finding = f"{len(names)} layers, {plural(last + 1, 'partition')}"
    if skip is not None:
        start, stop = (x[k] for k in skip)
        arrow(axes, (start, 2.75), (stop, 2.75), color=ORANGE, width=2.4, head=16, bend=-0.28, gap=2)
        write(axes, (start + stop) / 2, 4.05, "skip tensor", size=10.5)
        finding += _skip_words(owner[skip[0]], owner[skip[1]])
    axes.set(xlim=(-4.2, end + 3.2), ylim=(-1.5, 4.35))
    axes.set_axis_off()
    title(axes, finding)
    held = [", ".join(n for n, o in zip(names, owner, strict=True) if o == j) for j in range(last + 1)]
    said = "; ".join(f"partition {j}: {layers}" for j, layers in enumerate(held))
    goes = f"The input goes to devices[0], the target to devices[{last}]."
    return describe(figure, f"{finding}. {said}. {goes}")


def _skip_words(start: int, stop: int) -> str:
    if start == stop:
        return f"; the skip tensor stays in partition {start}"
    between = " and ".join(map(str, range(start + 1, stop)))
    past = f", past {between}" if between else ""
    return f"; the skip tensor goes from {start} straight to {stop}{past}"


# --- checkpoint modes

MODES = {"never": ("o", BLUE), "except_last": ("s", ORANGE), "always": ("^", GREEN)}


@styled
def draw_modes(rows: Sequence[Row], source: str) -> Figure:
    """Draw the rows of support.n12.runs: dashed lines with open marks are predicted, full ones measured."""
    have = "mib" in rows[0]
    memory, time = ("mib", "ratio") if have else ("predicted_mib", "predicted_ratio")
    if have:
        rows = [{**row, "ratio": row["ms"] / row["plain_ms"]} for row in rows]
    figure, (left, right) = new_figure(9, 3.9, cols=2)
    chunks = sorted({row["chunks"] for row in rows})
    for axes, key in ((left, "mib"), (right, "ratio")):
        for mode, (mark, color) in MODES.items():
            mine = [row for row in rows if row["mode"] == mode]
            x = [chunks.index(row["chunks"]) for row in mine]
            look: Any = {"color": color, "marker": mark, "ms": 8}
            expected = [row[f"predicted_{key}"] for row in mine]
            faint, name = (0.6, None) if have else (1.0, mode)
            axes.plot(x, expected, ls="--", lw=1.5, mfc=PAPER, alpha=faint, label=name, **look)
            if have:
                axes.plot(x, [row[key] for row in mine], label=mode, **look)
        axes.set_xticks(range(len(chunks)), [str(m) for m in chunks])
        axes.set_xlabel("m · micro-batches")
    left.set(ylim=(0, None), ylabel="peak memory of a GPU (MiB)")
    right.set(ylim=(0, 1.15 * max(row[time] for row in rows)), ylabel="time of a step (× plain)")
    right.axhline(1, color=GREY, lw=1, zorder=0)
    left.legend(loc="upper right", bbox_to_anchor=(1, 0.9))
    most = next(row[memory] for row in rows if row["mode"] == "never" and row["chunks"] == 1)
    best = min(rows, key=lambda row: row[memory])
    share = f"{'needs' if have else 'should need'} {100 * best[memory] / most:.0f} % of the memory"
    finding = f"On {plural(rows[0]['devices'], 'GPU')}: {best['mode']}, m = {best['chunks']} {share}"
    headline(figure, finding)
    source_note(figure, source)
    said = []
    for mode in MODES:
        peaks = (f"m = {row['chunks']} {row[memory]:.0f} MiB" for row in rows if row["mode"] == mode)
        said.append(f"{mode}: {', '.join(peaks)}")
    return describe(figure, f"{finding}. {source}. Peak by mode, {'; '.join(said)}.")


@styled
def draw_kept(rows: Sequence[Row]) -> Figure:
    """Draw what each mode keeps of m micro-batches, and what a step costs.

    rows: mode, chunks, partitions, forward and again (tasks counted in a run), time (measured, × the first row's).
    """
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    chunks, n = list(dict.fromkeys(row["chunks"] for row in rows)), rows[0]["partitions"]
    figure, axes = new_figure(9, 3.9)
    for row in rows:
        x, y, m = chunks.index(row["chunks"]), modes.index(row["mode"]) + 0.2, row["chunks"]
        look: Any = {"height": 0.4, "linewidth": 1.4, "size": 10}
        for i in range(m):
            kind: Any = (
                {"color": PAPER, "text": "R", "edgecolor": PINK} if i < row["again"] // n else {"color": BLUE}
            )
            bar(axes, y, x + 0.86 * i / m + 0.01, 0.86 / m - 0.02, **kind, **look)
        write(axes, x + 0.43, y + 0.3, f"{row['time']:.1f} × the time", color=MUTED, va="top")
    for x, m in enumerate(chunks):
        text = f"m = {m}\nbubble {100 * (n - 1) / (m + n - 1):.0f} %"
        write(axes, x + 0.43, -0.12, text, size=10.5, va="bottom")
    for y, mode in enumerate(modes):
        write(axes, -0.08, y + 0.2, mode, size=11, ha="right", weight="bold")
    handles = [
        Patch(facecolor=BLUE, label="a micro-batch whose inside is kept for backward"),
        Patch(facecolor=PAPER, edgecolor=PINK, linewidth=1.4, label="R: forgotten, computed again"),
    ]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=2, handlelength=1.2)
    axes.set(xlim=(-0.75, len(chunks)), ylim=(len(modes) - 0.2, -0.6))
    axes.set_axis_off()
    most = max(chunks)
    insides = [f"{row['mode']} keeps {most - row['again'] // n}" for row in rows if row["chunks"] == most]
    finding = f"Of {most} micro-batches {', '.join(insides)}"
    title(axes, finding)
    one = "{mode}, m = {chunks}: {again} of {forward} tasks again, {time:.1f} × the time".format_map
    return describe(figure, f"{finding}. {'; '.join(map(one, rows))}.")


# --- training


def differences(runs: Sequence[Row]) -> list[float]:
    """Return, for each seed, how many points of accuracy GPipe has more than the plain model."""
    return [100 * (run["gpipe"][1] - run["plain"][1]) for run in runs]


@styled
def draw_training(runs: Sequence[Row]) -> Figure:
    """Draw losses and accuracies in pairs.

    runs: one a seed, with "seed", "partitions", and "plain" and "gpipe": (losses, accuracy from 0 to 1).
    """
    figure, (left, right) = new_figure(9, 3.9, cols=2, width_ratios=[1.5, 1])
    full: Any = {"marker": "o", "ms": 9, "ls": ""}
    hollow: Any = {**full, "mfc": PAPER, "mew": 2}
    said, scores = [], []
    for x, run in enumerate(runs):
        color, plain, piped = rank_color(run["seed"]), 100 * run["plain"][1], 100 * run["gpipe"][1]
        left.plot(run["plain"][0], color=color, lw=1.4)
        left.plot(run["gpipe"][0], color=color, lw=2.2, ls=":")
        right.plot([x - 0.12, x + 0.12], [plain, piped], color=color, lw=1.5)
        right.plot(x - 0.12, plain, mec=color, **hollow)
        right.plot(x + 0.12, piped, color=color, **full)
        beside(right, (x + 0.12, piped), f"n = {run['partitions']}")
        scores.append((plain, piped))
        pair = f"plain {plain:.1f} %, GPipe with {run['partitions']} partitions {piped:.1f} %"
        said.append(f"seed {run['seed']}: {pair}")
    plains, every = [plain for plain, _ in scores], [score for pair in scores for score in pair]
    left.plot([], [], color=INK, lw=1.4, label="plain")
    left.plot([], [], color=INK, lw=2.2, ls=":", label="GPipe")
    left.legend(loc="upper right", title="a colour is a seed")
    left.set(xlabel="step", ylabel="loss", ylim=(0, None))
    right.plot([], [], mec=INK, label="plain", **hollow)
    right.plot([], [], color=INK, label="GPipe, n partitions", **full)
    right.legend(loc="lower right")
    right.set(xlim=(-0.5, len(runs) - 0.2), ylim=(min(every) - 4, max(every) + 1.5), ylabel="accuracy (%)")
    right.set_xticks(range(len(runs)), [f"seed {run['seed']}" for run in runs])
    right.yaxis.set_major_locator(MaxNLocator(6))
    apart, seeds = mean(differences(runs)), max(plains) - min(plains)
    finding = f"GPipe differs by {apart:+.1f} points in the mean; seeds differ by {seeds:.1f}"
    headline(figure, finding)
    source_note(figure, "test set: 360 digits of other hands")
    return describe(figure, f"{finding}. {'; '.join(said)}.")


# --- what others have published


def ideal(partitions: int, micro_batches: int) -> float:
    """Return the speed that the clocks allow, as a multiple of one busy device: n · m / (m + n - 1)."""
    return partitions * micro_batches / (micro_batches + partitions - 1)


@styled
def draw_published(record: Row) -> Figure:
    """Draw the published speeds against the clocks, the ablation, the speed by devices, and the accuracy."""
    figure, ((ideals, ablation), (speed, error)) = new_figure(9, 7.4, rows=2, cols=2)
    shares = _draw_ideals(ideals, record["amoebanet"])
    gain = _draw_ablation(ablation, record["ablation"])
    speeds = _draw_speed(speed, record["speed"])
    errors = _draw_error(error, record["top1_error"])
    least, most = round(100 * min(shares)), round(100 * max(shares))
    finding = f"Published: {least} to {most} % of the speed that the clocks allow, at equal accuracy"
    headline(figure, finding)
    origin = record["provenance"]
    source = f"Published {origin['date']}, not measured here: {record['source']}."
    source += f"\n{origin['machine']}, {origin['commit']}"
    source_note(figure, source, recorded=True)
    return describe(figure, f"{finding}. {gain}. {speeds}. {errors}. {source}.")


def _draw_ideals(axes: Axes, rows: Sequence[Row]) -> list[float]:
    """Draw what was reached and what the clocks allow; return the shares of it that torchgpipe reached."""
    rows = [row for row in rows if row["micro_batches"] > 1]  # m = 1: one at a time works, that is the unit
    rows = sorted(rows, key=lambda row: ideal(row["partitions"], row["micro_batches"]))
    limits = [ideal(row["partitions"], row["micro_batches"]) for row in rows]
    ours, theirs, places = (
        [row["torchgpipe"] for row in rows],
        [row["gpipe"] for row in rows],
        range(len(rows)),
    )
    axes.hlines(places, theirs, limits, color=GREY, lw=1, zorder=1)
    axes.plot(limits, places, "|", color=INK, ms=15, mew=2, label="n·m / (m+n−1)")
    axes.plot(ours, places, "o", color=BLUE, ms=8, label="torchgpipe")
    axes.plot(theirs, places, "s", mfc=PAPER, mec=MUTED, ms=7, label="GPipe's paper")
    axes.legend(loc="upper right", handletextpad=0.2, borderaxespad=0)
    axes.set_yticks(places, [f"n = {row['partitions']}, m = {row['micro_batches']}" for row in rows])
    axes.set(xlim=(0.5, 7), ylim=(len(rows) - 0.4, -0.6))
    axes.set_xlabel("speed, × n = 2, m = 1 of the same authors")
    axes.set_title("AmoebaNet-D: near the limit of the clocks", fontsize=11)
    return [speed / limit for speed, limit in zip(ours, limits, strict=True)]


def _draw_ablation(axes: Axes, rows: Sequence[Row]) -> str:
    speeds, said = [row["samples_per_second"] for row in rows], []
    axes.barh([row["with"] for row in rows], speeds, height=0.62, color=BLUE, lw=0)
    for y, (row, speed) in enumerate(zip(rows, speeds, strict=True)):
        busy = f"{row['busy'] * 100:.0f} % busy"
        beside(axes, (speed, y), f"{speed}", (-4, 0), ha="right", color=PAPER)
        beside(axes, (speed, y), busy, (5, 0))
        said.append(f"{row['with']} {speed} samples/s {busy}")
    axes.set(xlim=(0, 80), xlabel="samples/s (4 GPUs)")
    axes.invert_yaxis()
    gain = speeds[-1] / speeds[0]
    axes.set_title(f"U-Net: all parts together, {gain:.1f} ×", fontsize=11)
    return f"U-Net on 4 GPUs: {', '.join(said)}"


def _draw_speed(axes: Axes, models: Row) -> str:
    said = []
    for (name, model), (mark, color) in zip(models.items(), (("o", ORANGE), ("^", GREEN)), strict=True):
        numbers = {int(n): value / model["baseline"] for n, value in model["partitions"].items()}
        axes.plot(list(numbers), list(numbers.values()), marker=mark, ms=7, color=color, label=name)
        beside(axes, (8, numbers[8]), f"{numbers[8]:.1f} ×", (5, 0))
        said.append(f"{name} " + ", ".join(f"{x:.2f} × on {n}" for n, x in numbers.items()))
    axes.axhline(1, color=GREY, lw=1.2, ls="--")
    beside(axes, (8, 1), "without GPipe", (0, -3), va="top", ha="right", fontsize=9.5, color=MUTED)
    axes.set_xticks([1, 2, 4, 8])
    axes.set(xlim=(0.6, 9.3), ylim=(0, 5), xlabel="partitions, a GPU each", ylabel="× without GPipe")
    axes.legend(loc="upper left")
    axes.set_title("One partition costs, then it pays", fontsize=11)
    return "; ".join(said)


def _draw_error(axes: Axes, rows: Sequence[Row]) -> str:
    said = []
    ways = (("torchgpipe", "torchgpipe", "o", BLUE), ("data_parallel", "nn.DataParallel", "s", MUTED))
    for k, (key, name, mark, color) in enumerate(ways):
        known = [(x + 0.12 * (2 * k - 1), *row[key]) for x, row in enumerate(rows) if row[key]]
        x, values, spread = zip(*known, strict=True)
        axes.errorbar(x, values, yerr=spread, fmt=mark, color=color, ms=7, capsize=4, lw=1.6, label=name)
        said.append(f"{name} " + ", ".join(f"{value} ± {about}" for _, value, about in known))
    axes.set_xticks(range(len(rows)), [f"{row['batch']}" for row in rows])
    axes.set(xlim=(-0.6, len(rows) - 0.4), ylim=(21.6, 22.85), xlabel="mini-batch", ylabel="top-1 error (%)")
    axes.legend(loc="upper left")
    axes.set_title("ResNet-101: the same error", fontsize=11)
    return f"ResNet-101 top-1 error in %: {'; '.join(said)}"


STATE = {"idea": BLUE, "not maintained": GREY, "deprecated": GREY, "gone": GREY, "in use": GREEN}
PLACES = {  # (column, row): the line of code above, the line of ideas below
    "GPipe": (0, 1), "torchgpipe": (1.25, 2), "fairscale Pipe": (2.5, 2), "torch Pipe": (3.75, 2),
    "torch pipelining": (3.75, 0), "lib.pipeline": (5, 1),
}  # fmt: skip
WIDE, HIGH = 0.94, 0.66  # a box of the family tree, in its columns and rows


@styled
def draw_descent(rows: Sequence[Row]) -> Figure:
    """Draw who took what from whom: solid arrows for code, dashed ones for ideas; hatched is what is gone."""
    figure, axes = new_figure(9, 3.7)
    for row in rows:
        (x, y), color = PLACES[row["name"]], STATE[row["state"]]
        behind: dict[str, Any] = {}
        face, hatch = pale(color, 0.18), None
        if row["state"] == "gone":
            face, hatch = PAPER, HATCH["dropped"]
            behind = {"bbox": {"boxstyle": "round,pad=0.15", "facecolor": PAPER, "edgecolor": "none"}}
        box(axes, x, y, WIDE, HIGH, face=face, edge=color, line=1.8, hatch=hatch)
        write(axes, x, y + 0.13, row["name"], size=10.5, weight="bold", **behind)
        write(axes, x, y - 0.14, row["what"], size=9, **behind)
        when = f"{row['year']}" if row["state"] == "idea" else f"{row['year']} · {row['state']}"
        write(axes, x, y + HIGH / 2 + 0.06, when, size=9.5, color=MUTED, va="bottom")
        if row["from"]:
            _draw_heritage(axes, PLACES[row["from"]], (x, y), code=row["how"] == "code")
    for level, style, text in ((0.05, "-", "code"), (-0.25, "--", "idea")):
        axes.plot([-0.35, 0.05], [level, level], color=INK, lw=1.6, ls=style)
        write(axes, 0.13, level, text, ha="left")
    axes.set(xlim=(-0.55, 5.55), ylim=(-0.5, 2.75))
    axes.set_axis_off()
    ended = [row["name"] for row in rows if row["state"] in ("gone", "deprecated")]
    finding = f"The line of code ends: {' and '.join(ended)} are no more; the idea lives on"
    headline(figure, finding)
    heritage = {
        row["name"]: f" has its {row['how']} from {row['from']}" if row["from"] else "" for row in rows
    }
    said = "; ".join(f"{row['name']} ({row['year']}, {row['state']}){heritage[row['name']]}" for row in rows)
    use = " and ".join(row["name"] for row in rows if row["state"] == "in use")
    return describe(figure, f"{finding}. {said}. In use: {use}.")


def _draw_heritage(axes: Axes, parent: Point, child: Point, *, code: bool) -> None:
    (x0, y0), (x1, y1), half = parent, child, WIDE / 2 + 0.02
    start, bend = (x0 + half, y0), 0.0
    if y1 != y0:
        start, bend = ((x0, y0 - 0.36), 0.18) if y1 < y0 else ((x0, y0 + 0.62), -0.18)
    arrow(axes, start, (x1 - half, y1), head=14, bend=bend, gap=2, linestyle="-" if code else (0, (4, 3)))
