"""The two controls of notebook 03: which answers change one thing of an epoch, and that thoroughly."""

import pytest
import torch

from support.n03 import checks as n03
from support.n03.solved import new_company, new_steps


def by_columns(epoch, generator):
    """Each rank's batches in an order of their own: the groups stay whole and meet others."""
    ranks = [epoch[:, rank][torch.randperm(len(epoch), generator=generator)] for rank in range(epoch.shape[1])]
    return torch.stack(ranks, dim=1)


def one_draw_for_all_steps(epoch, generator):
    places = torch.randperm(epoch[0].numel(), generator=generator)
    return epoch.flatten(1)[:, places].view_as(epoch)


def swapped_neighbours(epoch, generator):
    """Tears up a single group of each epoch."""
    made = epoch.clone()
    step = int(torch.randint(len(epoch), (1,), generator=generator))
    made[step, 0, 0] = epoch[step, 1, 0]
    made[step, 1, 0] = epoch[step, 0, 0]
    return made


def other_steps(epoch, generator):
    made = new_company(epoch, generator)
    return made[torch.randperm(len(made), generator=generator)]


def test_controls_written_otherwise_pass_and_those_that_change_two_things_or_hardly_any_do_not():
    assert n03.check_controls(by_columns, one_draw_for_all_steps)
    for answer, said in (
        (swapped_neighbours, "only 2 of 48 groups are torn up"),
        (other_steps, "but the steps come in another order: that is a second change"),
        (
            lambda epoch, generator: new_company(epoch, generator).tolist(),
            "it gives a list, not one of shape [6, 8, 4]",
        ),
        (
            lambda epoch, generator: new_company(epoch, generator)[:1].expand_as(epoch),
            "an image is lost, or comes twice",
        ),
    ):
        verdict = n03.check_controls(new_steps, answer)
        assert said in verdict.message, verdict


def rolled(epoch, generator):
    """Moves every group by the same drawn number of places: whole runs of them meet again."""
    groups = epoch.flatten(0, 1)
    return groups.roll(int(torch.randint(1, len(groups), (1,), generator=generator)), 0).view_as(epoch)


def other_ranks(epoch, generator):
    places = torch.randperm(epoch.shape[1], generator=generator)
    return epoch[:, places]


def other_rows(epoch, generator):
    return epoch[:, :, torch.randperm(epoch.shape[2], generator=generator)]


def test_a_control_that_changes_less_than_it_says_is_told_what_it_changes_and_no_more():
    for pair, said, not_said in (
        ((rolled, new_company), "new_steps moves groups that follow each other together", "by one place"),
        ((other_ranks, new_company), "no group comes in another step", "calls the steps in another order"),
        ((new_steps, other_rows), "only puts the images of a group in another order", "puts the groups of a step"),
        ((lambda epoch, generator: epoch.clone(), new_company), "nothing is changed", "another order"),
    ):
        verdict = n03.check_controls(*pair)
        assert not verdict
        assert said in verdict.message, verdict
        assert not_said not in verdict.message, verdict


def own_generator(control):
    """Deals every epoch by the generator's first numbers, which are always the same."""
    return lambda epoch, generator: control(epoch, torch.Generator().manual_seed(generator.initial_seed()))


def started_again(control):
    return lambda epoch, generator: control(epoch, generator.manual_seed(generator.initial_seed()))


def half_frozen(epoch, generator):
    half = epoch.shape[1] // 2
    return torch.cat([new_company(epoch[:, :half], generator), epoch[:, half:]], dim=1)


def first_column(epoch, generator):
    """Three of four companions stay."""
    steps = []
    for step in epoch:
        turn = 1 + int(torch.randint(len(step) - 1, (1,), generator=generator))
        steps.append(torch.cat([step[:, :1].roll(turn, 0), step[:, 1:]], dim=1))
    return torch.stack(steps)


def in_pairs(epoch, generator):
    if epoch[0].numel() % 2:
        return new_company(epoch, generator)
    pairs = epoch.reshape(len(epoch), -1, 2)
    dealt = [step[torch.randperm(len(step), generator=generator)] for step in pairs]
    return torch.stack(dealt).view_as(epoch)


def within_halves(epoch, generator):
    half = epoch.shape[1] // 2
    parts = [new_company(part, generator) for part in (epoch[:, :half], epoch[:, half:])]
    return torch.cat(parts, dim=1)


def early_and_late(epoch, generator):
    half = len(epoch) // 2
    return torch.cat([new_steps(part, generator) for part in (epoch[:half], epoch[half:])])


def with_a_draw_beside(control):
    def dealt(epoch, generator):
        torch.rand(1)
        return control(epoch, generator)

    return dealt


def each_column_by_itself(epoch, generator):
    """Right: whoever stands in one column never meets, and everybody's company is new."""
    made = epoch.clone()
    for step in range(len(epoch)):
        for column in range(epoch.shape[2]):
            places = torch.randperm(epoch.shape[1], generator=generator)
            made[step, :, column] = epoch[step, places, column]
    return made


def by_rank_shifted(epoch, generator):
    """Right: each rank's batches begin in another step, which is drawn."""
    ranks = [
        epoch[:, rank].roll(int(torch.randint(len(epoch), (1,), generator=generator)), 0)
        for rank in range(epoch.shape[1])
    ]
    return torch.stack(ranks, dim=1)


@pytest.mark.parametrize(
    "pair, said",
    [
        ((new_steps, own_generator(new_company)), "new_company starts its generator again"),
        ((new_steps, started_again(new_company)), "new_company starts its generator again"),
        ((own_generator(new_steps), new_company), "new_steps starts its generator again"),
        ((started_again(new_steps), new_company), "new_steps starts its generator again"),
        ((new_steps, half_frozen), "leaves whole groups as they were"),
        ((new_steps, first_column), "they keep each other's company"),
        ((new_steps, in_pairs), "they keep each other's company"),
        ((new_steps, within_halves), "the images of two parts never meet"),
        ((early_and_late, new_company), "no group ever comes in a step of another part"),
        ((lambda epoch, generator: new_steps(epoch, generator).float(), new_company), "A float is no index"),
        ((with_a_draw_beside(new_steps), new_company), "You draw from torch's global generator"),
        ((new_steps, with_a_draw_beside(new_company)), "new_company draws from torch's global generator"),
        (
            (new_steps, lambda epoch, generator: new_company(epoch.view(-1, 8, 4), generator)),
            "on an epoch of 5 steps × 6 groups × 3 images: your code raised",
        ),
    ],
)
def test_controls_that_leave_something_frozen_or_draw_elsewhere_are_refused_and_told(pair, said):
    verdict = n03.check_controls(*pair)
    assert not verdict
    assert said in verdict.message, verdict


def test_controls_that_deal_by_columns_are_right_too():
    assert n03.check_controls(by_rank_shifted, each_column_by_itself), n03.check_controls(
        by_rank_shifted, each_column_by_itself
    )
