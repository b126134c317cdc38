"""The checks of notebook 01 pass the reference, leave the stub alone, and reject famous wrong answers by name."""

import math

import pytest

from lib.checks import n01
from lib.data.loading import simulate_loading


def stub(*_): ...


@pytest.mark.parametrize(
    "check, reference, another",
    [
        (
            n01.check_pipeline_time,
            n01.true_pipeline_time,
            lambda batches, hops: sum(hops) + (batches - 1) * max(hops),
        ),
        (n01.check_fewest_workers, n01.true_fewest_workers, lambda load, step: math.ceil(load / step)),
        (n01.check_pace, n01.true_pace, lambda load, waiting, step, num_workers, cores: max(
            step, load / num_workers, (step + load - waiting) / cores)),
    ],
)  # fmt: skip
def test_the_reference_and_the_short_form_pass_and_the_stub_is_neutral(check, reference, another):
    assert check(reference).status == "right"
    assert check(another).status == "right"
    assert check(stub).status == "open"


@pytest.mark.parametrize(
    "wrong, says",
    [
        (
            n01.serial_time,
            "batches = 6, hops = [6, 1, 2, 4], expected 43, got 78. That is one batch after the other",
        ),
        (
            n01.without_fill,
            "batches = 1, hops = [6, 1, 2, 4], expected 13, got 6. You forgot that the first batch",
        ),
        (n01.slowest_once_too_often, "expected 13, got 19. The first batch's time"),
    ],
)
def test_wrong_pipeline_times_are_named(wrong, says):
    assert n01.check_pipeline_time(wrong).status == "wrong"
    assert says in n01.check_pipeline_time(wrong).message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (n01.rounded_down, "load = 20, step = 12, expected 2, got 1. Rounded down"),
        (n01.one_to_be_safe, "load = 24, step = 12, expected 2, got 3. One more than needed"),
        (n01.with_the_trainer, "load = 20, step = 12, expected 2, got 3. The step is the trainer's"),
    ],
)
def test_wrong_numbers_of_workers_are_named(wrong, says):
    assert n01.check_fewest_workers(wrong).status == "wrong"
    assert says in n01.check_fewest_workers(wrong).message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (n01.pace_without_cores, "expected 13.75, got 5. You forgot the cores"),
        (n01.waiting_takes_cores, "You let the waiting take a core"),
        (n01.trainer_takes_no_core, "You forgot the trainer"),
        (n01.added_pace, "expected 24, got 36. You added what overlaps"),
    ],
)
def test_wrong_paces_are_named(wrong, says):
    assert n01.check_pace(wrong).status == "wrong"
    assert says in n01.check_pace(wrong).message


@pytest.mark.parametrize("load, step", n01.TIMES)
def test_the_fewest_workers_are_the_first_with_which_the_simulated_trainer_never_waits(load, step):
    def waits(workers):
        epoch = simulate_loading(4 * workers + 8, load, step, workers)
        return [span.label for span in epoch.only(kind="wait")] != ["wait 0"]

    fewest = n01.true_fewest_workers(load, step)
    assert not waits(fewest)
    assert fewest == 1 or waits(fewest - 1)


@pytest.mark.parametrize("case", n01.PACES)
def test_the_pace_is_a_limit_that_the_simulated_epoch_does_not_beat(case):
    epoch = simulate_loading(
        400, case["load"], case["step"], case["num_workers"], waiting=case["waiting"], cores=case["cores"]
    )
    assert n01.true_pace(**case) - 1e-6 <= epoch.makespan / 400 <= 1.35 * n01.true_pace(**case)


def test_guesses_are_only_commented_on():
    assert "that is it" in n01.guess_pipeline(43, 6, [6, 1, 2, 4]).message
    assert "that is it" in n01.guess_faster_device(1.43, load=0.02, step=0.01, factor=10).message
    assert "= 254 ms" in n01.guess_one_worker(1, 12, load=0.02, step=0.014).message
    assert "that is it" in n01.guess_deeper_queue(1).message
    assert "that is it" in n01.guess_who_gains("slow").message
    assert n01.guess_who_gains("heavy").status == "note"
    for nothing in (
        n01.guess_pipeline(None, 6, [6, 1, 2, 4]),
        n01.guess_one_worker(None, 12, 0.02, 0.01),
        n01.guess_who_gains(None),
    ):
        assert nothing.message.startswith("No guess yet")
