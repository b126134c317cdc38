"""What is particular about the checks of notebook 14; what all exercises have in common is in test_exercises."""

import pytest

from lib.schedules import Schedule, live_activations, one_f_one_b
from support.n14 import checks as n14

BY_HAND = """
rank 0  0F0 0F1 0F2 .   .   0B0 0F3 0B1 0B2 0B3
rank 1  .   1F0 1F1 .   1B0 1F2 1B1 1F3 1B2 1B3
rank 2  .   .   2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3
"""
ONE_SHORT = """
rank 0  0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3
rank 1  1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3
rank 2  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3
"""
DEADLOCK = BY_HAND.replace("0F1 0F2 .   .   0B0 0F3", "0B0 0F1 0F2 0F3")
LACKS = BY_HAND.replace("0B3", "").replace("1B3", "").replace("2B3", "")


def test_1f1b_passes_with_and_without_its_idle_slots_and_an_unfinished_table_is_open():
    assert n14.check_table(BY_HAND) and n14.check_table(BY_HAND.replace(".", ""))
    assert live_activations(Schedule.from_text("by hand", BY_HAND)) == [3, 2, 1]
    assert n14.check_table("\nrank 0  0F0 0F1 ...\nrank 1  ...\nrank 2  ...\n").status == "open"
    assert n14.check_table(...).status == "open"


@pytest.mark.parametrize(
    "table, says",
    [
        (n14.gpipe(4, 3).to_text().replace(".", ""), "rank 0 holds 4 at once; 3 are enough there. That is GPipe"),
        (ONE_SHORT, "Which rank could go further ahead?"),
        (DEADLOCK, "0B0 needs 1B0"),
        (LACKS, "lacks 0B3, 1B3, 2B3"),
        (BY_HAND.replace("2B3", "2B4"), "micro-batch 4"),
        (BY_HAND.replace("2B3", "2B"), "'2B' is no action"),
        (BY_HAND.replace("2B3", "2I3 2W3"), "half of a backward"),
        ("0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", "there are 1 rows"),
    ],
)
def test_wrong_tables_are_told_what_is_wrong(table, says):
    verdict = n14.check_table(table)
    assert verdict.status == "wrong" and says in verdict.message


def test_without_a_limit_that_bites_the_reference_order_is_1f1b():
    for m, n in ((8, 4), (2, 5), (1, 3)):
        table = one_f_one_b(m, n)
        for rank in range(n):
            assert n14.check_order.reference(rank, m, n, n) == [str(action) for action in table.actions(rank)]


def test_a_choice_without_a_limit_is_wrong_also_where_no_mistake_is_known():
    wrong = n14.check_choose(lambda points, limit: min((point, name) for name, point in points.items())[1])
    assert wrong.message.endswith("expected 1F1B, at most 1, got ZB-V.")
