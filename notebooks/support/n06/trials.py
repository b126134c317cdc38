"""What the answers of notebook 06 do when they are tried: each function says what is wrong with one, "" if nothing."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lib.text import plural
from support.kit.raised import in_case, named
from support.ranks import World, in_threads


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _close(got: Tensor, due: Tensor) -> bool:
    return got.shape == due.shape and torch.allclose(got, due, rtol=0, atol=1e-9)


# ---- exercise 1: the two halves of a ring all-reduce


#: Ranks and values: also where chunks are unequal, and one is empty.
_RINGS = ((1, 4), (3, 6), (2, 4), (3, 7), (4, 8), (5, 3), (6, 20))


def fault_of_halves(pair: Any) -> str:
    """Run both on 1 to 6 ranks, also where chunks are unequal; say which chunk is wrong first, and after which half."""
    for world, size in _RINGS:
        with in_case(f"on {plural(world, 'rank')}"):
            seen, counts = in_threads(lambda dist: _halves_run(pair, dist, size), world)  # noqa: B023
        if counts.events:
            return f"your code calls dist.{counts.events[0][1]}."
        fault = _fault_of_chunks(seen, world, size) or _fault_of_sends(counts, world, size)
        if fault:
            return fault
    return ""


def _halves_run(pair: Any, dist: Any, size: int) -> list[Any]:
    """Run both halves on a rank; return the chunks after each, and how many messages it had sent by then."""
    rank = dist.get_rank()
    tensor = torch.arange(size) + 100 * rank
    seen: list[Any] = []
    for half in pair:
        half(tensor, dist)
        chunks = [chunk.tolist() for chunk in tensor.tensor_split(dist.get_world_size())]
        sent = sum(sender == rank for sender, _ in dist.world.posted)
        seen.append((chunks, sent))
    return seen


def _fault_of_chunks(seen: list[Any], world: int, size: int) -> str:
    """Compare the chunks of all ranks with the sums; after the first half only chunk r of rank r counts."""
    total = world * torch.arange(size) + 100 * sum(range(world))
    due = [chunk.tolist() for chunk in total.tensor_split(world)]
    for half, name in enumerate(("reduce_scatter", "all_gather")):
        for rank, chunk in product(range(world), range(world)):
            now, messages = seen[rank][half]
            if now[chunk] != due[chunk] and (half or chunk == rank):
                owner = next((q for q in range(world) if seen[q][half][0][chunk] == due[chunk]), None)
                who = "no rank has that" if owner is None else f"that is on rank {owner}"
                where = f"{plural(world, 'rank')}, a tensor of {size} values, after {name}: chunk {chunk}"
                before = seen[rank][0][1] if half else 0
                times = messages - before
                few = (
                    "" if times == world - 1 else f" It sends {plural(times, 'time')} there; W − 1 is right."
                )
                return f"{where} of rank {rank} is {now[chunk]}, it should be {due[chunk]}; {who}.{few}"
    return ""


def _fault_of_sends(counts: World, world: int, size: int) -> str:
    """Say whether all was waited for, went to a neighbour, and was no more than a ring sends."""
    if any(counts.unwaited.values()):
        return (
            f"{plural(world, 'rank')}: {next(filter(None, counts.unwaited.values()))[0]} is never waited for."
        )
    hops = {(to - rank) % world for rank, to in counts.posted}
    if hops - {1} and hops != {world - 1}:  # nor all round the other way
        peers = [
            " and ".join(str(to) for to in range(world) if (by, to) in counts.posted) for by in range(world)
        ]
        told = ", ".join(f"rank {rank} to {to}" for rank, to in enumerate(peers) if to)
        return f"right sums, but of {world} ranks {told}; in a ring rank 0 sends to rank 1 only, and so on."
    most = max(counts.sent.values(), default=0)
    ring = 2 * (world - 1) * -(-size // world)
    if most > ring:
        where = f"right sums, but with {world} ranks and {size} values a rank sends {most}"
        return f"{where}: the two halves of a ring send {ring}, chunk by chunk."
    return ""


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
    """Train some steps on these rows of 12; return buffer, and weights and gradients by parameter, of each step."""
    model = _model(seed)
    seen: list[dict[str, Any]] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: note("gradient"))  # type: ignore[no-untyped-call]
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def gradients() -> dict[str, Tensor]:
        found = {name: parameter.grad for name, parameter in model.named_parameters()}
        return {name: torch.zeros(0) if grad is None else grad.clone() for name, grad in found.items()}

    for step in range(STEPS):
        now: dict[str, Any] = {"weight": {name: p.detach().clone() for name, p in model.named_parameters()}}
        now["buffer"] = {name: value.clone() for name, value in model.named_buffers()}
        optimizer.zero_grad()
        (model(_random(12, 6, seed=step)[rows]).tanh() - 0.5).square().mean().backward()
        note("backward ended")
        now["own"] = gradients()
        getattr(wrapped, "finish", lambda: None)()
        note("finished")
        seen.append({**now, "gradient": gradients()})
        optimizer.step()
    return seen


_OF_DDP = {"'NoneType' object": "One gradient is there: ask first whether all of its bucket are."}


def fault_of_ddp(answer: Any) -> str:
    """Train on 1 to 3 ranks, each with weights of its own at first, and on the whole batch in one process."""
    whole = _train(0, lambda model: model, slice(None), lambda what: None)
    for world in (2, 3, 1):  # one rank last: whoever sends nothing has the right gradients there

        def rank(dist: Any) -> Any:
            number = dist.get_rank()
            mine = slice(number, None, dist.get_world_size())

            def note(event: str) -> None:
                dist.world.events.append((number, event))

            return _train(number, lambda model: answer(model, dist), mine, note)

        with in_case(f"on {plural(world, 'rank')}", _OF_DDP):
            seen, counts = in_threads(rank, world)
        if any(counts.unwaited.values()):
            return f"{next(filter(None, counts.unwaited.values()))[0]} is never waited for."
        own = [what for r, what in counts.events if r == 0]
        fault = _fault_of_steps(seen, whole) or _fault_of_overlap(own)
        if fault:
            return fault
    return ""


def _fault_of_steps(seen: list[Any], whole: Any) -> str:
    """Compare weights, buffer and gradients of all ranks and steps with those of one process."""
    world = len(seen)
    for step, r, what in product(range(STEPS), range(world), ("weight", "buffer", "gradient")):
        got = seen[r][step][what]
        due = whole[step][what]
        wrong = [name for name in due if not _close(got[name], due[name])]
        if wrong:
            first = wrong[0]
            own = seen[r][step]["own"].get(first) if what == "gradient" else None
            how = f"the {what} of {first} {_difference(got[first], due[first], own)}"
            where = (
                f"on {plural(world, 'rank')}, step {step}, rank {r}: {len(wrong)} of {plural(len(due), what)}"
            )
            return f"{where} not as in one process; {how}."
    return ""


def _fault_of_overlap(own: list[str]) -> str:
    """Say whether sending goes on beside backward; own: what rank 0 did, in its order."""
    calls = own.count("all_reduce")
    if calls != 2 * STEPS:
        return f"right gradients, but {calls} all-reduces in {STEPS} steps; two buckets make {2 * STEPS}."
    sent = own.index("all_reduce")
    if "gradient" not in own[sent : own.index("backward ended")]:
        return (
            "right gradients, but no bucket leaves before backward has computed the last: nothing overlaps."
        )
    if "gradient" not in own[sent : own.index("waited")]:
        return "right gradients, but backward stands still until the first bucket's sum is there."
    ends = [place for place, what in enumerate(own) if what in ("backward ended", "finished")]
    pairs = zip(ends[::2], ends[1::2], strict=True)
    waits = [sum(what.startswith("waited") for what in own[a:b]) for a, b in pairs]
    last = waits[-1]
    if last > waits[0]:
        return f"right gradients, but in step {STEPS} finish reads {last} notes; {waits[0]} are of this step."
    return ""


def _difference(got: Tensor, due: Tensor, own: Tensor | None) -> str:
    """Say how a wrong tensor differs from the right one; own: the gradient before anything was sent."""
    if got.shape != due.shape:
        return f"has the shape {list(got.shape)}, the parameter {list(due.shape)}"
    if own is not None and _close(got, own):
        return "is still that of the rank's own rows"
    factor = float((got * due).sum() / (due * due).sum())
    if _close(got, factor * due):
        return f"is {factor:.4g} times what it should be"
    place = int((got - due).abs().argmax())
    return f"has {got.flatten()[place]:.6f} at place {place}, it should be {due.flatten()[place]:.6f}"


# ---- exercise 3: a gather that has a gradient

_OF_GATHER = {
    "incorrect number of gradients": "backward returns as much as forward takes: the gradient of own, None for dist.",
    "invalid gradient at index 0": "Each rank returns the part that belongs to its own points only.",
}


def fault_of_gather(answer: Any) -> str:
    """Let every rank have a loss of its own over the points of all; compare with one process that has them all."""
    for world in (1, 2, 3, 4):
        points = _random(world, 2, 3)
        turns = _random(world, 3, 2 * world, seed=1)
        with in_case(f"on {plural(world, 'rank')}", _OF_GATHER):
            seen, _ = in_threads(lambda dist: _gathered(answer, dist, points, turns), world)  # noqa: B023
        fault = _fault_of_gathered(seen, points, turns)
        if fault:
            return f"on {plural(world, 'rank')}: {fault}"
    return ""


def _gathered(answer: Any, dist: Any, points: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Be one rank: return what is gathered, the gradient of its own points, and how the given one was changed."""
    rank = dist.get_rank()
    own = points[rank].clone().requires_grad_()
    gathered = answer.apply(own, dist)
    turn = turns[rank]
    given = (2 * (gathered @ turn) @ turn.T).detach()
    before = given.clone()
    (gradient,) = torch.autograd.grad(gathered, own, given)
    return gathered.detach(), gradient, given - before


def _fault_of_gathered(seen: list[tuple[Tensor, Tensor, Tensor]], points: Tensor, turns: Tensor) -> str:
    everything = points.clone().requires_grad_()
    losses = [(everything.flatten(0, 1) @ turn).square().sum() for turn in turns]
    (due,) = torch.autograd.grad(torch.stack(losses).sum(), everything)
    for r, (gathered, _, _) in enumerate(seen):
        if not torch.equal(gathered, points.flatten(0, 1)):
            own = ", its own stand first" if _close(gathered[: len(points[r])], points[r]) and r else ""
            return f"rank {r} must get the points of rank 0, then of rank 1, and so on{own}."
    for r, (_, gradient, changed) in enumerate(seen):
        if changed.any():
            return "backward has changed the gradient it was given, which belongs to autograd."
        if not _close(gradient, due[r]):
            return f"rank {r}'s gradient begins {_first_two(gradient)}, right is {_first_two(due[r])}."
    return ""


def _first_two(values: Tensor) -> list[float]:
    return [round(value, 3) for value in values.flatten().tolist()[:2]]


# ---- exercise 4: save and load


class _Killed(BaseException):
    """Stands for the kill: nothing that an answer does with errors catches it."""


def _go_on(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        torch.autograd.backward(model(_random(8, 6, seed=step)).square().mean())
        optimizer.step()


def _new(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = _model(seed)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def _equal(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def _watch(path: Path, write: Callable[[], object], kill: bool = False) -> tuple[list[bytes | None], bool]:
    """Call `write` and look at the file before every line of Python that runs in it, the libraries' included.

    Returns what the file held, None where it was not there, and whether another one lay beside it.
    kill: end the call as soon as another lies beside it.
    """
    seen: list[bytes | None] = []
    last: object = ""
    beside = False
    for left in set(path.parent.iterdir()) - {path}:  # by an earlier call
        left.unlink()

    def look(*_: object) -> Any:
        nonlocal last, beside
        now = None
        with suppress(FileNotFoundError):
            found = path.stat()
            now = (found.st_ino, found.st_size, found.st_mtime_ns)
        if now != last:
            last = now
            seen.append(path.read_bytes() if now else None)
        beside = beside or bool(set(os.listdir(path.parent)) - {path.name})
        if kill and beside:
            raise _Killed
        return look

    tracer = sys.gettrace()
    sys.settrace(look)
    try:
        write()
    except _Killed:
        pass
    finally:
        sys.settrace(tracer)
    return seen, beside


MORE: Any = {"step": 3, "dealer": {"epoch": 0, "consumed": 180}}


def fault_of_state(pair: tuple[Any, Any]) -> str:
    """Load into other first weights and go on; save again, watched and killed; load files that are damaged."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        write, read = pair
        return (
            _fault_of_loading(write, read, path)
            or _fault_of_saving(write, path)
            or _fault_of_damage(read, path)
        )


def _fault_of_loading(write: Any, read: Any, path: Path) -> str:
    first = _new(0)
    again = _new(1)
    other = _new(1)
    _go_on(*first, range(3))
    with in_case("the first save"):
        write(path, *first, MORE)
    if not path.exists():
        there = ", ".join(sorted(each.name for each in path.parent.iterdir())) or "nothing"
        return f"save(path, …) has left no file at path, {path.name}; in its folder lies {there}."
    with in_case("load after the first save"):
        found = read(path, *again)
    if not _equal(first[0], again[0]):
        still = ": they are still those from before" if _equal(again[0], other[0]) else ""
        return f"after load the weights and buffers are not those that were saved{still}."
    if found != MORE:
        return f"load should return {MORE}, it returned {found}."
    for run in (first, again):
        _go_on(*run, range(3, 6))
    if not _equal(first[0], again[0]):
        return "load gives the right weights, but three steps later they are not those of a run nothing disturbed."
    return ""


def _fault_of_saving(write: Any, path: Path) -> str:
    old = path.read_bytes()
    run = _new(3)
    with in_case("save where an older file stands"):
        seen, beside = _watch(path, lambda: write(path, *run, MORE))
    new = path.read_bytes()
    bad = [content for content in seen if content not in (old, new)]
    if bad:
        held = "is not there" if bad[0] is None else f"has {len(bad[0]):,} bytes of {len(new):,}"
        though = ", though the new one lies beside it" if beside else ""
        return f"save again, and for a moment the file at path {held}{though}; a kill then costs the state."
    if not beside:
        return "the new file is not written in path's folder: only inside one file system is renaming one operation."
    with in_case("save, killed while it writes"):
        _watch(path, lambda: write(path, *_new(4), MORE), kill=True)
    if path.read_bytes() != new:
        return "killed while it wrote the new file, save has put the unfinished one in the place of the old."
    try:
        write(path, *run, MORE)
    except Exception as error:
        return f"after a kill has left an unfinished file, save raises {named(error)}."
    return ""


def _fault_of_damage(read: Any, path: Path) -> str:
    content = path.read_bytes()
    saved, _ = _new(3)
    sizes = 0, len(content) // 2, len(content) - 1
    damaged = [("that was cut off", content[:size]) for size in sizes]
    for place in range(len(content) // 3, len(content), len(content) // 40):
        flipped = bytes([content[place] ^ 64])
        damaged.append(("with one byte changed", content[:place] + flipped + content[place + 1 :]))
    for what, bad in damaged:
        path.write_bytes(bad)
        model, optimizer = _new(5)
        before, _ = _new(5)
        try:
            found = read(path, model, optimizer)
        except Exception:  # it refuses the file, in whatever words
            if not _equal(model, before) or optimizer.state:
                return f"load refuses a file {what}, but only after it has changed model or optimizer."
        else:
            if found != MORE or not _equal(model, saved):
                return f"load takes a file {what}, and goes on with wrong values without a word."
    return ""
