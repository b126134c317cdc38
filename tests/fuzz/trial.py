"""Try a case: a GPipe or an Executor beside the plain model; what came of it is equal, refused with reason, or a fault.

The plain model is the nn.Sequential on the whole batch. Where layers draw random numbers or look at the other rows of a
micro-batch, it gets the micro-batches one after another, and each partition the random numbers that belong to it there.
"""

from __future__ import annotations

import itertools
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lib.pipeline import GPipe, SkipTracker, gather, scatter, use_skip_tracker
from lib.runtime.random_state import Seeds
from lib.schedules.executor import Executor
from tests.fuzz.cases import Case, Plan, plan
from tests.fuzz.changes import CHANGES
from tests.fuzz.kinds import Build
from tests.fuzz.layers import DRAWS_ITS_OWN_WAY, WIDTH, lanes_of, numbers

EQUAL = "equal"
REFUSED = "refused"
PLAIN_RAISES = "the plain model raises"
FAULT = "fault"


class Verdict(NamedTuple):
    """kind: one of the four above. reason: which refusal, or which fault: the same one has the same reason."""

    kind: str
    reason: str = ""
    details: str = ""


@dataclass
class Step:
    """What came of a step: the output, then all gradients and buffers, by name; or what was raised, and where."""

    output: list[Tensor] = field(default_factory=list)
    state: dict[str, Tensor | None] = field(default_factory=dict)
    error: Exception | None = None
    during: str = "forward"
    began_with: dict[str, Tensor | None] = field(default_factory=dict)


class Side:
    """One of the two models, run step by step."""

    def __init__(self, case: Case, planned: Plan, build: Build) -> None:
        self.case = case
        self.plan = planned
        self.dtype = torch.float32 if case.autocast else torch.float64
        self.partitions = [build.together(layers).to(self.dtype) for layers in planned.partitions]
        self.model: nn.Module = nn.Sequential(*itertools.chain(*self.partitions))

    def forward(self, x: Any) -> Any:
        raise NotImplementedError

    def inputs(self, number: int) -> tuple[Any, Tensor]:
        """Return the input of a step and its leaf; in a layer that begins in place the leaf is left as it is."""
        leaf = (numbers(self.case.seed * 10 + number, self.plan.rows, WIDTH) * 2).to(self.dtype)
        leaf.requires_grad_("wanted" in self.case.input)
        x = leaf * 1
        return ((x, x.detach() > 0) if "pair" in self.case.input else x), leaf

    def loss(self, output: Any, rows: Tensor) -> Tensor:
        """Return the loss of an output of these rows: a sum over rows, so that micro-batches add up to it."""
        lanes = [x for x in lanes_of(output) if x.is_floating_point()]
        seen = [x for k, x in enumerate(lanes) if k in self.case.seen] or lanes
        total = torch.zeros((), dtype=self.dtype)
        for k, x in enumerate(seen):
            total = total + (numbers(k, self.plan.rows, WIDTH)[rows] * x + x * x * 0.1).sum()
        return total

    def step(self, number: int, *, changed: bool) -> Step:
        """Go forward and back, with the change in between. What layers raise is noted, what the runner is told too."""
        if not changed and number != 1:
            self.model.zero_grad()
        made = Step(began_with=self.state())
        torch.manual_seed(self.case.seed + number)
        x, leaf = self.inputs(number)
        try:
            self.run(x, made, changed)
        except Exception as error:
            made.error = error
        made.state = self.state() | {"the input's gradient": leaf.grad}
        return made

    def run(self, x: Any, made: Step, changed: bool) -> None:
        with autocast(self.case):
            output = self.forward(x)
        made.output = [y.detach().clone() for y in lanes_of(output)]
        loss = self.loss(output, torch.arange(self.plan.rows))
        made.during = "backward"
        if changed and self.case.happens is not None:
            CHANGES[self.case.happens](self.partitions, self.case.place)
        if loss.requires_grad or self.plan.schedule is not None:  # an Executor goes back from whatever comes
            loss.backward()

    def state(self) -> dict[str, Tensor | None]:
        """Return copies of the gradients and buffers, by their place."""
        gradients = {f"gradient of {name}": p.grad for name, p in named(self.partitions, "parameters")}
        buffers = dict(named(self.partitions, "buffers"))
        return {name: x if x is None else x.detach().clone() for name, x in (gradients | buffers).items()}


def named(partitions: list[nn.Sequential], what: str) -> list[tuple[str, Tensor]]:
    """Return parameters or buffers with names that do not tell whether a layer is compiled or cut."""
    found = enumerate(getattr(nn.ModuleList(partitions), what)())
    return [(f"{what[:-1]} {k} {tuple(x.shape)}", x) for k, x in found]


def autocast(case: Case) -> AbstractContextManager[Any]:
    # without its cache: each micro-batch casts the weights anew, and their gradients are summed up in full precision
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=False) if case.autocast else nullcontext()


class PlainSide(Side):
    """The model without a pipeline."""

    def __init__(self, case: Case, planned: Plan, *, again: bool) -> None:
        super().__init__(case, planned, Build(plain=True, again=again))
        apart = {"drop", "noise", "attention", "batch_norm"}
        # What a compiled graph computes again in its backward, and what it keeps, hangs on the number of rows: where
        # weights change in between, that is another gradient.
        graph_of_rows = any(case.has("compiled", backend) for backend in DRAWS_ITS_OWN_WAY)
        self.in_parts = case.autocast or bool(apart & case.kinds) or graph_of_rows

    def forward(self, x: Any) -> Any:
        if not self.in_parts:
            with use_skip_tracker(SkipTracker()):
                return nn.Sequential(*self.partitions)(x)
        batches = scatter(x, self.plan.micro_batches)
        seeds = Seeds(len(batches), len(self.partitions))
        for i, batch in enumerate(batches):
            with use_skip_tracker(SkipTracker()):
                for j, partition in enumerate(self.partitions):
                    with seeds.own(i, j):
                        batches[i] = batch = batch.call(partition)
        return gather(batches)


class PipedSide(Side):
    """A GPipe."""

    def __init__(self, case: Case, planned: Plan, build: Build) -> None:
        super().__init__(case, planned, build)
        balance = [len(partition) for partition in self.partitions]
        devices = ["cpu"] * len(balance)
        self.model = GPipe(
            self.model, balance, devices=devices, chunks=case.chunks, checkpoint=case.mode, check=case.check
        )
        self.partitions = list(self.model.partitions)

    def forward(self, x: Any) -> Any:
        return self.model(x)


class ExecutorSide(Side):
    """An Executor: forward and backward are one run."""

    def __init__(self, case: Case, planned: Plan, build: Build) -> None:
        super().__init__(case, planned, build)
        assert planned.schedule is not None
        self.executor = Executor(planned.schedule, self.partitions)

    def run(self, x: Any, made: Step, changed: bool) -> None:
        outputs: dict[int, list[Tensor]] = {}

        def loss(output: Any, rows: Tensor) -> Tensor:
            outputs[int(rows[0])] = [y.detach().clone() for y in lanes_of(output)]
            return self.loss(output, rows)

        made.during = "a run"
        with autocast(self.case):
            self.executor.run(x, torch.arange(self.plan.rows), loss, reduction="sum")
        parts = [outputs[first] for first in sorted(outputs)]
        made.output = [torch.cat(lane) for lane in zip(*parts, strict=True)]


# ---- what may be refused


class Refusal(NamedTuple):
    """What lib, or torch in its place, says it does not do; and in which cases it has a reason to."""

    name: str
    says: str
    fits: Callable[[Case, Plan, bool], bool]  # of the case, its plan, and whether this step has the change


def splits(planned: Plan) -> bool:
    return planned.schedule is not None and any(action.op == "W" for _, action in planned.schedule)


REFUSALS = (
    Refusal("memory in common", "changed in place, and has memory in common", lambda case, *_: case.writes),
    Refusal(
        "in place, to be recomputed",
        "changed in place: a recomputation would begin with the changed one",
        lambda case, *_: case.writes and case.recomputes,
    ),
    Refusal(
        "changed between",
        "changed between forward and backward: the recomputation would not be what ran",
        lambda case, _, changed: changed and case.recomputes,
    ),
    Refusal("no way back", "has no way back: the partition that stashes", lambda case, *_: case.has("stash")),
    Refusal("tied across layers", "duplicate parameters in distinct children", lambda case, *_: case.has("tied")),
    Refusal("tied across ranks", "is on ranks .*: share none", lambda case, *_: case.has("tied")),
    Refusal(
        "reentrant in a split backward",
        "use_reentrant=False",
        lambda case, planned, _: case.has("checkpoint", True) and splits(planned),
    ),
    Refusal(
        "compiled in a split backward",
        "torch._functorch.config.donated_buffer=False",
        lambda case, planned, _: case.has("compiled") and splits(planned),
    ),
    Refusal("inductor draws", "drew random numbers", lambda case, *_: case.has("compiled", "inductor")),
    Refusal(
        "a write that torch sees",
        "modified by an inplace operation|leaf Variable that requires grad is being used in an in-place"
        # behind a hook, where the pipeline wants a gradient
        "|is a view and (is being|its base or another view of its base has been) modified inplace",
        # changed, or a view of the input is written
        lambda case, planned, changed: changed or (case.writes and (planned.schedule is None or case.has("pipeline"))),
    ),
    Refusal(
        "reentrant, and ignored by the loss",
        "as the loss makes no use of what it returned: take use_reentrant=False",
        lambda case, *_: case.has("checkpoint", True),
    ),
    Refusal(
        "torch's checkpoint of no gradient",  # to which the pipeline's order leads, and the plain model does not
        "none of output has requires_grad=True",
        lambda case, *_: case.has("checkpoint", True) and case.recomputes,
    ),
    Refusal(
        "a checkpoint in a split backward",
        "a checkpoint goes backward as a whole",
        lambda case, planned, _: case.has("pipeline") and splits(planned),
    ),
)


def refusal_of(error: Exception, case: Case, planned: Plan, *, changed: bool) -> str | None:
    """Return which refusal an error is, None for any other error or a refusal that has no reason here."""
    for refusal in REFUSALS:
        if re.search(refusal.says, str(error)) and refusal.fits(case, planned, changed):
            return refusal.name
    return None


# ---- the two beside each other


def try_case(case: Case) -> Verdict:
    """Run both and compare, step by step: with a change three steps, else two."""
    planned = plan(case)
    torch.set_num_threads(1)
    with warnings.catch_warnings(), fresh_compiler() if case.has("compiled") else nullcontext():
        warnings.simplefilter("ignore")
        verdict = _try_beside(case, planned, again=False)
        if verdict.kind == FAULT and torch_makes_a_difference(case):
            verdict = _try_beside(case, planned, again=True)
    return verdict


def torch_makes_a_difference(case: Case) -> bool:
    """Say whether what the plain model leaves out may change what comes of it: then it must have that as well.

    torch's checkpoint has refusals of its own, and a reentrant one turns None into zeros. Under autocast a compiled
    layer rounds in other places, and after a step of an optimizer that may be more than the tolerance.
    """
    return case.has("checkpoint") or (case.has("compiled") and case.autocast)


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Forget what was compiled, and let torch compile as often as a case wants.

    By default it stops after the eighth time, counted for all layers of a class together; then it runs a layer as it
    stands, which may draw in another way. Both models would come to that, but not at the same place.
    """
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=10_000):
        yield


def _try_beside(case: Case, planned: Plan, *, again: bool) -> Verdict:
    plain = PlainSide(case, planned, again=again)
    try:
        side = PipedSide if planned.schedule is None else ExecutorSide
        piped = side(case, planned, Build(plain=False))
    except ValueError as error:
        name = refusal_of(error, case, planned, changed=False)
        return fault_by(error) if name is None else Verdict(REFUSED, name)
    return _compare(case, planned, plain, piped)


def _compare(case: Case, planned: Plan, plain: Side, piped: Side) -> Verdict:
    refused = ""
    for number in range(2 if case.happens is None else 3):
        changed = number == 1 and case.happens is not None
        expected = plain.step(number, changed=changed)
        found = piped.step(number, changed=changed)
        if found.error is not None:
            refused = refusal_of(found.error, case, planned, changed=changed) or ""
        if expected.error is not None:
            return Verdict(PLAIN_RAISES, type(expected.error).__name__)
        if found.error is None:
            told = differences(case, planned, expected, found)
            if told:
                return Verdict(FAULT, told[0][0], "\n".join(f"{name}: {what}" for name, what in told))
        elif not refused:
            return fault_by(found.error)
        elif found.during == "forward" and not same_gradients(found):
            return Verdict(FAULT, "refused in forward, but gradients have changed", str(found.error))
        elif not changed:
            return Verdict(REFUSED, refused)
    return Verdict(REFUSED, refused) if refused else Verdict(EQUAL)


def fault_by(error: Exception) -> Verdict:
    """Return the fault that something was raised for which there is no reason."""
    words = re.sub(r"\d+|0x[0-9a-f]+", "…", str(error).split("\n")[0])[:90]
    return Verdict(FAULT, f"{type(error).__name__}: {words}", "".join(traceback.format_exception(error)))


def same_gradients(step: Step) -> bool:
    before = {name: x for name, x in step.began_with.items() if name.startswith("gradient")}
    return all(
        (x is None) == (step.state[name] is None) and (x is None or torch.equal(x, step.state[name]))
        for name, x in before.items()
    )


def differences(case: Case, planned: Plan, expected: Step, found: Step) -> list[tuple[str, str]]:
    """Return what differs: (kind of difference, which numbers)."""
    told: list[tuple[str, str]] = []
    if len(expected.output) != len(found.output):
        return [("number of outputs", f"{len(found.output)}, not {len(expected.output)}")]
    for k, (a, b) in enumerate(zip(expected.output, found.output, strict=True)):
        if unlike(a, b, case):
            told.append(("output", f"lane {k}: {b.tolist()}, not {a.tolist()}"))
    for name, a in expected.state.items():
        b = found.state[name]
        if name.startswith("buffer") and case.counts_again:
            continue
        kind = "buffer" if name.startswith("buffer") else "gradient"
        if "input" in name:
            kind = "gradient of the input"
        if (a is None) != (b is None):
            told.append((f"{kind}: {'None' if b is None else 'not None'}", f"{name}: {b}, not {a}"))
        elif a is not None and b is not None and unlike(a, b, case):
            told.append((kind, f"{name}: {b.tolist()}, not {a.tolist()}"))
    return told


def unlike(a: Tensor, b: Tensor, case: Case) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return True
    if not a.is_floating_point():
        return not torch.equal(a, b)
    tolerance = 3e-2 if case.autocast else 1e-8
    largest = max(1.0, float(a.abs().max())) if a.numel() else 1.0
    return not torch.allclose(a, b, rtol=0, atol=tolerance * largest, equal_nan=True)
