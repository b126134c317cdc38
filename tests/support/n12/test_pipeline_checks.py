"""What is said of the article's pipeline, exercise 5: another right answer, and wrong ones."""

from functools import partial

import pytest
import torch

from lib.pipeline import Task
from lib.runtime.device import current_stream, new_stream, synchronize
from support import built
from support.kit.mistakes import edited
from support.n12 import checks as n12
from support.n12.given import copy_between, wait_between, with_checkpoint
from support.n12.solved import make_task, run_pipeline

# ---- exercise 5


def run_without_finalize(batches, partitions, devices, copy_streams, stop, queues):
    """Do behind the clock, in this thread, what the solution does in finalize; tie behind the copies."""
    n = len(partitions)
    for clock in built.clock_cycles(len(batches), n):
        tasks = {}
        kept = {}
        for i, j in clock:
            if j:
                x = copy_between(copy_streams[j - 1][i], copy_streams[j][i], batches[i])
                batches[i] = wait_between(copy_streams[j][i], current_stream(devices[j]), x)
        for i, _ in clock:
            if i:
                built.depend(batches, i)
        for i, j in clock:
            kept[i] = ({}, partitions[j], batches[i])
            phony = torch.empty(0, device=devices[j], requires_grad=True)
            work = partial(partitions[j], batches[i])
            if i < stop:
                work = partial(built.MyTwoNodeCheckpoint.apply, phony, *kept[i])
            tasks[j] = Task(current_stream(devices[j]), compute=work, finalize=None)
        done = built.run_clock(tasks, *queues)
        for i, j in clock:
            y = done[j]
            if j < n - 1:
                y = wait_between(current_stream(devices[j]), copy_streams[j][i], y)
            batches[i] = built.my_tie(y, *kept[i]) if i < stop else y


def test_a_pipeline_that_finishes_behind_the_clock_passes():
    assert n12.check_pipeline(run_without_finalize)


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("batches[i] = done[j][0]", "batches[i] = done[j][0].detach()", "is it detached on the way?"),
        ("batches[i] = done[j][0]", "batches[i] = done[j]", "AttributeError"),
        ("[layer(x)]", "layer(x)", "the output has shape"),
        ("copy_streams[j][i] if j", "copy_streams[j][0] if j", "races"),
        (
            "wait_between(copy_streams[j][i], stream,",
            "wait_between(stream, copy_streams[j][i],",
            "in forward `mm` in the compute stream",
        ),
        ("if j > 0:\n                batches[i] = copy", "if j > 1:\n                batches[i] = copy", "same device"),
        (
            "shared = {}\n",
            "shared = {}\n    again = again and layer is None\n",
            "was computed 1 × in partition 0, not 2",
        ),
        (
            "if j > 0:\n                batches[i] = copy",
            "if j > 0 and m > 1:\n                batches[i] = copy",
            "m = 1",
        ),
        (
            "if j > 0:\n                batches[i] = wait",
            "if j > 0 and m > 1:\n                batches[i] = wait",
            "m = 1",
        ),
        ("if j < n - 1", "if j < n - 1 and m > 1", "m = 1"),
        ("for clock in clock_cycles(m, n):", "for clock in clock_cycles(m, n)[:-1]:", "is still the input"),
        ("for clock in clock_cycles(m, n):", "for clock in []:", "batches[0] is still the input"),
        ("device=x.device, requires_grad=True", "device=x.device", "the output has no graph"),
        ("(phony, shared", "(x.requires_grad_(), shared", "wants a gradient afterwards"),
    ],
)
def test_other_wrong_ways_through_the_streams_are_told_what_is_seen(monkeypatch, old, new, says):
    monkeypatch.setattr(n12, "PATIENCE", 4.0)
    verdict = n12.check_pipeline(edited((make_task, run_pipeline), (old, new))[1])
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize(
    "old, new",
    [
        ("batches[i] = done[j][0]", "batches[i] = done[j][0]\n            synchronize(devices[j])"),
        ("    def finalize(batch):\n", "    def finalize(batch):\n        float(batch[0].detach().sum())\n"),
        (
            "    def finalize(batch):\n",
            "    def finalize(batch):\n        if x.is_cuda:\n            stream.record_event().synchronize()\n",
        ),
    ],
)
def test_a_host_that_stands_still_until_a_device_has_computed_is_told(old, new):
    wrong = edited((make_task, run_pipeline), (old, new), names={"synchronize": synchronize})[1]
    assert "in forward the host stands still until a device has computed" in n12.check_pipeline(wrong).message


def test_who_ends_the_workers_that_were_lent_is_told(monkeypatch):
    monkeypatch.setattr(n12, "PATIENCE", 2.0)

    def ends_them(batches, partitions, devices, copy_streams, stop, queues):
        run_pipeline(batches, partitions, devices, copy_streams, stop, queues)
        for queue in queues[0]:
            queue.put(None)

    assert "answers no further task" in n12.check_pipeline(ends_them).message


def test_a_dictionary_for_all_micro_batches_of_a_partition_is_told():
    kept = {}
    edit = ("shared = {}", "shared = kept.setdefault(id(layer), {})")
    alone = edited((make_task, run_pipeline), edit, names={"kept": kept})
    assert "each pair needs a new one" in n12.check_pipeline(alone[1]).message


def test_one_dictionary_for_all_pairs_is_told_as_that():
    edit = ("shared = {}", "shared = kept")
    message = n12.check_pipeline(edited((make_task, run_pipeline), edit, names={"kept": {}})[1]).message
    assert "6 Recomputes share 1 dictionary: each pair needs a new one" in message
    assert "What my_tie returns" not in message


def test_a_dictionary_that_a_pair_keeps_from_batch_to_batch_is_told():
    edits = [
        ("def make_task(layer,", "def make_task(pair, layer,"),
        ("make_task(partitions[j],", "make_task((i, j), partitions[j],"),
        ("shared = {}", "shared = kept.setdefault(pair, {})"),
    ]
    message = n12.check_pipeline(edited((make_task, run_pipeline), *edits, names={"kept": {}})[1]).message
    assert "shares its dictionary with one of the batch before" in message


def test_one_copy_stream_for_all_micro_batches_is_told():
    edits = [
        ("copy_streams[j - 1][i], copy_streams[j][i], b", "copy_streams[j - 1][0], copy_streams[j][0], b"),
        ("wait_between(copy_streams[j][i], s", "wait_between(copy_streams[j][0], s"),
        ("copy_streams[j][i] if", "copy_streams[j][0] if"),
    ]
    verdict = n12.check_pipeline(edited((make_task, run_pipeline), *edits)[1])
    assert "micro-batches are copied in one stream" in verdict.message


def test_a_task_that_computes_in_its_own_threads_stream_is_told():
    edit = ("DeviceTask(stream,", 'DeviceTask(current_stream(torch.device("cpu")),')
    names = {"current_stream": current_stream, "torch": torch}
    message = n12.check_pipeline(edited((make_task, run_pipeline), edit, names=names)[1]).message
    assert "called in streams of its own: `mm` in the compute stream of cuda:0 is launched in the stream" in message
    assert "not in the one that is current in forward's own thread." in message  # true of notebook 09's Task as well


def test_streams_of_the_answers_own_are_not_called_copy_streams():
    edit = ("stream = current_stream(devices[j])", "stream = own[j]")
    make = (
        "m, n = len(batches), len(partitions)",
        "m, n = len(batches), len(partitions)\n    own = [new_stream(d) for d in devices]",
    )
    names = {"new_stream": new_stream}
    message = n12.check_pipeline(edited((make_task, run_pipeline), edit, make, names=names)[1]).message
    assert "behind forward, where the outputs are used, `cat` in the compute stream of cuda:2" in message
    assert "a new stream of cuda:2" in message


def test_a_copy_that_another_micro_batchs_stream_launches_is_told_what_is_true():
    edit = ("copy_streams[j - 1][i], copy_streams[j][i], b", "copy_streams[j - 1][i - 1], copy_streams[j][i], b")
    message = n12.check_pipeline(edited((make_task, run_pipeline), edit)[1]).message
    assert "A copy stream reads what the partition may still be computing: it has to wait" in message
    assert "wrong way round" not in message


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("i < stop", "i < stop and j > 0", "not 2 ×. Here a micro-batch below `stop` was not checkpointed."),
        ("i < stop", "0 < i < stop", "not 2 ×. Here a micro-batch below `stop` was not checkpointed."),
        ("my_tie(batch[0], shared", "my_tie(batch[0], {}", "and the dictionary that of its Checkpoint."),
        ("compute=compute", "compute=partial(list, compute())", "The worker is to call `compute`"),
        ("for clock in clock_cycles(m, n):", "for clock in []:", "afterwards. Replace what stands in the given list."),
    ],
)
def test_what_is_said_of_a_famous_mistake_is_true_of_others_of_the_same_fault(old, new, says):
    wrong = edited((make_task, run_pipeline), (old, new), names={"partial": partial})[1]
    assert says in n12.check_pipeline(wrong).message


def test_copies_to_a_partition_in_streams_of_the_answers_own_are_told():
    first = "m, n = len(batches), len(partitions)"
    own = f"{first}\n    own = [[new_stream(device) for _ in batches] for device in devices]"
    edits = [(first, own), ("copy_streams[j][i], b", "own[j][i], b"), ("(copy_streams[j][i], s", "(own[j][i], s")]
    wrong = edited((make_task, run_pipeline), *edits, names={"new_stream": new_stream})[1]
    assert "in backward a gradient is copied from cuda:2 in another stream than" in n12.check_pipeline(wrong).message


def test_torchs_checkpoint_is_not_said_to_compute_nothing_again():
    edits = [
        ("[MyTwoNodeCheckpoint.apply(phony, shared, layer, x)]", "[with_checkpoint(layer, x)]"),
        ("batch[0] = my_tie(batch[0], shared, layer, x)", "pass"),
    ]
    names = {"with_checkpoint": with_checkpoint}
    message = n12.check_pipeline(edited((make_task, run_pipeline), *edits, names=names)[1]).message
    assert "micro-batch 0 leaves two graphs in partition 1" in message
    assert "micro-batches again" not in message


def test_who_computes_with_a_graph_and_computes_again_as_well_is_told():
    edit = ("MyTwoNodeCheckpoint.apply(phony, shared, layer, x)", "layer(x)")
    message = n12.check_pipeline(edited((make_task, run_pipeline), edit)[1]).message
    assert "micro-batch 0 leaves two graphs in partition 0" in message


@pytest.mark.parametrize(
    "streams",
    [
        "[[new_stream(device) for _ in batches] for device in devices]",
        "[[*row[-1:], *row[:-1]] for row in copy_streams]",
        "[row[::-1] for row in copy_streams]",
    ],
)
def test_copies_in_other_streams_than_those_of_their_micro_batch_are_told(streams):
    first = "m, n = len(batches), len(partitions)"
    edit = (first, f"{first}\n    copy_streams = {streams}")
    wrong = edited((make_task, run_pipeline), edit, names={"new_stream": new_stream})[1]
    assert (
        "micro-batch 0 is copied from cuda:0 in another stream than copy_streams[0][0]"
        in n12.check_pipeline(wrong).message
    )


def test_who_knows_modes_only_where_stop_lies_between_is_told():
    edit = ("i < stop", "i < {0: 0, m: m}.get(stop, m - 1)")
    message = n12.check_pipeline(edited((make_task, run_pipeline), edit)[1]).message
    assert "stop = 2: in backward cuda:0 computes 3 micro-batches again from end to end, not 2" in message


def test_the_second_partitions_copy_streams_are_looked_at_too():
    first = "m, n = len(batches), len(partitions)"
    swap = "copy_streams = [row[::-1] if j == 1 else row for j, row in enumerate(copy_streams)]"
    message = n12.check_pipeline(edited((make_task, run_pipeline), (first, f"{first}\n    {swap}"))[1]).message
    assert "from cuda:1 in another stream than copy_streams[1][0]" in message


def tied(pair):
    if len(pair) > 1:
        built.depend(pair, 1)
    return pair[-1]


def test_ties_that_workers_make_are_told_even_if_the_graph_is_right():
    edits = [
        ("depend(batches, i)", "pass"),
        ("make_task(partitions[j], batches[i],", "make_task(partitions[j], batches[max(i - 1, 0) : i + 1],"),
        ("    shared = {}\n", "    shared = {}\n    pair, x = x, x[-1]\n"),
        ("    def compute():\n", "    def compute():\n        x = tied(pair)\n"),
    ]
    message = n12.check_pipeline(edited((make_task, run_pipeline), *edits, names={"tied": tied})[1]).message
    assert "a tie is made in a worker's thread" in message
