"""What steps of a pipeline of processes are tried with: a tiny tower on imitated ranks, in threads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.schedules import Schedule, eager_one_f_one_b, gpipe, one_f_one_b
from lib.text import plural
from support.kit.judged import Fault
from support.kit.raised import Finding, in_case
from support.n15.orders import ActionPair, drawn_order, far_apart, pairs_of, shown
from support.n15.pace import AtOnce, Listening, Log, log_of, ticks_taken
from support.n15.tower import even_balance
from support.ranks import in_threads


def away_from(got: Tensor, wanted: Tensor, within: float = 1e-10) -> str:
    """Say how a tensor differs from another one by more than `within`, "" if it does not."""
    if torch.allclose(got, wanted, rtol=0, atol=within):
        return ""
    times = float((got * wanted).sum() / (wanted * wanted).sum())
    if torch.allclose(got, times * wanted, rtol=0, atol=within):
        return f"{times:.9g} times"
    return f"{float((got - wanted).norm() / wanted.norm()):.2g} of its length away from"


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    """Return random numbers of this shape, always the same for a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


_SENDER_WAITS = "A rank that waits for its send receives nothing meanwhile."
#: Said of a None that is sent.
NO_GRADIENT = (
    "What is sent is None: x gets a gradient in y's backward, if autograd is asked for it before the forward, and if y "
    "comes from this very x."
)
#: What an exception of a step means, by words of its text.
_MEANINGS = {
    "attribute 'chunk'": "Only the first rank is given images, and only the last one targets.",
    "implicitly created": "A rank in front has no loss: its backward begins with the gradient that it receives.",
    "modified by an inplace": "Receive every micro-batch into a tensor of its own: the graph still needs the last one.",
    "send needs a tensor, and got None": NO_GRADIENT,
    "'int' and 'NoneType'": "None is no rank: the first stage has none before it, the last one none behind it.",
    "a second time": "Each micro-batch has a graph of its own, and goes back once.",
    "same dtype": "Receive into float64, the type of what is sent: torch.empty(shape, dtype=torch.float64).",
    "rank 0 waits in send to rank 1, rank 1 waits in send to rank 0": "Both send, and nobody receives.",
    "was written to before": "Until a send is done its message is read from the tensor: give each one of its own.",
    "waits in send": _SENDER_WAITS,
    "waits in isend": _SENDER_WAITS,
    "waits in recv": "A rank waits for what nobody sends.",
}

#: Ranks, micro-batches, whether gradients of another step are there already, and the rows of a micro-batch.
_JOBS = (
    (2, 4, True, 2),
    (2, 1, True, 2),
    (3, 4, True, 2),
    (2, 3, False, 2),
    (4, 2, True, 3),
    (2, 6, True, 3),
)


@contextmanager
def _keeping_nothing(answer: Any, where: str) -> Iterator[None]:
    """Run ranks; if that fails and a default of the answer has grown meanwhile, it is this that is told."""
    named = {name: each.default for name, each in inspect.signature(answer).parameters.items()}
    held = {name: default for name, default in named.items() if isinstance(default, (list, dict, set))}
    sizes = {name: len(default) for name, default in held.items()}
    try:
        yield
    except Finding:
        raise
    except Exception as error:
        for name, default in held.items():
            if len(default) != sizes[name]:
                raise Finding(
                    f"{where}: The default `{name}` is not what it was before the call: a default is made once, and is "
                    "the same one in every call and on every rank here."
                ) from error
        raise


def fault_of_step(answer: Any) -> str:
    """Run a tiny tower on 2 to 4 imitated ranks; say what differs first from one process, and what was done when."""
    for n, m, left, rows in _JOBS:
        where = f"{n} ranks, {plural(m, 'micro-batch', 'micro-batches')}"
        job = _TinyJob(n, m, left, rows)

        def step(rank: int, *given: Any) -> Any:
            return answer(*given)

        with _keeping_nothing(answer, where):
            wrong = job.fault(step, where)
        found = (
            wrong
            or job.fault_of_number()
            or job.fault_of_pace()
            or job.fault_of_halves()
            or job.fault_of_ticks([pairs_of(gpipe(m, n), rank) for rank in range(n)])
        )
        if found:
            return _in(where, found)
    return ""


#: Orders of lib, their ranks and micro-batches.
_ORDERS: tuple[tuple[str, Callable[[int, int], Schedule], int, int], ...] = (
    ("1F1B", one_f_one_b, 2, 4),
    ("1F1B", one_f_one_b, 3, 5),
    ("1F1B", one_f_one_b, 2, 1),
    ("GPipe", gpipe, 3, 2),
    ("eager 1F1B", eager_one_f_one_b, 3, 4),
)
#: Orders that are drawn at random: ranks, micro-batches, seed.
_DRAWN = ((2, 3, 0), (3, 4, 1), (2, 5, 2), (3, 3, 3), (4, 4, 4))


def fault_of_follow(answer: Any) -> str:
    """Run orders of lib and random ones on 2 to 4 imitated ranks; say what differs first from one process."""
    tables = [(name, [pairs_of(make(m, n), rank) for rank in range(n)], m) for name, make, n, m in _ORDERS]
    tables += [(f"random order {seed}", drawn_order(n, m, seed), m) for n, m, seed in _DRAWN]
    tables += [("GPipe before one by one", far_apart(40, 3), 40)]
    for name, table, m in tables:
        n = len(table)
        where = f"{name} on {n} ranks, {plural(m, 'micro-batch', 'micro-batches')}"
        job = _TinyJob(n, m, left=name != "GPipe")
        given_to = [list(row) for row in table]

        def step(rank: int, *given: Any, actions: Sequence[list[ActionPair]] = given_to) -> Any:
            return answer(actions[rank], *given)

        found = job.fault(step, where)
        if found and _only_early(step, _TinyJob(n, m, job.left, at_once=True)):
            found = f"{found} With recv in place of irecv it is right: a tensor is used before its message is there."
        found = found or job.fault_of_number() or job.fault_of_order(table) or job.fault_of_ticks(table)
        if not found and given_to != table:
            found = "the actions are other ones after the step: they are the caller's."
        if found:
            return _in(where, found)
    return ""


def _only_early(step: Any, job: _TinyJob) -> bool:
    """Say whether a step is right where no message is late."""
    try:
        return not job.fault(step, "")
    except Exception:
        return False


def _in(where: str, found: str) -> str:
    """Say in which job a fault was found; it stays known by what it was known by."""
    return Fault(f"{where}: {found}", f"{where}: {found.known_by if isinstance(found, Fault) else found}")


class _Border(torch.autograd.Function):
    """The end of a stage: notes when a micro-batch leaves it forward, and when its gradient comes back."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, log: Log, place: int) -> Tensor:
        """Note a forward."""
        log.append(("F", place))
        ctx.log = log
        ctx.place = place
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Note a backward, once: it may be cut in two."""
        if ("B", ctx.place) not in ctx.log:
            ctx.log.append(("B", ctx.place))
        return gradient, None, None


class _Noting(nn.Module):
    """A last layer that computes nothing: it notes ("F", k) and ("B", k) of the k-th micro-batch that came.

    evaluated: one came in eval mode.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log: Log = []
        self.evaluated = False

    def forward(self, y: Tensor) -> Tensor:
        """Return y."""
        self.evaluated = self.evaluated or not self.training
        place = sum(what == "F" for what, _ in self.log)
        noted: Tensor = _Border.apply(y, self.log, place)  # type: ignore[no-untyped-call]
        return noted


#: Numbers between the layers of the tiny tower: every border has another width.
_WIDTHS = (64, 4, 6, 5, 10)


def _tiny_tower() -> nn.Sequential:
    """Return four layers with their first weights."""
    layers: list[nn.Module] = []
    for k, (wide, narrow) in enumerate(pairwise(_WIDTHS)):
        linear = nn.Linear(wide, narrow).double()
        linear.weight.data = random_tensor(narrow, wide, seed=k) / wide**0.5
        linear.bias.data = random_tensor(narrow, seed=10 + k) / 4
        layers.append(nn.Sequential(nn.Flatten(), linear, nn.Tanh()))
    return nn.Sequential(*layers)


class _TinyJob:
    """A tower of four layers on n ranks, whose batch goes through in m micro-batches of some rows.

    left: something stands in every .grad already. at_once: an irecv returns when its message is there.
    """

    def __init__(self, n: int, m: int, left: bool, rows: int = 2, at_once: bool = False) -> None:
        self.n = n
        self.m = m
        self.left = left
        self.rows = rows
        self.at_once = at_once
        self.balance = even_balance(4, n)
        self.images = random_tensor(rows * m, 1, 8, 8, seed=1).abs()
        self.targets = torch.arange(rows * m) % 10
        whole = _tiny_tower()
        loss = F.cross_entropy(whole(self.images), self.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.loss = loss.item()
        self.posted: list[tuple[int, int]] = []
        self.logs: list[Log] = []
        self.losses: list[Any] = []
        self.changed: list[str] = []
        self.gradients = [[p.grad for p in part.parameters()] for part in _cut(whole, self.balance)]

    @property
    def done(self) -> list[list[ActionPair]]:
        """What each rank has computed, in its order."""
        return [[(what, i) for what, i in log if what in "FB"] for log in self.logs]

    def step(self, answer: Any, dist: Any) -> tuple[Any, list[Tensor | None], Log]:
        """Be one rank: return what the answer returns, its gradients, and what it has done in turn."""
        rank = dist.get_rank()
        layers = _cut(_tiny_tower(), self.balance)[rank]
        noting = _Noting()
        part = nn.Sequential(*layers.children(), noting)
        if self.left:
            for p in part.parameters():
                p.grad = _left_in(p)
        first = sum(self.balance[:rank])
        before = rank - 1 if rank > 0 else None
        behind = rank + 1 if rank + 1 < self.n else None
        images = self.images.clone() if before is None else None
        targets = self.targets.clone() if behind is None else None
        shape = (self.rows, 1, 8, 8) if before is None else (self.rows, _WIDTHS[first])
        listening = Listening(dist, noting.log)
        given = AtOnce(listening) if self.at_once else listening
        loss = answer(rank, part, images, targets, self.m, before, behind, shape, given)
        listening.end()
        self.changed += self.changes(rank, part, noting) + self.changes_of_data(images, targets)
        return loss, [p.grad for p in part.parameters()], noting.log

    def changes(self, rank: int, part: nn.Module, noting: _Noting) -> list[str]:
        """Say what of a rank's module a step has changed that is not its own."""
        found = []
        if not part.training:
            found.append(
                f"the module of rank {rank} is in eval mode after the step, and was in training mode."
            )
        elif noting.evaluated:
            found.append(f"the module of rank {rank} was in eval mode while a micro-batch went through.")
        if not torch.is_grad_enabled():
            found.append(f"autograd is switched off on rank {rank} after the step.")
        if not all(p.requires_grad for p in part.parameters()):
            found.append(f"after the step a parameter of rank {rank} asks for no gradient any more.")
        fresh = _cut(_tiny_tower(), self.balance)[rank]
        if not all(torch.equal(p, q) for p, q in zip(part.parameters(), fresh.parameters(), strict=True)):
            found.append(f"a weight of rank {rank} is another one after the step; the optimizer moves them.")
        return found

    def changes_of_data(self, images: Tensor | None, targets: Tensor | None) -> list[str]:
        """Say what of the caller's rows a step has changed."""
        found = []
        if images is not None and images.requires_grad:
            found.append("the images ask for a gradient after the step: they are the caller's, and data.")
        if images is not None and not torch.equal(images, self.images):
            found.append("the images are other ones after the step: they are the caller's.")
        if targets is not None and not torch.equal(targets, self.targets):
            found.append("the targets are other ones after the step: they are the caller's.")
        return found

    def fault(self, answer: Any, where: str) -> str:
        """Say what is wrong with a step, "" if nothing."""
        with in_case(where, _MEANINGS):
            seen, world = in_threads(lambda dist: self.step(answer, dist), self.n)
        self.posted = world.posted
        self.logs = [log for _, _, log in seen]
        losses = [loss for loss, _, _ in seen]
        self.losses = losses
        if losses[-1] is None:  # a missing return is told before what may be missing, too
            return self.fault_of_losses(losses)
        return (
            self.fault_of_gradients([gradients for _, gradients, _ in seen])
            or self.fault_of_losses(losses)
            or self.fault_of_messages(world)
            or min(self.changed, default="")
        )

    def fault_of_gradients(self, of_ranks: list[list[Tensor | None]]) -> str:
        for rank, gradients in enumerate(of_ranks):
            missing = sum(got is None for got in gradients)
            if missing:
                return f"{missing} parameters of rank {rank} have no gradient."
            for got, wanted in zip(gradients, self.gradients[rank], strict=True):
                assert got is not None
                assert wanted is not None
                left = self._left(wanted)
                away = away_from(got - left, wanted)
                if away and self.left:
                    stays = _share_left(got, left, wanted)
                    if stays:
                        return f"of what stood in .grad of rank {rank} before, {stays} is left."
                if away:
                    said = f"a gradient of rank {rank} is {away} that of one process."
                    # two mistakes may be as far away in two digits, or on some ranks only
                    off = float((got - left - wanted).norm())
                    return Fault(said, f"{said} {off:.6g}, the last rank's {self.off_on_last(of_ranks[-1])}")
        return ""

    def off_on_last(self, gradients: list[Tensor | None]) -> bool:
        for got, wanted in zip(gradients, self.gradients[-1], strict=True):
            assert wanted is not None
            if got is None or away_from(got - self._left(wanted), wanted):
                return True
        return False

    def _left(self, wanted: Tensor) -> Tensor:
        return _left_in(wanted) if self.left else torch.zeros_like(wanted)

    def fault_of_losses(self, losses: list[Any]) -> str:
        *others, last = losses
        if isinstance(last, Tensor) and last.requires_grad:
            return "the last rank returned a tensor with its graph, and whoever keeps it keeps the graph; not a number."
        number = last.item() if isinstance(last, Tensor) and last.numel() == 1 else last
        if not isinstance(number, float) or abs(number - self.loss) > 1e-10:
            near = isinstance(number, float) and abs(number - self.loss) < 1e-5
            loss = repr(self.loss) if near else f"{self.loss:.6f}"
            return f"the last rank returned {last!r}; the batch's loss is {loss}."
        for other in others:
            if other is not None:
                return f"a rank that is not the last one returned {other!r}, not None."
        return ""

    def fault_of_number(self) -> str:
        """Say whether the loss is a tensor where a number is asked."""
        loss = self.losses[-1]
        return (
            f"the last rank returned {loss!r}, a tensor, and no number." if isinstance(loss, Tensor) else ""
        )

    def fault_of_messages(self, world: Any) -> str:
        for a in range(self.n - 1):
            b = a + 1
            there = world.posted.count((a, b))
            back = world.posted.count((b, a))
            if (there, back) != (self.m, self.m):
                return f"rank {a} sent {there} messages to rank {b}, which sent {back} back; not {self.m}."
        return never_waited_for(world)

    def fault_of_pace(self) -> str:
        """Say whether rank 0 waits for a gradient before it has sent the second message."""
        between_first_two = [pair for pair in self.posted if pair in ((0, 1), (1, 0))]
        ahead = between_first_two.index((1, 0))
        if ahead < min(2, self.m):
            return (
                "right gradients, but rank 0 sends its second message after the first gradient has come back."
            )
        return ""

    def fault_of_halves(self) -> str:
        """Say which rank has not gone forward with all micro-batches before it went back, each once."""
        forwards = [("F", i) for i in range(self.m)]
        for rank, done in enumerate(self.done):
            if done[: self.m] != forwards or sum(op == "F" for op, _ in done) != self.m:
                return f"right gradients, but rank {rank} did {shown(done)}; all forwards once, then all backwards."
        return ""

    def fault_of_order(self, table: Sequence[Sequence[ActionPair]]) -> str:
        """Say which rank has done something else than its line of the table."""
        for rank, (done, asked) in enumerate(zip(self.done, table, strict=True)):
            if done != list(asked):
                return f"right gradients, but rank {rank} did {shown(done)}; asked was {shown(asked)}."
        return ""

    def fault_of_ticks(self, table: Sequence[Sequence[ActionPair]]) -> str:
        """Say whether some rank waits for what it does not need yet, or keeps what another one needs."""
        asked = [log_of(row, rank, self.n) for rank, row in enumerate(table)]
        took = ticks_taken(self.logs)
        enough = ticks_taken(asked)
        if took <= enough:
            return ""
        there = ticks_taken(self.logs, "F")
        soonest = ticks_taken(asked, "F")
        late = (
            f"the last forward ends after {there}, not {soonest}" if there > soonest else "backwards are late"
        )
        return (
            f"right gradients, but where each forward and each backward takes one tick this takes {took} ticks, and "
            f"{enough} are enough: a rank keeps what another one waits for, or waits for what it does not need yet; "
            f"{late}."
        )


def _left_in(like: Tensor) -> Tensor:
    """Return what stands in .grad before a step."""
    return random_tensor(*like.shape, seed=77)


def _share_left(got: Tensor, left: Tensor, wanted: Tensor) -> str:
    """Say how many times `left` is in a gradient that has `wanted` once, "" if it is not made of both."""
    rest = got - wanted
    share = float((rest * left).sum() / (left * left).sum())
    if not torch.allclose(rest, share * left, rtol=0, atol=1e-10):
        return ""
    return "nothing" if abs(share) < 1e-10 else f"{share:.3g} times"


def never_waited_for(world: Any) -> str:
    """Say which message or collective was begun and never waited for, "" if none."""
    for operations in world.unwaited.values():
        if operations:
            return f"{operations[0]} is never waited for."
    return ""


def _cut(model: nn.Sequential, balance: list[int]) -> list[nn.Module]:
    return [model[sum(balance[:j]) : sum(balance[: j + 1])] for j in range(len(balance))]
