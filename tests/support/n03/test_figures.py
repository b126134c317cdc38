"""The figures of notebook 03 show what torch's own sampler does, cell by cell."""

from collections import Counter

import pytest
import torch
from torch.utils.data import DistributedSampler as TorchSampler

from lib.show.explore import explore
from lib.show.sheet import drawn_cells
from lib.show.style import alt_text
from support.n03 import cost
from support.n03 import figures as n03
from tests.pictures import corners


def torch_shares(size, world_size, seed=0, epoch=0, shuffle=True, drop_last=False):
    shares = []
    for rank in range(world_size):
        sampler = TorchSampler(range(size), world_size, rank, shuffle, seed, drop_last)
        sampler.set_epoch(epoch)
        shares.append(list(sampler))
    return shares


def rows_of(figure):
    rows = {}
    for patch in drawn_cells(figure):
        rows.setdefault(round(patch.at[1], 3), []).append((patch.at[0], patch.cell))
    return [[cell for _, cell in sorted(rows[y], key=lambda one: one[0])] for y in sorted(rows)]


def texts(cells):
    return [cell.index for cell in cells]


def headline(figure):
    if figure.get_suptitle():
        return figure.get_suptitle()
    return figure.axes[0].get_title("left") or figure.axes[0].get_title()


def test_a_deal_knows_its_order_and_its_padding():
    padded = n03.deal_epoch(10, 3)
    assert (padded.order, padded.repeated, padded.dropped) == ([4, 1, 7, 5, 3, 9, 0, 8, 6, 2, 4, 1], 2, [])
    cut = n03.deal_epoch(10, 3, drop_last=True)
    assert (cut.order, cut.repeated, cut.dropped) == ([4, 1, 7, 5, 3, 9, 0, 8, 6], 0, [2])


def test_only_equal_seeds_cover_the_data_and_what_nobody_holds_no_sampler_of_torch_gives():
    *_, holders = rows_of(n03.draw_agreement(9, (0, 0, 0)))
    assert texts(holders) == list(range(9))
    figure = n03.draw_agreement(9, (0, 1, 2))
    assert headline(figure) == "Different seeds: 2 of 9 samples have no holder, 2 have several"
    crossed = [cell.index for cell in rows_of(figure)[-1] if cell.mark == "dropped"]
    kept = {index for seed in range(3) for index in torch_shares(9, 3, seed)[seed]}
    assert crossed == sorted(set(range(9)) - kept)
    assert headline(n03.draw_agreement(2, (0, 3))).startswith("Equal orders: each index has one holder")
    with pytest.raises(ValueError, match="10 samples.*3 ranks"):  # padding would be a second holder
        n03.draw_agreement(10, (0, 0, 0))


@pytest.mark.parametrize(
    "size, world_size, shuffle, drop_last",
    [(10, 3, True, False), (10, 3, False, True), (12, 4, True, True), (3, 7, True, False), (2, 4, True, True)],
)
def test_the_mechanism_ends_in_torchs_shares(size, world_size, shuffle, drop_last):
    figure = n03.draw_mechanism(size, world_size, 1, 2, shuffle, drop_last)
    dataset, order, *ranks = rows_of(figure)
    shares = torch_shares(size, world_size, 1, 2, shuffle, drop_last)
    assert texts(dataset) == list(range(size))
    for rank, (row, share) in enumerate(zip(ranks, shares, strict=True) if shares[0] else ()):
        assert texts(row) == share * 2  # once below the order, once at the right
        assert {cell.rank for cell in row} == {rank}
    marks = Counter(cell.mark for cell in order)
    given = sum(map(len, shares))
    assert marks["padding"] == max(0, given - size)
    assert marks["dropped"] == max(0, size - given)


def test_the_mechanism_states_the_sum_and_the_formulas_and_the_slice_is_dealt_by_hops():
    figure = n03.draw_mechanism(10, 3)
    assert headline(figure) == "10 samples + 2 repeated = 3 ranks × 4 each"
    notes = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert "num_samples = ⌈10 / 3⌉ = 4" in notes
    assert "total_size = 4 × 3 = 12" in notes
    assert headline(n03.draw_mechanism(10, 3, drop_last=True)) == "10 samples − 1 dropped = 3 ranks × 3 each"
    assert headline(n03.draw_mechanism(6, 1)) == "6 samples = 1 rank × 6 each"
    hops, blocks = ([cell.rank for cell in row] for row in rows_of(n03.draw_slice(15, 3)))
    assert (hops, blocks) == ([0, 1, 2] * 5, [0] * 5 + [1] * 5 + [2] * 5)


def test_without_set_epoch_every_row_is_the_first_and_with_it_every_row_is_torchs():
    figure = n03.draw_epochs(12, 3, 6)
    by_panel = {axes: [] for axes in figure.axes}
    for patch in drawn_cells(figure):
        by_panel[patch.axes].append(patch.cell.index)
    forgotten, told = by_panel.values()
    assert [forgotten[12 * epoch :][:12] for epoch in range(6)] == [forgotten[:12]] * 6
    for epoch in range(6):
        steps = zip(*torch_shares(12, 3, epoch=epoch), strict=True)
        assert told[12 * epoch :][:12] == [index for step in steps for index in step]
    assert headline(figure) == "set_epoch forgotten: 1 order in 6 epochs. Called: 6 orders"


def test_the_score_is_exact_where_w_divides_n_off_by_the_repeated_head_elsewhere_and_never_beyond_the_bound():
    correct = torch.ones(20, dtype=torch.bool)
    correct[10:] = False
    figure = cost.draw_evaluation(correct, most=8)
    points = next(c for c in figure.axes[0].collections if "not shuffled" in c.get_label()).get_offsets()
    bias = {int(world): float(move) for world, move in points}
    assert [bias[w] for w in (1, 2, 4, 5)] == [0, 0, 0, 0]
    assert bias[8] == pytest.approx(100 * (14 / 24 - 0.5))
    assert "0.0 to +8.3 points" in headline(figure)
    assert "0 where W divides 20 (4 times)" in alt_text(figure)
    assert all(abs(move) <= 100 * cost.most_moved(20, world) for world, move in bias.items())
    assert cost.most_moved(50_000, 64) == 48 / 50_048
    assert [cost.signed(x) for x in (2.94, -5.0, 0.04, -0.01)] == ["+2.9", "−5.0", "0.0", "0.0"]


def test_the_bound_is_reached_where_only_the_head_is_right():
    correct = torch.zeros(9, dtype=torch.bool)
    correct[0] = True
    shares = torch_shares(9, 5, shuffle=False)
    counted = [bool(correct[index]) for share in shares for index in share]
    assert abs(sum(counted) / len(counted) - 1 / 9) <= cost.most_moved(9, 5)
    everything = torch.zeros(1001, dtype=torch.bool)
    everything[:999] = True  # 1000 ranks: the head of 999 comes again
    shares = torch_shares(1001, 1000, shuffle=False)
    counted = [bool(everything[index]) for share in shares for index in share]
    assert cost.most_moved(1001, 1000) == 999 / 2000
    assert abs(sum(counted) / len(counted) - 999 / 1001) < cost.most_moved(1001, 1000)


@pytest.mark.parametrize("rise, told", [(0.1, "+33 %"), (-0.1, "−33 %"), (0.0, "0 %")])
@pytest.mark.parametrize("size", cost.NAMES)
def test_the_cost_says_by_how_much_and_in_how_many_seeds_whichever_way_it_went(size, rise, told):
    losses = [0.25, 0.3, 0.35]
    same = {"told": losses, "forgotten": losses}
    results = dict.fromkeys(cost.NAMES, same)
    results[size] = {"told": losses, "forgotten": [loss + rise for loss in losses]}
    figure = cost._draw_company(results, size, "0.3", "by nobody")
    count = 3 if rise > 0 else 0
    assert (
        headline(figure)
        .replace("\n", " ")
        .endswith(f": {told} test loss without set_epoch, higher in {count} of 3 seeds")
    )
    assert headline(figure).startswith("Rate 0.3, ")
    named = "no batch norm" if size == "none" else f"groups of {size}"
    assert f"{named} {cost.signed(rise, 3)} ± 0.000" in alt_text(figure)
    points = [collection.get_offsets()[:, 1].tolist() for collection in figure.axes[1].collections]
    assert points == [pytest.approx(results[size][way]) for way in ("told", "forgotten")]


@pytest.mark.costly
def test_the_explorer_deals_as_torch_does_and_sums_how_often_a_sample_was_seen():
    for values in corners(explore(n03.draw_ranks, **n03.RANKS_CONTROLS), 40):
        figure = n03.draw_ranks(**values)
        order, *grid, seen = rows_of(figure)
        shares = torch_shares(**values)
        assert [texts(row) for row in grid] == [share for share in shares if share]
        given = [cell for cell in order if cell.mark != "dropped"]
        assert [cell.index for cell in given] == [share[t] for t in range(len(shares[0])) for share in shares]
        assert [cell.mark == "padding" for cell in given] == [p >= values["size"] for p in range(len(given))]
        epochs = ({**values, "epoch": epoch} for epoch in range(values["epoch"] + 1))
        counts = Counter(index for each in epochs for share in torch_shares(**each) for index in share)
        assert texts(seen) == [counts[index] for index in range(values["size"])]
        assert alt_text(figure).endswith(" ".join(map(str, texts(seen))) + ".")
        by = f"seed {values['seed']}" if values["shuffle"] else "not shuffled"
        assert alt_text(figure).startswith(f"Epoch {values['epoch']}, {by}: ")
