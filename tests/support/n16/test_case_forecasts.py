"""Forecasts of cases 5 to 12 of notebook 16: at a size that can be tried, what they are made of comes true."""

import pytest
import torch

from support.n16 import (
    case_half_the_memory,
    case_less_to_keep,
    case_longer_rows,
    case_more_rows,
    case_nobody_is_slow,
    case_smaller_card,
    case_three_cuts,
    case_three_sevenths,
)
from support.n16.warm import on_ranks


def test_a_token_of_a_rank_with_few_counts_more():
    texts = [torch.tensor([0] * 21), torch.tensor([1, 1]), torch.tensor([2, 2]), torch.tensor([3, 3])]
    given = {"batches": [texts], "micro_batch": 2, "learning_rate": 1.0}
    weight = on_ranks(case_smaller_card.sick_5(), 2, given)[0].value
    long = weight[0, 0] / 20
    short = weight[1, 1]
    assert (short / long).item() == pytest.approx(21 / 2)  # rank 0 has 20 and 1, rank 1 has 1 and 1
    assert pytest.approx(1050 / 100) == case_smaller_card.FORECAST_5


def test_so_many_noises_differ_as_a_rank_has_rows():
    given = {"rows": torch.zeros(24, 3), "batch_size": 2, "epochs": 1, "seed": 3}
    stands = on_ranks(case_more_rows.sick_6(), 3, given)
    noises = {tuple(noise) for stand in stands for _, _, noise in stand.value["seen"]}
    assert len(noises) == 24 / 3
    assert case_more_rows.FORECAST_6 == 5120 / 64


@pytest.mark.costly
@pytest.mark.parametrize("spread, helps", [(0.0, False), (4.0, True)])
def test_more_ranks_help_only_where_the_rows_vary_more_than_their_noise(spread, helps):
    varies = []
    for world in (1, 4):
        rows = spread * torch.randn(world * 120, 3, generator=torch.Generator().manual_seed(3))
        given = {"rows": rows, "batch_size": 4, "epochs": 2, "seed": 1}
        varies.append(float(on_ranks(case_more_rows.sick_6(), world, given)[0].said[-1].split()[-1]))
    assert (varies[1] < 0.9 * varies[0]) == helps
    assert helps or varies[1] == varies[0]


def test_backward_sends_to_dropped_ones_as_often_as_two_draws_say():
    def first_gradients(dist, name, count):
        class Noted(nn.Module):  # noqa: F821
            masks = []  # noqa: RUF012

            def forward(self, x):
                mask = F.dropout(torch.ones(count), 0.25)  # noqa: F821
                self.masks.append(mask > 0)
                return x * mask

        blocks = nn.ModuleList([nn.Sequential(nn.Linear(1, count), Noted())])  # noqa: F821
        given = {"rows": torch.ones(1, 1), "targets": torch.ones(1, count), "seed": 1, "steps": 1}
        globals()[name](dist, blocks, learning_rate=0.1, **given)
        kept, again = Noted.masks
        return int((again & ~kept).sum())

    (stand,) = on_ranks(first_gradients, 1, {"name": "job_7", "count": 400_000}, case_half_the_memory.sick_7())
    assert stand.value == pytest.approx(0.1875 * 400_000, rel=0.02)
    assert case_half_the_memory.FORECAST_7 == 0.1875 * 1e6


def test_about_how_many_is_not_asked_to_the_last_one():
    check = case_half_the_memory.check_job_7
    assert check(case_half_the_memory.job_7, 188_000)


def test_a_step_is_as_long_as_the_root_of_the_stages():
    data = case_three_cuts.drawn_8(1, 4)
    given = {**data, "max_norm": 0.01, "learning_rate": 0.1, "steps": 1}  # all stages have longer gradients
    before = [parameter.detach() for layer in data["layers"] for parameter in layer.parameters()]
    stands = on_ranks(case_three_cuts.sick_8(), 4, given)
    after = [weight for stand in stands for weight in stand.value]
    moved = sum((one - other).square().sum() for one, other in zip(before, after, strict=True)).sqrt()
    assert moved.item() == pytest.approx(0.1 * 0.01 * 4**0.5, rel=1e-3)
    assert pytest.approx(0.1 * 16**0.5) == case_three_cuts.FORECAST_8


@pytest.mark.parametrize("world, many", [(2, 5), (4, 2)])
def test_ranks_idle_while_the_pipeline_fills_and_empties(world, many):
    given = {**case_three_sevenths.drawn_9(1, world, 10), "micro_batches": many}
    idle = {round(stand.value["idle"], 9) for stand in on_ranks(case_three_sevenths.job_9, world, given)}
    assert idle == {round((world - 1) / (many + world - 1), 9)}
    assert pytest.approx((8 - 1) / (32 + 8 - 1)) == case_three_sevenths.FORECAST_9


def test_a_step_waits_for_a_long_one_as_often_as_four_draws_say():
    lengths = [1] * 4000 + [9] * 4000
    given = {"lengths": lengths, "batch_size": 1, "epochs": 1, "seed": 5}
    stands = on_ranks(case_nobody_is_slow.sick_10(), 4, given)
    steps = [[lengths[batch[0]] for _, batch in stand.value] for stand in stands]
    slowest = sum(map(max, zip(*steps, strict=True)))
    assert slowest / (sum(lengths) / 4) == pytest.approx(1.7, rel=0.02)
    assert pytest.approx((100 / 16 + 900 * 15 / 16) / 500) == case_nobody_is_slow.FORECAST_10


def test_pairs_that_leak_are_those_of_two_texts():
    lengths = [5] * 4
    seen = torch.ones(20, 20).tril().bool()
    own = torch.block_diag(*[torch.ones(length, length).tril() for length in lengths]).bool()
    assert int((seen & ~own).sum()) == 6 * 25
    assert case_longer_rows.FORECAST_11 == (8 * 7 // 2 * 512**2, 8 - 1)


@pytest.mark.parametrize("world, many", [(4, 2), (3, 3), (2, 4)])
def test_as_many_ranks_stand_in_a_send_as_there_are_micro_batches_and_not_more_than_ranks(world, many):
    given = {**case_less_to_keep.drawn_12(1, world, 2 * many), "micro_batches": many}
    stands = on_ranks(case_less_to_keep.sick_12(), world, given)
    sending = sum("dist.send" in stand.where[-1][1] for stand in stands)
    assert sending == min(many, world)
    assert case_less_to_keep.FORECAST_12 == (6, 16 - 6)


@pytest.mark.parametrize("case, number, forecast, told", [
    (case_longer_rows, 11, (56 * 512**2, 7), "Each pair of texts counts once"),
    (case_less_to_keep, 12, (5, 11), "The last rank stands in a send, too."),
])  # fmt: skip
def test_a_wrong_forecast_is_told_nothing_untrue(case, number, forecast, told):
    check = getattr(case, f"check_job_{number}")
    assert told in check(check.reference[0], forecast).message
