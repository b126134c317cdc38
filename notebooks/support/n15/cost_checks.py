"""What a rank holds and how long a step takes: exercises of notebook 15 that need no ranks."""

from __future__ import annotations

import math
import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from support.kit.exercise import Exercise, cases
from support.kit.mistakes import famous
from support.kit.raised import Finding, named
from support.kit.values import as_it_is
from support.n15.plans import Model
from support.n15.solved import exposed, memory_of_rank, step_seconds

_SMALL = Model()
_LARGE = Model(70e9, 80, 8192, 8192, 512)
_TINY = Model(7.0, 5, 5, 2, 1)  # of a few bytes, so that rounding shows


def _away(got: Any, expected: float, form: str) -> str:
    """Say what a number should be, "" if it is that. form: how numbers are written, with their unit."""
    right = form.format(expected)
    if not isinstance(got, (int, float)) or isinstance(got, bool):
        return f"expected {right}, got {got!r}"
    if math.isclose(got, expected, rel_tol=1e-9, abs_tol=1e-12):
        return ""
    said = form.format(got)
    if said == right:  # it is off in digits that are not shown
        return f"expected {float(expected)!r}, got {float(got)!r}"
    return f"expected {right}, got {said}"


def _by_formula(
    reference: Any,
    cases_: Any,
    fault: Any,
    praise: str,
    table: Mapping[str, Sequence[str]],
    view: Callable[..., Callable[..., Any]] = as_it_is,
) -> Exercise:
    """Make an exercise that is one formula: compared in all cases, its mistakes are edits of the reference."""
    return Exercise(
        reference.__name__,
        reference=reference,
        cases=cases_,
        fault=fault,
        praise=praise + " in {count} cases",
        throughout=True,
        view=view,
        mistakes=famous(reference, table),
    )


# ---- exercise 4: bytes of a rank


def _bytes(got: Any, expected: float, case: Mapping[str, Any]) -> str:
    return _away(got, expected, "{:,.15g} bytes")


_WORKING = "32 * unit if recompute else 0"
_STATES = "(whole + (18 - whole) / replicas)"


def _memory_cases() -> list[dict[str, Any]]:
    models = (
        (_SMALL, 1, 1, False),
        (_SMALL, 1, 1, True),
        (_SMALL, 8, 8, False),
        (_SMALL, 8, 1.5, True),
        (_LARGE, 12, 12, True),
        (_SMALL, 4, 7, False),
        (_SMALL, 4, 0.5, False),
        (_SMALL, 4, 0.5, True),
        (_TINY, 3, 1.25, False),
        (_TINY, 3, 1.25, True),
    )
    levels = ((0, 1), (0, 8), (1, 8), (1, 1), (2, 8), (2, 3), (3, 8), (3, 64))
    dice = random.Random(15)
    drawn = []
    for _ in range(20):
        n = dice.randint(1, 20)
        sizes = (dice.randint(100, 9000) for _ in range(3))
        model = Model(dice.uniform(1e6, 1e10), dice.randint(n, 96), *sizes)  # a stage has a layer at least
        held = dice.randint(1, 40) / dice.choice((1, 2, 8))
        rest = (dice.choice((False, True)), dice.randint(0, 3), dice.randint(1, 70))
        drawn.append((model, n, held, *rest))
    first = [(*model, *level) for model in models for level in levels]
    return cases("model n held recompute zero replicas", [*first, *drawn])


check_memory = _by_formula(
    memory_of_rank,
    _memory_cases,
    _bytes,
    "the bytes of a rank",
    {
        "The rank holds `held` micro-batches at once, not one.": ("held * kept", "kept"),
        "`held` may be a fraction: none of it is cut off.": ("held * kept", "int(held) * kept"),
        "`held` may be a fraction, and stays one.": ("held * kept", "round(held) * kept"),
        "`held` may be less than 1, and then a part of one is held.": ("held * kept", "max(1, held) * kept"),
        "`held` may be more than n: an eager order goes further ahead.": (
            "held * kept",
            "min(held, n) * kept",
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
        "ZeRO-1 deals master weights and moments, no gradients.": ("(18, 6, 2, 0)", "(18, 14, 2, 0)"),
        "A level deals what the levels before it deal, too.": ("(18, 6, 2, 0)", "(18, 6, 14, 16)"),
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
)


# ---- exercise 5: what of a reduction is not hidden


def _seconds(got: Any, expected: float, case: Mapping[str, Any]) -> str:
    return _away(got, expected, "{:.6g}")


def _exposed_cases() -> list[dict[str, Any]]:
    dice = random.Random(15)
    drawn = [(dice.uniform(0.1, 9), dice.uniform(0.1, 9), dice.randint(1, 40)) for _ in range(19)]
    first = [(6.0, 4.0, 4), (2.0, 4.0, 4), (4.0, 4.0, 4), (6.0, 4.0, 1), (0.0, 4.0, 2)]
    many = [(3.0, 4.0, 1000), (7.0, 4.0, 1000)]
    return cases("reduce backward buckets", [*first, *many, *drawn])


_LOOP = """    free = 0.0
    for k in range(1, buckets + 1):
        ready = backward * k / buckets
        free = max(free, ready) + reduce / buckets
    return free - backward"""

check_exposed = _by_formula(
    exposed,
    _exposed_cases,
    _seconds,
    "what is left behind backward",
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
        "A slow network is still busy with buckets before the last one when that is ready.": (
            _LOOP,
            "    return reduce / buckets",
        ),
        "The first bucket has to be computed before it is sent: a slow network begins late.": (
            _LOOP,
            "    return max(reduce - backward, reduce / buckets)",
        ),
        "A slow network waits for the first bucket's backward, and afterwards for nothing.": (
            _LOOP,
            "    return max(0.0, reduce - backward) + reduce / buckets",
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
)


# ---- exercise 6: the seconds of a step under 1F1B


def _asking_for_an_int(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Let a reader's `exposed` that counts buckets say whose fault it is that it was given 8.0 of them."""

    @wraps(answer)
    def asked(**case: Any) -> Any:
        try:
            return answer(**case)
        except TypeError as error:
            for frame, _ in traceback.walk_tb(error.__traceback__):
                buckets = frame.f_locals.get("buckets")
                if frame.f_code.co_name == "exposed" and isinstance(buckets, float):
                    slash = ", and / gives a float also where it leaves no rest"
                    raise Finding(
                        f"`my_exposed` was given {buckets!r} buckets and raised {named(error)}: buckets are an int"
                        f"{slash if buckets.is_integer() else ''}."
                    ) from error
            raise

    return asked


def _step(got: Any, expected: float, case: Mapping[str, Any]) -> str:
    return _away(got, expected, "{:.5g} s")


def _step_cases() -> list[dict[str, Any]]:
    first = [
        (_SMALL, 1, 512, 50e9, 400e12),
        (_SMALL, 4, 128, 50e9, 400e12),
        (_SMALL, 16, 32, 400e9, 400e12),
        (_SMALL, 8, 1, 50e9, 200e12),
        (_LARGE, 8, 64, 100e9, 300e12),
        (_LARGE, 1, 2, 25e9, 400e12),
        (_SMALL, 4, 128, math.inf, 400e12),
    ]
    dice = random.Random(16)
    drawn = []
    for _ in range(20):
        n = dice.choice((1, 2, 4, 8))
        replicas = dice.randint(1, 64)
        layers = n * dice.randint(1, 12)
        model = Model(
            dice.uniform(1e9, 9e10), layers, 4096, dice.randint(500, 9000), replicas * dice.randint(1, 9)
        )
        drawn.append((model, n, replicas, dice.uniform(1e9, 4e11), dice.uniform(1e14, 1e15)))
    each = [(*case, waits) for case in [*first, *drawn] for waits in (False, True)]
    return cases("model n replicas link speed gather_waits", each)


_PIPELINE = "(m + n - 1) * (forward + backward)"
_LATE = "my_exposed(gather, forward, buckets)"
_SHARE = "(replicas - 1) / replicas * model.parameters / n"

check_step_seconds = _by_formula(
    step_seconds,
    _step_cases,
    _step,
    "the seconds of a step",
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
        "In the first half of the ring (D - 1) / D of a stage's 4 · P / n bytes leave a rank.": (
            "exposed(4 * share",
            "exposed(2 * share",
        ),
        "An all-reduce of fp32 would be twice that: ZeRO-1 needs the first half only, each rank its own share.": (
            "exposed(4 * share",
            "exposed(8 * share",
        ),
        "The reduction hides behind the last backward.": (
            "my_exposed(4 * share / link, backward, buckets)",
            "4 * share / link",
        ),
        "Only the last micro-batch's backward hides anything: gradients are complete in no other.": (
            "link, backward, buckets",
            "link, m * backward, buckets",
        ),
        "A bucket for each layer of the rank.": ("model.layers // n", "model.layers"),
        "The new weights are gathered: (D - 1) / D of their 2 · P / n bytes leave a rank.": (
            "gather = 2 *",
            "gather = 4 *",
        ),
        "The new weights go round once more, after the optimizer.": (
            "gather if gather_waits",
            "0.0 if gather_waits",
        ),
        "Where the first forward waits for all new weights, they hide behind nothing.": (
            "gather if gather_waits else ",
            "",
        ),
        "Where each layer waits for its own weights only, some of the gathering hides.": (
            f" if gather_waits else {_LATE}",
            "",
        ),
        "If `gather_waits`, nothing of the gathering hides; else the first forward hides some.": (
            "if gather_waits",
            "if not gather_waits",
        ),
        "Not all of it hides: a first layer can't begin without its weights, and a slow network is late.": (
            _LATE,
            "0.0",
        ),
        "Whole gathering minus whole forward: but the first layer's weights hide behind nothing.": (
            _LATE,
            "max(0.0, gather - forward)",
        ),
        "What the new weights hide behind is a forward.": (_LATE, _LATE.replace("forward", "backward")),
        "The first micro-batch's forward already needs all weights: later ones hide nothing.": (
            _LATE,
            _LATE.replace("forward", "m * forward"),
        ),
    },
    _asking_for_an_int,
)
