"""The autograd graph as a list, the engine's rule, and the order of a pipeline's backward: predicted and real."""

import importlib.util
import itertools

import pytest
import torch

from lib.pipeline.pipeline import Pipeline
from support.n11 import runs as n11

TIED = "R21 B21 R11 R20 B11 R01 B20 R10 B01 B10 R00 B00"
UNTIED = "R21 R11 R01 B21 R20 B11 R10 B20 B01 R00 B10 B00"
SIZES = [(1, 1), (1, 4), (6, 1), (3, 2), (4, 3), (6, 4)]
needs_torchgpipe = pytest.mark.skipif(
    importlib.util.find_spec("torchgpipe") is None, reason="torchgpipe is not installed"
)


def pipeline(dependencies):
    return Pipeline if dependencies else n11.Untied


def test_walk_lists_each_node_once_and_watch_notes_the_order_that_the_rule_foretells():
    w = torch.ones(3, requires_grad=True)
    nodes = n11.walk(torch.tanh(w * 2).sum())
    assert [(node.name, node.next) for node in nodes] == [("Sum", (1,)), ("Tanh", (2,)), ("Mul", (None, None))]
    assert nodes[0].number > nodes[1].number > nodes[2].number
    twice = w * 2
    nodes = n11.walk(twice.sin() + twice.cos())
    assert sorted(node.name for node in nodes) == ["Add", "Cos", "Mul", "Sin"]
    assert [nodes[k].name for k in n11.rule_order(nodes)] == ["Add", "Cos", "Sin", "Mul"]  # Mul waits for both
    with pytest.raises(ValueError, match="no autograd graph"):
        n11.walk(torch.ones(3))
    w = torch.ones(3, requires_grad=True)
    output = (w * 2).exp() + (w * 3).sin()
    nodes = n11.walk(output)
    ran = n11.watch(nodes)
    assert ran == []
    output.sum().backward()
    assert ran == n11.rule_order(nodes)


def test_each_node_of_a_pipeline_knows_its_micro_batch_and_partition():
    nodes, every = n11.backward_run(3, 2).nodes, [(i, j) for i in range(3) for j in range(2)]
    expected = {"Checkpoint": every, "Recompute": every, "Wait": every, "Copy": [(i, 1) for i in range(3)]}
    for name, places in expected.items():
        assert sorted(node.place for node in nodes if node.name == name) == places


def test_the_recorded_strings_hold_after_other_work_too_and_draw_no_random_number_of_the_caller():
    before, x = torch.get_rng_state(), torch.ones(1, requires_grad=True)
    assert str(n11.backward_run(3, 2, pipeline=n11.Untied)) == UNTIED
    for _ in range(5000):
        x * 1
    assert str(n11.backward_run(3, 2)) == TIED
    assert torch.equal(torch.get_rng_state(), before)
    assert n11.backward_run(4, 3).threads == {"forward": 3, "backward": 1}


@pytest.mark.parametrize("m, n", SIZES)
@pytest.mark.parametrize("mode", n11.MODES)
@pytest.mark.parametrize("dependencies", [True, False])
def test_a_prediction_is_what_a_real_run_does(m, n, mode, dependencies):
    run = n11.backward_run(m, n, mode, pipeline(dependencies))
    assert run.ops == n11.predict(m, n, mode, dependencies).ops
    waiting = {k: {user for user, node in enumerate(run.nodes) if k in node.next} for k in run.ran}
    for step, k in enumerate(run.ran):  # node by node: the highest number of those that are ready
        done = set(run.ran[:step])
        ready = [other for other, users in waiting.items() if other not in done and users <= done]
        assert k in ready and run.nodes[k].number == max(run.nodes[other].number for other in ready)


@pytest.mark.parametrize("m, n", SIZES)
@pytest.mark.parametrize("dependencies", [True, False])
def test_four_lines_by_hand_give_the_real_order_and_it_keeps_every_need(m, n, dependencies):
    ops = n11.backward_run(m, n, pipeline=pipeline(dependencies)).ops
    assert tuple(n11.by_hand(m, n, dependencies=dependencies)) == ops
    for op, before in n11.needs(m, n, dependencies=dependencies).items():
        assert all(ops.index(other) < ops.index(op) for other in before)


def test_the_order_changes_no_gradient():
    tied, untied = n11.backward_run(5, 3), n11.backward_run(5, 3, pipeline=n11.Untied)
    assert tied.ops != untied.ops and tied.gradient.any()
    assert torch.equal(tied.gradient, untied.gradient)


@pytest.mark.parametrize("m, n", list(itertools.product((1, 2, 5), (1, 2, 4))))
def test_with_dependencies_a_partition_holds_one_inside_without_the_last_holds_all(m, n):
    assert n11.peaks(n11.predict(m, n).ops, m, n) == [1] * n
    assert n11.peaks(n11.predict(m, n, "always", False).ops, m, n)[-1] == m


@pytest.mark.parametrize("dependencies", [True, False])
def test_the_tensors_counted_are_the_insides_alive(dependencies):
    counted = n11.backward_run(5, 3, pipeline=pipeline(dependencies)).held
    foreseen = n11.predict(5, 3, "always", dependencies).held
    assert {a / b for a, b in zip(counted, foreseen, strict=True)} == {3}
    never = n11.predict(3, 2, "never").ops  # what is not recomputed is alive from the start
    assert len(n11.alive(never, 3, 2)[0]) == 6 and n11.alive(["R00", "B00"], 1, 1) == [{"00"}, {"00"}]


@pytest.mark.parametrize("arguments", [(0, 2), (2, 0)])
def test_counts_below_one_are_refused(arguments):
    with pytest.raises(ValueError, match="0"):
        n11.backward_run(*arguments)


def test_the_recorded_or_live_orders_of_torchgpipe_are_ours():
    orders, _ = n11.torchgpipe_orders()
    assert orders == {"with": TIED, "without": UNTIED}


@needs_torchgpipe
@pytest.mark.parametrize("m, n", [(2, 3), (4, 2), (5, 3)])
def test_torchgpipe_run_here_goes_backward_as_we_do(m, n):
    assert n11.torchgpipe_run(m, n) == str(n11.backward_run(m, n))
    assert n11.torchgpipe_run(m, n, dependencies=False) == str(n11.backward_run(m, n, pipeline=n11.Untied))


def test_copies_on_their_own_stream_hide_behind_computing():
    one, own = n11.predict_copies(False), n11.predict_copies(True)
    assert one.overlap("copy", "compute") == 0 and one.makespan == 4 * (1 + 1.5)
    assert own.overlap("copy", "compute") == 3 and own.makespan == 1 + 4 * 1.5
    both = n11.below_each_other({name: n11.predict_copies(is_own) for is_own, name in n11.NAMES.items()})
    assert len(both.lanes) == 4
    assert n11.below_each_other({}) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured_and_nothing_invented():
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        n11.measure_copies(True)
    traces, origin = n11.copies_traces()
    assert bool(traces) == bool(origin)
