"""The autograd graph of a stage, cut in two: the trunk that I walks, and the branches that are left to W."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.autograd.graph import Node

from lib.pipeline.split_backward import trunk
from lib.show.sheet import arrow, box
from lib.show.style import INK, MUTED, color_of, describe, new_figure, styled, title

I_COLOR, W_COLOR = color_of("input"), color_of("weight")


def name_of(node: Node) -> str:
    """Return the name of a node as torch prints it, without its number: "Addmm"."""
    if node.name().endswith("AccumulateGrad"):
        return "leaf"
    return node.name().removesuffix("0").removesuffix("Backward")


def leaf_names(stage: nn.Module, x: Tensor) -> dict[int, str]:
    """Return what the leaves are called, by the id of their tensor."""
    return {id(x): "input"} | {id(parameter): name for name, parameter in stage.named_parameters()}


@styled
def draw_split(stage: nn.Module, x: Tensor) -> Figure:
    """Draw the real graph of `stage(x)`: the trunk from left (output) to right (input), each branch below its node.

    stage: one whose trunk is a chain. x: a leaf that requires a gradient.
    """
    output = stage(x)
    assert isinstance(output, Tensor)
    assert output.grad_fn is not None
    on_trunk, branches = trunk([output.grad_fn], [x])
    names = leaf_names(stage, x)
    chain: list[Node] = [output.grad_fn]
    while below := [child for child, _ in chain[-1].next_functions if child in on_trunk]:
        chain.append(below[0])
    figure, axes = new_figure(9, 3.5)
    gap = 1.9
    axes.text(-0.85, 0, "output", ha="right", va="center", color=MUTED)
    hanging = 0
    for k, node in enumerate(chain):
        text = names[id(node.variable)] if hasattr(node, "variable") else name_of(node)
        _box(axes, k * gap, 0, text, I_COLOR)
        if k:
            arrow(axes, ((k - 1) * gap + 0.72, 0), (k * gap - 0.72, 0), width=1.3, head=11)
        if node not in branches:
            continue
        below = [child for child, _ in node.next_functions if child is not None and child not in on_trunk]
        for place, child in enumerate(below):
            dx = (place - (len(below) - 1) / 2) * 1.5
            start, y = (k * gap, -0.32), -1.25
            while True:
                leaf = getattr(child, "variable", None)
                text = name_of(child) if leaf is None else names.get(id(leaf), "leaf")
                _box(axes, k * gap + dx, y, text, W_COLOR)
                arrow(axes, start, (k * gap + dx, y + 0.32), width=1.3, head=11)
                hanging += 1
                following = [grand for grand, _ in child.next_functions if grand is not None]
                if not following:
                    break
                child, start, y = following[0], (k * gap + dx, y - 0.32), y - 1.05
    axes.set(xlim=(-2.1, (len(chain) - 1) * gap + 1.0), ylim=(-3.1, 0.8))
    axes.axis("off")
    note = "I walks the upper row, and writes down what arrives where a branch begins; W starts there"
    axes.text(-1.7, -2.95, note, fontsize=10, color=MUTED)
    finding = f"I walks {len(chain)} nodes to the input; W begins at {len(branches)} of them and walks {hanging} more"
    title(axes, finding)
    told = " → ".join(names[id(n.variable)] if hasattr(n, "variable") else name_of(n) for n in chain)
    return describe(figure, f"{finding}. The trunk: {told}. Branches lead to the weights.")


def _box(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    box(axes, x, y, 1.4, 0.6, text, face=color, edge=INK, line=0.9, radius=0.14, size=9.5)


def example_stage() -> tuple[nn.Module, Tensor]:
    """Return a stage of two linear layers, and an input for it."""
    stage = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    return stage, torch.ones(2, 4, requires_grad=True)
