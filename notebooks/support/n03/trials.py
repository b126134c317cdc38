"""What the answers of notebook 03 are tried with: samplers by stories, the two controls, a score of many ranks."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lib.text import plural
from support.kit.judged import Fault
from support.kit.raised import in_case
from support.kit.threads import StuckError
from support.kit.values import NO_RETURN, kind_of
from support.ranks import World, in_threads

# ---- exercise 2: one sampler lives through a story

PASS = "list"
LENGTH = "len"
BEGIN = "begin a pass"
REST = "list the pass begun"
SET = "set_epoch"
MADE = "made"
ALONE = "is torch's own generator left alone?"
ITSELF = "the sampler itself, so that two passes would be one: return a new iterator, iter(share)"
NAMES = ("num_replicas", "rank", "shuffle", "seed", "drop_last")


class OnlyLong:
    """A dataset that has a length; an item of it is no index, and it remembers that one was asked for."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.asked = False

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> str:
        self.asked = True
        if not 0 <= index < self._size:
            raise IndexError(index)
        return f"image {index}"


def told_by(kind: Any) -> Callable[..., Any]:
    """Make the function of a case: a sampler of this kind is made and lives through a story, which is told in a list.

    story: actions with commas between them. "made": whether it can be made, by each of several ranks.
    """

    def answer(story: str, size: int, rank: Any, **made: Any) -> Any:
        if story == MADE:
            return [_refusal(kind, OnlyLong(size), made | {"rank": number}) for number in rank]
        dataset = OnlyLong(size)
        sampler = _made(kind, dataset, made | {"rank": rank})
        before = torch.get_rng_state()
        try:
            told = [_live(sampler, action, before) for action in story.split(", ")]
        finally:
            torch.set_rng_state(before)
        if dataset.asked:
            told.append("and an item of the dataset was asked for, of which it needs the length alone")
        return [said for said in told if said is not ...]

    begun: list[Iterator[Any]] = []

    def _live(sampler: Any, action: str, before: Tensor) -> Any:
        """Let it happen; return what is to be told of it, `...` if nothing."""
        word, _, epoch = action.partition("(")
        if word == SET:
            sampler.set_epoch(int(epoch.removesuffix(")")))
            return ...
        if action == BEGIN:
            begun[:] = [sampler.__iter__()]
            return ITSELF if begun[0] is sampler else ...
        if action == LENGTH:
            return sampler.__len__()
        if action == ALONE:
            return torch.equal(before, torch.get_rng_state())
        passed = begun[0] if action == REST else sampler.__iter__()
        return ITSELF if passed is sampler else _indices(passed)

    return answer


def _indices(passed: Any) -> Any:
    """Return the indices that an iterator gives, or what is odd about it, in words."""
    if passed is None:
        return f"nothing: __iter__ {NO_RETURN}"
    if not isinstance(passed, Iterator):
        return f"a {type(passed).__name__}, which is no iterator: return iter(share)"
    found = list(itertools.islice(passed, 100))  # an endless one ends
    odd = [type(index).__name__ for index in found if not isinstance(index, int)]
    return f"indices of type {odd[0]} (.tolist() makes a tensor Python's numbers)" if odd else found


def _made(kind: Any, dataset: OnlyLong, made: dict[str, Any]) -> Any:
    return kind(dataset, *(made[name] for name in NAMES))


def _refusal(kind: Any, dataset: OnlyLong, made: dict[str, Any]) -> str:
    """Say whether a sampler can be made for a rank."""
    try:
        _made(kind, dataset, made)
    except ValueError:
        return f"{made['rank']} refused"
    except Exception as error:
        return f"{made['rank']}: a {type(error).__name__}, no ValueError"
    return f"{made['rank']} taken"


# ---- exercise 3: two controls, each of which changes one thing

GROUPS = 8
ROWS = 4


def _groups(epoch: Tensor) -> Counter[tuple[int, ...]]:
    return Counter(tuple(sorted(group)) for group in epoch.flatten(0, 1).tolist())


def _steps(epoch: Tensor) -> list[list[int]]:
    return [sorted(step) for step in epoch.flatten(1).tolist()]


def _kept(before: Tensor, after: Tensor) -> tuple[bool, bool]:
    """Say whether every group is still together, and whether every step still has its images, in whatever order."""
    return _groups(before) == _groups(after), sorted(_steps(before)) == sorted(_steps(after))


#: By what is kept: (groups, steps). What is said of a control.
_SEEN = {
    (True, True): "every group is still together, and every step holds the images that it held",
    (True, False): "every group is still together, and the steps hold other images",
    (False, True): "the groups are torn up, and every step holds the images that it held",
    (False, False): "the groups are torn up, and the steps hold other images, too",
}


def _only(before: Tensor, after: Tensor) -> str:
    """Say what has changed where every group and every step is still together."""
    old, new = (epoch.sort(dim=-1)[0] for epoch in (before, after))
    if torch.equal(before, after):
        return "nothing is changed"
    if torch.equal(old, new):
        return "only the images within a group come in another order"
    if _steps(before) == _steps(after):
        return "each step stands where it stood, and only its groups come in another order"
    if {*map(str, old.tolist())} == {*map(str, new.tolist())}:
        return "only the steps come in another order"
    return "the steps come in another order, and the groups within them"


def _still_together(before: Tensor, after: Tensor) -> float:
    """Return the share of the pairs of groups of one step that are in one step again; both have the same groups."""
    step_of = {min(group): number for number, step in enumerate(before.tolist()) for group in step}
    kept = 0
    for step in after.tolist():
        old_steps = Counter(step_of[min(group)] for group in step)
        kept += sum(math.comb(count, 2) for count in old_steps.values())
    return kept / (len(before) * math.comb(GROUPS, 2))


def fault_of_controls(pair: Any) -> str:
    """Deal an epoch by both controls, with generators of equal and of other seeds."""
    for steps in (6, 45):
        images = torch.randperm(steps * GROUPS * ROWS, generator=torch.Generator().manual_seed(steps))
        epoch = images.view(steps, GROUPS, ROWS)
        for control, name, kept in zip(
            pair, ("new_steps", "new_company"), ((True, False), (False, True)), strict=True
        ):
            where = f"{name}, on an epoch of {steps} steps × {GROUPS} groups × {ROWS} images"
            with in_case(where):
                fault = _fault_of_control(control, epoch, name, kept)
            if fault:
                return Fault(f"{where}: {fault}", known_by=f"{name}: {getattr(fault, 'known_by', fault)}")
    return ""


def _fault_of_control(control: Any, epoch: Tensor, name: str, kept: tuple[bool, bool]) -> str:
    given = epoch.clone()
    first, again, other = (control(given, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    if first is None:
        return f"your function {NO_RETURN}."
    if not isinstance(first, Tensor) or first.shape != epoch.shape:
        shape = (
            f"a tensor of shape {list(first.shape)}" if isinstance(first, Tensor) else f"a {kind_of(first)}"
        )
        return f"it gives {shape}, not one of shape {list(epoch.shape)}."
    if not torch.equal(given, epoch):
        return "it has changed the epoch that it was given, which belongs to the caller."
    if not torch.equal(first.flatten().sort()[0], epoch.flatten().sort()[0]):
        return "an image is lost, or comes twice."
    if _kept(epoch, first) != kept:
        only = f": {_only(epoch, first)}" if _kept(epoch, first) == (True, True) else ""
        return f"{_SEEN[_kept(epoch, first)]}{only}."
    same_place = sum(a == b for a, b in zip(_steps(epoch), _steps(first), strict=True))
    if kept[1] and same_place < len(epoch):
        return f"{_SEEN[kept]}, but the steps come in another order: that is a second change."
    torn = sum((_groups(epoch) - _groups(first)).values())
    if kept[1] and torn < GROUPS * len(epoch) / 2:
        return f"only {torn} of {GROUPS * len(epoch)} groups are torn up."
    if not torch.equal(first, again):
        return (
            "two generators with the same seed give different epochs: draw from the one that you are given."
        )
    if torch.equal(first, other):
        return "generators with different seeds give the same epoch: nothing is drawn."
    if kept[0] and (together := _still_together(epoch, first)) > 1 / 3:
        return Fault(
            f"{together:.0%} of the pairs of groups that came in one step come in one step again.",
            known_by="pairs of groups",
        )
    return ""


# ---- exercise 5: one score for all ranks


FORWARD = "forward of the wrapper"
"""What a World notes beside the collectives."""


class Wrapper(nn.Module):
    """Imitates the forward of DistributedDataParallel: rank 0's buffers come first, if the one before had gradients."""

    def __init__(self, module: nn.Module, dist: Any) -> None:
        super().__init__()
        self.module = module
        self._dist = dist
        self._broadcasts = True

    def forward(self, x: Tensor) -> Any:
        """Broadcast or not, decide for the next forward, compute."""
        self._dist.world.events.append((self._dist.get_rank(), FORWARD))
        if self._broadcasts:
            for buffer in self.module.buffers():
                self._dist.broadcast(buffer, 0)
        self._broadcasts = torch.is_grad_enabled()
        return self.module(x)


def _model(rank: int) -> nn.Module:
    """Return a network with the same weights on every rank, and running averages of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        torch.manual_seed(10 + rank)
        for buffer in (model[1].running_mean, model[1].running_var):
            buffer.uniform_(0.2, 1.5)  # type: ignore[operator]
    return model.train()


def _images(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, 6, generator=generator)
    with torch.no_grad():
        right = _model(0).eval()(x).argmax(1)
    wrong = torch.rand(size, generator=generator) < 0.4
    return x, torch.where(wrong, (right + 1) % 3, right)


#: Images, ranks, batch size. The last: two ranks have a batch, the third has none.
SCORED = ((23, 2, 1), (37, 3, 5), (24, 2, 4), (9, 1, 2), (2, 3, 1))


def fault_of_score(answer: Any) -> str:
    """Evaluate on 1 to 3 imitated ranks whose shares are unequal, and compare with rank 0's model on all images."""
    for size, world, batch in SCORED:
        fault = _fault_of_score(answer, size, world, batch)
        if fault:
            return fault
    return ""


def _fault_of_score(answer: Any, size: int, world: int, batch: int) -> str:
    x, y = _images(size)
    models = [
        _model(number) for number in range(world)
    ]  # here: ranks are threads, and share torch's generator
    seen: list[World] = []

    def rank(dist: Any) -> Any:
        number = dist.get_rank()
        if number == 0:
            seen.append(dist.world)
        mine = range(number, size, world)
        loader = [(x[rows], y[rows]) for rows in (mine[k : k + batch] for k in range(0, len(mine), batch))]
        return answer(Wrapper(models[number], dist), loader, dist)

    batches = [len(range(r, size, world * batch)) for r in range(world)]
    where = f"on {plural(world, 'rank')} with {', '.join(map(str, batches))} batches"
    with in_case(where):
        try:
            scores, _ = in_threads(rank, world)
        except (StuckError, ValueError) as error:
            if not seen or not seen[0].events or _is_the_readers_own(error):
                raise
            return Fault(f"{where}: {error}.", known_by=f"{where}: {_calls(seen[0])}")
    if any(score is None for score in scores):
        return f"{where}: your function {NO_RETURN}."
    if any(isinstance(score, str) or not hasattr(score, "__float__") for score in scores):
        return f"{where}: {scores[0]!r} is no score."
    with torch.no_grad():
        hits = int((_model(0).eval()(x).argmax(1) == y).sum())
    got = [float(score) for score in scores]
    due = hits / size
    wrong = [number for number in range(world) if abs(got[number] - due) > 1e-6]
    if wrong:
        said = f"rank {wrong[0]} says {got[wrong[0]]:.4f}"
        return f"{where}: rank 0's model is right on {hits} of {size} images, {due:.4f}; {said}."
    return ""


def _is_the_readers_own(error: BaseException) -> bool:
    """Say whether a ValueError comes from the reader's code, and not from collectives that do not match."""
    return isinstance(error, ValueError) and not str(error).startswith("collective ")


def _calls(world: World) -> list[list[str]]:
    """Return by rank what it has begun; whether it still waits may differ from run to run."""
    begun = [(rank, what) for rank, what in world.events if what != "waited"]
    return [[what for r, what in begun if r == rank] for rank in range(world.size)]
