"""The rooms of the notebooks, found by glob, with the exercises and guesses that they offer.

A new room is found as soon as its folder has a checks.py; nothing lists rooms by hand.
"""

from importlib import import_module
from pathlib import Path

import support

SUPPORT = Path(support.__file__).parent
ROOMS = {
    path.parent.name: import_module(f"support.{path.parent.name}.checks")
    for path in sorted(SUPPORT.glob("n[0-9][0-9]/checks.py"))
}


def offered(prefix):
    """Return what the rooms' own names that begin like this mean, by "n03.check_share"."""
    return {
        f"{room}.{name}": value
        for room, module in ROOMS.items()
        for name, value in vars(module).items()
        if name.startswith(prefix)
    }


EXERCISES = offered("check_")
GUESSES = offered("guess_")
