"""Steps of training that the checks of notebook 00 try: what the replicas come to, and what no real rank could do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

from support.kit.threads import EndedError
from support.kit.values import kind_of
from support.n00.settings import watched_settings
from support.n00.told import told_by_digits
from support.ranks import in_threads, unknown_to_a_rank

LabelledRows = tuple[torch.Tensor, torch.Tensor]
#: A step of all ranks in one process: replicas, batches, learning rate.
SharedStep: TypeAlias = Callable[[list[nn.Module], list[LabelledRows], float], Any]
#: A step of one rank: dist, replica, batch, learning rate.
RankStep: TypeAlias = Callable[[Any, nn.Module, LabelledRows, float], Any]


def whole_batch_step(replicas: list[nn.Module], batches: list[LabelledRows], learning_rate: float) -> None:
    """Step every replica by torch's gradient of all rows together: what the ranks' step has to equal."""
    rows, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    F.cross_entropy(replicas[0](rows), labels).backward()  # type: ignore[no-untyped-call]
    gradients = [weight.grad for weight in replicas[0].parameters()]
    for replica in replicas:
        for weight, gradient in zip(replica.parameters(), gradients, strict=True):
            weight.grad = gradient
        optimizer = torch.optim.SGD(replica.parameters(), learning_rate)
        optimizer.step()
        optimizer.zero_grad()


def _alone(replica: nn.Module, batches: list[LabelledRows], learning_rate: float) -> None:
    """Let one replica do the work of all ranks."""
    for rows, labels in batches:
        (F.cross_entropy(replica(rows), labels) / len(batches)).backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(replica.parameters(), learning_rate).step()
    replica.zero_grad()


def on_rank_0(replicas: list[nn.Module], batches: list[LabelledRows], learning_rate: float) -> None:
    """Let rank 0 do everything, and copy its weights."""
    _alone(replicas[0], batches, learning_rate)
    for replica in replicas[1:]:
        replica.load_state_dict(replicas[0].state_dict())


def on_every_rank(replicas: list[nn.Module], batches: list[LabelledRows], learning_rate: float) -> None:
    """Let every rank do everything."""
    for replica in replicas:
        _alone(replica, batches, learning_rate)


def one_backward(replicas: list[nn.Module], batches: list[LabelledRows], learning_rate: float) -> None:
    """Go back through the graphs of all ranks at once, from the mean of their losses."""
    losses = [
        F.cross_entropy(replica(rows), labels)
        for replica, (rows, labels) in zip(replicas, batches, strict=True)
    ]
    torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        gradient = sum(weight.grad for weight in same)
        for weight in same:
            weight.data -= learning_rate * gradient
            weight.grad = None


def one_rank_after_the_other(
    replicas: list[nn.Module], batches: list[LabelledRows], learning_rate: float
) -> None:
    """Step each rank as soon as its own backward is done, by the mean of the gradients that there are by then."""
    for rank, (replica, (rows, labels)) in enumerate(zip(replicas, batches, strict=True)):
        F.cross_entropy(replica(rows), labels).backward()  # type: ignore[no-untyped-call]
        for same in zip(*(each.parameters() for each in replicas[: rank + 1]), strict=True):
            same[-1].data -= learning_rate * sum(weight.grad for weight in same) / len(same)
    for replica in replicas:
        replica.zero_grad()


class StepWatch:
    """What a replica's forwards were given, and which backwards went through: one for it and all copies of it."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []
        self.backwards: set[int] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> StepWatch:
        return self


class Factors(nn.Module):
    """A layer whose parameter is neither a weight nor a bias by its name."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.ones(count))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply each column by its factor."""
        return rows * self.factors


class WatchedReplica(nn.Sequential):
    """A small model, of layers in layers with parameters of equal shapes, that is watched."""

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), Factors(3)), nn.Linear(3, 3))
        self.forget()

    def forget(self) -> None:
        """Begin a step of which nothing has been seen yet."""
        self.watch = StepWatch()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Note the rows, and later which backward comes through."""
        self.watch.seen.append(rows.detach().clone())
        out: torch.Tensor = super().forward(rows)  # type: ignore[no-untyped-call]
        if out.requires_grad:
            out.register_hook(self._note)  # type: ignore[no-untyped-call]
        return out

    def _note(self, _: torch.Tensor) -> None:
        self.watch.backwards.add(torch._C._current_graph_task_id())


def _owner(rows: torch.Tensor, batches: list[LabelledRows]) -> int | None:
    """Return the rank whose batch this is, None if it is no rank's."""
    for rank, (own, _) in enumerate(batches):
        if torch.equal(rows, own):
            return rank
    return None


def _broken_rule(replicas: list[WatchedReplica], batches: list[LabelledRows]) -> str:
    """Say what no real rank could have done, or would have done in vain; "" if nothing."""
    saw = [[_owner(rows, batches) for rows in replica.watch.seen] for replica in replicas]
    if len(saw) > 1 and all(set(range(len(batches))) <= set(owners) for owners in saw):
        return "every rank did a forward on the rows of all ranks; a rank has its own batch and no other"
    if set(range(1, len(batches))) & set(saw[0]) and not any(saw[1:]):
        return "rank 0 did forwards on the rows of other ranks, which did none; a rank has its own batch and no other"
    for rank, owners in enumerate(saw):
        for rows, owner in zip(replicas[rank].watch.seen, owners, strict=True):
            if owner is None:
                return f"a forward of rank {rank} got {len(rows)} rows, and they are no rank's batch"
            if owner != rank:
                return f"rank {rank} saw rank {owner}'s rows; a rank has its own batch and no other"
        if len(owners) > 1:
            return f"rank {rank} did {len(owners)} forwards on its rows, where a step has one"
    if [] in saw:
        return f"rank {saw.index([])}'s replica was never called on its own rows"
    return _shared_memory(replicas) or _shared_backward(replicas) or _in_vain(replicas) or _frozen(replicas)


def _changed(
    given: tuple[list[nn.Module], list[LabelledRows]],
    replicas: Sequence[WatchedReplica],
    batches: Sequence[LabelledRows],
) -> str:
    """Say what a step has done to the lists and rows that it was given; "" if nothing."""
    left = {"replicas": len(given[0]), "batches": len(given[1])}
    for name, count in left.items():
        if count != len(replicas):
            return (
                f"your function has changed the list {name}: it had {len(replicas)}, and has {count} now; whoever "
                f"called it still needs it as it was"
            )
    for rank, (now, before) in enumerate(zip(given[0], replicas, strict=True)):
        if now is not before:
            return f"replicas[{rank}] is another model than before; rank {rank} has this one, whose weights must change"
    for rank, (theirs, own) in enumerate(zip(given[1], batches, strict=True)):
        as_given = len(theirs) == len(own) and all(map(torch.equal, theirs, own))
        if not as_given or theirs[0].requires_grad:
            return f"your function has changed batches[{rank}]: rank {rank} needs its rows and labels as they were"
    return ""


def _apart(replicas: Sequence[WatchedReplica]) -> str:
    """Say which ranks' weights are not the same to the last bit, though nearly; "" if all are."""
    first = nn.utils.parameters_to_vector(replicas[0].parameters())
    for rank, replica in enumerate(replicas):
        own = nn.utils.parameters_to_vector(replica.parameters())
        off = (own - first).abs().max().item()
        if off and torch.allclose(own, first, rtol=2e-9, atol=2e-12):  # twice what first_difference lets pass
            return (
                f"a weight of rank {rank} differs by {off:.0e} from that of rank 0, as where each computes in an order "
                f"of its own; replicas must be equal to the last bit"
            )
    return ""


def _shared_memory(replicas: list[WatchedReplica]) -> str:
    places: dict[int, int] = {}
    for rank, replica in enumerate(replicas):
        for weight in replica.parameters():
            owner = places.setdefault(weight.data_ptr(), rank)
            if owner != rank:
                return (
                    f"ranks {owner} and {rank} share one tensor as their weight; on two devices each has memory "
                    f"of its own"
                )
    return ""


def _shared_backward(replicas: list[WatchedReplica]) -> str:
    ranks_of: dict[int, int] = {}
    for rank, replica in enumerate(replicas):
        for number in replica.watch.backwards:
            other = ranks_of.setdefault(number, rank)
            if other != rank:
                return (
                    f"one backward went through the graphs of rank {other} and of rank {rank}; no graph reaches from "
                    f"one device to another: each rank's backward begins at its own loss"
                )
    return ""


def _in_vain(replicas: list[WatchedReplica]) -> str:
    for rank, replica in enumerate(replicas):
        if not replica.watch.backwards:
            return (
                f"no backward went through rank {rank}'s forward; a rank's gradient comes from its own loss"
            )
    return ""


def _frozen(replicas: list[WatchedReplica]) -> str:
    for rank, replica in enumerate(replicas):
        if not all(weight.requires_grad for weight in replica.parameters()):
            return (
                f"a weight of rank {rank} no longer asks for a gradient, and the next backward passes it by"
            )
    return ""


def _new_replicas(ranks: int, generator: torch.Generator) -> list[WatchedReplica]:
    replicas = [WatchedReplica().double() for _ in range(ranks)]
    with torch.no_grad():
        for weights in zip(*(replica.parameters() for replica in replicas), strict=True):
            value = torch.randn(weights[0].shape, generator=generator, dtype=torch.float64)
            for weight in weights:
                weight.copy_(value)
    return replicas


def weights_after(step: SharedStep) -> Callable[..., list[Any]]:
    """Turn a step into the function of a case: after each of some steps each rank's weights and the rule broken."""

    def run(ranks: int, rows: int, learning_rates: Sequence[float]) -> list[Any]:
        generator = torch.Generator().manual_seed(ranks)
        replicas = _new_replicas(ranks, generator)
        after: list[Any] = []
        for learning_rate in learning_rates:
            batches = [
                (
                    torch.randn(rows, 3, generator=generator, dtype=torch.float64),
                    torch.randint(0, 3, (rows,), generator=generator),
                )
                for _ in range(ranks)
            ]
            if ranks > 4:
                batches[-1][0].zero_()  # its first gradient is zero, and the others wait for it
            for replica in replicas:
                replica.forget()
            given: tuple[list[nn.Module], list[LabelledRows]] = (
                [*replicas],
                [(rows.clone(), labels.clone()) for rows, labels in batches],
            )
            with torch.enable_grad(), watched_settings() as changes:  # on leaving all is again as it was
                said = step(*given, learning_rate)
                said = said if torch.is_grad_enabled() else NO_GRADIENTS
            if changes and not isinstance(said, Objection):
                said = Objection(f"your function has changed {changes[0]}; torch's settings stay as they are")
            flat = [nn.utils.parameters_to_vector(replica.parameters()).tolist() for replica in replicas]
            rule = _changed(given, replicas, batches) or _broken_rule(replicas, batches)
            if not rule and isinstance(said, Objection):
                rule = said
            after.append((flat, rule or _apart(replicas)))
        return after

    return run


class Objection(str):
    """What a real rank would not have got through, whatever the weights are."""


AN_EARLIER_CALL = Objection(
    "a rank called the dist of an earlier call, as a hook does that is left on a weight: your function must be ready "
    "to be called again"
)
NO_GRADIENTS = Objection(
    "your function has switched gradients off and left it so: whatever runs next can do no backward; "
    "`with torch.no_grad():` switches them on again"
)


def each_on_its_rank(step: RankStep) -> SharedStep:
    """Turn the step of one rank into that of all: each in a thread, with a `dist` that notices who waits in vain."""
    unknown = unknown_to_a_rank(step)

    def shared(replicas: list[nn.Module], batches: list[LabelledRows], learning_rate: float) -> Any:
        def one(dist: Any) -> bool:
            rank = dist.get_rank()
            step(dist, replicas[rank], batches[rank], learning_rate)
            return torch.is_grad_enabled()  # a setting of this thread

        try:
            gradients, world = in_threads(one, len(replicas))
        except EndedError:  # the world of an earlier call is closed
            return AN_EARLIER_CALL
        if unknown:
            return Objection(
                f"a rank of another process would not know {unknown}: it is sent the text of this one function, "
                f"and has torch, nn and F; put {unknown} inside"
            )
        if not all(gradients):
            return NO_GRADIENTS
        for rank, begun in world.unwaited.items():
            if begun:
                return Objection(
                    f"rank {rank} never waited for its {begun[0]}: until then nothing need have arrived"
                )
        return None

    return shared


def first_difference(got: Any, expected: Any, case: Mapping[str, Any]) -> str:
    """Say in which step a rule was broken, or which weight is not that of torch on the whole batch; "" if none."""
    if not isinstance(got, list):
        return f"weights expected, not {kind_of(got)}"
    for number, ((mine, rule), (theirs, _)) in enumerate(zip(got, expected, strict=True), start=1):
        if rule:
            return f"in step {number} {rule}"
        for rank, (weights, wanted) in enumerate(zip(mine, theirs, strict=True)):
            for place, (weight, right) in enumerate(zip(weights, wanted, strict=True)):
                if not math.isclose(weight, right, rel_tol=1e-9, abs_tol=1e-12):
                    mine_told, right_told = told_by_digits(weight, right, "f")
                    return (
                        f"after step {number} weight {place} of rank {rank} is {mine_told}, but "
                        f"{right_told} when torch steps on the whole batch"
                    )
    return ""
