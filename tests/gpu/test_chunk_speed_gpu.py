"""The speed of a step in micro-batches is measured on whatever GPU is here, and named by it."""

from support.chunk_speed import chunk_speed
from tests.gpu.common import GPU, SIMULATED


def test_speed_is_measured_on_the_gpu_and_its_name_is_kept():
    record = chunk_speed(str(GPU), rows=8, width=4, layers=1, repeats=1, smallest=2)
    assert record["size"] == [8, 4, 2]
    assert min(record["rows_per_second"]) > 0
    assert record["device"] != "CPU"
    assert (record["device"] == "simulated GPU") == SIMULATED, "a number of a simulated device is never a GPU's"
