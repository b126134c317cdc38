"""Exercises of notebook 12, GPipe."""

# mypy: allow-untyped-calls, disable-error-code="no-any-return, unused-ignore"

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from lib.runtime.device import current_stream
from support import built
from support.kit.exercise import Exercise
from support.kit.judged import judged
from support.kit.mistakes import edited, famous
from support.kit.verdict import Verdict
from support.n12.articles import fault_of_run_pipeline
from support.n12.cutting import costs_to_try, fault_of_cheapest_cut, fault_of_flatten
from support.n12.guesses import guess_counted as guess_counted
from support.n12.guesses import guess_m as guess_m
from support.n12.guesses import guess_peak as guess_peak
from support.n12.guesses import guess_step as guess_step
from support.n12.numbers import fault_of_numbers
from support.n12.solved import MiniGPipe, Numbers, cheapest_cut, flatten_sequential, make_task, run_pipeline
from support.n12.trials import CASES, fault_of_pipeline

PATIENCE = 8.0  # seconds until a whole pipeline counts as stuck


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
                "An object may stand in several places, and `children()` names it once.": (
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
        "A layer that is no nn.Sequential keeps its inside: do not go into it.": (
            lambda module: nn.Sequential(*(x for x in module.modules() if not isinstance(x, nn.Sequential)))
        ),
        **famous(flatten_sequential, {"Here nothing was opened.": (_OPENS, "False")}),
    },
)
"""Exercise 1: the same layers, in the same order, in one Sequential."""


# ---- exercise 2: cheapest_cut


def _greedy(costs: list[float], n: int) -> list[int]:
    """Fill each partition up to the mean, then begin the next."""
    goal = sum(costs) / n
    sizes: list[int] = []
    start = 0
    for j in range(n - 1):
        end = start + 1
        while end < len(costs) - (n - 1 - j) and sum(costs[start : end + 1]) <= goal:
            end += 1
        sizes.append(end - start)
        start = end
    return [*sizes, len(costs) - start]


def _equal_numbers(costs: list[float], n: int) -> list[int]:
    """Give each partition as many layers as the others."""
    return [len(costs) // n + (j < len(costs) % n) for j in range(n)]


def _most_even(costs: list[float], n: int) -> list[int]:
    """Make the sum of the differences from the mean least."""
    goal = sum(costs) / n

    def best(start: int, parts: int) -> tuple[float, list[int]]:
        if parts == 1:
            return abs(sum(costs[start:]) - goal), [len(costs) - start]
        found = []
        for end in range(start + 1, len(costs) - parts + 2):
            off, sizes = best(end, parts - 1)
            found.append((off + abs(sum(costs[start:end]) - goal), [end - start, *sizes]))
        return min(found)

    return best(0, n)[1]


check_cut = Exercise(
    "cheapest_cut",
    reference=cheapest_cut,
    judge=judged(
        lambda answer: fault_of_cheapest_cut(answer, PATIENCE),
        f"no cut has a cheaper slowest partition, in {len([*costs_to_try()])} cases, among them 60 layers in "
        "8 partitions.",
    ),
    mistakes={
        "Equal numbers of layers are no equal costs.": _equal_numbers,
        "Each partition was filled up to the mean: what is left over falls to the last one.": _greedy,
        "Near the mean on average is not what counts: one slow partition holds up all.": _most_even,
        **famous(
            cheapest_cut,
            {
                "Layers of a partition are neighbours: their order may not change.": (
                    "    @cache",
                    "    costs = sorted(costs)\n\n    @cache",
                ),
                "No partition may be empty.": ("start + 1, len(costs) - parts + 2", "start, len(costs) + 1"),
            },
        ),
    },
)
"""Exercise 2: contiguous partitions whose slowest one is as cheap as can be; of several such cuts any will do."""


# ---- exercise 3: MiniGPipe


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


_SCATTERED = "scatter(x, self.chunks)"
_STOP = '{"always": m, "except_last": m - 1, "never": 0}[self.checkpoint]'
_COMPUTE = "partial(layer, batches[i])"
_RUN = "run_clock(tasks, *queues)"
_SPAWN = 'spawn_workers([torch.device("cpu")] * n)'
_GATHERED = "gather(batches)"
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
                "partial(layer, tree_map(torch.detach, batches[i]))",
            ),
            "the graph does not hold every partition to its order": ("tie(batches, i)", "pass"),
            "the graph does not hold every partition to its order.": (
                "tie(batches, i)",
                "tie([*batches], i)",
            ),
            ", the last of 4, was computed 2 × in partition 0, not 1 ×": ("m - 1", "m"),
            ", the last of 3, was computed 2 × in partition 0, not 1 ×": ("m - 1", "self.chunks - 1"),
            "was computed 1 × in partition 0, not 2 ×": (_STOP, "0"),
            "was computed by the thread that called forward, not by a worker": (
                _RUN,
                "{j: task.compute() for j, task in tasks.items()}",
            ),
            "did not run at the same time as the others of clock 1": (
                _RUN,
                "{j: run_clock({j: tasks[j]}, *queues)[j] for j in tasks}",
            ),
            "threads: a partition has one worker for all clocks": (
                f"done = {_RUN}",
                f"with {_SPAWN} as own:\n                    done = run_clock(tasks, *own)",
            ),
            "is 0.333 times what it should be": (
                f"return {_GATHERED}",
                "whole = gather(batches)\n        if isinstance(whole, tuple):\n            return whole\n"
                "        return whole.detach() + (whole - whole.detach()) / m",
            ),
            "the caller's batch was changed": (
                _SCATTERED,
                "scatter(x if isinstance(x, tuple) else x.requires_grad_(), self.chunks)",
            ),
            "scatter makes [3, 2, 2]": (
                _SCATTERED,
                "scatter(x, self.chunks) if isinstance(x, tuple) else [*x.chunk(self.chunks)]",
            ),
            "scatter makes [3, 2, 2].": (
                _SCATTERED,
                "scatter(x, self.chunks) if isinstance(x, tuple) "
                "else [*x.split(max(1, len(x) // self.chunks))][: self.chunks]",
            ),
            "Does each task bind its own partition and batch when it is made": (
                _COMPUTE,
                "lambda: layer(batches[i])",
            ),
            "threads are left when forward has ended": ("spawn_workers(", "_left_running("),
            "the caller gets another exception in its place: RuntimeError: a worker failed": (
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
            "the output has no graph: is it detached on the way?": (
                _GATHERED,
                "gather([tree_map(torch.detach, batch) for batch in batches])",
            ),
            "is for `layer` to say": ("self.layer(i, j)", "self.partitions[j]"),
            "the layers return a tuple of two tensors, and forward returned Tensor": (
                _GATHERED,
                "torch.cat([batch[0] if isinstance(batch, tuple) else batch for batch in batches])",
            ),
        },
        names={"_left_running": _left_running, "deepcopy": deepcopy, "tree_map": tree_map},
    ),
)
"""Exercise 3: equal to the layers over the same micro-batches, and a pipeline."""


# ---- exercise 4: random numbers of a pair

_SEEDS = "torch.randint(2**62, (m, n)).tolist()"
_OWN = "torch.Generator().manual_seed(self.seeds[i][j])"
_INSIDE = "        def run(x):\n            with drawing_from("

check_numbers = Exercise(
    "Numbers",
    reference=Numbers,
    methods=("__init__", "wrap"),
    may_pass=("__init__",),
    judge=judged(
        fault_of_numbers,
        "each pair draws its own masks, twice the same, in any thread, and the next step draws others.",
        around=lambda: torch.random.fork_rng(devices=[]),
    ),
    mistakes=famous(
        Numbers,
        {
            "A generator goes on from where it stood: begin each call with a fresh one.": (
                f"{_INSIDE}{_OWN}",
                f"        own = {_OWN}\n\n{_INSIDE}own",
            ),
            "A seed that is made inside the call is another one in the recompute.": (
                _OWN,
                "torch.Generator().manual_seed(torch.Generator().seed())",
            ),
            "All partitions share the numbers of a micro-batch.": ("[i][j]", "[i][0]"),
            "All micro-batches share the numbers of a partition.": ("[i][j]", "[0][j]"),
            "i + j is the clock: all pairs of a clock share their numbers.": (
                "self.seeds[i][j]",
                "self.seeds[0][0] + i + j",
            ),
            "Nothing that changes from step to step reaches the generator: every step has the same masks.": (
                "self.seeds[i][j]",
                "1000 * i + j",
            ),
            "Seeds from elsewhere than torch's generator, or a counter that goes on, change from run to run.": (
                _SEEDS,
                "[[torch.Generator().seed() for _ in range(n)] for _ in range(m)]",
            ),
            "All threads share torch's own generator: give the layer one of its own.": (
                f"with drawing_from({_OWN}):",
                "if torch.manual_seed(self.seeds[i][j]):",
            ),
            "Who puts torch's generator back lets other threads see it in between: give the layer one of its own.": (
                f"with drawing_from({_OWN}):",
                "with torch.random.fork_rng(devices=[]):\n                torch.manual_seed(self.seeds[i][j])",
            ),
            "Where pairs share one, another thread may set it anew before the layer draws.": (
                "tolist()",
                "tolist()\n        self.own = torch.Generator()",
                "torch.Generator().manual",
                "self.own.manual",
            ),
        },
    ),
)
"""Exercise 4: masks that depend on step, micro-batch and partition, and on nothing else."""


# ---- exercise 5: the article's pipeline

_WAIT_1 = "batches[i] = wait_between(copy_streams[j][i], stream, batches[i])"
_WAIT_3 = "batch[0] = wait_between(stream, copy_stream, batch[0])"
_TIE = "batch[0] = my_tie(batch[0], shared, layer, x)"
_CLOCK = "done = run_clock(tasks, *queues)"
_LAST = f"        if again:\n            {_TIE}\n"
_FIRST = f"        if copy_stream is not None:\n            {_WAIT_3}\n"
_PIPELINES = {
    "The compute stream reads what a copy stream may still be writing: it has to wait for that one.": (
        _WAIT_1,
        "pass",
    ),
    "A copy stream reads what the partition may still be computing: it has to wait for that.": (
        _WAIT_3,
        "pass",
    ),
    "In backward nothing lets the compute stream wait for the copy of the gradient: what the second Wait returns must "
    "be in the graph.": (_WAIT_3, _WAIT_3.removeprefix("batch[0] = ")),
    "The copy has streams of its own: only then the partition goes on computing.": (
        "copy_between(copy_streams[j - 1][i], copy_streams[j][i],",
        "copy_between(current_stream(devices[j - 1]), current_stream(devices[j]),",
    ),
    "Nothing ties the micro-batches here.": ("depend(batches, i)", "pass"),
    "What my_tie returns must be in the graph, and the dictionary that of its Checkpoint.": (_TIE, "pass"),
    "The Recompute hangs in front of the Wait: hang it behind, and backward comes to it first.": (
        _FIRST + _LAST,
        _LAST + _FIRST,
    ),
    "Micro-batches below `stop` are computed again, `stop` itself is not.": ("i < stop", "i <= stop"),
    "Here a micro-batch below `stop` was not checkpointed.": ("i < stop", "False"),
    "The worker is to call `compute`, and `compute` the partition.": (
        _CLOCK,
        "done = {j: task.compute() for j, task in tasks.items()}",
    ),
    "run_clock gets one task here, where a clock has several.": (
        _CLOCK,
        "done = {j: run_clock({j: task}, *queues)[j] for j, task in tasks.items()}",
    ),
    "Replace what stands in the given list.": (
        "m, n = len(batches), len(partitions)",
        "m, n = len(batches), len(partitions)\n    batches = list(batches)",
    ),
    "A partition must get its input with the graph behind it.": ("[layer(x)]", "[layer(x.detach())]"),
}
check_pipeline = Exercise(
    "run_pipeline",
    reference=run_pipeline,
    judge=judged(
        lambda answer: fault_of_run_pipeline(answer, PATIENCE),
        "values, gradients, threads and order are right on CPUs, and on three GPUs find_races finds none.",
    ),
    mistakes={
        sentence: edited((make_task, run_pipeline), edits, names={"current_stream": current_stream})[1]
        for sentence, edits in _PIPELINES.items()
    },
)
"""Exercise 5: Task with compute and finalize, Copy, two Waits, Checkpoint and Recompute."""
