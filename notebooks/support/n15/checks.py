"""Predictions and exercises of notebook 15, scale out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from support.kit.exact import exact_number
from support.kit.exercise import Exercise, cases
from support.kit.exercise import use as use
from support.kit.guess import Guess, Tried, letter
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.n15.plans import Model, every_plan
from support.n15.solved import average, memory_of_rank, pipeline_step
from support.n15.trials import fault_of_average, fault_of_step

# ---- predictions, in the notebook's order


def _fastest() -> int:
    offered = (plan for plan in every_plan(512, memory_of_rank) if plan.partitions in (1, 4, 16))
    return min(offered, key=lambda plan: plan.seconds).partitions


def _one_digit(number: Any) -> Any:
    return f"{number:.1f}" if isinstance(number, (int, float)) else number


guess_data_rank = exact_number(
    "the replica of rank 5",
    lambda: 5 // 4,
    said={
        5: "its number among all ranks",
        2: "that is with pipelines of 2",
        0: "that one has ranks 0 to 3",
    },
    tried=Tried(right=1, wrong=5),
)
guess_rows = exact_number(
    "a micro-batch",
    lambda: 320 // 2 // 4,
    "rows",
    said={
        80: "that is with one replica",
        160: "that is a replica's share",
        20: "a replica's rows are not cut by stages",
        320: "those are all replicas' rows",
    },
    tried=Tried(right=40, wrong=80),
)
guess_unaveraged = Guess(
    "what happens",
    lambda: "C",
    read=letter,
    said={"A": "each pipeline is complete in itself", "B": "nobody waits for what does not come"},
    tried=Tried(right="c", wrong="A"),
)
guess_bubble = exact_number(
    "the bubble",
    lambda: 100 * 1 / 5,
    "%",
    said={
        25: "that is idle by ideal time, (n − 1) / m",
        0: "the pipe must fill",
    },
    tried=Tried(right=20, wrong=25),
)
guess_activations = exact_number(
    "the activations of rank 0",
    lambda: (16 * 32 / 16) / (8 * 32 / 8),
    "times as many",
    said={
        0.5: "half the layers, of twice as many micro-batches",
        2: "twice the micro-batches, of half the layers",
    },
    tried=Tried(right=1, wrong=0.5),
)
guess_partitions = exact_number(
    "the fastest number of stages",
    _fastest,
    "stages",
    said={
        1: "its all-reduce is hardly hidden",
        16: "its bubble is too large",
        8: "as fast as 4, but not asked for",
        2: "half of the all-reduce of 1 is left",
    },
    tried=Tried(right=4, wrong=1),
)
guess_loss = Guess(
    "the loss after 24 steps, about",
    lambda: _one_digit(math.log(10)),
    read=_one_digit,
    said={
        "2.7": "that of the first weights, which training does lower",
        "0.0": "nothing can be told from a stranger's image",
        **dict.fromkeys(("0.4", "0.5"), "as if the pairs fitted: the digits are other images'"),
    },
    tried=Tried(right=2.3, wrong=0.0),
)


# ---- exercise 1: a step of a pipeline of send and receive

_EMPTY = "torch.empty(shape, dtype=torch.float64)"
_BACK = "y.backward(gradient)"
_IN_ORDER = (
    "The ranks must go back through the micro-batches in the same order: a message has no name, the first one that "
    "is sent is the first one received."
)

check_pipeline_step = Exercise(
    "pipeline_step",
    reference=pipeline_step,
    judge=judged(
        fault_of_step, "on 2 and 3 ranks loss and gradients are those of one process; rank 0 runs ahead."
    ),
    mistakes=famous(
        pipeline_step,
        {
            "Each loss is a mean over its micro-batch; the batch's is the mean of m such means.": (
                " / m\n",
                "\n",
            ),
            "That is divided by m twice.": ("y.backward()", "(y / m).backward()"),
            "Who sends x.grad must ask autograd for it, before the forward.": (
                "            x.requires_grad_()\n",
                "",
            ),
            "That is no pipeline: one micro-batch is on its way, and one rank works at a time. All forwards first.": (
                "        kept.append((x, y))\n    for x, y in kept:\n",
                "",
            ),
            "Every micro-batch is sent and gone back through by itself: cut images and targets into m parts.": (
                "range(m)",
                "range(1)",
                ".chunk(m)[i]",
                "",
                " / m",
                "",
                "torch.empty(shape,",
                "torch.empty((shape[0] * m, shape[1]),",
            ),
            "Only the last micro-batch goes back: keep all graphs.": (
                "for x, y in kept:",
                "for x, y in kept[-1:]:",
            ),
            _IN_ORDER: (
                "for x, y in kept:",
                "for x, y in kept if behind is None else kept[::-1]:",
            ),
            "What came is the gradient of y; the sum of y is another loss.": (_BACK, "y.sum().backward()"),
            "Without the gradient of y, backward has nothing to begin with.": (_BACK, "y.backward()"),
            "The rank before needs the gradient of what it has sent.": ("send(x.grad", "send(x.detach()"),
            "The loss of the batch is that of all micro-batches together.": (
                "total += y.item()",
                "total = y.item()",
            ),
            "One buffer for all: the next message overwrites what the graph of the last one has saved.": (
                _EMPTY,
                "buffer",
                "total = [], 0.0",
                f"total, buffer = [], 0.0, {_EMPTY}",
            ),
            "A send that is only begun must be waited for, before the step ends.": ("send(y", "isend(y"),
            "A gradient travels over every border but the first rank's own: it, too, must be sent.": (
                "        if before is not None:\n            dist.send(x.grad, before)\n",
                "",
            ),
            "Images and targets of micro-batch i belong together.": (
                "images.chunk(m)[i]",
                "images.chunk(m)[-1 - i]",
            ),
            "Row k of the images belongs to row k of the targets.": ("images.chunk", "images.flip(0).chunk"),
            "all forwards first, on the last rank too, then all backwards.": (
                "y.item()\n",
                "y.item(); y.backward(); dist.send(x.grad, before)\n",
                "for x, y in kept:",
                "for x, y in kept if behind is not None else []:",
            ),
            "Receive into float64, the type of what is sent": (_EMPTY, "torch.empty(shape)"),
            "Only the last rank knows the loss, and returns it.": (" if behind is None else None", ""),
            "To empty gradients is the caller's task: who adds up those of several batches would lose them.": (
                "    kept, total = [], 0.0",
                "    part.zero_grad()\n    kept, total = [], 0.0",
            ),
            "The last rank has to return the loss.": ("return total if behind is None else None", ""),
        },
    ),
)


# ---- exercise 2: the mean of gradients over the replicas of a stage

_FLAT = "torch.cat([gradient.flatten() for gradient in gradients])"


def _nothing_sent(parameters: Any, replicas: int, group: Any, dist: Any) -> None:
    list(parameters)


def _one_by_one(parameters: Any, replicas: int, group: Any, dist: Any) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad.div_(replicas)


def _of_weights(parameters: Any, replicas: int, group: Any, dist: Any) -> None:
    for parameter in parameters:
        dist.all_reduce(parameter.data, group=group)


check_average = Exercise(
    "average",
    reference=average,
    judge=judged(
        fault_of_average, "on 1 to 3 replicas every gradient is the mean, and one that is None stays so."
    ),
    mistakes={
        **famous(
            average,
            {
                "all_reduce adds up; a mean is divided.": ("flat / replicas", "flat"),
                "The world size also counts the ranks of other stages.": (
                    "/ replicas",
                    "/ dist.get_world_size()",
                ),
                "That is divided twice.": ("flat / replicas", "flat / replicas / replicas"),
                "The group is the column of the mesh: the ranks that hold the same stage.": (
                    ", group=group",
                    "",
                ),
                "copy_ writes into a gradient, = only names another tensor.": (
                    "gradient.copy_(",
                    "gradient = (",
                ),
            },
        ),
        "Nothing is sent: each replica keeps its own.": _nothing_sent,
        "Put all gradients into one tensor, and call all_reduce once.": _one_by_one,
        **famous(
            average,
            {
                "Flattened in one order, cut in another.": (
                    _FLAT,
                    _FLAT.replace("in gradients]", "in gradients[::-1]]"),
                ),
            },
        ),
        "What is averaged are gradients; weights follow, since both replicas began with the same.": _of_weights,
    },
)


# ---- exercise 3: bytes of the fullest rank, for two models

_SMALL = Model()
_LARGE = Model(70e9, 80, 8192, 8192)


def _bytes(got: Any, expected: float, case: Mapping[str, Any]) -> str:
    if not isinstance(got, (int, float)):
        return f"expected {expected:,.0f} bytes, got {got!r}"
    if math.isclose(got, expected, rel_tol=1e-9):
        return ""
    return f"expected {expected:,.0f} bytes, got {got:,.0f}"


_WORKING = "32 * unit if recompute else 0"

_MEMORY_CASES = cases(
    "model n held shards recompute",
    [
        (model, n, held, shards, recompute)
        for shards in (1, 4)
        for recompute in (False, True)
        for model, n, held in ((_SMALL, 1, 1), (_SMALL, 8, 8), (_SMALL, 8, 1.5), (_LARGE, 12, 12))
    ],
)

check_memory = Exercise(
    "memory_of_rank",
    reference=memory_of_rank,
    cases=_MEMORY_CASES,
    fault=_bytes,
    praise="the bytes of a rank in {count} cases",
    mistakes=famous(
        memory_of_rank,
        {
            "Rank 0 holds `held` micro-batches at once, not one.": ("held * kept", "kept"),
            "Only the layers / n layers of a rank keep activations on it.": (
                "model.layers / n",
                "model.layers",
            ),
            "A rank has 1 / n of the parameters.": ("model.parameters / n", "model.parameters"),
            "Count L / n layers, a fraction where n does not divide L.": (
                "model.layers / n",
                "(model.layers // n)",
            ),
            "`held` says how many micro-batches; it is n only on rank 0 under 1F1B.": (
                "held * kept",
                "n * kept",
            ),
            "Weight and gradient both stay whole, 2 + 2 bytes.": ("4 + 12 / shards", "2 + 14 / shards"),
            "One layer of one micro-batch is at work at a time.": (_WORKING, "held * " + _WORKING),
            "The layer's input is kept already, true, but we count all 32.": (_WORKING, "30" + _WORKING[2:]),
            "Master weights and moments are dealt to `shards` replicas.": ("12 / shards", "12"),
            "Only 12 bytes are dealt; bf16 weights and gradients, 2 + 2, are not.": (
                "4 + 12 / shards",
                "16 / shards",
            ),
            "Adam keeps 3 × 4 bytes per parameter: master weight and two moments.": (
                "12 / shards",
                "8 / shards",
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
            "Activations are each replica's own: they are not dealt.": ("layers / n", "layers / n / shards"),
            "2 bytes with recomputing, 32 without: not the other way round.": (
                "2 if recompute else 32",
                "32 if recompute else 2",
            ),
            "An activation has `hidden` numbers per token.": ("model.tokens * model.hidden", "model.tokens"),
        },
    ),
)
