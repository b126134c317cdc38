"""Predictions and exercises of notebook 12, GPipe."""

# mypy: allow-untyped-calls, disable-error-code="no-any-return, unused-ignore"

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import Any

from torch import nn

from support import built
from support.kit.exercise import Exercise
from support.kit.guess import Guess, Tried
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.kit.verdict import Verdict
from support.n12.balance import forward_gain
from support.n12.solved import MiniGPipe, flatten_sequential
from support.n12.trials import CASES, fault_of_flatten, fault_of_pipeline

PATIENCE = 8.0  # seconds until a whole pipeline counts as stuck

# ---- predictions

guess_once = Guess(
    "the tasks that are computed only once",
    lambda: 4 * 8 - 4 * (8 - 1),
    unit="tasks",
    tried=Tried(right=4, wrong=1),
)
"""Section 5: of a step with 4 partitions, 8 micro-batches, except_last."""
guess_step = Guess(
    "the gain of a step",
    lambda: round(100 * (3 / (1 / forward_gain([1.0, 1.0], 8) + 2) - 1)),
    unit="%",
    read=lambda said: f"{said} (in per cent, please)" if isinstance(said, float) and 0 < said < 3 else said,
    tried=Tried(right=17, wrong=78),
)
"""Section 8: by how many per cent a step is faster whose backward takes two forwards and gains nothing."""
guess_counted = Guess(
    "num_batches_tracked after one step",
    lambda: 4 + 3,
    read=lambda said: "8 (that is `always`: here the last is not computed again)" if said == 8 else said,
    tried=Tried(right=7, wrong=1),
)
"""Section 11: what a BatchNorm counts in one step, 4 micro-batches, except_last."""


# ---- exercise 1: flatten_sequential

_OPENS = "type(layer) is nn.Sequential"

check_flatten = Exercise(
    "flatten_sequential",
    reference=flatten_sequential,
    judge=judged(fault_of_flatten, "the same layers in the same order for every model that was tried."),
    mistakes={
        **famous(
            flatten_sequential,
            {
                "One level is not enough: what comes out of a Sequential may be one again.": (
                    "flatten_sequential(layer) if",
                    "[*layer] if",
                ),
                "`children()` names every object once: iterate over the Sequential itself.": (
                    "in module:",
                    "in module.children():",
                ),
                "A subclass may do more than its layers: open only what is an nn.Sequential itself.": (
                    _OPENS,
                    "isinstance(layer, nn.Sequential)",
                ),
            },
        ),
        "Only an nn.Sequential may be opened: another layer does more than call what it has.": (
            lambda module: nn.Sequential(*(x for x in module.modules() if not [*x.children()]))
        ),
        "`modules()` goes into every layer, and lists an object that stands in three places once.": (
            lambda module: nn.Sequential(*(x for x in module.modules() if not isinstance(x, nn.Sequential)))
        ),
        **famous(flatten_sequential, {"Nothing was opened.": (_OPENS, "False")}),
    },
)
"""Exercise 1: the same layers, in the same order, in one Sequential."""


# ---- exercise 2: MiniGPipe


def _check_mini(exercise: Exercise, answer: Any) -> Verdict:
    """Say what is seen: that is the sentence of a famous mistake, so none of them needs to be tried as well."""
    judge = judged(
        lambda pipe: fault_of_pipeline(pipe, PATIENCE),
        f"outputs, gradients, threads, order and errors are right in {len(CASES)} pipelines of 1 to 4 partitions.",
    )
    return judge(replace(exercise, mistakes={}), answer)


@contextmanager
def _left_running(devices: Any) -> Iterator[Any]:
    """Start workers as spawn_workers does, and do not end them."""
    pairs: Any = [(SimpleQueue(), SimpleQueue()) for _ in devices]
    for pair in pairs:
        Thread(target=built.worker, args=pair, daemon=True).start()
    yield [pair[0] for pair in pairs], [pair[1] for pair in pairs]


_SCATTERED = "[part for (part,) in scatter((x,), self.chunks)]"
_STOP = '{"always": m, "except_last": m - 1, "never": 0}[self.checkpoint]'
_FENCE = "fence(clock, batches, lambda x, j: x)"
_COMPUTE = "partial(layer, batches[i])"
_RUN = "run_clock(tasks, *queues)"
_SPAWN = 'spawn_workers([torch.device("cpu")] * n)'
_GATHERED = "gather([(batch,) for batch in batches])[0]"
_PART = "nn.Sequential(*islice(layers, size))"

check_mini = Exercise(
    "MiniGPipe",
    reference=MiniGPipe,
    methods=("__init__", "forward"),
    judge=_check_mini,
    mistakes=famous(
        MiniGPipe,
        {
            "gets no gradient: is a tensor detached on the way?": (
                _COMPUTE,
                "partial(layer, batches[i].detach())",
            ),
            "nothing in the graph holds backward to its order": (_FENCE, "pass"),
            "nothing in the graph holds backward to its order.": (
                "fence(clock, batches,",
                "fence(clock, [*batches],",
            ),
            ", the last of 4, was computed 2 × in partition 0, not 1 ×": ("m - 1", "m"),
            ", the last of 3, was computed 2 × in partition 0, not 1 ×": ("m - 1", "self.chunks - 1"),
            "was computed 1 × in partition 0, not 2 ×": (_STOP, "0"),
            "was computed by the thread that called forward: no worker, no pipeline": (
                _RUN,
                "{j: task.compute() for j, task in tasks.items()}",
            ),
            "did not run at the same time as the others of clock 1": (
                _RUN,
                "{j: run_clock({j: tasks[j]}, *queues)[j] for j in tasks}",
            ),
            "start workers once, not per clock or task": (
                f"done = {_RUN}",
                f"with {_SPAWN} as own:\n                    done = run_clock(tasks, *own)",
            ),
            "is 0.333 times what it should be": (
                f"return {_GATHERED}",
                "whole = torch.cat(batches)\n        return whole.detach() + (whole - whole.detach()) / m",
            ),
            "the caller's batch was changed": ("scatter((x,)", "scatter((x.requires_grad_(),)"),
            "scatter makes [3, 2, 2]": (_SCATTERED, "[*x.chunk(self.chunks)]"),
            "scatter makes [3, 2, 2].": (
                _SCATTERED,
                "[*x.split(max(1, len(x) // self.chunks))][: self.chunks]",
            ),
            "Does each task bind its own partition and batch when it is made": (
                _COMPUTE,
                "lambda: layer(batches[i])",
            ),
            "threads are left when forward has ended": ("spawn_workers(", "_left_running("),
            "your code raised RuntimeError: a worker failed: from a layer": (
                f"done = {_RUN}",
                f"try:\n                    done = {_RUN}\n                except ArithmeticError as error:\n"
                '                    raise RuntimeError(f"a worker failed: {error}") from None',
            ),
            "nn.ModuleList registers them": ("nn.ModuleList(", "list("),
            "are they copies, or do layers lie in no partition?": (_PART, f"deepcopy({_PART})"),
            "the last of 1, was computed 2 × in partition 0, not 1 ×": ("m - 1", "max(m - 1, 1)"),
            "partition 0 was computed by worker 1: the task of partition j is tasks[j]": (
                _RUN,
                "run_clock(tasks, *(each[::-1] for each in queues))",
            ),
            "2 workers were started for 1 partitions: one each": (_SPAWN, _SPAWN.replace("* n", "* (n + 1)")),
            "the output has no graph: is it detached on the way?": ("(batch,) for", "(batch.detach(),) for"),
            "`scatter` makes tuples: take the one tensor out of each": (
                _SCATTERED,
                "scatter((x,), self.chunks)",
            ),
            "gather wants a list of tuples, one each": (_GATHERED, "gather(batches)[0]"),
            "the output has no graph: a checkpoint needs an input that requires grad": (
                "partial(my_checkpoint, layer)",
                "partial(MyCheckpoint.apply, layer)",
            ),
        },
        names={"_left_running": _left_running, "deepcopy": deepcopy, "MyCheckpoint": built.MyCheckpoint},
    ),
)
"""Exercise 2: equal to the layers over the same micro-batches, and a pipeline."""
