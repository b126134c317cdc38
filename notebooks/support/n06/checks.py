"""Predictions and exercises of notebook 06, data parallel; what an answer is tried with stands in the trials' files."""

from __future__ import annotations

from support.built import Gather, MyDDP, all_gather, reduce_scatter
from support.kit.exercise import Exercise
from support.kit.exercise import use as use
from support.kit.judged import judged
from support.kit.mistakes import edited, famous
from support.n06.ddp_trials import STEPS, fault_of_ddp
from support.n06.gather_trials import fault_of_gather
from support.n06.guesses import guess_adam as guess_adam
from support.n06.guesses import guess_border as guess_border
from support.n06.guesses import guess_bucket_size as guess_bucket_size
from support.n06.guesses import guess_hang as guess_hang
from support.n06.guesses import guess_lone as guess_lone
from support.n06.guesses import guess_ring as guess_ring
from support.n06.guesses import guess_two_buckets as guess_two_buckets
from support.n06.guesses import guess_unused as guess_unused
from support.n06.ring_trials import fault_of_halves, fault_of_shard
from support.n06.sent import sent_alone
from support.n06.solved import sharded_step

# ---- exercise 1: the two halves of a ring

#: Nobody waits for what is sent.
_NO_WAIT = ("sending.wait()", "")
#: What arrives is taken one chunk higher.
_HIGHER = ("rank - 2 - step", "rank - 1 - step")
_RECEIVE = "dist.recv(received, (rank - 1) % world)\n"

check_ring = Exercise(
    "reduce_scatter and all_gather",
    reference=(reduce_scatter, all_gather),
    answers=2,
    judge=judged(
        sent_alone(fault_of_halves, "reduce_scatter", "all_gather"),
        "on 1 to 6 ranks every chunk is the sum of all; nobody sends more than 2 (W − 1) chunks, each to a neighbour.",
    ),
    mistakes={
        **famous(
            (reduce_scatter, all_gather),
            {
                "All send, nobody receives: begin with isend, then receive, then wait.": (
                    *_NO_WAIT,
                    "isend",
                    "send",
                ),
            },
        ),
        "What you have sent is waited for before anybody receives: receive first.": (
            edited(reduce_scatter, _NO_WAIT, (_RECEIVE, f"sending.wait()\n        {_RECEIVE}")),
            all_gather,
        ),
        "The second half must take over what arrives: whoever adds again counts ranks twice.": (
            reduce_scatter,
            edited(reduce_scatter, ("rank - 1 - step", "rank - step"), _HIGHER),
        ),
        "The first half must add what arrives to its own part, not replace it.": (
            edited(reduce_scatter, ("arriving += received", "arriving.copy_(received)")),
            all_gather,
        ),
        "Your tensor is as it was: what arrives must be added in place.": (
            edited(reduce_scatter, ("arriving += received", "arriving = arriving + received")),
            all_gather,
        ),
        "The sum is complete, but on another rank: chunk r belongs to rank r. Where must its journey begin?": (
            edited(reduce_scatter, ("rank - 1 - step", "rank - step"), _HIGHER),
            all_gather,
        ),
        "Always your own chunk? After the first step you send on what has just arrived.": (
            edited(reduce_scatter, ("rank - 1 - step", "rank"), ("rank - 2 - step", "rank - 1")),
            all_gather,
        ),
        "In the second half, too, only the first chunk is your own: send on what has just arrived.": (
            reduce_scatter,
            edited(all_gather, ("rank - step", "rank"), ("rank - 1 - step", "rank - 1")),
        ),
        "The second half begins with what is complete on rank r after the first: chunk r, not r − 1.": (
            reduce_scatter,
            edited(all_gather, ("rank - 1 - step", "rank - 2 - step"), ("(rank - step", "(rank - 1 - step")),
        ),
        "tensor_split cuts as the first half did; another cut mixes parts of two chunks.": (
            reduce_scatter,
            edited(all_gather, ("tensor_split", "chunk")),
        ),
        **famous(
            (reduce_scatter, all_gather),
            {
                "tensor.chunk cuts 7 values into 3, 3, 1, and 3 for 5 ranks into 3 pieces; tensor_split "
                "makes a part for each.": (
                    "tensor_split",
                    "chunk",
                ),
                "isend only begins: until its handle's wait() has returned, the chunk may not be touched.": _NO_WAIT,
            },
        ),
        "That is a finished collective; build it from send, isend and recv.": (
            lambda tensor, dist: dist.all_reduce(tensor),
            lambda tensor, dist: tensor.mul_(1),
        ),
    },
)
"""Exercise 1: (reduce_scatter, all_gather) on imitated ranks, where a deadlock is seen at once."""


# ---- exercise 2: MyDDP

_ALL = "[*module.parameters(), *module.buffers()]"
_DIVIDED = "flat / self.dist.get_world_size()"
_HOOKED = "parameter.register_post_accumulate_grad_hook(lambda _: self.send())"
_SENT_LATER = (_HOOKED, "pass", "        if missing :=", "        self.send()\n        if missing :=")
_RAISED = "raise RuntimeError(f\"no gradient for {', '.join(missing)}\")"
_DEALT = "in_buckets(trained[::-1], limits)"
_NEXT = "while self.waiting and all(parameter.grad is not None for parameter in self.waiting[0]):"
_LIMIT = "self.limits[min(len(self.sent), len(self.limits) - 1)]"
_AGAIN = "self.waiting, self.sent = [bucket for bucket, _, _ in self.sent], []"

check_ddp = Exercise(
    "MyDDP",
    reference=MyDDP,
    methods=("__init__", "finish"),
    judge=judged(
        sent_alone(fault_of_ddp, "in_buckets"),
        f"on 1, 2 and 3 ranks weights, buffer and gradients of {STEPS} steps are those of one process; each bucket "
        "leaves as soon as it may, in the same order on every rank; a layer left out is named.",
    ),
    mistakes=famous(
        MyDDP,
        {
            "Every rank has begun with weights of its own, and equal gradients keep them different.": (
                "dist.broadcast(tensor.detach(), src=0)",
                "pass",
            ),
            "Buffers are broadcast, too: module.buffers() has them.": (_ALL, "module.parameters()"),
            "module.state_dict() has no buffer with persistent=False; module.buffers() has all.": (
                _ALL,
                "module.state_dict().values()",
            ),
            "src=1 gives everyone the weights of rank 1; take those of rank 0, which is always there.": (
                "src=0",
                "src=1",
            ),
            "src names the one rank whose tensor all others get: on every rank it must be the same.": (
                "src=0",
                "src=dist.get_rank()",
            ),
            "A blocking all-reduce in the hook stops backward: async_op=True only begins.": (
                "self.dist.all_reduce(flat, async_op=True)",
                "self.dist.all_reduce(flat)",
                "handle.wait()",
                "pass",
            ),
            "All-reduce makes the sum; what is needed is the mean.": (_DIVIDED, "flat"),
            "Divide by the number of ranks, which is not always 2.": (_DIVIDED, "flat / 2"),
            "Have you divided twice?": (_DIVIDED, _DIVIDED + " ** 2"),
            "The mean replaces the rank's own gradient in parameter.grad; += keeps that as well.": (
                "grad.copy_(",
                "grad.add_(",
            ),
            "You have read your own gradient: the sum stands in the tensor that all_reduce was given, once its "
            "handle's wait() has returned.": ("handle.wait()", "pass"),
            "Nothing puts the means into parameter.grad.": (
                "parameter.grad.copy_(mean.view_as(parameter))",
                "pass",
            ),
            "No hook has begun one. Is there one on each parameter, and does it know which? A lambda in a loop "
            "sees the variable's last value.": (
                _HOOKED,
                "pass",
            ),
            "finish() is too late to send: a hook must do it.": _SENT_LATER,
            "Your first bucket has the first layers, whose gradients come last: deal the last ones first.": (
                "trained[::-1]",
                "trained",
            ),
            "One bucket is full only when backward is over.": (
                _DEALT,
                "[trained[::-1]]",
            ),
            "Every second parameter is in the other bucket: each is full only near the end of backward.": (
                _DEALT,
                "[trained[::-2], trained[-2::-2]]",
            ),
            "Each parameter is a bucket of its own, and each call costs its latency: a bucket is closed when it has as "
            "many values as its limit.": (
                _DEALT,
                "[[parameter] for parameter in trained[::-1]]",
            ),
            "A bucket that is full leaves before one with a lower number: then the ranks' calls do not match. The sum "
            "of two different layers has come out.": (
                _NEXT,
                "for full in [b for b in self.waiting if all(p.grad is not None for p in b)]:",
                "bucket = self.waiting.pop(0)",
                "bucket = self.waiting.pop([each is full for each in self.waiting].index(True))",
                _AGAIN,
                "self.sent = []\n        self.waiting = list(self.dealt)",
                "        for parameter in trained:",
                "        self.dealt = list(self.waiting)\n        for parameter in trained:",
            ),
            "When a bucket leaves, one that was full before may leave, too: nobody else will send it.": (
                _NEXT,
                _NEXT.replace("while", "if"),
            ),
            "Does your last bucket leave? It holds what is left, which may be less than its limit.": (
                _NEXT,
                "while self.waiting and sum(p.numel() for p in self.waiting[0] if p.grad is not None) >= self.limit():",
                _AGAIN,
                "self.waiting, self.sent = [*(bucket for bucket, _, _ in self.sent), *self.waiting], []",
                "    def finish(self):",
                f"    def limit(self):\n        return {_LIMIT}\n\n    def finish(self):",
                "        for parameter in trained:",
                "        self.limits = list(limits)\n        for parameter in trained:",
            ),
            "A bucket that is not full never leaves, and finish() says nothing: ranks then train apart.": (
                _RAISED,
                "pass",
            ),
            "Which layer it was would take hours to find: name the parameters.": (
                _RAISED,
                "raise RuntimeError('a bucket has not been sent')",
            ),
            "Only what has no gradient is to be named.": (
                _RAISED,
                "raise RuntimeError(', '.join(name for name, _ in self.module.named_parameters()))",
            ),
            "A layer that is frozen on purpose, requires_grad=False, is no mistake.": (
                "if p.requires_grad and p.grad is None",
                "if p.grad is None",
            ),
            "Does finish empty its list?": (
                _AGAIN,
                "self.waiting = [bucket for bucket, _, _ in self.sent[-self.count :]]",
                "        for parameter in trained:",
                "        self.count = len(self.waiting)\n        for parameter in trained:",
            ),
        },
    ),
)
"""Exercise 2: a class whose `finish()` waits; compared with one process, and asked when it sends."""


# ---- exercise 3: a step of Adam, shared out

_OWN_GRADIENT = "gradient.tensor_split(world)[rank] / world"
_PUT_BACK = "    weights.tensor_split(world)[rank].copy_(own.detach())\n"

check_shard = Exercise(
    "sharded_step",
    reference=sharded_step,
    judge=judged(
        sent_alone(fault_of_shard, "reduce_scatter", "all_gather"),
        "on 1 to 5 ranks SGD and Adam come to the weights of one process, and nobody sends more than a ring does.",
    ),
    mistakes=famous(
        sharded_step,
        {
            "The sum of the gradients has come in. Adam hides that factor, SGD does not: take the mean.": (
                _OWN_GRADIENT,
                "gradient.tensor_split(world)[rank]",
            ),
            "Your own gradient is only that of your own rows: it must be added up over the ranks first.": (
                "    reduce_scatter(gradient, dist)\n",
                "",
            ),
            "Each rank has moved its own chunk only: the others must be told.": (
                "    all_gather(weights, dist)",
                "    pass",
            ),
            "The optimizer has moved `own`, and your chunk of `weights` has not heard of it.": (
                _PUT_BACK,
                "",
            ),
            "What is handed round does not reach `weights`: everyone needs the new ones.": (
                "all_gather(weights, dist)",
                "all_gather(gradient, dist)",
            ),
            "That is always the first chunk: rank r owns chunk r.": (
                _OWN_GRADIENT,
                "gradient.tensor_split(world)[0] / world",
                "weights.tensor_split(world)[rank]",
                "weights.tensor_split(world)[0]",
            ),
            "Your optimizer.step() comes before own.grad is that of this step.": (
                f"    own.grad = {_OWN_GRADIENT}\n    optimizer.step()",
                f"    optimizer.step()\n    own.grad = {_OWN_GRADIENT}",
            ),
            "The gradient of the last step is still in it: own.grad is to be replaced, not added to.": (
                f"own.grad = {_OWN_GRADIENT}",
                f"own.grad = {_OWN_GRADIENT} + (0 if own.grad is None else own.grad)",
            ),
            "You handed round the old chunk, and put the new one in afterwards.": (
                f"{_PUT_BACK}    all_gather(weights, dist)",
                f"    all_gather(weights, dist)\n{_PUT_BACK}",
            ),
            "A rank sends half as much again: a half for the gradients and a half for the weights are enough.": (
                "reduce_scatter(gradient, dist)",
                "reduce_scatter(gradient, dist)\n    all_gather(gradient, dist)",
            ),
            "Read it with own.detach(), or within torch.no_grad().": (
                "own.detach()",
                "own",
            ),
        },
    ),
)
"""Exercise 3: Adam with the moments of a chunk, compared with Adam in one process; messages are counted."""


# ---- exercise 4: a gather that has a gradient

_MINE = "[ctx.dist.get_rank()]"
_REDUCE = "ctx.dist.all_reduce(total)"

check_gather = Exercise(
    "Gather",
    reference=Gather,
    methods=("forward", "backward"),
    judge=judged(
        sent_alone(fault_of_gather, "reduce_scatter", "all_gather"),
        "on 1 to 4 ranks its gradient is that of one process which has all.",
    ),
    mistakes=famous(
        Gather,
        {
            "That is what your own loss says of your points; the losses of the others depend on them, too.": (
                _REDUCE,
                "",
            ),
            "The sum belongs here; the mean is DDP's business.": (
                _MINE,
                _MINE + " / ctx.dist.get_world_size()",
            ),
            "That part of the gradient belongs to another rank's points.": (
                _MINE,
                "[-1 - ctx.dist.get_rank()]",
            ),
            "Rank r's points are chunk r.": (_MINE, "[0]"),
            "W times your own term is not the sum over ranks: each loss has a gradient of its own.": (
                _REDUCE,
                "total *= ctx.dist.get_world_size()",
            ),
            "Sum a copy: whoever else gets this gradient would get your sum.": (
                "gradient.clone()",
                "gradient",
            ),
        },
    ),
)
"""Exercise 4: an autograd Function, used as `Gather.apply(own, dist)`."""
