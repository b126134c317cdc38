"""What the checks accept was reached as ranks could reach it; what no rank could do is refused and told."""

import copy
import heapq
import math

import pytest
import torch
from torch.nn import functional as F

from support.built import my_step
from support.n00.checks import (
    check_deal,
    check_idle_share,
    check_makespan,
    check_play,
    check_rank_step,
    check_step,
    guess_days,
    guess_longer_mean,
    guess_python_speedup,
    guess_slow_rank,
    guess_weight,
    guess_weights,
)
from support.n00.solved import my_rank_step

# ---- exercise 1: one step that ranks share


def locally(replicas, batches, learning_rate):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        replica.zero_grad()
        F.cross_entropy(replica(rows), labels).backward()
        torch.optim.SGD(replica.parameters(), learning_rate).step()


def averaging_weights(replicas, batches, lr):
    locally(replicas, batches, lr)
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = sum(weight.data for weight in same) / len(same)
        for weight in same:
            weight.data = mean.clone()


def rank_0_sends_weights(replicas, batches, lr):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        (F.cross_entropy(replica.forward(rows), labels) / len(batches)).backward()
    for first, *others in zip(*(replica.parameters() for replica in replicas), strict=True):
        first.data -= lr * (first.grad + sum(other.grad for other in others))
        for weight in (first, *others):
            weight.data.copy_(first.data)
            weight.grad = None


def by_autograd_grad(replicas, batches, lr):
    found = [
        torch.autograd.grad(F.cross_entropy(replica(rows), labels), list(replica.parameters()))
        for replica, (rows, labels) in zip(replicas, batches, strict=True)
    ]
    means = [torch.stack(same).mean(dim=0) for same in zip(*found, strict=True)]
    with torch.no_grad():
        for replica in replicas:
            for weight, mean in zip(replica.parameters(), means, strict=True):
                weight.sub_(mean, alpha=lr)


@pytest.mark.parametrize("answer", [my_step, averaging_weights, rank_0_sends_weights, by_autograd_grad])
def test_every_way_that_real_ranks_could_go_is_right(answer):
    assert check_step(answer), check_step(answer)


def sharing(replicas, batches, lr):
    averaging_weights(replicas, batches, lr)
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        for weight in same:
            weight.data = same[0].data


def twice_forward(replicas, batches, lr):
    for replica, (rows, _) in zip(replicas, batches, strict=True):
        replica(rows)
    my_step(replicas, batches, lr)


def swapped(replicas, batches, lr):
    my_step(replicas, batches[::-1], lr)


def on_copies(replicas, batches, lr):
    copies = copy.deepcopy(replicas)
    my_step(copies, batches, lr)
    for replica, own in zip(replicas, copies, strict=True):
        replica.load_state_dict(own.state_dict())


def replacing_the_others(replicas, batches, lr):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        F.cross_entropy(replica(rows), labels).backward()
    with torch.no_grad():
        for same in zip(*(replica.parameters() for replica in replicas), strict=True):
            first = same[0]
            first -= lr * sum(weight.grad for weight in same) / len(same)
            first.grad = None
    for rank in range(1, len(replicas)):
        replicas[rank] = copy.deepcopy(replicas[0])


def sum_of_losses_at_once(replicas, batches, lr):
    losses = [F.cross_entropy(r(rows), labels) for r, (rows, labels) in zip(replicas, batches, strict=True)]
    (sum(losses) / len(losses)).backward()
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        total = sum(weight.grad for weight in same)
        for weight in same:
            weight.data -= lr * total
            weight.grad = None


@pytest.mark.parametrize(
    "answer, told",
    [
        (sharing, "ranks 0 and 1 share one tensor as their weight"),
        (twice_forward, "rank 0 did 2 forwards on its rows"),
        (swapped, "rank 0 saw rank 2's rows"),
        (on_copies, "rank 0 did no forward on its own rows"),
        (replacing_the_others, "replicas[1] is another model than before"),
        (sum_of_losses_at_once, "one backward went through the graphs of rank 0 and of rank 1"),
    ],
)
def test_right_weights_reached_as_no_rank_could_are_refused(answer, told):
    verdict = check_step(answer)
    assert verdict.status == "wrong"
    assert told in verdict.message


# ---- exercise 4: the step of one rank


def sending_weights(dist, replica, batch, lr):
    rows, labels = batch
    loss = F.cross_entropy(replica(rows), labels)
    loss.backward()
    torch.optim.SGD(replica.parameters(), lr).step()
    for weight in replica.parameters():
        dist.all_reduce(weight.data)
        weight.data /= dist.get_world_size()
    replica.zero_grad()


def in_one_packet(dist, replica, batch, lr):
    rows, labels = batch
    weights = list(replica.parameters())
    gradients = torch.autograd.grad(F.cross_entropy(replica(rows), labels) / dist.get_world_size(), weights)
    packet = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(packet, async_op=True).wait()
    with torch.no_grad():
        for weight, part in zip(weights, packet.split([w.numel() for w in weights]), strict=True):
            weight -= lr * part.view_as(weight)


@pytest.mark.parametrize("answer", [my_rank_step, sending_weights, in_one_packet])
def test_a_rank_may_send_weights_or_one_large_packet(answer):
    assert check_rank_step(answer), check_rank_step(answer)


def only_rank_0(dist, replica, batch, lr):
    rows, labels = batch
    F.cross_entropy(replica(rows), labels).backward()
    for weight in replica.parameters():
        if dist.get_rank() == 0:
            dist.all_reduce(weight.grad)


def forgetting_to_wait(dist, replica, batch, lr):
    rows, labels = batch
    F.cross_entropy(replica(rows), labels).backward()
    for weight in replica.parameters():
        dist.all_reduce(weight.grad, async_op=True)
        weight.data -= lr * weight.grad / dist.get_world_size()
        weight.grad = None


def helped(dist, replica, batch, lr):
    return my_rank_step(dist, replica, batch, lr)


def helped_inside(dist, replica, batch, lr):
    def move(weight):
        dist.all_reduce(weight.grad)
        weight.data -= lr * weight.grad / dist.get_world_size()
        weight.grad = None

    rows, labels = batch
    F.cross_entropy(replica(rows), labels).backward()
    list(map(move, replica.parameters()))


def test_a_step_that_needs_another_cell_is_refused_here_and_not_by_the_real_ranks():
    verdict = check_rank_step(helped)
    assert verdict.status == "wrong"
    assert "would not know my_rank_step" in verdict.message
    assert check_rank_step(helped_inside), check_rank_step(helped_inside)


def test_without_an_exchange_the_division_decides_what_a_rank_stepped_by():
    def alone(dist, replica, batch, lr):
        rows, labels = batch
        F.cross_entropy(replica(rows), labels).backward()
        for weight in replica.parameters():
            weight.data -= lr * weight.grad
            weight.grad = None

    assert "stepped by its own gradient" in check_rank_step(alone).message


@pytest.mark.parametrize(
    "answer, told",
    [
        (only_rank_0, "rank 0 waits in all_reduce, its collective 0, rank 1 has ended"),
        (forgetting_to_wait, "rank 0 never waited for its all_reduce"),
    ],
)
def test_ranks_that_would_hang_or_run_ahead_are_told_who_waits_for_what(answer, told):
    verdict = check_rank_step(answer)
    assert verdict.status == "wrong"
    assert told in verdict.message


# ---- exercise 3: when tasks run


def by_rounds(tasks):
    """Start everything at 0, and push back what stands too early until nothing does."""
    starts = {name: 0 for name, *_ in tasks}
    seconds = {name: length for name, _, length, _ in tasks}
    moved = True
    while moved:
        moved = False
        last = {}
        for name, lane, _, needs in tasks:
            before = [*needs, *last.get(lane, [])]
            earliest = max((starts[other] + seconds[other] for other in before), default=0)
            moved = moved or starts[name] != earliest
            starts[name] = earliest
            last[lane] = [name]
    return {name: [starts[name], starts[name] + seconds[name]] for name in starts}


def by_recursion(tasks):
    before = {}
    latest = {}
    for name, lane, seconds, needs in tasks:
        before[name] = (seconds, [*needs, *([latest[lane]] if lane in latest else [])])
        latest[lane] = name

    def end(name):
        seconds, needs = before[name]
        return seconds + max(map(end, needs), default=0)

    return {name: (end(name) - seconds, end(name)) for name, (seconds, _) in before.items()}


def rounding(how, start=False):
    """Make an engine that rounds the seconds of each task, or each start."""

    def play(tasks):
        times = {}
        free = {}
        for name, lane, seconds, needs in tasks:
            begun = max([free.get(lane, 0), *(times[other][1] for other in needs)])
            begun = how(begun) if start else begun
            times[name] = begun, begun + (seconds if start else how(seconds))
            free[lane] = times[name][1]
        return times

    return play


@pytest.mark.parametrize("answer", [rounding(int), rounding(round), rounding(math.ceil, start=True)])
def test_an_engine_that_rounds_seconds_is_refused(answer):
    assert check_play(answer).status == "wrong"


def test_waiting_for_a_lane_is_not_called_waiting_for_the_list():
    def play(tasks):
        times = {}
        free = {}
        lane_of = {name: lane for name, lane, *_ in tasks}
        for name, lane, seconds, needs in tasks:
            start = max([free.get(lane, 0), *(free[lane_of[other]] for other in needs)])
            times[name] = start, start + seconds
            free[lane] = start + seconds
        return times

    assert "You waited for the lane of what a task needs" in check_play(play).message


@pytest.mark.parametrize("answer", [by_rounds, by_recursion])
def test_an_engine_may_be_written_in_any_way(answer):
    assert check_play(answer), check_play(answer)


@pytest.mark.parametrize(
    "answer, told",
    [
        (lambda tasks: [], "a dictionary from name to (start, end) expected, not list"),
        (lambda tasks: {}, "x is missing"),
        (lambda tasks: {name: 0 for name, *_ in tasks}, "x has 0, and not its start and its end"),
    ],
)
def test_another_form_is_told_as_such(answer, told):
    assert told in check_play(answer).message


# ---- exercise 5: rows by speed


def with_a_heap(rows, speeds):
    shares = [0] * len(speeds)
    heap = [(1 / speed, rank) for rank, speed in enumerate(speeds)]
    heapq.heapify(heap)
    for _ in range(rows):
        _, rank = heap[0]
        shares[rank] += 1
        heapq.heapreplace(heap, ((shares[rank] + 1) / speeds[rank], rank))
    return shares


def by_trying_ends(rows, speeds):
    """Try every time at which some rank could end, the earliest first; take back what is too much."""
    ends = sorted({count / speed for speed in speeds for count in range(rows + 1)})
    for end in ends:
        shares = [int(end * speed + 1e-9) for speed in speeds]
        if sum(shares) >= rows:
            break
    too_many = sum(shares) - rows
    for rank, share in enumerate(shares):
        back = min(share, too_many)
        shares[rank] -= back
        too_many -= back
    return tuple(shares)


@pytest.mark.parametrize("answer", [with_a_heap, by_trying_ends])
def test_other_shares_that_end_as_early_are_right(answer):
    assert check_deal(answer), check_deal(answer)


def rounded_down_then(key):
    """Deal by speed, rounded down, and give what is left a row each, the least key(share, speed) first."""

    def deal(rows, speeds):
        shares = [rows * speed // sum(speeds) for speed in speeds]
        order = sorted(range(len(speeds)), key=lambda rank: key(shares[rank], speeds[rank]))
        for rank in order[: rows - sum(shares)]:
            shares[rank] += 1
        return shares

    return deal


def rounded_up_and_cut(rows, speeds):
    shares = [math.ceil(rows * speed / sum(speeds)) for speed in speeds]
    for rank in reversed(range(len(speeds))):
        shares[rank] -= min(shares[rank], sum(shares) - rows)
    return shares


@pytest.mark.parametrize(
    "answer",
    [
        rounded_down_then(lambda share, speed: -speed),
        rounded_down_then(lambda share, speed: (share + 1) / speed),
        rounded_up_and_cut,
    ],
)
def test_shares_that_are_only_rounded_well_are_refused(answer):
    assert check_deal(answer).status == "wrong"


def test_a_share_that_is_no_number_of_rows_is_told():
    assert "rank 0 gets -1 rows" in check_deal(lambda rows, speeds: [-1, *speeds[1:]]).message
    assert "4 ranks, and you gave 1 shares" in check_deal(lambda rows, speeds: [rows]).message


# ---- predictions, and exercise 2


@pytest.mark.parametrize(
    "comment, wrong, told",
    [
        *((guess_weight, weight, {"rows": (6, 2)}) for weight in (0.25, 0.5, 1, 3, 6)),
        *((guess_slow_rank, ticks, {"ranks": 4, "slow": 2}) for ticks in (5, 5.75, 6, 6.5, 7)),
        (guess_slow_rank, "10 ticks", {"ranks": 4, "slow": 2}),
        (guess_python_speedup, 2.0, {}),
        *((guess_weights, choice, {}) for choice in "ACD"),
        (guess_longer_mean, 1, {}),
        *((guess_days, number, {"devices": 8, "message": 0.1}) for number in (3.75, 4, 4.125, 4.1, 33)),
    ],
)
def test_a_famous_wrong_guess_is_not_called_close_and_its_reason_is_told(comment, wrong, told):
    message = comment(wrong, **told).message
    assert "close" not in message.replace("close to a month", ""), "told, and not cut off"
    assert "(" in message, "told, and not cut off"
    assert "…" not in message, "told, and not cut off"


def test_arguments_are_named_as_the_reader_likes_and_a_guess_may_be_a_fraction():
    hasty = check_makespan(lambda spans: sum(end - start for start, end in spans))
    assert "You added the durations up" in hasty.message
    assert check_idle_share(lambda rows, names: check_idle_share.reference(rows, names))
    assert "that is it" in guess_weight("3/4", rows=(6, 2)).message
