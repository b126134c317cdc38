"""A namespace keeps skip tensors of the same name apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID, uuid4


@dataclass(frozen=True, slots=True)
class Namespace:
    """Different from every other namespace, equal to its own copies, pickled ones as well.

    Layers that are built alike can then be used twice: `Encoder().isolate(ns1), Encoder().isolate(ns2)`.
    """

    id: UUID = field(default_factory=uuid4)


Key: TypeAlias = tuple[
    Namespace | None, str
]  # a skip tensor: its namespace, None if it is not isolated, and its name
