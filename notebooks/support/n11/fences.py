"""What depend and fence of notebook 11 are tried with: pipelines that go backward, and the edges that order them."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lib.text import plural
from support.built import fence
from support.kit.judged import Fault
from support.kit.raised import in_case
from support.n11 import runs
from support.n11.memory import NewMemory, two_columns
from support.n11.runs import Fence, engine_order, fenced, note_sums
from support.n11.trials import MEANINGS, told_of_sum


@dataclass
class _Fenced:
    """A fenced pipeline: what ran, the gradient, to what the edges lead from each Checkpoint and copy."""

    ran: list[str]
    gradient: list[float] | None
    leads: dict[str, list[str]]
    fault: str  # of what is added up
    # The last two tell wrong answers apart, and judge none.
    is_joined: bool  # whether a Join leads to a Fork
    crosses: bool  # whether what such a Join gave was forked at once


def _fenced(m: int, n: int, prepare: Fence) -> _Fenced:
    noted: list[Callable[[], str]] = []
    ran, gradient, output = fenced(m, n, prepare, before=lambda output: noted.append(note_sums(output)))
    named = {x: name for x in engine_order(output.grad_fn) if (name := runs.operation(x))}
    leads = {name: sorted(named[y] for y in engine_order(x)[1:] if y in named) for x, name in named.items()}
    ties = [x for x in _joins(output) if any("Fork" in end.name() for end in runs.following(x)[1:])]
    forks = [x for x in engine_order(output.grad_fn) if "Fork" in x.name()]
    crosses = any(end is tie for x in forks for end in runs.following(x) for tie in ties)
    numbers = None if gradient is None else gradient.tolist()
    return _Fenced(ran, numbers, leads, told_of_sum(noted[0]()), bool(ties), crosses)


def _joins(output: Tensor) -> list[Any]:
    return [node for node in engine_order(output.grad_fn) if "Join" in node.name()]


def fault_of_fence(answer: Fence, whose: str = "") -> str:
    """Compare with ours in five pipelines: the gradient, the order of backward, and the edges that make it."""
    for m, n in ((3, 2), (2, 3), (1, 2), (3, 1), (5, 3)):
        where = f"{whose}for {plural(m, 'micro-batch', 'micro-batches')} in {plural(n, 'partition')}"
        with in_case(where, MEANINGS):
            got = _fenced(m, n, answer)
        fault = _fault_of_fenced(got, _fenced(m, n, fence))
        if fault:
            return Fault(f"{where} {fault}", f"{where} {got} {_in_three_partitions(answer)}")
    return ""


def _in_three_partitions(answer: Fence) -> _Fenced | str:
    """Return what tells answers apart that are alike in two partitions, or what the answer raises."""
    try:
        return _fenced(5, 3, answer)
    except Exception as error:
        return type(error).__name__


def fault_of_copies(depend: Callable[[list[Tensor], int], Any]) -> str:
    """Say whether a tie copies a micro-batch."""
    batches = _batches()
    with in_case("in depend", MEANINGS), NewMemory(batches[0].numel()) as new:
        depend(batches, 1)
    return f"depend copies a micro-batch into new memory ({new.operators[0]})." if new.operators else ""


def fault_of_copied_batches(answer: Fence) -> str:
    """Say whether fence hands a micro-batch to `copy` twice, or copies one by itself."""
    for clock in ([(0, 0)], [(1, 0), (0, 1)]):
        batches = _batches()
        handed: list[Tensor] = []

        def copy(x: Tensor, j: int, handed: list[Tensor] = handed) -> Tensor:
            handed.append(x)
            return x

        with in_case("in fence", MEANINGS), NewMemory(batches[0].numel()) as new:
            answer(clock, batches, copy)
        if len(handed) > 1:
            return "For (0, 1) fence calls `copy` twice: one copy is enough."
        if new.operators:
            moved = f"fence moves a micro-batch into other memory by itself ({new.operators[0]})"
            return f"{moved}. `copy` alone does that."
    return ""


def _batches() -> list[Tensor]:
    return [two_columns(1.0, 2.0, 3.0, 4.0) * k for k in (1, 2, 3)]


def _fault_of_fenced(got: _Fenced, ours: _Fenced) -> str:
    if got.gradient != ours.gradient:
        return "the gradient isn't the plain model's. Fork and Join change no value."
    if got.ran != ours.ran:
        pairs = zip(got.ran, ours.ran, strict=False)
        k = next((k for k, (a, b) in enumerate(pairs) if a != b), len(ours.ran))
        told = f"{' '.join(got.ran[:k])} and then {(*got.ran, 'nothing')[k]}".removeprefix(" and then ")
        return f"backward should run {' '.join(ours.ran)}, with yours it runs {told} (C: a copy)."
    if got.leads != ours.leads:
        name = next((name for name in ours.leads if ours.leads[name] != got.leads.get(name)), "")
        told = f"from {name} they should lead to {' '.join(ours.leads.get(name, [])) or 'nothing'}"
        return f"the order is right here, but not by the edges: {told}."
    return f"the order is right, but in backward {got.fault}." if got.fault else ""
