"""The study of accuracy trains what real ranks train, and sees the mistakes."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from support.deals import DEALS, MISTAKES, REPAIRED, Deal, DecodedDigits, load_data, parts, study
from support.digits import Digits
from support.n16.runs import against_first
from support.recordings import load as recorded


@pytest.fixture(scope="module")
def data(digits: Path) -> DecodedDigits:
    return load_data(digits)


ROWS = 1437
TEST_ROWS = 360
EVERY_ROW_ONCE = Counter(range(ROWS))


@pytest.mark.parametrize("deal", [*DEALS, *MISTAKES, REPAIRED], ids=lambda deal: deal.name)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_way_to_deal_uses_each_row_once_an_epoch(data: DecodedDigits, deal: Deal, world_size: int) -> None:
    for epoch in (0, 1):
        dealt = [*parts(deal, data, epoch, seed=5, world_size=world_size)]
        assert len(dealt) == deal.mini_epochs
        assert Counter(np.concatenate(dealt).tolist()) == EVERY_ROW_ONCE


def test_only_dealing_anew_gives_a_mini_epoch_other_rows_in_the_next_epoch(data: DecodedDigits) -> None:
    def first(deal: Deal, epoch: int) -> set[int]:
        return set(next(iter(parts(deal, data, epoch))).tolist())

    assert first(Deal("rank", 8), 0) != first(Deal("rank", 8), 1)
    assert first(Deal("rank, once", 8), 0) == first(Deal("rank, once", 8), 1)
    assert first(Deal("blocks", 8), 0) == first(Deal("blocks", 8), 1)


def test_blocks_of_a_sorted_file_hold_few_classes_and_dealt_rows_all(data: DecodedDigits) -> None:
    def classes(deal: Deal) -> list[int]:
        return [len({*data.digits[part].tolist()}) for part in parts(deal, data, 0)]

    assert max(classes(Deal("blocks", 8, sorted_file=True))) <= 4
    assert min(classes(REPAIRED)) == 10


def test_a_full_shuffle_is_one_for_any_number_of_ranks(data: DecodedDigits) -> None:
    def order(ranks: int) -> np.ndarray:
        return np.concatenate([*parts(Deal("full shuffle"), data, 1, 0, ranks)])

    assert np.array_equal(order(1), order(2))
    assert np.array_equal(order(1), order(7))


@pytest.mark.costly
def test_a_study_is_reproducible_pairs_its_seeds_and_sees_the_mistake(data: DecodedDigits) -> None:
    deals = (Deal("full shuffle"), Deal("rank", 8), Deal("blocks", 8, sorted_file=True))
    threads = torch.get_num_threads()
    seen = []
    results = study(data, [3, 4], deals, epochs=3, on_result=lambda deal, seed, _: seen.append((deal, seed)))
    assert torch.get_num_threads() == threads
    assert seen == [(deal, seed) for seed in (3, 4) for deal in deals]
    assert results["rank, E = 8"] == study(data, [3, 4], deals[1:2], epochs=3)["rank, E = 8"]
    table = {row.name: row for row in against_first(results)}
    assert table["full shuffle"].mean > 0.85
    assert abs(table["rank, E = 8"].difference) < 0.08
    assert table["blocks, E = 8, sorted file"].difference < -0.2


def test_a_deal_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="how must be one of full shuffle, rank"):
        Deal("at random")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one mini-epoch, not 2"):
        Deal("full shuffle", 2)
    with pytest.raises(ValueError, match="mini_epochs must be at least 1"):
        Deal("rank", 0)


def test_the_recorded_study_has_enough_seeds_and_sees_the_images_of_the_loader(
    digits: Path, data: DecodedDigits
) -> None:
    record = recorded("rank_accuracy")
    assert record["seeds"] >= 20
    assert record["rows"] == ROWS
    assert record["test_rows"] == TEST_ROWS
    assert [*record["results"]] == [deal.name for deal in (*DEALS, *MISTAKES, REPAIRED)]
    assert all(len(rows) == record["seeds"] for rows in record["results"].values())
    for what, table in record["comparison"].items():
        for row, again in zip(table, against_first(record["results"], what), strict=True):
            assert row["name"] == again.name
            assert row["low"] == pytest.approx(again.low)
    images, numbers = next(iter(DataLoader(Digits(digits, "test"), 8)))
    assert torch.equal(images, data.test_images[:8])
    assert torch.equal(numbers, data.test_digits[:8])
