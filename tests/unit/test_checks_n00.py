"""The checks of notebook 00 pass the reference, leave the stub alone, and reject famous wrong answers by name."""

import pytest

from lib.checks import n00


def stub(spans): ...


@pytest.mark.parametrize(
    "check, reference", [(n00.check_makespan, n00.true_makespan), (n00.check_idle_share, n00.true_idle_share)]
)
def test_the_reference_passes_and_the_stub_is_neutral(check, reference):
    assert check(reference).status == "right"
    assert check(stub).status == "open"


@pytest.mark.parametrize(
    "wrong, says",
    [
        (n00.sum_of_durations, "for times = [(1, 2), (4, 6)], expected 5, got 3. You added the durations up"),
        (n00.last_end, "expected 5, got 6. You took the last end"),
        (n00.last_in_list, "You took the first and last span of the list"),
        (lambda times: 0, "expected 2, got 0."),
    ],
)
def test_wrong_makespans_are_named(wrong, says):
    assert n00.check_makespan(wrong).status == "wrong"
    assert says in n00.check_makespan(wrong).message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (n00.idle_not_shared, "You divided by the makespan alone"),
        (n00.busy_share, "That is the busy share"),
        (lambda spans: 0.0, "expected 0.5, got 0"),
    ],
)
def test_wrong_idle_shares_are_named(wrong, says):
    assert n00.check_idle_share(wrong).status == "wrong"
    assert says in n00.check_idle_share(wrong).message


def test_a_guess_of_the_speed_up_is_only_commented_on():
    assert n00.guess_speedup(None, 2).status == "note"
    assert "that is it" in n00.guess_speedup(2, 2).message
