"""The whole table: each part enters its rules when it is imported."""

from tests.lib.simulated.rules import copies, events, memory, streams, waiting
from tests.lib.simulated.rules.table import RULES

PARTS = [streams, events, copies, memory, waiting]

__all__ = ["PARTS", "RULES"]
