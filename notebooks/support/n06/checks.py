"""Predictions and exercises of notebook 06, data parallel."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from lib._values import plural
from support.built import Gather, MyDDP, all_gather, load, reduce_scatter, save
from support.checks import Exercise, Guess, Verdict, letter
from support.checks import use as use
from support.ranks import in_threads, source_of

# ---- predictions

guess_lone = Guess("the weight of a row of rank 1, by one of rank 0", lambda: 24 / 8)
"""Section 2: what a row of the short share weighs, by one of the long share."""
guess_adam = Guess("how many times as long Adam's step becomes", lambda: 1)
"""Section 2: what the sum in place of the mean, on 8 ranks, makes of a step of Adam."""
guess_ring = Guess("what each rank sends", lambda: 2 * 7 / 8, unit="GB")
"""Section 3: GB that each of 8 ranks sends to add up a gradient of 1 GB."""
guess_first_bucket = Guess("what is over of backward", lambda: 100 * 2 / 8, unit="%")
"""Section 4: per cent of backward that is over when the first of four buckets of 8 equal layers is full."""
guess_hang = Guess("what rank 0 does", lambda: "B", read=letter)
"""Of "Break it": what rank 0 does when rank 1 has no batch left."""


# ---- what the exercises have in common

Fault: TypeAlias = Callable[[Any], str]
"""Says what is wrong with an answer, "" if nothing."""


def _judged(fault: Fault, praise: str) -> Callable[[Exercise, Any], Verdict]:
    """Make a judge: a mistake is recognised by its fault, which is that of the reader's answer."""

    def judge(exercise: Exercise, answer: Any) -> Verdict:
        found = fault(answer)
        if not found:
            return exercise.right(praise)
        reasons = (f" {why}" for why, wrong in exercise.mistakes.items() if fault(wrong) == found)
        return exercise.wrong(found + next(reasons, ""))

    return judge


def _but(thing: Any, *changes: tuple[str, str]) -> Any:
    """Return a function or class of this file with some of its lines otherwise: a famous mistake."""
    text = source_of(thing)
    for old, new in changes:
        assert old in text, f"{thing.__name__} has no {old!r}"
        text = text.replace(old, new)
    space = {"torch": torch, "nn": nn, "os": os}
    exec(text, space)
    return space[thing.__name__]


def _on(world: int, error: Exception) -> str:
    return f"on {plural(world, 'rank')} your code raised {type(error).__name__}: {error}."


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- exercise 1: the two halves of a ring all-reduce


def _by_the_centre(tensor: Tensor, dist: Any) -> None:
    """Add everything up on rank 0, which then sends it to all."""
    rank, received = dist.get_rank(), torch.empty_like(tensor)
    others = range(1, dist.get_world_size())
    for other in others:
        if rank == 0:
            dist.recv(received, other)
            tensor += received
    if rank > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
    for other in others if rank == 0 else ():
        dist.send(tensor, other)


def _fault_of_halves(pair: Any) -> str:
    """Run both on 1 to 6 ranks, also where chunks are unequal; say which chunk is wrong first, and after which half."""
    for world, size in ((1, 4), (3, 6), (2, 4), (3, 7), (4, 8), (5, 3), (6, 20)):

        def held(dist: Any) -> list[Any]:
            tensor, seen = torch.arange(size) + 100 * dist.get_rank(), []  # noqa: B023
            for half in pair:
                half(tensor, dist)
                seen.append([chunk.tolist() for chunk in tensor.tensor_split(dist.get_world_size())])
            return seen

        try:
            seen, counts = in_threads(held, world)
        except Exception as error:
            return _on(world, error)
        if counts.events:
            return f"your code calls dist.{counts.events[0][1]}."
        total = world * torch.arange(size) + 100 * sum(range(world))
        due = [chunk.tolist() for chunk in total.tensor_split(world)]
        for half, name in enumerate(("reduce_scatter", "all_gather")):
            for rank in range(world):
                for chunk in (rank,) if half == 0 else range(world):
                    if seen[rank][half][chunk] != due[chunk]:
                        where = f"{plural(world, 'rank')}, a tensor of {size} values, after {name}"
                        got = f"chunk {chunk} of rank {rank} is {seen[rank][half][chunk]}"
                        owner = next((q for q in range(world) if seen[q][half][chunk] == due[chunk]), None)
                        who = "no rank has that" if owner is None else f"that is on rank {owner}"
                        return f"{where}: {got}, it should be {due[chunk]}; {who}."
        if any(counts.unwaited.values()):
            return f"{plural(world, 'rank')}: {next(filter(None, counts.unwaited.values()))[0]} is never waited for."
        if max(counts.sent.values(), default=0) > 2 * (world - 1) * -(-size // world):
            most = max(counts.sent.values())
            return (
                f"{world} ranks, a tensor of {size} values: one rank sends {most}, in a ring all send alike."
            )
    return ""


_WAIT = ("sending.wait()", "")
_BLOCKING = (_WAIT, ("isend", "send"))

check_ring = Exercise(
    "reduce_scatter and all_gather",
    reference=(reduce_scatter, all_gather),
    answers=2,
    judge=_judged(
        _fault_of_halves,
        "on 1 to 6 ranks every chunk is the sum of all, and no rank sends more than another.",
    ),
    mistakes={
        "All send, nobody receives: begin with isend, then receive, then wait.": (
            _but(reduce_scatter, *_BLOCKING),
            _but(all_gather, *_BLOCKING),
        ),
        "The second half must take over what arrives: whoever adds again counts ranks twice.": (
            reduce_scatter,
            _but(reduce_scatter, ("rank - 1 - step", "rank - step"), ("rank - 2 - step", "rank - 1 - step")),
        ),
        "The first half must add what arrives to its own part, not replace it.": (
            _but(reduce_scatter, ("arriving += received", "arriving.copy_(received)")),
            all_gather,
        ),
        "The sum is complete, but on another rank: chunk r belongs to rank r. Where must its journey begin?": (
            _but(reduce_scatter, ("rank - 1 - step", "rank - step"), ("rank - 2 - step", "rank - 1 - step")),
            _but(all_gather, ("rank - step", "rank + 1 - step"), ("rank - 1 - step", "rank - step")),
        ),
        "Always your own chunk? After the first step you send on what has just arrived.": (
            _but(reduce_scatter, ("rank - 1 - step", "rank"), ("rank - 2 - step", "rank - 1")),
            _but(all_gather, ("rank - step", "rank"), ("rank - 1 - step", "rank - 1")),
        ),
        "isend only begins: until its handle's wait() has returned, the chunk may not be touched.": (
            _but(reduce_scatter, _WAIT),
            _but(all_gather, _WAIT),
        ),
        "That is a finished collective; build it from send, isend and recv.": (
            lambda tensor, dist: dist.all_reduce(tensor),
            lambda tensor, dist: tensor.mul_(1),
        ),
        "Right sums, but over a centre: rank 0 sends everything to everybody.": (
            _by_the_centre,
            _by_the_centre,
        ),
    },
)
"""Exercise 1: (reduce_scatter, all_gather) on imitated ranks, where a deadlock is seen at once."""


# ---- exercise 2: MyDDP


def _model(seed: int) -> nn.Sequential:
    sizes = (6, 5, 4, 4, 3)
    model = nn.Sequential(*(nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise(sizes)))
    for number, parameter in enumerate(model.parameters()):
        parameter.data = _random(*parameter.shape, seed=100 * seed + number)
    model.register_buffer("mean", _random(2, seed=100 * seed + 99))
    return model


STEPS = 3


def _train(seed: int, wrap: Callable[[nn.Module], Any], rows: slice, note: Callable[[str], object]) -> Any:
    """Train some steps on these rows of 12; return weights and gradients of each step, flat."""
    model, seen = _model(seed), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: note("gradient"))  # type: ignore[no-untyped-call]
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(STEPS):
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        optimizer.zero_grad()
        (model(_random(12, 6, seed=step)[rows]).tanh() - 0.5).square().mean().backward()
        note("backward ended")
        getattr(wrapped, "finish", lambda: None)()
        gradients = [torch.zeros(0) if p.grad is None else p.grad.flatten() for p in model.parameters()]
        buffer = next(model.buffers()).clone()
        seen.append({"weights": weights, "buffer": buffer, "gradient": torch.cat(gradients)})
        optimizer.step()
    return seen


def _fault_of_ddp(answer: Any) -> str:
    """Train on 1 to 3 ranks, each with weights of its own at first, and on the whole batch in one process."""
    whole = _train(0, lambda model: model, slice(None), lambda what: None)
    for world in (1, 2, 3):

        def rank(dist: Any) -> Any:
            note = partial(_note, dist)
            mine = slice(dist.get_rank(), None, dist.get_world_size())
            return _train(dist.get_rank(), lambda model: answer(model, dist), mine, note)

        try:
            seen, counts = in_threads(rank, world)
        except Exception as error:
            return _on(world, error)
        for step in range(STEPS):
            for r in range(world):
                for what, due in whole[step].items():
                    if difference := _difference(seen[r][step][what], due, world):
                        return (
                            f"on {plural(world, 'rank')}, step {step}: the {what} of rank {r} {difference}."
                        )
        if any(counts.unwaited.values()):
            return f"{next(filter(None, counts.unwaited.values()))[0]} is never waited for."
        own = [what for r, what in counts.events if r == 0]
        if (calls := own.count("all_reduce")) != 2 * STEPS:
            return f"right gradients, but {calls} all-reduces in {STEPS} steps; two buckets make {2 * STEPS}."
        sent = own.index("all_reduce")
        if "gradient" not in own[sent : own.index("backward ended")]:
            return "right gradients, but no bucket leaves before backward has computed the last: nothing overlaps."
        if "gradient" not in own[sent : own.index("waited")]:
            return "right gradients, but backward stands still until the first bucket's sum is there."
    return ""


def _note(dist: Any, what: str) -> None:
    dist.world.events.append((dist.get_rank(), what))


def _difference(got: Tensor, due: Tensor, world: int) -> str:
    if len(got) != len(due):
        return f"has {len(got)} values, the model {len(due)}"
    if torch.allclose(got, due, rtol=0, atol=1e-12):
        return ""
    if torch.allclose(got, world * due, rtol=0, atol=1e-12):
        return f"is {world} times what it should be"
    place = int((got - due).abs().argmax())
    return f"has {got[place]:.6f} at place {place}, one process with the whole batch {due[place]:.6f}"


check_ddp = Exercise(
    "MyDDP",
    reference=MyDDP,
    methods=("__init__",),  # whoever has written this has begun: a `finish` that is still `pass` is a mistake
    judge=_judged(
        _fault_of_ddp,
        f"on 1, 2 and 3 ranks weights, buffer and gradients of {STEPS} steps are those of one process, to 1e-12, and "
        "backward goes on while the first bucket is on its way.",
    ),
    mistakes={
        "Every rank has begun with weights of its own, and equal gradients keep them different.": _but(
            MyDDP, ("dist.broadcast(tensor, src=0)", "pass")
        ),
        "Buffers are broadcast, too: module.state_dict() has both.": _but(
            MyDDP, ("module.state_dict().values()", "[p.detach() for p in module.parameters()]")
        ),
        "A blocking all-reduce in the hook stops backward: async_op=True only begins.": _but(
            MyDDP, (", async_op=True", ""), ("handle.wait()", "pass")
        ),
        "All-reduce makes the sum; what is needed is the mean.": _but(
            MyDDP, ("(flat / self.dist.get_world_size())", "flat")
        ),
        "What you read before the handle's wait() is your own gradient.": _but(
            MyDDP, ("handle.wait()", "pass")
        ),
        "The means are computed, and never put into parameter.grad.": _but(
            MyDDP, ("parameter.grad.copy_(mean.view_as(parameter))", "pass")
        ),
        "finish() is too late to send: a hook must do it.": _but(
            MyDDP,
            ("self.arrived(bucket)", "None"),
            ("in (last_first[:half], last_first[half:])", "in ()"),
            ("for bucket, flat", "for bucket in self.halves: self.arrived(bucket)\n        for bucket, flat"),
            ("half = len(last_first) // 2", "self.halves = last_first[:4], last_first[4:]; half = 4"),
        ),
        "One bucket is full only when backward is over.": _but(
            MyDDP, ("(last_first[:half], last_first[half:])", "[last_first]")
        ),
    },
)
"""Exercise 2: a class whose `finish()` waits; compared with one process, and asked when it sends."""


# ---- exercise 3: a gather that has a gradient


def _fault_of_gather(answer: Any) -> str:
    """Let every rank have a loss of its own over the points of all; compare with one process that has them all."""
    for world in (1, 2, 3, 4):
        points, turns = _random(world, 2, 3), _random(world, 3, 2 * world, seed=1)
        everything = points.clone().requires_grad_()
        losses = [(everything.flatten(0, 1) @ turn).square().sum() for turn in turns]
        (due,) = torch.autograd.grad(torch.stack(losses).sum(), everything)

        def rank(dist: Any) -> tuple[Tensor, Tensor]:
            own = points[dist.get_rank()].clone().requires_grad_()  # noqa: B023
            gathered = answer.apply(own, dist)
            (gradient,) = torch.autograd.grad((gathered @ turns[dist.get_rank()]).square().sum(), own)  # noqa: B023
            return gathered.detach(), gradient

        try:
            seen, _ = in_threads(rank, world)
        except Exception as error:
            return _on(world, error)
        for r, (gathered, gradient) in enumerate(seen):
            if not torch.equal(gathered, points.flatten(0, 1)):
                return f"on {plural(world, 'rank')}: rank {r} must get the points of rank 0, of rank 1, and so on."
            if gradient.shape != due[r].shape or not torch.allclose(gradient, due[r], rtol=0, atol=1e-9):
                found, text = gradient.flatten().tolist()[:2], due[r].flatten().tolist()[:2]
                found, text = ([round(value, 3) for value in values] for values in (found, text))
                return f"on {plural(world, 'rank')}: rank {r}'s gradient begins {found}, right is {text}."
    return ""


check_gather = Exercise(
    "Gather",
    reference=Gather,
    methods=("forward", "backward"),
    judge=_judged(
        _fault_of_gather,
        "on 1 to 4 ranks its gradient is that of one process which has all points and all losses.",
    ),
    mistakes={
        "That is what your own loss says of your points; the losses of the others depend on them, too.": _but(
            Gather, ("ctx.dist.all_reduce(total)", "")
        ),
        "The sum belongs here; the mean is DDP's business.": _but(
            Gather, ("get_rank()], None", "get_rank()] / ctx.dist.get_world_size(), None")
        ),
        "That part of the gradient belongs to another rank's points.": _but(
            Gather, ("[ctx.dist.get_rank()]", "[-1 - ctx.dist.get_rank()]")
        ),
    },
)
"""Exercise 3: an autograd Function, used as `Gather.apply(own, dist)`."""


# ---- exercise 4: save and load


class _Unwritable:
    """Stands for the kill: whoever writes it is stopped in the middle."""

    def __reduce__(self) -> Any:
        raise InterruptedError("the process dies here, in the middle of writing")


def _go_on(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> nn.Module:
    for step in steps:
        optimizer.zero_grad()
        torch.autograd.backward(model(_random(8, 6, seed=step)).square().mean())
        optimizer.step()
    return model


def _new(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = _model(seed)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def _fault_of_state(pair: Any) -> str:
    """Save after 3 steps of 6, load into a new process's first weights, go on; then die while saving again."""
    write, read = pair
    more: Any = {"step": 3, "dealer": {"epoch": 0, "consumed": 180}}
    with tempfile.TemporaryDirectory() as folder:
        path, first, again = Path(folder) / "state.pt", _new(0), _new(1)
        try:
            _go_on(*first, range(3))
            write(path, *first, more)
            if (found := read(path, *again)) != more:
                return f"load should return {more}, it returned {found}."
            states = [_go_on(*run, range(3, 6)).state_dict().values() for run in (first, again)]
        except Exception as error:
            return f"your code raised {type(error).__name__}: {error}."
        if not all(map(torch.equal, *states)):
            return "three steps after loading, the weights are not those of a run that nothing disturbed."
        with suppress(InterruptedError):
            write(path, *first, {"step": _Unwritable()})
        try:
            found = read(path, *_new(2))
        except Exception as error:
            return f"killed while it saved again, nothing can be loaded any more: {type(error).__name__}."
    return (
        ""
        if found == more
        else f"killed while it saved again, load returns {found}, not what was saved before."
    )


check_state = Exercise(
    "save and load",
    reference=(save, load),
    answers=2,
    judge=_judged(
        _fault_of_state,
        "a run that loads goes on bit for bit as one that nothing disturbed, and a kill while saving leaves the "
        "old file.",
    ),
    mistakes={
        "You write onto the only good file: write beside it, then os.replace.": (
            _but(save, ('f"{path}.unfinished"', "path"), ("os.replace(unfinished, path)", "")),
            load,
        ),
        "Adam's two moments are part of the state: without them it begins to guess anew.": (
            save,
            _but(load, ('optimizer.load_state_dict(state["optimizer"])', "")),
        ),
        "Without its place in the epoch a new attempt does not know which rows are done.": (
            save,
            _but(load, ('return state["more"]', "return {}")),
        ),
    },
)
"""Exercise 4: (save, load); a run that died and goes on must be the run that did not die."""
