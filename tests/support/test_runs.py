"""Tasks in processes leave a span each; the study of accuracy trains what real ranks train, and sees the mistakes."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from support import runs
from support.digits import Digits
from support.n06.runs import against_first
from support.recordings import load as recorded
from support.runs import DEALS, MISTAKES, REPAIRED, Data, Deal, count, load_data, parts, study


def test_every_task_leaves_a_span_in_its_processs_lane_and_a_process_that_dies_is_an_error():
    trace = runs.run_in_processes(count, processes=2, tasks=5)
    dealt = [("process 0", "0"), ("process 0", "2"), ("process 0", "4"), ("process 1", "1"), ("process 1", "3")]
    assert sorted((span.lane, span.label) for span in trace) == dealt
    with pytest.raises(RuntimeError, match="process 0 .exit code"):
        runs.run_in_processes(os.abort, processes=1, tasks=1)
    with pytest.raises(ValueError, match="processes must be at least 1, not 0"):
        runs.run_in_processes(count, processes=0)


def test_speed_is_measured_for_every_size_down_to_the_smallest():
    record = runs.chunk_speed(rows=8, width=4, layers=1, repeats=1, smallest=2)
    assert record["size"] == [8, 4, 2] and len(record["rows_per_second"]) == 3
    assert min(record["rows_per_second"]) > 0 and record["device"] == "CPU"


@pytest.fixture(scope="module")
def data(digits: Path) -> Data:
    return load_data(digits)


ROWS, TEST_ROWS = 1437, 360
EVERY_ROW_ONCE = Counter(range(ROWS))


@pytest.mark.parametrize("deal", [*DEALS, *MISTAKES, REPAIRED], ids=lambda deal: deal.name)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_way_to_deal_uses_each_row_once_an_epoch(data: Data, deal: Deal, world_size: int) -> None:
    for epoch in (0, 1):
        dealt = [*parts(deal, data, epoch, seed=5, world_size=world_size)]
        assert len(dealt) == deal.mini_epochs and Counter(np.concatenate(dealt).tolist()) == EVERY_ROW_ONCE


def test_only_dealing_anew_gives_a_mini_epoch_other_rows_in_the_next_epoch(data: Data) -> None:
    def first(deal: Deal, epoch: int) -> set[int]:
        return set(next(iter(parts(deal, data, epoch))).tolist())

    assert first(Deal("rank", 8), 0) != first(Deal("rank", 8), 1)
    assert first(Deal("rank, once", 8), 0) == first(Deal("rank, once", 8), 1)
    assert first(Deal("blocks", 8), 0) == first(Deal("blocks", 8), 1)


def test_blocks_of_a_sorted_file_hold_few_classes_and_a_full_shuffle_is_one_for_any_number_of_ranks(data: Data):
    blocks, dealt = Deal("blocks", 8, sorted_file=True), REPAIRED
    assert max(len({*data.digits[part].tolist()}) for part in parts(blocks, data, 0)) <= 4
    assert min(len({*data.digits[part].tolist()}) for part in parts(dealt, data, 0)) == 10
    orders = [np.concatenate([*parts(Deal("full shuffle"), data, 1, 0, ranks)]) for ranks in (1, 2, 7)]
    assert np.array_equal(orders[0], orders[1]) and np.array_equal(orders[0], orders[2])


def test_a_study_is_reproducible_pairs_its_seeds_and_sees_the_mistake(data: Data) -> None:
    deals = (Deal("full shuffle"), Deal("rank", 8), Deal("blocks", 8, sorted_file=True))
    threads, seen = torch.get_num_threads(), []
    results = study(data, [3, 4], deals, epochs=3, on_result=lambda deal, seed, _: seen.append((deal, seed)))
    assert torch.get_num_threads() == threads
    assert seen == [(deal, seed) for seed in (3, 4) for deal in deals]
    assert results["rank, E = 8"] == study(data, [3, 4], deals[1:2], epochs=3)["rank, E = 8"]
    table = {row.name: row for row in against_first(results)}
    assert table["full shuffle"].mean > 0.85 and abs(table["rank, E = 8"].difference) < 0.08
    assert table["blocks, E = 8, sorted file"].difference < -0.2


def test_a_deal_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="how must be one of full shuffle, rank"):
        Deal("at random")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one mini-epoch, not 2"):
        Deal("full shuffle", 2)
    with pytest.raises(ValueError, match="mini_epochs must be at least 1"):
        Deal("rank", 0)


def test_the_recorded_study_has_enough_seeds_and_sees_the_images_of_the_loader(digits: Path, data: Data) -> None:
    record = recorded("rank_accuracy")
    assert record["seeds"] >= 20 and record["rows"] == ROWS and record["test_rows"] == TEST_ROWS
    assert [*record["results"]] == [deal.name for deal in (*DEALS, *MISTAKES, REPAIRED)]
    assert all(len(rows) == record["seeds"] for rows in record["results"].values())
    for what, table in record["comparison"].items():
        for row, again in zip(table, against_first(record["results"], what), strict=True):
            assert row["name"] == again.name and row["low"] == pytest.approx(again.low)
    images, numbers = next(iter(DataLoader(Digits(digits, "test"), 8)))
    assert torch.equal(images, data.test_images[:8]) and torch.equal(numbers, data.test_digits[:8])
