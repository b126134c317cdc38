"""The ledger: each claim's verdict follows from what was measured, so an assumption that is moved turns it."""

import math
import re
from collections import Counter

import pytest

from lib.schedules import bubble_share, dualpipe_v, gpipe, zbv
from support.ledger import Observation, claim
from support.ledger.book import BOOK, HOLDS, NOT_HERE
from support.ledger.data import seeded_by_worker
from support.ledger.entries import THEMES, LedgerEntry, flipped, ledger_claims, stored_ledger, try_all
from support.ledger.text import places
from support.ledger.units import end_of_units, in_pairs, singles

CLAIMS = ledger_claims()
STORED = stored_ledger()

#: claim: what is moved, and the verdict that follows
TURNS = [
    ("bubble_at_four_per_stage", {"per_stage": 20, "stages": (4, 8)}, HOLDS),
    ("bubble_at_four_per_stage", {"per_stage": 16, "stages": (4, 8)}, "holds if a recompute starts early"),
    ("dualpipe_v_bubble", {"ranks": (1,)}, HOLDS),  # no bubble on one rank, however a pair sends
    ("zb1p_is_no_typo", {"weight": 0.0}, HOLDS),  # without W both readings of B are one
    ("pp_plus_one_held", {"make": zbv}, NOT_HERE),
    ("one_f_one_b_holds_less", {"late": 0.0}, HOLDS),
    ("one_f_one_b_holds_less", {"message": 0.2}, NOT_HERE),
    ("interleaving_divides_by_v", {"late": 0.0}, HOLDS),
    ("interleaving_divides_by_v", {"late": 3.0}, "holds if messages are free"),
    ("zb_v_has_no_bubble", {"weight": 0.2}, NOT_HERE),
    ("zb_v_has_no_bubble", {"n": 1}, HOLDS),
    ("recompute_costs_one_forward", {"share": 0.5}, NOT_HERE),
    ("memory_grows_as_root", {"sizes": (4, 9)}, HOLDS),  # so few layers hardly need many segments
    ("backward_is_twice_forward", {"twice": (1.0, 1.5)}, "holds if most weights are frozen"),
    ("clipping_by_stage", {"stages": 1}, NOT_HERE),
    ("clipping_by_stage", {"wide": 0.02}, HOLDS),
    ("accumulating_equals_the_full_batch", {"unequal": (6, 6, 6, 6)}, HOLDS),
    ("adam_ignores_the_scale", {"gradients": (1.0, 1.0)}, HOLDS),
    # decay that is added to a gradient does not scale with it, and outweighs a small one
    ("adam_ignores_the_scale", {"decay": 1.0}, "holds if gradients are as small as eps"),
    ("packing_doubles", {"batch": 1}, NOT_HERE),
    ("half_is_padding", {"batch": 1}, "holds if all are filled up to the longest of all"),
    ("same_length_small_padding", {"pool": 1}, NOT_HERE),
    ("a_resampled_epoch_meets_632", {"shards": (500, 400)}, HOLDS),
    ("the_same_order_without_set_epoch", {"called": False}, "holds if set_epoch is not called"),
    ("numpy_repeats_in_workers", {"init": seeded_by_worker}, NOT_HERE),
    ("a_ring_costs_the_same", {"latency_is_worth": 0}, HOLDS),
]
TURNS_OF_RANKS = [
    ("fsdp_gathers_once_a_step", {"once": 8}, "holds if it is left on"),
    ("bucket_views_save_one_gradient", {"many": 4}, HOLDS),
    ("step_scales_what_is_there", {"calls": 1}, NOT_HERE),
    ("a_summed_loss_is_divided_by_ranks", {"smaller": 1.0}, "holds if it is a mean"),
]


@pytest.fixture
def two_ranks():
    from support.ledger.crew import end_two_ranks

    yield
    end_two_ranks()


def test_every_claim_says_where_it_stands_is_stored_and_has_an_assumption_that_turns_it():
    assert set(STORED) == set(CLAIMS)
    assert len(CLAIMS) >= 15
    assert {name for name, *_ in [*TURNS, *TURNS_OF_RANKS]} == set(CLAIMS)
    assert {entry.theme for entry in CLAIMS.values()} == set(THEMES)
    assert max(Counter(entry.title for entry in CLAIMS.values()).values()) == 1
    for entry in CLAIMS.values():
        assert entry.says.endswith("."), entry.name
        assert STORED[entry.name].saw.endswith("."), entry.name


@pytest.mark.parametrize(
    "name, told",
    [
        ("memory_grows_as_root", "Up to 25 % off counts as the root."),
        ("bucket_views_save_one_gradient", "Up to 25 % off counts as one."),
        ("a_ring_costs_the_same", "We call up to twice as much the same."),
        ("dualpipe_v_bubble", "Take F = I = 1, W = 1."),
        ("recompute_costs_one_forward", "if 100 % of the layers are computed again"),
    ],
)
def test_a_tolerance_and_a_tick_that_a_verdict_hangs_on_are_told(name: str, told: str):
    assert told in STORED[name].saw


def test_what_is_tested_as_at_least_is_not_told_as_at_most():
    for name in ("packing_doubles", "half_is_padding"):
        assert not re.search("at best|Up to", CLAIMS[name].says), name


@pytest.mark.parametrize("name", dict.fromkeys(name for name, *_ in TURNS))
def test_a_claim_says_here_what_is_stored(name: str):
    seen = CLAIMS[name]()
    assert seen.verdict == STORED[name].verdict
    assert set(seen.numbers) == set(STORED[name].numbers)


@pytest.mark.parametrize("name, moved, verdict", TURNS)
def test_a_moved_assumption_turns_the_verdict(name, moved, verdict):
    assert verdict != STORED[name].verdict
    assert CLAIMS[name](**moved).verdict == verdict


@pytest.mark.costly
@pytest.mark.ranks
def test_claims_on_real_ranks_say_what_is_stored_and_turn(two_ranks):
    for name, moved, verdict in TURNS_OF_RANKS:
        assert CLAIMS[name]().verdict == STORED[name].verdict != verdict
        assert CLAIMS[name](**moved).verdict == verdict, name


def test_a_verdict_follows_from_the_settings_in_which_a_claim_holds():
    assert Observation("", {"a": True, "b": True}).verdict == HOLDS
    assert Observation("", {"a": True, "b": False, "c": True}).verdict == "holds if a, or if c"
    assert Observation("", {"a": False, "b": False}).verdict == NOT_HERE
    with pytest.raises(ValueError, match="holds is empty"):
        Observation("", {})


def test_a_reader_adds_a_claim_in_ten_lines(monkeypatch):
    monkeypatch.delitem(BOOK, "twice_halves", raising=False)

    @claim("Twice the micro-batches halve the bubble", "me", "https://example.org", "2 m halve its share of time.")
    def twice_halves(m: int = 8, n: int = 4) -> Observation:
        one = bubble_share(m, n)
        two = bubble_share(2 * m, n)
        return Observation(f"it falls from {one:.0%} to {two:.0%}", {f"m = {m}": math.isclose(two, one / 2)})

    assert twice_halves().verdict == NOT_HERE
    assert twice_halves(n=1).verdict == HOLDS
    assert twice_halves.assumes() == {"m": 8, "n": 4}
    shown = str(twice_halves).splitlines()
    assert shown[0] == "Twice the micro-batches halve the bubble"
    assert [line.split()[0] for line in shown[1:]] == ["source", "says", "here", "so"]
    assert "twice_halves" not in ledger_claims()  # it is the reader's, and make ledger does not run it
    again = claim("Another", "a slide", "https://example.org", "Again.")(twice_halves.run)
    assert BOOK["twice_halves"] is again  # a cell that is run again
    monkeypatch.delitem(BOOK, "twice_halves")


def test_what_cannot_be_an_entry_is_refused():
    def needs_a_value(m: int) -> Observation:
        return Observation(str(m), {"always": True})

    with pytest.raises(ValueError, match="give m of needs_a_value a default"):
        claim("t", "s", "https://example.org", "w")(needs_a_value)
    with pytest.raises(ValueError, match="a link"):
        claim("t", "s", "example.org", "w")

    def pp_plus_one_held() -> Observation:
        return Observation("", {"always": True})

    with pytest.raises(ValueError, match=r"'pp_plus_one_held' in support\.ledger\.pipelines"):
        claim("t", "s", "https://example.org", "w")(pp_plus_one_held)
    assert not {"needs_a_value"} & set(BOOK)


def test_what_flipped_moved_is_new_or_gone_is_told():
    name = "memory_grows_as_root"  # its numbers may differ by 2 %
    before = {name: LedgerEntry("holds", "", {"root": 1.0}, 1.0)}
    same = {name: LedgerEntry("holds", "", {"root": 1.019}, 9.0)}
    assert flipped(CLAIMS, before, same) == []
    moved = {name: LedgerEntry("holds", "", {"root": 1.03}, 1.0)}
    assert flipped(CLAIMS, before, moved) == [f"{name} still holds, but “root” is 1.03, and was 1"]
    other = {name: LedgerEntry(NOT_HERE, "", {"root": 1.0}, 1.0)}
    assert flipped(CLAIMS, before, other) == [f"{name} flipped: it was “holds”, and is “does not hold here”"]
    assert flipped(CLAIMS, {}, same) == [f"{name} is new: holds"]
    assert flipped(CLAIMS, {**before, "gone": before[name]}, same) == ["gone is stored, and no claim has that name"]
    fewer = {name: LedgerEntry("holds", "", {}, 1.0)}
    assert "it has the numbers none, and had root" in flipped(CLAIMS, before, fewer)[0]


def test_all_are_run_in_turn_and_told():
    told = []
    entries = try_all([CLAIMS["pp_plus_one_held"]], lambda claim, entry: told.append((claim.name, entry.verdict)))
    assert told == [("pp_plus_one_held", HOLDS)] == [(name, entry.verdict) for name, entry in entries.items()]


def test_units_end_as_the_simulator_says_unless_a_pair_holds_a_result_back():
    ticks = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
    made = gpipe(4, 2)
    rows = [made.actions(r) for r in range(2)]
    assert end_of_units(made, [singles(row) for row in rows], ticks) == (4 + 1) * 3
    pairs = in_pairs(dualpipe_v(8, 4).actions(3))
    assert {len(unit) for unit in pairs} == {1, 2}
    assert all(unit[0].op == "F" and unit[-1].op == "B" for unit in pairs if len(unit) == 2)
    backwards = [list(reversed(row)) for row in rows]
    with pytest.raises(ValueError, match="for ever"):
        end_of_units(made, [singles(row) for row in backwards], ticks)


def test_places_are_counted_batch_by_batch():
    assert places([3, 3, 3], batch=3, pool=1) == 9
    assert places([1, 5, 1, 5], batch=2, pool=2) == 2 + 10
    assert places([4], batch=8, pool=1) == 4
