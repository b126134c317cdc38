"""Two stages a rank, laid out as a V: ZB-V and DualPipeV.

    stage   0   1   2   3       rank j has stage j on the way down (a) and stage 2n - 1 - j on the way up (b), so
    stage   7   6   5   4       the last rank turns round without sending, and rank 0 has the first gradient. Rank 0
    rank    0   1   2   3       keeps an activation long at a and briefly at b, the last rank a while at either: all
                                ranks hold equally many, where 1F1B needs n at rank 0 and 1 at the last.

A maker writes a rank's order as phases: so many times these steps. `Fa` is the next forward of its stage a, `Ib` or
`Bb` the next backward of its stage b, `Wa` the oldest W that stage a owes, `W` the oldest that either owes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

from lib.pipeline.schedule.action import Action, Op, Schedule
from lib.pipeline.schedule.slots import sizes, slotted


def zbv(micro_batches: int, partitions: int) -> Schedule:
    """Make ZB-V: with F = I = W and m >= 2n - 1 no rank idles between its first action and its last.

    What is left are n - 1 slots: rank j starts j later and stops n - 1 - j earlier. (1F1B, whose stages are twice as
    large, idles for 6(n-1) such slots.) Every rank holds up to 2n activations of half a stage: as much as rank 0 does
    in 1F1B. Unequal costs leave gaps, and so do fewer than 2n - 1 micro-batches: they can't fill the V, and the table
    is the one for 2n - 1 with the missing ones struck out. Orders are torch's ScheduleZBVZeroBubble.

    partitions: how many ranks. Raises ValueError for a size below 1.
    Source: Qi et al. 2023, "Zero bubble pipeline parallelism", 6 (there B is what I is here); Qi et al. 2024,
    "Pipeline parallelism with controllable memory".
    """
    m, n, _ = sizes(micro_batches, partitions)
    planned = max(m, 2 * n - 1)
    orders = []
    for j in range(n):
        phases = [
            (2 * (n - j) - 1, "Fa"),  # until micro-batch 0 is back from the point of the V
            (j, "Fb Fa"),  # until its gradient is here; at rank 0, where the loss is, at once
            (n - j, "Fb Ib Wb"),  # until the gradient is back from the point of the V
            (planned - (2 * n - 1 - j), "Fa Ia Wa Fb Ib Wb"),  # one of each
            (n - 1 - j, "Ia Wa Fb Ib Wb"),  # stage a has seen all its micro-batches
            (j, "Ia Ib"),  # so has b. Gradients first, the ranks before wait for them,
            (n - j, "Ia Wa"),
            (j, "Wb"),  # and the weights last
            (j, "Wa"),
        ]
        order = in_phases(j, 2 * n - 1 - j, phases)
        orders.append([action for action in order if action.micro_batch < m])
    return slotted(Schedule("zbv", orders))


def dualpipe_v(micro_batches: int, partitions: int) -> Schedule:
    """Make DualPipeV: forwards of one way beside backwards of the other, so that each hides what the other sends.

    In the middle a rank does Fa with Bb, and Fb with Ba, each pair at the same time (torch: OVERLAP_F_B). Here a pair
    is its F and then its B, so the simulator knows nothing of what is hidden. Backwards are whole but where a W fills
    a gap: while the V fills, and in the second half of the drain. With F = I = W and free sending a rank idles for
    n - 1 slots, as in ZB-V, and holds up to 2n + 1 activations of half a stage. Orders are torch's ScheduleDualPipeV.

    partitions: how many ranks. Raises ValueError for a size below 1, and, as torch, for fewer than 2n micro-batches.
    Source: DeepSeek-AI 2024, "DeepSeek-V3 technical report", 3.2.1 (DualPipe), and its code for DualPipeV; the cut into
    halves is by Sea AI Lab, "DualPipe could be better without the dual", 2025.
    """
    m, n, _ = sizes(micro_batches, partitions)
    if m < 2 * n:
        raise ValueError(
            f"dualpipe_v needs as many micro-batches as stages, with {n} partitions at least {2 * n}, not {m}; "
            "cut the batch finer, use fewer partitions, or take zbv, which works with any number"
        )
    orders = []
    for j in range(n):
        # b and a in turn, j + 1 times: the first half whole, the second without their weights
        drain = [("B" if k <= j else "I") + way for k, way in enumerate("ba" * (j + 1))]
        phases = [
            (2 * (n - 1 - j), "Fa"),  # until micro-batch 0 is nearly back from the point of the V
            (j + 1, "Fa Fb"),  # until its gradient is here
            (n - 1 - j, "Ib Wb Fb"),  # until the gradient is back from the point of the V
            (m - (2 * n - 1 - j), "Fa Bb Fb Ba"),  # the two pairs
            (n - 1 - j, "Bb Fb Ba"),  # stage a has seen all its micro-batches
            (1, " ".join(drain)),
            (n - 1 - j, "W Ia"),
            (j + 1, "W"),
        ]
        orders.append(in_phases(j, 2 * n - 1 - j, phases))
    return slotted(Schedule("dualpipe_v", orders))


def in_phases(a: int, b: int, phases: Sequence[tuple[int, str]]) -> list[Action]:
    """Return the order that (times, steps) describe for a rank with stages a and b; see the top of this file."""
    stage_of = {"a": a, "b": b}
    count: Counter[tuple[bool, int]] = Counter()  # (is it a forward, stage): how many there have been
    owed: list[Action] = []
    order = []
    for times, steps in phases:
        for step in steps.split() * times:
            op, way = cast(Op, step[0]), step[1:]
            if op == "W":
                action = next(w for w in owed if not way or w.stage == stage_of[way])
                owed.remove(action)
            else:
                stage = stage_of[way]
                action = Action(op, stage, count[op == "F", stage])
                count[op == "F", stage] += 1
            if op == "I":
                owed.append(action._replace(op="W"))
            order.append(action)
    return order
