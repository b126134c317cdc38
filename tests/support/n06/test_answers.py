"""Answers to 06 that readers have written: wrong ones that a check once took, and right ones of other kinds."""

import pytest
import torch

from support import built
from support.kit.mistakes import edited
from support.n06 import checks as n06
from support.n06 import solved
from support.n06.drawn import told_apart

# ---- exercise 1


def takes_the_greater(tensor, dist):
    """Right behind a sum of positive numbers, where what is finished is greater than what is not."""
    rank = dist.get_rank()
    world = dist.get_world_size()
    chunks = tensor.tensor_split(world)
    for step in range(world - 1):
        sending = dist.isend(chunks[(rank - step) % world], (rank + 1) % world)
        arriving = chunks[(rank - 1 - step) % world]
        received = torch.empty_like(arriving)
        dist.recv(received, (rank - 1) % world)
        arriving.copy_(torch.maximum(arriving, received))
        sending.wait()


def both_halves(tensor, dist):
    built.reduce_scatter(tensor, dist)
    built.all_gather(tensor, dist)


def nothing(tensor, dist):
    tensor.mul_(1)


def ring_with_buffer(buffer):
    return edited(built.reduce_scatter, ("torch.empty_like(arriving)", buffer))


KEPT = edited(
    built.reduce_scatter,
    ("torch.empty_like(arriving)", "kept.setdefault((rank, step), torch.empty_like(arriving))"),
    names={"kept": {}},
)
ASKS_TORCH = edited(built.reduce_scatter, ("dist.get_rank()", "torch.distributed.get_rank()"), names={"torch": torch})


@pytest.mark.parametrize(
    ("halves", "told"),
    [
        ((built.reduce_scatter, takes_the_greater), "all_gather alone"),
        ((both_halves, nothing), "all_gather alone"),
        ((ring_with_buffer("torch.empty(len(arriving))"), built.all_gather), "float32"),
        ((ring_with_buffer("torch.empty(len(arriving), dtype=torch.int64)"), built.all_gather), "int64"),
        ((ring_with_buffer("torch.empty(len(arriving), dtype=torch.float64)"), built.all_gather), "float64"),
        ((KEPT, built.all_gather), "4 values"),
        ((ASKS_TORCH, built.all_gather), "asked of the dist that you are given"),
        ((edited(built.reduce_scatter, ("(rank + 1) % world", "rank")), built.all_gather), "sends to itself"),
        (
            (
                edited(built.reduce_scatter, ("arriving += received", "arriving.copy_((arriving.float() + received))")),
                built.all_gather,
            ),
            "it should be",
        ),
    ],
)
def test_halves_that_are_right_only_behind_each_other_or_for_one_dtype_are_refused(halves, told):
    message = n06.check_ring(*halves).message
    assert told in message


def adds_to_zeros(tensor, dist):
    """Right: whatever stood in the other chunks is wiped first, then what arrives is added."""
    rank = dist.get_rank()
    world = dist.get_world_size()
    chunks = tensor.tensor_split(world)
    for number, chunk in enumerate(chunks):
        if number != rank:
            chunk.zero_()
    for step in range(world - 1):
        sending = dist.isend(chunks[(rank - step) % world], (rank + 1) % world)
        arriving = chunks[(rank - 1 - step) % world]
        received = torch.empty_like(arriving)
        dist.recv(received, (rank - 1) % world)
        arriving += received
        sending.wait()


def wipes_what_it_has_sent(tensor, dist):
    """Right: of the other chunks nothing is promised after the first half."""
    rank = dist.get_rank()
    built.reduce_scatter(tensor, dist)
    for number, chunk in enumerate(tensor.tensor_split(dist.get_world_size())):
        if number != rank:
            chunk.zero_()


@pytest.mark.parametrize("halves", [(built.reduce_scatter, adds_to_zeros), (wipes_what_it_has_sent, built.all_gather)])
def test_halves_that_do_more_than_they_must_are_right(halves):
    verdict = n06.check_ring(*halves)
    assert verdict, verdict.message


# ---- exercise 2


class WaitsForTheBucketBefore(built.MyDDP):
    def send(self):
        before = len(self.sent)
        waiting = self.waiting
        while waiting and all(parameter.grad is not None for parameter in waiting[0]):
            if self.sent:
                self.sent[-1][2].wait()
            bucket = waiting.pop(0)
            flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
            self.sent.append((bucket, flat, self.dist.all_reduce(flat, async_op=True)))
        assert len(self.sent) >= before


class Late(built.MyDDP):
    """Sends on rank 1 only when backward is over."""

    late = False

    def send(self):
        if self.dist.get_rank() != 1 or self.late:
            super().send()

    def finish(self):
        self.late = True
        self.send()
        self.late = False
        super().finish()


class LaterOnRankOne(Late):
    """Its first bucket leaves in time, on rank 1, too."""

    def send(self):
        if self.dist.get_rank() != 1 or self.late or not self.sent:
            built.MyDDP.send(self)


OnTheClass = edited(
    built.MyDDP,
    ("    def __init__(self, module, dist, limits):", "    sent = []\n\n    def __init__(self, module, dist, limits):"),
    (
        "self.module, self.dist, self.sent = module, dist, []",
        "self.module, self.dist = module, dist\n        self.all = None",
    ),
    (
        "self.waiting = in_buckets(trained[::-1], limits)",
        "self.buckets = in_buckets(trained[::-1], limits)\n        self.waiting = list(self.buckets)",
    ),
    ("for bucket, flat, handle in self.sent:", "for bucket, flat, handle in list(self.sent):"),
    (
        "self.waiting, self.sent = [bucket for bucket, _, _ in self.sent], []",
        "self.waiting = list(self.buckets)\n        self.sent.clear()",
    ),
)
InADefault = edited(
    built.MyDDP,
    ("def __init__(self, module, dist, limits):", "def __init__(self, module, dist, limits, sent=[]):"),
    ("self.module, self.dist, self.sent = module, dist, []", "self.module, self.dist, self.sent = module, dist, sent"),
    (
        "self.waiting = in_buckets(trained[::-1], limits)",
        "self.buckets = in_buckets(trained[::-1], limits)\n        self.waiting = list(self.buckets)",
    ),
    (
        "self.waiting, self.sent = [bucket for bucket, _, _ in self.sent], []",
        "self.waiting = list(self.buckets)\n        self.sent.clear()",
    ),
)
OneDistForAll = edited(
    built.MyDDP,
    (
        "self.module, self.dist, self.sent = module, dist, []",
        "MyDDP.dist = dist\n        self.module, self.sent = module, []",
    ),
)
OneModuleForAll = edited(
    built.MyDDP,
    (
        "self.module, self.dist, self.sent = module, dist, []",
        "MyDDP.module = module\n        self.dist, self.sent = dist, []",
    ),
)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (WaitsForTheBucketBefore, "waits for a sum"),
        (Late, "rank 1"),
        (LaterOnRankOne, "on rank 1"),
        (OnTheClass, "two models"),
        (InADefault, "two models"),
        (OneDistForAll, "two models"),
        (OneModuleForAll, "two models"),
    ],
)
def test_a_ddp_without_overlap_late_on_one_rank_or_with_shared_state_is_refused(answer, told):
    message = n06.check_ddp(answer).message
    assert told in message


OneFlatBuffer = edited(
    built.MyDDP,
    (
        "self.waiting = in_buckets(trained[::-1], limits)",
        "self.waiting = in_buckets(trained[::-1], limits)\n"
        "        most = max(sum(p.numel() for p in bucket) for bucket in self.waiting)\n"
        "        self.flat = torch.empty(most, dtype=trained[0].dtype)",
    ),
    (
        "flat = torch.cat([parameter.grad.flatten() for parameter in bucket])",
        "flat = self.flat[: sum(parameter.numel() for parameter in bucket)]\n"
        "            torch.cat([parameter.grad.flatten() for parameter in bucket], out=flat)",
    ),
)
DividesUnderWay = edited(
    built.MyDDP,
    (
        "self.sent.append((bucket, flat, self.dist.all_reduce(flat, async_op=True)))",
        "self.sent.append((bucket, flat, self.dist.all_reduce(flat, async_op=True)))\n"
        "            flat /= self.dist.get_world_size()",
    ),
    ("(flat / self.dist.get_world_size())", "flat"),
)
_MISSING = "[n for n, p in self.module.named_parameters() if p.requires_grad and p.grad is None]"


def named_by(pairs):
    return edited(
        built.MyDDP,
        (_MISSING, "[self.names[p] for p in self.names if p.grad is None]"),
        (
            "        for parameter in trained:",
            f"        self.names = dict(zip({pairs}))\n        for parameter in trained:",
        ),
    )


NamesFromTheFront = named_by("trained, [n for n, _ in module.named_parameters()]")
NamesFromBehind = named_by("trained[::-1], [n for n, _ in module.named_parameters()][::-1]")
EatsTheLimits = edited(
    built.MyDDP,
    (
        "in_buckets(trained[::-1], limits)",
        "in_buckets(trained[::-1], [limits.pop(0) if len(limits) > 1 else limits[0]] + limits)",
    ),
)
NamesOne = edited(built.MyDDP, ("{', '.join(missing)}", "{missing[0]}"))
BytesForValues = edited(built.MyDDP, ("(trained[::-1], limits)", "(trained[::-1], [each // 8 for each in limits])"))
WaitsForNone = edited(built.MyDDP, ("self.dist.all_reduce(flat, async_op=True)", "self.dist.all_reduce(flat)"))


class RemembersTheLastStep:
    """Asks a set that no step empties whether all gradients are there."""

    def __init__(self, module, dist, limits):
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0)
        self.dist = dist
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.buckets = built.in_buckets(trained[::-1], limits)
        self.names = {p: name for name, p in module.named_parameters() if p.requires_grad}
        self.came = set()
        self.sent = []
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self.one)

    def one(self, parameter):
        self.came.add(parameter)
        for bucket in self.buckets[len(self.sent) :]:
            if not self.came.issuperset(bucket):
                return
            flat = torch.cat([p.grad.flatten() for p in bucket])
            self.sent.append((flat, self.dist.all_reduce(flat, async_op=True)))

    def finish(self):
        if missing := [name for p, name in self.names.items() if p.grad is None]:
            raise RuntimeError(", ".join(missing))
        for bucket, (flat, handle) in zip(self.buckets, self.sent, strict=False):
            handle.wait()
            means = (flat / self.dist.get_world_size()).split([p.numel() for p in bucket])
            for parameter, mean in zip(bucket, means, strict=True):
                parameter.grad.copy_(mean.view_as(parameter))
        self.sent = []


class KnowsOnlyTheLast(RemembersTheLastStep):
    """Each hook looks the variable of the loop up when it runs."""

    def __init__(self, module, dist, limits):
        super().__init__(module, dist, limits)
        for parameter in self.names:
            parameter._post_accumulate_grad_hooks.clear()
        for parameter in self.names:
            parameter.register_post_accumulate_grad_hook(lambda _: self.one(parameter))  # noqa: B023


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (OneFlatBuffer, "was written to before its handle's wait() had returned"),
        (DividesUnderWay, "was written to before its handle's wait() had returned"),
        (NamesFromTheFront, "does not name spare.weight and spare.bias"),
        (NamesFromBehind, "does not name spare.weight and spare.bias"),
        (EatsTheLimits, "limits was [10, 25], your code has made [25] of it"),
        (NamesOne, "does not name spare.bias."),
        (BytesForValues, "a bucket is closed when it has as many values as its limit"),
        (RemembersTheLastStep, "ask first whether all are, in this step"),
        (KnowsOnlyTheLast, "A lambda in a loop sees the variable's last value"),
        (WaitsForNone, "gives no handle"),
    ],
)
def test_a_ddp_that_a_reader_has_written_is_refused_with_a_sentence_that_is_true_of_it(answer, told):
    assert told in n06.check_ddp(answer).message


class WaitsInTheLastHook(built.MyDDP):
    """Right: as torch's DDP does, the last hook waits for everything, and finish only looks."""

    def send(self):
        super().send()
        if not self.waiting:
            for _, _, handle in self.sent:
                handle.wait()
            self.sent = [(bucket, flat, Done()) for bucket, flat, _ in self.sent]


class Done:
    def wait(self):
        return True


def test_a_ddp_whose_last_hook_waits_for_all_buckets_is_right():
    verdict = n06.check_ddp(WaitsInTheLastHook)
    assert verdict, verdict.message


# ---- exercise 3


def test_a_weight_that_is_wrong_in_its_eighth_digit_is_told_in_digits_that_show_it():
    wrong = edited(solved.sharded_step, ("own.grad = ", "own.grad = (1 + 1e-7) * "))
    message = n06.check_shard(wrong).message
    got, due = (part.split()[0].rstrip(".;,") for part in (message.split(" is ")[1], message.split("has ")[1]))
    assert got != due


@pytest.mark.parametrize(
    ("got", "due", "told"),
    [
        (1.5, 2.0, ("1.5", "2")),
        (0.0355604812, 0.0355604801, ("0.035560481", "0.035560480")),
        (float("nan"), 1.0, ("nan", "1")),
        (0.1 + 0.2, 0.3, ("0.30000000000000004", "0.29999999999999999")),
    ],
)
def test_two_numbers_are_told_with_digits_that_part_them(got, due, told):
    assert told_apart(got, due) == told


def sums_weights(weights, gradient, own, optimizer, dist):
    """Wrong: it hands round by adding up, with all other chunks at zero."""
    rank = dist.get_rank()
    world = dist.get_world_size()
    built.reduce_scatter(gradient, dist)
    own.grad = gradient.tensor_split(world)[rank] / world
    optimizer.step()
    weights.zero_()
    weights.tensor_split(world)[rank].copy_(own.detach())
    built.reduce_scatter(weights, dist)
    built.all_gather(weights, dist)


def test_a_sharded_step_of_three_halves_is_told_so_whatever_it_sends_in_them():
    message = n06.check_shard(sums_weights).message
    assert "sends half as much again" in message
    assert "all-reduce" not in message


# ---- exercise 4

ONE_DIST = edited(built.Gather, ("ctx.dist", "Gather.dist"))
ONE_WORLD = edited(
    built.Gather,
    ("ctx.dist = dist", "ctx.dist = dist\n        Gather.world = dist.get_world_size()"),
    ("ctx.dist.get_world_size()", "Gather.world"),
)
ONE_SHAPE = edited(
    built.Gather,
    ("ctx.dist = dist", "ctx.dist = dist\n        Gather.rows = len(own)"),
    (".chunk(ctx.dist.get_world_size())", ".split(Gather.rows)"),
)
FLOAT = edited(built.Gather, ("torch.empty_like(own)", "torch.empty(own.shape)"))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ONE_DIST, "two gathers"),
        (ONE_WORLD, "two gathers"),
        (ONE_SHAPE, "two gathers"),
        (FLOAT, "float32"),
    ],
)
def test_a_gather_that_keeps_its_state_on_the_class_or_knows_one_dtype_is_refused(answer, told):
    message = n06.check_gather(answer).message
    assert told in message
