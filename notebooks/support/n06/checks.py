"""Predictions and exercises of notebook 06, data parallel; what an answer is tried with stands in trials.py."""

from __future__ import annotations

from support.built import Gather, MyDDP, all_gather, load, reduce_scatter, save
from support.kit.exercise import Exercise
from support.kit.exercise import use as use
from support.kit.guess import Guess, Tried, letter
from support.kit.judged import judged
from support.kit.mistakes import edited, famous
from support.n06 import trials

# ---- predictions

guess_lone = Guess(
    "the weight of a row of rank 1, by one of rank 0", lambda: 24 / 8, tried=Tried(right=3, wrong=1)
)
"""Section 2: what a row of the short share weighs, by one of the long share."""
guess_adam = Guess("how many times as long Adam's step becomes", lambda: 1, tried=Tried(right=1, wrong=8))
"""Section 2: what the sum in place of the mean, on 8 ranks, makes of a step of Adam."""
guess_ring = Guess("what each rank sends", lambda: 2 * 7 / 8, unit="GB", tried=Tried(right=1.75, wrong=8))
"""Section 3: GB that each of 8 ranks sends to add up a gradient of 1 GB."""
guess_first_bucket = Guess(
    "what is over of backward", lambda: 100 * 2 / 8, unit="%", tried=Tried(right=25, wrong=100)
)
"""Section 4: per cent of backward that is over when the first of four buckets of 8 equal layers is full."""
guess_flipped = Guess("what torch.load does", lambda: "B", read=letter, tried=Tried(right="b", wrong="A"))
"""Section 7: what it does with a file of weights in which one bit is wrong."""
guess_hang = Guess("what rank 0 does", lambda: "B", read=letter, tried=Tried(right="b", wrong="A"))
"""Of "Break it": what rank 0 does when rank 1 has no batch left."""


# ---- exercises

#: Nobody waits for what is sent.
_NO_WAIT = ("sending.wait()", "")
#: What arrives is taken one chunk higher.
_HIGHER = ("rank - 2 - step", "rank - 1 - step")

check_ring = Exercise(
    "reduce_scatter and all_gather",
    reference=(reduce_scatter, all_gather),
    answers=2,
    judge=judged(
        trials.fault_of_halves,
        "on 1 to 6 ranks every chunk is the sum of all; each rank sends 2 (W − 1) chunks, to its neighbour only.",
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
        "The second half must take over what arrives: whoever adds again counts ranks twice.": (
            reduce_scatter,
            edited(reduce_scatter, ("rank - 1 - step", "rank - step"), _HIGHER),
        ),
        "The first half must add what arrives to its own part, not replace it.": (
            edited(reduce_scatter, ("arriving += received", "arriving.copy_(received)")),
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

_HALVES = "(last_first[:half], last_first[half:])"
_DIVIDED = "flat / self.dist.get_world_size()"

check_ddp = Exercise(
    "MyDDP",
    reference=MyDDP,
    methods=("__init__", "finish"),
    judge=judged(
        trials.fault_of_ddp,
        f"on 1, 2 and 3 ranks weights, buffer and gradients of {trials.STEPS} steps are those of one process, and "
        "backward goes on while the first bucket is on its way.",
    ),
    mistakes=famous(
        MyDDP,
        {
            "Every rank has begun with weights of its own, and equal gradients keep them different.": (
                "dist.broadcast(tensor, src=0)",
                "pass",
            ),
            "Buffers are broadcast, too: module.state_dict() has both.": (
                "module.state_dict().values()",
                "[p.detach() for p in module.parameters()]",
            ),
            "src=1 gives everyone the weights of rank 1; take those of rank 0, which is always there.": (
                "src=0",
                "src=1",
            ),
            "The first half is never sent: does your lambda see the loop's last bucket?": (
                "lambda _, bucket=bucket",
                "lambda _",
            ),
            "A blocking all-reduce in the hook stops backward: async_op=True only begins.": (
                ", async_op=True",
                "",
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
            "What you read before the handle's wait() is your own gradient.": ("handle.wait()", "pass"),
            "The means are computed, and never put into parameter.grad.": (
                "parameter.grad.copy_(mean.view_as(parameter))",
                "pass",
            ),
            "finish() is too late to send: a hook must do it.": (
                "self.arrived(bucket)",
                "None",
                f"in {_HALVES}",
                "in ()",
                "for bucket, flat",
                "for bucket in self.halves: self.arrived(bucket)\n        for bucket, flat",
                "half = len(last_first) // 2",
                "self.halves = last_first[:4], last_first[4:]; half = 4",
            ),
            "One bucket is full only when backward is over.": (_HALVES, "[last_first]"),
            "Each parameter is a bucket of its own, and each call costs its latency: make two halves.": (
                _HALVES,
                "[[parameter] for parameter in last_first]",
            ),
            "Does finish empty its list?": ("        self.sent = []", ""),
        },
    ),
)
"""Exercise 2: a class whose `finish()` waits; compared with one process, and asked when it sends."""

_MINE = "[ctx.dist.get_rank()]"
_REDUCE = "ctx.dist.all_reduce(total)"

check_gather = Exercise(
    "Gather",
    reference=Gather,
    methods=("forward", "backward"),
    judge=judged(
        trials.fault_of_gather, "on 1 to 4 ranks its gradient is that of one process which has all."
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
            "Always the first chunk? Rank r's points are chunk r.": (_MINE, "[0]"),
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
"""Exercise 3: an autograd Function, used as `Gather.apply(own, dist)`."""

_REPLACE = "os.replace(unfinished, path)"
_BESIDE = 'f"{path}.unfinished"'

check_state = Exercise(
    "save and load",
    reference=(save, load),
    answers=2,
    judge=judged(
        trials.fault_of_state,
        "a run that loads goes on bit for bit as one that nothing disturbed, at every moment of saving a "
        "whole file is "
        "there, and a damaged one is refused.",
    ),
    mistakes=famous(
        (save, load),
        {
            "You write onto the only good file: write beside it, then rename.": (
                _BESIDE,
                "path",
                _REPLACE,
                "",
            ),
            "A copy is written byte by byte; only renaming is one operation.": (
                _REPLACE,
                "import shutil; shutil.copy(unfinished, path)",
            ),
            "Don't remove the old file: os.replace puts the new one in its place in one operation.": (
                _REPLACE,
                "os.path.exists(path) and os.remove(path); os.rename(unfinished, path)",
            ),
            "Another folder may be another disk: write beside path, under its name with an ending.": (
                _BESIDE,
                "__import__('tempfile').mkstemp()[1]",
            ),
            "Has the finished file got its name?": (_REPLACE, ""),
            "The model has to take over what the file has: load_state_dict.": (
                'model.load_state_dict(state["model"])',
                "",
            ),
            "Adam's two moments are part of the state: without them it begins to guess anew.": (
                'optimizer.load_state_dict(state["optimizer"])',
                "",
            ),
            "Without its place in the epoch a new attempt does not know which rows are done.": (
                'return state["more"]',
                "return {}",
            ),
            "torch.load does not notice that: keep a checksum in the file, and compare it before anything else.": (
                "!= checksum",
                "== None",
            ),
        },
    ),
)
"""Exercise 4: (save, load); a run that died and goes on must be the run that did not die."""
