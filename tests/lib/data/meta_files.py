"""What tests of meta files share: the rows of a file, read in every way, and the place of its index."""

from lib.data.meta import MetaFile
from lib.data.rank_dataset import NaiveDataset


def all_rows(path, **arguments):
    with MetaFile(path, **arguments) as meta:
        rows = meta.rows(range(len(meta)))
        assert rows == NaiveDataset(meta).rows
        few = range(0, len(rows), max(1, len(rows) // 100))  # a few rows take a shorter way, which must agree
        assert [meta.rows([i])[0] for i in few] == [rows[i] for i in few]
        return rows


def index_of(path):
    return path.with_name(path.name + ".idx")


def row(i):
    return f'img/{i:04}.png "number {i}"'
