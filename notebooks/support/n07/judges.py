"""What accumulate and join of notebook 07 are tried with: unequal micro-batches, and torch's own whole batch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from numbers import Real
from random import Random
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.saved import SavedTensors
from support.kit.judged import Fault
from support.kit.raised import in_case, known_by
from support.kit.values import NO_RETURN
from support.n07.kept import Kept, fault_of_rows, mix_modes, per_cent

NONE = f"your function {NO_RETURN}."
#: Said of what is off by some of float32's last digits, where numbers are float64.
FLOAT32 = "So little comes of an ε, or of float32's rounding, as when tensors of whole numbers are divided."
FLOAT32_SHARE = 5e-7


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normally distributed numbers, the same on every call with the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# ---- accumulate

PADDING = -100
PLACES = 5
Labelled: TypeAlias = list[tuple[Tensor, Tensor]]
Lengths: TypeAlias = tuple[tuple[int, ...], ...]


def _drawn_lengths(seed: int) -> Lengths:
    """Draw three to six micro-batches of one to three rows; the last one has a token."""
    chance = Random(seed)
    parts = [
        tuple(chance.randint(0, 5) for _ in range(chance.randint(1, 3))) for _ in range(chance.randint(2, 5))
    ]
    return (*parts, (chance.randint(1, 5),))


#: How many tokens each row has, micro-batch by micro-batch.
LENGTHS: tuple[Lengths, ...] = (
    ((4, 1), (2,)),
    ((3,), (3,)),
    ((5, 2), (4,)),
    ((3,),),
    ((1,), (2, 2), (3,), (4,)),
    ((4,), (0, 0), (1,)),
    ((0, 0), (2, 3), (0,)),
    *map(_drawn_lengths, range(12)),
)
#: What torch says when it takes places for classes.
CLASSES = "F.cross_entropy looks for the classes in dimension 1. Flatten rows and places into one."
#: What torch says when numbers don't lie in memory as view() needs them.
IN_ANY_ORDER = (
    "Scores and y may lie in memory in any order: flatten() and reshape() take what view() refuses."
)


def _turned(tensor: Tensor) -> Tensor:
    """Return the same numbers, in memory column by column."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def _labelled(lengths: Lengths, dtype: torch.dtype = torch.float64) -> Labelled:
    """Return rows with so many tokens: they come first, in every third part last; y lies in memory place by place."""
    parts = []
    for i, rows in enumerate(lengths):
        y = torch.arange(len(rows) * PLACES).view(len(rows), PLACES) % 3
        for row, length in enumerate(rows):
            y[row, length:] = PADDING
        y = y.flip(1) if i % 3 == 2 else y
        parts.append((random(len(rows), PLACES, 2, seed=10 + i, dtype=dtype), _turned(y)))
    return parts


class _Scores(nn.Module):
    """One layer that sees a place and the mean of its row, a weight that no loss reaches, perhaps a frozen shift."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3, bias=False).double()
        self.layer.weight.data = random(3, 2, seed=7)
        self.unused = nn.Parameter(torch.zeros(2).double())
        self.shift = nn.Parameter(torch.zeros(3).double(), requires_grad=False) if frozen else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of three classes, in memory as a convolution over the places gives them."""
        scores = _turned(self.layer(x + x.mean(-2, keepdim=True)))
        return scores if self.shift is None else scores + self.shift


class _InAGraph:
    """What a graph holds as long as it lives."""


class _Watch:
    """See in which order a model works, and what is still alive of earlier micro-batches when it goes forward."""

    def __init__(self, model: _Scores, parts: Labelled) -> None:
        self.order: list[str] = []
        self.fault = ""
        self.saved = SavedTensors([*model.parameters(), *(tensor for part in parts for tensor in part)])
        self._graphs: list[weakref.ref[_InAGraph]] = []
        model.register_forward_pre_hook(self._before)
        model.register_forward_hook(self._after)
        model.layer.weight.register_hook(lambda _: self.order.append("B"))  # type: ignore[no-untyped-call]

    def _before(self, *_: object) -> None:
        number = self.order.count("F")
        if self.fault:
            return
        if self.saved.bytes:
            self.fault = (
                f"when forward {number} begins, counted from 0, {self.saved.bytes} bytes are still kept that an "
                "earlier one has saved for its backward."
            )
        # The last graph may hang on the loop's own variables.
        elif self._alive() > 2:
            gc.collect()
            if self._alive() > 2:
                self.fault = (
                    f"when forward {number} begins, counted from 0, the graphs of {self._alive()} earlier ones are "
                    "still alive: something refers to them."
                )

    def _alive(self) -> int:
        return sum(graph() is not None for graph in self._graphs)

    def _after(self, _module: object, _given: object, output: Any) -> None:
        self.order.append("F")
        inside = _InAGraph()
        node = getattr(output, "grad_fn", None)
        if node is not None:
            node.metadata["of notebook 07"] = inside
        self._graphs.append(weakref.ref(inside))


def fault_of_accumulate(answer: Callable[[nn.Module, Labelled], Any]) -> str:
    """Compare gradient, loss and order of work with the whole batch, and see what stays alive or is changed."""
    for number in range(len(LENGTHS)):
        fault = _fault_of_case(answer, number)
        if fault:
            later = range(number + 1, min(number + 3, len(LENGTHS)))
            return Fault(fault, "\n".join([fault, *(_known_by(answer, each) for each in later)]))
    return _fault_of_second(answer) or _fault_of_frozen(answer)


def _known_by(answer: Callable[[nn.Module, Labelled], Any], number: int) -> str:
    """Return what comes of a later case: two mistakes may agree by chance in the one that is told."""
    try:
        return _fault_of_case(answer, number)
    except (Exception, SystemExit) as error:
        return known_by(error)


def _fault_of_case(answer: Callable[[nn.Module, Labelled], Any], number: int) -> str:
    told = " | ".join(", ".join(map(str, rows)) for rows in LENGTHS[number])
    case = f"micro-batches with rows of {told} tokens"
    if number % 2:
        case += ", .grad is None before"
    if _dtype(number) == torch.float32:
        case += ", in float32"
    fault = _fault_of_step(answer, LENGTHS[number], case, number)
    return fault if fault in ("", NONE) else f"{case}: {fault}"


def _dtype(number: int) -> torch.dtype:
    return torch.float32 if number % 5 == 3 else torch.float64


def _fault_of_second(answer: Callable[[nn.Module, Labelled], Any]) -> str:
    """Call it twice with one model, then with large numbers: nothing of the first call may be left on it."""
    model = _Scores()
    parts = _labelled(LENGTHS[0])
    larger = [(1000 * x, y) for x, y in parts]
    loss, due = _of_whole_batch(model, larger)  # before an answer's hooks are on it
    answer(model, parts)
    got = answer(model, larger)
    fault = _fault_of_gradient(model, due) or fault_of_loss(got, loss)
    return fault and f"a second time with the same model, numbers a thousand times as large: {fault}"


def _of_whole_batch(model: _Scores, parts: Labelled) -> tuple[float, Tensor]:
    """Return the mean loss over all tokens, and its gradient by the weight of the layer."""
    scores = torch.cat([model(x).flatten(0, 1) for x, _ in parts])
    loss = F.cross_entropy(scores, torch.cat([y.flatten() for _, y in parts]))
    (due,) = torch.autograd.grad(loss, [model.layer.weight])
    return loss.item(), due


def _fault_of_frozen(answer: Callable[[nn.Module, Labelled], Any]) -> str:
    """Freeze a weight that has a .grad: it must stay frozen, and lose that."""
    model = _Scores(frozen=True)
    assert model.shift is not None
    model.shift.grad = torch.ones_like(model.shift)
    parts = _labelled(LENGTHS[0])
    _, due = _of_whole_batch(model, parts)
    kept = Kept(model)
    case = "one weight is frozen"
    with in_case(case):
        answer(model, parts)
    fault = _fault_of_gradient(model, due) or kept.fault()
    return fault and f"{case}: {fault}"


def _fault_of_step(
    answer: Callable[[nn.Module, Labelled], Any], lengths: Lengths, case: str, number: int
) -> str:
    """number: of the case; with even ones .grad holds the step before, and each has its own modes."""
    model = _Scores().to(_dtype(number))
    mix_modes(model, number)
    parts = _labelled(lengths, _dtype(number))
    loss, due = _of_whole_batch(model, parts)
    if not number % 2:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
    given = [(x.clone(), y.clone()) for x, y in parts]
    handed = list(given)
    watch = _Watch(model, given)
    kept = Kept(model)
    with in_case(case, {"Expected target size": CLASSES, "view size is not": IN_ANY_ORDER}), watch.saved:
        got = answer(model, handed)
    if got is None:
        return NONE
    return (
        _fault_of_gradient(model, due)
        or fault_of_loss(got, loss)
        or _fault_of_order(watch, lengths)
        or _fault_of_what_stays(handed, given, parts)
        or kept.fault()
    )


def _fault_of_gradient(model: _Scores, due: Tensor) -> str:
    found = model.layer.weight.grad
    if found is None:
        return "nothing is in .grad; was backward() called?"
    if found.dtype != due.dtype:
        return f"the weights are in {found.dtype} now, they were in {due.dtype}."
    off = float((found - due).norm() / due.norm())
    times = float(found.norm() / due.norm())
    if not off < (1e-9 if due.dtype == torch.float64 else 1e-5):
        length = "as long as" if abs(times - 1) < 0.005 else f"{times:.2f} times as long as"
        rounded = f" {FLOAT32}" * (off < FLOAT32_SHARE)
        return f"the gradient is {length} the whole batch's, and {per_cent(off)} of its length away.{rounded}"
    beside = model.unused.grad
    if beside is None:
        return ""
    if beside.any():
        return (
            "right gradient, but a weight that the loss does not reach has one, too: that of the step before."
        )
    return (
        "right gradient, but the .grad of a weight that the loss does not reach holds zeros, and not None: "
        "weight decay would shrink it."
    )


def fault_of_loss(got: Any, due: float) -> str:
    """Say what is wrong with the loss that an answer with the right gradient returns, "" if nothing."""
    if isinstance(got, Tensor):
        return f"you return a tensor{' with its graph' * got.requires_grad}; return a number (`.item()`)."
    if not isinstance(got, Real):
        return f"what you return is of type {type(got).__name__}; return a number."
    if not abs(float(got) - due) < 2e-6 * abs(due):
        return f"right gradient, but the loss is {float(got):.7g}, the whole batch's {due:.7g}."
    return ""


def _fault_of_order(watch: _Watch, lengths: Lengths) -> str:
    empty = sum(not sum(rows) for rows in lengths)
    forwards = watch.order.count("F")
    if not len(lengths) - empty <= forwards <= len(lengths):
        calls = "once" if forwards == 1 else f"{forwards} times"
        return f"right gradient, but the model was called {calls} for {len(lengths)} micro-batches."
    if "FF" in "".join(watch.order) and not empty:
        return f"right gradient, but the order is {' '.join(watch.order)}: a forward follows a forward."
    return f"right gradient, but {watch.fault}" if watch.fault else ""


def _fault_of_what_stays(handed: Labelled, given: Labelled, numbers: Labelled) -> str:
    """handed: the answer's list as it is now; given: what it held; numbers: what these held."""
    if len(handed) != len(given) or any(now is not part for now, part in zip(handed, given, strict=True)):
        return "right gradient, but your list of parts is no longer what it was."
    for part, before in zip(given, numbers, strict=True):
        for name, now, number in zip("xy", part, before, strict=True):
            if not torch.equal(now, number):
                return f"right gradient, but {name} of a micro-batch has other numbers now, also for the next step."
    return fault_of_rows(tensor for part in given for tensor in part)


# ---- join


def _drawn_sizes(seed: int) -> tuple[tuple[int, ...], float]:
    chance = Random(seed)
    return tuple(chance.randint(2, 9) for _ in range(chance.randint(1, 6))), float(chance.randint(-9, 9))


#: How many values a channel has in each micro-batch, and near which number they lie.
JOINED: tuple[tuple[tuple[int, ...], float], ...] = (
    ((3, 2, 2), 3.0),
    ((4, 4), 0.0),
    ((5,), 1.0),
    ((2, 7, 3), -2.0),
    ((2,) * 4, 1e4),
    ((90, 2), 1e6),
    *map(_drawn_sizes, range(12)),
)


def _statistics(sizes: tuple[int, ...], parts: tuple[Tensor, ...]) -> list[list[Any]]:
    """Return new lists of sizes, means and variances."""
    return [list(sizes), [part.mean(0) for part in parts], [part.var(0) for part in parts]]


def fault_of_join(answer: Any) -> str:
    """Ask for the statistics that nn.BatchNorm finds in the whole batch, of two channels or, every third time, of one.

    Every second one is in float64, in which a channel may hold one number only.
    """
    found: list[str] = []
    transcript: list[str] = []
    for number, (sizes, offset) in enumerate(JOINED):
        precise = number % 2 == 1
        channels = 1 if number % 3 == 2 else 2
        x = (random(sum(sizes), channels, seed=len(sizes)) + offset).sort(0).values
        case = f"micro-batches of {', '.join(map(str, sizes))} values a channel, near {offset:g}"
        if channels == 1:
            case += ", one channel"
        if precise:
            case += ", in float64"
        if number % 4 == 3:
            x[:, 0] = offset
            case += f", channel 0 all {offset:g}"
        parts = torch.split(x if precise else x.float(), list(sizes))
        given = _statistics(sizes, parts)
        handed = _statistics(sizes, parts)
        with in_case(case):
            got = answer(*handed)
        norm = nn.BatchNorm1d(channels, momentum=1.0).double()
        norm(x)
        said = _fault_of_statistics(got, norm, precise=precise)
        if said != NONE:
            said = " ".join(filter(None, (said, _fault_of_lists(handed, given, right=not said))))
        transcript.append(f"{said} {_digits(got)}")
        if said:
            found.append(said if said == NONE else f"{case}: {said}")
    return Fault(found[0], "\n".join(transcript)) if found else ""


def _fault_of_lists(handed: list[Any], given: list[Any], *, right: bool) -> str:
    for name, now, before in zip(("sizes", "means", "variances"), handed, given, strict=True):
        if len(now) != len(before) or not all(map(_alike, now, before)):
            says = "right, but" if right else "And"
            return f"{says} {name} is no longer what it was: leave the lists as they are."
    return ""


def _alike(one: Any, other: Any) -> bool:
    """Say whether two numbers, or two tensors, are equal and of one type."""
    found = torch.as_tensor(one)
    due = torch.as_tensor(other)
    return found.dtype == due.dtype and torch.equal(found, due)


def _digits(got: Any) -> str:
    """Return an answer in a few digits: by them two answers are known to be the same."""
    if not isinstance(got, (tuple, list)):
        return ""
    return str(
        [[f"{value:.2g}" for value in torch.as_tensor(each).double().flatten().tolist()] for each in got]
    )


def _fault_of_statistics(got: Any, norm: nn.BatchNorm1d, *, precise: bool) -> str:
    if got is None:
        return NONE
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        return f"expected two tensors, mean and variance, got {type(got).__name__}."
    shares = (1e-9, 1e-8) if precise else (1e-6, 1e-2)
    judged_by = (("mean", norm.running_mean, shares[0]), ("variance", norm.running_var, shares[1]))
    for found, (name, due, share) in zip(got, judged_by, strict=True):
        assert due is not None
        if not isinstance(found, Tensor):
            return (
                f"expected the {name} as a tensor with a number for each channel, got {type(found).__name__}."
            )
        if found.shape != due.shape:
            return f"the {name} has the shape {tuple(found.shape)}, expected {tuple(due.shape)}."
        if precise and found.dtype != torch.float64:
            return f"the {name} comes back in {str(found.dtype).removeprefix('torch.')}: digits are lost."
        if not torch.allclose(found.double(), due, rtol=share, atol=1e-12 if precise else 1e-6):
            near = torch.allclose(found.double(), due, rtol=1e-2, atol=1e-3)
            shown, right = (
                ", ".join(f"{value:.{10 if near else 3}g}" for value in each.tolist())
                for each in (found, due)
            )
            rounded = precise and torch.allclose(found.double(), due, rtol=FLOAT32_SHARE, atol=0)
            return f"the {name} is {shown}, nn.BatchNorm has {right}.{f' {FLOAT32}' * rounded}"
    return ""
