"""What the two controls of notebook 03 are tried with: each changes one thing of an epoch, and that thoroughly.

A single deal says what is kept; many say what chance can do: who stays, who never meets, who never comes where.
Numbers that chance decides come from generators of our own, so an answer is judged alike every time.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from support.kit.judged import Fault
from support.kit.raised import in_case
from support.kit.values import NO_RETURN, kind_of
from support.n03.company import one_thread
from support.n03.stories import Others

#: (steps, groups, rows), and how often an epoch of this form is dealt. In the first three, as often as it takes until
#: all that can happen has happened; in the last, one of the notebook's own, until it is seen what stays.
EPOCHS = {(6, 8, 4): 300, (5, 3, 3): 300, (3, 4, 2): 300, (45, 8, 4): 40}
#: Of so many images or more there are so many deals that hardly two of some hundred are alike.
MANY_IMAGES = 100
MOSTLY = 0.97
#: Where so many deals are made, whatever can happen has.
ENOUGH = 300


def _epoch(shape: tuple[int, int, int], again: int = 0) -> Tensor:
    """Return an epoch; again: how many images come a second time, as padding does."""
    count = math.prod(shape)
    images = torch.randperm(count, generator=torch.Generator().manual_seed(shape[0]))
    images[count - again :] = images[:again].clone()
    return images.view(shape)


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
    (True, False): "every group is still together, and steps hold other images",
    (False, True): "groups are torn up, and every step holds the images that it held",
    (False, False): "groups are torn up, and steps hold other images, too",
}


def _only(before: Tensor, after: Tensor) -> str:
    """Say what has changed where every group and every step is still together."""
    old, new = (epoch.sort(dim=-1)[0] for epoch in (before, after))
    if torch.equal(before, after):
        return "nothing is changed"
    if torch.equal(old, new):
        return "only the images within a group come in another order"
    if _steps(before) == _steps(after):
        return "each step stands where it stood, and its groups come in another order"
    if {*map(str, old.tolist())} == {*map(str, new.tolist())}:
        return "the steps come in another order"
    return "the steps come in another order, and the groups within them"


def fault_of_controls(pair: Any) -> str:
    """Deal epochs by both controls, with generators of equal and of other seeds, once and often."""
    trials = [(shape, 0, draws) for shape, draws in EPOCHS.items()] + [((45, 8, 4), 3, 0)]
    for shape, again, draws in trials:
        epoch = _epoch(shape, again)
        for control, name, kept in zip(
            pair, ("new_steps", "new_company"), ((True, False), (False, True)), strict=True
        ):
            where = "{}, on an epoch of {} steps × {} groups × {} images".format(name, *shape)
            where += f", {again} of which come twice" if again else ""
            with in_case(where), Others() as others, one_thread():
                fault = _fault_of_control(control, epoch, kept, others)
                if not fault and draws:
                    fault = _fault_of_many(control, epoch, kept, draws)
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
        return f"it gives {shape}, not a tensor of shape {list(epoch.shape)}."
    if first.dtype != epoch.dtype:
        return f"it gives {first.dtype} for {epoch.dtype}."
    if not torch.equal(given, epoch):
        return "it has changed the epoch that it was given, which belongs to the caller."
    if not torch.equal(first.flatten().sort()[0], epoch.flatten().sort()[0]):
        return "an image is lost, or comes more often than before."
    before = first.clone()
    later = [control(epoch.clone(), generator) for _ in range(4)]
    if len(epoch) > 3 and all(_kept(epoch, deal) == (True, True) for deal in (before, *later)):
        return f"{_SEEN[True, True]}: {_only(epoch, before)}."
    if fault := _fault_of_deal(epoch, before, kept):
        return fault
    if touched := others.touched():
        return f"it has touched {' and '.join(touched)} global generator: draw from the one that you are given, alone."
    if not torch.equal(first, before):
        return "a later call has changed the epoch that an earlier one had returned: make a new tensor each time."
    return _fault_of_draws(control, epoch, first, later)


def _fault_of_deal(epoch: Tensor, first: Tensor, kept: tuple[bool, bool]) -> str:
    """Compare one deal with the epoch: what is to be kept is; what is to change may stay by chance."""
    found = _kept(epoch, first)
    if not (found[0] >= kept[0] and found[1] >= kept[1]):
        return f"{_SEEN[found]}."
    if kept[1] and _steps(epoch) != _steps(first):
        return f"{_SEEN[found]}, but the steps come in another order: step k is to hold what it held."
    return ""


def _fault_of_draws(control: Any, epoch: Tensor, first: Tensor, later: list[Tensor]) -> str:
    """Compare deals by one generator, by an equal one and by others: of small epochs two may be equal by chance."""
    again, *other = (control(epoch.clone(), torch.Generator().manual_seed(seed)) for seed in range(1, 7))
    if not torch.equal(first, again):
        return "two generators with the same seed give different epochs: the epoch and the generator decide, alone."
    if all(torch.equal(first, deal) for deal in other):
        said = "generators with other seeds give the same epoch: the one that you are given is to decide, as it stands."
        return Fault(said, known_by=f"always {first.tolist()}")
    if all(torch.equal(first, deal) for deal in later):
        return "each further call with the same generator gives the same epoch once more."
    return ""


def _fault_of_many(control: Any, epoch: Tensor, kept: tuple[bool, bool], draws: int) -> str:
    """Deal an epoch often: whoever may part must part now and then, and whatever may happen must happen."""
    generator = torch.Generator().manual_seed(3)
    deals = torch.stack([control(epoch.clone(), generator) for _ in range(draws)])
    for number in _spoilt(epoch, deals, kept):
        fault = _fault_of_deal(epoch, deals[number], kept)
        if fault:
            return Fault(f"in call {number + 1} with one generator {fault}", known_by=fault)
    different = Counter(tuple(deal) for deal in deals.flatten(1).tolist())
    often = max(different.values())
    if often > draws / 4:
        return f"{often} of {draws} calls with one generator give the same epoch."
    fault = _fault_of_steps(epoch, deals) if kept[0] else _fault_of_company(epoch, deals)
    if not fault and epoch.numel() > MANY_IMAGES and len(different) < MOSTLY * draws:
        said = f"{draws} calls with one generator give only {len(different)} different epochs."
        fault = Fault(said, known_by="few epochs")
    return fault


def _spoilt(epoch: Tensor, deals: Tensor, kept: tuple[bool, bool]) -> list[int]:
    """Return the numbers of the deals in which groups are torn up, or steps, that should be kept."""
    group_of = torch.empty(epoch.numel(), dtype=torch.int64)
    group_of[epoch.flatten()] = torch.arange(epoch.numel()) // epoch.shape[2]
    found = group_of[deals]
    if not kept[0]:
        found = found // epoch.shape[1]
    # of a whole group all images come from one group; a whole step comes from the step of its own number
    due = found[..., :1] if kept[0] else torch.arange(len(epoch))[:, None, None]
    spoilt: list[int] = (found != due).flatten(1).any(1).nonzero().flatten().tolist()
    return spoilt


def _too_often(chance: float) -> float:
    """Return the share of the deals that chance does not reach: halfway between it and always."""
    return (1 + chance) / 2


def _worst(table: Tensor) -> tuple[tuple[int, ...], float]:
    """Return the place and the value of a table's greatest entry."""
    place = torch.unravel_index(table.argmax(), table.shape)
    return tuple(map(int, place)), float(table.max())


# ---- new_company: in a table (steps, images of a step, images of a step), who is in one group with whom


def _places(deals: Tensor) -> Tensor:
    """Return at which place of each deal every image stands: int64 (deals, images)."""
    return deals.flatten(1).argsort(1)


def _company(epoch: Tensor, deals: Tensor) -> Tensor:
    """Count for any two images of a step of `epoch` the deals in which they are in one group."""
    groups = (_places(deals) // epoch.shape[2])[:, epoch.flatten(1)]  # (deals, steps, images of a step)
    return (groups[..., :, None] == groups[..., None, :]).sum(0)


def _fault_of_company(epoch: Tensor, deals: Tensor) -> str:
    """Look at who is in a group with whom: nobody always, and everybody now and then."""
    _, groups, rows = epoch.shape
    met = _company(epoch, deals)
    place = torch.arange(groups * rows)
    mates = (place[:, None] // rows == place // rows) & (place[:, None] != place)
    limit = _too_often((rows - 1) / (groups * rows - 1))
    stayed = met * mates
    (step, one, other), often = _worst(stayed)
    if often > limit * len(deals):
        whole = (stayed == len(deals)).view(-1, groups, rows, groups * rows).sum(-1) == rows - 1
        return Fault(
            f"images {epoch[step].flatten()[one]} and {epoch[step].flatten()[other]}, together in group {one // rows} "
            f"of step {step}, are together in {often:.0f} of {len(deals)} epochs.",
            known_by="whole groups stay" if bool(whole.all(-1).any()) else "pairs of images stay",
        )
    if len(deals) < ENOUGH:
        return ""
    never = (met == 0) & ~mates
    (step, one, other), anybody = _worst(never.int())
    if not anybody:
        return ""
    same_place = place[:, None] % rows == place % rows
    told = [f"{epoch[step].flatten()[k]} (place {k % rows} of group {k // rows})" for k in (one, other)]
    if _is_divided(never[step]):
        known = "parts"
    elif not (never & ~same_place).any():
        known = "same place"
    else:
        known = "some"
    return Fault(
        f"in {len(deals)} epochs images {told[0]} and {told[1]} of step {step} have never been in one group.",
        known_by=f"never meet: {known}",
    )


def _is_divided(never: Tensor) -> bool:
    """Say whether a step falls into parts: whoever has met anybody has met nobody of another part."""
    known = torch.zeros(len(never), dtype=torch.bool)
    known[0] = True
    for _ in range(len(never)):
        known = known | (~never[known]).any(0)
    return not bool(known.all())


# ---- new_steps: in which step each group comes, and which groups come together


def _fault_of_steps(epoch: Tensor, deals: Tensor) -> str:
    """Look at where whole groups come: each on its own, and in the long run in every other step."""
    steps, groups, rows = epoch.shape
    # (deals, groups of the epoch): the step of a group is that of its first image
    came = _places(deals)[:, epoch[..., 0].flatten()] // (groups * rows)
    counts = torch.nn.functional.one_hot(came, steps).sum(0)
    home = torch.arange(steps * groups) // groups
    at_home = counts * torch.nn.functional.one_hot(home, steps)
    (group, step), often = _worst(at_home)
    if often > _too_often(1 / steps) * len(deals):
        return Fault(
            f"group {group % groups} of step {step} is in step {step} again in {often:.0f} of {len(deals)} epochs.",
            known_by="a group stays",
        )
    neighbours = home[:, None] == home
    neighbours.fill_diagonal_(False)
    together = (came[:, :, None] == came[:, None, :]).sum(0) * neighbours
    (one, other), often = _worst(together)
    if often > _too_often((groups - 1) / (steps * groups - 1)) * len(deals):
        return Fault(
            f"groups {one % groups} and {other % groups} of step {home[one]} come in one step again in {often:.0f} of "
            f"{len(deals)} epochs.",
            known_by="pairs of groups",
        )
    if len(deals) < ENOUGH:
        return ""
    never = (counts == 0) & (torch.nn.functional.one_hot(home, steps) == 0)
    (group, step), anybody = _worst(never.int())
    if not anybody:
        return ""
    ways = counts.view(steps, groups, steps).sum(1) == 0  # from step to step
    return Fault(
        f"in {len(deals)} epochs group {group % groups} of step {home[group]} has never come in step {step}.",
        known_by=f"never comes: {'parts' if _is_divided(ways) else 'some'}",
    )
