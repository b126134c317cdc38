"""What matrix products cost, also those that are added to something, of which torch's counter leaves some out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def _of_a_product(summand: Sequence[int], left: Sequence[int], right: Sequence[int], **more: Any) -> int:
    """Return the multiplications and additions of `summand += left @ right`, from the shapes."""
    return 2 * math.prod(left) * right[-1]


_aten = torch.ops.aten
_LEFT_OUT: dict[Any, Any] = dict.fromkeys(
    (_aten.addmm_, _aten.baddbmm_, _aten.addbmm, _aten.addbmm_), _of_a_product
)


def with_flops(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return what `work` returns, and how many floating point operations its matrix products take."""
    with FlopCounterMode(display=False, custom_mapping=_LEFT_OUT) as counter:
        result = work()
    return result, counter.get_total_flops()
