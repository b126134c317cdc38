"""Claims about pipelines: how large the bubble is, and how much a rank holds.

Ticks are those of the data-flow law of notebook 08: F = I = W = 1 and B = 2, where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from lib.schedules import (
    Schedule,
    dualpipe_v,
    gpipe,
    interleaved_one_f_one_b,
    live_activations,
    one_f_one_b,
    simulate,
    zbv,
    zero_bubble_h1,
)
from lib.text import format_share
from support.ledger.book import Observation, claim
from support.ledger.units import end_of_units, in_pairs, singles

DUALPIPE = "https://github.com/deepseek-ai/DualPipe"
MEGATRON = "https://arxiv.org/abs/2104.04473"
NEAR = 1e-9


def _told(values: Sequence[float], form: str = "{:g}") -> str:
    """Write numbers behind each other: "2, 6, 14"."""
    return ", ".join(form.format(value) for value in values)


@claim(
    "Four micro-batches per stage make the bubble negligible",
    "Huang et al., GPipe (2018), section 2.3",
    "https://arxiv.org/abs/1811.06965",
    "In the authors' experiments the bubble was negligible with at least four micro-batches per stage, partly because "
    "a recompute need not wait for the gradient.",
)
def bubble_at_four_per_stage(
    stages: Sequence[int] = (4, 8, 32), per_stage: int = 4, negligible: float = 0.05
) -> Observation:
    """Count idle time with F = R = 1 and B = 2; an early recompute saves each of n - 1 ranks one R on the way back."""
    waits = []
    early = []
    for n in stages:
        m = per_stage * n
        whole = simulate(gpipe(m, n), 1, 3).makespan
        waits.append(1 - 4 * m / whole)
        early.append(1 - 4 * m / (whole - (n - 1)))
    saw = (
        f"With {per_stage} micro-batches per stage, {_told([100 * share for share in waits], '{:.0f}')} % of all time "
        f"is idle on {_told(stages)} stages, and {_told([100 * share for share in early], '{:.0f}')} % if recomputes "
        f"start early. We call up to {format_share(negligible)} negligible."
    )
    holds = {
        "a recompute waits for the gradient": max(waits) <= negligible,
        "a recompute starts early": max(early) <= negligible,
    }
    return Observation(saw, holds, {"idle": max(waits), "idle, early": max(early)})


@claim(
    "DualPipeV's bubble",
    "DeepSeek-AI, DualPipe's README (2025), table of bubbles",
    DUALPIPE,
    "DualPipeV's bubble is (PP/2 − 1)(F&B + B − 3W), where PP stages lie on PP/2 ranks and F&B is a forward and a "
    "backward that overlap.",
)
def dualpipe_v_bubble(ranks: Sequence[int] = (2, 4, 8), weight: float = 1.0) -> Observation:
    """Let a pair last as long as its F and its B together, and compare both readings of what it hands on when."""
    ticks = {"F": 1.0, "B": 1.0 + weight, "I": 1.0, "W": weight}
    together = ticks["F"] + ticks["B"]
    claimed = [(n - 1) * (together + ticks["B"] - 3 * weight) for n in ranks]
    bubbles = {}
    for name, cut in (("unbreakable", in_pairs), ("at once", singles)):
        made = [(4 * n, dualpipe_v(4 * n, n)) for n in ranks]
        ends = [
            end_of_units(each, [cut(each.actions(r)) for r in range(len(each.ranks))], ticks)
            for _, each in made
        ]
        bubbles[name] = [end - 2 * m * together for end, (m, _) in zip(ends, made, strict=True)]
    saw = (
        f"Take F = I = 1, W = {weight:g}. On {_told(ranks)} ranks the formula says {_told(claimed)}. "
        f"The bubble is {_told(bubbles['unbreakable'])} if a pair is one unit, and {_told(bubbles['at once'])} "
        "if its F sends as soon as it has ended."
    )
    holds = {
        "a pair of F and B is unbreakable": _all_near(bubbles["unbreakable"], claimed),
        "the F of a pair sends at once": _all_near(bubbles["at once"], claimed),
    }
    return Observation(
        saw, holds, {"unbreakable": bubbles["unbreakable"][-1], "at once": bubbles["at once"][-1]}
    )


@claim(
    "A typo in ZB1P's bubble",
    "DeepSeek-V3's report (2024), table 2; asked about in deepseek-ai/DeepSeek-V3#724",
    "https://github.com/deepseek-ai/DeepSeek-V3/issues/724",
    "ZB1P's bubble is (PP − 1)(F + B − 2W). A reader asks whether that is a typo, since the zero bubble paper has "
    "(p − 1)(F + B − W) for ZB-H1.",
)
def zb1p_is_no_typo(ranks: Sequence[int] = (2, 4, 8), whole: float = 1.8, weight: float = 0.7) -> Observation:
    """Take unequal ticks, so that the two readings of B can't agree by chance."""
    half = whole - weight
    measured = [
        simulate(zero_bubble_h1(4 * n, n), 1, whole, weight).makespan - 4 * n * (1 + whole) for n in ranks
    ]
    report = [[(n - 1) * (1 + b - 2 * weight) for n in ranks] for b in (whole, half)]
    paper = [(n - 1) * (1 + half - weight) for n in ranks]
    saw = (
        f"Take F = 1, I = {half:g}, W = {weight:g}. Then {_told(ranks)} ranks have bubbles of "
        f"{_told(measured, '{:.3g}')} ticks. The report's formula gives {_told(report[0], '{:.3g}')} if B is the "
        f"whole backward, and {_told(report[1], '{:.3g}')} if it is I alone. The paper's B is I, and its formula "
        f"gives {_told(paper, '{:.3g}')}."
    )
    holds = {
        "B is the whole backward, as the report defines it": _all_near(measured, report[0]),
        "B is the input's half, as in the paper": _all_near(measured, report[1]),
    }
    return Observation(saw, holds, {"bubble": measured[-1]})


@claim(
    "DualPipeV holds PP + 1",
    "DeepSeek-AI, DualPipe's README (2025), table of bubbles",
    DUALPIPE,
    "A device holds PP + 1 activations at most, where PP is the number of stages.",
)
def pp_plus_one_held(
    ranks: Sequence[int] = (2, 4, 8), make: Callable[[int, int], Schedule] = dualpipe_v
) -> Observation:
    """Count activations of a stage until W, or a whole backward, lets them go."""
    held = [max(live_activations(make(4 * n, n))) for n in ranks]
    saw = f"On {_told(ranks)} ranks with two stages each, the fullest rank holds {_told(held)}."
    return Observation(saw, {f"PP = {2 * n}": most == 2 * n + 1 for n, most in zip(ranks, held, strict=True)})


@claim(
    "1F1B is as fast as GPipe and holds less",
    "Narayanan et al., Megatron-LM (2021), section 2.2.1",
    MEGATRON,
    "1F1B with a flush takes as long as GPipe's schedule, but a rank holds at most as many micro-batches as there are "
    "stages, not all m.",
)
def one_f_one_b_holds_less(
    n: int = 4, micro_batches: Sequence[int] = (8, 32), message: float = 0.0, late: float = 0.1
) -> Observation:
    """Compare both with free messages and with late ones: holding less is sure, and equal time is not."""
    ends = {}
    holds = {}
    for setting, ticks in (("messages are free", message), (f"a message takes {late:g} ticks", late)):
        ends[setting] = [
            [simulate(make(m, n), communicate=ticks).makespan for m in micro_batches]
            for make in (gpipe, one_f_one_b)
        ]
        less = all(max(live_activations(one_f_one_b(m, n))) <= n for m in micro_batches)
        holds[setting] = less and _all_near(*ends[setting])
    held = [max(live_activations(one_f_one_b(m, n))) for m in micro_batches]
    saw = f"With m = {_told(micro_batches)} on {n} ranks 1F1B holds {_told(held)}, GPipe {_told(micro_batches)}."
    for setting, (all_forwards, in_turn) in ends.items():
        saw += f" If {setting}, GPipe takes {_told(all_forwards)} ticks, 1F1B {_told(in_turn)}."
    return Observation(saw, holds, {"held": held[-1], "late": ends[setting][1][-1]})


@claim(
    "Interleaving divides the bubble by v",
    "Narayanan et al., Megatron-LM (2021), section 2.2.2",
    MEGATRON,
    "With v stages on each rank, interleaving divides 1F1B's bubble by v; it sends v times as many messages.",
)
def interleaving_divides_by_v(n: int = 4, stages: Sequence[int] = (2, 4), late: float = 0.5) -> Observation:
    """Compare bubbles with free messages, and with late ones, which 1F1B has to wait for as well."""
    m = 4 * n
    divided = {}
    for v, message in product(stages, (0.0, late)):
        plain = simulate(one_f_one_b(m, n), 1, 2, communicate=message).makespan - 3 * m
        finer = simulate(interleaved_one_f_one_b(m, n, v), 1 / v, 2 / v, communicate=message).makespan - 3 * m
        divided[v, message] = plain / finer
    told = [
        f"by {ratio:.3g} with v = {v} and messages of {message:g} ticks"
        for (v, message), ratio in divided.items()
    ]
    saw = f"On {n} ranks the bubble is divided {', '.join(told)}; a rank's forward takes 1."
    holds = {"messages are free": all(divided[v, 0.0] >= v - NEAR for v in stages)}
    holds |= {f"v = {v} and a message takes {late:g} ticks": divided[v, late] >= v - NEAR for v in stages}
    return Observation(saw, holds, {f"v = {v}": divided[v, late] for v in stages})


@claim(
    "ZB-V has no bubble",
    "Qi et al., Zero bubble pipeline parallelism (2023), section 6",
    "https://arxiv.org/abs/2401.10241",
    "With F = I = W the V-shaped schedule has no bubble and holds no more than 1F1B; the optimizer's barrier between "
    "steps has to go for that.",
)
def zb_v_has_no_bubble(n: int = 4, m: int = 8, weight: float = 0.5) -> Observation:
    """Take one step alone, and a second one that each rank begins as soon as it is done with the first."""
    made = zbv(m, n)
    again = [
        [action._replace(micro_batch=action.micro_batch + m) for action in made.actions(r)] for r in range(n)
    ]
    two = Schedule("two steps", [made.actions(r) + again[r] for r in range(n)])
    alone, both = (simulate(each, 0.5, 0.5 + weight, weight).makespan for each in (made, two))
    work = 2 * m * (1 + weight)
    bubbles = {
        "a step ends for all ranks at once": alone - work,
        "a rank begins the next step at once": both - alone - work,
    }
    held = max(live_activations(made)) / 2
    saw = (
        f"On {n} ranks with m = {m} a step alone has a bubble of {alone - work:g} ticks beside {work:g} of work; "
        f"a further step adds {both - alone - work:g}. A rank holds {held:g} activations, 1F1B {n}."
    )
    holds = {setting: bubble <= NEAR and held <= n for setting, bubble in bubbles.items()}
    return Observation(saw, holds, {"alone": alone - work, "further": both - alone - work, "held": held})


def _all_near(ones: Sequence[float], others: Sequence[float]) -> bool:
    return all(abs(one - other) <= NEAR * max(1, abs(other)) for one, other in zip(ones, others, strict=True))
