"""What is alive while blocks are trained: the peak of many follows from that of one, and where the claim turns."""

import inspect
import itertools
import json
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support.built import MyCheckpoint
from support.n10 import blocks
from support.n10.blocks import WAYS, TransformerBlock, course_of
from tools.project import ROOT

NOTEBOOK = json.loads((ROOT / "notebooks" / "10_checkpoint_recompute.ipynb").read_text(encoding="utf-8"))


@pytest.mark.parametrize("positions", [64, 128, 256])
@pytest.mark.parametrize("way", WAYS)
def test_each_further_block_adds_what_one_holds_after_forward(way, positions):
    one = course_of(way, 1, positions)
    four = course_of(way, 4, positions)
    assert four.held == pytest.approx(4 * one.held, abs=0.01)
    assert four.peak == pytest.approx(3 * one.held + one.peak, abs=0.01)


@pytest.mark.costly
def test_for_one_block_a_checkpoint_of_attention_raises_the_peak_and_for_two_or_few_positions_it_lowers_it():
    def moved(count, positions):
        return [round(course_of(way, count, positions).peak) for way in WAYS]

    assert moved(1, 256) == [29, 32, 34, 29, 20]
    assert moved(2, 256) == [53, 48, 50, 30, 36]
    assert moved(8, 256) == [197, 144, 146, 36, 132]
    assert moved(1, 64) == [23, 21, 21, 23, 21]


def test_at_256_positions_the_top_is_the_backward_of_softmax_where_its_matrix_is_stored():
    stored = [way for way in WAYS if way != "fused attention"]
    assert {course_of(way, count).top for way in stored for count in (1, 8)} == {"_softmax_backward_data"}


def test_fused_attention_holds_as_little_as_a_checkpoint_of_attention_and_has_no_hump():
    for positions in (256, 512):
        selective, fused = (course_of(way, 1, positions) for way in ("recompute attention", "fused attention"))
        assert fused.held == pytest.approx(selective.held, abs=0.2)
        assert round(fused.peak - fused.held) <= 4
        assert selective.peak - selective.held > 15


def test_what_runs_again_is_told_apart_from_forward_and_backward():
    plain, attention, _, block, _ = (course_of(way) for way in WAYS)
    assert set(plain.kinds) == {"forward", "backward"}
    assert plain.kinds.count("forward") == block.kinds.count("forward") + 1, "dropping what it makes is one more there"
    assert 0 < attention.kinds.count("recompute") < block.kinds.count("recompute")
    for course in (plain, attention, block):
        runs = [kind for kind, _ in itertools.groupby(course.kinds)]
        assert runs[0] == "forward"
        assert runs[-1] == "backward"
        assert course.alive[-1] < 3


def test_a_block_is_torchs_attention_and_two_layers_whoever_calls_it():
    torch.manual_seed(0)
    block = TransformerBlock(32, 4)
    x = torch.randn(2, 10, 32, requires_grad=True)
    y = block(x)
    qkv = block.qkv(block.norm1(x)).chunk(3, -1)
    q, k, v = (part.view(2, 10, 4, 8).transpose(1, 2) for part in qkv)
    mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 10, 32)
    middle = x + block.out(mixed)
    assert torch.allclose(y, middle + block.down(nn.GELU()(block.up(block.norm2(middle)))), atol=1e-5)
    again = block(x, MyCheckpoint.apply)
    assert torch.equal(again, y)
    mine, theirs = (torch.autograd.grad(out.sum(), x)[0] for out in (block(x), block(x, MyCheckpoint.apply)))
    assert torch.allclose(mine, theirs)


def test_the_notebooks_block_is_the_rooms_word_for_word():
    text = "\n".join("".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code")
    for thing in (blocks.plain, TransformerBlock):
        assert re.sub(r"  # type: ignore.*", "", inspect.getsource(thing)).strip() in text


def test_the_history_has_what_is_alive_behind_each_operation():
    with blocks.LiveHistory() as live:
        kept = torch.ones(10) * 2  # the ones die when they have been doubled
    assert live.history == [kept.nbytes, 2 * kept.nbytes]
    assert live.now == kept.nbytes
