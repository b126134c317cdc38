"""A tiny tower on imitated ranks, in threads: one step of it, and what differs from one process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.kit.judged import Fault
from support.kit.raised import in_case
from support.n15.orders import ActionPair, shown
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
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


_SENDER_WAITS = "A rank that waits for its send receives nothing meanwhile."
#: Said of a None that is sent.
NO_GRADIENT = (
    "What is sent is None: x gets a gradient in y's backward, if autograd is asked for it before the forward, and if y "
    "comes from this very x."
)
#: What an exception of a step means, by words of its text.
_MEANINGS = {
    "attribute 'chunk'": "Only the first stage is given images, and only the last one targets.",
    "can require gradients": "Images may be whole numbers, and nobody needs a gradient of them.",
    "implicitly created": "Backward begins with the loss, one number, or with the gradient of y that was received.",
    "modified by an inplace": "Until its backward a graph needs what it has saved: write nothing into that.",
    "send needs a tensor, and got None": NO_GRADIENT,
    "'<=' not supported between instances of 'int' and 'NoneType'": "None is no rank: the first stage has "
    "none before it, the last one none behind it.",
    "a second time": "Each micro-batch has a graph of its own, and goes back once.",
    "same dtype": "Layers and messages are of float64.",
    "receives into float32": "Receive into float64, the type of what is sent.",
    "rank 0 waits in send to rank 1, rank 1 waits in send to rank 0": "Both send, and neither receives.",
    "send to rank 1, rank 1 has ended": "Nobody receives it: rank 1 has returned.",
    "was written to before": "Until a send is done its message is read from the tensor: nothing may be written there.",
    "waits in send": _SENDER_WAITS,
    "waits in isend": _SENDER_WAITS,
    "waits in recv": "A rank waits for what nobody sends.",
}


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


class _LookUp(nn.Module):
    """A first layer for whole numbers, as of tokens: it looks them up in a table."""

    def forward(self, x: Tensor) -> Tensor:
        """Return one number for each."""
        return F.embedding(x, random_tensor(10, 1)).squeeze(-1)


def _tiny_tower(whole: bool) -> nn.Sequential:
    """Return four layers with their first weights; whole: for images of whole numbers."""
    layers: list[nn.Module] = []
    for k, (wide, narrow) in enumerate(pairwise(_WIDTHS)):
        linear = nn.Linear(wide, narrow).double()
        linear.weight.data = random_tensor(narrow, wide, seed=k) / wide**0.5
        linear.bias.data = random_tensor(narrow, seed=10 + k) / 4
        looks_up = [_LookUp()] if whole and k == 0 else []
        layers.append(nn.Sequential(*looks_up, nn.Flatten(), linear, nn.Tanh()))
    return nn.Sequential(*layers)


#: How a job may differ: where its stages are, and of what its images.
LAST_FIRST = "the first stage on the last rank"
WHOLE = "images of whole numbers"


class TinyJob:
    """A tower of four layers on n ranks, whose batch goes through in m micro-batches of some rows.

    left: something stands in every .grad already. at_once: an irecv returns when its message is there.
    how: LAST_FIRST, WHOLE, or neither.
    """

    def __init__(
        self, n: int, m: int, left: bool, rows: int = 2, at_once: bool = False, how: str = ""
    ) -> None:
        self.n = n
        self.m = m
        self.left = left
        self.rows = rows
        self.at_once = at_once
        self.whole = how == WHOLE
        self.ranks = [*range(n)][:: -1 if how == LAST_FIRST else 1]
        self.balance = even_balance(4, n)
        numbers = random_tensor(rows * m, 1, 8, 8, seed=1).abs()
        self.images = (3 * numbers).long().clamp(max=9) if self.whole else numbers
        self.targets = torch.arange(rows * m) % 10
        model = _tiny_tower(self.whole)
        loss = F.cross_entropy(model(self.images), self.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.loss = loss.item()
        self.posted: list[tuple[int, int]] = []
        self.logs: list[Log] = []
        self.losses: list[Any] = []
        self.changed: list[str] = []
        self.gradients = [[p.grad for p in part.parameters()] for part in _cut(model, self.balance)]

    @property
    def done(self) -> list[list[ActionPair]]:
        """What each rank has computed, in its order."""
        return [[(what, i) for what, i in log if what in "FB"] for log in self.logs]

    def step(self, answer: Any, dist: Any) -> tuple[Any, list[Tensor | None], Log]:
        """Be one rank: return what the answer returns, its gradients, and what it has done in turn."""
        stage = self.ranks.index(dist.get_rank())
        layers = _cut(_tiny_tower(self.whole), self.balance)[stage]
        noting = _Noting()
        part = nn.Sequential(*layers.children(), noting)
        if self.left:
            for p in part.parameters():
                p.grad = _left_in(p)
        first = sum(self.balance[:stage])
        before = self.ranks[stage - 1] if stage > 0 else None
        behind = self.ranks[stage + 1] if stage + 1 < self.n else None
        images = self.images.clone() if before is None else None
        targets = self.targets.clone() if behind is None else None
        shape = (self.rows, 1, 8, 8) if before is None else (self.rows, _WIDTHS[first])
        listening = Listening(dist, noting.log)
        given = AtOnce(listening) if self.at_once else listening
        loss = answer(stage, part, images, targets, self.m, before, behind, shape, given)
        listening.end()
        self.changed += self.changes(stage, part, noting) + self.changes_of_data(images, targets)
        return loss, [p.grad for p in part.parameters()], noting.log

    def changes(self, stage: int, part: nn.Module, noting: _Noting) -> list[str]:
        """Say what of a rank's module a step has changed that is not its own."""
        found = []
        rank = self.ranks[stage]
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
        fresh = _cut(_tiny_tower(self.whole), self.balance)[stage]
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
            by_rank, world = in_threads(lambda dist: self.step(answer, dist), self.n)
        seen = [by_rank[rank] for rank in self.ranks]
        self.posted = [(self.ranks.index(a), self.ranks.index(b)) for a, b in world.posted]
        self.logs = [self.by_stage(log) for _, _, log in seen]
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

    def by_stage(self, log: Log) -> Log:
        """Return a log with the numbers of stages in place of those of ranks."""
        return [(what, k if what in "FB" else self.ranks.index(k)) for what, k in log]

    def fault_of_gradients(self, of_ranks: list[list[Tensor | None]]) -> str:
        """Say which gradient is not that of one process, and how far it is away."""
        for rank, wanted_here, gradients in zip(self.ranks, self.gradients, of_ranks, strict=True):
            missing = sum(got is None for got in gradients)
            if missing:
                return f"{missing} parameters of rank {rank} have no gradient."
            for got, wanted in zip(gradients, wanted_here, strict=True):
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
        """Say whether the gradients of the last stage are others, too."""
        for got, wanted in zip(gradients, self.gradients[-1], strict=True):
            assert wanted is not None
            if got is None or away_from(got - self._left(wanted), wanted):
                return True
        return False

    def _left(self, wanted: Tensor) -> Tensor:
        return _left_in(wanted) if self.left else torch.zeros_like(wanted)

    def fault_of_losses(self, losses: list[Any]) -> str:
        """Say what was returned that is not the loss on the last rank, and None on others."""
        *others, last = losses
        if isinstance(last, Tensor) and last.requires_grad:
            return "the last rank returned a tensor with its graph, and whoever keeps it keeps the graph; not a number."
        number = last.item() if isinstance(last, Tensor) and last.numel() == 1 else last
        if not isinstance(number, float) or not abs(number - self.loss) <= 1e-10:  # nan, too
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
        """Say between which ranks the number of messages is not m each way, or which was never waited for."""
        for a in range(self.n - 1):
            b = a + 1
            there = self.posted.count((a, b))
            back = self.posted.count((b, a))
            if (there, back) != (self.m, self.m):
                ranks = self.ranks[a], self.ranks[b]
                sent = f"rank {ranks[0]} sent {there} messages to rank {ranks[1]}"
                return f"{sent}, which sent {back} back; not {self.m}."
        return never_waited_for(world)

    def fault_of_pace(self) -> str:
        """Say whether the first rank waits for a gradient before it has sent the second message."""
        between_first_two = [pair for pair in self.posted if pair in ((0, 1), (1, 0))]
        ahead = between_first_two.index((1, 0))
        if ahead < min(2, self.m):
            sends = f"rank {self.ranks[0]} sends its second message after the first gradient has come back"
            return f"right gradients, but {sends}."
        return ""

    def fault_of_halves(self) -> str:
        """Say which rank has not gone forward with all micro-batches before it went back, each once."""
        forwards = [("F", i) for i in range(self.m)]
        for rank, done in zip(self.ranks, self.done, strict=True):
            if done[: self.m] != forwards or sum(op == "F" for op, _ in done) != self.m:
                return f"right gradients, but rank {rank} did {shown(done)}; all forwards once, then all backwards."
        return ""

    def fault_of_order(self, table: Sequence[Sequence[ActionPair]]) -> str:
        """Say which rank has done something else than its line of the table."""
        for rank, done, asked in zip(self.ranks, self.done, table, strict=True):
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
