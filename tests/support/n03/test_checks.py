"""What is particular about the checks of notebook 03; what all exercises have in common is in test_detectors."""

import pytest
import torch
from torch.utils.data import DistributedSampler as TorchSampler

from lib.data.samplers import DistributedSampler
from support.n03 import checks as n03
from support.n03.solved import exact_score, new_company, new_steps


def mistake(exercise, start):
    return next(wrong for why, wrong in exercise.mistakes.items() if why.startswith(start))


def share(order, world_size, rank, drop_last):
    steps = len(order) // world_size if drop_last else -(-len(order) // world_size)
    while len(order) < steps * world_size:
        order = order + order
    return order[: steps * world_size][rank::world_size]


def share_by_places(order, world_size, rank, drop_last=False):
    """As somebody writes it who thinks of places, and of no list but the order."""
    count, rest = divmod(len(order), world_size)
    if rest and not drop_last:
        count += 1
    return [order[(rank + turn * world_size) % len(order)] for turn in range(count)]


class Written:
    """As a reader may write it: no torch sampler in it, not even its base class."""

    def __init__(self, data, world_size, its_rank, shuffle=True, seed=0, drop_last=False):
        if its_rank not in range(world_size):
            raise ValueError("no such rank")
        self.size = len(data)
        self.drop_last = drop_last
        self.world_size = world_size
        self.rank = its_rank
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def __iter__(self):
        order = list(range(self.size))
        if self.shuffle:
            order = torch.randperm(self.size, generator=torch.Generator().manual_seed(self.seed + self.epoch)).tolist()
        return iter(share(order, self.world_size, self.rank, self.drop_last))

    def __len__(self):
        return len(share(list(range(self.size)), self.world_size, self.rank, self.drop_last))

    def set_epoch(self, epoch):
        self.epoch = epoch


class Prepared(Written):
    """As somebody writes it who draws in set_epoch, and only gives out in __iter__."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.set_epoch(0)

    def set_epoch(self, epoch):
        super().set_epoch(epoch)
        self.drawn = [*Written.__iter__(self)]

    def __iter__(self):
        return iter(self.drawn)


def in_order(gathered, size):
    return [answer for batch in gathered for step in zip(*batch, strict=True) for answer in step][:size]


def in_order_by_places(gathered, size):
    world = len(gathered[0])
    answers = [None] * size
    turns = 0
    for batch in gathered:
        for rank, own in enumerate(batch):
            for turn, answer in enumerate(own, start=turns):
                if turn * world + rank < size:
                    answers[turn * world + rank] = answer
        turns += len(batch[0])
    return answers


def test_right_answers_that_ask_no_sampler_pass_and_libs_class_and_the_reference_deals_as_torchs():
    for answer in (share, share_by_places):
        assert n03.check_share(answer)
    for kind in (Written, Prepared, DistributedSampler):
        assert n03.check_sampler(kind), n03.check_sampler(kind)
    for answer in (in_order, in_order_by_places):
        assert n03.check_in_order(answer)
    shares = [n03.check_share.reference([4, 1, 7, 5, 3, 9, 0, 8, 6, 2], 3, rank, False) for rank in range(3)]
    assert shares == [list(TorchSampler(range(10), 3, rank)) for rank in range(3)]
    assert shares == [[4, 5, 0, 2], [1, 3, 8, 4], [7, 9, 6, 1]]


def test_the_first_counterexample_of_a_share_is_told_and_padding_once_is_wrong_only_where_too_short():
    message = n03.check_share(mistake(n03.check_share, "You padded with 0, or")).message
    assert "world_size = 3, rank = 1, drop_last = False, position 3: expected 80, got 0" in message
    cases = {(len(c["order"]), c["world_size"], c["rank"], c["drop_last"]) for c in n03.check_share.cases()}
    assert cases >= {(n, w, r, d) for n in range(1, 25) for w in range(1, 10) for r in range(w) for d in (False, True)}
    assert all(c["order"] != sorted(c["order"]) for c in n03.check_share.cases() if len(c["order"]) > 5)
    once = mistake(n03.check_share, "You appended the head once")
    true = n03.check_share.reference
    short = [case for case in n03.check_share.cases() if once(**case) != true(**case)]
    assert short
    assert all(case["world_size"] > 2 * len(case["order"]) and not case["drop_last"] for case in short)


def in_place(order, **how):
    order[:] = share(order, 1, 0, False)
    order += order[: -len(order) % how["world_size"]]
    return share(order, **how)


def emptied(gathered, size):
    answers = in_order(gathered, size)
    gathered.pop()
    return answers


def left_open(self, epoch): ...


def adds_to_the_seed(self, epoch):
    self.seed += epoch


def remembers(self):
    """The bug of the chapter, written by a reader: the first order for ever."""
    if not hasattr(self, "first"):
        self.first = [*Written.__iter__(self)]
    return iter(self.first)


def of_the_dataset(self, data, *arguments, **named):
    Written.__init__(self, data, *arguments, **named)
    self.data = data


def reads_items(self, data, *arguments, **named):
    """Right indices, by way of every item: `list(data)` in place of a length."""
    Written.__init__(self, data, *arguments, **named)
    self.size = len([*data])


def looks_at_the_first(self):
    self.data[0]
    return Written.__iter__(self)


def keeps_its_pass(self):
    self.passed = Written.__iter__(self)
    return self


def written(**methods):
    return type("Written", (Written,), methods)


@pytest.mark.parametrize(
    "check, answer, said",
    [
        ("check_share", in_place, "got a change of `order`"),
        ("check_share", lambda order, **how: iter(share(order, **how)), "got a list_iterator, not a list"),
        ("check_in_order", emptied, "got a change of `gathered`"),
        ("check_in_order", lambda gathered, size: tuple(in_order(gathered, size)), "got a tuple, not a list"),
        ("check_sampler", written(__iter__=lambda self: [*Written.__iter__(self)]), "got a list, which is no iterator"),
        (
            "check_sampler",
            written(__iter__=lambda self: iter(torch.tensor([*Written.__iter__(self)]))),
            "got indices of type Tensor",
        ),
        ("check_sampler", written(__iter__=lambda self: None), "__iter__ returned None (is a `return` missing?)"),
        ("check_sampler", written(set_epoch=adds_to_the_seed), "adds to what an earlier call has left"),
        ("check_sampler", written(__iter__=remembers), "order of the first pass is kept for ever"),
        (
            "check_sampler",
            written(
                __init__=of_the_dataset, __iter__=lambda self: (self.data[index] for index in Written.__iter__(self))
            ),
            "got indices of type str",
        ),
        ("check_sampler", written(__init__=reads_items), "an item of the dataset was asked for"),
        (
            "check_sampler",
            written(__init__=of_the_dataset, __iter__=looks_at_the_first),
            "You asked the dataset for its items",
        ),
        (
            "check_sampler",
            written(__iter__=keeps_its_pass, __next__=lambda self: next(self.passed)),
            "Your __iter__ returns the sampler itself",
        ),
        ("check_sampler", written(set_epoch=left_open), "MyDistributedSampler: still the stub: set_epoch"),
        ("check_sampler", written(set_epoch=lambda self, epoch: None), "Epoch 0 for ever"),  # whoever wrote that, began
    ],
)
def test_an_answer_that_has_the_right_indices_and_cannot_be_used_is_refused_and_told_why(check, answer, said):
    verdict = getattr(n03, check)(answer)
    assert not verdict
    assert said in verdict.message


def test_torchs_own_generator_is_as_before_whatever_a_sampler_does_to_it():
    before = torch.get_rng_state()
    verdict = n03.check_sampler(mistake(n03.check_sampler, "You seeded torch's global"))
    assert n03.ALONE in verdict.message
    assert torch.equal(before, torch.get_rng_state())


# ---- the two controls


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


# ---- one score for all ranks


def by_gathering(ddp, loader, dist):
    """Right in another way: under no_grad from the start, counts gathered and not summed, averages sent as one."""
    with torch.no_grad():
        for buffer in ddp.module.buffers():
            dist.broadcast(buffer, src=0)
        model = ddp.module.eval()
        right = [bool(hit) for x, y in loader for hit in model(x).argmax(dim=1) == y]
        own = torch.tensor([float(sum(right)), float(len(right))])
        of_all = [torch.zeros(2) for _ in range(dist.get_world_size())]
        dist.all_gather(of_all, own)
    hits, count = torch.stack(of_all).sum(dim=0)
    return hits / count


def test_a_score_that_is_gathered_passes_and_one_that_another_rank_gets_alone_does_not():
    assert n03.check_score(by_gathering)

    def rank_zero_only(ddp, loader, dist):
        score = exact_score(ddp, loader, dist)
        return score if dist.get_rank() == 0 else 0.0

    verdict = n03.check_score(rank_zero_only)
    assert "rank 1 says 0.0000" in verdict.message

    def in_words(ddp, loader, dist):
        return f"{exact_score(ddp, loader, dist):.2f}"

    assert "is no score" in n03.check_score(in_words).message


def test_a_rank_that_waits_for_others_in_vain_is_told_who_waits_where():
    verdict = n03.check_score(mistake(n03.check_score, "You call the wrapper with gradients"))
    assert "on 2 ranks with 12, 11 batches" in verdict.message
    assert "broadcast" in verdict.message
    assert "all_reduce" in verdict.message


# ---- predictions


def test_a_famous_wrong_guess_is_named_and_the_limit_of_the_missed_share_is_not_the_answer():
    for share_of_seven in ("[1]", "1", (1,), [1], 1):  # in any way of writing it
        assert "that is it" in n03.guess_last_of_eight(share_of_seven).message
    assert "one for each run and epoch" in n03.guess_orders(36).message
    assert "no_grad switches it off" in n03.guess_broadcasts(2, ["broadcast", "broadcast, x", "broadcast", "x"]).message
    said = {guess: "that is it" in n03.guess_missed_percent(guess).message for guess in (33, 34, 35, 36, 37)}
    assert said == {33: False, 34: True, 35: True, 36: False, 37: False}
