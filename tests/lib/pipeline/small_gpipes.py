"""Small models and GPipes for tests, and what threads they have."""

import gc
import threading
import time

import pytest
import torch
from torch import nn

from lib.pipeline import GPipe
from tests.lib.models import Function

MODES = ["always", "except_last", "never"]
CPU = ["cpu"] * 4

every_recomputing_mode = pytest.mark.parametrize("mode", ["always", "except_last"])


def mlp(layers=4, width=3):
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=generator)
    return model


def gpipe(module, balance=None, **arguments):
    return GPipe(module, balance or [1] * len(module), **{"devices": CPU, **arguments})


def of(*functions, **arguments):
    """A GPipe with a layer, and a partition, for each function or module."""
    made = [function if isinstance(function, nn.Module) else Function(function) for function in functions]
    return gpipe(nn.Sequential(*made), **arguments)


def pipeline_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("partition ")}


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return condition()


def fail(kind, when=lambda: True):
    """A layer that raises."""

    def layer(x):
        if when():
            raise kind("in the layer")
        return x

    return Function(layer)


def one_partition(module, mode, **arguments):
    """A GPipe whose only partition has all layers, with a gradient in each parameter from one step."""
    model = gpipe(module, [len(module)], chunks=3, checkpoint=mode, **arguments)
    loss(model).backward()
    return model


def loss(model):
    return model(torch.linspace(-1, 1, 18).reshape(6, 3)).square().sum()
