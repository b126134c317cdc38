"""Wrong answers that were once called right, and sentences that were once false of the answers that got them."""

import math
import re

import pytest
import torch
from torch.nn import functional as F

from support.built import my_step
from support.kit.mistakes import edited
from support.n00.checks import check_idle_share, check_play, check_rank_step, check_step
from support.n00.solved import my_idle_share, my_play, my_rank_step

# ---- exercises 1 and 4: torch's settings, and cheats


def setting(change):
    """Make a right step of all ranks, and one of one rank, that change a setting of torch and leave it so."""

    def step(replicas, batches, learning_rate):
        my_step(replicas, batches, learning_rate)
        change()

    return step


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda: torch.set_default_dtype(torch.float64), "the default dtype, which is torch.float64"),
        (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "the number of threads"),
        (lambda: torch.autograd.set_detect_anomaly(True), "the detection of anomalies, which is True"),
        (lambda: torch.use_deterministic_algorithms(True), "the demand for deterministic algorithms, which is True"),
        (lambda: torch.manual_seed(torch.initial_seed() + 1), "the seed of random numbers"),
    ],
)
def test_a_step_that_leaves_a_setting_of_torch_changed_is_told_which(change, told):
    before = (torch.get_default_dtype(), torch.get_num_threads(), torch.initial_seed())
    verdict = check_step(setting(change))
    assert verdict.status == "wrong"
    assert f"your function has changed {told}" in verdict.message
    after = (torch.get_default_dtype(), torch.get_num_threads(), torch.initial_seed())
    assert after == before, "the check puts it back"
    assert not torch.is_anomaly_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert check_step(my_step)


def test_the_step_of_one_rank_leaves_settings_alone_too():
    step = edited(
        my_rank_step,
        ("    rows, labels = batch", "    rows, labels = batch\n    torch.set_default_dtype(torch.float64)"),
    )
    step.__globals__["torch"] = torch
    assert "the default dtype, which is torch.float64" in check_rank_step(step).message
    assert torch.get_default_dtype() == torch.float32


def forwards_for_show(replicas, batches, learning_rate):
    """Do one forward on each rank in vain, and all the work through the layers of rank 0."""
    with torch.no_grad():
        for replica, (rows, _) in zip(replicas, batches, strict=True):
            replica(rows)
    hidden, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    for layer in replicas[0]:
        hidden = layer(hidden)
    F.cross_entropy(hidden, labels).backward()
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        gradient = same[0].grad
        for weight in same:
            weight.data -= learning_rate * gradient
            weight.grad = None


def test_a_forward_that_no_backward_goes_through_is_no_forward_of_a_step():
    verdict = check_step(forwards_for_show)
    assert verdict.status == "wrong"
    assert "no backward went through rank 0's forward" in verdict.message


def by_functions(replicas, batches, learning_rate):
    """Find each gradient by torch.func, and no graph is ever seen from outside."""
    found = []
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        weights = {name: weight.detach() for name, weight in replica.named_parameters()}

        def loss(weights, replica=replica, rows=rows, labels=labels):
            return F.cross_entropy(torch.func.functional_call(replica, weights, (rows,)), labels)

        found.append(torch.func.grad(loss)(weights))
    with torch.no_grad():
        for replica in replicas:
            for name, weight in replica.named_parameters():
                weight -= learning_rate * sum(gradients[name] for gradients in found) / len(found)


def as_one_vector(replicas, batches, learning_rate):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        replica.zero_grad()
        F.cross_entropy(replica(rows), labels).backward()
    own = [torch.cat([weight.grad.flatten() for weight in replica.parameters()]) for replica in replicas]
    mean = torch.stack(own).mean(dim=0)
    for replica in replicas:
        after = torch.nn.utils.parameters_to_vector(replica.parameters()).detach() - learning_rate * mean
        torch.nn.utils.vector_to_parameters(after, replica.parameters())


@pytest.mark.parametrize("answer", [by_functions, as_one_vector])
def test_a_gradient_may_be_found_in_any_way(answer):
    assert check_step(answer), check_step(answer)


def nearly_together(replicas, batches, learning_rate):
    my_step(replicas, batches, learning_rate)
    for weight in replicas[-1].parameters():
        weight.data *= 1 + 1e-10


def test_a_difference_between_ranks_is_seen_however_small():
    message = check_step(nearly_together).message
    assert "in step 1 a weight of rank 2 differs by 1e-10 from that of rank 0" in message


# ---- exercises 1 and 4: what is said


def stepping(mean):
    """Make a step of all ranks by mean(weights, rows of a rank), all else being right."""

    def step(replicas, batches, learning_rate):
        for replica, (rows, labels) in zip(replicas, batches, strict=True):
            F.cross_entropy(replica(rows), labels).backward()
        for same in zip(*(replica.parameters() for replica in replicas), strict=True):
            gradient = mean(same, len(rows))
            for weight in same:
                weight.data -= learning_rate * gradient
                weight.grad = None

    return step


def total(weights):
    return sum(weight.grad for weight in weights)


def by_a_running_mean(replicas, batches, learning_rate):
    """Do all backwards, and let each rank step by the mean as far as it has come."""
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        replica.zero_grad()
        F.cross_entropy(replica(rows), labels).backward()
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        for rank, weight in enumerate(same):
            weight.data -= learning_rate * total(same[: rank + 1]) / (rank + 1)


def never_stepping(replicas, batches, learning_rate):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        F.cross_entropy(replica(rows), labels).backward()
        replica.zero_grad()


def clearing_too_early(replicas, batches, learning_rate):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        F.cross_entropy(replica(rows), labels).backward()
        optimizer = torch.optim.SGD(replica.parameters(), learning_rate)
        optimizer.zero_grad()
        optimizer.step()


def next_ranks_batch(replicas, batches, learning_rate):
    my_step(replicas, batches[1:] + batches[:1], learning_rate)


def copying_rank_0(replicas, batches, learning_rate):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        replica.zero_grad()
        F.cross_entropy(replica(rows), labels).backward()
        torch.optim.SGD(replica.parameters(), learning_rate).step()
    for replica in replicas:
        replica.load_state_dict(replicas[0].state_dict())


def overwriting_rank_0s_gradient(replicas, batches, learning_rate):
    """Clear at the start, and put the mean where the next rank still looks for rank 0's gradient."""
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        replica.zero_grad()
        F.cross_entropy(replica(rows), labels).backward()
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        for weight in same:
            weight.grad = total(same) / len(same)
            weight.data -= learning_rate * weight.grad


def by_all_rows_and_by_ranks(same, rows):
    """Weigh each rank's mean with its rows, then divide by all rows, and once by the ranks."""
    return total(same) * rows / (len(same) * rows) / len(same)


@pytest.mark.parametrize(
    "answer, true, false",
    [
        (overwriting_rank_0s_gradient, "overwrote rank 0's gradient with the mean", "not cleared"),
        (stepping(by_all_rows_and_by_ranks), "Times the number of ranks your step would be right", "twice"),
        (stepping(lambda same, rows: total(same) / max(1, len(same) - 1)), "", "divided by 2"),
        (stepping(lambda same, rows: total(same) * rows / len(same)), "times its rows", "You summed the losses"),
        (
            stepping(lambda same, rows: total([same[0], *same]) / len(same)),
            "counts twice",
            "the sum began with it and added",
        ),
        (stepping(lambda same, rows: same[0].grad + total(same) / len(same)), "does a sum begin with", "once: a sum"),
        (by_a_running_mean, "its own gradient and those of the ranks before it", "backward was over"),
        (never_stepping, "No weight has moved", "gives the name a new tensor"),
        (clearing_too_early, "No weight has moved", "gives the name a new tensor"),
        (next_ranks_batch, "rank 0 saw rank 1's rows", "did the work of all"),
        (copying_rank_0, "rank 0's gradient alone", "stepped by rank 0's gradient"),
    ],
)
def test_a_step_is_not_told_what_another_one_does(answer, true, false):
    verdict = check_step(answer)
    assert verdict.status == "wrong"
    assert true in verdict.message
    assert false not in verdict.message


def dividing_by_the_others(dist, replica, batch, learning_rate):
    rows, labels = batch
    F.cross_entropy(replica(rows), labels).backward()
    for weight in replica.parameters():
        dist.all_reduce(weight.grad)
        weight.data -= learning_rate * weight.grad / max(1, dist.get_world_size() - 1)
        weight.grad = None


def sending_rank_0s_weights(dist, replica, batch, learning_rate):
    rows, labels = batch
    replica.zero_grad()
    F.cross_entropy(replica(rows), labels).backward()
    for weight in replica.parameters():
        weight.data -= learning_rate * weight.grad
        dist.broadcast(weight.data, src=0)


@pytest.mark.parametrize(
    "answer, true, false",
    [
        (dividing_by_the_others, "when torch steps on the whole batch", "divided by 2"),
        (sending_rank_0s_weights, "rank 0's gradient alone", "took rank 0's gradient"),
    ],
)
def test_a_ranks_step_is_not_told_what_another_one_does(answer, true, false):
    verdict = check_rank_step(answer)
    assert verdict.status == "wrong"
    assert true in verdict.message
    assert false not in verdict.message


def step_on_this_rank(dist, replica, batch, learning_rate):
    my_rank_step(dist, replica, batch, learning_rate)


def test_a_rank_that_calls_another_cell_is_told_all_that_it_has():
    assert "and has torch, nn and F" in check_rank_step(step_on_this_rank).message


def summing_in(call):
    """A step that sums by another collective of torch's."""
    return edited(summing_by_all_reduce, ("dist.all_reduce(grad)", call))


def summing_by_all_reduce(dist, replica, batch, learning_rate):
    rows, labels = batch
    world = dist.get_world_size()
    F.cross_entropy(replica(rows), labels).backward()
    for weight in replica.parameters():
        grad = weight.grad
        weight.grad = None
        dist.all_reduce(grad)
        weight.data -= learning_rate * grad / world


BY_OBJECTS = "gathered = [None] * world; dist.all_gather_object(gathered, grad); grad = sum(gathered)"
IN_ONE = "many = grad.new_empty(world, *grad.shape); dist.all_gather_into_tensor(many, grad); grad = many.sum(0)"
BY_PARTS = (
    "part = grad.new_empty(-(-grad.numel() // world))",
    "whole = F.pad(grad.flatten(), (0, len(part) * world - grad.numel()))",
    "dist.reduce_scatter_tensor(part, whole)",
    "dist.all_gather_into_tensor(whole, part)",
    "grad = whole[:grad.numel()].view_as(grad)",
)


AT_RANK_0 = (
    "parts = None if dist.get_rank() else [torch.empty_like(grad) for _ in range(world)]",
    "dist.gather(grad, parts, dst=0)",
    "grad = sum(parts or [torch.zeros_like(grad)])",
    "dist.broadcast(grad, src=0)",
)
TO_RANK_0_AND_BACK = (
    "dist.reduce(grad, dst=0, op=dist.ReduceOp.SUM)",
    "dist.scatter(grad, None if dist.get_rank() else [grad.clone()] * world, src=0)",
)


@pytest.mark.parametrize(
    "call",
    [
        *("dist.all_reduce_coalesced([grad])", BY_OBJECTS, IN_ONE),
        *map("; ".join, (BY_PARTS, AT_RANK_0, TO_RANK_0_AND_BACK)),
    ],
)
def test_a_sum_may_be_made_by_any_collective_of_torch(call):
    assert check_rank_step(summing_in(call)), check_rank_step(summing_in(call))


def test_a_call_that_the_imitated_dist_lacks_is_told_with_those_that_it_has():
    message = check_rank_step(summing_in("dist.all_to_all([grad], [grad])")).message
    assert "this imitation of torch.distributed has no all_to_all; it has all_gather, all_gather_into_tensor" in message
    message = check_rank_step(summing_in("dist.all_reduce(grad, group=dist.new_group([0]))")).message
    assert "has no new_group" in message


def summing_on_rank_0(dist, replica, batch, learning_rate):
    rows, labels = batch
    F.cross_entropy(replica(rows), labels).backward()
    for weight in replica.parameters():
        dist.reduce(weight.grad, 0)
        dist.broadcast(weight.grad, 0)
        weight.data -= learning_rate * weight.grad / dist.get_world_size()
        weight.grad = None


def test_a_sum_may_be_made_on_one_rank_if_the_others_get_it():
    assert check_rank_step(summing_on_rank_0), check_rank_step(summing_on_rank_0)
    kept = edited(summing_on_rank_0, ("        dist.broadcast(weight.grad, 0)\n", ""))
    assert check_rank_step(kept).status == "wrong"


# ---- exercise 2: two numbers that differ are told so that one sees it


def in_single_precision(spans, lanes):
    makespan = torch.tensor(max(end for _, _, end in spans) - min(start for _, start, _ in spans))
    return 1 - sum(torch.tensor(end - start) for _, start, end in spans) / (makespan * len(lanes))


@pytest.mark.parametrize("answer", [in_single_precision, lambda spans, lanes: round(my_idle_share(spans, lanes), 6)])
def test_a_share_that_is_nearly_right_is_told_with_the_digits_that_are_wrong(answer):
    message = check_idle_share(answer).message
    expected, got = re.search(r"expected ([\d.]+), got ([\d.]+), as if rounded", message).groups()
    assert expected != got
    assert math.isclose(float(expected), float(got), rel_tol=1e-5)
    assert check_idle_share(lambda spans, lanes: torch.tensor(my_idle_share(spans, lanes), dtype=torch.float64))


# ---- exercise 3: real times, and the need that ends last


def playing(seconds=lambda value: value, start=lambda value: value, needed=lambda needs: needs):
    """Make an engine that changes seconds, starts or needs."""

    def play(tasks):
        times = {}
        free = {}
        for name, lane, length, needs in tasks:
            begun = start(max([free.get(lane, 0), *(times[other][1] for other in needed(needs))]))
            times[name] = begun, begun + seconds(length)
            free[lane] = times[name][1]
        return times

    return play


def in_quarters(tasks):
    """Let a clock tick four times a second, and start at each tick what can."""
    waiting = {}
    for task in tasks:
        waiting.setdefault(task[1], []).append(task)
    ended = {}
    busy = {}
    times = {}
    now = 0
    while any(waiting.values()):
        starts = True
        while starts:
            starts = False
            for lane, queue in waiting.items():
                while queue and busy.get(lane, 0) <= now and all(ended.get(other, 1e9) <= now for other in queue[0][3]):
                    name, _, length, _ = queue.pop(0)
                    times[name] = now, now + length
                    ended[name] = busy[lane] = now + length
                    starts = True
        now += 0.25
    return times


@pytest.mark.parametrize(
    "answer",
    [
        playing(seconds=lambda value: round(value, 2)),
        playing(start=lambda value: round(value, 2)),
        playing(seconds=lambda value: math.ceil(4 * value) / 4),
        playing(needed=lambda needs: needs[-2:]),
        playing(needed=lambda needs: needs[:2]),
        playing(needed=lambda needs: [*needs[:1], *needs[-1:]]),
        in_quarters,
    ],
)
def test_an_engine_that_is_right_for_round_times_or_few_needs_only_is_refused(answer):
    assert check_play(answer).status == "wrong"


def from_the_end(tasks):
    """Give starts as ends less durations: right, but for the last digit."""
    ends = {name: end for name, (_, end) in my_play(tasks).items()}
    return {name: (ends[name] - length, ends[name]) for name, _, length, _ in tasks}


def test_an_engine_may_round_as_floats_do():
    assert check_play(from_the_end), check_play(from_the_end)


# ---- exercise 1: what is said of a step that is too long


def with_the_rate_of_all_ranks(replicas, batches, learning_rate):
    """Step by the mean, by a learning rate that is a number of ranks too large."""
    my_step(replicas, batches, learning_rate * len(replicas))


def test_a_step_of_the_mean_that_is_too_long_is_not_said_to_have_taken_the_sum():
    verdict = check_step(with_the_rate_of_all_ranks)
    assert verdict.status == "wrong"
    assert "The step is as long as by the sum of the gradients" in verdict.message
