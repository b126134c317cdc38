"""The speed of a step in micro-batches of several sizes."""

from support.chunk_speed import chunk_speed


def test_speed_is_measured_for_every_size_down_to_the_smallest():
    record = chunk_speed(rows=8, width=4, layers=1, repeats=1, smallest=2)
    assert record["size"] == [8, 4, 2]
    assert len(record["rows_per_second"]) == 3
    assert min(record["rows_per_second"]) > 0
    assert record["device"] == "CPU"
