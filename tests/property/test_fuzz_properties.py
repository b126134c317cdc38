"""Whatever the model, the runner and what happens meanwhile: equal to the plain model, or refused with a reason.

`python -m tests.fuzz --hours 1` tries more; see tests/fuzz.
"""

import pytest

from tests.fuzz.cases import Case, partitions_of
from tests.fuzz.drawing import draw_case
from tests.fuzz.running import told, try_seeds
from tests.fuzz.shrinking import shrink
from tests.fuzz.taken_back import TAKEN_BACK, taken_back
from tests.fuzz.trial import EQUAL, FAULT, REFUSED, try_case
from tests.sizes import size

CASES = size(suite=range(100), prove=range(2_000))
MAY_SHOW = {
    "S2": lambda case: case.has("checkpoint") and bool({"drop", "noise", "attention"} & case.kinds),
    "S3": lambda case: case.has("compiled") and case.recomputes,
    "S4": lambda case: case.runner != "GPipe" and case.has("hook"),
    "S5": lambda case: case.happens is not None and case.recomputes,
    "S6": lambda case: case.writes,
    "S9": lambda case: case.has("fills"),
}
"""By the first two letters of a fault: the cases that may show it."""
QUICK = size(suite={"S1", "S9"}, prove=set(TAKEN_BACK))


def test_no_case_is_a_fault_and_few_are_refused():
    """Compiled layers, which take a second each, only in the large size."""
    tally = try_seeds(CASES, compiled=size(suite=False, prove=True))
    assert not tally.faults, "\n\n".join(map(told, tally.faults.values()))
    assert tally.share(EQUAL) > 0.7, tally
    assert tally.share(REFUSED) < 0.15, tally


@pytest.mark.parametrize("name", [name for name in TAKEN_BACK if name in QUICK])
def test_a_repair_that_is_taken_back_is_found(name):
    """Within 5,000 seeds, of which those are tried that may show it: a minute, with compiled layers a few."""
    fits = MAY_SHOW.get(name[:2], lambda _: True)
    seeds = [
        seed for seed in range(5_000) if fits(draw_case(seed)) and draw_case(seed).has("compiled") == (name == "S3")
    ]
    with taken_back(name):
        found = next((seed for seed in seeds if try_case(draw_case(seed)).kind == FAULT), None)
    assert found is not None
    print(f"{name}: found at seed {found}, case {seeds.index(found) + 1}")
    assert try_case(draw_case(found)).kind != FAULT, "it is the repair that makes the difference"


@pytest.mark.costly
def test_a_compiled_layer_before_a_checkpoint_that_hands_on_none_is_beside_one_that_is_compiled_as_well():
    """Both make zeros of None; the plain model once didn't, as it was never compiled."""
    layers = (("compiled", "aot_eager", ("linear", 46)), ("checkpoint", True, ("detach",), ("linear", 695)))
    assert try_case(Case(layers, rows=1, chunks=1)).kind == EQUAL


@pytest.mark.costly
def test_a_compiled_layer_under_autocast_is_beside_one_that_is_compiled_as_well():
    """It rounds in other places; behind a step that was refused, uncompiled, gradients were 1.2 of 8.9 apart."""
    layers = (
        ("attention", 78, 0.5),
        ("compiled", "aot_eager", ("linear", 17), ("attention", 29, 0.5)),
        ("stash", "a", "x"),
        ("pop", "a", "write"),
        ("linear", 88),
    )
    case = Case(layers, rows=7, autocast=True, change="fused SGD", place=6, stages_per_rank=2, seed=90030911)
    assert try_case(case).kind == REFUSED


def test_a_seed_is_always_the_same_case_and_a_case_is_data():
    for seed in range(50):
        case = draw_case(seed)
        assert case == draw_case(seed)
        assert eval(str(case), {"Case": Case}) == case


def test_every_list_of_layers_is_a_model():
    for seed in range(500):
        case = draw_case(seed)
        for begin in range(len(case.layers)):
            assert partitions_of(Case(case.layers[begin:]))


def test_a_case_that_takes_long_is_shrunk_as_far_as_the_time_goes():
    case = draw_case(3)
    assert shrink(case, lambda _: True, seconds=0) == case
    assert shrink(case, lambda _: True) != case


def test_a_failing_case_is_shrunk_to_what_makes_it_fail():
    case = draw_case(next(seed for seed in range(500) if {"drop", "cut"} <= draw_case(seed).kinds))
    small = shrink(case, lambda candidate: candidate.has("drop") and candidate.has("cut"))
    assert sorted(layer[0] for layer in small.layers) == ["cut", "drop"]
    assert Case(small.layers, rows=1, chunks=1) == small
