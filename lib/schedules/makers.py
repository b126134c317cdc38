"""The makers: schedules as tables, from model parallelism to DualPipeV, each with its source; MAKERS lists them all.

micro_batches: how many, m. partitions: how many ranks, n; with a stage each, or stages_per_rank, v, where a maker takes
it. Every maker raises ValueError for a size below 1 and NotAnIntegerError for one that is no whole number.

3 micro-batches, 2 partitions, every action one slot

model_parallel   0F0  .   .  0B0 0F1  .   .  0B1 0F2  .   .  0B2        one rank works at a time
                  .  1F0 1B0  .   .  1F1 1B1  .   .  1F2 1B2
gpipe            0F0 0F1 0F2  .   .  0B0 0B1 0B2                        all forward, then all backward
                  .  1F0 1F1 1F2 1B0 1B1 1B2
one_f_one_b      0F0 0F1  .  0B0 0F2 0B1  .  0B2                        backward as soon as it can be:
                  .  1F0 1B0 1F1 1B1 1F2 1B2                            the same bubble, n activations instead of m
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import cast

from lib.arguments import integer
from lib.schedules.legal import slotted
from lib.schedules.table import Action, Op, Schedule


def sizes(micro_batches: object, partitions: object, stages_per_rank: object = 1) -> tuple[int, int, int]:
    """Return the sizes of a schedule as integers, m, n and v; raises ValueError for one that is below 1."""
    m = integer("micro_batches", micro_batches, at_least=1)
    n = integer("partitions", partitions, at_least=1)
    v = integer("stages_per_rank", stages_per_rank, at_least=1)
    return m, n, v


def bubble_share(micro_batches: int, partitions: int, stages_per_rank: int = 1) -> float:
    """Return (n-1)/(v·m + n-1): the idle share of GPipe, of 1F1B, and of their looped kin with v stages a rank.

    It holds for stages that all cost the same, whatever forward and backward cost: a rank works for v·m of these
    costs, and waits for n-1 while the pipeline fills and drains.
    """
    m, n, v = sizes(micro_batches, partitions, stages_per_rank)
    return (n - 1) / (v * m + n - 1)


def model_parallel(micro_batches: int, partitions: int) -> Schedule:
    """Make the baseline that is no pipeline: each micro-batch goes forward and back before the next one starts.

    One rank works at a time, so the bubble is (n-1)/n, and one activation lives on each. micro_batches=1 is the plain
    model, cut over devices; more add up their gradients, which changes the memory and not the bubble.
    """
    m, n, _ = sizes(micro_batches, partitions)
    orders = [[Action(op, j, i) for i in range(m) for op in ("F", "B")] for j in range(n)]
    return slotted(Schedule("model_parallel", orders))


def gpipe(micro_batches: int, partitions: int) -> Schedule:
    """Make GPipe: all micro-batches forward, then all backward, first in first out. Orders are torch's ScheduleGPipe.

    The bubble is (n-1)/(m+n-1); each rank holds all m activations. torchgpipe and `lib.pipeline.GPipe` go back in the
    opposite order, last micro-batch first, as autograd does: with equal stages that changes neither number.
    Source: Huang et al. 2019, "GPipe: Efficient training of giant neural networks using pipeline parallelism".
    """
    m, n, _ = sizes(micro_batches, partitions)
    orders = [[Action(op, j, i) for op in ("F", "B") for i in range(m)] for j in range(n)]
    return slotted(Schedule("gpipe", orders))


def one_f_one_b(micro_batches: int, partitions: int) -> Schedule:
    """Make 1F1B: rank j goes n-j micro-batches ahead, then does one backward and one forward in turn.

    The bubble is GPipe's, (n-1)/(m+n-1); rank j holds at most min(m, n-j) activations. Orders are what torch's
    Schedule1F1B executes wherever it takes the sizes; it wants m >= n, here every m >= 1 will do. (The table that torch
    builds for it is wrong: it counts the last rank's forwards from 1, so that 2F0 is missing for n = 3.)
    Source: Narayanan et al. 2021, "Memory-efficient pipeline-parallel DNN training" (there PipeDream-Flush).
    """
    return Schedule("one_f_one_b", eager_one_f_one_b(micro_batches, partitions, ahead=1).ranks)


def eager_one_f_one_b(micro_batches: int, partitions: int, ahead: int = 2) -> Schedule:
    """Make eager 1F1B: rank j goes `ahead` micro-batches further than rank j + 1 before it begins to alternate.

    What for: a message takes c. In 1F1B a rank's next forward waits for a gradient that has travelled there and back,
    2c a rank, micro-batch after micro-batch. With ahead >= 1 + 2c / (F + B) messages delay no more than GPipe's: what
    fills and drains. Rank j holds min(m, ahead·(n-1-j) + 1) activations; with ahead=1 it is 1F1B, with 2
    torch's ScheduleInterleaved1F1B for one stage a rank. Raises ValueError for ahead below 1.
    Source: Zhuang et al. 2023, "On optimizing the communication of model parallelism" (there eager-1F1B); the deeper of
    two warm-ups of Fan et al. 2021, "DAPPLE: A pipelined data parallel approach for training large models".
    """
    m, n, _ = sizes(micro_batches, partitions)
    ahead = integer("ahead", ahead, at_least=1)
    return slotted(Schedule("eager_one_f_one_b", looped(m, n, 1, backward="B", hop=ahead)))


# ---- PipeDream: 1F1B that never flushes
#
# A rank updates its weights after each of its backwards, and goes on to the next batch at once: no bubble once it is
# full. But between the forward of a batch and its backward the weights move (staleness), and the rank has to keep the
# old ones (weight stashing) for the gradient to be one of the function that the forward computed.


def pipedream(micro_batches: int, partitions: int) -> Schedule:
    """Make PipeDream's asynchronous 1F1B: a stream of `micro_batches` batches, each with an update of its own.

    The orders are those of `one_f_one_b`, but nothing ends with the table: a stream has one start and one end, so its
    bubble (n-1)/(m+n-1) goes to 0. Schedules that flush pay it for every batch: compare pipedream(k·m, n) with k times
    one_f_one_b(m, n). It is made to be simulated; the executor leaves updates to its caller.
    Source: Narayanan et al. 2019, "PipeDream: Generalized pipeline parallelism for DNN training" (SOSP).
    """
    return Schedule("pipedream", one_f_one_b(micro_batches, partitions).ranks)


def staleness(schedule: Schedule) -> Mapping[Action, int]:
    """Return, for each backward, how many updates its stage has made since that batch's forward.

    An update follows every B, or every W if the backward is split. In PipeDream's steady state it is n-1-j on rank j,
    which so keeps n-j versions of its weights. Raises KeyError for a backward without a forward before it: `validate`.
    """
    updates: dict[int, int] = {}
    seen: dict[tuple[int, int], int] = {}
    found: dict[Action, int] = {}
    for _, action in schedule:
        op, stage, i = action
        if op == "F":
            seen[stage, i] = updates.get(stage, 0)
        elif op != "I":
            found[action] = updates.get(stage, 0) - seen[stage, i]
            updates[stage] = updates.get(stage, 0) + 1
    return found


# ---- several stages a rank, in a loop: depth first or breadth first
#
#     n = 2 ranks, v = 2 stages a rank          rank 0: stages 0 and 2          rank 1: stages 1 and 3
#
#     rank 0  0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 …   interleaved: n micro-batches through all stages, then the next n
#     rank 0  0F0 0F1 0F2 0F3 2F0 2F1 2F2 2F3 …   looped BFS: all micro-batches through a stage, then the next stage
#
# A stage is v times smaller, so the pipeline fills and drains in steps that are v times shorter: the bubble shrinks
# from (n-1)/(m+n-1) to (n-1)/(v·m+n-1). The price: v times as much to send.


def interleaved_one_f_one_b(micro_batches: int, partitions: int, stages_per_rank: int) -> Schedule:
    """Make interleaved 1F1B: rank j has the stages j, j + n, …; one forward and one backward in turn, depth first.

    The bubble is (n-1)/(v·m+n-1) if m >= n micro-batches make even rounds (see `round_size`); else it can be larger.
    Rank j holds up to (v-1)·k + 2(n-1-j) + 1 activations of a stage in rounds of k: v·n + n - 1 at rank 0 if k = n,
    where 1F1B holds n that are v times as large. Orders are torch's ScheduleInterleaved1F1B wherever it takes the
    sizes; it refuses rounds that can't be even (m = 7, n = 3), here every m >= 1 will do.
    Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", 2.2.
    """
    m, n, v = sizes(micro_batches, partitions, stages_per_rank)
    return slotted(Schedule("interleaved_one_f_one_b", looped(m, n, v, backward="B", hop=2)))


def looped_bfs(micro_batches: int, partitions: int, stages_per_rank: int) -> Schedule:
    """Make looped BFS: rank j sends all micro-batches through its stages j, j + n, … in turn; then all of it backwards.

    It is GPipe with v stages a rank: the bubble is (n-1)/(v·m+n-1) if m >= n, and every rank holds all v·m activations
    at once. What it is for: a stage has all its forwards in one run and all its backwards in another, so that weights
    which are sharded over data ranks are gathered twice a step, not for every round, and the gradient is summed once.
    Orders are torch's ScheduleLoopedBFS, whose backward starts at the last micro-batch.
    Source: Lamy-Poirier 2022, "Breadth-first pipeline parallelism".
    """
    m, n, v = sizes(micro_batches, partitions, stages_per_rank)
    orders = []
    for rank in range(n):
        forwards = [Action("F", stage, i) for stage in range(rank, n * v, n) for i in range(m)]
        backwards = [action._replace(op="B") for action in reversed(forwards)]
        orders.append(forwards + backwards)
    return slotted(Schedule("looped_bfs", orders))


def looped(m: int, n: int, v: int, backward: Op, hop: int) -> list[list[Action]]:
    """Return the order of each rank: a warm-up of forwards, then a forward and a backward in turn, then the rest.

    warm-up: the last rank runs ahead by v - 1 rounds, for its first backward is that of its last stage. Each rank in
    front of it runs ahead by `hop` more: the slots until what it sends one rank on has come back as a gradient.

    Rounds are planned full, and micro-batches from m on are struck out at the end. That keeps a table legal, since no
    micro-batch waits for another. (Rounds of n with a short one at the end, the obvious way, deadlock: m 5, n 4, v 3.)
    """
    size = round_size(m, n)
    orders = []
    for rank in range(n):
        stages = range(rank, n * v, n)
        forwards = in_rounds("F", stages, m, size)
        backwards = in_rounds(backward, stages[::-1], m, size)
        order = alternate(forwards, backwards, warm_up=(v - 1) * size + hop * (n - 1 - rank))
        orders.append([action for action in order if action.micro_batch < m])
    return orders


def round_size(m: int, n: int) -> int:
    """Return how many micro-batches pass a stage before the rank turns to its next stage: n, or a few more.

    m micro-batches make m // n rounds (at least one), as even as can be: 10 of them on 4 ranks go as 5 and 5.
    """
    return ceil(m / max(1, m // n))


def in_rounds(op: Op, stages: Sequence[int], m: int, size: int) -> list[Action]:
    """Return one op of a rank, depth first: `size` micro-batches through its stages in turn, then the next `size`."""
    rounds = [range(first, first + size) for first in range(0, m, size)]
    return [Action(op, stage, i) for one_round in rounds for stage in stages for i in one_round]


def alternate(forwards: list[Action], backwards: list[Action], warm_up: int) -> list[Action]:
    """Return `warm_up` forwards, then a forward and a backward in turn, then the backwards that are left."""
    order = forwards[:warm_up]
    for k, backward in enumerate(backwards, start=warm_up):
        order += forwards[k : k + 1]  # none, once they are used up
        order.append(backward)
    return order


# ---- backward in two halves, so that the weights' half fills the bubble
#
# B = I + W       I: the gradient of the input, for which the rank before is waiting
#                 W: the gradient of the weights, for which only the optimizer is waiting
#
# 1F1B    rank 0  0F0 0F1 0F2  .   .   .   .  [ 0B0 ]     a gradient reaches rank 0 after n - 1 whole backwards,
# ZB-H1   rank 0  0F0 0F1 0F2  .   .  0I0 0W0             or after n - 1 halves: each W waits until there is time


def zero_bubble_h1(micro_batches: int, partitions: int) -> Schedule:
    """Make ZB-H1: the order of 1F1B with its backward split, and rank j up to j weight gradients behind.

    A rank idles for (n-1)·(F+I-W) if m >= n and W is the least of the three; 1F1B: (n-1)·(F+I+W). With F = I = W that
    is a third. (In general it is (n-1)·max(F+I-W, F, I): a W that is larger than the gap does not fit.) A W needs its
    activation too, so each rank holds up to n: n - j ahead of their I, as in 1F1B, and j that wait for their W. So the
    peak is that of 1F1B, n at rank 0; but here the ranks after it hold as many.
    Source: Qi et al. 2023, "Zero bubble pipeline parallelism", 2.1 (there B is what I is here).
    """
    return Schedule("zero_bubble_h1", interleaved_zero_bubble(micro_batches, partitions, stages_per_rank=1).ranks)


def interleaved_zero_bubble(micro_batches: int, partitions: int, stages_per_rank: int) -> Schedule:
    """Make ZB-H1 with v stages a rank: rank j has the stages j, j + n, …, and is up to j weight gradients behind.

    The order of interleaved 1F1B, but a gradient comes back sooner and so the warm-up is n - 1 - j shorter. A rank
    idles as in ZB-H1, for stages that are v times smaller, and holds up to (v-1)·k + n activations in rounds of k. A
    last round of r < n/2 micro-batches costs (v-1)·(n-2r) slots more. With one stage a rank it is ZB-H1. Orders
    are torch's ScheduleInterleavedZeroBubble wherever it takes the sizes; it refuses rounds that can't be even (m = 7,
    n = 3), here every m >= 1 will do.
    Source: torch; ideas as for `zero_bubble_h1` and `interleaved_one_f_one_b`.
    """
    m, n, v = sizes(micro_batches, partitions, stages_per_rank)
    without_w = looped(m, n, v, backward="I", hop=1)
    orders = [weights_behind(order, at_most=j) for j, order in enumerate(without_w)]
    return slotted(Schedule("interleaved_zero_bubble", orders))


def weights_behind(order: list[Action], at_most: int) -> list[Action]:
    """Return the order with a W for each I: the oldest one as soon as more than `at_most` are owed, the rest last."""
    owed: deque[Action] = deque()
    result = []
    for action in order:
        result.append(action)
        if action.op == "I":
            owed.append(action._replace(op="W"))
        if len(owed) > at_most:
            result.append(owed.popleft())
    return [*result, *owed]


# ---- two stages a rank, laid out as a V
#
#     stage   0   1   2   3       rank j has stage j on the way down (a) and stage 2n - 1 - j on the way up (b), so
#     stage   7   6   5   4       the last rank turns round without sending, and rank 0 has the first gradient. Rank 0
#     rank    0   1   2   3       keeps an activation long at a and briefly at b, the last rank a while at either: all
#                                 ranks hold equally many, where 1F1B needs n at rank 0 and 1 at the last.
#
# A maker writes a rank's order as phases: so many times these steps. `Fa` is the next forward of its stage a, `Ib` or
# `Bb` the next backward of its stage b, `Wa` the oldest W that stage a owes, `W` the oldest that either owes.


def zbv(micro_batches: int, partitions: int) -> Schedule:
    """Make ZB-V: with F = I = W and m >= 2n - 1 no rank idles between its first action and its last.

    What is left are n - 1 slots: rank j starts j later and stops n - 1 - j earlier. (1F1B, whose stages are twice as
    large, idles for 6(n-1) such slots.) Every rank holds up to 2n activations of half a stage: as much as rank 0 does
    in 1F1B. Unequal costs leave gaps, and so do fewer than 2n - 1 micro-batches: they can't fill the V, and the table
    is the one for 2n - 1 with the missing ones struck out. Orders are torch's ScheduleZBVZeroBubble.
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
    Raises ValueError, as torch, for fewer than 2n micro-batches.
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
        drain = []  # b and a in turn, j + 1 times: the first half whole, the second without their weights
        for k, way in enumerate("ba" * (j + 1)):
            drain.append(f"B{way}" if k <= j else f"I{way}")
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
    """Return the order that (times, steps) describe for a rank with stages a and b; see above."""
    stage_of = {"a": a, "b": b}
    count: Counter[tuple[bool, int]] = Counter()  # (is it a forward, stage): how many there have been
    owed: list[Action] = []  # the W of each I
    order = []
    for times, steps in phases:
        for step in steps.split() * times:
            op = cast(Op, step[0])
            way = step[1:]
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


# ---- what is known of each, once


@dataclass(frozen=True)
class Maker:
    """Say what the house knows of a schedule: `choose`, the pictures, the bridge to torch and the tests all ask here.

    name: in words and pictures. make: the function above; it takes micro_batches and partitions. looped: it takes
    stages_per_rank, too; one that is not always makes `fixed_stages` a rank. ahead: it takes `ahead`.
    micro_batches_per_rank: how many it needs at least. flushes: the pipeline runs empty before weights are updated.
    torch_class: the class in torch.distributed.pipelining that does the same orders, if there is one.
    """

    name: str
    make: Callable[..., Schedule]
    looped: bool = False
    flushes: bool = True
    torch_class: str | None = None
    fixed_stages: int = 1
    micro_batches_per_rank: int = 0
    ahead: bool = False

    def table(self, micro_batches: int, partitions: int, stages_per_rank: int = 1) -> Schedule:
        """Make the table; stages_per_rank counts where the maker is looped. Raises ValueError as `make` does."""
        if self.looped:
            return self.make(micro_batches, partitions, stages_per_rank)
        return self.make(micro_batches, partitions)

    def fewest(self, partitions: int) -> int:
        """Return the least number of micro-batches that `make` takes for so many partitions."""
        return max(1, self.micro_batches_per_rank * partitions)


MAKERS = {
    maker.name: maker
    for maker in (
        Maker("model parallel", model_parallel),
        Maker("GPipe", gpipe, torch_class="ScheduleGPipe"),
        Maker("1F1B", one_f_one_b, torch_class="Schedule1F1B"),
        Maker("eager 1F1B", eager_one_f_one_b, torch_class="ScheduleInterleaved1F1B", ahead=True),
        Maker("interleaved 1F1B", interleaved_one_f_one_b, looped=True, torch_class="ScheduleInterleaved1F1B"),
        Maker("looped BFS", looped_bfs, looped=True, torch_class="ScheduleLoopedBFS"),
        Maker("zero bubble (ZB-H1)", zero_bubble_h1, torch_class="ScheduleInterleavedZeroBubble"),
        Maker(
            "interleaved zero bubble",
            interleaved_zero_bubble,
            looped=True,
            torch_class="ScheduleInterleavedZeroBubble",
        ),
        Maker("ZB-V", zbv, torch_class="ScheduleZBVZeroBubble", fixed_stages=2),
        Maker(
            "DualPipeV",
            dualpipe_v,
            torch_class="ScheduleDualPipeV",
            fixed_stages=2,
            micro_batches_per_rank=2,
        ),
        Maker("PipeDream", pipedream, flushes=False),
    )
}
"""All makers, by name. A further one is a function above, an entry here, and its name in lib/schedules/__init__.py."""
