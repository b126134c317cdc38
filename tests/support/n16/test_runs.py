"""The comparison of a study with its first row, seed by seed; and on which device a rank of 06_train.py computes."""

import runpy

import pytest
import torch

from support.n16.runs import against_first, t_point
from tools.project import ROOT


def test_a_difference_is_taken_seed_by_seed() -> None:
    base = [{"accuracy": x} for x in (0.1, 0.5, 0.9)]
    better = [{"accuracy": x} for x in (0.11, 0.52, 0.93)]
    first, row = against_first({"a": base, "b": better})
    assert (first.difference, first.low, first.high, first.settled) == (0, 0, 0, False)
    half = 4.3026527 * 0.01 / 3**0.5
    assert (row.difference, row.low, row.high) == pytest.approx((0.02, 0.02 - half, 0.02 + half))
    assert not row.settled  # the spread over seeds would hide it; pairs nearly show it
    assert row.deviation > 0.4
    _, alone = against_first({"a": base, "b": [{"accuracy": x} for x in (0.11, 0.525, 0.93)]})
    _, among, *_ = against_first({"a": base, "b": [{"accuracy": x} for x in (0.11, 0.525, 0.93)], "c": base, "d": base})
    assert alone.sure == alone.settled
    assert among.settled == alone.settled
    assert t_point(99, 5) > t_point(99)
    assert not among.sure
    with pytest.raises(ValueError, match="one seed"):
        against_first({"a": base[:1]})
    with pytest.raises(ValueError, match="the same seeds"):
        against_first({"a": base, "b": better[:2]})


@pytest.mark.parametrize(
    "freedom, expected", [(1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (19, 2.093), (99, 1.984)]
)
def test_students_t_is_that_of_the_tables(freedom: int, expected: float) -> None:
    assert t_point(freedom) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("wanted, gpus", [("cuda", 0), (None, 1), ("cuda", 7)])
def test_a_rank_without_a_gpu_of_its_own_is_refused_before_it_meets_the_others(wanted, gpus, monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    start_rank = runpy.run_path(str(ROOT / "notebooks" / "06_train.py"))["start_rank"]
    with pytest.raises(RuntimeError, match=f"8 ranks on this machine, but torch sees {gpus} GPU.*--device cpu"):
        start_rank(wanted)
