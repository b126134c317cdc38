"""What the two controls of notebook 03 are tried with: each changes one thing of an epoch, and that thoroughly.

Numbers that chance decides come from generators of our own, so an answer is judged alike every time.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from support.kit.judged import Fault
from support.kit.raised import in_case
from support.kit.values import NO_RETURN, kind_of
from support.n03.stories import Others

#: (steps, groups, rows): a small epoch, another form of it, and one of the notebook's own.
EPOCHS = ((6, 8, 4), (5, 6, 3), (45, 8, 4))
#: An epoch of six steps is dealt so often: long enough for every group to come to every step.
DRAWS = 40


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
    return kept / (len(before) * math.comb(before.shape[1], 2))


def _pairs(epoch: Tensor) -> set[tuple[int, int]]:
    """Return which images are each other's company."""
    return {pair for group in epoch.flatten(0, 1).tolist() for pair in combinations(sorted(group), 2)}


def fault_of_controls(pair: Any) -> str:
    """Deal epochs by both controls, with generators of equal and of other seeds, once and often."""
    for shape in EPOCHS:
        images = torch.randperm(math.prod(shape), generator=torch.Generator().manual_seed(shape[0]))
        epoch = images.view(shape)
        for control, name, kept in zip(
            pair, ("new_steps", "new_company"), ((True, False), (False, True)), strict=True
        ):
            where = "{}, on an epoch of {} steps × {} groups × {} images".format(name, *shape)
            with in_case(where), Others() as others:
                fault = _fault_of_control(control, epoch, kept, others)
                if not fault and shape == EPOCHS[0]:
                    fault = _fault_of_many(control, epoch, kept)
            if fault:
                return Fault(f"{where}: {fault}", known_by=f"{name}: {getattr(fault, 'known_by', fault)}")
    return ""


def _fault_of_control(control: Any, epoch: Tensor, kept: tuple[bool, bool], others: Others) -> str:
    given = epoch.clone()
    generator = torch.Generator().manual_seed(1)
    first = control(given, generator)
    if first is None:
        return f"your function {NO_RETURN}."
    if not isinstance(first, Tensor) or first.shape != epoch.shape:
        shape = (
            f"a tensor of shape {list(first.shape)}" if isinstance(first, Tensor) else f"a {kind_of(first)}"
        )
        return f"it gives {shape}, not one of shape {list(epoch.shape)}."
    if first.dtype != epoch.dtype:
        return f"it gives {first.dtype} for {epoch.dtype}."
    if not torch.equal(given, epoch):
        return "it has changed the epoch that it was given, which belongs to the caller."
    if not torch.equal(first.flatten().sort()[0], epoch.flatten().sort()[0]):
        return "an image is lost, or comes twice."
    fault = _fault_of_deal(epoch, first, kept)
    return fault or _fault_of_draws(control, epoch, first, generator, others)


def _fault_of_deal(epoch: Tensor, first: Tensor, kept: tuple[bool, bool]) -> str:
    """Compare one deal with the epoch: what is to be kept is, and what is to change is not."""
    if _kept(epoch, first) != kept:
        only = f": {_only(epoch, first)}" if _kept(epoch, first) == (True, True) else ""
        return f"{_SEEN[_kept(epoch, first)]}{only}."
    same_place = sum(a == b for a, b in zip(_steps(epoch), _steps(first), strict=True))
    if kept[1] and same_place < len(epoch):
        return f"{_SEEN[kept]}, but the steps come in another order: that is a second change."
    torn = sum((_groups(epoch) - _groups(first)).values())
    groups = epoch.shape[0] * epoch.shape[1]
    if kept[1] and torn < 0.8 * groups:
        return Fault(f"only {torn} of {groups} groups are torn up.", known_by="few groups are torn up")
    return ""


def _fault_of_draws(
    control: Any, epoch: Tensor, first: Tensor, generator: torch.Generator, others: Others
) -> str:
    """Compare deals by one generator, by an equal one and by another."""
    later = [control(epoch.clone(), generator) for _ in range(4)]
    again, other = (control(epoch.clone(), torch.Generator().manual_seed(seed)) for seed in (1, 2))
    if touched := others.touched():
        return f"it has touched {' and '.join(touched)} global generator: draw from the one that you are given, alone."
    if not torch.equal(first, again):
        return (
            "two generators with the same seed give different epochs: draw from the one that you are given."
        )
    if torch.equal(first, other):
        return "generators with different seeds give the same epoch: nothing is drawn."
    if all(torch.equal(first, deal) for deal in later):
        return "each further call with the same generator gives the same epoch once more."
    return ""


def _fault_of_many(control: Any, epoch: Tensor, kept: tuple[bool, bool]) -> str:
    """Deal an epoch often: companions must part, and whatever may meet must meet now and then."""
    generator = torch.Generator().manual_seed(3)
    deals = [control(epoch.clone(), generator) for _ in range(DRAWS)]
    if kept[0]:
        return _fault_of_steps(epoch, deals)
    old = _pairs(epoch)
    stayed = sum(len(old & _pairs(deal)) for deal in deals) / (len(old) * len(deals))
    if stayed > 1 / 4:
        said = f"{stayed:.0%} of the pairs that came in one group come in one group again."
        return Fault(said, known_by="pairs of images that stay")
    steps, groups, rows = epoch.shape
    met = len(set().union(*map(_pairs, deals))) / (steps * math.comb(groups * rows, 2))
    if met < 0.6:
        said = f"in {len(deals)} epochs only {met:.0%} of the pairs of images of a step have been company."
        return Fault(said, known_by="pairs of images that never meet")
    return ""


def _fault_of_steps(epoch: Tensor, deals: list[Tensor]) -> str:
    """Look at where whole groups come: with whom, and in which steps."""
    together = sum(_still_together(epoch, deal) for deal in deals) / len(deals)
    if together > 1 / 3:
        return Fault(
            f"{together:.0%} of the pairs of groups that came in one step come in one step again.",
            known_by="pairs of groups",
        )
    seen = {(min(group), step) for deal in deals for step, row in enumerate(deal.tolist()) for group in row}
    came = len(seen) / (epoch.shape[0] * epoch.shape[0] * epoch.shape[1])
    if came < 0.75:
        said = f"in {len(deals)} epochs a group has come in {came:.0%} of the steps only."
        return Fault(said, known_by="steps that a group never comes in")
    return ""
