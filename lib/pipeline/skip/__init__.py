"""Skip connections: a tensor goes from the layer that stashes it straight to the layer that pops it."""

from lib.pipeline.skip.skippable import pop, skippable, stash, verify_skippables
from lib.pipeline.skip.tracker import Namespace

__all__ = ["Namespace", "pop", "skippable", "stash", "verify_skippables"]
