"""What accumulate_jointly of notebook 07 is tried with: losses that look at all rows, and what is alive at the peak."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.saved import LiveTensors
from support.kit.judged import Fault
from support.kit.raised import in_case
from support.n07.judges import NONE, fault_of_loss, random
from support.n07.kept import Kept, fault_of_rows, mix_modes, per_cent

LossOf: TypeAlias = Callable[[Tensor], Tensor]

WIDTH = 48


def _model() -> nn.Sequential:
    model = nn.Sequential(
        nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2)
    )
    for number, parameter in enumerate(model.parameters()):
        parameter.data = random(*parameter.shape, seed=number) / 3
    return model.double()


def _contrast(points: Tensor) -> Tensor:
    """Each row is to be nearest to the next one, among all."""
    points = F.normalize(points)
    itself = torch.eye(len(points), dtype=torch.bool)
    scores = (points @ points.T).masked_fill(itself, -1e9)
    return F.cross_entropy(scores, (torch.arange(len(points)) + 1) % len(points))


def _balance(points: Tensor) -> Tensor:
    """The square of the mean: alike in no cut."""
    return points.mean(0).square().sum() + points.sum(1).tanh().mean()


def _spread(points: Tensor) -> Tensor:
    return (points - points.mean(0)).square().sum()


LOSSES: dict[str, LossOf] = {
    "a loss that compares every row with every other": _contrast,
    "the square of the mean over all rows": _balance,
    "the squared distances from the mean": _spread,
}
SIZES = ((4, 4, 4, 4, 4, 4), (5, 4, 4), (3,), (2, 1, 4), (1,) * 7)


def peak_of(function: Callable[[], Any]) -> int:
    """Return the most bytes of new tensors that were alive at a time."""
    with LiveTensors() as live:
        function()
    peak: int = live.peak
    return peak


def _together(model: nn.Module, parts: list[Tensor], loss_of: LossOf) -> None:
    loss_of(torch.cat([model(part) for part in parts])).backward()


def fault_of_joint(answer: Callable[[nn.Module, list[Tensor], LossOf], Any]) -> str:
    """Compare gradient and loss with the whole batch, then the peak of memory with one micro-batch's."""
    found: list[str] = []
    transcript: list[str] = []
    for told, loss_of in LOSSES.items():
        for seed, sizes in enumerate(SIZES):
            case = f"{told}; micro-batches of {', '.join(map(str, sizes))} rows"
            with in_case(case), torch.enable_grad():  # also after an answer that switches it off
                said = _fault_of_gradient(answer, loss_of, sizes, seed, _model())
            if said == NONE:
                return NONE
            transcript.append(said)
            if said:
                found.append(f"{case}: {said}")
    if found:
        return Fault(found[0], "\n".join(transcript))
    return _fault_of_peak(answer) or _fault_of_weights(answer)


def _fault_of_gradient(
    answer: Callable[..., Any], loss_of: LossOf, sizes: tuple[int, ...], seed: int, model: nn.Module
) -> str:
    mix_modes(model, seed)
    parts = list(random(sum(sizes), 3, seed=len(sizes)).split(list(sizes)))
    loss = loss_of(torch.cat([model(part) for part in parts]))
    loss.backward()
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    due = _flat(trained)
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)  # of the step before
    handed = list(parts)
    numbers = [part.clone() for part in parts]
    kept = Kept(model)
    got = answer(model, handed, loss_of)
    if got is None:
        return NONE
    if any(parameter.grad is None for parameter in trained):
        return "nothing is in .grad; was backward() called?"
    found = _flat(trained)
    off = float((found - due).norm() / due.norm())
    if not off < 1e-9:
        times = float(found.norm() / due.norm())
        return (
            f"the gradient is {times:.2f} times as long as the whole batch's, and {per_cent(off)} of it away."
        )
    said = fault_of_loss(got, loss.item())
    if said:
        return said
    if len(handed) != len(parts) or any(now is not part for now, part in zip(handed, parts, strict=True)):
        return "right gradient, but your list of parts is no longer what it was."
    if not all(map(torch.equal, parts, numbers)):
        return "right gradient, but the caller's parts have other numbers now."
    return fault_of_rows(parts) or kept.fault()


def _flat(weights: list[nn.Parameter]) -> Tensor:
    return torch.cat([weight.grad.flatten() for weight in weights if weight.grad is not None])


def _fault_of_peak(answer: Callable[..., Any]) -> str:
    """Twenty-four micro-batches: half of what all graphs together need is far more than the mechanism needs."""
    model = _model()
    parts = list(random(192, 3).tensor_split(24))
    _together(model, parts, _spread)  # .grad is there: it is no part of the peak
    together = peak_of(lambda: _together(model, parts, _spread))
    yours = peak_of(lambda: answer(model, parts, _spread))
    if yours > together / 2:
        share = f"{100 * yours / together:.0f} % of"
        return (
            "right gradient, but at the peak of 24 micro-batches the tensors alive are "
            f"{share} what all graphs together need; half is easy to beat."
        )
    return ""


def _fault_of_weights(answer: Callable[..., Any]) -> str:
    """Freeze a weight, and have one that the loss does not reach: the others get their gradient."""
    frozen = _model()
    next(frozen.parameters()).requires_grad_(False)
    beside = _model()
    beside.register_parameter("beside", nn.Parameter(torch.zeros(2).double()))
    for case, model in (("the first weight is frozen", frozen), ("the loss does not reach a weight", beside)):
        with in_case(case):
            fault = _fault_of_gradient(answer, _spread, (2, 2, 2), 0, model)
        if fault:
            return f"{case}: {fault}"
    return ""
