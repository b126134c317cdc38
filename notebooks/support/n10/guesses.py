"""Predictions of notebook 10: each truth is computed or counted, and famous wrong guesses are named."""

from __future__ import annotations

from support.kit.exact import exact_number
from support.kit.guess import Tried
from support.n10.blocks import course_of
from support.n10.staircase import peak, predict

guess_one_segment = exact_number(  # of 16 layers
    "the peak with one segment",
    lambda: peak(predict(16, 1)),
    "tensors",
    {
        1: "what is kept after forward",
        9: "forward forgets all, but the recompute brings all back",
        16: "x0 to x16 are 17",
    },
    digits=3,
    tried=Tried(right=17, wrong=9),
)
guess_least = exact_number(  # over all numbers of segments
    "the least peak of 64 layers in equal segments",
    lambda: min(peak(predict(64, s)) for s in range(1, 65)),
    "tensors",
    {
        8: "that is the best number of segments",
        9: "that is a segment with its input, and the other inputs are held as well",
        12: "right if their lengths may differ, as you will see; here they are equal",
        17: "then the input of the segment at work is counted twice",
        33: "about half of 65: two segments hold 34, and that is not the best number",
    },
    digits=3,
    tried=Tried(right=16, wrong=64),
)
guess_flops = exact_number(
    "the FLOPs with a checkpoint",
    lambda: round((1 + 1 + 2) / (1 + 2), 2),
    "× those without",
    {
        2: "backward is not run twice",
        1.25: "a quarter is the share of the new total",
        1.5: "that would be a backward as cheap as forward",
    },
    digits=3,
    tried=Tried(right=4 / 3, wrong=1.25),
)
guess_one_block = exact_number(
    "the peak of one block with its attention in a checkpoint",
    lambda: course_of("recompute attention").peak,
    "u",
    {
        16: "that is held after forward",
        21: "the 8 u of the matrix are missing after forward, and back at the peak",
        29: "as many as without: the matrix is back, and it has brought something along",
        34: "that is what MyCheckpoint takes: the output and its gradient wait as well",
    },
    whole=True,
    tried=Tried(right=32, wrong=21),
)
guess_fewer = exact_number(  # in one segment
    "what 'always' saves over 'except_last'",
    lambda: peak(predict(16, 1, 4, "except_last")) - peak(predict(16, 1, 4, "always")),
    "tensors",
    {
        16: "after forward only: the recompute brings the last one's inside back",
    },
    digits=3,
    tried=Tried(right=0, wrong=3),
)
guess_momentum = exact_number(
    "the momentum that acts",
    lambda: 1 - 0.9**2,
    "",
    {
        0.2: "the second update also shrinks what the first has added",
        0.1: "the second update goes on from where the first has stopped",
    },
    digits=3,
    tried=Tried(right=0.19, wrong=0.2),
)
