"""What is particular about the checks of notebook 12; what all exercises have in common is in test_detectors."""

from functools import partial

import pytest
import torch
from torch import nn

from lib.pipeline import flatten_sequential
from support import built
from support.kit.mistakes import edited
from support.n12 import checks as n12
from support.n12.solved import MiniGPipe


def test_the_flatten_of_lib_passes_and_a_copy_and_a_model_that_was_changed_are_told():
    assert n12.check_flatten(flatten_sequential)

    def copies(module):
        flat = n12.flatten_sequential(module)
        return nn.Sequential(*(type(x)(4, 4) if isinstance(x, nn.Linear) else x for x in flat))

    def appends(module):
        flat = n12.flatten_sequential(module)
        module.append(nn.Identity())
        return flat

    def opens_in_place(module):
        layers = [*n12.flatten_sequential(module)]
        del module[:]
        module.extend(layers)
        return module

    changed = n12.check_flatten(opens_in_place).message
    assert "the given module was changed" in changed
    assert "One level" not in changed
    assert "these are copies" in n12.check_flatten(copies).message
    assert "the given module was changed" in n12.check_flatten(appends).message
    assert "an nn.Sequential is expected, not list" in n12.check_flatten(list).message


DEPENDS = edited(
    MiniGPipe,
    ("                fence(clock, batches, lambda x, j: x)\n", ""),
    (
        "for i, j in clock:\n                    layer",
        "for i, j in clock:\n                    i and depend(batches, i)\n                    layer",
    ),
    names={"depend": built.depend},
)


def test_a_pipeline_with_another_order_of_lines_passes():
    """Depend in place of fence; or all tasks behind the fence of the whole clock, the last partition first."""

    class Reversed(MiniGPipe):
        def forward(self, x):
            batches = [part for (part,) in built.scatter((x,), self.chunks)]
            m = len(batches)
            n = len(self.partitions)
            stop = {"always": m, "except_last": m - 1, "never": 0}[self.checkpoint]

            def layer(i, j):
                return partial(built.my_checkpoint, self.partitions[j]) if i < stop else self.partitions[j]

            with built.spawn_workers([torch.device("cpu")] * n) as queues:
                for clock in built.clock_cycles(m, n):
                    built.fence(clock, batches, lambda x, j: x)
                    backwards = clock[::-1]
                    tasks = {j: built.Task(None, compute=partial(layer(i, j), batches[i])) for i, j in backwards}
                    done = built.run_clock(tasks, *queues)
                    for i, j in clock:
                        batches[i] = done[j]
            return torch.cat(batches)

    assert n12.check_mini(DEPENDS)
    assert n12.check_mini(Reversed)


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("run_clock(tasks, *queues)", "{j: queues[1][j].get() for j in tasks}", "it does not come back"),
        ("gather([(batch,) for batch in batches])[0]", "batches", "forward must return one tensor, not list"),
        ("gather([(batch,) for batch in batches])[0]", "None", "forward returned None"),
        (
            "(batch,) for batch in batches",
            "(batch,) for batch in batches[::-1]",
            "the output is not that of the layers",
        ),
        ("for size in balance)", "for size in balance[::-1])", "model.partitions should hold"),
        ("for size in balance)", "for size in balance[:1])", "or do layers lie in no partition?"),
        ('[torch.device("cpu")] * n', '[torch.device("cpu")]', "your code raised IndexError"),
        (
            "[part for (part,) in scatter((x,), self.chunks)]",
            "[x]",
            "micro-batches of [6] rows; scatter makes [2, 2, 2]",
        ),
    ],
)
def test_other_wrong_pipelines_are_told_what_is_seen(monkeypatch, old, new, says):
    monkeypatch.setattr(n12, "PATIENCE", 1.5)  # the right ones never wait for long, a wrong one waits for ever
    verdict = n12.check_mini(edited(MiniGPipe, (old, new)))
    assert verdict.status == "wrong"
    assert says in verdict.message
