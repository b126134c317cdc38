"""Rounds in processes leave every span and their processor's seconds; DDP's ranks take the step of the whole batch."""

import os

import pytest
import torch
from torch import nn

from lib.timeline import Span, Trace
from support.n00 import runs
from support.n00.checks import whole_batch_step
from support.n00.runs import Round, Team, ddp_step, gain
from support.processes import count


def rounds(cores, seconds):
    return [Round(Trace([Span("a", "", 0, seconds + k)]), cores * (seconds + k)) for k in range(6)]


def test_processes_gain_where_a_second_core_is_free_and_otherwise_nothing_is_said():
    threads = rounds(1.0, 34)
    processes = rounds(1.9, 17)
    free = rounds(2.0, 20)
    taken = rounds(0.9, 40)
    assert gain(threads, processes, free) is True
    for broken in (threads, rounds(1.9, 34), rounds(1.0, 17)):  # threads after all; busy in vain; less work done
        assert gain(threads, broken, free) is False
    assert gain(threads, rounds(0.9, 40), taken) is None
    assert gain(threads, threads, taken[:5] + free[:1]) is None, "one free moment is no free core"
    assert runs.free(taken[:5] + free[:1]) == 1
    assert Round(Trace([Span("a", "", 1, 3)]), cpu_seconds=3.0).cores == 1.5


@pytest.mark.ranks
def test_every_round_has_all_tasks_and_a_process_that_dies_is_an_error():
    with Team(2) as team:
        for _ in range(2):
            found = team.run(count, tasks=3)
            dealt = [("process 0", "0"), ("process 0", "2"), ("process 1", "1")]
            assert sorted((span.lane, span.label) for span in found.trace) == dealt
            assert found.trace.start == 0 and found.cpu_seconds > 0
        with pytest.raises(ValueError, match="tasks must be at least 1, not 0"):
            team.run(count, tasks=0)
        with pytest.raises(RuntimeError, match="terminated abruptly"):
            team.run(os.abort)


@pytest.mark.ranks
def test_ranks_of_ddp_take_the_step_of_the_whole_batch():
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(3, 4).double()
    alone = nn.Linear(3, 4).double()
    alone.load_state_dict(model.state_dict())
    batches = [
        (torch.randn(5, 3, generator=generator).double(), torch.randint(0, 4, (5,), generator=generator))
        for _ in range(2)
    ]
    before = [weight.tolist() for weight in model.parameters()]
    ranks = ddp_step(model, batches, 0.5)
    assert [weight.tolist() for weight in model.parameters()] == before, "the caller's model is left as it was"
    whole_batch_step([alone], batches, 0.5)
    for weights in ranks:
        torch.testing.assert_close(weights, [w.detach() for w in alone.parameters()], rtol=1e-12, atol=1e-12)
