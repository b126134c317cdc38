"""What matrix products cost, also those that are added in place, which torch's counter leaves out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def _of_a_product(summand: Sequence[int], left: Sequence[int], right: Sequence[int], **more: Any) -> int:
    """Return the multiplications and additions of `summand += left @ right`, from the shapes."""
    return 2 * math.prod(left) * right[-1]


_IN_PLACE: dict[Any, Any] = dict.fromkeys((torch.ops.aten.addmm_, torch.ops.aten.baddbmm_), _of_a_product)


def with_flops(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return what `work` returns, and how many floating point operations its matrix products take."""
    with FlopCounterMode(display=False, custom_mapping=_IN_PLACE) as counter:
        result = work()
    return result, counter.get_total_flops()
