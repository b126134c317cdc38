"""A month on several devices: what is computed is shared, messages are not, and each way out has its price."""

import pytest

from support.n00.days import MONTH, SAME_BATCH, SAME_SHARE, days


def test_one_device_takes_a_month_whatever_messages_would_take():
    assert days(1, 0.2) == MONTH
    assert days(1, 0.2, batch=SAME_SHARE, hidden=True) == pytest.approx(MONTH)


def test_messages_are_not_shared_so_that_no_number_of_devices_gets_below_them():
    assert days(8, 0.0) == pytest.approx(MONTH / 8)
    assert days(8, 0.1) == pytest.approx(6.75)
    assert days(10**9, 0.1) == pytest.approx(0.1 * MONTH)


def test_four_days_turn_at_messages_of_a_120th():
    assert days(8, 1 / 121) < 4 < days(8, 1 / 119)


def test_what_fits_behind_backward_is_free_and_the_rest_is_not():
    assert days(8, 0.05, hidden=True) == pytest.approx(MONTH / 8)
    backward = 2 / 3 / 8
    assert days(8, 0.2, hidden=True) == pytest.approx(MONTH / 8 + MONTH * (0.2 - backward))


def test_a_batch_that_grows_needs_fewer_exchanges():
    assert days(8, 0.05, batch=SAME_SHARE) == pytest.approx(30 / 8 * 1.05)
    assert days(64, 0.05, batch=SAME_SHARE) < days(64, 0.05)


def test_a_batch_twice_as_large_is_enough_if_messages_hide_and_twelve_times_if_they_do_not():
    assert days(8, 0.1 / 2, hidden=True) == pytest.approx(MONTH / 8)
    assert days(8, 0.1 / 12) == pytest.approx(4)


def test_the_step_proper_is_not_shared_and_one_per_cent_of_it_turns_four_days_without_any_message():
    assert days(1, 0.1, update=0.01) == pytest.approx(MONTH)
    assert days(8, 0.0) < 4 < days(8, 0.0, update=0.01) == pytest.approx(30 * (0.01 + 0.99 / 8))
    assert f"{days(8, 0.0, update=0.01):.3g}" == "4.01"
    assert days(8, 0.0, batch=SAME_SHARE, update=0.01) == pytest.approx(MONTH / 8), "fewer steps, fewer updates"
    behind = days(8, 0.05, hidden=True, update=0.01)
    assert behind == pytest.approx(days(8, 0.0, update=0.01)), "messages hide behind backward, the update does not"


def test_an_unknown_batch_is_refused():
    with pytest.raises(ValueError, match=f"batch must be one of {SAME_BATCH}, {SAME_SHARE}, not 'global'"):
        days(8, 0.1, batch="global")
