"""The schedule explorer: any maker, any size, any costs; the timeline, its bubble, and what each rank holds.

Every combination draws something: what a maker does not take is changed, and the title says so.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from lib.pipeline import schedule as makers
from lib.pipeline.schedule import Schedule, simulate
from lib.show.explore import choice, steps, whole
from lib.show.schedules import NAMES, draw_schedules, facts, held
from lib.show.style import INK, describe, styled

ONE_STAGE = {
    "model parallel": makers.model_parallel,
    "GPipe": makers.gpipe,
    "1F1B": makers.one_f_one_b,
    "zero bubble (ZB-H1)": makers.zero_bubble_h1,
    "PipeDream": makers.pipedream,
}
ANY_STAGES = {
    "interleaved 1F1B": makers.interleaved_one_f_one_b,
    "looped BFS": makers.looped_bfs,
    "interleaved zero bubble": makers.interleaved_zero_bubble,
}
TWO_STAGES = {"ZB-V": makers.zbv, "DualPipeV": makers.dualpipe_v}
MAKERS = tuple(NAMES.values())

SCHEDULE_CONTROLS = {
    "maker": choice(MAKERS, "interleaved 1F1B", "schedule"),
    "micro_batches": whole(1, 12, 8, "m · micro-batches"),
    "partitions": whole(1, 6, 4, "n · ranks"),
    "stages": whole(1, 3, 2, "v · stages per rank"),
    "backward": steps((1, 1.5, 2, 3), 2, "backward : forward"),
    "communicate": steps((0, 0.25, 0.5, 1), 0, "communication, ticks"),
    "slow": steps((1, 1.25, 1.5, 2), 1, "slowest rank, ×"),
}


def make(maker: str, micro_batches: int, partitions: int, stages: int = 1) -> tuple[Schedule, str]:
    """Return the schedule of that name, and what had to be changed for it (or nothing).

    PipeDream never flushes: it is made over two batches, so that one can see what happens between them.
    """
    m, n, v = micro_batches, partitions, stages
    if maker in ANY_STAGES:
        return Schedule(maker, ANY_STAGES[maker](m, n, v).ranks), ""
    if maker in TWO_STAGES:
        enough = max(m, 2 * n) if maker == "DualPipeV" else m
        said = [f"it takes m ≥ 2n, so m = {enough}"] * (enough > m) + ["always v = 2"] * (v != 2)
        return Schedule(maker, TWO_STAGES[maker](enough, n).ranks), ", ".join(said)
    said = ["always v = 1"] * (v != 1)
    if maker == "PipeDream":
        return Schedule(maker, ONE_STAGE[maker](2 * m, n).ranks), ", ".join(["two batches, no flush", *said])
    return Schedule(maker, ONE_STAGE[maker](m, n).ranks), ", ".join(said)


@styled
def draw_schedule_explorer(
    maker: str,
    micro_batches: int,
    partitions: int,
    stages: int,
    backward: float,
    communicate: float,
    slow: float,
) -> Figure:
    """Draw a schedule; a rank's forward of a micro-batch takes one tick, whatever the number of its stages.

    The rank in the middle is `slow` times as slow. A dashed line says when GPipe would end, with the same costs.
    """
    schedule, changed = make(maker, micro_batches, partitions, stages)
    costs = {"communicate": communicate}
    ours = {**_costs(schedule, backward, slow), **costs}
    trace = simulate(schedule, **ours)  # type: ignore[arg-type]
    several = 2 if maker == "PipeDream" else 1
    reference, _ = make("GPipe", schedule.micro_batches // several, partitions)
    gpipe_end = several * simulate(reference, **{**_costs(reference, backward, slow), **costs}).makespan  # type: ignore[arg-type]
    v = schedule.stages // partitions
    sizes = f"m = {schedule.micro_batches // several}, n = {partitions}" + (f", v = {v}" if v > 1 else "")
    finding = f"{maker}, {sizes}" + (f" ({changed})" if changed else "") + f": {facts(schedule, trace)}"
    figure = draw_schedules([schedule], **ours, title=finding, until=gpipe_end)  # type: ignore[arg-type]
    axes = figure.axes[0]
    axes.axvline(gpipe_end, color=INK, linewidth=1.3, linestyle=(0, (4, 3)), zorder=4)
    axes.set_xlabel(f"time (ticks) · dashed: the end of GPipe, {round(gpipe_end, 2):g}")
    held_by = ", ".join(f"{peak:g}" for peak in held(schedule))
    how = f"Backward {backward:g} ticks, communication {communicate:g}, slowest rank {slow:g} times"
    text = f"{finding}. {how}. GPipe takes {round(gpipe_end, 2):g} ticks. Held by rank: {held_by}."
    return describe(figure, text)


def _costs(schedule: Schedule, backward: float, slow: float) -> dict[str, list[float]]:
    ranks = len(schedule.ranks)
    v, middle = max(1, schedule.stages // ranks), ranks // 2
    factors = [(slow if schedule.rank_of[stage] == middle else 1.0) / v for stage in range(schedule.stages)]
    return {"forward": factors, "backward": [backward * factor for factor in factors]}
