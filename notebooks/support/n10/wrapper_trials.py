"""What the wrapper of notebook 10 is tried on, exercise 4: data without a gradient, writes in place, the flag."""

# mypy: allow-untyped-calls

from __future__ import annotations

import math
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support import built
from support.kit.raised import in_case
from support.kit.values import kind_of


def _fault_of_data(answer: Any) -> str:
    layer = nn.Linear(4, 4)
    data = torch.ones(2, 4)
    required = list[bool]()

    # no module, whose parameters one could ask for
    def function(data: Tensor, beside: Tensor | float = 0) -> Any:
        required.append(data.requires_grad)
        return layer(data + beside)

    output = answer(function, data)
    if not isinstance(output, Tensor):
        return f"my_checkpoint must return the function's output, not {kind_of(output)}."
    if output.requires_grad:
        output.sum().backward()
    if layer.weight.grad is None:
        return "no input requires a gradient, and the layer's weights get none."
    if len(required) == 1:
        return "with data that require no gradient the function ran once, in forward, with its graph: no checkpoint."
    if data.requires_grad:
        return "the caller's data now requires a gradient."
    before = nn.Linear(4, 4)
    x = torch.ones(2, 4, requires_grad=True)
    (answer(function, data, before(x)) + answer(layer, x)).sum().backward()
    if before.weight.grad is None or x.grad is None:
        return "the layer before the checkpoint has no gradient: you have cut the inputs off."
    if any(required):
        return "when the function runs again its data require a gradient, which is computed for nothing."
    hidden = before(x)
    with in_case("Repair 1: a layer's output goes into the checkpoint and around it"):
        (answer(layer, hidden) + hidden).sum().backward()
    if not answer(nn.Embedding(3, 4), torch.tensor([1, 2])).requires_grad:
        return "token numbers can't require a gradient, and the embedding's weights get none."
    return _fault_of_device(answer)


def _fault_of_device(answer: Any) -> str:
    """Look at what is handed to the notebook's Checkpoint, which asks its first input for the device."""
    space = getattr(answer, "__globals__", {})
    first = list[str]()

    class Looks:
        @staticmethod
        def apply(_: Any, *inputs: Tensor) -> Tensor:
            first.append(inputs[0].device.type)
            return inputs[-1]

    theirs = {name: space[name] for name in ("Checkpoint", "MyCheckpoint") if name in space}
    space.update(dict.fromkeys(theirs, Looks))
    try:
        with suppress(Exception):  # of an answer that needs values, and "meta" has none
            answer(torch.tanh, torch.ones(2, device="meta"))
    finally:
        space.update(theirs)
    if first[:1] == ["cpu"]:
        return (
            "the data are on a device, and the first input that Checkpoint gets is on the CPU: "
            "whoever asks that one for the device, as our MyCheckpoint does, keeps the CPU's random state alone."
        )
    return ""


def _fault_of_writes(answer: Any) -> str:
    layer = nn.Linear(4, 4)
    before = nn.Linear(4, 4)

    # Written before, and on a tensor of its own, and a number that equals nothing: all must pass.
    with in_case("Repair 2: an input was written before the call, and nobody writes into it now"):
        answer(lambda x: layer(x).tanh_(), torch.zeros(2, 4).add_(1)).sum().backward()
    with in_case("an input that holds nan, and nobody writes"):
        answer(layer, torch.full((2, 4), math.nan)).sum().backward()
    makes: dict[str, Callable[[], Tensor]] = {
        "data": lambda: torch.ones(2, 4),
        "a layer's output": lambda: before(torch.ones(2, 4)),
        "zeros, which hold the same as before,": lambda: torch.zeros(2, 4),
        "token numbers": lambda: torch.arange(4),
        "a leaf that requires a gradient": lambda: torch.ones(2, 4, requires_grad=True),
    }

    def passes(written: int | None, kinds: tuple[str, ...], versions: tuple[int, ...]) -> bool:
        """Say whether the call raises no RuntimeError if the function writes into one of these inputs."""
        given = [makes[kind]() for kind in kinds]
        for x, times in zip(given, versions, strict=True):
            for _ in range(times):
                x.detach().add_(0)  # the same version

        def function(*inputs: Tensor) -> Tensor:
            if written is not None:
                inputs[written].mul_(2)
            return layer(sum(x.float() for x in inputs))  # type: ignore[no-any-return]

        try:
            answer(function, *given)
        except RuntimeError:
            return False
        return True

    fixed: list[tuple[int, tuple[str, ...]]] = [
        (0, ("data",)),
        (1, ("a layer's output", "data")),
        (0, ("zeros, which hold the same as before,",)),
        (0, ("data", "data")),
        (0, ("token numbers",)),
        (0, ("a layer's output",)),
        (0, ("a leaf that requires a gradient",)),
    ]
    ways = [(written, kinds, (0,) * len(kinds)) for written, kinds in fixed]
    chance = random.Random(4)
    for _ in range(40):
        kinds = tuple(chance.choices(list(makes), k=chance.randint(1, 4)))
        ways.append((chance.randrange(len(kinds)), kinds, tuple(chance.choices((0, 1, 2), k=len(kinds)))))
    for written, kinds, versions in ways:
        which = f"input {written + 1} of {len(kinds)} ({kinds[written].rstrip(',')})"
        told = f" Versions before: {', '.join(map(str, versions))}." if any(versions) else ""
        if passes(written, kinds, versions):
            return f"the function changed {which} in place, and the call of my_checkpoint raised no RuntimeError.{told}"
        if not passes(None, kinds, versions):
            return f"inputs: {', '.join(kinds)}; nobody writes into them, and my_checkpoint raised RuntimeError.{told}"
    with torch.no_grad():
        if passes(0, ("data",), (0,)):
            return "with gradients off the function changed its input in place, and the call raised no RuntimeError."
    return ""


def _fault_of_flag(answer: Any) -> str:
    space = getattr(answer, "__globals__", {})
    asks = space.get("is_recomputing", built.is_recomputing)
    here = space.get("here", built.here)
    said: list[bool] = []
    weight = torch.ones(2, requires_grad=True)

    def inner(x: Tensor) -> Tensor:
        said.append(asks())
        return (x * weight).tanh()

    for requires, which in (True, ""), (False, ", with data that require no gradient"):
        said.clear()
        answer(inner, torch.ones(2, requires_grad=requires)).sum().backward()
        if said != [False, True]:
            return _not_as_expected(f"first forward, second forward{which}", said, [False, True])
        if asks():
            return "after backward is_recomputing() still says True; expected False."
    with suppress(ZeroDivisionError):  # in the second forward
        answer(lambda x: x * (1 / (1 - asks())), torch.ones(2, requires_grad=True)).sum().backward()
    if asks():
        return (
            "the second forward raised an error, and ever since is_recomputing() says True; expected False."
        )
    said.clear()
    x = torch.ones(2, requires_grad=True)
    answer(lambda x: inner(answer(inner, 2 * x)), x).sum().backward()
    nested = [False, False, True, True, True]
    if said != nested:
        return _not_as_expected("a checkpoint within another, and a layer behind it", said, nested)
    if asks():
        return "after backward through a checkpoint within another is_recomputing() still says True; expected False."
    said.clear()
    y = answer(inner, x).sum()
    y.backward(retain_graph=True)
    y.backward()
    if said != [False, True, True]:
        return _not_as_expected("forward, and two backwards through a kept graph", said, [False, True, True])
    y = answer(inner, x).sum()
    here.recomputing = True
    y.backward()
    if not asks():
        return _not_as_expected("before a second run and after it", [True, False], [True, True])
    here.recomputing = False
    return _fault_of_an_inner_error(answer, asks)


def _fault_of_an_inner_error(answer: Any, asks: Callable[[], bool]) -> str:
    """Let a checkpoint within another fail, and go on in the outer one."""
    said = list[bool]()

    def fails(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    def outer(x: Tensor) -> Tensor:
        try:
            answer(fails, x)
        except ZeroDivisionError:
            said.append(asks())
        return x.tanh()

    answer(outer, torch.ones(2, requires_grad=True)).sum().backward()
    if len(said) != 2:
        return "the function raises ZeroDivisionError in a checkpoint within another, and nobody hears of it."
    if said != [False, True]:
        where = "the function raises an error in a checkpoint within another, and the outer one goes on"
        return _not_as_expected(where, said, [False, True])
    return ""


def _fault_in_a_thread(answer: Any) -> str:
    """Try the flag where nobody has set it yet, as in the worker of a pipeline."""
    with in_case("in a new thread"), ThreadPoolExecutor(1) as pool:
        found = pool.submit(_fault_of_flag, answer).result()
    return f"in a new thread: {found}" if found else ""


def _fault_between_threads(answer: Any) -> str:
    """Go backward in another thread than forward, as a device does: a flag has to begin in each."""
    asks = getattr(answer, "__globals__", {}).get("is_recomputing", built.is_recomputing)
    said = list[bool]()

    def function(x: Tensor) -> Tensor:
        said.append(asks())
        return x.tanh()

    case = "forward in one new thread, backward in another"
    with in_case(f"Repair 3: {case}"), ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        y = one.submit(answer, function, torch.ones(2, requires_grad=True)).result()
        other.submit(y.sum().backward).result()
    return "" if said == [False, True] else _not_as_expected(case, said, [False, True])


def _fault_beside_the_repairs(answer: Any) -> str:
    """Draw from one seed through the wrapper and through Checkpoint alone: whatever else draws shows."""
    same = "my_checkpoint must return what Checkpoint.apply returns"
    case = f"{same}: the sum of a dropout, in bfloat16, from one seed"
    with in_case(case):
        mine = _drawn(answer)
    for (name, due), got in zip(_drawn(built.MyCheckpoint.apply).items(), mine.values(), strict=True):
        if (got.dtype, got.shape) != (due.dtype, due.shape) or not torch.equal(got, due):
            return f"{case}: {name} is another."
    with torch.no_grad(), in_case(f"{same}: with gradients off"):
        if answer(nn.Linear(4, 4), torch.ones(2, 4)).requires_grad:
            return f"{same}: with gradients off the output requires one."
    return ""


def _drawn(call: Callable[..., Any]) -> dict[str, Tensor]:
    x = torch.ones(64, requires_grad=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        y = call(lambda x: F.dropout(x, 0.5).sum().bfloat16(), x)
        state = torch.get_rng_state()
        y.sum().backward()
        later = torch.get_rng_state()
    gradient = torch.zeros_like(x) if x.grad is None else x.grad
    return {
        "the output": y.detach(),
        "the random state behind forward": state,
        "the gradient of the input": gradient,
        "the random state behind backward": later,
    }


def _not_as_expected(where: str, said: list[bool], expected: list[bool]) -> str:
    told, wanted = (", ".join(map(str, flags)) for flags in (said, expected))
    return f"{where}: is_recomputing() says {told}; expected {wanted}."


def fault_of_wrapper(answer: Any) -> str:
    """Say which of the three faults is still there, and how it shows."""
    here = getattr(answer, "__globals__", {}).get("here", built.here)
    flags = _fault_of_flag, _fault_in_a_thread, _fault_between_threads
    kinds = (1, _fault_of_data), (2, _fault_of_writes), *((3, flag) for flag in flags)
    for number, kind in kinds:
        here.recomputing = False
        try:
            with in_case(f"Repair {number}"):
                found = kind(answer)
        finally:
            here.recomputing = False
        if found:
            return found if found.startswith("my_checkpoint must") else f"Repair {number}: {found}"
    return _fault_beside_the_repairs(answer)
