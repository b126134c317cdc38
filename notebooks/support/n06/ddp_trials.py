"""How a MyDDP of notebook 06 is tried: on imitated ranks, with models in which the order of gradients differs.

fault_of_ddp  says what is wrong with an answer, "" if nothing
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from lib.text import plural
from support.built import in_buckets
from support.imitated import Handle, Imitation, World, in_threads
from support.kit.judged import Fault
from support.kit.raised import InCaseError, in_case
from support.kit.threads import StuckError
from support.n06.ddp_models import LAYERS, LIMITS, SPARE_WITH_TOP, TOGETHER, Turned, TwoBranches, chain
from support.n06.drawn import ASK_DIST, Noting, close, drawn_values, told_apart

STEPS = 3
_ASKED_OF_GRADIENTS = ("flatten", "reshape", "view", "ravel", "clone", "detach", "data", "numel", "copy_")
_OF_DDP = {
    "object has no attribute 'wait'": "all_reduce gives a handle only with async_op=True, and for what has left.",
    **dict.fromkeys(
        [
            "but got NoneType",
            *(f"'NoneType' object has no attribute '{name}'" for name in _ASKED_OF_GRADIENTS),
        ],
        "A gradient is None until it has come in this step: ask first whether all of the bucket are there.",
    ),
    "was written to before": "Under way a tensor must stay as it is: each message needs one of its own.",
    **ASK_DIST,
    "hook on a tensor that doesn't require gradient": "A frozen parameter gets no gradient, so no hook: leave it out.",
    "view size is not compatible": "A gradient lies in memory as its parameter does: flatten() takes that, too.",
}


def fault_of_ddp(answer: Any) -> str:
    """Train on 1 to 3 ranks, each with weights of its own at first, and on the whole batch in one process."""
    if _is_right_alone(answer):
        fault = _fault_of_two_models(answer, same=False) or _fault_of_two_models(answer, same=True)
        if fault:
            return fault
    for world in (2, 3, 1):  # one rank last: whoever sends nothing has the right gradients there
        fault = _fault_of_training(answer, world, lambda seed, rank: chain(seed), LIMITS, "")
        if fault:
            return fault
    what = "a model of two branches, which rank 1 computes in the other order"
    for limits in (LAYERS, TOGETHER):
        fault = _fault_of_training(answer, 2, lambda seed, r: TwoBranches(seed, turned=r == 1), limits, what)
        if fault:
            return fault
    unused: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((0, 1), LAYERS),
        ((1,), LAYERS),
        ((0, 1), (1,)),
        ((0, 1), SPARE_WITH_TOP),
    )
    for ranks_without, limits in unused:
        fault = _fault_of_an_unused_layer(answer, ranks_without, limits)
        if fault:
            return fault
    single = "a model in float32"
    turned = "a model with a transposed parameter of its own, and with a bias that two layers share"
    frozen = "a model with a frozen layer"
    return (
        _fault_of_training(answer, 2, lambda seed, rank: TwoBranches(seed, frozen="right"), LAYERS, frozen)
        or _fault_of_an_unused_layer(answer, (0, 1), LAYERS, good_steps=1)
        or _fault_of_an_unused_layer(answer, (0, 1), LAYERS, frozen="top")
        or _fault_of_an_unused_layer(answer, (0, 1), LAYERS, frozen="right")
        or _fault_of_training(answer, 2, lambda seed, rank: chain(seed).float(), LIMITS, single)
        or _fault_of_training(answer, 2, lambda seed, rank: Turned(seed), LIMITS, turned)
        or _fault_of_training(answer, 3, lambda seed, rank: chain(seed), LIMITS, "", members=(2, 0, 1))
    )


def _is_right_alone(answer: Any) -> bool:
    """Say whether one model on one rank trains as it should; what is shared between models does not show there."""
    try:
        return not _fault_of_training(answer, 1, lambda seed, rank: chain(seed), LIMITS, "")
    except (Exception, SystemExit) as error:
        if isinstance(error, InCaseError) and isinstance(error.error, TimeoutError):
            raise
    return False


def _fault_of_two_models(answer: Any, same: bool) -> str:
    """Wrap two models in one process, over the same dist or not; say what the second has to do with the first."""

    def live(dist: Any) -> str:
        models = chain(0), chain(1)  # alike: one alone was tried
        first = Noting(dist)
        dists = first, first if same else Noting(Imitation(World(1), 0))
        second = dists[1].world
        rows = drawn_values(12, 6)
        wrapped = [answer(*given, list(LIMITS)) for given in zip(models, dists, strict=True)]
        dists[1].asked.clear()
        models[0](rows).sum().backward()
        try:
            wrapped[0].finish()
        except RuntimeError as error:
            return f"the first one's finish raises {error!r} before the second has had a backward"
        if dists[1].asked and not same:
            return f"the first one calls {dists[1].asked[0]} of the second's dist"
        answer(TwoBranches(2), _OfTwo(World(1), 0), list(LIMITS))
        models[0].zero_grad()
        models[0](rows).sum().backward()
        before = len(_sent(second, 0))
        begun_before = len(second.unwaited[0])
        models[1](rows).sum().backward()
        buckets = len(in_buckets(list(models[1].parameters())[::-1], LIMITS))  # type: ignore[no-untyped-call]
        sent = len(_sent(second, 0)) - before
        if sent != buckets:
            return f"the second one sends {sent} of its {plural(buckets, 'bucket')} in a step"
        begun = second.unwaited[0][begun_before:]
        own = [gradient.clone() for gradient in _gradients(models)]
        wrapped[0].finish()
        if second.unwaited[0] != begun:
            return "the first one's finish does not wait for just its own sums"
        wrapped[1].finish()
        if not all(map(close, _gradients(models), own)):
            return "after both finish calls the gradients are no longer those of the only rank"
        if any(each.world.unwaited[0] for each in dists):
            return "after both finish calls there are sums for which nobody has waited"
        return ""

    where = f"two models in one process, {'over the same dist' if same else 'each with a dist of its own'}"
    with in_case(where, _OF_DDP):
        (fault,), _ = in_threads(live, 1)
    places = "on the dist" if same else "on the class, in a default argument or in a global"
    return f"{where}: {fault}; one alone is right. What stands {places} is the same for all." if fault else ""


class _OfTwo(Imitation):
    """A dist that counts a second rank, which is not there."""

    def get_world_size(self) -> int:
        """Return 2."""
        return 2

    def broadcast(self, tensor: Tensor, src: int, group: None = None, async_op: bool = False) -> Any:
        """Leave the tensor as it is."""
        return Handle(self, "broadcast", lambda: None) if async_op else None


def _gradients(models: Iterable[nn.Module]) -> list[Tensor]:
    found = [parameter.grad for model in models for parameter in model.parameters()]
    return [torch.zeros(0) if grad is None else grad for grad in found]


def _fault_of_training(
    answer: Any,
    world: int,
    make: Callable[[int, int], nn.Module],
    limits: tuple[int, ...],
    what: str,
    members: tuple[int, ...] = (),
) -> str:
    """Compare some steps of training with one process.

    what: the model, where it is not the plain chain. members: the ranks of the job, as the group numbers them.
    """
    whole = _train(make(0, 0), lambda model: model, slice(None), lambda what: None)
    given = [list(limits) for _ in range(world)]
    group = f"a group of its own, of ranks {members} of the job" if members else ""
    where = ", ".join(filter(None, [f"on {plural(world, 'rank')}", what, group]))

    def rank(job: Any) -> Any:
        dist = job.among(members) if members else job
        number = dist.get_rank()
        mine = slice(number, None, dist.get_world_size())

        def note(event: str) -> None:
            dist.world.events.append((dist.number, event))

        return _train(make(number, number), lambda model: answer(model, dist, given[number]), mine, note)

    with in_case(where, _OF_DDP):
        seen, counts = in_threads(rank, world)
    events = [[what for r, what in counts.events if r == number] for number in range(world)]
    done = [own[own.index("wrapped") + 1 :] for own in events]
    sent = [_sent(counts, number) for number in range(world)]
    sent = [sizes[len(sizes) - own.count("all_reduce") :] for sizes, own in zip(sent, done, strict=True)]
    fault = _fault_of_steps(seen, whole, done[0], where)
    changed = [left for left in given if left != list(limits)]
    if not fault and changed:
        fault = f"{where}: limits was {list(limits)}, your code has made {changed[0]} of it; the next model gets that."
    if not fault:
        named = {p: name for name, p in make(0, 0).named_parameters() if p.requires_grad}
        buckets = in_buckets(list(named)[::-1], limits)  # type: ignore[no-untyped-call]
        names = [{named[p] for p in bucket} for bucket in buckets]
        fault = _fault_of_messages(done, sent, counts, buckets, names)
        fault = f"{where}: {fault}" if fault else ""
    gradients = [step["gradient"] for step in seen[0]]
    return Fault(fault, known_by=(fault, gradients, sent[0], _in_backward(done[0]))) if fault else ""


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
    note("wrapped")
    optimizer = torch.optim.SGD(trained.values(), lr=0.01, momentum=0.9)

    def gradients() -> dict[str, Tensor]:
        found = {name: parameter.grad for name, parameter in trained.items()}
        return {name: torch.zeros(0) if grad is None else grad.clone() for name, grad in found.items()}

    for step in range(STEPS):
        weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        now: dict[str, Any] = {"weight": weights}
        now["buffer"] = {name: value.clone().double() for name, value in model.named_buffers()}
        optimizer.zero_grad()
        given = drawn_values(12, 6, seed=step)[rows].to(next(model.parameters()).dtype)
        (model(given).tanh() - 0.5).square().mean().backward()
        note("backward ended")
        now["own"] = gradients()
        getattr(wrapped, "finish", lambda: None)()
        note("finished")
        seen.append({**now, "gradient": gradients()})
        optimizer.step()
    return seen


def _fault_of_steps(seen: list[Any], whole: Any, own: list[str], where: str) -> str:
    """Compare weights, buffer and gradients of all ranks and steps with those of one process."""
    for step, what, r in product(range(STEPS), ("weight", "buffer", "gradient"), range(len(seen))):
        got = seen[r][step][what]
        due = whole[step][what]
        wrong = [name for name in due if not close(got[name], due[name])]
        if wrong:
            first = wrong[0]
            mine = seen[r][step]["own"].get(first) if what == "gradient" else None
            how = f"the {what} of {first} {_difference(got[first], due[first], mine)}"
            many = f"step {step}, rank {r}: {len(wrong)} of {plural(len(due), what)} not as in one process"
            none = "" if "all_reduce" in own else " There was no all-reduce."
            return f"{where}, {many}; {how}.{none}"
    return ""


def _fault_of_messages(
    done: list[list[str]],
    sent: list[list[int]],
    counts: World,
    buckets: list[list[Tensor]],
    names: list[set[str]],
) -> str:
    """Say which rank waits too early, sends too late or leaves something.

    done: by rank what it did in the steps, in its order. sent: by rank the values in each of its messages.
    """
    for begun in counts.unwaited.values():
        if begun:
            return f"{begun[0]} is never waited for."
    for rank, own in enumerate(done):
        fault = _fault_of_first(own, buckets) or _fault_of_sizes(own, sent[rank], buckets)
        fault = fault or _fault_of_waits(own, sum(map(len, buckets))) or _fault_of_late_buckets(own, names)
        if fault:
            return f"right gradients, but on rank {rank} {fault}"
    return ""


def _fault_of_first(own: list[str], buckets: list[list[Tensor]]) -> str:
    """Say whether the first message leaves when it may; own: what a rank did, in its order."""
    if "all_reduce" not in own[: own.index("finished")]:
        return "no bucket makes an all-reduce in step 0."
    there = own[: own.index("all_reduce")].count("gradient")
    if len(buckets) == 1 or there <= len(buckets[0]):
        return ""
    of = own[: own.index("backward ended")].count("gradient")
    return (
        f"the first message leaves when {there} of {of} gradients are there; those of the "
        f"first bucket were there after {len(buckets[0])}."
    )


def _fault_of_sizes(own: list[str], sent: list[int], buckets: list[list[Tensor]]) -> str:
    """Say in which step other messages than the buckets leave."""
    due = [sum(parameter.numel() for parameter in bucket) for bucket in buckets]
    sizes = iter(sent)
    steps: list[list[int]] = [[]]
    for what in own:
        if what == "all_reduce":
            steps[-1].append(next(sizes))
        if what == "finished":
            steps.append([])
    for step, now in enumerate(steps[:STEPS]):
        if now != due:
            return f"the messages of step {step} have {now} values; in_buckets makes {due}."
    return ""


def _fault_of_waits(own: list[str], gradients: int) -> str:
    """Say whether a rank waits for a sum while backward has more to compute, or for sums of an earlier step."""
    there = 0
    waits = []
    for what in own:
        if what == "gradient":
            there += 1
        if what == "waited" and 0 < there < gradients:
            return (
                f"your code waits for a sum when {there} of {gradients} gradients are there: backward "
                "stands still meanwhile."
            )
        if what == "finished":
            waits.append(0)
            there = 0
        elif what.startswith("waited") and there == gradients:
            waits = waits or [0]
            waits[-1] += 1
    if waits and waits[STEPS - 1] > waits[0]:
        last = STEPS - 1
        return (
            f"your code waits for a sum {waits[last]} times in step {last}, and {waits[0]} times in step 0."
        )
    return ""


def _fault_of_late_buckets(own: list[str], buckets: list[set[str]]) -> str:
    """Say which bucket stays behind although it and all before it are full; own: what a rank did, in its order."""
    there: set[str] = set()
    left = 0
    for what in own:
        may = left < len(buckets) and set().union(*buckets[: left + 1]) <= there
        if may and (what == "gradient" or what == "backward ended"):
            moment = "backward has ended" if what == "backward ended" else "the next gradient is there"
            return (
                f"bucket {left} of 0..{len(buckets) - 1} has not left when {moment}, "
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


def _sent(counts: World, rank: int) -> list[int]:
    """Return how many values each all-reduce of a rank had, in the order of its calls."""
    calls = counts.calls or next(iter(counts.calls_among.values()), [])
    begun = [call[rank] for call in calls if rank in call]
    return [same[0] for kind, same, _ in begun if kind == "all_reduce"]


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
        return f"is {told_apart(factor, 1)[0]} times what it should be"
    place = int((got - due).abs().argmax())
    now, right = told_apart(float(got.flatten()[place]), float(due.flatten()[place]))
    return f"has {now} at place {place}, it should be {right}"


def _fault_of_an_unused_layer(
    answer: Any,
    ranks_without: tuple[int, ...],
    limits: tuple[int, ...],
    frozen: str = "",
    good_steps: int = 0,
) -> str:
    """Train on 2 ranks, some of which leave a layer out of forward: these must say so.

    good_steps: so many before it, in which all ranks use the layer.
    """
    who = "both ranks" if len(ranks_without) == 2 else f"rank {ranks_without[0]} alone"
    inside = "0." if limits != LAYERS else ""  # another name, which no fixed text has
    left_out = "used in one step and left out of the next" if good_steps else "left out of forward"
    where = f"on 2 ranks, a model whose layer {inside}spare is {left_out} on {who}"
    where += f" and whose layer {frozen} is frozen" if frozen else ""

    def rank(dist: Any) -> str:
        number = dist.get_rank()
        branches = TwoBranches(0, frozen=frozen)
        model = nn.Sequential(branches) if inside else branches
        wrapped = answer(model, dist, list(limits))
        for _ in range(good_steps):
            model(drawn_values(12, 6)[number::2]).square().mean().backward()
            wrapped.finish()
            model.zero_grad()
        branches.with_spare = number not in ranks_without
        try:
            model(drawn_values(12, 6)[number::2]).square().mean().backward()
        except StuckError:  # its last hook waits for the others
            return "is never reached, backward waits for ever"
        try:
            wrapped.finish()
        except StuckError:
            return "waits for ever"
        except RuntimeError as error:
            return f"says {error}"
        return "returns without a word"

    with in_case(where, _OF_DDP):
        ends, counts = in_threads(rank, 2)
    trained = [p for p in TwoBranches(0, frozen=frozen).parameters() if p.requires_grad]
    buckets = len(in_buckets(trained[::-1], limits))  # type: ignore[no-untyped-call]
    for number in ranks_without:
        end = ends[number]
        if not end.startswith("says "):
            left = len(_sent(counts, number)) - good_steps * buckets
            return f"{where}: rank {number}'s finish {end}; {left} of {buckets} buckets have left."
        fault = _fault_of_names(end.removeprefix("says "), inside, frozen)
        if fault:
            return f"{where}: rank {number}'s {fault}"
    return ""


def _fault_of_names(said: str, inside: str, frozen: str) -> str:
    """Say which names an error lacks, or has too many: those of spare are due. inside: what stands before each name."""
    named = set(re.findall(r"\w+(?:\.\w+)*\.(?:weight|bias)\b", said))
    due = [f"{inside}spare.weight", f"{inside}spare.bias"]
    unnamed = " and ".join(name for name in due if name not in named)
    if unnamed:
        return f"finish raises RuntimeError, but its text, {said!r}, does not name {unnamed}."
    wrong = sorted(named - set(due))
    if not wrong:
        return ""
    layer = wrong[0].removeprefix(inside).rpartition(".")[0]
    why = "is frozen" if layer == frozen else "has its gradient"
    if layer not in ("left", "right", "top"):
        why = "is no parameter of the model"
    return f"error names {wrong[0]}, too, which {why}: {said!r}."
