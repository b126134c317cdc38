import math

import pytest

from lib.simulated import Kernel, Link


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf])
@pytest.mark.parametrize(
    ("kind", "field"), [(Kernel, "seconds"), (Kernel, "flops"), (Link, "latency"), (Link, "bandwidth")]
)
def test_a_cost_is_a_finite_number_that_is_not_negative(kind, field, wrong):
    with pytest.raises(ValueError, match=f"{kind.__name__}: {field} must be 0 or more, not {wrong}"):
        kind(**{field: wrong})


@pytest.mark.parametrize("wrong", ["1", None, True])
def test_what_is_no_number_is_refused(wrong):
    with pytest.raises(TypeError, match="Kernel: seconds must be a number"):
        Kernel(seconds=wrong)
