"""Views of one storage: whether they meet is what their sets of bytes say."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.runtime import regions
from lib.runtime.regions import Region, region_of
from tests.sizes import size

BYTES = 240


def elements(x):
    """Return the bytes of a tensor, one by one."""
    item = x.element_size()
    touched = torch.zeros(BYTES // item, dtype=torch.bool)
    touched.as_strided(x.shape, x.stride(), x.storage_offset()).fill_(True)
    return {int(place) * item + k for place in touched.nonzero() for k in range(item)}


@st.composite
def views(draw):
    """Return a tensor of any layout that fits: transposed, with holes, expanded, with pieces that overlap."""
    dtype = draw(st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.float64]))
    room = BYTES // dtype.itemsize
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    steps = draw(st.lists(st.integers(0, 12), min_size=len(shape), max_size=len(shape)))
    for k in range(len(shape) - 1):
        if draw(st.booleans()):  # it goes on where the dimension behind it ends, as in a slice of a whole tensor
            steps[k] = steps[k + 1] * shape[k + 1]
    span = sum(max(0, n - 1) * step for n, step in zip(shape, steps, strict=True))
    if span >= room:
        return torch.zeros(room, dtype=dtype)
    offset = draw(st.integers(0, room - span - 1))
    return torch.zeros(room, dtype=dtype).as_strided(shape, steps, offset)


@pytest.mark.timeout(1200)  # for `make prove`
@settings(max_examples=size(suite=500, prove=50_000))
@given(views(), views())
def test_two_views_meet_exactly_if_they_have_a_byte_in_common(x, y):
    a = region_of(x, "A")
    b = region_of(y, "A")
    expected = bool(elements(x) & elements(y))
    assert a.meets(b) == expected
    assert b.meets(a) == expected
    assert not a.meets(b._replace(block="B"))
    assert a.meets(a) == (x.numel() > 0)


@given(views())
def test_a_region_lies_between_its_ends_and_is_whole_without_steps(x):
    a = region_of(x, "A")
    own = elements(x)
    if not own:
        assert a.start == a.stop
        return
    assert (a.start, a.stop) == (min(own), max(own) + 1)
    if not a.steps:
        assert own == set(range(a.start, a.stop))
    assert all(a.meets(Region("A", byte, byte + 1)) == (byte in own) for byte in range(BYTES))


def test_views_of_many_pieces_are_decided_without_going_through_them(monkeypatch):
    calls = []
    reaches = regions._reaches
    monkeypatch.setattr(regions, "_reaches", lambda *given: calls.append(given) or reaches(*given))
    x = torch.empty(10**6)
    rows = x.view(1000, 1000)
    apart = [(x[::2], x[1::4]), (x[::6], x[3::12]), (rows[:, ::2], rows[:, 1::4]), (rows[::2], rows[1::4])]
    for a, b in apart:
        assert not region_of(a, "A").meets(region_of(b, "A"))
    for a, b in [(x[::2], x[::3]), (x[1::997], x[::991]), (rows[:, 500], rows.t()[:, 500]), (rows[::3], rows[:, ::7])]:
        assert region_of(a, "A").meets(region_of(b, "A"))
    assert len(calls) < 2000
