"""Figures of notebook 14, schedules: tries, messages, interleaving, runs, steps in a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lib.schedules import (
    Action,
    Schedule,
    gpipe,
    interleaved_one_f_one_b,
    model_parallel,
    one_f_one_b,
    validate,
)
from lib.schedules.legal import in_order
from lib.schedules.makers import MAKERS
from lib.schedules.simulate import simulate
from lib.show.charts import row_bars
from lib.show.explore import steps, whole
from lib.show.lanes import FONT, bar, idle, lane_rows
from lib.show.schedule_table import draw_schedules, held, legend, make, name_of, shade
from lib.show.sheet import write
from lib.show.style import (
    BLUE,
    GREY,
    HATCH,
    IDLE,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    RED,
    color_of,
    describe,
    headline,
    ink_on,
    mixed,
    new_figure,
    styled,
    title,
)
from lib.text import format_share
from lib.timeline import Trace, Work, play
from support.n14.solved import Orders, table
from support.n14.warm_up import put_off, with_warm_up


def costs(schedule: Schedule, backward: float = 2.0) -> dict[str, Any]:
    """Return what to simulate: a rank's stages together take one tick forward and `backward` back."""
    each = len(schedule.ranks) / schedule.stages
    return {"forward": each, "backward": backward * each}


# ---- what messages cost, by how far ranks go ahead

MESSAGES_CONTROLS = {
    "micro_batches": whole(4, 16, 16, "m · micro-batches", 4),
    "partitions": whole(2, 5, 4, "n · ranks"),
    "message": steps((0, 0.1, 0.25, 0.5, 1, 2), 0.5, "a message, ticks"),
}


def draw_messages(
    forwards_ahead: Callable[..., int], /, micro_batches: int, partitions: int, message: float
) -> Figure:
    """Draw GPipe, 1F1B and 1F1B with the warm-up of `forwards_ahead(j, n, forward, backward, message)`."""
    m = micro_batches
    n = partitions
    mine = with_warm_up("your warm-up", m, [forwards_ahead(j, n, 1, 2, message) for j in range(n)])
    tables = [gpipe(m, n), one_f_one_b(m, n), mine]
    ends = [simulate(each, communicate=message).makespan for each in tables]
    told = " ticks, ".join(f"{name_of(each)} {end:g}" for each, end in zip(tables, ends, strict=True))
    finding = f"A message of {message:g}: {told} ticks, holding {max(held(mine)):g}"
    return draw_schedules(tables, title=finding, communicate=message)


# ---- what a finer cut costs

INTERLEAVING_CONTROLS = {
    "micro_batches": whole(4, 16, 8, "m · micro-batches", 4),
    "partitions": whole(2, 8, 4, "n · ranks", 2),
    "communicate": steps((0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5), 0.1, "a message, ticks"),
}


def _by_cut(
    forwards_ahead: Callable[..., int], fill_holes: Callable[..., Orders], m: int, n: int, message: float
) -> dict[str, Schedule]:
    """Return the schedules to compare by what stands below their bar; fill_holes needs m >= n."""
    ahead = [forwards_ahead(j, n, 1, 2, message) for j in range(n)]
    filled = {"1, fill_holes": table("fill_holes", fill_holes(m, n))} if m >= n else {}
    long = with_warm_up("", m, ahead)
    finer = {str(v): interleaved_one_f_one_b(m, n, v) for v in (2, 3, 4, 6, 8)}
    return {**filled, "1, warmed up": long, "1, both": put_off(long), **finer}


@styled
def draw_interleaving(
    forwards_ahead: Callable[..., int],
    fill_holes: Callable[..., Orders],
    /,
    micro_batches: int,
    partitions: int,
    communicate: float,
) -> Figure:
    """Draw the time of a step of interleaved 1F1B by v: work, bubble, and what messages add.

    v = 1 is 1F1B with the warm-up of `forwards_ahead(j, n, forward, backward, message)`. Before it stands
    `fill_holes(m, n)`, behind it "both": the same warm-up and W's put off, in the same room. communicate: the time of a
    message in ticks, whatever v: an output is as large as before.
    """
    m = micro_batches
    n = partitions
    work = 3.0 * m
    tables = _by_cut(forwards_ahead, fill_holes, m, n, communicate)
    cut = list(tables)
    free = []
    real = []
    peaks = []
    for made in tables.values():
        # once without messages, once with them: the difference is what messages add
        free.append(simulate(made, **costs(made)).makespan)
        real.append(simulate(made, **costs(made), communicate=communicate).makespan)
        peaks.append(max(held(made)))
    # rounded, so that of equal times the one further left is named
    best = min(range(len(cut)), key=lambda k: round(real[k], 6))
    figure, (axes, memory) = new_figure(9, 3.7, cols=2, width_ratios=[1.75, 1])
    places = range(len(cut))
    look: dict[str, Any] = {"width": 0.66, "edgecolor": PAPER, "linewidth": 0.8}
    axes.bar(places, work, color=color_of("forward"), label="work", **look)
    bubble = [f - work for f in free]
    dots = HATCH["bubble"]
    axes.bar(places, bubble, bottom=work, color=GREY, hatch=dots, label="bubble", **look)
    added = [r - f for r, f in zip(real, free, strict=True)]
    axes.bar(places, added, bottom=free, color=ORANGE, hatch="//", label="added by messages", **look)
    for k in places:
        weight = "bold" if k == best else "normal"
        axes.text(k, real[k] + 0.02 * max(real), f"{real[k]:.1f}", ha="center", fontsize=9, fontweight=weight)
    axes.set(ylim=(0, 1.3 * max(real)), ylabel="step (ticks)", xlabel="v · stages per rank")
    axes.legend(loc="upper right", ncols=3, facecolor=PAPER, frameon=True, framealpha=1, edgecolor=PAPER)
    memory.bar(places, peaks, color=[INK if k == best else GREY for k in places], width=0.66)
    for k in places:
        memory.text(k, peaks[k] + 0.02 * max(peaks), f"{round(peaks[k], 1):g}", ha="center", fontsize=9)
    memory.set(ylim=(0, 1.16 * max(peaks)), ylabel="whole activations held", xlabel="v · stages per rank")
    axes.set_xticks(list(places), [name.replace(",", "").replace(" ", "\n") for name in cut], fontsize=9)
    memory.set_xticks(list(places), [name.partition(",")[0] for name in cut])  # in the same order
    finding = f"m = {m}, n = {n}, message {communicate:g}: v = {cut[best]} is fastest, {real[best]:.1f} ticks"
    headline(figure, f"{finding}, {format_share(1 - work / real[best])} idle")
    said = "; ".join(
        f"v = {v}: {r:.1f} ticks, holds {p:.1f}" for v, r, p in zip(cut, real, peaks, strict=True)
    )
    return describe(figure, f"{finding}. {said}.")


# ---- a run beside its prediction: the colour is the task, its shade the stage


@styled
def draw_run(schedule: Schedule, measured: Trace | None, predicted: Trace, name: str) -> Figure:
    """Draw what was predicted (outlines, above) and measured (filled, below), lane by lane, in the same seconds.

    measured: None where nobody has measured it; then the lower rows stay empty, and the title says so.
    """
    lanes = len(predicted.lanes)
    told = {"predicted": predicted} | ({"measured": measured} if measured else {})
    end = max(trace.end for trace in told.values()) * 1e3
    figure, axes = new_figure(9, 1.7 + 0.62 * lanes)
    points = 72 * 7.6 / end  # about how wide a millisecond comes out
    for rank, lane in enumerate(predicted.lanes):
        stages = sorted({action.stage for action in schedule.actions(rank)})
        for trace, row in zip(told.values(), (rank - 0.21, rank + 0.21), strict=False):
            idle(axes, row, [(0, trace.end * 1e3)], height=0.38)
            for span in trace.only(lane=lane):
                action = Action.parse(span.label)
                color = shade(action, stages.index(action.stage))
                width = span.duration * 1e3
                face = mixed(color, PAPER, 0.8) if trace is predicted else color
                edge = color if trace is predicted else PAPER
                look: Any = {"height": 0.38, "edgecolor": edge, "linewidth": 0.9 * (width * points > 3)}
                bar(axes, row, span.start * 1e3, width, face, **look)
                text = str(action.micro_batch)
                if trace is not predicted and len(text) * FONT * 0.66 < width * points - 1:
                    write(axes, (span.start * 1e3) + width / 2, row, text, size=FONT, color=ink_on(face))
    lane_rows(axes, predicted.lanes, 0, end)
    axes.set_xlabel("time (ms) · above: predicted, outlines; below: measured, filled")
    figure.legend(handles=legend([schedule]), loc="outside lower left", ncols=5)
    ratio = measured.makespan / predicted.makespan if measured else None
    ran = f"run in {ratio:.2f} × the predicted time" if ratio else "predicted, and not measured here"
    finding = f"{name}: {ran}"
    headline(figure, finding)
    said = (f"{word} {1e3 * t.makespan:.0f} ms, {format_share(t.bubble)} idle" for word, t in told.items())
    return describe(figure, f"{finding}: {', '.join(said)}. {lanes} ranks, {len(predicted)} tasks.")


# ---- two steps, one after the other

STEPS = (GREY, INK)


@styled
def draw_joined(
    schedules: Mapping[str, Schedule], micro_batches: int, message: float = 0.0, weight: float = 1.0
) -> Figure:
    """Draw schedules that hold two steps of `micro_batches` each: a shade is a step, for colours are tasks.

    weight: ticks of a rank's W; F and I take one each.
    """
    work = (2 + weight) * micro_batches
    traces = {}
    for name, each in schedules.items():
        halves = costs(each, 1 + weight) | {"weight": weight * len(each.ranks) / each.stages}
        traces[name] = simulate(each, **halves, communicate=message)
    end = max(trace.end for trace in traces.values())
    figure, panels = new_figure(9, 1.3 + 1.55 * len(traces), rows=len(traces), squeeze=False, sharex=True)
    said = []
    idles = dict[str, float]()
    for axes, (name, trace) in zip(panels[:, 0], traces.items(), strict=True):
        first = 0.0
        for rank, lane in enumerate(trace.lanes):
            idle(axes, rank, [(0, trace.end)])
            for span in trace.only(lane=lane):
                step = int(Action.parse(span.label).micro_batch >= micro_batches)
                bar(axes, rank, span.start, span.duration, STEPS[step], linewidth=0.5)
                first = max(first, span.end * (1 - step))
        lane_rows(axes, trace.lanes, 0, end * 1.004)
        more = trace.makespan - first
        idles[name] = abs(round(1 - work / more, 6))
        told = f"{more:g} more for the second step, {format_share(idles[name])} idle"
        said.append(f"{name}: {first:g} ticks, and {told}")
        axes.set_title(said[-1], fontsize=11, pad=5)
    panels[-1, 0].set_xlabel("time (ticks)")
    patches = [Patch(facecolor=color, label=f"step {k}") for k, color in enumerate(STEPS, 1)]
    figure.legend(handles=[*patches, Patch(**IDLE, label="idle")], loc="outside lower left", ncols=3)
    most, least = (pick(idles, key=idles.__getitem__) for pick in (max, min))
    finding = f"One more step: {most} idles {format_share(idles[most])}, {least} {format_share(idles[least])}"
    headline(figure, finding)
    return describe(figure, f"{finding}. {'; '.join(said)}.")


# ---- the reader's tries


@styled
def draw_board(
    tries: Mapping[str, Orders], micro_batches: int, partitions: int, floor: float | None = None
) -> Figure:
    """Draw orders by what they hold at most and by their ticks, beside GPipe and 1F1B; F, I and W take one each.

    tries: by name. One that can't run, or does not all the work, is told below. floor: a line that nobody gets below.
    """
    m = micro_batches
    n = partitions
    points: dict[str, tuple[float, float]] = {}
    refused = []
    every: dict[str, Any] = {"GPipe": gpipe(m, n), "1F1B": one_f_one_b(m, n), **tries}
    for name, made in every.items():
        try:
            schedule = made if isinstance(made, Schedule) else table(name, made)
            validate(schedule, micro_batches=m)
            if len(schedule.ranks) != n:
                raise ValueError(f"{len(schedule.ranks)} orders for {n} ranks")
            points[name] = max(held(schedule)), simulate(schedule, **costs(schedule)).makespan
        except (ValueError, TypeError) as error:
            refused.append(f"{name}: {error}")
    figure, axes = new_figure(9, 3.6 + 0.25 * len(refused))
    same: dict[tuple[float, float], list[str]] = {}
    for name, point in points.items():
        same.setdefault(point, []).append(name)
    for (most, ticks), names in same.items():
        given = all(name in ("GPipe", "1F1B") for name in names)
        axes.plot(most, ticks, "o", ms=9, color=GREY if given else BLUE)
        axes.annotate(", ".join(names), (most, ticks), xytext=(8, 5), textcoords="offset points", fontsize=10)
    axes.axvline(n, color=MUTED, lw=1.1, ls=(0, (4, 3)))
    axes.annotate(
        "room for n",
        (n, 0.02),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
        fontsize=9,
        color=MUTED,
    )
    lowest = min(ticks for _, ticks in points.values())
    highest = max(ticks for _, ticks in points.values())
    if floor is not None:
        axes.axhline(floor, color=ORANGE, lw=1.4)
        lowest = min(lowest, floor)
    axes.set(
        xlim=(0, max(most for most, _ in points.values()) + 2),
        ylim=(lowest - 2, highest + 2),
        xlabel="activations, the most on any rank",
        ylabel="ticks of a step",
    )
    quickest = min(points, key=lambda name: (points[name][1], points[name][0]))
    finding = f"{quickest}: {points[quickest][1]:g} ticks, holding {points[quickest][0]:g}"
    headline(figure, finding)
    if refused:
        figure.supxlabel("\n".join(refused), fontsize=9, color=RED, x=0.02, ha="left")
    said = "; ".join(f"{name}: {ticks:g} ticks, holds {most:g}" for name, (most, ticks) in points.items())
    line = "" if floor is None else f" The line lies at {floor:g}."
    return describe(figure, f"{finding}. {said}.{line}{' Refused: ' if refused else ''}{'; '.join(refused)}")


# ---- every schedule by time and memory

TRADE_CONTROLS = {
    "micro_batches": whole(8, 16, 8, "m · micro-batches", 8),
    "partitions": whole(2, 4, 4, "n · ranks"),
    "communicate": steps((0, 0.05, 0.1, 0.25, 0.5), 0.1, "a message, ticks"),
    "weight": steps((0.3, 0.5, 0.7), 0.5, "W's share of backward"),
    "fixed": steps((0, 0.05, 0.1, 0.2), 0.1, "each task costs besides, ticks"),
}


def all_schedules(micro_batches: int, partitions: int) -> dict[str, Schedule]:
    """Return every pipeline that flushes, by its name in pictures; those that take v have two stages a rank.

    "both" is eager 1F1B with its W's put off. DualPipeV is left out where micro-batches are too few for it.
    """
    made = {}
    for name, maker in MAKERS.items():
        pipeline = maker.make is not model_parallel
        if pipeline and maker.flushes and micro_batches >= maker.fewest(partitions):
            made[name] = make(name, micro_batches, partitions, stages=2 if maker.looped else 1)[0]
    made["both"] = put_off(made["eager 1F1B"])
    return made


def _ticks_by_task(schedule: Schedule, communicate: float, weight: float, fixed: float) -> float:
    """Return when a step ends if each task costs `fixed` besides its work.

    `simulate` takes a B for an I and a W; here a B is one task, also where other backwards of the schedule are split.
    """
    work = costs(schedule)
    whole = work["backward"]
    ticks = {"F": work["forward"], "B": whole, "I": (1 - weight) * whole, "W": weight * whole}
    tasks = [
        Work(
            f"rank {rank}",
            str(action),
            ticks[action.op] + fixed,
            [str(need) for need in needed],
            message=communicate,
        )
        for rank, _, action, needed in in_order(schedule)
    ]
    return play(tasks).makespan


def time_and_memory(
    schedules: Mapping[str, Schedule], communicate: float = 0.0, weight: float = 0.5, fixed: float = 0.0
) -> dict[str, tuple[float, float]]:
    """Return (ticks, most activations held) by name; a rank's work is 1 tick forward, 2 back, for each micro-batch.

    communicate: ticks of a message. weight: W's share of a backward. fixed: ticks that each task costs besides its
    work, whatever its stage: a launch, a small kernel, a queue.
    """
    points = {}
    for name, schedule in schedules.items():
        ticks = _ticks_by_task(schedule, communicate, weight, fixed)
        points[name] = round(ticks, 6), max(held(schedule))
    return points


def unbeaten(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names that no other beats in one thing without losing in the other, fastest first."""
    best = [
        name
        for name, (t, h) in points.items()
        if not any(a <= t and b <= h and (a, b) != (t, h) for a, b in points.values())
    ]
    return sorted(best, key=lambda name: points[name])


@styled
def draw_trade(
    micro_batches: int, partitions: int, communicate: float, weight: float, fixed: float = 0.0
) -> Figure:
    """Draw ticks and activations held of every schedule, the fastest first; blue: unbeaten."""
    points = time_and_memory(all_schedules(micro_batches, partitions), communicate, weight, fixed)
    front = unbeaten(points)
    ordered = sorted(points, key=lambda name: points[name])
    colors = [BLUE if name in front else GREY for name in ordered]
    figure, (left, right) = new_figure(9, 1.3 + 0.34 * len(ordered), cols=2, width_ratios=[1.9, 1])
    names = [f"{name} *" if name in front else name for name in ordered]
    ticks, peaks = ([points[name][k] for name in ordered] for k in (0, 1))
    row_bars(left, ticks, [f"{t:.4g}" for t in ticks], names, color=colors)
    row_bars(right, peaks, [f"{p:g}" for p in peaks], color=colors)
    left.vlines(3 * micro_batches, -0.4, len(ordered) - 0.6, color=INK, lw=1.2, ls=(0, (4, 3)))
    left.set(xlim=(0, 1.15 * max(ticks)))
    left.set_title(f"ticks of a step; dashed: the work alone, {3 * micro_batches}", fontsize=11, pad=5)
    right.set(xlim=(0, 1.25 * max(peaks)))
    right.set_title("activations held", fontsize=11, pad=5)
    quick = points[ordered[0]]
    least = min(peaks)
    fastest = " and ".join(name for name in ordered if points[name] == quick)
    finding = (
        f"Fastest: {fastest}, {quick[0]:.4g} ticks, holding {quick[1]:g}; none holds less than {least:g}"
    )
    headline(figure, finding)
    write(
        left,
        0,
        len(ordered) - 0.35,
        "* blue: none is better in one without being worse in the other",
        color=MUTED,
        ha="left",
    )
    for axes in (left, right):
        axes.set_ylim(len(ordered) - 0.1, -0.5)
    said = "; ".join(f"{name}: {t:g} ticks, holds {h:g}" for name, (t, h) in points.items())
    sizes = f"m = {micro_batches}, n = {partitions}, message {communicate:g}, W's share {weight:g}"
    besides = f", each task {fixed:g} besides" if fixed else ""
    return describe(figure, f"{finding}. {said}. In both unbeaten: {', '.join(front)}. ({sizes}{besides}.)")


# ---- a half that was forgotten


@styled
def draw_forgotten(shares: Sequence[float], missing: Sequence[int], error: float) -> Figure:
    """Draw what each micro-batch adds to the gradient of a weight (its norm), the forgotten ones crossed.

    shares: norms, by micro-batch. missing: numbers of those whose W never ran. error: relative, of the whole.
    """
    figure, axes = new_figure(9, 2.9)
    for i, share in enumerate(shares):
        lost = i in missing
        look = (
            {"facecolor": PAPER, "edgecolor": RED, "hatch": HATCH["dropped"]}
            if lost
            else {"color": color_of("weight")}
        )
        axes.bar(i, share, width=0.7, linewidth=1.4, **look)
        if lost:
            axes.text(i, share * 1.02, "forgotten", ha="center", va="bottom", fontsize=10, color=RED)
    axes.set_xticks(range(len(shares)))
    axes.set(xlabel="micro-batch", ylabel="size of its gradient", ylim=(0, 1.22 * max(shares)))
    axes.tick_params(axis="x", colors=MUTED)
    finding = f"{len(missing)} W forgotten: the gradient is {100 * error:.0f} % off, and nothing was raised"
    title(axes, finding)
    listed = ", ".join(map(str, missing))
    return describe(figure, f"{finding}. {len(shares)} micro-batches; forgotten: {listed}.")
