"""Public names that load on first use (PEP 562), so that importing a package costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def load_on_use(
    package: str, home: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package whose public names live in the modules that `home` gives."""

    def get(name: str) -> Any:
        if name in home:
            return getattr(import_module(home[name]), name)
        raise AttributeError(f"{package} has no {name!r}; its public names are {', '.join(sorted(home))}")

    return get, lambda: sorted(home)
