"""FileDataset: any row straight from the file, in any process, and nothing held."""

import multiprocessing
import os
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, Subset

from lib.data.file_dataset import FileDataset
from lib.data.meta import MetaFile
from lib.data.rank_dataset import NaiveDataset
from tests.lib.refusal import refuses

N = 1000


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "captions.txt"
    lines = (f'img/{i:04}.png "{i} naïve {"x" * (i % 37)}"' + ("\r\n" if i % 5 else "\n# a header\n") for i in range(N))
    path.write_text("# image caption\n" + "".join(lines), encoding="utf-8", newline="")
    return path


def test_items_are_the_rows_as_one_would_read_them_naively(path):
    with MetaFile(path) as meta:
        naive = NaiveDataset(meta).rows
        dataset = FileDataset(meta)
        assert len(dataset) == N
        assert list(dataset) == naive == [dataset[i] for i in range(N)]
        some = [*np.random.default_rng(0).integers(-N, N, 300), -1, 0, 0, N - 1, -N]  # repeated, and from the end
        wanted = [naive[i] for i in some]
        for size in (1, 8, 9, len(some)):  # few rows and many go different ways
            assert dataset.__getitems__(some[:size]) == wanted[:size]
        assert dataset[np.int64(-3)] == dataset[torch.tensor(-3)] == naive[-3]
        assert dataset.__getitems__([]) == []
        dataset.transform = len
        assert dataset[7] == len(naive[7])
        assert dataset.__getitems__(range(N)) == [*map(len, naive)]
        for wrong in (N, -N - 1):
            for asked in ([wrong], [-1] * 20 + [wrong]):
                refuses(IndexError, f"item {wrong} is out of range: there are {N}", dataset.__getitems__, asked)
        refuses(TypeError, "", dataset.__getitem__, 1.5)


def test_a_batch_is_one_call_that_reads_close_rows_together(path, monkeypatch):
    with MetaFile(path) as meta:
        dataset = FileDataset(meta)
        rows = MetaFile.rows
        asked = []
        monkeypatch.setattr(MetaFile, "rows", lambda self, ids: asked.append(len(ids)) or rows(self, ids))
        loader = DataLoader(Subset(dataset, range(100, 200)), batch_size=50, sampler=RandomSampler(range(100)))
        assert sum(map(len, loader)) == 100
        assert asked == [50, 50]
        if not hasattr(os, "preadv"):
            return
        reads = []
        preadv = os.preadv
        monkeypatch.setattr(os, "preadv", lambda *arguments: reads.append(1) or preadv(*arguments))
        dataset.__getitems__([*range(299, 99, -1)])
        assert len(reads) == 2, "one of the index, one of the text, and no more for rows in the wrong order"


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(start, marks=pytest.mark.costly if start == "spawn" else [])
        for start in sorted({"fork", "spawn"} & {*multiprocessing.get_all_start_methods()})
    ],
)
def test_two_workers_however_they_were_started_read_what_one_process_reads(path, start):
    with MetaFile(path) as meta:
        dataset = FileDataset(meta, transform=str.upper)
        assert len(pickle.dumps(dataset)) < 1000, "a path, not the rows"
        loader = DataLoader(dataset, batch_size=64, num_workers=2, multiprocessing_context=start)
        seen = []
        for batch in loader:  # the parent reads meanwhile, of the file whose descriptor forked workers share
            seen += batch
            assert dataset.__getitems__(range(len(seen) - len(batch), len(seen))) == batch
        assert seen == [row.upper() for row in NaiveDataset(meta).rows]


def test_memory_does_not_grow_with_the_rows(tmp_path):
    """16 times the rows: the naive list takes 16 times the memory; to read all of them from the file takes no more."""

    def traced(read):
        tracemalloc.start()
        result = read()
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return held, peak, result

    def sizes(rows):
        path = tmp_path / f"{rows}.txt"
        path.write_text("".join(f'img/{i:06}.png "a caption of some length, like others"\n' for i in range(rows)))
        with MetaFile(path) as meta:
            dataset = FileDataset(meta)
            batches = torch.arange(rows).split(500)
            dataset.__getitems__(batches[0])  # what numpy imports when first used
            held, peak, _ = traced(lambda: [len(dataset.__getitems__(batch)) for batch in batches])
            return held, peak, traced(lambda: NaiveDataset(meta))[0]

    _, peak, naive = sizes(1_000)
    held, large_peak, large_naive = sizes(16_000)
    assert large_naive > 12 * naive
    assert large_peak < 1.5 * peak < large_naive / 4
    assert held < 10_000
