"""What is particular about the checks of notebook 08; what all exercises have in common is in test_exercises."""

import pytest

from lib.schedules import ScheduleError, validate
from support.n08 import checks as n08


def test_another_way_to_write_it_passes_lists_and_any_order_within_a_clock_too():
    def by_sum(m, n):
        return [[[k - j, j] for j in range(n - 1, -1, -1) if 0 <= k - j < m] for k in range(m + n - 1)]

    assert n08.check_clock_cycles(by_sum)


def test_the_naive_pipeline_is_not_taken_for_one_and_what_is_no_list_gets_an_answer():
    """One device busy at a time computes the right values; it is still no pipeline."""
    verdict = n08.check_clock_cycles(lambda m, n: ([(i, j)] for i in range(m) for j in range(n)))
    assert "position 1: expected [[1, 0], [0, 1]], got [[0, 1]]" in verdict.message
    assert "model parallelism" in verdict.message
    numbers = n08.check_clock_cycles(lambda m, n: [[0, 1]])
    assert "a clock is a list of pairs (i, j), but it holds 0" in numbers.message
    endless = n08.check_clock_cycles(lambda m, n: iter(lambda: [(0, 0)], None))
    assert "position 1" in endless.message


def test_the_fewest_micro_batches_and_the_famous_wrong_numbers():
    assert n08.check_fewest.reference == 64  # 7 / 71 < 1 / 10 = 7 / 70
    assert list(n08.check_fewest.mistakes.values()) == [63, 71, 73, 81, 7]
    assert n08.check_fewest(65).message.endswith("is not 65.")


def test_exactly_one_table_is_illegal_and_any_rank_that_is_stuck_passes():
    refused = []
    for letter, table in n08.TABLES.items():
        try:
            validate(table)
        except ScheduleError:
            refused.append(letter)
    assert refused == ["D"]
    assert len({frozenset(action for _, action in table) for table in n08.TABLES.values()}) == 1
    assert n08.check_illegal("d ", "1F1") and n08.check_illegal("D", None).status == "open"


@pytest.mark.parametrize(
    ("letter", "action", "says"),
    [
        ("E", "0B0", "none of A, B, C, D"),
        ("D", "1B0", "1B0 is what 0B0 waits for"),
        ("D", "0F0", "it is done before anything is stuck"),
        ("D", "0B2", "its rank does not even come to it"),
        ("D", "0X9", "'0X9' is no action of it"),
        (4, "0B0", "4 is none of"),
    ],
)
def test_a_wrong_answer_about_the_tables_is_told_why(letter, action, says):
    verdict = n08.check_illegal(letter, action)
    assert verdict.status == "wrong" and says in verdict.message
