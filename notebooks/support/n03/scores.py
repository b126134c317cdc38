"""What a score of many ranks is tried with, exercise 5 of notebook 03: uneven shares, and averages that have parted."""

from __future__ import annotations

import copy
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from lib.text import plural
from support.kit.judged import Fault
from support.kit.raised import in_case, known_by, told_of
from support.kit.threads import StuckError
from support.kit.values import NO_RETURN
from support.ranks import World, in_threads

LabelledBatch = tuple[Tensor, Tensor]

FORWARD = "forward of the wrapper"
"""What a World notes beside the collectives."""


class Wrapper(nn.Module):
    """Imitates the forward of DistributedDataParallel: rank 0's buffers come first, if the one before had gradients."""

    def __init__(self, module: nn.Module, dist: Any) -> None:
        super().__init__()
        self.module = module
        self._dist = dist
        # torch's names
        self.require_forward_param_sync = True
        self.require_backward_grad_sync = True
        self.broadcast_buffers = True

    def forward(self, x: Tensor) -> Any:
        """Broadcast or not, decide for the next forward, compute."""
        self._dist.world.events.append((self._dist.get_rank(), FORWARD))
        if self.require_forward_param_sync and self.broadcast_buffers:
            for buffer in self.module.buffers():
                self._dist.broadcast(buffer, 0)
        self.require_forward_param_sync = torch.is_grad_enabled() and self.require_backward_grad_sync
        return self.module(x)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Do not sum gradients while it lasts: then a forward does not ask for the buffers again."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before


class _Offset(nn.Module):
    """Adds to its input what each rank has found for itself: whole numbers in a buffer that is no running average."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.register_buffer("offset", torch.arange(3).roll(rank))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset / 4  # type: ignore[operator]


def _model_with_offset(rank: int) -> nn.Module:
    return nn.Sequential(_model(rank), _Offset(rank))


def _model(rank: int) -> nn.Module:
    """Return a network with the same weights on every rank, and running averages of its own."""
    return copy.deepcopy(_first_model(rank))


class _Restless(nn.Module):
    """Answers otherwise while training, as dropout does, and without chance."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(-1) if self.training else x


@cache
def _first_model(rank: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3), _Restless())
        torch.manual_seed(10 + rank)
        # far apart, and the variances farther: whoever leaves one of the two as it is gets another score
        model[1].running_mean.uniform_(-1.5, 1.5)  # type: ignore[operator]
        model[1].running_var.uniform_(0.05, 5.0).square_()  # type: ignore[operator]
    return model.train()


@cache
def _images(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, 6, generator=generator)
    with torch.no_grad():
        right = _model(0).eval()(x).argmax(1)
    wrong = torch.rand(size, generator=generator) < 0.4
    return x, torch.where(wrong, (right + 1) % 3, right)


#: Images, ranks, batch size. (2, 3, 1): two ranks have a batch, the third has none.
SCORED = ((23, 2, 1), (37, 3, 5), (24, 2, 4), (9, 1, 2), (2, 3, 1), (61, 4, 7))


def fault_of_score(answer: Any) -> str:
    """Evaluate on 1 to 4 imitated ranks whose shares are unequal, and compare with rank 0's model on all images.

    Then a model with one more kind of buffer, left in eval(); then one rank with many images: nothing of them may be
    kept, and no count may stop to grow.
    """
    faults = [_fault_of_score(answer, *case) for case in SCORED]
    for fault in faults:
        if fault:
            # what a rank says in a single case may be the same by chance: all that it says decides
            return Fault(fault, known_by=" | ".join(getattr(each, "known_by", each) for each in faults))
    fault = _fault_of_score(answer, 37, 3, 5, offset=True) or _fault_of_many(answer)
    if getattr(fault, "known_by", "") == "kept":  # or another thread does: ask again
        return _fault_of_many(answer)
    return fault


class Loader:
    """Makes batches when they are asked for, as a DataLoader does. note: called with the number of each, before it."""

    def __init__(
        self, rows: Sequence[Any], make: Callable[[Any], LabelledBatch], note: Callable[[int], object] = int
    ) -> None:
        self._rows = rows
        self._make = make
        self._note = note

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._rows)

    def __iter__(self) -> Iterator[LabelledBatch]:
        """Yield the batches."""
        for number, rows in enumerate(self._rows):
            self._note(number)
            yield self._make(rows)


def _fault_of_score(answer: Any, size: int, world: int, batch: int, offset: bool = False) -> str:
    x, y = _images(size)
    shares = [range(number, size, world) for number in range(world)]
    # here: ranks are threads, and share torch's generator
    make = _model_with_offset if offset else _model
    models = [make(number) for number in range(world)]

    def rank(dist: Any) -> Any:
        number = dist.get_rank()
        mine = shares[number]
        rows = [mine[k : k + batch] for k in range(0, len(mine), batch)]
        wrapper = Wrapper(models[number], dist).train(not offset)
        return answer(wrapper, Loader(rows, lambda some: (x[some], y[some])), dist)

    batches = [-(-len(share) // batch) for share in shares]
    where = f"on {plural(world, 'rank')} with {', '.join(map(str, batches))} batches"
    if offset:
        where += ", and with a model that adds a buffer of its own to its output, left in eval()"
    try:
        scores = _scores(rank, world, where)
    except Exception as error:
        return Fault(told_of(error), known_by=known_by(error))
    if isinstance(scores, str):
        return scores
    with torch.no_grad():
        hits = make(0).eval()(x).argmax(1) == y
    right = int(hits.sum())
    wrong = [number for number in range(world) if abs(scores[number] - right / size) > 1e-6]
    if not wrong:
        return ""
    each = [f"on {int(hits[share].sum())} of rank {r}'s {len(share)}" for r, share in enumerate(shares)]
    due = f"rank 0's model is right {', '.join(each)} images, in all {right} of {size}, {right / size:.6f}"
    fault = f"{where}: {due}; rank {wrong[0]} says {scores[wrong[0]]:.6f}."
    # rounded: whoever divides in float32 says the same
    return Fault(fault, known_by=f"{where}: {[round(score, 5) for score in scores]}")


def _scores(rank: Callable[[Any], Any], world: int, where: str) -> list[float] | str:
    """Return what each rank says, or what is wrong with it. Raises what a rank raised."""
    seen: list[World] = []

    def noted(dist: Any) -> Any:
        if dist.get_rank() == 0:
            seen.append(dist.world)
        return rank(dist)

    with in_case(where):
        try:
            scores, _ = in_threads(noted, world)
        except (StuckError, ValueError) as error:
            if not seen or not seen[0].events or _is_the_readers_own(error):
                raise
            return Fault(f"{where}: {error}.", known_by=f"{where}: {_calls(seen[0])}")
    if silent := [number for number, score in enumerate(scores) if score is None]:
        whose = f"rank {silent[0]}: " if silent[0] else ""
        return f"{where}: {whose}your function {NO_RETURN}."
    if any(isinstance(score, str) or not hasattr(score, "__float__") for score in scores):
        return f"{where}: {scores[0]!r} is no score."
    return [float(score) for score in scores]


# ---- many images: what is kept of them, and counts that stop to grow

#: Batches, and images of a batch; what is kept is asked before batch EARLY and before the last.
MANY = (8, 3071)
EARLY = 3
#: 2**24 hits in large batches, as many misses, then so many images in batches of one: a float32 grows by 1 up to
#: 2**24 only, and bfloat16 rounds each batch. Two thirds are hits, in whatever type their number runs over.
LARGE = [2**20 + 2**11] * 15 + [2**20 - 15 * 2**11]
SINGLES = 768
#: Of so many images one is right: 1/107 times 107 is not 1, in float32 and in float64.
MIXED = 107
BROKEN = "which is no whole number"
STOPPED = "a count has stopped"
NOT_THE_READERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


class Alive(TorchFunctionMode):
    """Knows the tensors that were made while its `with` lasts, and which of them are still there."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[weakref.ref[Tensor]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        leaves = [made] if isinstance(made, Tensor) else tree_leaves(made)
        self._made += [weakref.ref(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
        return made

    def held(self) -> int:
        """Return the bytes that they hold."""
        storages = [tensor.untyped_storage() for tensor in self._there()]
        return sum({storage._cdata: storage.nbytes() for storage in storages}.values())

    def float_count(self, more_than: int) -> str:
        """Return the type of a float of 32 bits or fewer that holds whole numbers, and one so large; or ""."""
        for tensor in self._there():
            small = tensor.is_floating_point() and tensor.element_size() <= 4 and tensor.numel() > 0
            if small and torch.equal(tensor, tensor.round()) and float(tensor.max()) > more_than:
                return str(tensor.dtype).removeprefix("torch.")
        return ""

    def _there(self) -> list[Tensor]:
        there = [tensor for reference in self._made if (tensor := reference()) is not None]
        # once each: a tensor that is changed in place is made again by every change
        self._made = [*{id(tensor): weakref.ref(tensor) for tensor in there}.values()]
        return there


def _fault_of_many(answer: Any) -> str:
    count, batch = MANY
    x, y = _images(batch)
    model = _model(0)
    alive = Alive()
    kept: list[tuple[int, int]] = []
    counts: list[str] = []
    lines = [0]

    def note(number: int) -> None:
        if number in (EARLY, count - 1):
            kept.append((alive.held(), tracemalloc.get_traced_memory()[0]))
        if number == count - 1:
            counts.append(alive.float_count(more_than=batch))

    def rank(dist: Any) -> Any:
        with alive, _lines_counted(lines):
            loader = Loader(range(count), lambda _: (x.clone(), y.clone()), note)
            return answer(Wrapper(model, dist), loader, dist)

    where = f"on 1 rank with {count} batches of {batch} images"
    tracemalloc.start()
    try:
        scores = _scores(rank, 1, where)
    finally:
        tracemalloc.stop()
    if isinstance(scores, str):
        return scores
    images = batch * (count - 1 - EARLY)
    tensors, objects = [(after - before) / images for before, after in zip(*kept[:2], strict=True)]
    one_by_one = lines[0] > images
    # the least that can be kept of an image is a byte; something of every batch may stay, and Python's free lists grow
    if tensors > 0.5 or objects > (6 if one_by_one else 0.95):
        left = round(tensors + objects)
        stays = f"on average {plural(left, 'byte')} an image {'stays' if left == 1 else 'stay'}"
        return Fault(f"{where}: {stays}, and there may be more images than memory holds.", known_by="kept")
    if not one_by_one:
        return _fault_of_growing(answer) or _fault_of_rounding(answer)
    # one by one 2**24 images would take too long: the types of what is sent and of what is kept decide
    if fault := _fault_of_rounding(answer, small=MIXED):
        return fault
    return Fault(f"{where}: you count in {counts[-1]}.", known_by=STOPPED) if counts[-1] else ""


@contextmanager
def _lines_counted(lines: list[int]) -> Iterator[None]:
    """While its `with` lasts, count in lines[0] the lines that this thread runs, but for torch's and ours."""
    before = sys.gettrace()

    def note(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename.startswith(NOT_THE_READERS):
            return None
        if event == "line":
            lines[0] += 1
        return note

    sys.settrace(note)
    try:
        yield
    finally:
        sys.settrace(before)


class _Decided(nn.Module):
    """Answers every image by its buffer: nothing is computed, so that there can be very many."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("decided", torch.tensor([1.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.decided.expand(len(x), 2)  # type: ignore[operator]


class _Exact:
    """Hands on to a `dist`, and notes floats that can't hold all whole numbers so large, and that hold none.

    small: of a float of 32 bits or fewer also one from here on, as larger ones would be sent likewise.
    """

    def __init__(self, dist: Any, rounded: list[str], small: float) -> None:
        self._dist = dist
        self._rounded = rounded
        self._small = small

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dist, name)

    def all_reduce(self, tensor: Tensor, *given: Any, **named: Any) -> Any:
        self._note(tensor, "all_reduce")
        return self._dist.all_reduce(tensor, *given, **named)

    def all_gather(self, tensors: Sequence[Tensor], tensor: Tensor) -> None:
        self._note(tensor, "all_gather")
        self._dist.all_gather(tensors, tensor)

    def broadcast(self, tensor: Tensor, *given: Any, **named: Any) -> Any:
        self._note(tensor, "broadcast", summed=False)
        return self._dist.broadcast(tensor, *given, **named)

    def _note(self, tensor: Tensor, what: str, summed: bool = True) -> None:
        if not tensor.is_floating_point() or not tensor.numel():
            return
        largest = float(tensor.abs().max())
        exact = 2 / torch.finfo(tensor.dtype).eps  # whole numbers up to this one
        if largest > exact or (largest >= self._small and exact <= 2**24):
            kind = str(tensor.dtype).removeprefix("torch.")
            self._rounded.append(f"{what} is given {largest:.0f} as {kind}, which can't hold {exact + 1:.0f}")
        elif summed and (odd := [n for n in tensor.flatten().tolist() if not n.is_integer()]):
            self._rounded.append(f"{what} is given {odd[0]}, {BROKEN}")


def _fault_of_rounding(answer: Any, small: float = torch.inf) -> str:
    """Right on each of two ranks on one image of a batch of MIXED: a share of it, times its length, is not 1."""
    rounded: list[str] = []

    def rank(dist: Any) -> Any:
        exact = _Exact(dist, rounded, small)
        return answer(Wrapper(_Decided(), exact), Loader([torch.arange(MIXED).sign()], _labelled), exact)

    where = f"on 2 ranks with {MIXED} and {MIXED} images"
    scores = _scores(rank, 2, where)
    if isinstance(scores, str):
        return scores
    if rounded:
        return _told_of_sent(where, rounded[0])
    if abs(scores[0] - 1 / MIXED) < 1e-6:
        return ""
    return f"{where}: {1 / MIXED:.7f} are right; you say {scores[0]:.7f}."


def _told_of_sent(where: str, said: str) -> Fault:
    return Fault(f"{where}: {said}.", known_by="no whole number" if BROKEN in said else "rounded on the way")


def _labelled(labels: Tensor) -> LabelledBatch:
    """Return an image for each label."""
    return torch.zeros(1, 6).expand(len(labels), 6), labels


def _alike(row: tuple[int, int]) -> LabelledBatch:
    """Return so many images with one label."""
    size, label = row
    return _labelled(torch.tensor([label]).expand(size))


def _fault_of_growing(answer: Any) -> str:
    """Right on 2**24 images, wrong on as many, then right on two of three, one after the other; on rank 1 on 2 of 3."""
    large = sum(LARGE)
    rows = [(batch, label) for label in (0, 1) for batch in LARGE] + [(1, 0), (1, 0), (1, 1)] * (SINGLES // 3)
    rounded: list[str] = []

    def rank(dist: Any) -> Any:
        exact = _Exact(dist, rounded, torch.inf)
        mine = [(2, 0), (1, 1)] if dist.get_rank() else rows
        return answer(Wrapper(_Decided(), exact), Loader(mine, _alike), exact)

    where = f"on 2 ranks, one with {large} hits, as many misses, and {SINGLES} images in batches of one"
    scores = _scores(rank, 2, where)
    if isinstance(scores, str):
        return scores
    hits = large + SINGLES // 3 * 2 + 2
    misses = large + SINGLES // 3 + 1
    images = hits + misses
    if abs(scores[0] - hits / images) < 1e-6:
        return _told_of_sent(where, rounded[0]) if rounded else ""
    # sent as bfloat16, whole counts give the score of counts that have stopped
    if rounded and "bfloat16" in rounded[0]:
        return _told_of_sent(where, rounded[0])
    stopped = [right / (right + wrong) for right in (hits, large) for wrong in (misses, large)]
    stopped += [right / whole for right in (hits, large, images - large) for whole in (images, 2 * large)]
    known = STOPPED if f"{scores[0]:.6f}" in {f"{share:.6f}" for share in stopped} else f"{scores[0]:.5f}"
    said = f"with the 3 images of the other {hits / images:.6f} are right; you say {scores[0]:.6f}."
    return Fault(f"{where}: {said}", known_by=known)


def _is_the_readers_own(error: BaseException) -> bool:
    """Say whether a ValueError comes from the reader's code, and not from collectives that do not match."""
    return isinstance(error, ValueError) and not str(error).startswith("collective ")


def _calls(world: World) -> list[list[str]]:
    """Return by rank what it has begun; whether it still waits may differ from run to run."""
    begun = [(rank, what) for rank, what in world.events if what != "waited"]
    return [[what for r, what in begun if r == rank] for rank in range(world.size)]
