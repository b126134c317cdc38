"""Skip connections: a tensor goes from the layer that stashes it straight to the layer that pops it."""

from lib.pipeline.skip.namespace import Namespace
from lib.pipeline.skip.skippable import pop, skippable, stash, verify_skippables

__all__ = ["Namespace", "pop", "skippable", "stash", "verify_skippables"]
