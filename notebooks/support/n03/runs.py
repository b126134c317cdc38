"""What notebook 03 measures beside training: the digits as tensors, and what a call sends to other ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from support.digits import Digits, write_digits
from support.n03.company import Data


def digits(split: str, folder: str | Path = "data/digits") -> Data:
    """Return the images of "train" or "test" as float32 (images, 64), and their labels."""
    data = Digits(write_digits(folder), split)
    images, labels = zip(*(data[index] for index in range(len(data))), strict=True)
    return torch.stack(images).flatten(1), torch.tensor(labels)


class _Messages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Note the collectives that pass through torch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator.namespace == "c10d":
            self.seen.append(operator._schema.name.removeprefix("c10d::").rstrip("_"))
        return operator(*args, **(kwargs or {}))


def what_is_sent(call: Callable[[], Any]) -> str:
    """Run `call()` and name the kinds of collectives that it started, "nothing" if there was none."""
    with _Messages() as found:
        call()
    return ", ".join(dict.fromkeys(found.seen)) or "nothing"
