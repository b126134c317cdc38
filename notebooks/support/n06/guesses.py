"""Predictions of notebook 06: each truth is computed, and famous wrong guesses are named."""

from __future__ import annotations

from support.kit.exact import exact_number
from support.kit.guess import Guess, Tried, letter
from support.n06.costs import border
from support.n06.plans import plan

guess_lone = exact_number(
    "the weight of a row of rank 1, by one of rank 0",
    lambda: 24 / 8,
    said={
        1: "all rows alike: so it should be",
        2: "as if only the number of ranks counted",
        0.333333: "the other way round",
    },
    tried=Tried(right=3, wrong=1),
)
guess_adam = exact_number(
    "how many times as long Adam's step becomes",
    lambda: 1,
    said={8: "so long becomes SGD's step", 64: "the square of it", 2.82843: "the root of it"},
    tried=Tried(right=1, wrong=8),
)
guess_ring = exact_number(
    "what each rank sends",
    lambda: 2 * 7 / 8,
    unit="GB",
    said={
        1: "one gradient, once",
        0.875: "the first half only: sums must come back, too",
        2: "two whole gradients: a chunk need not go all the way round",
        7: "as many gradients as there are other ranks",
        14: "what the centre would have to move",
    },
    tried=Tried(right=1.75, wrong=7),
)
guess_border = Guess(
    "the size from which on the ring is faster",
    lambda: border(64, 10e-6, 25e9) / 1e6,
    unit="MB",
    tolerance=0.25,
    tried=Tried(right=2.8, wrong=0),
)
guess_bucket_size = exact_number(
    "the layers in a bucket with which the gradients are there first",
    lambda: min(
        (1, 2, 4, 8), key=lambda size: plan(8, (size,), network=0.8, latency=0.5).only(kind="step").start
    ),
    said={
        1: "the first leaves at once, but eight calls cost four ticks, and the network falls behind",
        4: "only two calls, but the network idles for half of backward",
        8: "a single call, and nothing is hidden",
    },
    tried=Tried(right=2, wrong=1),
)
guess_two_buckets = exact_number(
    "the length of the step, in backward passes",
    lambda: plan(8, (4, 4), network=0.8, latency=0.0).only(kind="step").start / 8,
    said={
        1.8: "nothing hidden: one after the other",
        1: "all hidden: then nothing would be left to send at the end of backward",
        1.2: "half of the second bucket hidden, too: it leaves only when backward is over",
        0.8: "the network alone",
    },
    tried=Tried(right=1.4, wrong=1.8),
)
guess_unused = Guess(
    "what DDP does about a layer that is left out",
    lambda: "B",
    read=letter,
    said={
        "A": "backward ends, and nobody looks for a bucket that has not left",
        "C": "a bucket never leaves without all its gradients",
    },
    tried=Tried(right="b", wrong="A"),
)
guess_hang = Guess(
    "what rank 0 does",
    lambda: "B",
    read=letter,
    said={
        "A": "it can't tell a rank that stays away from one that is slow",
        "C": "a sum without rank 1 would be another one",
    },
    tried=Tried(right="b", wrong="A"),
)
