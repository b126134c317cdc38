"""Predictions and exercises of notebook 15, scale out, and what answers are tried with: imitated ranks in threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # what an answer may use

from lib.text import plural
from support.checks import Exercise, Guess, Tried, Verdict, cases, exact, letter
from support.checks import use as use
from support.kit.source import source_of
from support.n15.runs import Model, even_balance, every_plan, tower
from support.n15.solved import average, memory_of_rank, pipeline_step
from support.ranks import in_threads

# ---- predictions, in the notebook's order


def _fastest() -> int:
    offered = (plan for plan in every_plan(512, memory_of_rank) if plan.partitions in (1, 4, 16))
    return min(offered, key=lambda plan: plan.seconds).partitions


def _one_digit(number: Any) -> Any:
    return f"{number:.1f}" if isinstance(number, (int, float)) else number


guess_data_rank = exact(
    "the replica of rank 5",
    lambda: 5 // 4,
    _5="its number among all ranks",
    _2="that is with pipelines of 2",
    _0="that one has ranks 0 to 3",
    tried=Tried(right=1, wrong=5),
)
guess_rows = exact(
    "a micro-batch",
    lambda: 320 // 2 // 4,
    "rows",
    _80="that is with one replica",
    _160="that is a replica's share",
    _20="a replica's rows are not cut by stages",
    _320="those are all replicas' rows",
    tried=Tried(right=40, wrong=80),
)
guess_unaveraged = Guess(
    "what happens",
    lambda: "C",
    read=letter,
    said={"A": "each pipeline is complete in itself", "B": "nobody waits for what does not come"},
    tried=Tried(right="c", wrong="A"),
)
guess_bubble = exact(
    "the bubble",
    lambda: 100 * 1 / 5,
    "%",
    _25="that is idle by ideal time, (n − 1) / m",
    _0="the pipe must fill",
    tried=Tried(right=20, wrong=25),
)
guess_activations = exact(
    "the activations of rank 0",
    lambda: (16 * 32 / 16) / (8 * 32 / 8),
    "times as many",
    **{
        "_0.5": "half the layers, of twice as many micro-batches",
        "_2": "twice the micro-batches, of half the layers",
    },
    tried=Tried(right=1, wrong=0.5),
)
guess_partitions = exact(
    "the fastest number of stages",
    _fastest,
    "stages",
    _1="its all-reduce is hardly hidden",
    _16="its bubble is too large",
    _8="as fast as 4, but not asked for",
    _2="half of the all-reduce of 1 is left",
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


# ---- what the exercises have in common


def _judged(fault: Callable[[Any], str], praise: str) -> Callable[[Exercise, Any], Verdict]:
    """Make a judge: a mistake is recognised by its fault, which is that of the reader's answer."""

    def judge(exercise: Exercise, answer: Any) -> Verdict:
        if not (found := fault(answer)):
            return exercise.right(praise)
        reasons = (f" {why}" for why, wrong in exercise.mistakes.items() if fault(wrong) == found)
        return exercise.wrong(found + next((why for why in reasons if why not in found), ""))

    return judge


def _but(thing: Any) -> Callable[..., Any]:
    """Return what makes a famous mistake of a function of solved.py: old, new, old, new … are its lines otherwise."""

    def otherwise(*changes: str) -> Any:
        text = source_of(thing)
        for old, new in zip(changes[::2], changes[1::2], strict=True):
            assert old in text, f"{thing.__name__} has no {old!r}"
            text = text.replace(old, new)
        space = {"torch": torch, "nn": nn, "F": F}
        exec(text, space)
        return space[thing.__name__]

    return otherwise


_step, _mean, _rank = _but(pipeline_step), _but(average), _but(memory_of_rank)


def _raised(error: Exception, where: str, meanings: Mapping[str, str]) -> str:
    said = f"{where}: your code raised {type(error).__name__}: {error}."
    return said + next((f" {why}" for words, why in meanings.items() if words in str(error)), "")


def _away(got: Tensor, wanted: Tensor) -> str:
    """Say how a tensor differs from another one, "" if it does not."""
    if torch.allclose(got, wanted, rtol=0, atol=1e-10):
        return ""
    times = float((got * wanted).sum() / (wanted * wanted).sum())
    if torch.allclose(got, times * wanted, rtol=0, atol=1e-10):
        return f"{times:g} times"
    return f"{float((got - wanted).norm() / wanted.norm()):.2f} of its length away from"


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- exercise 1: a step of a pipeline of send and receive, on 2 and 3 imitated ranks

_OF_STEP = {
    "attribute 'chunk'": "Only the first rank is given images, and only the last one targets.",
    "implicitly created": "A rank in front has no loss: its backward begins with the gradient that it receives.",
    "modified by an inplace": "Receive every micro-batch into a tensor of its own: the graph still needs the last one.",
    "no attribute 'detach'": "There is no x.grad: nobody told autograd that the gradient of what came is wanted.",
    "a second time": "Each micro-batch has a graph of its own, and goes back once.",
    "same dtype": "Receive into float64, the type of what is sent: torch.empty(shape, dtype=torch.float64).",
    "rank 0 waits in send to rank 1, rank 1 waits in send to rank 0":
        "Both send, nobody receives: all forwards first, on the last rank too, then all backwards.",
    "waits in recv": "A rank waits for what nobody sends.",
}  # fmt: skip


def fault_of_step(answer: Any) -> str:
    """Run a tiny tower on 2 and 3 imitated ranks; say what differs first from one process, and what was sent when."""
    for n, m in ((2, 4), (2, 1), (3, 4), (2, 3)):
        where = f"{n} ranks, {plural(m, 'micro-batch', 'micro-batches')}"
        balance = even_balance(4, n)
        images, targets = _random(2 * m, 1, 8, 8, seed=1).abs(), torch.arange(2 * m) % 10
        whole = tower(2, 4)
        right = F.cross_entropy(whole(images), targets)
        right.backward()  # type: ignore[no-untyped-call]
        due = [[p.grad for p in part.parameters()] for part in _cut(whole, balance)]

        def step(dist: Any) -> Any:
            rank = dist.get_rank()
            part = _cut(tower(2, 4), balance)[rank]  # noqa: B023
            if m == 1:  # noqa: B023
                for p in part.parameters():  # what another step has left
                    p.grad = torch.ones_like(p)
            before, behind = rank - 1 if rank else None, rank + 1 if rank + 1 < n else None  # noqa: B023
            given = (images if before is None else None, targets if behind is None else None)  # noqa: B023
            loss = answer(part, *given, m, before, behind, (2, 4), dist)  # noqa: B023
            return loss, [None if p.grad is None else p.grad - float(m == 1) for p in part.parameters()]  # noqa: B023

        try:
            seen, world = in_threads(step, n)
        except Exception as error:
            return _raised(error, where, _OF_STEP)
        for rank, (_, gradients) in enumerate(seen):
            if missing := sum(got is None for got in gradients):
                return f"{where}: {missing} parameters of rank {rank} have no gradient."
            for got, wanted in zip(gradients, due[rank], strict=True):
                if wanted is not None and (how := _away(got, wanted)):
                    return f"{where}: a gradient of rank {rank} is {how} that of one process."
        loss = seen[-1][0]
        if not isinstance(loss, (float, Tensor)) or abs(float(loss) - right.item()) > 1e-10:
            return f"{where}: the last rank returned {loss!r}; the batch's loss is {right.item():.6f}."
        if (other := next((loss for loss, _ in seen[:-1] if loss is not None), None)) is not None:
            return f"{where}: a rank that is not the last one returned {other!r}, not None."
        for a, b in ((j, j + 1) for j in range(n - 1)):
            counts = world.posted.count((a, b)), world.posted.count((b, a))
            if counts != (m, m):
                return f"{where}: rank {a} sent {counts[0]} messages to rank {b}, which sent {counts[1]} back; not {m}."
        if any(world.unwaited.values()):
            return f"{where}: {next(filter(None, world.unwaited.values()))[0]} is never waited for."
        ahead = [pair for pair in world.posted if pair in ((0, 1), (1, 0))].index((1, 0))
        if ahead < min(2, m):
            return (
                f"{where}: right gradients, but rank 0 sends its second activation after the first gradient."
            )
    return ""


def _cut(model: nn.Sequential, balance: list[int]) -> list[nn.Module]:
    return [model[sum(balance[:j]) : sum(balance[: j + 1])] for j in range(len(balance))]


_EMPTY = "torch.empty(shape, dtype=torch.float64)"
_BACK = "y.backward(gradient)"

check_pipeline_step = Exercise(
    "pipeline_step",
    reference=pipeline_step,
    judge=_judged(fault_of_step, "on 2 and 3 ranks loss and gradients are those of one process; rank 0 runs ahead."),
    mistakes={
        "Each loss is a mean over its micro-batch; the batch's is the mean of m such means.": _step(" / m\n", "\n"),
        "That is divided by m twice.": _step("y.backward()", "(y / m).backward()"),
        "Who sends x.grad must ask autograd for it, before the forward.": _step("            x.requires_grad_()\n", ""),
        "That is no pipeline: one micro-batch is on its way, and one rank works at a time. All forwards first.":
            _step("        kept.append((x, y))\n    for x, y in kept:\n", ""),
        "Every micro-batch is sent and gone back through by itself: cut images and targets into m parts.":
            _step("range(m)", "range(1)", ".chunk(m)[i]", "", " / m", "",
                  "torch.empty(shape,", "torch.empty((shape[0] * m, shape[1]),"),
        "Only the last micro-batch goes back: keep all graphs.": _step("for x, y in kept:", "for x, y in kept[-1:]:"),
        "The ranks must go back through the micro-batches in the same order: a message has no name, the first one that "
        "is sent is the first one received.":
            _step("for x, y in kept:", "for x, y in kept if behind is None else kept[::-1]:"),
        "What came is the gradient of y; the sum of y is another loss.": _step(_BACK, "y.sum().backward()"),
        "Without the gradient of y, backward has nothing to begin with.": _step(_BACK, "y.backward()"),
        "The rank before needs the gradient of what it has sent.": _step("send(x.grad", "send(x.detach()"),
        "The loss of the batch is that of all micro-batches together.": _step("total += y.item()", "total = y.item()"),
        "One buffer for all: the next message overwrites what the graph of the last one has saved.":
            _step(_EMPTY, "buffer", "total = [], 0.0", f"total, buffer = [], 0.0, {_EMPTY}"),
        "A send that is only begun must be waited for, before the step ends.": _step("send(y", "isend(y"),
        "A gradient travels over every border but the first rank's own: it, too, must be sent.":
            _step("        if before is not None:\n            dist.send(x.grad, before)\n", ""),
        "Images and targets of micro-batch i belong together.": _step("images.chunk(m)[i]", "images.chunk(m)[-1 - i]"),
        "Row k of the images belongs to row k of the targets.": _step("images.chunk", "images.flip(0).chunk"),
        "all forwards first, on the last rank too, then all backwards.":
            _step("y.item()\n", "y.item(); y.backward(); dist.send(x.grad, before)\n",
                 "for x, y in kept:", "for x, y in kept if behind is not None else []:"),
        "Receive into float64, the type of what is sent": _step(_EMPTY, "torch.empty(shape)"),
        "Only the last rank knows the loss, and returns it.": _step(" if behind is None else None", ""),
        "To empty gradients is the caller's task: who adds up those of several batches would lose them.":
            _step("    kept, total = [], 0.0", "    part.zero_grad()\n    kept, total = [], 0.0"),
        "The last rank has to return the loss.": _step("return total if behind is None else None", ""),
    },
)  # fmt: skip


# ---- exercise 2: the mean of gradients over the replicas of a stage

COLUMN = "the ranks that hold this stage"


class _Job:
    """What `dist` is for a rank of a job with two stages: a collective of all ranks would not even fit in size."""

    def __init__(self, dist: Any) -> None:
        self._dist = dist

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dist, name)

    def get_world_size(self, group: Any = None) -> int:
        return int(self._dist.get_world_size()) * (1 if group == COLUMN else 2)

    def all_reduce(self, tensor: Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
        if group != COLUMN:
            raise ValueError("all_reduce without group=group is over all ranks, of other stages too")
        return self._dist.all_reduce(tensor, *(() if op is None else (op,)), async_op=async_op)


_OF_AVERAGE = {
    "'NoneType' object": "A parameter may have no gradient (a frozen layer): leave it out.",
    "expected Tensor as element": "A parameter may have no gradient (a frozen layer): leave it out.",
    "non-empty list": "`parameters` is an iterator, which can be read once: read it into a list.",
}


def fault_of_average(answer: Any) -> str:
    """Average on 1 to 3 replicas; one of the parameters has no gradient."""
    for replicas in (3, 2, 1):
        where = plural(replicas, "replica")

        def rank(dist: Any) -> Any:
            own = [nn.Parameter(_random(*shape)) for shape in ((3, 2), (4,), (2, 2), (1,))]
            for k, parameter in enumerate(own):
                parameter.grad = None if k == 1 else _random(*parameter.shape, seed=10 * dist.get_rank() + k)
            answer(iter(own), replicas, COLUMN, _Job(dist))  # noqa: B023
            return own

        try:
            seen, world = in_threads(rank, replicas)
        except Exception as error:
            return _raised(error, where, _OF_AVERAGE)
        if any(world.unwaited.values()):
            return f"{where}: {next(filter(None, world.unwaited.values()))[0]} is never waited for."
        calls = sum(what == "all_reduce" for _, what in world.events) // replicas
        for r, own in enumerate(seen):
            for k, parameter in enumerate(own):
                parts = [_random(*parameter.shape, seed=10 * q + k) for q in range(replicas)]
                mean = torch.stack(parts).mean(dim=0)
                got, name = parameter.grad, f"{where}: gradient {k} of replica {r}"
                if not torch.equal(parameter.detach(), _random(*parameter.shape)):
                    return f"{where}: parameter {k} itself has changed; the mean is of gradients."
                if k == 1:
                    if got is not None:
                        return f"{name} was None, and now is {got.flatten().tolist()[:2]} …"
                    continue
                if got is None or got.shape != mean.shape:
                    return f"{name} has the shape {None if got is None else tuple(got.shape)}, not {tuple(mean.shape)}."
                if how := _away(got, mean):
                    if torch.equal(got, parts[r]):
                        return f"{name} is still this replica's own, after {plural(calls, 'all-reduce')}."
                    return f"{name} is {how} the mean."
        if calls > 1:
            return f"{where}: right means, but {calls} all-reduces on each rank: {calls} latencies, not one."
    return ""


_FLAT = "torch.cat([gradient.flatten() for gradient in gradients])"

check_average = Exercise(
    "average",
    reference=average,
    judge=_judged(fault_of_average, "on 1 to 3 replicas every gradient is the mean, and one that is None stays so."),
    mistakes={
        "all_reduce adds up; a mean is divided.": _mean("flat / replicas", "flat"),
        "The world size also counts the ranks of other stages.": _mean("/ replicas", "/ dist.get_world_size()"),
        "That is divided twice.": _mean("flat / replicas", "flat / replicas / replicas"),
        "The group is the column of the mesh: the ranks that hold the same stage.": _mean(", group=group", ""),
        "copy_ writes into a gradient, = only names another tensor.": _mean("gradient.copy_(", "gradient = ("),
        "Nothing is sent: each replica keeps its own.": lambda parameters, replicas, group, dist: list(parameters),
        "Put all gradients into one tensor, and call all_reduce once.":
            lambda parameters, replicas, group, dist: [
                (dist.all_reduce(p.grad, group=group), p.grad.div_(replicas)) for p in parameters if p.grad is not None
            ],
        "Flattened in one order, cut in another.": _mean(_FLAT, _FLAT.replace("in gradients]", "in gradients[::-1]]")),
        "What is averaged are gradients; weights follow, since both replicas began with the same.":
            lambda parameters, replicas, group, dist: [
                dist.all_reduce(parameter.data, group=group) for parameter in parameters
            ],
    },
)  # fmt: skip


# ---- exercise 3: bytes of the fullest rank, for two models

_SMALL, _LARGE = Model(), Model(70e9, 80, 8192, 8192)


def _bytes(got: Any, expected: float, case: Mapping[str, Any]) -> str:
    number = isinstance(got, (int, float))
    if number and math.isclose(got, expected, rel_tol=1e-9):
        return ""
    return f"expected {expected:,.0f} bytes, got {f'{got:,.0f}' if number else repr(got)}"


_WORKING = "32 * unit if recompute else 0"

check_memory = Exercise(
    "memory_of_rank",
    reference=memory_of_rank,
    cases=cases("model n held shards recompute", [
        (model, n, held, shards, recompute) for shards in (1, 4) for recompute in (False, True)
        for model, n, held in ((_SMALL, 1, 1), (_SMALL, 8, 8), (_SMALL, 8, 1.5), (_LARGE, 12, 12))]),
    fault=_bytes,
    praise="the bytes of a rank in {count} cases",
    mistakes={
        "Rank 0 holds `held` micro-batches at once, not one.": _rank("held * kept", "kept"),
        "Only the layers / n layers of a rank keep activations on it.": _rank("model.layers / n", "model.layers"),
        "A rank has 1 / n of the parameters.": _rank("model.parameters / n", "model.parameters"),
        "Count L / n layers, a fraction where n does not divide L.": _rank("model.layers / n", "(model.layers // n)"),
        "`held` says how many micro-batches; it is n only on rank 0 under 1F1B.": _rank("held * kept", "n * kept"),
        "Weight and gradient both stay whole, 2 + 2 bytes.": _rank("4 + 12 / shards", "2 + 14 / shards"),
        "One layer of one micro-batch is at work at a time.": _rank(_WORKING, "held * " + _WORKING),
        "The layer's input is kept already, true, but we count all 32.": _rank(_WORKING, "30" + _WORKING[2:]),
        "Master weights and moments are dealt to `shards` replicas.": _rank("12 / shards", "12"),
        "Only 12 bytes are dealt; bf16 weights and gradients, 2 + 2, are not.": _rank("4 + 12 / shards", "16 / shards"),
        "Adam keeps 3 × 4 bytes per parameter: master weight and two moments.": _rank("12 / shards", "8 / shards"),
        "The layer that is recomputed keeps all of its activations for a while.": _rank(_WORKING, "0"),
        "Without recomputing no layer comes on top: what is kept is counted already.": _rank(_WORKING, "32 * unit"),
        "One layer is at work at a time, not all.": _rank("32 * unit if", "32 * unit * model.layers / n if"),
        "Recomputing begins with each layer's input, which is kept: 2 bytes.":
            _rank("2 if recompute", "0 if recompute"),
        "Activations are each replica's own: they are not dealt.": _rank("layers / n", "layers / n / shards"),
        "2 bytes with recomputing, 32 without: not the other way round.":
            _rank("2 if recompute else 32", "32 if recompute else 2"),
        "An activation has `hidden` numbers per token.": _rank("model.tokens * model.hidden", "model.tokens"),
    },
)  # fmt: skip
