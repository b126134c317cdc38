"""What answers to notebook 12's exercise on random numbers are tried with: masks that a pair draws, and draws again.

Each pair is wrapped once, in the caller's thread, always in the same order: as a MiniGPipe asks for it.
"""

# mypy: allow-untyped-calls, disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib.pipeline import enable_recomputing
from support.kit.raised import in_case
from support.kit.values import NO_RETURN
from support.n12 import given

M = 3
N = 4
SEED = 5
STEPS = 1000  # of a run, no two of which may draw the same
RUNS = 1000  # one of so many may have two such steps
MANY_STEPS = 20_000  # in so many, steps meet often if there are fewer than some ten million seeds
BY_CHANCE = 3  # so often they may meet in them
LENGTH = 64  # numbers in a mask: two masks are not equal by chance
LONG = 2**20  # numbers that a large layer draws: one pair may go on inside what another one draws
MANY = (
    (16, 12),
    (450, 2),
    (2, 450),
)  # micro-batches and partitions of steps that tell i from j: 100 * i + j does not
SIDE = 8  # micro-batches, and partitions, of a step of whose pairs only the last one draws
SLACK = 0.99  # of so many runs: how many seeds there are is estimated
PATIENCE = 5.0  # seconds until a layer that waits for its neighbour counts as alone
_Pair: TypeAlias = tuple[int, int]
NEIGHBOURS = (
    ((1, 1), (0, 2)),  # of one clock
    ((1, 1), (0, 1)),  # of one partition
    ((1, 1), (1, 2)),  # of one micro-batch
)


class _Watched(given.OwnDropout):
    """A dropout that notes what it draws from, and may wait for another one before it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds: list[int | None] = []  # call by call; None: it drew from the generator of the process
        self.states: list[Tensor] = []  # of the process's generator, before the layer draws
        self.meeting: Barrier | None = None
        self.alone = False  # it waited for its neighbour, and that did not come
        self.drawn_beside: Tensor | None = None  # the state behind what another thread has drawn meanwhile
        self.draws_beside = False

    def forward(self, x: Tensor) -> Tensor:
        """Note, meet, draw."""
        own = getattr(given._here, "generator", None)
        self.seeds.append(None if own is None or own is torch.default_generator else own.initial_seed())
        self.states.append(torch.get_rng_state())
        if self.meeting is not None:
            try:
                self.meeting.wait(PATIENCE)
            except BrokenBarrierError:
                self.alone = True
        if self.draws_beside:
            thread = Thread(target=torch.rand, args=(1,), daemon=True)
            thread.start()
            thread.join()
            self.drawn_beside = torch.get_rng_state()
        return super().forward(x)


class _Wrapped:
    """A pair's layer, and what `wrap` has made of it."""

    def __init__(self, step: Any, pair: _Pair) -> None:
        self.pair = pair
        self.layer = _Watched()
        self.x = torch.ones(LENGTH, requires_grad=True)  # a recompute gets the same one
        with in_case(f"for {_told(pair)}"):
            self.run = step.wrap(self.layer, *pair)

    def called(self) -> tuple[str, Tensor]:
        """Call it, a second time as a recompute; return what is wrong, and the mask that the layer has drawn."""
        x = self.x
        where = f"for {_told(self.pair)}"
        calls = len(self.layer.masks)
        with in_case(where), enable_recomputing() if calls else nullcontext():
            output = self.run(x)
        if output is None:
            return f"{where}, what wrap returns {NO_RETURN}.", x
        if len(self.layer.masks) == calls:
            when = "in the second call, the recompute, the layer was not" if calls else "the layer was never"
            return f"{where}, {when} called.", x
        if len(self.layer.masks) > calls + 1:
            return f"{where}, the layer was called {len(self.layer.masks) - calls} ×, not once.", x
        mask = self.layer.masks[-1]
        if not isinstance(output, Tensor) or not torch.equal(output, x * mask * 2):
            return f"{where}, the output is not that of the layer.", x
        if not output.requires_grad:
            return f"{where}, the output has lost its way back to x: backward ends at it.", x
        return "", mask


def fault_of_numbers(answer: Callable[[int, int], Any]) -> str:
    """Say which masks differ that should not, or are equal that should not be; "" if all are as they should."""
    torch.manual_seed(SEED)
    step = _step_of(answer)
    following = _step_of(answer)
    masks: dict[_Pair, Tensor] = {}
    for pair in _pairs():
        fault, masks[pair] = _fault_of_pair(step[pair])
        if fault:
            return fault
    return (
        _fault_of_equal_pairs(masks)
        or next(filter(None, (_fault_of_neighbours(step, masks, both) for both in NEIGHBOURS)), "")
        or _fault_of_a_draw_beside(step[0, 0])
        or _fault_of_the_next_step(answer, following, masks)
        or _fault_of_repeating(answer, masks)
        or _fault_of_another_process(answer, masks)
        or _fault_of_the_same_numbers(answer)
        or _fault_of_many_pairs(answer)
        or _fault_of_a_long_run(answer)
        or _fault_of_few_seeds(answer)
        or _fault_of_strides(answer)
    )


def _step_of(answer: Callable[[int, int], Any]) -> dict[_Pair, _Wrapped]:
    """Make the random numbers of a step, and wrap a layer for each pair."""
    with in_case(f"making Numbers({M}, {N})"):
        step = answer(M, N)
    return {pair: _Wrapped(step, pair) for pair in _pairs()}


def _pairs() -> list[_Pair]:
    return list(product(range(M), range(N)))


def _told(pair: _Pair) -> str:
    return f"micro-batch {pair[0]} in partition {pair[1]}"


def _fault_of_pair(wrapped: _Wrapped) -> tuple[str, Tensor]:
    """Draw a pair's mask in one thread and twice more in others, as forward and recomputes do."""
    where = f"for {_told(wrapped.pair)}"
    nothing = torch.empty(0)
    if wrapped.run is None:
        return f"{where}, wrap {NO_RETURN}.", nothing
    if not callable(wrapped.run):
        return f"{where}, wrap is to return a function of x, not {type(wrapped.run).__name__}.", nothing
    before = torch.get_rng_state()
    fault, first = wrapped.called()
    fault = fault or _fault_of_the_process(wrapped, before)
    if fault:
        return fault, first
    for which in ("second call, the recompute", "third call, another recompute"):
        found: list[tuple[str, Tensor]] = []
        thread = Thread(target=lambda found=found: found.append(wrapped.called()), daemon=True)
        thread.start()
        thread.join()
        if not found:
            return f"{where}, the {which}, in another thread, has raised an error.", first
        fault, again = found[0]
        if fault:
            return fault, first
        if not torch.equal(first, again):
            seeds = wrapped.layer.seeds
            why = "begins with another seed than the first one"
            if seeds[0] == seeds[-1]:
                why = "does not begin where the first one began: a generator that was used stands elsewhere"
            if seeds[-1] is None:
                why = "has no generator of its own, and draws from that of the process"
            return f"{where}, the {which}, {why}.", first
    return "", first


def _fault_of_the_process(wrapped: _Wrapped, before: Tensor) -> str:
    """Say whether the call used the process's generator, even if it has put it back."""
    where = f"for {_told(wrapped.pair)}"
    own = wrapped.layer.seeds[-1] is not None
    if not torch.equal(before, torch.get_rng_state()):
        who = "the call, beside the layer," if own else "the layer"
        return f"{where}, {who} has moved the generator of the whole process, from which others draw, too."
    if not torch.equal(before, wrapped.layer.states[-1]):
        return (
            f"{where}, the generator of the whole process stands elsewhere while the layer runs: "
            "another thread may draw from it, or move it, just then."
        )
    return ""


def _fault_of_neighbours(
    step: dict[_Pair, _Wrapped], masks: dict[_Pair, Tensor], both: tuple[_Pair, _Pair]
) -> str:
    """Let two pairs meet inside their layers before they draw."""
    meeting = Barrier(len(both))
    threads = []
    for pair in both:
        step[pair].layer.meeting = meeting
        threads.append(Thread(target=step[pair].called, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = map(_told, both)
    if all(torch.equal(step[pair].layer.masks[-1], masks[pair]) for pair in both):
        if len({i + j for i, j in both}) == 1 and any(step[pair].layer.alone for pair in both):
            return f"{first} and {second} do not run at the same time: one waits until the other is done."
        return ""
    return (
        f"{first} and {second} run at the same time, in two threads, and one of them draws another mask than when "
        "it ran alone: do they share a generator?"
    )


def _fault_of_a_draw_beside(wrapped: _Wrapped) -> str:
    """Let another thread draw from the process's generator while the layer runs: that draw has to stay."""
    wrapped.layer.draws_beside = True
    fault, _ = wrapped.called()
    wrapped.layer.draws_beside = False
    behind = wrapped.layer.drawn_beside
    if fault or behind is None or torch.equal(behind, torch.get_rng_state()):
        return fault
    return (
        f"for {_told(wrapped.pair)}, another thread draws from the generator of the whole process while the layer "
        "runs, and when the call has ended, that generator stands elsewhere than it left it."
    )


def _fault_of_the_next_step(
    answer: Callable[[int, int], Any], following: dict[_Pair, _Wrapped], masks: dict[_Pair, Tensor]
) -> str:
    same = [pair for pair in _pairs() if torch.equal(following[pair].called()[1], masks[pair])]
    if not same:
        return ""
    who = "every pair" if len(same) == len(masks) else _told(same[0])
    again = f"in the next step, a new Numbers({M}, {N}), {who} draws the mask of this step again"
    torch.manual_seed(SEED + 1)
    seeded = _step_of(answer)
    if torch.equal(seeded[same[0]].called()[1], masks[same[0]]):
        return f"{again}, and after another torch.manual_seed, too."
    return f"{again}: each step needs seeds of its own, drawn from many."


def _fault_of_repeating(answer: Callable[[int, int], Any], masks: dict[_Pair, Tensor]) -> str:
    torch.manual_seed(SEED)
    again = _step_of(answer)
    for pair in _pairs():
        if not torch.equal(again[pair].called()[1], masks[pair]):
            whose = f"after the same torch.manual_seed({SEED}) {_told(pair)}"
            return f"{whose} draws another mask: nobody can repeat a run."
    return ""


def _fault_of_another_process(answer: Callable[[int, int], Any], masks: dict[_Pair, Tensor]) -> str:
    """Repeat the step where `hash` is as in another process: Python salts that of a text anew in each."""
    names = getattr(getattr(answer, "wrap", None), "__globals__", {})
    own = names.get("hash")
    names["hash"] = _salted
    try:
        fault = _fault_of_repeating(answer, masks)
    finally:
        names.pop("hash")
        if own is not None:
            names["hash"] = own
    return f"in another process, where `hash` of a text is another number, {fault}" if fault else ""


def _salted(value: object) -> int:
    parts = value if isinstance(value, tuple) else (value,)
    is_text = any(isinstance(part, str | bytes) for part in parts)
    return hash((value, "salt")) if is_text else hash(value)


class _Wide(given.OwnDropout):
    """A large layer, which draws more numbers than its input has."""

    def forward(self, x: Tensor) -> Tensor:
        """Draw many."""
        return super().forward(x.new_ones(LONG))


def _fault_of_the_same_numbers(answer: Callable[[int, int], Any]) -> str:
    """Say which pair of two steps begins with what another one draws some places further on."""
    torch.manual_seed(SEED)
    drawn: dict[str, bytes] = {}
    for number, side in enumerate((2, 1)):
        step = answer(side, side)
        for pair in product(range(side), range(side)):
            layer = _Wide()
            step.wrap(layer, *pair)(torch.ones(LENGTH))
            drawn[f"{_told(pair)}, step {number}"] = layer.masks[-1].numpy().tobytes()
    first, *rest = drawn.items()
    for (one, numbers), (other, others) in [*product([first], rest), *product(rest, [first])]:
        place = numbers.find(others[:LENGTH])
        if place >= 0:
            return (
                f"{one}: what {other} draws is in it, from place {place} on: the same numbers in two masks."
            )
    return ""


def _fault_of_many_pairs(answer: Callable[[int, int], Any]) -> str:
    """Say which pairs of a large step share a mask: a seed may tell i from j where there are few of both.

    All micro-batches of a partition have one layer, and what an answer keeps on it is theirs together.
    """
    for m, n in MANY:
        where = f"in a step of {m} micro-batches and {n} partitions"
        layers = [given.OwnDropout() for _ in range(n)]
        masks: dict[_Pair, Tensor] = {}
        with in_case(where):
            step = answer(m, n)
            runs = {(i, j): step.wrap(layers[j], i, j) for i, j in product(range(m), range(n))}
            for pair, run in runs.items():
                run(torch.ones(LENGTH))
                masks[pair] = layers[pair[1]].masks[-1]
            with enable_recomputing():
                runs[0, 0](torch.ones(LENGTH))
        fault = _fault_of_equal_pairs(masks)
        if fault:
            return f"{where}, {fault}"
        if not torch.equal(layers[0].masks[-1], masks[0, 0]):
            return f"{where}, {_told((0, 0))} draws another mask in the recompute, behind all other pairs."
    return ""


def _fault_of_a_long_run(answer: Callable[[int, int], Any]) -> str:
    """Say in which two of many small steps a pair draws the same mask."""
    pairs = list(product(range(2), range(2)))
    found: dict[tuple[_Pair, bytes], int] = {}
    for number in range(STEPS):
        step = answer(2, 2)
        for pair in pairs:
            layer = given.OwnDropout()
            step.wrap(layer, *pair)(torch.ones(LENGTH))
            key = pair, layer.masks[-1].numpy().tobytes()
            if key in found:
                return (
                    f"in a run of {STEPS} steps, step {number} draws for {_told(pair)} the mask that step "
                    f"{found[key]} drew: seeds must come from so many that no two meet."
                )
            found[key] = number
    return ""


class _Noting(given.OwnDropout):
    """A dropout that notes the seed of its generator, if nobody has drawn from that before."""

    seed: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Note, draw."""
        own = getattr(given._here, "generator", None)
        if own is not None and torch.equal(
            own.get_state(), torch.Generator().manual_seed(own.initial_seed()).get_state()
        ):
            self.seed = own.initial_seed()
        return super().forward(x)


def _fault_of_few_seeds(answer: Callable[[int, int], Any]) -> str:
    """Say how often two steps of a run meet, although none has met so far; "" if they hardly ever do.

    Seeds from a small range lie close together. What stretches few draws over many seeds meets if it goes on for long.
    """
    run = [_drawn(answer) for _ in range(STEPS)]
    spread, _ = _spread_and_stride(run)
    if _runs_for_a_meeting(spread) < SLACK * RUNS:
        return (
            f"the seeds of {_told((0, 0))} in {STEPS} steps all lie within {spread:,} numbers; drawn from so few, two "
            f"of them are equal in one of {_runs_for_a_meeting(spread):,} such runs."
        )
    masks = {layer.masks[-1].numpy().tobytes() for layer in run}
    masks |= {_drawn(answer).masks[-1].numpy().tobytes() for _ in range(MANY_STEPS - STEPS)}
    met = MANY_STEPS - len(masks)
    if met <= BY_CHANCE:
        return ""
    return (
        f"in {MANY_STEPS:,} steps {_told((0, 0))} draws {met} times the mask of an earlier step; so in one of about "
        f"{_runs_for_a_meeting(MANY_STEPS**2 // (2 * met)):,} runs of {STEPS} steps two steps draw the same."
    )


def _fault_of_strides(answer: Callable[[int, int], Any]) -> str:
    """Say how few seeds a pair has where all are multiples of a number, as of the number of pairs in a step."""
    spread, stride = _spread_and_stride([_drawn(answer, SIDE) for _ in range(STEPS)])
    count = spread // stride
    if _runs_for_a_meeting(count) >= SLACK * RUNS:
        return ""
    why = f"they differ by multiples of {stride} only, and a generator reads 32 bits of each; " * (stride > 1)
    return (
        f"in steps of {SIDE} micro-batches and {SIDE} partitions, {_told((SIDE - 1, SIDE - 1))} has about {count:,} "
        f"seeds: {why}drawn from so few, two of them are equal in one of {_runs_for_a_meeting(count):,} runs of "
        f"{STEPS} steps."
    )


def _spread_and_stride(run: list[_Noting]) -> tuple[int, int]:
    """Return the range that a run's seeds were drawn from, and the power of two that all their differences share.

    Where seeds are not noted, or counted so that no two meet, it is the range of all seeds.
    """
    seeds = [layer.seed for layer in run if layer.seed is not None]
    if len(seeds) < len(run) or seeds == sorted(seeds):
        return 2**32, 1
    signed = [(seed + 2**31) % 2**32 - 2**31 for seed in seeds]  # a CPU's generator reads no more of them
    stride = math.gcd(2**32, *(seed - signed[0] for seed in signed))
    seen = max(signed) - min(signed)  # on average this share of the range
    return round(seen * (len(run) + 1) / (len(run) - 1)) + 1, stride


def _drawn(answer: Callable[[int, int], Any], side: int = 1) -> _Noting:
    """Let the last pair of a step draw."""
    layer = _Noting()
    answer(side, side).wrap(layer, side - 1, side - 1)(torch.ones(LENGTH))
    return layer


def _runs_for_a_meeting(seeds: int) -> int:
    """Return in how many runs, by expectation, two steps draw the same one of so many seeds."""
    return max(1, 2 * seeds // (STEPS * (STEPS - 1)))


def _fault_of_equal_pairs(masks: dict[_Pair, Tensor]) -> str:
    found: dict[tuple[int, ...], _Pair] = {}
    shared = ""
    for pair, mask in masks.items():
        key = tuple(mask.int().tolist())
        if key in found and not shared:
            shared = f"{_told(found[key])} and {_told(pair)} draw the same mask"
        found.setdefault(key, pair)
    if not shared:
        return ""
    return f"{shared}; {len(masks)} pairs have {len(found)} masks."
