"""All kinds of layers by name, and what a module is built with from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from lib.pipeline import Namespace
from tests.fuzz.lanes import Lanes, Merge, OfLane, Pop, Stash, lose, pair, swap, write
from tests.fuzz.layers import (
    EACH,
    WIDTH,
    Attention,
    Each,
    Hooked,
    Ignores,
    Layer,
    Linear,
    Residual,
    Scale,
    Stops,
    Unused,
    Whole,
    again,
    compiled,
    frozen,
    module_hook,
    norm,
    parameter_hook,
    pipeline,
    tied,
)


@dataclass
class Build:
    """What the layers of one model are built with.

    plain: what must make no difference is left out: torch.compile, a pipeline inside, and torch's checkpoint. again:
    torch's checkpoint and torch.compile are kept.
    """

    plain: bool
    again: bool = False
    tied: dict[int, nn.Parameter] = field(default_factory=dict)
    namespaces: dict[str, Namespace] = field(default_factory=dict)

    def namespace(self, name: str) -> Namespace:
        return self.namespaces.setdefault(name, Namespace())

    def __call__(self, layer: Layer) -> nn.Module:
        return KINDS[layer[0]](self, *layer[1:])

    def together(self, layers: tuple[Layer, ...]) -> nn.Sequential:
        return nn.Sequential(*map(self, layers))


KINDS: dict[str, Callable[..., nn.Module]] = {
    "linear": lambda _, seed: Linear(seed),
    "unused": lambda _, seed: Unused(seed),
    "ignores": lambda _, seed: Ignores(seed),
    "scale": lambda _, seed: Scale(seed),
    "attention": lambda _, seed, p: Attention(seed, p),
    "tied": tied,
    "frozen": lambda _, seed, what: frozen(seed, what),
    "norm": norm,
    "batch_norm": lambda _, momentum: Each(nn.BatchNorm1d(WIDTH, eps=0.1, momentum=momentum)),
    "drop": lambda _, p: Each(nn.Dropout(p)),
    **{name: lambda _, name=name: Each(EACH[name]) for name in EACH},
    "seq": lambda build, *inner: Whole(build.together(inner)),
    "res": lambda build, *inner: Residual(build.together(inner)),
    "no_grad": lambda build, *inner: Stops(build.together(inner)),
    "checkpoint": again,
    "compiled": compiled,
    "pipeline": pipeline,
    "hook": lambda _, how: Hooked(how),
    "module_hook": module_hook,
    "parameter_hook": lambda _, seed, how: parameter_hook(seed, how),
    "pair": lambda _, how: pair(how),
    "write": lambda _, number: write(number),
    "merge": lambda _: Merge(),
    "lose": lambda _: Lanes(lose),
    "swap": lambda _: Lanes(swap),
    "lane": lambda build, number, *inner: OfLane(number, build.together(inner)),
    "stash": lambda build, name, how: Stash(how).isolate(build.namespace(name)),
    "pop": lambda build, name, how: Pop(how).isolate(build.namespace(name)),
}
