"""Exercises 5 to 7 of notebook 13: repairs that are right, repairs that are not, and torch's own opinion."""

import pytest
import torch

from lib.streams import find_races
from support.kit.mistakes import edited
from support.n13 import checks as n13
from support.n13 import exhibits, museum
from support.n13.runs import torchs_races

CHECKS = {"handed_over": n13.check_handed, "shared_buffer": n13.check_shared, "refilled": n13.check_refilled}
RECORDS = ("        del weight\n", "        weight.record_stream(compute)\n        del weight\n")
INTO_THE_LOOP = "    for i in range(3):\n"
A_BATCH_EACH = ("        batch.fill_(i + 1.0)\n", "        batch = gpu.host(torch.full((1000,), i + 1.0))\n")
TWO_BATCHES = """\
    two = [(gpu.host(torch.zeros(1000)), side.record_event()) for _ in range(2)]
    batch = two[0][0]
"""
A_BUFFER_EACH = (
    ("buffer = gpu.empty_like(shards[0])", "buffers = [gpu.empty_like(shard) for shard in shards]"),
    ("for shard in shards:", "for shard, buffer in zip(shards, buffers, strict=True):"),
)
WAITS_BEHIND = ("total += buffer\n", "total += buffer\n        gather.wait_stream(compute)\n")
HEARS = ("total += x\n", "total += x\n        side.synchronize()\n")
KEEPS_BLOCKS = (
    ("    for i in range(3):\n", "    kept = []\n    for i in range(3):\n"),
    ("        x.record_stream(compute)\n", "        kept.append(x)\n        side.synchronize()\n"),
)

RIGHT_REPAIRS = {
    "handed_over, told before the kernel": (
        "handed_over",
        ("gpu.sleep(late)", "weight.record_stream(compute); gpu.sleep(late)"),
    ),
    "handed_over, held until its reader is waited for": (
        "handed_over",
        (
            "    for layer in layers:\n",
            "    held = []\n    for layer in layers:\n        for _, read in held[-2:-1]: copies.wait_event(read)\n",
        ),
        ("        del weight\n", "        held.append((weight, compute.record_event()))\n        del weight\n"),
        ("    return", "    copies.wait_stream(compute)\n    return"),
    ),
    "shared_buffer, behind the addition": (
        "shared_buffer",
        ("total += buffer\n", "total += buffer\n        gather.wait_stream(compute)\n"),
    ),
    "shared_buffer, in front of the copy, and its last reader told": (
        "shared_buffer",
        ("    for shard in shards:\n", "    for shard in shards:\n        gather.wait_stream(compute)\n"),
        ("    return", "    buffer.record_stream(compute)\n    return"),
    ),
    "shared_buffer, by an event": (
        "shared_buffer",
        ("total += buffer\n", "total += buffer\n        gather.wait_event(compute.record_event())\n"),
    ),
    "shared_buffer, from the pool of the stream that adds, which is waited for": (
        "shared_buffer",
        ("    with gpu.use_stream(gather):\n        buffer = gpu", "    buffer = gpu"),
        ("    for shard in shards:\n", "    gather.wait_stream(compute)\n    for shard in shards:\n"),
        ("total += buffer\n", "total += buffer\n        gather.wait_stream(compute)\n"),
    ),
    "shared_buffer, one each": (
        "shared_buffer",
        ("            buffer.copy_(", "            buffer = gpu.empty_like(shard)\n            buffer.copy_("),
        ("total += buffer\n", "buffer.record_stream(compute)\n        total += buffer\n"),
    ),
    "refilled, before it is filled": ("refilled", (INTO_THE_LOOP, INTO_THE_LOOP + "        side.synchronize()\n")),
    "refilled, by an event": (
        "refilled",
        ("total += x\n", "total += x\n        copied.synchronize()\n"),
        (
            "        compute.wait_stream(side)\n",
            "        copied = side.record_event()\n        compute.wait_stream(side)\n",
        ),
    ),
    "refilled, a new batch each": (
        "refilled",
        (INTO_THE_LOOP, INTO_THE_LOOP + '        batch = gpu.host(torch.zeros(1000), "batch")\n'),
    ),
    "refilled, two batches in turn": (
        "refilled",
        ('    batch = gpu.host(torch.zeros(1000), "batch")\n', TWO_BATCHES),
        (
            "        batch.fill_(i + 1.0)\n",
            "        batch, copied = two.pop(0)\n        copied.synchronize()\n        batch.fill_(i + 1.0)\n",
        ),
        (
            "        compute.wait_stream(side)\n",
            "        two.append((batch, side.record_event()))\n        compute.wait_stream(side)\n",
        ),
    ),
    "refilled, behind all that was launched before the addition": (
        "refilled",
        ("        compute.wait_stream(side)\n", "        gpu.synchronize()\n        compute.wait_stream(side)\n"),
    ),
    "refilled, a batch with a name in capitals": (
        "refilled",
        ("        batch.fill_(i + 1.0)\n", "        batch = gpu.host(torch.full((1000,), i + 1.0), 'X')\n"),
    ),
    "refilled, a batch for each copy, held until all have run": (
        "refilled",
        A_BATCH_EACH,
        ("    return", "    side.synchronize()\n    return"),
    ),
    "handed_over, and the host waits where nothing is launched yet": (
        "handed_over",
        RECORDS,
        ("    for layer in layers:\n", "    copies.synchronize()\n    for layer in layers:\n"),
    ),
    "refilled, a batch that torch makes pinned": (
        "refilled",
        ("        batch.fill_(i + 1.0)\n", "        batch = torch.full_like(batch, i + 1.0, pin_memory=True)\n"),
    ),
    "refilled, pinned by the GPU": (
        "refilled",
        (INTO_THE_LOOP, INTO_THE_LOOP + "        batch = gpu.pinned((1000,), torch.float32)\n"),
    ),
}


@pytest.mark.parametrize("name, edits", [(value[0], value[1:]) for value in RIGHT_REPAIRS.values()], ids=RIGHT_REPAIRS)
def test_an_exhibit_may_be_repaired_in_other_ways(name, edits):
    repaired = edited(getattr(exhibits, name), *edits)
    verdict = CHECKS[name](repaired)
    assert verdict.status == "right", verdict.message
    assert not find_races(museum.issued_by(repaired, 0))  # what the notebook lets its reader ask


WRONG_REPAIRS = {
    "kept in a list, that is given back at the end": (
        "handed_over",
        "its next owner",
        ("    for layer in layers:\n", "    kept = []\n    for layer in layers:\n"),
        ("        del weight\n", "        kept.append(weight)\n        del weight\n"),
    ),
    "the buffer from the pool of the stream that adds": (
        "shared_buffer",
        "That is in front of your first line",
        ("    with gpu.use_stream(gather):\n        buffer = gpu", "    buffer = gpu"),
        WAITS_BEHIND,
    ),
    "a weight for each layer, from the pool of the stream that adds": (
        "handed_over",
        "That is in front of your first line",
        ("    total = ", "    weights = [gpu.empty_like(layer) for layer in layers]\n    total = "),
        ("for layer in layers:\n        with", "for layer, weight in zip(layers, weights, strict=True):\n        with"),
        ("weight = layer.to(gpu.device, non_blocking=True)", "weight.copy_(layer, non_blocking=True)"),
        ("        del weight\n", ""),
    ),
    "one stream": ("shared_buffer", "in one stream now", ('gpu.new_stream("gather")', "gpu.current_stream()")),
    "two of three": ("shared_buffer", "it gives 3000.0", ("for shard in shards:", "for shard in shards[:2]:")),
    "the wait in front of the copy, so the last addition is not waited for": (
        "shared_buffer",
        "Each addition but the last is waited for",
        ("    for shard in shards:\n", "    for shard in shards:\n        gather.wait_stream(compute)\n"),
    ),
    "the wait before the addition": (
        "shared_buffer",
        "copy of shard 1 (gather) writes A",
        ("        gpu.sleep(late)\n", "        gather.wait_stream(compute)\n        gpu.sleep(late)\n"),
    ),
    "a wait in front of the copy, so the last block is for anybody": (
        "handed_over",
        "That is behind your last line",
        (
            "        with gpu.use_stream(copies):\n",
            "        copies.wait_stream(compute)\n        with gpu.use_stream(copies):\n",
        ),
    ),
    "a wait behind the addition": (
        "handed_over",
        "no race is left, but copy 1 now waits for addition 0",
        ("        del weight\n", "        copies.wait_stream(compute)\n        del weight\n"),
    ),
    "a copy of the batch, and that one is pageable": (
        "refilled",
        "copy 0 is from memory that is not pinned",
        ("        batch.fill_(i + 1.0)\n", "        batch = batch.clone()\n        batch.fill_(i + 1.0)\n"),
    ),
    "a batch of its own each, pageable": (
        "refilled",
        "copy 0 is from memory that is not pinned",
        (
            "        batch.fill_(i + 1.0)\n",
            "        batch = gpu.host(torch.full((1000,), i + 1.0), pinned=False)\n",
        ),
    ),
    "a batch that the GPU was never told of": (
        "refilled",
        "A PretendGPU knows the tensors that `gpu.host` has given, and what is made of them",
        ("        batch.fill_(i + 1.0)\n", "        batch = torch.full((1000,), i + 1.0)\n"),
    ),
    "the same pinned batch, asked for again": (
        "refilled",
        "fill (host) writes batch",
        ("        batch.fill_(i + 1.0)\n", '        batch = gpu.host(batch, "mine")\n        batch.fill_(i + 1.0)\n'),
    ),
    "a line of the report replaced, and nobody tells of the last reader": (
        "refilled",
        "its next owner (side) writes",
        ("x.record_stream(compute)", "gpu.synchronize()"),
    ),
    "blocks kept until the function returns": ("refilled", "its next owner (side) writes", *KEEPS_BLOCKS),
    "a row for each shard, and nobody tells of the readers": (
        "shared_buffer",
        "its next owner (gather) writes A",
        ("buffer = gpu.empty_like(shards[0])", "buffer = gpu.empty_like(torch.zeros(3, 1000))"),
        ("for shard in shards:", "for shard, buffer in zip(shards, buffer, strict=True):"),
    ),
    "a buffer for each shard, and only the first reader told": (
        "shared_buffer",
        "its next owner (gather) writes B",
        *A_BUFFER_EACH,
        ("    return", "    buffers[0].record_stream(compute)\n    return"),
    ),
    "a buffer for each shard, and a wait as if it were one": (
        "shared_buffer",
        "no race is left, but copy 1 now waits for addition 0",
        *A_BUFFER_EACH,
        WAITS_BEHIND,
    ),
    "a batch for each copy, and a host that waits": (
        "refilled",
        "the host stands still until copy of input (side) is done",
        A_BATCH_EACH,
        HEARS,
    ),
    "a wait at the end for what nobody fills": (
        "refilled",
        "the host stands still until all that was launched is done",
        HEARS,
        ("    return", "    gpu.synchronize()\n    return"),
    ),
    "the sum fetched": (
        "refilled",
        "the host stands still until item (compute) is done",
        HEARS,
        ("total.sum()", "total.sum().item()"),
    ),
    "nothing given": ("refilled", "it returned None", ("    return total.sum()", "    total.sum()")),
    "the host waits for the copy before, in front of this one": (
        "refilled",
        "it must have waited for this copy before it fills the batch",
        ("        with gpu.use_stream(side):\n", "        side.synchronize()\n        with gpu.use_stream(side):\n"),
    ),
    "waits in front, and at the end the host does": (
        "shared_buffer",
        "the host stands still until add (compute) is done",
        ("    for shard in shards:\n", "    for shard in shards:\n        gather.wait_stream(compute)\n"),
        ("    return", "    compute.synchronize()\n    return"),
    ),
    "pins by torch": (
        "refilled",
        "A PretendGPU knows the tensors that `gpu.host` has given",
        ("batch.fill_(i + 1.0)", "batch = torch.full((1000,), i + 1.0).pin_memory()"),
    ),
    "waits for the streams only": (
        "refilled",
        "fill (host) writes batch",
        ("        total += x\n", "        total += x\n        side.wait_stream(compute)\n"),
    ),
}


@pytest.mark.parametrize("name, says, edits", [(v[0], v[1], v[2:]) for v in WRONG_REPAIRS.values()], ids=WRONG_REPAIRS)
def test_an_exhibit_that_is_still_wrong_is_told_where(name, says, edits):
    verdict = CHECKS[name](edited(getattr(exhibits, name), *edits))
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there torch has streams of CUDA to give")
def test_who_asks_torch_to_wait_is_told_whom_to_ask():
    drop = "        del weight\n"
    waits = edited(exhibits.handed_over, (drop, "        torch.cuda.synchronize()\n" + drop))
    assert "Ask `gpu` for streams and memory, not torch." in CHECKS["handed_over"](waits).message


def test_a_host_that_stands_still_is_not_told_of_a_wait_that_would_be_refused():
    drop = "        del weight\n"
    waits = edited(exhibits.handed_over, (drop, "        compute.synchronize()\n" + drop))
    message = n13.check_handed(waits).message
    assert message.endswith("the host stands still until add (compute) is done, and launches nothing."), message


def test_a_buffer_for_each_shard_is_not_said_to_be_waited_for():
    message = n13.check_shared(edited(exhibits.shared_buffer, *A_BUFFER_EACH)).message
    assert message.endswith("whoever asks gets it."), message


def test_a_block_of_the_streams_own_pool_is_not_said_to_go_back_to_that_of_the_copies():
    taken = (
        "        with gpu.use_stream(copies):\n            weight = layer.to(gpu.device, non_blocking=True)\n",
        "        weight = gpu.empty_like(layer)\n"
        "        with gpu.use_stream(copies):\n"
        "            weight.copy_(layer, non_blocking=True)\n",
    )
    message = n13.check_handed(edited(exhibits.handed_over, taken)).message
    assert "copy of layer 1 (copies) writes B while add" in message
    assert "pool of the copy stream" not in message


INTO_ONE = {
    "handed_over": ("total += weight\n", "with gpu.use_stream(copies):\n            total += weight\n"),
    "shared_buffer": ("total += buffer\n", "with gpu.use_stream(gather):\n            total += buffer\n"),
    "refilled": ("with gpu.use_stream(side):\n", "with gpu.use_stream(compute):\n"),
}


@pytest.mark.parametrize("name", INTO_ONE)
def test_where_copies_and_additions_share_a_stream_and_something_races_it_is_the_race_that_is_told(name):
    wrong = edited(getattr(exhibits, name), INTO_ONE[name])
    message = CHECKS[name](wrong).message
    assert str(find_races(museum.issued_by(wrong, 0))[0]) in message
    assert "no race" not in message


@pytest.mark.parametrize("name", CHECKS)
def test_an_exhibit_as_it_was_reported_is_not_attempted_and_has_a_race(name):
    assert CHECKS[name](getattr(exhibits, name)).status == "open"
    assert find_races(museum.issued_by(getattr(exhibits, name), 0))


def test_torchs_rules_miss_what_is_freed_and_what_the_host_does():
    missed = {
        exhibit.__name__
        for exhibit in (*exhibits.EXHIBITS, *museum.MORE)
        if not torchs_races(museum.issued_by(exhibit, *([0] if exhibit in exhibits.EXHIBITS else [])))
    }
    assert missed == {"handed_over", "stashed_memory", "sent_tensor", "refilled", "read_too_early", "rare_branch"}


def test_ours_misses_the_branch_that_a_run_does_not_take():
    with_races = {exhibit.__name__ for exhibit in museum.MORE if find_races(museum.issued_by(exhibit))}
    assert {exhibit.__name__ for exhibit in museum.MORE} - with_races == {"rare_branch"}
    overflows = edited(museum.rare_branch, ("fill_(1.0)", "fill_(float('inf'))"))
    assert len(find_races(museum.issued_by(overflows))) == 1
