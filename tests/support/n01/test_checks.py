"""What is particular about the checks of notebooks 00 and 01; what all have in common is in test_exercises."""

import math

import pytest

from support.n00 import checks as n00
from support.n01 import checks as n01
from support.n01.runs import simulate_loading


@pytest.mark.parametrize(
    "check, short_form",
    [
        (n01.check_pipeline_time, lambda batches, hops: sum(hops) + (batches - 1) * max(hops)),
        (n01.check_fewest_workers, lambda load, step: math.ceil(load / step)),
    ],
)
def test_the_short_form_of_an_answer_passes_too(check, short_form):
    assert check(short_form)


@pytest.mark.parametrize(
    "check, number, says",
    [
        (n00.check_makespan, 0, "for times = [(1, 2), (4, 6)], expected 5, got 3. You added the durations up"),
        (n00.check_makespan, 1, "expected 5, got 6. You took the last end"),
        (n01.check_pipeline_time, 0, "batches = 6, hops = [6, 1, 2, 4], expected 43, got 78."),
        (n01.check_pipeline_time, 1, "batches = 1, hops = [6, 1, 2, 4], expected 13, got 6."),
        (n01.check_fewest_workers, 0, "load = 20, step = 12, expected 2, got 1. Rounded down"),
        (n01.check_fewest_workers, 1, "load = 24, step = 12, expected 2, got 3. One more than needed"),
        (n01.check_pace, 0, "expected 13.75, got 5. You forgot the cores"),
        (n01.check_pace, 3, "expected 24, got 36. You added what overlaps"),
    ],
)
def test_the_first_counterexample_of_a_wrong_answer(check, number, says):
    assert says in check([*check.mistakes.values()][number]).message


@pytest.mark.parametrize("case", n01.check_fewest_workers.cases)
def test_the_fewest_workers_are_the_first_with_which_the_simulated_trainer_never_waits(case):
    def waits(workers):
        epoch = simulate_loading(4 * workers + 8, case["load"], case["step"], workers)
        return [span.label for span in epoch.only(kind="wait")] != ["wait 0"]

    fewest = n01.check_fewest_workers.reference(**case)
    assert not waits(fewest)
    assert fewest == 1 or waits(fewest - 1)


@pytest.mark.parametrize("case", n01.check_pace.cases)
def test_the_pace_is_a_limit_that_the_simulated_epoch_does_not_beat(case):
    epoch = simulate_loading(
        400, case["load"], case["step"], case["num_workers"], waiting=case["waiting"], cores=case["cores"]
    )
    pace = n01.check_pace.reference(**case)
    assert pace - 1e-6 <= epoch.makespan / 400 <= 1.35 * pace
