"""What is particular about the checks of notebook 06; what all exercises have in common is in test_detectors."""

import pytest
import torch

from support import built
from support.kit.mistakes import edited
from support.n06 import checks as n06
from support.n06 import solved
from support.n06.ddp_models import TwoBranches


def test_a_mistake_is_recognised_by_what_it_does_be_it_a_ring_or_a_hook_that_waits():
    def own(tensor, dist):  # the blocking ring, in other words
        world = dist.get_world_size()
        rank = dist.get_rank()
        for _ in range(world - 1):
            dist.send(torch.zeros(len(tensor.tensor_split(world)[0])), (rank + 1) % world)

    message = n06.check_ring(own, own).message
    assert "waits in send to rank" in message
    assert message.endswith("begin with isend, then receive, then wait.")

    class Waits(built.MyDDP):
        def send(self):
            super().send()
            for _, _, handle in self.sent:
                handle.wait()

    blocking = next(wrong for why, wrong in n06.check_ddp.mistakes.items() if "blocking" in why)
    assert n06.check_ddp(Waits).message == n06.check_ddp(blocking).message


def test_a_ring_that_sends_to_the_left_or_whose_tensor_is_short_is_right_too():
    def left(tensor, dist, first=1, add=True):
        rank = dist.get_rank()
        world = dist.get_world_size()
        chunks = tensor.tensor_split(world)
        for step in range(world - 1):
            sending = dist.isend(chunks[(rank + first + step) % world], (rank - 1) % world)
            arriving = chunks[(rank + first + 1 + step) % world]
            received = torch.empty_like(arriving)
            dist.recv(received, (rank + 1) % world)
            arriving.copy_(arriving + received if add else received)
            sending.wait()

    assert n06.check_ring(left, lambda tensor, dist: left(tensor, dist, first=0, add=False))


def nothing(tensor, dist):
    tensor.mul_(1)


def to_everyone(tensor, dist):
    rank = dist.get_rank()
    world = dist.get_world_size()
    chunks = tensor.tensor_split(world)
    sending = [dist.isend(chunks[rank], (rank + hop) % world) for hop in range(1, world)]
    for hop in range(1, world):
        dist.recv(chunks[(rank - hop) % world], (rank - hop) % world)
    for handle in sending:
        handle.wait()


def by_the_centre(tensor, dist):
    rank = dist.get_rank()
    received = torch.empty_like(tensor)
    others = range(1, dist.get_world_size())
    for other in others:
        if rank == 0:
            dist.recv(received, other)
            tensor += received
    if rank > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
    for other in others if rank == 0 else ():
        dist.send(tensor, other)


def whole_tensors(tensor, dist):
    rank = dist.get_rank()
    world = dist.get_world_size()
    passing = tensor.clone()
    for _ in range(world - 1):
        sending = dist.isend(passing, (rank + 1) % world)
        received = torch.empty_like(tensor)
        dist.recv(received, (rank - 1) % world)
        sending.wait()
        tensor += received
        passing = received


@pytest.mark.parametrize(
    "halves, told",
    [
        (
            (built.reduce_scatter, to_everyone),
            "messages go from rank 0 to 1 and 2, from rank 1 to 0 and 2, from rank 2 to 0 and 1; in a ring rank 0",
        ),
        (
            (by_the_centre, nothing),
            "from rank 0 to 1 and 2, from rank 1 to 0, from rank 2 to 0; in a ring rank 0 sends to rank 1 only",
        ),
        (
            (whole_tensors, nothing),
            "with 3 ranks and 6 values a rank sends 12: the two halves of a ring send at most 8",
        ),
        (
            (edited(built.reduce_scatter, ("world - 1)", "world - 2)")), nothing),
            "Rank 0 sends 1 time in reduce_scatter; W − 1 is right.",
        ),
        (
            (edited(built.reduce_scatter, ("arriving +=", "chunks[(rank - 2 - step) % world] +=")), built.all_gather),
            "nothing can be put into a tuple",
        ),
    ],
)
def test_right_sums_on_other_ways_than_a_ring_are_refused_and_the_way_is_told(halves, told):
    assert told in n06.check_ring(*halves).message


# ---- MyDDP


class Counts:
    """Another right answer: buckets count what they still lack, gradients are copied into one flat tensor each."""

    def __init__(self, module, dist, limits):
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor, 0)
        self.dist = dist
        self.names = {p: name for name, p in module.named_parameters() if p.requires_grad}
        self.buckets = built.in_buckets(reversed(list(self.names)), limits)
        self.begin()
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(lambda p, n=number: self.one_more(p, n))

    def begin(self):
        self.lacking = [set(bucket) for bucket in self.buckets]
        self.handles = []
        self.flat = []

    def one_more(self, parameter, number):
        self.lacking[number].remove(parameter)
        for bucket, lacking in list(zip(self.buckets, self.lacking, strict=True))[len(self.handles) :]:
            if lacking:
                return
            self.flat.append(torch.cat([p.grad.reshape(-1) for p in bucket]) / self.dist.get_world_size())
            self.handles.append(self.dist.all_reduce(self.flat[-1], async_op=True))

    def finish(self):
        if any(self.lacking):
            lacking = set().union(*self.lacking)
            raise RuntimeError(" and ".join(name for p, name in self.names.items() if p in lacking))
        for bucket, flat, handle in zip(self.buckets, self.flat, self.handles, strict=True):
            handle.wait()
            for parameter, mean in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                parameter.grad = mean.reshape(parameter.shape).clone()
        self.begin()


def test_a_ddp_that_counts_what_its_buckets_lack_is_right_too():
    assert n06.check_ddp(Counts)


def test_a_ddp_that_takes_a_missing_gradient_for_zero_is_refused_where_a_layer_is_left_out():
    filled = (
        "for parameter in self.module.parameters():\n"
        "            if parameter.requires_grad and parameter.grad is None:\n"
        "                parameter.grad = torch.zeros_like(parameter)\n"
        "        self.send()\n"
        "        if missing :="
    )
    zeros = edited(built.MyDDP, ("if missing :=", filled))
    message = n06.check_ddp(zeros).message
    assert "finish returns without a word; 4 of 4 buckets have left" in message
    assert "not the means" not in message
    assert "never leaves" not in message
    silent = edited(built.MyDDP, ("raise RuntimeError(f\"no gradient for {', '.join(missing)}\")", "pass"))
    message = n06.check_ddp(silent).message
    assert "1 of 4 buckets have left" in message
    assert "never leaves" in message


def test_backward_meets_the_two_branches_in_the_order_opposite_to_forward():
    for turned, first in ((False, "right"), (True, "left")):
        model = TwoBranches(0, turned)
        seen = []
        for name in ("left", "right"):
            layer = getattr(model, name)
            layer.weight.register_post_accumulate_grad_hook(lambda _, name=name, seen=seen: seen.append(name))
        model(torch.ones(2, 6, dtype=torch.float64)).sum().backward()
        assert seen[0] == first


def test_who_begins_too_early_or_has_not_written_finish_is_told_so():
    early = edited(
        built.MyDDP,
        (
            "while self.waiting and all(parameter.grad is not None for parameter in self.waiting[0]):",
            "for _ in range(1):",
        ),
    )
    assert "ask first whether all of the bucket are" in n06.check_ddp(early).message
    begun = n06.check_ddp(type("MyDDP", (built.MyDDP,), {"finish": lambda self: None}))
    assert begun.status == "wrong"
    assert "is still that of the rank's own rows" in begun.message


# ---- the step whose moments are shared out


@pytest.mark.parametrize("change, told", [
    (("weights.tensor_split(world)[rank].copy_(own.detach())", "weights.tensor_split(world)[rank] = own"),
     "nothing can be put into a tuple"),
    (("gradient.tensor_split(world)[rank] / world", "gradient / world"), "own holds one chunk"),
    (("reduce_scatter(gradient, dist)", "dist.all_reduce(gradient)"), "your code calls dist.all_reduce"),
    (("all_gather(weights, dist)", "all_gather(weights.clone(), dist)"), "handed round does not reach `weights`"),
    (("weights.tensor_split(world)[rank]", "weights.tensor_split(world)[rank - 1]"), "your chunk of `weights` has not"),
])  # fmt: skip
def test_a_sharded_step_is_told_what_torch_says_in_words_and_what_it_calls(change, told):
    assert told in n06.check_shard(edited(solved.sharded_step, change)).message


@pytest.mark.parametrize("changes", [
    [("optimizer.step()", "optimizer.zero_grad()\n    optimizer.step()")],
    [("    optimizer.step()\n", ""), ("    own.grad", "    optimizer.step()\n    own.grad")],
])  # fmt: skip
def test_an_optimizer_without_its_gradient_is_not_told_that_it_has_moved_anything(changes):
    message = n06.check_shard(edited(solved.sharded_step, *changes)).message
    assert "own of rank 0 has not moved either" in message
    assert "has moved" not in message


# ---- a gather with a gradient


@pytest.mark.parametrize("change, told", [
    (("], None", "]"), "backward returns as much as forward takes"),
    (("[ctx.dist.get_rank()]", "[ctx.dist.get_rank()].flatten()"), "has the shape of own: the part of this"),
    ((".chunk(ctx.dist.get_world_size())[ctx.dist.get_rank()]", ""), "has the shape of own: the part of this"),
    (("torch.cat(parts)", "torch.cat([own, *(p for p in parts if not p.equal(own))])"), "; now its own stand first"),
])  # fmt: skip
def test_what_torch_says_of_a_backward_is_told_in_words(change, told):
    assert told in n06.check_gather(edited(built.Gather, change)).message


def test_a_gather_whose_backward_is_half_a_ring_is_right_too():
    class ByRing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, own, dist):
            ctx.dist = dist
            every = own.repeat(dist.get_world_size(), 1)
            built.all_gather(every, dist)
            return every

        @staticmethod
        def backward(ctx, gradient):
            total = gradient.clone().flatten()
            built.reduce_scatter(total, ctx.dist)
            own = total.tensor_split(ctx.dist.get_world_size())[ctx.dist.get_rank()]
            return own.view(-1, gradient.shape[1]), None

    assert n06.check_gather(ByRing)


# ---- buckets that leave late, names that are missing


class Late(built.MyDDP):
    def finish(self):
        self.late = False
        self.send()
        super().finish()
        self.late = True


class OnlyTheFirstInTime(Late):
    late = True

    def send(self):
        if self.late and self.sent:
            return
        super().send()


class TheLastInFinish(Late):
    late = True

    def send(self):
        if self.late and len(self.waiting) == 1:
            return
        super().send()


class FloatsOnly(built.MyDDP):
    def __init__(self, module, dist, limits):
        kept = {name: value.clone() for name, value in module.named_buffers() if not value.is_floating_point()}
        super().__init__(module, dist, limits)
        for name, value in kept.items():
            module.get_buffer(name).copy_(value)


class NamesOneBucket(built.MyDDP):
    def finish(self):
        names = {parameter: name for name, parameter in self.module.named_parameters()}
        if self.waiting:
            raise RuntimeError(", ".join(names[parameter] for parameter in self.waiting[0]))
        super().finish()


TrustsTheOrder = edited(
    built.MyDDP,
    (
        "while self.waiting and all(parameter.grad is not None for parameter in self.waiting[0]):",
        "while self.waiting and self.waiting[0][-1].grad is not None:",
    ),
)


class FixedText(built.MyDDP):
    def finish(self):
        try:
            super().finish()
        except RuntimeError:
            raise RuntimeError("no gradient for spare.weight, spare.bias") from None


class FixedTextForBoth(FixedText):
    def finish(self):
        try:
            super().finish()
        except RuntimeError as error:
            raise RuntimeError(f"{error}, 0.spare.weight, 0.spare.bias") from None


class NamesABiasTooMany(built.MyDDP):
    def finish(self):
        try:
            super().finish()
        except RuntimeError as error:
            raise RuntimeError(f"{error}, top.bias") from None


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (OnlyTheFirstInTime, "has not left when"),
        (TheLastInFinish, "has not left when backward has ended"),
        (FloatsOnly, "the buffer of batches"),
        (NamesOneBucket, "does not name 0.spare.weight."),
        (TrustsTheOrder, "A gradient is None until it has come in this step"),
        (FixedText, "does not name 0.spare.weight and 0.spare.bias"),
        (FixedTextForBoth, "names 0.spare.bias, too, which is no parameter of the model"),
        (NamesABiasTooMany, "names top.bias, too, which has its gradient"),
    ],
)
def test_a_ddp_that_is_late_with_a_later_bucket_or_knows_only_our_model_is_refused(answer, told):
    assert told in n06.check_ddp(answer).message


@pytest.mark.parametrize(
    "part", ["[2 * ctx.dist.get_rank() : 2 * ctx.dist.get_rank() + 2]", ".view(-1, 2, 3)[ctx.dist.get_rank()]"]
)
def test_a_gather_that_knows_how_many_points_a_rank_has_is_refused(part):
    wrong = edited(built.Gather, (".chunk(ctx.dist.get_world_size())[ctx.dist.get_rank()]", part))
    assert not n06.check_gather(wrong)


def test_a_sharded_step_that_empties_own_is_told_so():
    wrong = edited(
        solved.sharded_step, ("    all_gather(weights, dist)", "    all_gather(weights, dist)\n    own.data.mul_(0)")
    )
    assert not n06.check_shard(wrong)


def test_stacked_parts_are_told_their_shape():
    assert "has the shape [1, 2, 3]" in n06.check_gather(edited(built.Gather, ("torch.cat", "torch.stack"))).message


def test_a_gather_that_does_not_wait_for_its_sum_is_told_so():
    wrong = edited(built.Gather, ("all_reduce(total)", "all_reduce(total, async_op=True)"))
    assert "is never waited for" in n06.check_gather(wrong).message
