"""Exercise 4 of notebook 13: outputs in turn, a wait for all streams, and waits in a stream that does nothing."""

import json
import re
from pathlib import Path

import pytest
import torch

from support.kit.mistakes import edited
from support.n13 import checks as n13


def in_lists(gpu, stage, chunks, results):
    """Keep outputs by number; each loses its name before the next takes its place."""
    into = gpu.new_stream("in")
    compute = gpu.current_stream()
    out = gpu.new_stream("out")
    with gpu.use_stream(into):
        buffers = [gpu.empty_like(chunks[0]) for _ in range(2)]
    outputs = [None] * 2
    computed = []
    fetched = []
    for i, x in enumerate(chunks):
        k = i % len(outputs)
        if i >= 2:
            into.wait_event(computed[i - 2])
        with gpu.use_stream(into):
            buffers[i % 2].copy_(x, non_blocking=True)
        compute.wait_event(into.record_event())
        if i >= len(outputs):
            compute.wait_event(fetched[i - len(outputs)])
        outputs[k] = None
        outputs[k] = stage(buffers[i % 2])
        computed.append(compute.record_event())
        out.wait_event(computed[i])
        with gpu.use_stream(out):
            results[i].copy_(outputs[k], non_blocking=True)
        fetched.append(out.record_event())
    out.synchronize()


def test_the_host_may_wait_for_all_streams_in_one_call():
    for right in (in_lists, edited(in_lists, ("    out.synchronize()", "    gpu.synchronize()"))):
        verdict = n13.check_streamed(right)
        assert verdict.status == "right", verdict.message


def in_one_stream(gpu, stage, chunks, results):
    """Do all in the stream that computes; each input's block is the next one's."""
    for chunk, result in zip(chunks, results, strict=True):
        result.copy_(stage(chunk.to(gpu.device, non_blocking=True)), non_blocking=True)
    gpu.synchronize()


def test_in_one_stream_it_is_the_stream_that_makes_them_wait_whatever_the_blocks():
    message = n13.check_streamed(in_one_stream).message
    assert "C1 waits for F0: both are in stream compute, which runs in order" in message
    assert "Take two buffers" not in message


@pytest.mark.parametrize(
    "says, edits",
    [
        ("chunks are copied into 2 blocks of device memory, 3 more are in use", [("[None] * 2", "[None] * 3")]),
        ("An output that still has a name when the next is made", [("        outputs[k] = None\n", "")]),
        (
            "Stream compute 2 is told to wait, and nothing is ever launched there: stage runs in compute",
            [("gpu.current_stream()", 'gpu.new_stream("compute")')],
        ),
        (
            "with 5 chunks: 7 blocks of device memory are taken: two for inputs and two for outputs are enough",
            [("range(2)", "chunks")],
        ),
        (
            "the host waits 2 times",
            [("    out.synchronize()", "    out.synchronize()\n    gpu.synchronize()")],
        ),
    ],
)
def test_a_loop_with_a_third_output_or_a_stream_that_does_nothing_is_told_so(says, edits):
    verdict = n13.check_streamed(edited(in_lists, *edits))
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there torch has streams and memory of CUDA to give")
@pytest.mark.parametrize(
    "edit",
    [
        ('gpu.new_stream("in")', "torch.cuda.Stream()"),
        ("gpu.current_stream()", "torch.cuda.current_stream()"),
        ("gpu.empty_like(chunks[0])", "torch.empty_like(chunks[0], device=gpu.device)"),
    ],
)
def test_who_asks_torch_for_what_the_pretend_gpu_gives_is_told_whom_to_ask(edit):
    assert "Ask `gpu` for streams and memory, not torch." in n13.check_streamed(edited(in_lists, edit)).message


def kept_from_call_to_call(what):
    """Return a loop that makes something in its first call only, whatever GPU the next one is for."""
    kept = {}
    loop = edited(in_lists, (what, f"gpu.kept.setdefault({what!r}, {what})"))

    def with_what_is_kept(gpu, stage, chunks, results):
        gpu.kept = kept
        loop(gpu, stage, chunks, results)

    return with_what_is_kept


def backwards(gpu, stage, chunks, results):
    """Begin with the last chunk."""
    in_lists(gpu, stage, chunks[::-1], results[::-1])


COPIES = "        with gpu.use_stream(into):\n            buffers[i % 2].copy_"
STAGES = "        outputs[k] = stage(buffers[i % 2])\n"
SENDS = "            results[i].copy_(outputs[k], non_blocking=True)\n"
WAITS = "            into.wait_event(computed[i - 2])\n"


@pytest.mark.parametrize(
    "says, wrong",
    [
        (
            "stage was called 10 times for 5 chunks",
            edited(in_lists, (STAGES, "        stage(buffers[i % 2])\n" + STAGES)),
        ),
        (
            "stage was called 6 times for 5 chunks",
            edited(in_lists, ("    computed = []\n", "    stage(buffers[0])\n    computed = []\n")),
        ),
        ("C2 waits for F1, and need not", edited(in_lists, (WAITS, WAITS.replace("i - 2", "i - 1")))),
        ("C2 waits for F1, and need not", edited(in_lists, (WAITS, "            into.wait_stream(compute)\n"))),
        (
            "chunk 0 is copied in 3 times",
            edited(in_lists, ("gpu.empty_like(chunks[0])", "chunks[0].to(gpu.device, non_blocking=True)")),
        ),
        ("result 0 is copied out 2 times", edited(in_lists, (SENDS, SENDS * 2))),
        ("C4 is launched where C0 has its turn: take the chunks in their order", backwards),
        ("with 19 chunks: C8 (in) writes", edited(in_lists, (WAITS, "            if i < 8:\n    " + WAITS))),
        (
            "C0 waits for what compute did before you were called, and need not",
            edited(in_lists, ("    computed = []\n", "    into.wait_stream(compute)\n    computed = []\n")),
        ),
        (
            "C0 waits for what compute did before you were called: take the buffers in copy_in's own pool",
            edited(
                in_lists,
                (
                    "    with gpu.use_stream(into):\n        buffers",
                    "    into.wait_stream(compute)\n    if True:\n        buffers",
                ),
            ),
        ),
        (
            "C0 waits for what compute did before you were called: both are in stream compute, which runs in order",
            edited(in_lists, (COPIES, COPIES.replace("(into)", "(into if i else compute)"))),
        ),
        (
            "C1 waits for what compute did before you were called, and need not",
            edited(
                in_lists,
                (f"        if i >= 2:\n{WAITS}", ""),
                ("into.record_event())\n", "into.record_event())\n        into.wait_stream(compute)\n"),
            ),
        ),
        (
            "its copies and kernels are in 11 streams: three are enough",
            edited(
                in_lists,
                ("        k = i %", "        into, out = gpu.new_stream(), gpu.new_stream()\n        k = i %"),
                ("    out.synchronize()", "    gpu.synchronize()"),
            ),
        ),
        ("in is a stream of another PretendGPU", kept_from_call_to_call('gpu.new_stream("in")')),
        ("memory of another PretendGPU", kept_from_call_to_call("[gpu.empty_like(chunks[0]) for _ in range(2)]")),
        (
            "your code raised RuntimeError",
            edited(in_lists, ("gpu.empty_like(chunks[0])", "gpu.empty_like(chunks[0].new_zeros(4))")),
        ),
    ],
)
def test_a_loop_is_told_of_the_wait_that_it_wrote_and_of_what_it_did(says, wrong):
    verdict = n13.check_streamed(wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def test_who_writes_the_result_into_its_input_has_two_buffers_and_is_not_told_to_take_them():
    in_place = (STAGES, "        outputs[k] = buffers[i % 2].copy_(stage(buffers[i % 2]))\n")
    message = n13.check_streamed(edited(in_lists, in_place, (WAITS, WAITS.replace("computed", "fetched")))).message
    assert "C2 waits for D0, because it writes the block that D0 reads. Let the copy out read what" in message
    assert "buffers" not in message


def drawn_lanes():
    """Return where C0, F0, D0, … begin and end in the drawing above exercise 4, in columns."""
    notebook = Path(__file__).parents[3] / "notebooks" / "13_cuda_streams.ipynb"
    cells = ["".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"]]
    _, drawing, _ = next(cell for cell in cells if "copy in    [C0]" in cell).split("```")
    boxes = [box for line in drawing.splitlines() for box in re.finditer(r"\[ ?([CFD][0-3]) ?\]", line)]
    return {box[1]: box.span() for box in boxes}


def test_the_drawing_of_the_loop_has_no_race_and_no_wait_too_many():
    at = drawn_lanes()
    for i in range(4):
        assert at[f"F{i}"][0] == max(at[f"C{i}"][1], at[f"F{i - 1}"][1] if i else 0)
        assert at[f"D{i}"][0] == at[f"F{i}"][1]
    assert at["C1"][0] == at["C0"][1]
    assert [at[f"C{i}"][0] for i in (2, 3)] == [at[f"F{i - 2}"][1] for i in (2, 3)]
