"""The two controls of notebook 03: which answers change one thing of an epoch, and that thoroughly."""

import random

import pytest
import torch

from support.n03 import checks as n03
from support.n03 import redeals
from support.n03.solved import new_company, new_steps
from support.n03.stories import Others


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
        (swapped_neighbours, "are together in"),
        (other_steps, "but the steps come in another order: step k is to hold what it held"),
        (
            lambda epoch, generator: new_company(epoch, generator).numpy(),
            "it gives a ndarray, not a tensor of shape [6, 8, 4]",
        ),
        (
            lambda epoch, generator: new_company(epoch, generator)[:1].expand_as(epoch),
            "an image is lost, or comes more often",
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


def calls_steps(epoch, generator):
    return epoch[torch.randperm(len(epoch), generator=generator)]


def both(control):
    """Puts the images of each group in another order, too."""
    return lambda epoch, generator: other_rows(control(epoch, generator), generator)


def test_a_control_that_changes_less_than_it_says_is_told_what_it_changes_and_no_more():
    for pair, said, not_said in (
        ((rolled, new_company), "new_steps parts some groups of a step too seldom", "by one place"),
        ((other_ranks, new_company), "no group comes in another step", "calls the steps in another order"),
        ((both(other_ranks), new_company), "deals the groups of a step to other ranks", "only"),
        ((both(calls_steps), new_company), "calls the steps in another order", "only"),
        ((new_steps, both(other_ranks)), "puts the groups of a step in another order", "only"),
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


def few_deals(control, count):
    def dealt(epoch, generator):
        return control(epoch, torch.Generator().manual_seed(int(torch.randint(count, (), generator=generator))))

    return dealt


def a_column_at_a_time(epoch, generator):
    made = epoch.clone()
    column = int(torch.randint(epoch.shape[2], (), generator=generator))
    for step in range(len(epoch)):
        made[step, :, column] = epoch[step, torch.randperm(epoch.shape[1], generator=generator), column]
    return made


def every_other_column(epoch, generator):
    made = epoch.clone()
    made[:, :, ::2] = new_company(epoch[:, :, ::2], generator)
    return made


def with_a_draw_beside(control):
    def dealt(epoch, generator):
        torch.rand(1)
        return control(epoch, generator)

    return dealt


def by_rank_shifted(epoch, generator):
    """Right: each rank's batches begin in another step, which is drawn."""
    ranks = [
        epoch[:, rank].roll(int(torch.randint(len(epoch), (1,), generator=generator)), 0)
        for rank in range(epoch.shape[1])
    ]
    return torch.stack(ranks, dim=1)


def each_column_by_itself(epoch, generator):
    """New company for everybody, and yet whoever stands in one column never meets."""
    made = epoch.clone()
    for step in range(len(epoch)):
        for column in range(epoch.shape[2]):
            places = torch.randperm(epoch.shape[1], generator=generator)
            made[step, :, column] = epoch[step, places, column]
    return made


def first_of_each_group_stays(epoch, generator):
    others = epoch[:, :, 1:]
    return torch.cat([epoch[:, :, :1], new_company(others, generator)], dim=2)


def turned_and_dealt_by_groups(epoch, generator):
    """New groups, the same in every call, in an order by chance."""
    steps = [step.t().reshape(step.shape) for step in epoch]
    return torch.stack([step[torch.randperm(len(step), generator=generator)] for step in steps])


def first_group_stays(epoch, generator):
    return torch.cat([epoch[:, :1], new_company(epoch[:, 1:], generator)], dim=1)


def last_step_never_dealt(epoch, generator):
    return torch.cat([new_company(epoch[:-1], generator), epoch[-1:]])


def last_group_never_moves(epoch, generator):
    groups = epoch.flatten(0, 1)
    dealt = groups[torch.randperm(len(groups) - 1, generator=generator)]
    return torch.cat([dealt, groups[-1:]]).view_as(epoch)


def even_columns(epoch, generator):
    ranks = [
        epoch[torch.randperm(len(epoch), generator=generator), rank] if rank % 2 == 0 else epoch[:, rank]
        for rank in range(epoch.shape[1])
    ]
    return torch.stack(ranks, dim=1)


def a_step_further_or_two(epoch, generator):
    """Every rank's batches begin one step later or two: no group ever comes three steps later."""
    ranks = [
        epoch[:, rank].roll(1 + int(torch.randint(2, (1,), generator=generator)), 0) for rank in range(epoch.shape[1])
    ]
    return torch.stack(ranks, dim=1)


def every_other_call(control):
    """Deals anew in every second call, and gives the epoch itself in between."""
    calls = []

    def dealt(epoch, generator):
        calls.append(epoch)
        return control(epoch, generator) if len(calls) % 2 else epoch.clone()

    return dealt


def shuffled_by(make):
    """Deals by Python's random, which `make` makes from the generator."""

    def dealt(epoch, generator):
        groups = epoch.flatten(0, 1).tolist()
        make(generator).shuffle(groups)
        return torch.tensor(groups).view_as(epoch)

    return dealt


def seeded_first(control):
    return lambda epoch, generator: control(epoch, generator.manual_seed(0))


def in_one_buffer(control):
    kept = {}

    def dealt(epoch, generator):
        buffer = kept.setdefault(epoch.shape, torch.empty_like(epoch))
        return buffer.copy_(control(epoch, generator))

    return dealt


def images_of_two_steps(epoch, generator):
    pairs = [new_company(part.flatten(0, 1)[None], generator).view_as(part) for part in epoch.split(2)]
    return torch.cat(pairs)


@pytest.mark.parametrize(
    "pair, said",
    [
        ((new_steps, own_generator(new_company)), "new_company does not go on from where the generator stands"),
        ((new_steps, started_again(new_company)), "new_company does not go on from where the generator stands"),
        ((own_generator(new_steps), new_company), "new_steps does not go on from where the generator stands"),
        ((started_again(new_steps), new_company), "new_steps does not go on from where the generator stands"),
        ((new_steps, half_frozen), "leaves some groups as they were"),
        ((new_steps, first_column), "they keep each other's company"),
        ((new_steps, in_pairs), "they keep each other's company"),
        ((new_steps, within_halves), "the images of two parts never meet"),
        ((early_and_late, new_company), "no group ever comes in a step of another part"),
        ((few_deals(new_steps, 64), new_company), "new_steps has a few deals"),
        ((new_steps, few_deals(new_company, 64)), "have never been in one group"),
        ((few_deals(new_steps, 1000), new_company), "new_steps has a few deals"),
        ((new_steps, few_deals(new_company, 1000)), "new_company has a few deals"),
        ((new_steps, a_column_at_a_time), "they keep each other's company"),
        ((new_steps, every_other_column), "they keep each other's company"),
        ((lambda epoch, generator: new_steps(epoch, generator).float(), new_company), "A float is no index"),
        (
            (with_a_draw_beside(new_steps), new_company),
            "new_steps touches torch's global generator: whoever draws from it next",
        ),
        ((new_steps, with_a_draw_beside(new_company)), "new_company touches torch's global generator"),
        ((new_steps, turned_and_dealt_by_groups), "new_company divides the step"),
        ((new_steps, first_of_each_group_stays), "never meet stand at the same place"),
        ((new_steps, each_column_by_itself), "never meet stand at the same place"),
        ((new_steps, first_group_stays), "leaves some groups as they were"),
        ((new_steps, last_step_never_dealt), "leaves some groups as they were"),
        ((last_group_never_moves, new_company), "leaves some groups in their step"),
        ((even_columns, new_company), "leaves some groups in their step"),
        ((a_step_further_or_two, new_company), "has never come in step"),
        ((every_other_call(new_steps), new_company), "different epochs: the epoch and the generator decide, alone"),
        ((new_steps, every_other_call(new_company)), "two generators with the same seed give different epochs"),
        ((shuffled_by(lambda generator: random.Random(generator.initial_seed())), new_company), "does not go on from"),
        ((shuffled_by(lambda generator: random.Random(0)), new_company), "give the same epoch: the one that you are"),
        ((seeded_first(new_steps), new_company), "is to decide, as it stands"),
        (
            (in_one_buffer(new_steps), new_company),
            "a later call has changed the epoch that an earlier one had returned",
        ),
        ((new_steps, images_of_two_steps), "deals images beyond their step"),
        ((new_company, new_company), "it keeps the steps, and not the groups"),
        ((new_company, new_steps), "it keeps the steps, and not the groups"),
        ((new_steps, new_steps), "it keeps the groups, and not the steps"),
        (
            (new_steps, lambda epoch, generator: new_company(epoch.view(-1, 8, 4), generator)),
            "on an epoch of 5 steps × 3 groups × 3 images: your code raised",
        ),
    ],
)
def test_controls_that_leave_something_frozen_or_draw_elsewhere_are_refused_and_told(pair, said):
    verdict = n03.check_controls(*pair)
    assert not verdict
    assert said in verdict.message, verdict


def never_at_home(epoch, generator):
    """Right: no group stays in its step, not even by chance."""
    home = torch.arange(len(epoch)).repeat_interleave(epoch.shape[1])
    while True:
        places = torch.randperm(len(home), generator=generator)
        stays = (home[places] == home).nonzero().flatten().tolist()
        for place in stays:  # change places with somebody for whom that is right, too
            fitting = ((home[places] != home[place]) & (home != home[places[place]])).nonzero().flatten()
            if len(fitting):
                other = int(fitting[torch.randint(len(fitting), (1,), generator=generator)])
                both = [place, other]
                places[both] = places[both[::-1]]
        if not (home[places] == home).any():
            return epoch.flatten(0, 1)[places].view_as(epoch)


def by_sorting(epoch, generator):
    """Right: every image draws a number, and a step is sorted by them."""
    numbers = torch.rand(epoch.flatten(1).shape, generator=generator)
    return epoch.flatten(1).gather(1, numbers.argsort(1)).view_as(epoch)


def by_pythons_random(epoch, generator):
    """Right: the seed of another generator is drawn from the one that is given."""
    lot = random.Random(int(torch.randint(2**62, (1,), generator=generator)))
    steps = epoch.flatten(1).tolist()
    for step in steps:
        lot.shuffle(step)
    return torch.tensor(steps).view_as(epoch)


def dealt_like_cards(epoch, generator):
    """Right: each image goes to another group than those who were with it; only with the others it comes together."""
    mixed = torch.stack([step[torch.randperm(len(step), generator=generator)] for step in epoch])
    places = torch.rand(mixed.shape, generator=generator).argsort(2)
    return mixed.gather(2, places).transpose(1, 2).reshape(epoch.shape)


@pytest.mark.parametrize(
    "pair",
    [(by_rank_shifted, by_sorting), (never_at_home, by_pythons_random), (new_steps, dealt_like_cards)],
)
def test_controls_that_draw_in_other_ways_are_right_too(pair):
    assert n03.check_controls(*pair), n03.check_controls(*pair)


def other_numbers(control, seed):
    """Deals by numbers that are drawn in another way."""

    def dealt(epoch, generator):
        drawn = int(torch.randint(2**62, (1,), generator=generator)) ^ seed
        return control(epoch, torch.Generator().manual_seed(drawn))

    return dealt


def by_rank_never_at_home(epoch, generator):
    """Right: each rank's batches come a drawn number of steps later; in small epochs two deals may be alike."""
    ranks = [
        epoch[:, rank].roll(1 + int(torch.randint(len(epoch) - 1, (1,), generator=generator)), 0)
        for rank in range(epoch.shape[1])
    ]
    return torch.stack(ranks, dim=1)


@pytest.mark.parametrize("shape", [(5, 3, 3), (3, 4, 2)])
def test_what_chance_leaves_as_it_was_in_one_deal_is_no_fault(shape):
    epoch = redeals._epoch(shape)
    for seed in range(60):
        with Others() as others:
            control = other_numbers(by_rank_never_at_home, seed)
            assert redeals._fault_of_control(control, epoch, (True, False), others) == ""


def test_who_seeds_torchs_global_generator_is_not_told_that_he_draws_or_that_chance_is_not_repeated():
    def seeded(control):
        def dealt(epoch, generator):
            torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
            return control(epoch, None)

        return dealt

    message = n03.check_controls(seeded(new_steps), new_company).message
    assert "new_steps touches torch's global generator: whoever draws from it next gets other numbers" in message


@pytest.mark.parametrize("seed", range(3))
def test_what_is_refused_does_not_hang_on_the_seeds_that_a_check_takes(seed):
    assert n03.check_controls(other_numbers(by_columns, seed), other_numbers(one_draw_for_all_steps, seed))
    for pair in ((last_group_never_moves, new_company), (new_steps, each_column_by_itself)):
        assert not n03.check_controls(*(other_numbers(control, seed) for control in pair))
