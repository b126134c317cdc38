"""Draw a case from a seed. Each case has a few themes: so features meet often enough, and a model stays readable."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from tests.fuzz.cases import MODES, RUNNERS, Case
from tests.fuzz.changes import CHANGES
from tests.fuzz.lanes import PAIRS, STASHED
from tests.fuzz.layers import MODULE_HOOKS, TENSOR_HOOKS, Layer

Some: TypeAlias = list[Layer]


class Draw:
    """The chances of one case."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.themes = [theme for theme in THEMES if self.chance.random() < theme.share]

    def number(self) -> int:
        return self.chance.randrange(1000)

    def maybe(self, share: float) -> bool:
        return self.chance.random() < share

    def layers(self, count: int, depth: int) -> Some:
        """Return some layers, about `count`; at depth 0 those that stand alone, too."""
        fitting = [theme for theme in self.themes if depth <= theme.deepest]
        weights = [theme.weight for theme in fitting]
        made: Some = []
        while len(made) < count:
            (theme,) = self.chance.choices([PLAIN, *fitting], [3, *weights])
            made += theme.make(self, depth)
        return made

    def inner(self, depth: int) -> Some:
        return self.layers(self.chance.randint(1, 2), depth + 1)


def plain(draw: Draw, _: int) -> Some:
    return [draw.chance.choice([("linear", draw.number()), ("linear", draw.number()), ("tanh",), ("sin",)])]


def randomly(draw: Draw, _: int) -> Some:
    kind = draw.chance.choices(["drop", "noise", "attention"], [4, 2, 1])[0]
    return [{"drop": ("drop", 0.5), "noise": ("noise",), "attention": ("attention", draw.number(), 0.5)}[kind]]


def stopping(draw: Draw, depth: int) -> Some:
    kinds: Some = [("detach",), ("detach",), ("one_hot",), ("zero",), ("ignores", draw.number())]
    return [draw.chance.choice([*kinds, ("no_grad", *draw.inner(depth))])]


def in_place(draw: Draw, _: int) -> Some:
    """Mostly behind a layer that does not need its own output in backward: else the plain model refuses."""
    before: Some = [("linear", draw.number())] if draw.maybe(0.8) else []
    return [*before, (draw.chance.choice(["relu_", "mul_", "add_"]),)]


def views(draw: Draw, _: int) -> Some:
    return [(draw.chance.choice(["same", "flatten", "half", "columns", "view"]),)]


def lanes(draw: Draw, depth: int) -> Some:
    kind = draw.chance.choices(["pair", "write", "merge", "lose", "swap", "lane"], [5, 2, 2, 1, 1, 2])[0]
    if kind == "pair":
        return [("pair", draw.chance.choice([*PAIRS]))]
    if kind == "write":
        return [("write", draw.chance.randrange(3))]
    if kind == "lane":
        return [("lane", draw.chance.randrange(3), *draw.inner(depth))]
    return [(kind,)]


def shared(draw: Draw, _: int) -> Some:
    """Two lanes of one memory, a cut, and perhaps a write behind it."""
    kind = draw.chance.choice(["same", "overlap", "view", "apart"])
    written: Layer = draw.chance.choice([("write", 0), ("write", 1), ("add_",), ("lane", 1, ("relu_",)), ("same",)])
    before: Some = [("linear", draw.number())] if draw.maybe(0.7) else []
    return [*before, ("pair", kind), ("cut",), written, ("merge",)]


def ignored(draw: Draw, depth: int) -> Some:
    """Two lanes, a function in one of them that makes zeros of None, a cut, and perhaps one lane is let go."""
    kind = draw.chance.choice([*PAIRS])
    filled: Layer = ("lane", draw.chance.randrange(2), ("linear", draw.number()), ("fills",), *draw.inner(depth))
    gone: Layer = draw.chance.choice([("lose",), ("lose",), ("same",)])
    return [("pair", kind), filled, ("cut",), gone]


def hooks(draw: Draw, depth: int) -> Some:
    kind = draw.chance.choices(["hook", "module_hook", "parameter_hook"], [3, 1, 1])[0]
    if kind == "hook":
        return [("hook", draw.chance.choice([*TENSOR_HOOKS]))]
    if kind == "module_hook":
        return [("module_hook", draw.chance.choice([*MODULE_HOOKS]), *draw.inner(depth))]
    return [("parameter_hook", draw.number(), draw.chance.choice(["halves", "after"]))]


def odd(draw: Draw, depth: int) -> Some:
    """Layers with a state of their own, unused parameters, one weight in two places."""
    tied: Layer = ("tied", draw.number())
    kinds: Some = [("unused", draw.number()), ("scale", draw.number()), ("seq", tied, ("tanh",), tied)]
    return [draw.chance.choice([*kinds, ("res", tied, *draw.inner(depth), tied)])]


def frozen(draw: Draw, _: int) -> Some:
    return [("frozen", draw.number(), draw.chance.choice(["all", "weight", "bias"]))]


def norms(draw: Draw, _: int) -> Some:
    return [draw.chance.choice([("norm", draw.number()), ("batch_norm", 0.3)])]


def containers(draw: Draw, depth: int) -> Some:
    return [(draw.chance.choice(["seq", "res"]), *draw.inner(depth))]


def again(draw: Draw, depth: int) -> Some:
    return [("checkpoint", draw.maybe(0.4), *draw.inner(depth))]


def pipelines(draw: Draw, _: int) -> Some:
    inside = plain(draw, 1) + plain(draw, 1)
    return [("pipeline", draw.chance.randint(1, 3), draw.chance.choice(MODES), *inside)]


def compiled(draw: Draw, _: int) -> Some:
    backend = draw.chance.choices(["aot_eager", "aot_eager_decomp_partition", "eager", "inductor"], [12, 4, 2, 0.3])[0]
    inside = plain(draw, 1) + (randomly(draw, 1) if draw.maybe(0.7) else plain(draw, 1))
    return [("compiled", backend, *inside)]


class Theme(NamedTuple):
    """How often a case has it, how often then a layer is of it, and how deep inside of others it may stand."""

    make: Callable[[Draw, int], Some]
    share: float
    weight: float
    deepest: int = 2


PLAIN = Theme(plain, 1, 3)
THEMES = (
    Theme(randomly, 0.35, 2),
    Theme(stopping, 0.25, 1),
    Theme(in_place, 0.25, 1),
    Theme(views, 0.2, 1),
    Theme(lanes, 0.35, 3, deepest=0),
    Theme(shared, 0.1, 1, deepest=0),
    Theme(ignored, 0.1, 1, deepest=0),
    Theme(hooks, 0.3, 2),
    Theme(odd, 0.3, 1.5),
    Theme(frozen, 0.2, 1),
    Theme(norms, 0.2, 1),
    Theme(containers, 0.4, 2, deepest=1),
    Theme(again, 0.3, 2, deepest=1),
    Theme(pipelines, 0.06, 1, deepest=0),
    Theme(compiled, 0.03, 2, deepest=0),
)


def with_skips(draw: Draw, layers: Some) -> Some:
    """Put one or two pairs of stash and pop round some of the layers."""
    for name in "ab"[: draw.chance.choice([1, 1, 2])]:
        begin, end = sorted(draw.chance.choices(range(len(layers) + 1), k=2))
        how = draw.chance.choices(["add", "instead", "unused", "lane", "write", "write input"], [5, 2, 1, 1, 1, 1])[0]
        stashed: Layer = ("stash", name, draw.chance.choices([*STASHED], [4, 4, 1, 1, 1, 1])[0])
        layers = [*layers[:begin], stashed, *layers[begin:end], ("pop", name, how), *layers[end:]]
    return layers


def with_cuts(draw: Draw, layers: Some) -> Some:
    for place in sorted(draw.chance.choices(range(1, len(layers) + 1), k=draw.chance.choice([0, 1, 1, 2, 2, 3]))):
        layers = [*layers[:place], ("cut",), *layers[place:]]
    return layers


def draw_case(seed: int) -> Case:
    """Return the case of a seed, always the same."""
    draw = Draw(seed)
    chance = draw.chance
    layers = draw.layers(chance.randint(2, 7), 0)
    if draw.maybe(0.4):
        layers = with_skips(draw, layers)
    layers = with_cuts(draw, layers)
    runner = "GPipe" if draw.maybe(0.5) else chance.choice(RUNNERS)
    change = chance.choice([*CHANGES]) if runner == "GPipe" and draw.maybe(0.35) else None
    wanted = ("wanted",) if draw.maybe(0.5) else ()
    pair = ("pair",) if draw.maybe(0.1) else ()
    return Case(
        tuple(layers),
        runner=runner,
        mode=chance.choice(MODES) if runner == "GPipe" else "always",
        check=change == "data" or (runner == "GPipe" and draw.maybe(0.05)),
        rows=chance.randint(1, 7),
        chunks=chance.randint(1, 4),
        input=wanted + pair,
        seen=tuple(chance.sample(range(3), chance.randint(1, 2))) if draw.maybe(0.2) else (),
        autocast=draw.maybe(0.1),
        change=change,
        place=chance.randrange(8),
        stages_per_rank=chance.choice([1, 2]),
        seed=seed,
    )
