"""Each line of the table in lib.pipeline's docstring: where lib differs from torchgpipe on purpose, and what it does.

Of torchgpipe's side speaks its source, version 0.0.7; it is no requirement of this project.
"""

import re
import threading

import pytest
import torch
from torch import nn

from lib import pipeline
from lib.pipeline import GPipe, is_recomputing, scatter


class Note(nn.Module):
    """Note something of each call, and pass on."""

    def __init__(self, what):
        super().__init__()
        self.what = what
        self.noted = []

    def forward(self, x):
        self.noted.append(self.what(x))
        return x * 1


def piped(*layers, chunks=4, checkpoint="except_last", **more):
    n = len(layers)
    return GPipe(nn.Sequential(*layers), [1] * n, devices=["cpu"] * n, chunks=chunks, checkpoint=checkpoint, **more)


def unequal_rows():
    with pytest.raises(ValueError, match="the same number of rows"):
        scatter((torch.ones(4, 1), torch.ones(6, 1)), 2)


def five_rows():
    assert [len(batch[0]) for batch in scatter(torch.ones(5, 1), 4)] == [2, 1, 1, 1]
    assert [len(part) for part in torch.ones(5, 1).chunk(4)] == [2, 2, 1], "which torchgpipe takes"


def last_of_three():
    note = Note(lambda x: (int(x[0, 0]), is_recomputing()))
    piped(note, nn.Linear(1, 1), chunks=8)(torch.arange(3.0).reshape(3, 1).requires_grad_()).sum().backward()
    assert sorted(note.noted) == [(0, False), (0, True), (1, False), (1, True), (2, False)]


def a_worker_each():
    notes = [Note(lambda x: threading.get_ident()) for _ in range(3)]
    piped(*notes)(torch.ones(4, 1))
    assert len({thread for note in notes for thread in note.noted}) == 3


def threads_that_live_on():
    note = Note(lambda x: threading.get_ident())
    model = piped(note)
    for _ in range(3):
        model(torch.ones(4, 1))
    assert len(set(note.noted)) == 1


def system_exit():
    def leave(x):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        piped(Note(leave))(torch.ones(4, 1))


def in_place():
    for mode in ("never", "always"):
        model = piped(nn.ReLU(inplace=True), nn.Linear(2, 2), checkpoint=mode)
        x = torch.tensor([[-1.0, 2.0]] * 4, requires_grad=True)
        given = x.detach().clone()
        model(x).sum().backward()
        plain = x.detach().clone().requires_grad_()
        model[1](plain.relu()).sum().backward()
        assert torch.equal(x.detach(), given)
        assert torch.allclose(x.grad, plain.grad)


def weight_that_changes():
    model = piped(nn.Linear(1, 1), nn.Linear(1, 1), checkpoint="always")
    output = model(torch.ones(4, 1))
    with torch.no_grad():
        model[0].weight += 1
    with pytest.raises(RuntimeError):
        output.sum().backward()


def without_gradients():
    note = Note(lambda x: pipeline.is_checkpointing())
    model = piped(note, checkpoint="always")
    assert model.training
    with torch.no_grad():
        model(torch.ones(4, 1))
    assert note.noted == [False] * 4


def random_numbers():
    layers = [nn.Dropout(0.5), nn.Dropout(0.5)]
    state = torch.get_rng_state()
    torch.manual_seed(1)
    first = piped(*layers)(torch.ones(8, 64))
    torch.manual_seed(1)
    assert torch.equal(piped(*layers)(torch.ones(8, 64)), first)
    torch.manual_seed(1)
    assert not torch.equal(nn.Sequential(*layers)(torch.ones(8, 64)), first)
    torch.set_rng_state(state)


def autocast():
    with torch.autocast("cpu", torch.bfloat16):
        assert piped(nn.Linear(2, 2))(torch.ones(4, 2)).dtype == torch.bfloat16


def unbiased_variance():
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    model = piped(nn.BatchNorm1d(2), chunks=4, deferred_batch_norm=True)
    model(x).sum().backward()
    plain = nn.BatchNorm1d(2)
    plain(x)
    assert torch.allclose(model[0].running_var, plain.running_var)


LINES = {
    "a tuple with unequal rows": unequal_rows,
    "5 rows, chunks=4": five_rows,
    "3 rows, chunks=8, except_last": last_of_three,
    "partitions on a CPU": a_worker_each,
    "threads": threads_that_live_on,
    "SystemExit in a layer": system_exit,
    "a layer that writes into its input": in_place,
    "a weight that changes before backward": weight_that_changes,
    "no_grad in training": without_gradients,
    "random numbers on a CPU": random_numbers,
    "autocast": autocast,
    "DeferredBatchNorm": unbiased_variance,
}


def test_the_table_has_the_lines_that_are_tried():
    table = pipeline.__doc__.partition("where  ")[2].splitlines()[1:]
    assert [re.split(r"  +", line.strip())[0] for line in table if line.strip()] == list(LINES)
    assert all(len(re.split(r"  +", line.strip())) == 3 for line in table if line.strip())


@pytest.mark.parametrize("line", LINES)
def test_what_differs_from_torchgpipe_is_as_the_table_says(line):
    LINES[line]()
