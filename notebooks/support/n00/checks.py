"""Exercises of notebook 00, start here; its predictions stand in guesses.py."""

from __future__ import annotations

from functools import partial

from lib.timeline import Span, Trace
from support.built import my_step
from support.kit.ending import ending
from support.kit.exercise import Exercise, cases
from support.kit.exercise import use as use
from support.kit.mistakes import edited
from support.n00.engine import PLAY_CASES, into_gaps, wrong_time
from support.n00.guesses import guess_days as guess_days
from support.n00.guesses import guess_longer_mean as guess_longer_mean
from support.n00.guesses import guess_python_speedup as guess_python_speedup
from support.n00.guesses import guess_slow_rank as guess_slow_rank
from support.n00.guesses import guess_weight as guess_weight
from support.n00.guesses import guess_weights as guess_weights
from support.n00.idle import (
    LATE_SPANS,
    another_share,
    first_start,
    from_to,
    idle_share,
    last_end,
    longest_span,
    nobody_at_all,
    of_a_lane,
    otherwise,
    own_makespans,
    rounded_share,
)
from support.n00.said_of_steps import (
    KEPT_RATE,
    NOT_MOVED,
    ONE_BEHIND,
    RANK_0_ALONE,
    RATE_BEHIND,
    STALE,
    STEP_PRAISE,
    TIMES_ROWS,
    TOO_SHORT,
)
from support.n00.solved import my_deal, my_idle_share, my_play, my_rank_step
from support.n00.steps import (
    each_on_its_rank,
    first_difference,
    on_every_rank,
    on_rank_0,
    one_backward,
    one_rank_after_the_other,
    weights_after,
    whole_batch_step,
)
from support.n00.unequal import (
    DEAL_CASES,
    all_to_the_fastest,
    badly_dealt,
    dealt_as_a_list,
    dealt_equally,
    found_by_speed,
    free_first,
    half_done,
    largest_remainders,
    more_to_the_slow,
    nearest_and_the_last_the_rest,
    rest_by_next_end,
    rest_to,
    rest_to_the_fastest,
    rest_to_the_first,
    rounded,
    rounded_down,
    rounded_up,
    uncut,
)

LINES = 300_000  # of an answer to a case of some spans or tasks; beyond, its loop does not end

# ---- exercise 1: one step that ranks share

_stepped = partial(edited, my_step)
LOSS = "F.cross_entropy(replica(rows), labels)"
SUM_LOSS = 'F.cross_entropy(replica(rows), labels, reduction="sum")'
MEAN = "mean = sum(weight.grad for weight in weights) / len(weights)"
STEP = "weight -= learning_rate * mean"
ADDED_IN_PLACE = """mean = weights[0].grad
        for weight in weights:
            mean += weight.grad / len(weights)"""
ONE_NUMBER = """mean = sum(weight.grad for weight in weights) / len(weights)
        mean = mean.mean()"""
OVERWRITTEN = """weight.grad = sum(other.grad for other in weights) / len(weights)
                weight -= learning_rate * weight.grad"""
STEP_CASES = cases(
    "ranks rows learning_rates",  # of each step one: a rank that keeps an old one must not get through
    [
        (3, 4, (0.4,)),
        (2, 4, (0.1, 0.3)),
        (1, 5, (0.2, 0.1, 0.3)),
        (3, 2, (0.3, 0.05)),
        (8, 1, (0.05, 0.1)),
    ],
)

check_step = Exercise(
    "one step of all ranks",
    reference=my_step,
    cases=STEP_CASES,
    view=weights_after,
    throughout=True,
    fault=first_difference,
    praise=STEP_PRAISE,
    mistakes={
        "Each rank stepped by its own gradient: the replicas are different models now.": _stepped(
            ("* mean", "* weight.grad")
        ),
        "The step is as long as by the sum of the gradients: the loss of all rows is a mean, and so is its gradient.": (
            _stepped((" / len(weights)", ""))
        ),
        "You divided by 2, but the mean over the ranks divides by their number.": _stepped(
            ("len(weights)", "2")
        ),
        TOO_SHORT: _stepped(("len(weights)", "len(weights) ** 2")),
        "You divided by the number of rows, but each gradient is that of a mean over rows already.": _stepped(
            ("len(weights)", "(len(weights) * len(rows))")
        ),
        TIMES_ROWS: _stepped((LOSS, SUM_LOSS)),
        "You took the mean over the entries of a gradient: each entry has its own mean, over the ranks.": _stepped(
            (MEAN, ONE_NUMBER)
        ),
        RANK_0_ALONE: _stepped((MEAN, "mean = weights[0].grad")),
        "Each rank stepped by the mean of its own gradient and those of the ranks before it: the mean needs the "
        "gradients of all ranks.": one_rank_after_the_other,
        "Rank 0's gradient counts more than once: does a sum begin with `weights[0].grad` and add in place? Then it "
        "changes that very tensor, and adds it again.": _stepped((MEAN, ADDED_IN_PLACE)),
        "Rank 0's gradient counts twice, as where a sum begins with it and then adds it again.": _stepped(
            (
                "sum(weight.grad for weight in weights)",
                "sum((weight.grad for weight in weights), weights[0].grad)",
            )
        ),
        "You put the rows of all ranks together: real ranks have no place where all rows are.": whole_batch_step,
        "Rank 0 did the work of all: let replicas[r] do forward and backward on batches[r].": on_rank_0,
        "Each rank computed every batch: that is all the work on every rank, and nothing is gained.": on_every_rank,
        "Let each rank call a backward of its own: what ranks exchange is gradients.": one_backward,
        "Give each rank numbers of its own, as `weight -= …` does.": _stepped(
            (STEP, f"{STEP}\n                weight.data = weights[0].data")
        ),
        "Rank 0 stepped, the others did not: each rank has weights of its own to change.": _stepped(
            (STEP, f"if weight is weights[0]:\n                    {STEP}")
        ),
        NOT_MOVED: _stepped((STEP, "weight = weight - learning_rate * mean")),
        "You stepped with 0.5 whatever the learning rate is: it is the third argument.": _stepped(
            ("learning_rate *", "0.5 *")
        ),
        "You left out the learning rate: it multiplies the mean.": _stepped(("learning_rate * ", "")),
        STALE: _stepped(("learning_rate *", f"{KEPT_RATE} *")),
        ONE_BEHIND: _stepped(("learning_rate *", f"{RATE_BEHIND} *")),
        "The gradients were not cleared: backward adds to what is there from the step before.": _stepped(
            ("weight.grad = None", "pass")
        ),
        "Only the last rank's gradients were cleared: backward adds to what the others still have.": _stepped(
            ("                weight.grad = None", "            weight.grad = None")
        ),
        "You overwrote rank 0's gradient with the mean before the others had read it.": _stepped(
            (LOSS, f"replica.zero_grad()\n        {LOSS}"),
            (MEAN, "pass"),
            (STEP, OVERWRITTEN),
            ("weight.grad = None", "pass"),
        ),
        "You went up the gradient: a step subtracts it.": _stepped(("-=", "+=")),
    },
)
"""Exercise 1: forward and backward on each rank, the mean of the gradients, the same step on all."""

# ---- the verdicts' demonstration, and exercise 2

check_makespan = Exercise(
    "makespan",
    reference=lambda times: Trace(Span("a", "", start, end) for start, end in times).makespan,
    cases=cases(
        "times",
        [[(0, 2)], [(0, 2), (2, 5)], [(1, 2), (4, 6)], [(3, 9), (4, 5)], [(5, 6), (0, 1), (2, 8)]],
    ),
    view=lambda answer: lambda times: answer(times),  # whatever the reader calls them
    mistakes={
        "You added the durations up: that counts overlapping work twice and waiting not at all.": lambda times: (
            sum(end - start for start, end in times)
        ),
        "You took the last end: this timeline does not begin at 0.": lambda times: max(
            end for _, end in times
        ),
        "You took the first and last span of the list: spans need not be in order.": lambda times: (
            times[-1][1] - times[0][0]
        ),
    },
)
"""Not an exercise: on it the notebook shows what a check says to a wrong answer."""

check_idle_share = Exercise(
    "idle share",
    reference=my_idle_share,
    cases=cases(
        "spans lanes",
        [
            ([("a", 0, 4), ("b", 0, 4)], ["a", "b"]),
            ([("a", 0, 1), ("a", 2, 4), ("b", 1, 2), ("b", 2, 5)], ["a", "b"]),
            ([("a", 2, 4), ("b", 3, 6)], ["a", "b"]),
            ([("a", 0, 1), ("a", 1, 4), ("b", 0, 1)], ["a", "b"]),
            ([("b", 3, 6), ("c", 4, 5), ("a", 2, 4)], ["a", "b", "c"]),
            ([("a", 0, 1), ("c", 2, 3)], ["a", "b", "c", "d"]),
            ([("a", -12, -2), ("b", -11, -10)], ["a", "b"]),
            ([("b", 0, 0.01), ("a", 0.01, 0.09), ("c", 0.02, 0.03), ("b", 0.03, 0.04)], ["a", "b", "c"]),
            LATE_SPANS,
        ],
    ),
    view=lambda answer: lambda spans, lanes: ending(answer, spans, lanes, lines=LINES),
    keeps=True,
    throughout=True,
    fault=another_share,
    mistakes={
        "You compared with the time of one lane: all lanes together could have worked longer than the makespan.": (
            otherwise(lambda worked, makespan, lanes: 1 - worked / makespan)
        ),
        "That is the busy share; the idle share is the rest.": otherwise(
            lambda worked, makespan, lanes: worked / (lanes * makespan)
        ),
        "Those are idle seconds: the share divides them by the time that all lanes could have worked.": otherwise(
            lambda worked, makespan, lanes: lanes * makespan - worked
        ),
        "Those are seconds of work: the share is that of the rest.": otherwise(lambda worked, *_: worked),
        "You divided by the makespan alone: several lanes could have worked all that time.": otherwise(
            lambda worked, makespan, lanes: lanes - worked / makespan
        ),
        "You divided the idle time by the busy time: divide it by both together.": otherwise(
            lambda worked, makespan, lanes: lanes * makespan / worked - 1
        ),
        "That is in per cent: a share is a number from 0 to 1.": lambda spans, lanes: (
            100 * idle_share(spans, lanes)
        ),
        "That is rounded: give the share as it is.": rounded_share,
        "You measured from 0: the makespan begins with the first start.": lambda spans, lanes: (
            1 - sum(end - start for _, start, end in spans) / len(lanes) / max(end for _, _, end in spans)
        ),
        "You counted only the time in which no lane at all worked: each lane's idle time counts, whatever the others "
        "do.": nobody_at_all,
        "You took each lane's own makespan: before a lane's first span and after its last it is idle, too.": (
            own_makespans
        ),
        "That is the idle share of the busiest lane: count the time of all lanes.": of_a_lane(max),
        "That is the idle share of the idlest lane: count the time of all lanes.": of_a_lane(min),
        "You took the longest span for the makespan, which goes from the first start to the last end.": longest_span,
        "You took the last span of the list for the last end: another lane may end later.": lambda spans, lanes: (
            1
            - sum(end - start for _, start, end in spans)
            / len(lanes)
            / (spans[-1][2] - min(start for _, start, _ in spans))
        ),
        "You took the end of the span that starts last for the last end: one that began before it may end later.": (
            from_to(first_start, lambda spans: max(spans, key=lambda span: span[1])[2])
        ),
        "You took the start of the span that ends first for the first start: another may have begun before it.": (
            from_to(lambda spans: min(spans, key=lambda span: span[2])[1], last_end)
        ),
        "You took the end of the span that is last by its lane's name, as `max(spans)` does: another may end later.": (
            from_to(first_start, lambda spans: max(spans)[2])
        ),
        "You took the start of the span that is first by its lane's name, as `min(spans)` does: another may begin "
        "earlier.": from_to(lambda spans: min(spans)[1], last_end),
        "You took first and last of the spans by their lanes' names, as `min(spans)` and `max(spans)` do: other spans "
        "may begin earlier, or end later.": from_to(lambda spans: min(spans)[1], lambda spans: max(spans)[2]),
        "You counted spans for lanes: a lane may have several spans.": lambda spans, lanes: otherwise(
            lambda worked, makespan, _: 1 - worked / (len(spans) * makespan)
        )(spans, lanes),
        "You counted only lanes that have spans: a lane without any is idle all the time.": lambda spans, lanes: (
            idle_share(spans, sorted({lane for lane, _, _ in spans}))
        ),
    },
)
"""Exercise 2: the share of the lanes' time in which nothing ran."""

# ---- exercise 3: when tasks run

_played = partial(edited, my_play)
START = "start = max([free.get(lane, 0), *(times[other][1] for other in needs)])"
INPUTS = "max([0, *(times[other][1] for other in needs)])"

check_play = Exercise(
    "when tasks run",
    reference=my_play,
    cases=cases("tasks", PLAY_CASES),
    view=lambda answer: lambda tasks: ending(answer, tasks, lines=LINES),
    keeps=True,
    throughout=True,
    fault=wrong_time,
    praise="each starts and ends when it should, in all {count} cases",
    mistakes={
        "You didn't wait for what a task needs.": _played((START, "start = free.get(lane, 0)")),
        "You didn't wait for the lane: it does one task at a time.": _played((START, f"start = {INPUTS}")),
        "You let each task wait for the one before it in the list: other lanes work meanwhile.": _played(
            ("free.get(lane, 0)", "*free.values()"), ("max([*", "max([0, *")
        ),
        "You waited for the lane of what a task needs: it may go on with other work when that task has ended.": _played(
            ("times = {}", "times = {}\n    lane_of = {}"),
            ("times[other][1]", "free[lane_of[other]]"),
            ("free[lane] = start", "lane_of[name] = lane\n        free[lane] = start"),
        ),
        "You let a task run in a gap before one that stands above it: a lane keeps the order of the list.": into_gaps,
        "You added up the ends of what a task needs: it waits for all of them at the same time.": _played(
            (START, "start = max(free.get(lane, 0), sum(times[other][1] for other in needs))")
        ),
        "You waited for the first name in the list of needs: the one that ends last may be another.": _played(
            (START, "start = max([free.get(lane, 0), *(times[other][1] for other in needs[:1])])")
        ),
        "You added up the two waits: a task waits for its lane and for what it needs at the same time.": _played(
            (START, f"start = free.get(lane, 0) + {INPUTS}")
        ),
        "You let a task start when the first of what it needs is there: it needs all of them.": _played(
            (START, "start = max(free.get(lane, 0), min([times[other][1] for other in needs], default=0))")
        ),
        "You waited for the last name in the list of needs: the one that ends last may be another.": _played(
            (START, "start = max([free.get(lane, 0), *(times[other][1] for other in needs[-1:])])")
        ),
        "You waited until what a task needs has started: it must have ended.": _played(
            ("times[other][1]", "times[other][0]")
        ),
        "You gave start and duration: the second number is the end.": _played(
            ("times[name] = (start, start + seconds)", "times[name] = (start, seconds)"),
            ("times[other][1]", "sum(times[other])"),
        ),
        "You left out the time that a lane has waited: it is free when its last task ends.": _played(
            ("free[lane] = start + seconds", "free[lane] = free.get(lane, 0) + seconds")
        ),
    },
)
"""Exercise 3: a task starts when its lane is free and what it needs has ended."""

# ---- exercise 4: the step of one rank

_ranked = partial(edited, my_rank_step)
REDUCED = "dist.all_reduce(weight.grad)"
MOVED = "weight.data -= learning_rate * weight.grad / dist.get_world_size()"
FOUND = "        weight.grad = None"

check_rank_step = Exercise(
    "the step of one rank",
    reference=my_rank_step,
    cases=STEP_CASES,
    view=lambda answer: weights_after(each_on_its_rank(answer)),
    throughout=True,
    fault=first_difference,
    praise=STEP_PRAISE,
    mistakes={
        "Each rank stepped by its own gradient: the sum has to be there before the step.": _ranked(
            (REDUCED, "pass"), (" / dist.get_world_size()", "")
        ),
        "Each rank stepped by a part of its own gradient: the sum has to be there before the step.": _ranked(
            (REDUCED, "pass")
        ),
        "The step is as long as by the sum: all_reduce adds up, and a mean divides by the number of ranks.": _ranked(
            (" / dist.get_world_size()", "")
        ),
        "You divided by 2: the mean over the ranks divides by their number.": _ranked(
            ("dist.get_world_size()", "2")
        ),
        TOO_SHORT: _ranked(("dist.get_world_size()", "dist.get_world_size() ** 2")),
        "One all_reduce of a gradient is enough: each further one adds up what are sums already.": _ranked(
            (REDUCED, f"for _ in range(dist.get_world_size()):\n            {REDUCED}")
        ),
        RANK_0_ALONE: _ranked(
            (REDUCED, "dist.broadcast(weight.grad, src=0)"), (" / dist.get_world_size()", "")
        ),
        "Call `wait()` on what all_reduce returns with async_op=True, or leave async_op out.": _ranked(
            (REDUCED, "dist.all_reduce(weight.grad, async_op=True)")
        ),
        "The gradients were not cleared: backward adds to what is there from the step before.": _ranked(
            (FOUND, "        pass")
        ),
        "You left out the learning rate.": _ranked(("learning_rate * ", "")),
        STALE: _ranked(("learning_rate *", f"{KEPT_RATE} *")),
        ONE_BEHIND: _ranked(("learning_rate *", f"{RATE_BEHIND} *")),
        "You went up the gradient: a step subtracts it.": _ranked(("-=", "+=")),
        NOT_MOVED: _ranked(("weight.data -= ", "weight = weight - ")),
        TIMES_ROWS: _ranked((LOSS, SUM_LOSS)),
    },
)
"""Exercise 4: what one process of a real job does in a step."""

# ---- exercise 5: rows for ranks of unequal speed

check_deal = Exercise(
    "rows by speed",
    reference=my_deal,
    cases=cases("rows speeds", DEAL_CASES),
    view=dealt_as_a_list,
    keeps=True,
    throughout=True,
    fault=badly_dealt,
    praise="the last rank could not end sooner, in all {count} cases",
    mistakes={
        "You dealt equally: the slow rank ends last.": dealt_equally,
        "You gave more to the slow, who take longer for each row.": more_to_the_slow,
        "You rounded each share for itself.": rounded,
        "You rounded each share down: the rows that are left over are somebody's, too.": rounded_down,
        "In proportion to the speed, yes, but rows can't be cut.": uncut,
        "You gave the rows that were left over to the first ranks, one each.": rest_to_the_first,
        "You gave the rows that were left over to the fastest ranks, one each.": rest_to_the_fastest,
        "You rounded down, and gave a rank at most one row more: a fast one may have room for two.": rest_by_next_end,
        "You rounded each share up, and took back from the last ranks what was too much.": rounded_up,
        "You rounded each share but the last, which got the rest.": nearest_and_the_last_the_rest,
        "You gave all rows to the fastest rank: others can take some of them.": all_to_the_fastest,
        "You gave all that was left over to the first rank.": rest_to(lambda rows, speeds: 0),
        "You gave all that was left over to the last rank.": rest_to(lambda rows, speeds: len(speeds) - 1),
        "You gave all that was left over to the fastest rank.": rest_to(
            lambda rows, speeds: speeds.index(max(speeds))
        ),
        "You rounded up where most was cut off: for a slow rank a row more is a long time.": largest_remainders,
        "You gave each row to the rank that is free first: ask who would have done it first.": free_first,
        "You gave each row to the rank that would be half done with it first: ask who would have done it.": half_done,
        "You chose a speed for each row, and `index` finds the first rank that has it: ranks may be equally fast.": (
            found_by_speed
        ),
    },
)
"""Exercise 5: shares with which the last rank ends as early as possible."""
