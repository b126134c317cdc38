"""Small layers that several tests use."""

from torch import nn


class Function(nn.Module):
    """A layer without parameters."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def hooked(x, hook):
    """Return x; when backward comes by, hook(gradient) is called."""
    y = x.clone()
    if y.requires_grad:
        y.register_hook(hook)
    return y
