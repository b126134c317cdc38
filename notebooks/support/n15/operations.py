"""What torch is asked to do while a step runs, by name: the collectives of others can be counted."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class OperationsSeen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Note the name of every operation in its `with` block, those of a backward, too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note it, and do it."""
        self.names.append(str(operation))
        return operation(*args, **(kwargs or {}))

    def count(self, word: str) -> int:
        """Return how many operations had this word in their name."""
        return sum(word in name for name in self.names)
