"""Noise of case 6 of notebook 16: what two seeds have in common is refused, and chance alone never is."""

import re
from types import SimpleNamespace

import pytest
import torch

from support.kit.mistakes import edited
from support.n16 import case_more_rows

SEEDED = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
EPOCH = "        order = "
NOISE = "torch.randn(len(mine), rows.shape[1])"
OF_A_ROW = "torch.stack([torch.randn(rows.shape[1], generator=torch.Generator().manual_seed({})) for row in mine])"

ANSWERS = {
    "the sum": (SEEDED, f"{SEEDED}    torch.manual_seed(seed + rank)\n"),
    "one or the other": (SEEDED, f"{SEEDED}    torch.manual_seed(seed ^ rank)\n"),
    "the epoch added to the seed": (EPOCH, f"        torch.manual_seed((seed + epoch) * world + rank)\n{EPOCH}"),
    "ten epochs to a seed": (EPOCH, f"        torch.manual_seed(1000 * seed + 100 * epoch + rank)\n{EPOCH}"),
    "a row's, all added": (NOISE, OF_A_ROW.format("seed + 1000 * epoch + int(row)")),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_noise_that_comes_again_with_the_next_seed_is_refused(answer):
    job = edited(case_more_rows.sick_6(), ANSWERS[answer])
    verdict = case_more_rows.check_job_6(job, case_more_rows.FORECAST_6)
    assert verdict.status == "wrong", "accepted"
    assert "with seed 1" in verdict.message
    assert "with seed 0" in verdict.message


def test_a_rank_that_skips_too_little_of_one_stream_draws_the_numbers_of_another():
    skips = f"{SEEDED}    torch.manual_seed(seed)\n    torch.randn(rank * rows.numel())\n"
    job = edited(case_more_rows.sick_6(), (SEEDED, skips))
    message = case_more_rows.check_job_6(job, case_more_rows.FORECAST_6).message
    assert re.search(r"of the \d+ numbers drawn had been drawn before", message), message


#: What meets only on more ranks or rows than most jobs of this notebook have.
OF_MANY = {
    "ten ranks to a seed": (
        (SEEDED, f"{SEEDED}    torch.manual_seed(10 * seed + rank)\n"),
        r"on 12 ranks .* with seed 0 the noise that row .* with seed 1",
    ),
    "ten ranks to an epoch": (
        (EPOCH, f"        torch.manual_seed(1000 * seed + 10 * epoch + rank)\n{EPOCH}"),
        r"on 12 ranks with 24 rows, .* has the noise of row",
    ),
    "a hundred rows to an epoch": (
        (NOISE, OF_A_ROW.format("10_000 * seed + 100 * epoch + int(row)")),
        r"on 1 rank with 120 rows, .* has the noise of row",
    ),
}


@pytest.mark.costly
@pytest.mark.parametrize("answer", OF_MANY)
def test_noise_that_comes_again_only_on_many_ranks_or_rows_is_refused(answer):
    change, told = OF_MANY[answer]
    job = edited(case_more_rows.sick_6(), change)
    message = case_more_rows.check_job_6(job, case_more_rows.FORECAST_6).message
    assert re.search(told, message), message


def test_numpy_that_nobody_has_seeded_is_told_that_no_run_comes_again():
    own = "torch.tensor(__import__('numpy').random.randn(len(mine), rows.shape[1])).float()"
    job = edited(case_more_rows.sick_6(), (NOISE, own))
    message = case_more_rows.check_job_6(job, case_more_rows.FORECAST_6).message
    assert "a second run with the same seed ends with other weights" in message


def test_noise_that_comes_again_behind_a_short_batch_is_refused():
    job = edited(case_more_rows.sick_6(), (NOISE, "torch.randn(world, len(mine), rows.shape[1])[rank]"))
    message = case_more_rows.check_job_6(job, case_more_rows.FORECAST_6).message
    assert re.search("with 15 rows, .* has the noise of row", message), message


@pytest.mark.parametrize("far", [7, 100, 1000, 12345, 1_000_003])
def test_noise_that_comes_again_with_a_seed_further_on_is_refused(far):
    job = edited(case_more_rows.sick_6(), (SEEDED, f"{SEEDED}    torch.manual_seed(seed + {far} * rank)\n"))
    verdict = case_more_rows.check_job_6(job, case_more_rows.FORECAST_6)
    assert verdict.status == "wrong", "accepted"
    assert f"with seed {far + 1}" in verdict.message
    assert "with seed 1" in verdict.message


@pytest.mark.parametrize("later", ["a row", "a step"])
def test_noise_that_hangs_on_the_one_before_is_refused(later):
    kept = f"noise = 0.8 * {NOISE}\n            noise += 0.6 * (last[: len(noise)] if seen else 0)"
    kept += "\n            last = noise"
    if later == "a row":
        kept = f"noise = torch.cumsum({NOISE}, 0)\n            noise /= torch.arange(1, len(noise) + 1).sqrt()[:, None]"
    answer = edited(case_more_rows.job_6, (f"noise = {NOISE}", kept))
    verdict = case_more_rows.check_job_6(answer, case_more_rows.FORECAST_6)
    assert f"goes together with its own {later} later" in verdict.message, verdict.message


@pytest.mark.parametrize("count", [10, 16, 24])  # rows of a rank in the smallest trials
def test_independent_noise_is_not_refused_by_chance(count):
    random = torch.Generator().manual_seed(0)
    for _ in range(500):
        drawn = torch.randn(2, count, 3, generator=random)
        stands = [SimpleNamespace(value=[{"seen": [(0, 0, noise) for noise in of.tolist()]}]) for of in drawn]
        assert not case_more_rows._fault_of_dependence(stands)
        assert not case_more_rows._fault_of_memory("", stands, 4)
