"""Modes of a thread, among them autocast of every kind of device that torch has; values of a thread, of its tasks."""

from contextlib import contextmanager
from threading import Thread

import pytest
import torch

from lib.runtime import thread_state
from lib.runtime.thread_state import Modes, PerThread, during, goes_along, to_take_along
from tests.lib.refusal import refuses


@contextmanager
def casts(kind, dtype):
    """Switch a kind's autocast on, as torch.autocast does where there is such a device."""
    before = torch.get_autocast_dtype(kind)
    torch.set_autocast_enabled(kind, True)
    torch.set_autocast_dtype(kind, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, False)
        torch.set_autocast_dtype(kind, before)


@pytest.mark.parametrize("kind", ["cpu", "cuda", "xpu", "mps", "privateuseone"])
def test_modes_know_the_autocast_of_every_kind_of_device(kind):
    assert Modes.current().autocast == ()
    with casts(kind, torch.bfloat16):
        assert Modes.current().autocast == ((kind, torch.bfloat16),)
    assert Modes.current().autocast == ()


@pytest.mark.parametrize("kind", ["cpu", "xpu"])
def test_where_the_maker_of_a_task_casts_nothing_nothing_is_cast(kind):
    plain = Modes.current()
    with casts(kind, torch.bfloat16):
        with plain.use():
            assert not torch.is_autocast_enabled(kind)
        assert torch.is_autocast_enabled(kind)


def test_what_is_cast_has_the_dtype_of_the_task_and_afterwards_that_of_the_thread():
    with casts("cpu", torch.float16):
        of_the_task = Modes.current()
    with casts("cpu", torch.bfloat16):
        with of_the_task.use():
            assert torch.get_autocast_dtype("cpu") == torch.float16
            assert not torch.is_autocast_cache_enabled()
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16


def test_equal_modes_are_not_switched_and_grad_alone_is_switched_alone():
    now = Modes.current()
    with now.use():
        assert Modes.current() == now
    with now._replace(grad=False).use():
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_a_value_changes_for_a_while_also_when_an_error_ends_it():
    busy = PerThread(False)
    place = PerThread(None)

    def fails():
        with during({busy: True, place: (1, 2)}):
            assert busy.value
            assert place.value == (1, 2)
            raise ZeroDivisionError

    refuses(ZeroDivisionError, "", fails)
    assert not busy.value
    assert place.value is None


def test_each_thread_has_a_value_of_its_own_and_begins_with_the_first_one():
    name = PerThread("nobody")
    seen = []

    def other():
        seen.append(name.value)
        name.value = "other"

    with during({name: "main"}):
        thread = Thread(target=other)
        thread.start()
        thread.join()
        seen.append(name.value)
    assert seen == ["nobody", "main"]


def test_a_task_takes_along_what_is_meant_to_go_along_and_is_not_as_at_first(monkeypatch):
    monkeypatch.setattr(thread_state, "_going_along", [])
    shared = goes_along(PerThread(None))
    changed = goes_along(PerThread(False))
    private = PerThread(None)
    with during({changed: True, private: 1}):
        assert to_take_along() == {changed: True}
    with during({shared: 3}):
        assert to_take_along() == {shared: 3}
    assert to_take_along() == {}
