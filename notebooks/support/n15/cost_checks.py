"""What a rank holds and how long a step takes: exercises of notebook 15 that need no ranks."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

from support.kit.exercise import Exercise, cases
from support.kit.mistakes import famous
from support.n15.plans import Model
from support.n15.solved import exposed, memory_of_rank, step_parts

_SMALL = Model()
_LARGE = Model(70e9, 80, 8192, 8192, 512)


def _is_number(got: Any) -> bool:
    return isinstance(got, (int, float)) and not isinstance(got, bool)


# ---- exercise 5: bytes of a rank


def _bytes(got: Any, expected: float, case: Mapping[str, Any]) -> str:
    if not _is_number(got):
        return f"expected {expected:,.0f} bytes, got {got!r}"
    if math.isclose(got, expected, rel_tol=1e-9):
        return ""
    return f"expected {expected:,.0f} bytes, got {got:,.0f}"


_WORKING = "32 * unit if recompute else 0"
_STATES = "(whole + (18 - whole) / replicas)"

_MEMORY_CASES = cases(
    "model n held recompute zero replicas",
    [
        (model, n, held, recompute, zero, replicas)
        for model, n, held, recompute in (
            (_SMALL, 1, 1, False),
            (_SMALL, 8, 8, False),
            (_SMALL, 8, 1.5, True),
            (_LARGE, 12, 12, True),
            (_SMALL, 4, 3, True),
        )
        for zero, replicas in ((0, 1), (0, 8), (1, 8), (1, 64), (2, 8), (2, 3), (3, 8), (3, 64))
    ],
)

check_memory = Exercise(
    "memory_of_rank",
    reference=memory_of_rank,
    cases=_MEMORY_CASES,
    fault=_bytes,
    praise="the bytes of a rank in {count} cases",
    throughout=True,
    mistakes=famous(
        memory_of_rank,
        {
            "Rank 0 holds `held` micro-batches at once, not one.": ("held * kept", "kept"),
            "`held` may be a half: of two stages on a rank only one may hold a micro-batch.": (
                "held * kept",
                "int(held) * kept",
            ),
            "Only the layers / n layers of a rank keep activations on it.": (
                "model.layers / n",
                "model.layers",
            ),
            "A rank has 1 / n of the parameters.": ("model.parameters / n", "model.parameters"),
            "Count L / n layers, a fraction where n does not divide L.": (
                "model.layers / n",
                "(model.layers // n)",
            ),
            "Count L / n layers, and round nothing up.": ("model.layers / n", "-(-model.layers // n)"),
            "`held` says how many micro-batches; it is n only on rank 0 under 1F1B.": (
                "held * kept",
                "n * kept",
            ),
            "One layer of one micro-batch is at work at a time.": (_WORKING, "held * " + _WORKING),
            "The layer's input is kept already, true, but count all 32.": (_WORKING, "30" + _WORKING[2:]),
            "A layer at work is a whole layer, however many stages there are.": (
                _WORKING,
                "32 * unit / n if recompute else 0",
            ),
            "A gradient that adds up over a thousand micro-batches has 4 bytes here.": (
                "(18, 6, 2, 0)",
                "(16, 4, 2, 0)",
                "18 - whole",
                "16 - whole",
            ),
            "The level says what is dealt: with 0 nothing is, whatever the replicas.": (
                "(18, 6, 2, 0)",
                "(6, 6, 2, 0)",
            ),
            "ZeRO-1 deals master weights and moments, ZeRO-2 the gradients as well.": (
                "(18, 6, 2, 0)",
                "(18, 6, 6, 0)",
            ),
            "ZeRO-3 deals the weights, too.": ("(18, 6, 2, 0)", "(18, 6, 2, 2)"),
            "With ZeRO-1 weights and gradients stay whole, 2 + 4 bytes.": ("(18, 6, 2, 0)", "(18, 2, 2, 0)"),
            "What is dealt are shares, a fraction where the replicas do not divide it.": (
                "(18 - whole) / replicas",
                "(18 - whole) // replicas",
            ),
            "What is dealt is dealt to the replicas, not to the stages once more.": (
                "(18 - whole) / replicas",
                "(18 - whole) / n",
            ),
            "Only what the level names is dealt.": (_STATES, "18 / replicas"),
            "Adam keeps 3 × 4 bytes per parameter: master weight and two moments.": (
                "(18, 6, 2, 0)",
                "(14, 6, 2, 0)",
                "18 - whole",
                "14 - whole",
            ),
            "The layer that is recomputed keeps all of its activations for a while.": (_WORKING, "0"),
            "Without recomputing no layer comes on top: what is kept is counted already.": (
                _WORKING,
                "32 * unit",
            ),
            "One layer is at work at a time, not all.": ("32 * unit if", "32 * unit * model.layers / n if"),
            "Recomputing begins with each layer's input, which is kept: 2 bytes.": (
                "2 if recompute",
                "0 if recompute",
            ),
            "Activations are each replica's own: they are not dealt.": (
                "layers / n",
                "layers / n / replicas",
            ),
            "2 bytes with recomputing, 32 without: not the other way round.": (
                "2 if recompute else 32",
                "32 if recompute else 2",
            ),
            "The table has 32 bytes: a flash attention keeps no scores, and here is no dropout.": (
                "else 32",
                "else 34",
                "32 * unit if",
                "34 * unit if",
            ),
            "A layer keeps `hidden` numbers per token.": ("model.tokens * model.hidden", "model.tokens"),
            "Bytes are asked for, not gigabytes.": (
                "return states + activations + working",
                "return (states + activations + working) / 1e9",
            ),
        },
    ),
)


# ---- exercise 6: what of a reduction is not hidden


def _seconds(got: Any, expected: float, case: Mapping[str, Any]) -> str:
    if not _is_number(got):
        return f"expected {expected:g}, got {got!r}"
    if math.isclose(got, expected, rel_tol=1e-9, abs_tol=1e-12):
        return ""
    return f"expected {expected:g}, got {got:g}"


def _exposed_cases() -> list[dict[str, Any]]:
    dice = random.Random(15)
    drawn = [(dice.uniform(0.1, 9), dice.uniform(0.1, 9), dice.randint(1, 40)) for _ in range(20)]
    first = [(6.0, 4.0, 4), (2.0, 4.0, 4), (4.0, 4.0, 4), (6.0, 4.0, 1), (0.0, 4.0, 2), (3.0, 4.0, 1000)]
    return cases("reduce backward buckets", [*first, *drawn])


_LOOP = """    free = 0.0
    for k in range(1, buckets + 1):
        ready = backward * k / buckets
        free = max(free, ready) + reduce / buckets
    return free - backward"""

check_exposed = Exercise(
    "exposed",
    reference=exposed,
    cases=_exposed_cases,
    fault=_seconds,
    praise="what is left behind backward in {count} cases",
    throughout=True,
    mistakes=famous(
        exposed,
        {
            "Only what is longer than backward was left: but the first bucket has to be computed before it is sent.": (
                _LOOP,
                "    return max(0.0, reduce - backward)",
            ),
            "That hides nothing: buckets leave while backward goes on.": (_LOOP, "    return reduce"),
            "The last bucket is ready when backward ends, so its own sending is never hidden.": (
                _LOOP,
                "    return max(0.0, reduce - backward * (1 - 1 / buckets))",
            ),
            "Only the last bucket was counted: a slow network is still busy with those before it.": (
                _LOOP,
                "    return reduce / buckets",
            ),
            "A fast network waits for the last bucket.": (
                _LOOP,
                "    return reduce - backward * (1 - 1 / buckets)",
            ),
            "That is when the network is free; asked for is how long after backward's end.": (
                "free - backward",
                "free",
            ),
            "The first bucket is ready after backward / buckets, not at the start.": (
                "backward * k / buckets",
                "backward * (k - 1) / buckets",
            ),
        },
    ),
)


# ---- exercise 7: a step under 1F1B, by its parts


def _parts(got: Any, expected: tuple[float, float, float], case: Mapping[str, Any]) -> str:
    if not isinstance(got, (tuple, list)) or len(got) != 3 or not all(map(_is_number, got)):
        return f"expected three numbers of seconds, got {got!r}"
    names = ("pipeline", "reduction left over", "gathering")
    for name, mine, right in zip(names, got, expected, strict=True):
        if not math.isclose(mine, right, rel_tol=1e-9, abs_tol=1e-12):
            return f"{name}: expected {right:.4f} s, got {mine:.4f} s"
    return ""


_PARTS_CASES = cases(
    "model n replicas link speed",
    [
        (_SMALL, 1, 512, 50e9, 400e12),
        (_SMALL, 4, 128, 50e9, 400e12),
        (_SMALL, 16, 32, 400e9, 400e12),
        (_SMALL, 8, 1, 50e9, 200e12),
        (_LARGE, 8, 64, 100e9, 300e12),
        (_LARGE, 1, 2, 25e9, 400e12),
    ],
)
_PIPELINE = "(m + n - 1) * (forward + backward)"
_SHARE = "(replicas - 1) / replicas * model.parameters / n"

check_parts = Exercise(
    "step_parts",
    reference=step_parts,
    cases=_PARTS_CASES,
    fault=_parts,
    praise="pipeline, reduction and gathering in {count} cases",
    throughout=True,
    mistakes=famous(
        step_parts,
        {
            "A batch is shared by the replicas: each has sequences / replicas micro-batches.": (
                "model.sequences / replicas",
                "model.sequences",
            ),
            "A pipeline fills and drains: that costs n - 1 rounds.": (_PIPELINE, "m * (forward + backward)"),
            "Fill and drain cost n - 1 rounds, not n.": ("(m + n - 1)", "(m + n)"),
            "A stage has 1 / n of the parameters.": (
                "model.parameters / n * model.tokens",
                "model.parameters * model.tokens",
            ),
            "Backward is two products where forward is one.": ("2 * forward", "forward"),
            "A multiplication and an addition are two operations.": (
                "forward = 2 * model",
                "forward = model",
            ),
            "With D replicas a ring moves (D - 1) / D of the bytes in each half.": (
                _SHARE,
                "model.parameters / n",
            ),
            "A gradient has 4 bytes here.": ("exposed(4 * share", "exposed(2 * share"),
            "An all-reduce of fp32 would be twice that: ZeRO-1 needs the first half only, each rank its own share.": (
                "exposed(4 * share",
                "exposed(8 * share",
            ),
            "The reduction hides behind the last backward; ask `my_exposed` what is left.": (
                "my_exposed(4 * share / link, backward, model.layers // n)",
                "4 * share / link",
            ),
            "Only the last micro-batch's backward hides anything: gradients are complete in no other.": (
                "link, backward, model",
                "link, m * backward, model",
            ),
            "A bucket for each layer of the rank.": ("model.layers // n)", "model.layers)"),
            "The new weights have 2 bytes each.": ("reduce, 2 * share / link", "reduce, 4 * share / link"),
            "The new weights go round once more, after the optimizer.": (
                "reduce, 2 * share / link",
                "reduce, 0.0",
            ),
        },
    ),
)
