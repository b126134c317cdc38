"""Exercises of notebook 15, scale out."""

from __future__ import annotations

from typing import Any

import torch

from support.kit.exercise import Exercise
from support.kit.exercise import use as use
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.n15.cost_checks import check_exposed as check_exposed
from support.n15.cost_checks import check_memory as check_memory
from support.n15.cost_checks import check_step_seconds as check_step_seconds
from support.n15.group_trials import fault_of_average, fault_of_clip
from support.n15.guesses import guess_any_order as guess_any_order
from support.n15.guesses import guess_clipped as guess_clipped
from support.n15.guesses import guess_gathers as guess_gathers
from support.n15.guesses import guess_loss as guess_loss
from support.n15.guesses import guess_scaled as guess_scaled
from support.n15.guesses import guess_stages as guess_stages
from support.n15.guesses import guess_two_sequences as guess_two_sequences
from support.n15.guesses import guess_wrong_stage as guess_wrong_stage
from support.n15.solved import average, clip, follow, pipeline_step
from support.n15.tiny_job import NO_GRADIENT
from support.n15.trials import fault_of_follow, fault_of_step

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
        fault_of_step, "on 2 to 4 ranks loss and gradients are those of one process, in 2 (m + n - 1) ticks."
    ),
    mistakes=famous(
        pipeline_step,
        {
            "Each loss is a mean over its micro-batch; the batch's is the mean of m such means.": (
                " / m\n",
                "\n",
            ),
            "That is divided by m twice.": ("y.backward()", "(y / m).backward()"),
            NO_GRADIENT: (
                "            x.requires_grad_()\n",
                "",
            ),
            "That is no pipeline: one micro-batch is on its way. All forwards first.": (
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
            "Backward begins with the loss, one number, or with the gradient of y that was received.": (
                _BACK,
                "y.backward()",
            ),
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
            "A gradient travels back over every border: it, too, must be sent.": (
                "        if before is not None:\n            dist.send(x.grad, before)\n",
                "",
            ),
            "Images and targets of micro-batch i belong together.": (
                "images.chunk(m)[i]",
                "images.chunk(m)[-1 - i]",
            ),
            "Row k of the images belongs to row k of the targets.": ("images.chunk", "images.flip(0).chunk"),
            "All forwards first, on the last rank too, then all backwards.": (
                "y.item()\n",
                "y.item(); y.backward(); dist.send(x.grad, before)\n",
                "for x, y in kept:",
                "for x, y in kept if behind is not None else []:",
            ),
            "Receive into float64, the type of what is sent.": (_EMPTY, "torch.empty(shape)"),
            "Only the last rank knows the loss, and returns it.": (" if behind is None else None", ""),
            "To empty gradients is the caller's task: who adds up those of several batches would lose them.": (
                "    kept, total = [], 0.0",
                "    part.zero_grad()\n    kept, total = [], 0.0",
            ),
            "The last rank has to return the loss.": ("return total if behind is None else None", ""),
            "Gradients of earlier steps are divided as well: divide what is added, not the sums.": (
                " / m\n",
                "\n",
                "    return total if",
                "    for p in part.parameters():\n        p.grad /= m\n    return total / m if",
            ),
            "The last rank, too, goes forward with every micro-batch before it goes back.": (
                "y.item()\n",
                "y.item(); y.backward()\n",
                "            y.backward()\n        else",
                "            pass\n        else",
            ),
            "Each forward is done twice: with dropout the second one gives other numbers.": (
                _BACK,
                "part(x).backward(gradient)",
            ),
            "item() gives a number; a sum of losses is a tensor with the graphs of all.": ("y.item()", "y"),
            "It is no pipeline on the way there: the next rank begins only when all forwards before it are done.": (
                "            dist.send(y.detach(), behind)\n",
                "            pass\n",
                "    for x, y in kept:\n",
                "    for _, y in kept if behind is not None else []:\n        dist.send(y.detach(), behind)\n"
                "    for x, y in kept:\n",
            ),
            "That is a pipeline one way only: no rank goes back before the one behind has done all its backwards.": (
                "    for x, y in kept:\n",
                "    back = []\n    for x, y in kept:\n",
                "            dist.send(x.grad, before)\n",
                "            back.append(x.grad)\n    for gradient in back:\n        dist.send(gradient, before)\n",
            ),
        },
    ),
)


# ---- exercise 2: any order of forwards and backwards

_ACTIVATION = "begun.append(dist.isend(y.detach(), behind))"
_GRADIENT = "begun.append(dist.isend(x.grad, before))"
_WAITS = "    for handle in begun:\n        handle.wait()\n"

check_follow = Exercise(
    "follow",
    reference=follow,
    judge=judged(
        fault_of_follow, "eleven orders are followed, five of them random, and give what one process gives."
    ),
    mistakes=famous(
        follow,
        {
            "A send returns only when it is received: with both sides sending, nobody comes to receive.": (
                _ACTIVATION,
                "dist.send(y.detach(), behind)",
                _GRADIENT,
                "dist.send(x.grad, before)",
            ),
            "Whoever waits for a send before the next action might as well have called send.": (
                _ACTIVATION,
                "dist.isend(y.detach(), behind).wait()",
                _GRADIENT,
                "dist.isend(x.grad, before).wait()",
                "for handle in begun",
                "for handle in []",
            ),
            "What has only begun must be waited for before the step ends.": (_WAITS, ""),
            "Gradients are messages, too: each rank has to wait for its sends.": (
                _GRADIENT,
                "dist.isend(x.grad, before)",
            ),
            "Until a send is done its message is read from the tensor: nothing may be written there.": (
                "begun, total = {}, [], 0.0",
                "begun, total, letter = {}, [], 0.0, torch.empty(shape, dtype=torch.float64)",
                _ACTIVATION,
                "begun.append(dist.isend(letter.copy_(y.detach()), behind))",
            ),
            "The list says which micro-batch goes back: the last one that came is another.": (
                "kept.pop(i)",
                "kept.popitem()[1]",
            ),
            "Each loss is a mean over its micro-batch; the batch's is the mean of m such means.": (
                " / m\n",
                "\n",
            ),
            NO_GRADIENT: (
                "x.requires_grad_(before is not None)",
                "x",
            ),
            "The last rank has to return the loss.": ("return total if behind is None else None", ""),
            "Only the last rank knows the loss, and returns it.": (
                "return total if behind is None else None",
                "return total",
            ),
            "That is GPipe's order, whatever the list says.": (
                "in actions:",
                'in sorted(actions, key=lambda a: (a[0] == "B", a[1])):',
            ),
            "The list says which micro-batch goes back; it need not be the oldest.": (
                "kept.pop(i)",
                "kept.pop(next(iter(kept)))",
            ),
            "Gradients of earlier steps are divided as well: divide what is added, not the sums.": (
                " / m\n",
                "\n",
                "    return total if",
                "    for p in part.parameters():\n        p.grad /= m\n    return total / m if",
            ),
            "item() gives a number; a sum of losses is a tensor with the graphs of all.": ("y.item()", "y"),
        },
    ),
)


# ---- exercise 3: the mean of gradients over the replicas of a stage

_FLAT = "torch.cat([gradient.flatten() for gradient in gradients])"
_LOST = "Of a gradient that is not contiguous reshape, flatten and contiguous give a copy, and what is written is lost."


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
        fault_of_average,
        "on 1 to 3 replicas every gradient is the mean, in its type, and one that is None stays so.",
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
                "These gradients are of float64: float32 loses half of their digits.": (
                    _FLAT,
                    _FLAT + ".float()",
                ),
                "One gradient's type is not that of all: the others lose their digits.": (
                    _FLAT,
                    _FLAT.replace("flatten()", "flatten().to(gradients[0].dtype)"),
                ),
                _LOST: (
                    "gradient.copy_(mean.view_as(gradient))",
                    "gradient.reshape(-1).copy_(mean)",
                ),
            },
        ),
        "What is averaged are gradients; weights follow, since all replicas began with the same.": _of_weights,
    },
)


# ---- exercise 7: the norm over the stages


def _own_norm(parameters: Any, max_norm: float, group: Any, dist: Any) -> float:
    own = list(parameters)
    return float(torch.nn.utils.clip_grad_norm_(own, max_norm))


_SQUARES = "        squares += gradient.pow(2).sum()\n"
_SUM = "    dist.all_reduce(squares, group=group)\n"

check_clip = Exercise(
    "clip",
    reference=clip,
    judge=judged(
        fault_of_clip, "on 1 to 3 stages the gradients and the norm are torch's for the whole model."
    ),
    mistakes={
        "It is shortened by the norm of its own stage only.": _own_norm,
        **famous(
            clip,
            {
                "Norms don't add up: the squares do.": (
                    _SUM,
                    "    squares = squares.sqrt()\n" + _SUM + "    squares = squares.pow(2)\n",
                ),
                "Lengths of parameters don't add up: their squares do.": (
                    "gradient.pow(2).sum()",
                    "gradient.norm()",
                    "squares.sqrt().item()",
                    "squares.item()",
                ),
                "The root comes after the sum.": ("squares.sqrt()", "squares"),
                "The group is the pipeline of this rank: others have other parts, or the same once more.": (
                    ", group=group",
                    "",
                ),
                "The sum of squares is no mean: nothing is to be divided.": (
                    "squares.sqrt()",
                    "(squares / dist.get_world_size(group)).sqrt()",
                ),
                "Gradients that are short enough stay as they are.": ("if norm > max_norm:", "if norm > 0:"),
                "Nothing can be divided by a norm of zero.": (
                    "    if norm > max_norm:\n        for gradient in gradients:\n"
                    "            gradient.mul_(max_norm / norm)\n",
                    "    for gradient in gradients:\n"
                    "        gradient.mul_((max_norm / squares.sqrt()).clamp(max=1.0) * squares / squares)\n",
                ),
                "A stage that has nothing to add must take part all the same.": (
                    _SUM,
                    "    if not gradients:\n        return 0.0\n" + _SUM,
                ),
                "The factor is max_norm / norm.": ("gradient.mul_(max_norm / norm)", "gradient.div_(norm)"),
                "What is cut is the length of the whole, not each number.": (
                    "gradient.mul_(max_norm / norm)",
                    "gradient.clamp_(-max_norm, max_norm)",
                ),
                "Each parameter was clipped by itself.": (
                    "    if norm > max_norm:\n        for gradient in gradients:\n"
                    "            gradient.mul_(max_norm / norm)\n",
                    "    for gradient in gradients:\n"
                    "        gradient.mul_(min(1.0, max_norm / max(1e-12, gradient.norm().item())))\n",
                ),
                "This gradient is as long as before.": ("gradient.mul_(", "gradient.mul("),
                _LOST: ("gradient.mul_(", "gradient.reshape(-1).mul_("),
                "The norm is to be returned: that is the number that people log.": (
                    "    return norm",
                    "    pass",
                ),
                "What is returned is the norm before clipping.": (
                    "return norm",
                    "return min(norm, max_norm)",
                ),
            },
        ),
    },
)
