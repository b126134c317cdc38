"""Bars: who shows one, and that each comes to its end, neither short of it nor beyond."""

import sys
import types

import pytest

from lib.data.meta import CHUNK, MetaFile
from lib.data.rank_dataset import RankDataset


@pytest.fixture
def bars(monkeypatch):
    """Put another tqdm in place of the real one: it keeps what it is told."""
    made = []

    class Kept:
        def __init__(self, *, total, desc, disable, **_):
            self.total = total
            self.label = desc
            self.shown = not disable
            self.steps = []
            self.open = True
            made.append(self)

        def update(self, amount):
            assert self.open
            self.steps.append(amount)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.open = False

    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=Kept))
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    return made


@pytest.fixture
def several_chunks(tmp_path):
    path = tmp_path / "captions.txt"
    path.write_text("".join(f"{i}\n" for i in range(3 * CHUNK)))
    return path


def test_a_bar_counts_all_the_bytes_of_an_index_and_all_the_rows_of_a_mini_epoch(bars, several_chunks):
    with MetaFile(several_chunks) as meta:
        dataset = RankDataset(meta, world_size=1, rank=0, mini_epochs=2)
        dataset.load(1)
    of_index, of_rows = bars
    assert (of_index.label, of_index.total) == ("index of captions.txt", several_chunks.stat().st_size)
    assert (of_rows.label, of_rows.total) == ("epoch 0 mini-epoch 1", 3 * CHUNK // 2)
    for bar in bars:
        assert sum(bar.steps) == bar.total
        assert not bar.open
    assert len(of_rows.steps) > 1, "on the way, too, not only at the end"


def test_of_many_ranks_one_shows_its_bar(bars, several_chunks):
    with MetaFile(several_chunks) as meta:
        bars.clear()
        for rank in range(3):
            RankDataset(meta, world_size=3, rank=rank).load(0)
    assert [bar.shown for bar in bars] == [True, False, False]
