"""The tower of notebook 15 and the rows that it trains on."""

from pathlib import Path

import torch
from torch.nn import functional as F

from support.deals import load_data
from support.n15.guesses import guess_loss
from support.n15.tower import batches_of, even_balance, fill, tower, tower_on_meta
from tests.lib.refusal import refuses


def test_a_layer_has_the_same_weights_in_whatever_it_is_made_and_no_other_generator_is_touched() -> None:
    before = torch.get_rng_state()
    whole = tower(2, 4)
    meta = tower_on_meta(2, 4)
    part = fill(meta[2:], 2)
    assert torch.equal(before, torch.get_rng_state())
    assert whole(torch.zeros(3, 1, 8, 8, dtype=torch.float64)).shape == (3, 10)
    assert all(p.is_meta for p in meta[:2].parameters())
    assert all(torch.equal(p, q) for p, q in zip(part.parameters(), whole[2:].parameters(), strict=True))
    assert not torch.equal(tower(2, 4, seed=1)[1][0].weight, whole[1][0].weight)
    assert [even_balance(8, n) for n in (1, 2, 3, 8)] == [[8], [4, 4], [3, 3, 2], [1] * 8]
    refuses(ValueError, "8 layers can't be cut into 9 stages", even_balance, 8, 9)
    orders = batches_of(10, 4, 5)
    assert all(len({*a, *b}) == 8 for a, b in zip(orders[::2], orders[1::2], strict=False))
    assert len(orders) == 5


def test_whoever_guesses_the_loss_of_the_first_weights_is_told_whose_it_is(digits: Path) -> None:
    data = load_data(digits)
    rows = batches_of(len(data.digits), 320, 1)[0]
    for shift in (0, 1):  # the right pairs, and those of two strangers
        loss = F.cross_entropy(tower()(data.images[rows].double()), data.digits[rows].roll(shift)).item()
        assert "that of the first weights" in guess_loss(loss).message
        assert "that of the first weights" in guess_loss(round(loss, 1)).message
    assert "that of the first weights" not in guess_loss(2.5).message
