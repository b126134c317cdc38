"""What notebook 13 runs: lists of operations, read and run in other orders."""

import pytest
import torch

from lib.runtime.regions import Region
from lib.streams import PretendGPU, StreamPipeline
from lib.streams.races import waits, without
from support.n13 import runs
from support.n13.batch_users import issued
from support.n13.prefetchers import by_order
from support.n13.prefetching import one_ahead


@pytest.mark.parametrize("chunks, depth", [(4, 2), (5, 3), (3, 1)])
def test_in_whatever_order_the_streams_get_on_each_result_is_in_its_place(chunks, depth):
    gpu = PretendGPU()
    x = torch.arange(float(chunks))[:, None]
    StreamPipeline(lambda x: x + 1, chunks, device=gpu, depth=depth)(gpu.host(x, "rows"))
    truth = [str(i) for i in range(chunks)]
    contents = {Region("rows", 4 * i, 4 * i + 4): str(i) for i in range(chunks)}

    def outcomes(operations, tries):
        found = []
        for _, order in zip(range(tries), runs.orders(operations), strict=False):
            end = runs.replay(operations, order, contents)
            found.append([end.get(Region("result", 4 * i, 4 * i + 4), "?") for i in range(chunks)])
        return found

    assert all(found == truth for found in outcomes(gpu.operations, 30))
    for number in waits(gpu.operations):
        assert any(found != truth for found in outcomes(without(gpu.operations, number), 200)), number


def test_a_list_is_read_with_its_numbers_and_without_records_and_allocations():
    operations = runs.launch_way("wait_event", batches=1)
    kept = [number for number, op in enumerate(operations) if op.kind not in ("record", "allocate")]
    assert [line.split()[0] for line in runs.as_text(operations).splitlines()] == list(map(str, kept))
    assert "compute   waits for" in runs.as_text(operations)
    assert "records" not in runs.as_text(operations)


@pytest.mark.parametrize("steps, by_order_ends, ours_ends", [((20, 20), 260, 260), ((1, 39), 374, 279)])
def test_behind_a_wait_for_the_reader_a_copy_is_hidden_by_one_step_alone(steps, by_order_ends, ours_ends):
    def ticks(op):
        if op.label.startswith("copy"):
            return 20
        return steps[int(op.label[1:]) % 2]

    def end(prefetch):
        return max(span.end for span in runs.earliest(issued(prefetch, 12).operations, ticks).values())

    assert (end(by_order), end(one_ahead)) == (by_order_ends, ours_ends)
