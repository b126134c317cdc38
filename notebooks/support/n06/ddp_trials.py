"""How a MyDDP of notebook 06 is tried: on imitated ranks, with models in which the order of gradients differs.

fault_of_ddp  says what is wrong with an answer, "" if nothing
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from lib.text import plural
from support.built import in_buckets
from support.kit.judged import Fault
from support.kit.raised import in_case
from support.kit.threads import StuckError
from support.n06.drawn import chain, close, drawn_values, redrawn
from support.ranks import World, in_threads

STEPS = 3
#: Values in the first bucket, and in each of those behind it.
LIMITS = (10, 25)
_OF_DDP = {
    "'NoneType' object": "Some gradient of the bucket is not there yet: ask first whether all are.",
    "hook on a tensor that doesn't require gradient": "A frozen parameter gets no gradient, so no hook: leave it out.",
}


class TwoBranches(nn.Module):
    """Two branches that are added up; `turned` computes the second one first, so backward meets them in turned order.

    A layer `spare` is only used if `with_spare`; a layer `frozen` is not trained.
    """

    def __init__(
        self, seed: int, turned: bool = False, with_spare: bool = True, frozen: bool = False
    ) -> None:
        super().__init__()
        self.left = nn.Linear(6, 4, dtype=torch.float64)
        self.right = nn.Linear(6, 4, dtype=torch.float64)
        self.spare = nn.Linear(4, 4, dtype=torch.float64)
        self.top = nn.Linear(4, 3, dtype=torch.float64)
        redrawn(self, seed)
        self.register_buffer("batches", torch.tensor(seed + 5))  # an integer, as in BatchNorm
        self.right.requires_grad_(not frozen)
        self.turned = turned
        self.with_spare = with_spare

    def forward(self, rows: Tensor) -> Tensor:
        """Return what the top makes of the sum of both branches."""
        if self.turned:
            total = self.right(rows).tanh()
            total = total + self.left(rows).tanh()
        else:
            total = self.left(rows).tanh()
            total = total + self.right(rows).tanh()
        if self.with_spare:
            total = self.spare(total)
        out: Tensor = self.top(total)
        return out


#: Buckets of TwoBranches: top, spare, the right branch, the left one.
LAYERS: tuple[int, ...] = (15, 20, 28)
#: Both branches in one bucket.
TOGETHER = (15, 20, 56)


def fault_of_ddp(answer: Any) -> str:
    """Train on 1 to 3 ranks, each with weights of its own at first, and on the whole batch in one process."""
    for world in (2, 3, 1):  # one rank last: whoever sends nothing has the right gradients there
        fault = _fault_of_training(answer, world, lambda seed, rank: chain(seed), LIMITS, "")
        if fault:
            return fault
    turned = "a model of two branches, which rank 1 computes in the other order"
    for limits in (LAYERS, TOGETHER):
        fault = _fault_of_training(
            answer, 2, lambda seed, rank: TwoBranches(seed, turned=rank == 1), limits, turned
        )
        if fault:
            return fault
    unused: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((0, 1), LAYERS),
        ((1,), LAYERS),
        ((0, 1), (1,)),
    )
    for ranks_without, limits in unused:
        fault = _fault_of_an_unused_layer(answer, ranks_without, limits)
        if fault:
            return fault
    frozen = "a model with a frozen layer"
    return _fault_of_training(answer, 2, lambda seed, rank: TwoBranches(seed, frozen=True), LAYERS, frozen)


def _fault_of_training(
    answer: Any, world: int, make: Callable[[int, int], nn.Module], limits: tuple[int, ...], what: str
) -> str:
    """Compare some steps of training with one process; what: the model, where it is not the plain chain."""
    whole = _train(make(0, 0), lambda model: model, slice(None), lambda what: None)
    where = ", ".join(filter(None, [f"on {plural(world, 'rank')}", what]))

    def rank(dist: Any) -> Any:
        number = dist.get_rank()
        mine = slice(number, None, dist.get_world_size())

        def note(event: str) -> None:
            dist.world.events.append((number, event))

        return _train(make(number, number), lambda model: answer(model, dist, list(limits)), mine, note)

    with in_case(where, _OF_DDP):
        seen, counts = in_threads(rank, world)
    own = [what for r, what in counts.events if r == 0]
    fault = _fault_of_steps(seen, whole, own, where)
    if not fault:
        if any(counts.unwaited.values()):
            handle = next(filter(None, counts.unwaited.values()))[0]
            return f"{where}: {handle} is never waited for."
        named = {p: name for name, p in make(0, 0).named_parameters() if p.requires_grad}
        buckets = in_buckets(list(named)[::-1], limits)  # type: ignore[no-untyped-call]
        fault = _fault_of_overlap(own, counts, buckets)
        fault = fault or _fault_of_late_buckets(own, [{named[p] for p in bucket} for bucket in buckets])
        fault = f"{where}: {fault}" if fault else ""
    gradients = [step["gradient"] for step in seen[0]]
    return Fault(fault, known_by=(fault, gradients, _sent(counts), _in_backward(own))) if fault else ""


def _train(
    model: nn.Module, wrap: Callable[[nn.Module], Any], rows: slice, note: Callable[[str], object]
) -> list[dict[str, Any]]:
    """Train some steps on these rows of 12; return buffer, and weights and gradients by parameter, of each step."""
    seen: list[dict[str, Any]] = []
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, parameter in trained.items():

        def noted(_: Tensor, name: str = name) -> None:
            note("gradient")
            note(f"of {name}")

        parameter.register_post_accumulate_grad_hook(noted)  # type: ignore[no-untyped-call]
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(trained.values(), lr=0.01, momentum=0.9)

    def gradients() -> dict[str, Tensor]:
        found = {name: parameter.grad for name, parameter in trained.items()}
        return {name: torch.zeros(0) if grad is None else grad.clone() for name, grad in found.items()}

    for step in range(STEPS):
        weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        now: dict[str, Any] = {"weight": weights}
        now["buffer"] = {name: value.clone().double() for name, value in model.named_buffers()}
        optimizer.zero_grad()
        (model(drawn_values(12, 6, seed=step)[rows]).tanh() - 0.5).square().mean().backward()
        note("backward ended")
        now["own"] = gradients()
        getattr(wrapped, "finish", lambda: None)()
        note("finished")
        seen.append({**now, "gradient": gradients()})
        optimizer.step()
    return seen


def _fault_of_steps(seen: list[Any], whole: Any, own: list[str], where: str) -> str:
    """Compare weights, buffer and gradients of all ranks and steps with those of one process."""
    for step, r, what in product(range(STEPS), range(len(seen)), ("weight", "buffer", "gradient")):
        got = seen[r][step][what]
        due = whole[step][what]
        wrong = [name for name in due if not close(got[name], due[name])]
        if wrong:
            first = wrong[0]
            mine = seen[r][step]["own"].get(first) if what == "gradient" else None
            how = f"the {what} of {first} {_difference(got[first], due[first], mine)}"
            many = f"step {step}, rank {r}: {len(wrong)} of {plural(len(due), what)} not as in one process"
            none = "" if "all_reduce" in own else " No bucket was ever sent."
            return f"{where}, {many}; {how}.{none}"
    return ""


def _fault_of_overlap(own: list[str], counts: World, buckets: list[list[Tensor]]) -> str:
    """Say whether each bucket leaves as soon as it may; own: what rank 0 did, in its order."""
    sizes = [sum(parameter.numel() for parameter in bucket) for bucket in buckets]
    first = own.index("all_reduce") if "all_reduce" in own else len(own)
    there = own[:first].count("gradient")
    if len(buckets) > 1 and there > len(buckets[0]):
        of = own[: own.index("backward ended")].count("gradient")
        return (
            f"right gradients, but the first message leaves when {there} of {of} gradients are there; those of the "
            f"first bucket were there after {len(buckets[0])}."
        )
    sent = _sent(counts)
    if sent != sizes * STEPS:
        one = sent[: len(sent) // STEPS] if len(sent) % STEPS == 0 else sent
        return f"right gradients, but a step's messages have {one} values; in_buckets makes {sizes}."
    if "gradient" not in own[first : own.index("waited")] and len(buckets) > 1:
        return "right gradients, but backward stands still until the first bucket's sum is there."
    ends = [place for place, what in enumerate(own) if what in ("backward ended", "finished")]
    pairs = zip(ends[::2], ends[1::2], strict=True)
    waits = [sum(what.startswith("waited") for what in own[a:b]) for a, b in pairs]
    if waits[-1] > waits[0]:
        return f"right gradients, but in step {STEPS} finish reads {waits[-1]} notes; {waits[0]} are of this step."
    return ""


def _fault_of_late_buckets(own: list[str], buckets: list[set[str]]) -> str:
    """Say which bucket stays behind although it and all before it are full; own: what rank 0 did, in its order."""
    there: set[str] = set()
    left = 0
    for what in own:
        may = left < len(buckets) and set().union(*buckets[: left + 1]) <= there
        if may and (what == "gradient" or what == "backward ended"):
            moment = "backward has ended" if what == "backward ended" else "the next gradient is there"
            return (
                f"right gradients, but bucket {left} of 0..{len(buckets) - 1} has not left when {moment}, "
                "although it and all before it were full."
            )
        if what.startswith("of "):
            there.add(what.removeprefix("of "))
        if what == "all_reduce":
            left += 1
        if what == "finished":
            there = set()
            left = 0
    return ""


def _sent(counts: World) -> list[int]:
    """Return how many values each all-reduce had, in the order of the calls."""
    begun = [next(iter(call.values())) for call in counts.calls]
    return [detail[0] for kind, detail, _ in begun if kind == "all_reduce"]


def _in_backward(own: list[str]) -> bool:
    """Say whether a rank sent anything before its first backward had ended."""
    return "all_reduce" in own[: own.index("backward ended")]


def _difference(got: Tensor, due: Tensor, own: Tensor | None) -> str:
    """Say how a wrong tensor differs from the right one; own: the gradient before anything was sent."""
    if got.shape != due.shape:
        return f"has the shape {list(got.shape)}, the parameter {list(due.shape)}"
    if own is not None and close(got, own):
        return "is still that of the rank's own rows"
    factor = float((got * due).sum() / (due * due).sum())
    if close(got, factor * due):
        return f"is {factor:.4g} times what it should be"
    place = int((got - due).abs().argmax())
    return f"has {got.flatten()[place]:.6f} at place {place}, it should be {due.flatten()[place]:.6f}"


def _fault_of_an_unused_layer(answer: Any, ranks_without: tuple[int, ...], limits: tuple[int, ...]) -> str:
    """Train one step on 2 ranks, some of which leave a layer out of forward: these must say so."""
    who = "both ranks" if len(ranks_without) == 2 else f"rank {ranks_without[0]} alone"
    inside = "0." if limits != LAYERS else ""  # another name, which no fixed text has
    weight = f"{inside}spare.weight"
    bias = f"{inside}spare.bias"
    where = f"on 2 ranks, a model whose layer {inside}spare is left out of forward on {who}"

    def rank(dist: Any) -> str:
        number = dist.get_rank()
        model: nn.Module = TwoBranches(0, with_spare=number not in ranks_without)
        if inside:
            model = nn.Sequential(model)
        wrapped = answer(model, dist, list(limits))
        model(drawn_values(12, 6)[number::2]).square().mean().backward()
        try:
            wrapped.finish()
        except StuckError:
            return "waits for ever"
        except RuntimeError as error:
            return f"says {error}"
        return "returns without a word"

    with in_case(where, _OF_DDP):
        ends, _ = in_threads(rank, 2)
    for number in ranks_without:
        end = ends[number]
        if not end.startswith("says "):
            return f"{where}: rank {number}'s finish {end}, and the gradients are not the means."
        if not (weight in end and bias in end):
            return (
                f"{where}: rank {number}'s finish raises RuntimeError, but its text, {end[5:]!r}, does not name "
                f"{weight} and {bias}."
            )
        if any(f"{layer}.weight" in end for layer in ("left", "right", "top")):
            return (
                f"{where}: rank {number}'s error names layers, too, that have their gradients: {end[5:]!r}."
            )
    return ""
