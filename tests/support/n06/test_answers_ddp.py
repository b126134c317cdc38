"""Answers to exercise 2 of 06 that readers have written, MyDDP: wrong ones that a check once took, and a right one."""

import pytest
import torch

from support import built
from support.kit.mistakes import edited
from support.n06 import checks as n06


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

OneWorldSizeForAll = edited(
    built.MyDDP,
    ("self.sent = module, dist, []", "self.sent = module, dist, []\n        MyDDP.world = dist.get_world_size()"),
    ("flat / self.dist.get_world_size()", "flat / MyDDP.world"),
)


@pytest.mark.costly
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
        (OneWorldSizeForAll, "no longer those of the only rank; one alone is right. What stands on the class"),
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
SumsACopy = edited(built.MyDDP, ("all_reduce(flat, async_op=True)", "all_reduce(flat.clone(), async_op=True)"))
OnlyWaits = edited(
    built.MyDDP,
    ("(flat / self.dist.get_world_size())", "flat"),
    ("parameter.grad.copy_(mean.view_as(parameter))", "pass"),
)


class RemembersTheLastStep:
    """Asks a set that no step empties whether all gradients are there."""

    def __init__(self, module, dist, limits):
        for tensor in [*module.parameters(), *module.buffers()]:
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
        (EatsTheLimits, "limits was [10, 36], your code has made [36] of it"),
        (NamesOne, "does not name spare.bias."),
        (BytesForValues, "a bucket is closed when it has as many values as its limit"),
        (RemembersTheLastStep, "ask first whether all of the bucket are there"),
        (KnowsOnlyTheLast, "A lambda in a loop sees the variable's last value"),
        (WaitsForNone, "gives a handle only with async_op=True"),
        (SumsACopy, "the sum stands in the tensor that all_reduce was given"),
        (OnlyWaits, "Nothing puts the means into parameter.grad"),
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


class ByBuckets:
    """Right: counts by bucket what is missing, and begins anew after each step."""

    def __init__(self, module, dist, limits):
        self.module = module
        self.dist = dist
        for value in [*module.parameters(), *module.buffers()]:
            dist.broadcast(value, src=0)
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.buckets = built.in_buckets(trained[::-1], limits)
        self.place = {p: n for n, bucket in enumerate(self.buckets) for p in bucket}
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self.ready)
        self.begin()

    def begin(self):
        self.missing = [set(bucket) for bucket in self.buckets]
        self.sent = []

    def ready(self, parameter):
        self.missing[self.place[parameter]].discard(parameter)
        while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
            flat = torch.cat([p.grad.flatten() for p in self.buckets[len(self.sent)]])
            self.sent.append((flat, self.dist.all_reduce(flat, async_op=True)))

    def absent(self):
        return set().union(*self.missing)

    def finish(self):
        if absent := self.absent():
            names = [name for name, p in self.module.named_parameters() if p in absent]
            raise RuntimeError(f"no gradient for {', '.join(names)}")
        for bucket, (flat, handle) in zip(self.buckets, self.sent, strict=False):
            handle.wait()
            flat /= self.dist.get_world_size()
            for parameter, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                parameter.grad.copy_(piece.view_as(parameter))
        self.begin()


def test_a_ddp_that_counts_by_buckets_is_right():
    verdict = n06.check_ddp(ByBuckets)
    assert verdict, verdict.message


class SentOnTheClass(ByBuckets):
    sent = []  # noqa: RUF012

    def begin(self):
        self.missing = [set(bucket) for bucket in self.buckets]
        self.sent.clear()


class BlamesTheBucket(ByBuckets):
    def absent(self):
        return {p for bucket, missing in zip(self.buckets, self.missing, strict=True) if missing for p in bucket}


def test_a_ddp_whose_list_stands_on_the_class_is_told_so_at_once():
    message = n06.check_ddp(SentOnTheClass).message
    assert "the second one sends 0 of its" in message
    assert "What stands on the class" in message


def test_a_ddp_that_names_a_bucket_for_one_of_its_parameters_is_refused():
    assert "names 0.top.bias, too, which has its gradient" in n06.check_ddp(BlamesTheBucket).message


_ALL_OF_RANK_0 = "[*module.parameters(), *module.buffers()]"
_MISSING_EVER = "[n for n, p in self.module.named_parameters() if p.requires_grad and p not in self.ever]"
KnowsWhatOnceCame = edited(
    built.MyDDP,
    (_MISSING, _MISSING_EVER),
    ("lambda _: self.send()", "lambda p: self.ever.add(p) or self.send()"),
    ("        for parameter in trained:", "        self.ever = set()\n        for parameter in trained:"),
)


class LooksInTheFirstStepOnly(ByBuckets):
    looked = False

    def absent(self):
        missing = set() if self.looked else super().absent()
        self.looked = True
        return missing


@pytest.mark.parametrize("answer", [KnowsWhatOnceCame, LooksInTheFirstStepOnly])
def test_a_ddp_that_misses_a_layer_left_out_after_a_good_step_is_refused(answer):
    message = n06.check_ddp(answer).message
    assert "whose layer spare is used in one step and left out of the next" in message
    assert "finish returns without a word" in message


class FullAtTheLimit(ByBuckets):
    """Asks whether a bucket has as many values as its limit, which the last one need not have."""

    def __init__(self, module, dist, limits):
        self.limits = list(limits)
        super().__init__(module, dist, limits)

    def begin(self):
        self.values = [0] * len(self.buckets)
        self.sent = []

    def ready(self, parameter):
        self.values[self.place[parameter]] += parameter.numel()
        while (number := len(self.sent)) < len(self.buckets) and self.values[number] >= self.limits[
            min(number, len(self.limits) - 1)
        ]:
            self.send()

    def send(self):
        flat = torch.cat([p.grad.flatten() for p in self.buckets[len(self.sent)]])
        self.sent.append((flat, self.dist.all_reduce(flat, async_op=True)))

    def absent(self):
        return {p for p in self.place if p.grad is None}


class TheRestInFinish(FullAtTheLimit):
    def absent(self):
        absent = super().absent()
        while not absent and len(self.sent) < len(self.buckets):
            self.send()
        return absent


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (FullAtTheLimit, "Does your last bucket leave? It holds what is left"),
        (TheRestInFinish, "bucket 2 of 0..2 has not left when backward has ended"),
    ],
)
def test_a_ddp_whose_bucket_is_full_at_its_limit_is_refused_for_the_last_one(answer, told):
    assert told in n06.check_ddp(answer).message


_TRAINED = "[parameter for parameter in module.parameters() if parameter.requires_grad]"
_OF_ALL_LAYERS = "[p for m in module.modules() for p in m.parameters(recurse=False) if p.requires_grad]"
_OF_LAYERS = "[p for layer in module.children() for p in layer.parameters() if p.requires_grad]"


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ((_TRAINED, _OF_LAYERS), "the gradient of turn "),
        ((_TRAINED, _OF_ALL_LAYERS), "and with a bias that two layers share"),
        (("parameter.grad.flatten()", "parameter.grad.view(-1)"), "flatten() takes that, too"),
        ((_ALL_OF_RANK_0, "[*module.parameters(), *module.buffers(recurse=False)]"), "the buffer of top.centre"),
    ],
)
def test_a_ddp_that_knows_only_layers_one_layout_or_only_the_modules_own_buffers_is_refused(pair, told):
    message = n06.check_ddp(edited(built.MyDDP, pair)).message
    assert told in message
    assert "state_dict" not in message


def test_a_ddp_that_leaves_buffers_out_that_a_state_dict_has_not_is_refused():
    message = n06.check_ddp(edited(built.MyDDP, (_ALL_OF_RANK_0, "module.state_dict().values()"))).message
    assert "the buffer of scale" in message
    assert "persistent=False" in message


def test_a_ddp_that_broadcasts_floats_only_is_not_told_of_a_state_dict_that_it_does_not_use():
    floats = "[*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]"
    message = n06.check_ddp(edited(built.MyDDP, (_ALL_OF_RANK_0, floats))).message
    assert "the buffer of batches" in message
    assert "state_dict" not in message


def test_a_ddp_that_leaves_out_frozen_weights_is_told_of_these_weights():
    trained = "[*(p for p in module.parameters() if p.requires_grad), *module.buffers()]"
    message = n06.check_ddp(edited(built.MyDDP, (_ALL_OF_RANK_0, trained))).message
    assert "the weight of right.weight" in message


def test_a_ddp_that_hands_the_first_weights_round_with_all_reduce_is_right():
    spread = "tensor.detach().mul_(dist.get_rank() == 0)\n            dist.all_reduce(tensor.detach())"
    verdict = n06.check_ddp(edited(built.MyDDP, ("dist.broadcast(tensor.detach(), src=0)", spread)))
    assert verdict, verdict.message
