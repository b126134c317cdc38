"""What a simulated device costs: a kernel its time or its work, a link its latency and bandwidth. Zero is free."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class _Costs:
    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{type(self).__name__}: {field.name} must be a number, not {value!r}")
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{type(self).__name__}: {field.name} must be 0 or more, not {value!r}")


@dataclass(frozen=True)
class Kernel(_Costs):
    """Say how long a kernel takes: seconds + launch + the longer of its work and of its memory traffic.

    seconds: the same for every kernel. flops: floating point operations a second; a product of matrices and a
    convolution have as many as everybody counts, other kernels one an element of their results. bandwidth: bytes a
    second, of all that a kernel reads and writes. launch: seconds that each kernel needs beside. 0 stands for nothing:
    with all of them 0 a kernel takes the time that the CPU needs. Raises ValueError for a negative number.
    """

    seconds: float = 0.0
    flops: float = 0.0
    bandwidth: float = 0.0
    launch: float = 0.0


@dataclass(frozen=True)
class Link(_Costs):
    """Say how long a copy takes: latency + bytes / bandwidth, in seconds and bytes a second; one at a time a direction.

    0 stands for nothing: with both 0 a copy takes the time that the CPU needs. Raises ValueError for a negative number.
    """

    latency: float = 0.0
    bandwidth: float = 0.0
