"""What a training step must leave as it was: weights, modes, what is frozen, torch's random numbers, the rows."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import torch
from torch import Tensor, nn


def mix_modes(model: nn.Module, seed: int) -> None:
    """Put each module into train or eval mode as chance has it; seed 0 leaves all of them in train mode."""
    chance = Random(seed)
    for module in model.modules():
        module.training = seed == 0 or chance.random() < 0.5


def per_cent(share: float) -> str:
    """Return a share in per cent, small ones with the digit that they have: no fault is 0 % large."""
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1g} %"


def fault_of_rows(tensors: Iterable[Tensor]) -> str:
    """Say what autograd does with the caller's tensors that it didn't do before, "" if nothing."""
    for tensor in tensors:
        if tensor.requires_grad:
            return "right gradient, but the caller's parts require a gradient now."
        if tensor.grad is not None:
            return "right gradient, but the caller's parts have a .grad now, as large as they are."
    return ""


def _hooks(model: nn.Module) -> int:
    """Return how many hooks are on a model's modules and weights."""
    forward = sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())
    return forward + sum(len(each._backward_hooks or ()) for each in model.parameters())


class Kept:
    """See before an answer what is to be seen after it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modes = {name: module.training for name, module in model.named_modules()}
        self._frozen = [each for each in model.parameters() if not each.requires_grad]
        self._weights = [each.detach().clone() for each in model.parameters()]
        self._hooks = _hooks(model)
        self._random = torch.get_rng_state()
        self._dtype = torch.get_default_dtype()

    def fault(self) -> str:
        """Say what has changed, "" if nothing; the random numbers and the default type are what they were."""
        if not torch.is_grad_enabled():
            return "right gradient, but autograd is left switched off."
        for name, module in self._model.named_modules():
            if module.training != self._modes[name]:
                which = f"its module {name}" if name else "the model"
                mode = "train" if module.training else "eval"
                return f"right gradient, but {which} is left in {mode} mode, which it was not in before."
        if not all(map(torch.equal, self._model.parameters(), self._weights)):
            return "right gradient, but a weight has other numbers now: the step is the optimizer's."
        if _hooks(self._model) > self._hooks:
            return "right gradient, but a hook of yours is left on the model, or on a weight: remove() it."
        if any(each.requires_grad for each in self._frozen):
            return "right gradient, but a frozen weight requires a gradient now."
        if any(each.grad is not None for each in self._frozen):
            return "right gradient, but a frozen weight ends with a .grad, and an optimizer works on all that have one."
        if not torch.equal(torch.get_rng_state(), self._random):
            torch.set_rng_state(self._random)
            return "right gradient, but torch's random numbers go on from another place than before."
        if torch.get_default_dtype() != self._dtype:
            torch.set_default_dtype(self._dtype)
            return "right gradient, but torch makes new tensors in another type than before."
        return ""
