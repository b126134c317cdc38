"""Who waits for whom where rows are read cold: the formula, its borders, and a volume whose reads are counted."""

import os
import sys
from os import pread

import pytest

from lib.show.explore import explore
from lib.show.style import alt_text
from support.captions import write_captions
from support.n05 import border, cold, solved, waiting
from support.n05.border import DISKS, ROWS, Disk, epoch_seconds, keeps_up_to, reading_seconds
from tests.pictures import corners

forks = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked")
VOLUME = DISKS["network volume"]


def test_row_by_row_is_limited_by_reads_and_sweeps_by_bytes():
    assert reading_seconds("row by row", VOLUME) == pytest.approx(400e6 / 16_000)
    assert reading_seconds("row by row", VOLUME, cached=0.5) == pytest.approx(400e6 / 32_000)
    assert reading_seconds("own rows, read ahead", VOLUME) == pytest.approx(64 * 17.6e9 / 250e6)
    assert reading_seconds("shards, shuffle buffer", VOLUME) == pytest.approx(17.6e9 / 250e6)
    assert reading_seconds("own rows, read ahead", VOLUME, images=True) == pytest.approx(400e6 / 16_000, rel=0.05)


@pytest.mark.parametrize("disk", DISKS)
@pytest.mark.parametrize("way", border.COLD_WAYS)
def test_training_waits_from_the_border_on_and_not_before(disk, way):
    limit = keeps_up_to(way, DISKS[disk])
    if "first" in way:
        assert limit == 0
        assert epoch_seconds(way, 10, DISKS[disk]) > ROWS / 10
    else:
        assert epoch_seconds(way, 0.99 * limit, DISKS[disk]) == pytest.approx(ROWS / (0.99 * limit))
        assert epoch_seconds(way, 1.01 * limit, DISKS[disk]) > 1.005 * ROWS / (1.01 * limit)


def test_which_way_wins_turns_with_demand_disk_and_mini_epochs():
    def best(demand, disk, **told):
        ways = ("row by row", "own rows, read ahead", "shards, shuffle buffer")
        hours = {way: epoch_seconds(way, demand, DISKS[disk], **told) for way in ways}
        return [way for way in ways if hours[way] < 1.001 * min(hours.values())]

    assert len(best(8_000, "network volume")) == 3
    assert best(40_000, "network volume") == ["own rows, read ahead", "shards, shuffle buffer"]
    assert best(200_000, "network volume") == ["shards, shuffle buffer"]
    assert "own rows, read ahead" in best(8_000, "hard disk")
    assert "row by row" not in best(8_000, "hard disk")
    assert best(8_000, "hard disk", images=True) == ["shards, shuffle buffer"]
    assert "own rows, read ahead" not in best(200_000, "network volume", cached=0.9)
    assert "own rows, read ahead" in best(200_000, "network volume", cached=0.9, mini_epochs=1)


@pytest.mark.costly
def test_the_picture_says_what_the_formula_gives():
    for values in corners(explore(waiting.draw_border, **waiting.BORDER_CONTROLS), 12):
        told = {"mini_epochs": values["mini_epochs"], "cached": values["cached"] / 100}
        told["images"] = values["images"] == "same disk"
        words = alt_text(waiting.draw_border(**values))
        for way in border.COLD_WAYS:
            hours = epoch_seconds(way, values["demand"], DISKS[values["disk"]], **told) / 3600
            assert f"{way} {hours:.2f} h" in words
        assert f"own rows {waiting.rate(keeps_up_to('own rows, read ahead', DISKS[values['disk']], **told))}" in words


@pytest.mark.parametrize(
    "rows, said", [(890.4, "890"), (16_000, "16 k"), (88_778, "89 k"), (5.68e6, "5.7 M"), (75, "75")]
)
def test_a_rate_has_two_digits_that_count(rows, said):
    assert waiting.rate(rows) == said


@pytest.fixture
def captions(tmp_path):
    path = str(tmp_path / "cold.txt")
    write_captions(path, 2_000)
    return path, solved.index_of(path)


def test_a_volume_counts_the_reads_of_its_file_and_how_long_they_keep_it_busy(captions, tmp_path):
    path, bounds = captions
    write_captions(tmp_path / "other.txt", 10)
    volume = cold.Volume(path, Disk(reads=1e5, bytes=1e7))
    files = solved.MyFileDataset(path, bounds)
    other = solved.MyFileDataset(str(tmp_path / "other.txt"), bounds)
    with volume.limiting():
        rows = files.__getitems__([3, 1, 3])
        other[0]
        os.preadv(files.file, [bytearray(1000)], 0)
    reads, size, busy = volume.counted
    assert rows == [files[3], files[1], files[3]]
    own = len(rows[0].encode()) + len(rows[1].encode())
    assert (reads, size) == (3, own + 1000)
    assert busy == pytest.approx(2 * 1e-5 + 1000 / 1e7)
    volume.reset()
    files[0]
    assert volume.counted == (0, 0, 0.0)


def test_a_dataset_that_reads_past_the_volume_is_replaced_and_told_so(captions, capsys):
    path, bounds = captions

    class ByAName(solved.MyFileDataset):
        def __getitem__(self, index):
            return pread(self.file, self.bounds[index + 1] - 1 - self.bounds[index], self.bounds[index]).decode()

    volume = cold.Volume(path, Disk(reads=1e6, bytes=1e9))
    assert type(cold.limited(volume, ByAName, solved.MyFileDataset, path, bounds)) is solved.MyFileDataset
    assert "the volume does not see how your dataset reads: here ours" in capsys.readouterr().out
    assert type(cold.limited(volume, solved.MyFileDataset, ByAName, path, bounds)) is solved.MyFileDataset
    assert not capsys.readouterr().out


def test_shards_hand_out_each_row_of_their_piece_once_and_not_in_order(captions):
    path, bounds = captions
    files = solved.MyFileDataset(path, bounds)
    whole = []
    for rank in range(2):
        rows = list(cold.Shards(path, bounds, 2, rank, size=100))
        own = [files[number] for number in range(1000 * rank, 1000 * (rank + 1))]
        assert sorted(rows) == own
        assert rows != own
        early = [own.index(row) - place for place, row in enumerate(rows)]
        assert max(early) <= 100, "no row leaves a buffer of 100 more than 100 places early"
        whole += rows
    assert len(set(whole)) == 2000


def test_shards_end_a_row_at_a_newline_only(tmp_path):
    path = tmp_path / "letters.txt"
    rows = ["a\u2028b", "c\x85", "", "d\x0be"]
    path.write_text("\n".join(["#", *rows, ""]), encoding="utf-8")
    assert sorted(cold.Shards(str(path), solved.index_of(path), 1, 0, size=2)) == sorted(rows)


@forks
def test_ranks_train_all_batches_and_one_that_fails_is_an_error(captions):
    path, bounds = captions
    volume = cold.Volume(path, Disk(reads=1e6, bytes=1e9))
    files = solved.MyFileDataset(path, bounds)

    def batches(rank):
        return (files.__getitems__(range(first, first + 50)) for first in range(rank * 1000, rank * 1000 + 200, 50))

    run = cold.cold_run(batches, volume, demand=1e5)
    assert (run.rows, run.reads) == (400, 400)
    assert run.seconds > 400 / 1e5
    assert run.busy == pytest.approx(400 / 1e6, rel=0.01)

    def failing(rank):
        raise LookupError("no rows here")

    with pytest.raises(RuntimeError, match="a rank has ended with an error"):
        cold.cold_run(failing, volume, demand=1e5)


def test_a_cold_run_is_told_with_its_reads_and_row_by_row_beside_own_rows_read_ahead():
    runs = {
        "row by row": cold.ColdRun(3.0, 10_000, 10_000, 430_000, 2.5),
        "own rows, read ahead": cold.ColdRun(1.5, 10_000, 36, 65_000_000, 1.0),
        "no reading": cold.ColdRun(1.2, 10_000, 0, 0, 0.0),
    }
    runs["own rows, read singly"] = cold.ColdRun(4.5, 10_000, 10_000, 430_000, 2.5)
    runs["shards, shuffle buffer"] = cold.ColdRun(1.1, 10_000, 4, 430_000, 0.1)
    predicted = dict.fromkeys(set(runs) - {"no reading"}, 1.6)
    figure = waiting.draw_cold(runs, predicted, 10_000)
    assert "row by row 3.0 s with 10,000 reads" in alt_text(figure)
    assert "row by row takes 2.0 × as long as own rows, read ahead" in " ".join(
        text.get_text() for text in figure.findobj(lambda part: hasattr(part, "get_text"))
    )
