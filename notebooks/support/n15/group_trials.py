"""What `average` and `clip` are tried with: imitated ranks of one column, or of one pipeline, of a larger job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lib.text import plural
from support.kit.judged import Fault
from support.kit.raised import in_case
from support.n15.sets import fault_of_names, with_sets_in_another_order
from support.n15.tiny_job import away_from, never_waited_for, random_tensor
from support.ranks import in_threads

COLUMN = "the ranks that hold this stage"
ALONG = "the ranks of this pipeline"


class InALargerJob:
    """What `dist` is for a rank of a larger job: a collective of all its ranks would not even fit in size.

    others: how many times as many ranks the world has as this group.
    """

    def __init__(self, dist: Any, group: str, others: int = 2) -> None:
        self._dist = dist
        self._group = group
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dist, name)

    def get_world_size(self, group: Any = None) -> int:
        """Return how many ranks this group has, or without a group the whole job."""
        return int(self._dist.get_world_size()) * (1 if group == self._group else self._others)

    def all_reduce(self, tensor: Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
        """Add up over this group; over all ranks of the job it raises."""
        if group != self._group:
            raise ValueError("all_reduce without group=group is over all ranks of the job")
        return self._dist.all_reduce(tensor, *(() if op is None else (op,)), async_op=async_op)


class _ReadOnce:
    """What `part.parameters()` gives, an iterator that can be read once; it notes who asks again at its end."""

    def __init__(self, own: Iterable[nn.Parameter]) -> None:
        self._rest = iter(own)
        self._ended = False
        self.again = False

    def __iter__(self) -> _ReadOnce:
        self.again = self.again or self._ended
        return self

    def __next__(self) -> nn.Parameter:
        for parameter in self._rest:
            return parameter
        self._ended = True
        raise StopIteration


_NONE = "A gradient may be None, and all_reduce returns None."
_NO_ROW = "A gradient need not be contiguous, as that of a transposed weight: a view of it as one row does not exist."
_EMPTY_BY_NOW = "`parameters` is an iterator: whoever reads it a second time finds nothing."


# ---- exercise 3: the mean over the replicas of a stage

_OF_AVERAGE = {
    "'NoneType' object": _NONE,
    "but got NoneType": "A parameter may have no gradient: leave it out.",
    "view size is not compatible": _NO_ROW,
}

_SETS = "Sets and hashes have another order in each process: these calls don't meet."
_ONLY_ONCE = "No gradient was found: `parameters` is an iterator, which can be read once."

#: How far a mean of numbers of a type may be off.
_WITHIN = {torch.float64: 1e-10, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
_SHAPES = ((3, 2), (4,), (), (2, 2))


@dataclass(frozen=True)
class _Stage:
    """A stage that is averaged: its name, the types of its parameters, which have no gradient, whether one is turned.

    turned: the first parameter is a transposed weight, and its gradient, as autograd makes it, lies as it does.
    """

    name: str = ""
    types: tuple[torch.dtype, ...] = (torch.float64,) * len(_SHAPES)
    without: tuple[int, ...] = (1,)
    turned: bool = False

    def parameter(self, k: int) -> Tensor:
        return self._laid(k, random_tensor(*_SHAPES[k]))

    def gradient(self, rank: int, k: int) -> Tensor | None:
        if k in self.without:
            return None
        values = random_tensor(*_SHAPES[k], seed=10 * rank + k)
        zeros = rank == 1 and k == 2  # they count: those of another replica are none
        return self._laid(k, 0 * values if zeros else values)

    def mean(self, replicas: int, k: int) -> Tensor:
        of_ranks = (self.gradient(rank, k) for rank in range(replicas))
        return torch.stack([each for each in of_ranks if each is not None]).mean(dim=0)

    def calls(self) -> int:
        """Return how many all-reduces are enough: one for each type."""
        return len({kind for k, kind in enumerate(self.types) if k not in self.without})

    def _laid(self, k: int, values: Tensor) -> Tensor:
        values = values.to(self.types[k])
        return values.t().contiguous().t() if self.turned and k == 0 else values


_STAGES = (
    _Stage(),
    _Stage(" of a stage with a transposed weight", turned=True),
    _Stage(
        " of a stage in float32 and float64",
        types=(torch.float32, torch.float64, torch.float64, torch.float32),
    ),
    _Stage(
        " of a stage in bfloat16 and float16",
        types=(torch.bfloat16, torch.float16, torch.float16, torch.bfloat16),
    ),
    _Stage(" of a stage without gradients", without=(0, 1, 2, 3)),
)


def fault_of_average(answer: Any) -> str:
    """Average on 1 to 3 replicas; one of the parameters has no gradient. Then stages that are not so plain."""
    jobs = [(replicas, _STAGES[0]) for replicas in (3, 2, 1)]
    jobs += [(2, stage) for stage in _STAGES[1:]]
    for replicas, stage in jobs:
        where = plural(replicas, "replica") + stage.name
        found = _fault_of_replicas(answer, replicas, stage, where)
        if found:
            return f"{where}: {found}"
    return fault_of_names(answer)


def _fault_of_replicas(answer: Any, replicas: int, stage: _Stage, where: str) -> str:
    """Try all ranks as they are here; then, if the answer has sets, with those of other ranks in another order."""
    elsewhere = with_sets_in_another_order(answer)
    found = _fault_beside(answer, answer, replicas, stage, where)
    if found or elsewhere is answer:
        return found
    return _fault_beside(answer, elsewhere, replicas, stage, where)


def _fault_beside(answer: Any, elsewhere: Any, replicas: int, stage: _Stage, where: str) -> str:
    def replica(dist: Any) -> tuple[list[nn.Parameter], bool]:
        own = [nn.Parameter(stage.parameter(k)) for k in range(len(_SHAPES))]
        for k, parameter in enumerate(own):
            parameter.grad = stage.gradient(dist.get_rank(), k)
        given = _ReadOnce(own)
        on_this_rank = answer if dist.get_rank() == 0 else elsewhere
        on_this_rank(given, replicas, COLUMN, InALargerJob(dist, COLUMN))
        return own, given.again

    nothing = "A stage may have no gradient at all." if stage.calls() == 0 else _ONLY_ONCE
    meanings = {**_OF_AVERAGE, "non-empty": nothing}
    if elsewhere is not answer:
        meanings["collective "] = _SETS
    with in_case(where, meanings):
        seen, world = in_threads(replica, replicas)
    unwaited = never_waited_for(world)
    if unwaited:
        return unwaited
    calls = sum(what == "all_reduce" for _, what in world.events) // replicas
    for rank, (own, again) in enumerate(seen):
        for k, parameter in enumerate(own):
            found = _fault_of_gradient(stage, parameter, k, rank, replicas, calls)
            if found:
                return f"{found} {_EMPTY_BY_NOW}" if again else found
    if calls > max(1, stage.calls()):
        return f"right means, but {calls} all-reduces on each rank: {calls} latencies, not one."
    return ""


def _fault_of_gradient(
    stage: _Stage, parameter: nn.Parameter, k: int, rank: int, replicas: int, calls: int
) -> str:
    got = parameter.grad
    name = f"gradient {k} of replica {rank}"
    if not torch.equal(parameter.detach(), stage.parameter(k)):
        return f"parameter {k} itself has changed; the mean is of gradients."
    if k in stage.without:
        return "" if got is None else f"{name} was None, and now is {got.flatten().tolist()[:2]} …"
    mean = stage.mean(replicas, k)
    if got is None or got.shape != mean.shape:
        shape = None if got is None else tuple(got.shape)
        return f"{name} has the shape {shape}, not {tuple(mean.shape)}."
    if got.dtype != mean.dtype:
        return f"{name} was of {_kind(mean)}, and now is of {_kind(got)}."
    if got.requires_grad:
        return f"{name} asks for a gradient itself, and did not before."
    away = away_from(got, mean, within=_WITHIN[mean.dtype])
    own = stage.gradient(rank, k)
    if away and own is not None and torch.equal(got, own):
        return f"{name} is still this replica's own, after {plural(calls, 'all-reduce')}."
    return f"{name} is {away} the mean." if away else ""


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# ---- exercise 7: the norm over the stages of a pipeline

Stages = Sequence[Sequence["Tensor | None"]]
"""The gradients of each stage."""


def _lengths(*of_stages: Sequence[float | None], kind: torch.dtype = torch.float64) -> Stages:
    """Make gradients of these lengths, in random directions; None stays None."""
    made: list[list[Tensor | None]] = []
    for j, lengths in enumerate(of_stages):
        row: list[Tensor | None] = []
        for k, length in enumerate(lengths):
            direction = random_tensor(2 + k, 2, seed=10 * j + k)
            row.append(None if length is None else (length * direction / direction.norm()).to(kind))
        made.append(row)
    return made


def _of_a_layer() -> Stages:
    """Make the gradients of a transposed weight, which lie as it does, and of its bias; those of a plain weight."""
    return [[3 * random_tensor(2, 3).t(), random_tensor(3)], [random_tensor(2, 2)]]


#: What is told of each: its name, the gradients of its stages, the largest norm that is allowed.
_CLIPPED: tuple[tuple[str, Callable[[], Stages], float], ...] = (
    ("2 stages of norm 5 and 12, max_norm 2", lambda: _lengths([3.0, 4.0], [12.0]), 2.0),
    ("stages of norm 3, 0.5 and 6, max_norm 2", lambda: _lengths([3.0], [0.3, 0.4], [6.0]), 2.0),
    ("2 stages of norm 0.8 each, max_norm 1", lambda: _lengths([0.8], [0.8]), 1.0),
    ("2 stages of norm 3 and 4, max_norm 7", lambda: _lengths([3.0], [4.0]), 7.0),
    ("a stage whose parameters are all frozen", lambda: _lengths([None, None], [3.0, None], [4.0]), 2.0),
    ("a frozen stage beside two in float32", lambda: _lengths([None], [3.0], [4.0], kind=torch.float32), 2.0),
    ("all gradients are zero", lambda: _lengths([0.0], [0.0]), 1.0),
    ("1 stage of norm 0.5, max_norm 0.001", lambda: _lengths([0.3, 0.4]), 1e-3),
    ("a stage of a transposed weight and a bias", _of_a_layer, 2.0),
)

_OF_CLIP = {
    "'NoneType' object": _NONE,
    "view size is not compatible": _NO_ROW,
    "int64 values": "An int, such as the sum of no numbers, is of another type: all ranks must send the same one.",
    "waits in all_reduce": "A collective needs every rank of its group, each time.",
}


def fault_of_clip(answer: Any) -> str:
    """Clip the gradients of 1 to 3 stages; say what differs first from torch's own on the whole model."""
    for where, make, max_norm in _CLIPPED:
        found = _fault_of_stages(answer, make(), max_norm, where)
        if found:
            return Fault(
                f"{where}: {found}", f"{where}: {found.known_by if isinstance(found, Fault) else found}"
            )
    return ""


def _with_gradients(row: Sequence[Tensor | None], kind: torch.dtype) -> list[nn.Parameter]:
    own = []
    for k, gradient in enumerate(row):
        shape = (2 + k, 2) if gradient is None else gradient.shape
        parameter = nn.Parameter(random_tensor(*shape).to(kind))
        parameter.grad = None if gradient is None else gradient.clone()
        own.append(parameter)
    return own


def _fault_of_stages(answer: Any, stages: Stages, max_norm: float, where: str) -> str:
    kind = next(gradient.dtype for row in stages for gradient in row if gradient is not None)
    whole = [parameter for row in stages for parameter in _with_gradients(row, kind)]
    norm = float(nn.utils.clip_grad_norm_(whole, max_norm))

    def stage(dist: Any) -> tuple[Any, list[nn.Parameter], bool]:
        own = _with_gradients(stages[dist.get_rank()], kind)
        given = _ReadOnce(own)
        return answer(given, max_norm, ALONG, InALargerJob(dist, ALONG)), own, given.again

    frozen = any(all(gradient is None for gradient in row) for row in stages)
    nothing = "A stage may have no gradient at all, and still has to take part." if frozen else _ONLY_ONCE
    with in_case(where, {**_OF_CLIP, "non-empty": nothing}):
        seen, world = in_threads(stage, len(stages))
    unwaited = never_waited_for(world)
    if unwaited:
        return unwaited
    for rank, (said, _, _) in enumerate(seen):
        if said is None:
            return f"rank {rank} returned None; the norm of all gradients was {norm:.4f}."
    found = _fault_of_clipped([own for _, own, _ in seen], whole, norm)
    if found:
        return f"{found} {_EMPTY_BY_NOW}" if any(again for _, _, again in seen) else found
    for rank, (said, _, _) in enumerate(seen):
        if not isinstance(said, (int, float, Tensor)) or not abs(float(said) - norm) <= 1e-5 * max(1.0, norm):
            told = f"rank {rank} returned {said!r}; the norm of all gradients was {norm:.4f}."
            number = isinstance(said, Tensor) and said.numel() == 1
            return Fault(told, told.replace(repr(said), repr(float(said)))) if number else told
    return ""


def _fault_of_clipped(seen: list[list[nn.Parameter]], whole: list[nn.Parameter], norm: float) -> str:
    expected = iter(whole)
    for rank, own in enumerate(seen):
        for k, parameter in enumerate(own):
            before = next(expected)
            if not torch.equal(parameter.detach(), before.detach()):
                return f"parameter {k} of rank {rank} itself has changed; what is clipped are gradients."
            wanted = before.grad
            got = parameter.grad
            name = f"gradient {k} of rank {rank}"
            if (got is None) != (wanted is None):
                return f"{name} is {got}, and should be {wanted}."
            if got is None or wanted is None:
                continue
            if got.isnan().any():
                return f"{name} is NaN."
            if not torch.allclose(got, wanted, rtol=1e-5, atol=1e-9):
                away = away_from(got, wanted)
                told = (
                    f"{name} is {away} what clipping the whole model gives; the norm of all was {norm:.4g}."
                )
                # by five digits, so that torch's own factor, max_norm / (norm + 1e-6), makes no other mistake of it
                times = float(got.norm() / wanted.norm())
                return Fault(
                    told, f"{name}: {times:.5g} times as long, {'in' if 'times' in away else 'out of'} line"
                )
    return ""
