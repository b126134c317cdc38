"""The file of the RankDataset story, of any size; and how much of it fits on a disk."""

import pytest
from support.n05.runs import ROW_BYTES, write_captions

from lib.data.meta import MetaFile
from tests.bench import headline


@pytest.mark.parametrize("rows", [0, 1, 999, 1000, 1001, 12_345, 1_000_500])
def test_rows_are_numbered_and_captions_differ_in_length(tmp_path, rows):
    path = tmp_path / "captions.txt"
    assert write_captions(path, rows) == path.stat().st_size
    with MetaFile(path) as meta:
        assert len(meta) == rows
        ids = range(max(0, rows - 1500), rows)
        for i, row in zip(ids, meta.rows(ids), strict=True):
            name, caption = row.split(" ", 1)
            assert name == f"img/{i:09}.jpg"
            assert caption[0] == caption[-1] == '"' and 14 <= len(caption) <= 36


def test_a_row_takes_as_many_bytes_as_is_said(tmp_path):
    size = write_captions(tmp_path / "captions.txt", 10_000)
    assert size / 10_000 == pytest.approx(ROW_BYTES, abs=0.5)


def test_more_rows_than_nine_digits_can_number_are_refused(tmp_path):
    with pytest.raises(ValueError, match="rows must be below"):
        write_captions(tmp_path / "captions.txt", 10**9 + 1)


def test_the_headline_takes_what_fits_on_the_disk():
    assert headline.rows_that_fit(400_000_000, 30 * 10**9) == 400_000_000
    fewer = headline.rows_that_fit(400_000_000, 10 * 10**9)
    assert fewer % 1_000_000 == 0
    assert 0.95 * 8 * 10**9 < fewer * (ROW_BYTES + headline.INDEX_BYTES) < 8 * 10**9
    assert headline.rows_that_fit(5_000_000, 10**9) == 0
