"""What a training step must leave as it was: each module's mode, what is frozen, and torch's random numbers."""

# mypy: allow-untyped-calls

from __future__ import annotations

from random import Random

import torch
from torch import nn


def mix_modes(model: nn.Module, seed: int) -> None:
    """Put each module into train or eval mode as chance has it; seed 0 leaves all of them in train mode."""
    chance = Random(seed)
    for module in model.modules():
        module.training = seed == 0 or chance.random() < 0.5


class Kept:
    """See before an answer what is to be seen after it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modes = {name: module.training for name, module in model.named_modules()}
        self._frozen = [each for each in model.parameters() if not each.requires_grad]
        self._random = torch.get_rng_state()

    def fault(self) -> str:
        """Say what has changed, "" if nothing; the random numbers go on from where they were."""
        for name, module in self._model.named_modules():
            if module.training != self._modes[name]:
                which = f"its module {name}" if name else "the model"
                mode = "train" if module.training else "eval"
                return f"right gradient, but {which} is left in {mode} mode, which it was not in before."
        if any(each.requires_grad for each in self._frozen):
            return "right gradient, but a frozen weight requires a gradient now."
        if any(each.grad is not None for each in self._frozen):
            return "right gradient, but a frozen weight has a .grad now, and an optimizer works on all that have one."
        if not torch.equal(torch.get_rng_state(), self._random):
            torch.set_rng_state(self._random)
            return "right gradient, but torch's random numbers go on from another place than before."
        return ""
