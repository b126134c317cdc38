"""What a ledger is made of: a claim with its source, and what a run of it found."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

HOLDS = "holds"
NOT_HERE = "does not hold here"


@dataclass(frozen=True)
class Observation:
    """Say what a run saw, in which settings the claim holds, and the numbers that a later run is compared with.

    holds: by setting, a phrase that can follow "holds if", whether the claim holds in it. Raises ValueError for none:
    a claim that was tried nowhere has no verdict.
    """

    saw: str
    holds: Mapping[str, bool]
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.holds:
            raise ValueError("an observation needs a setting in which the claim was tried: holds is empty")

    @property
    def verdict(self) -> str:
        """What follows: the claim holds, holds if …, or does not hold here."""
        where = [setting for setting, held in self.holds.items() if held]
        if len(where) == len(self.holds):
            return HOLDS
        return f"{HOLDS} if {', or if '.join(where)}" if where else NOT_HERE


@dataclass(frozen=True)
class Claim:
    """A published claim: a title, where it stands, what it says in our words, and the function that tries it.

    slack: the share by which its numbers may differ from run to run, 0 for what is computed exactly.
    """

    title: str
    source: str
    link: str
    says: str
    run: Callable[..., Observation]
    slack: float = 0.0

    @property
    def name(self) -> str:
        """The name of its function, by which its entry is known."""
        return self.run.__name__

    @property
    def theme(self) -> str:
        """The module in which it stands."""
        return self.run.__module__.rpartition(".")[2]

    def __call__(self, **moved: Any) -> Observation:
        """Try it, with other values for some of what it assumes."""
        return self.run(**moved)

    def assumes(self) -> dict[str, Any]:
        """Return what it assumes: the parameters of its function, and their values."""
        return {name: given.default for name, given in inspect.signature(self.run).parameters.items()}

    def told(self, seen: Observation) -> str:
        """Return an entry of the ledger as text."""
        rows = {"source": f"{self.source}, {self.link}", "says": self.says}
        rows |= {"here": seen.saw, "so it": seen.verdict}
        lines = [self.title]
        for head, text in rows.items():
            lines.append(textwrap.fill(text, 108, initial_indent=f"  {head:<8}", subsequent_indent=" " * 10))
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.told(self())


#: All claims, by name, in the order in which they were written down.
BOOK: dict[str, Claim] = {}


def claim(
    title: str, source: str, link: str, says: str, *, slack: float = 0.0
) -> Callable[[Callable[..., Observation]], Claim]:
    """Enter a function into the ledger: it takes what it assumes, each with a default, and returns an Observation.

    title: the claim in a few words. says: the claim, fairly, in our own words. slack: the share by which numbers may
    differ from run to run, 0 for what is computed exactly. A cell that is run again replaces its claim. Raises
    ValueError for a name that another module has, a parameter without a default, a link that is none, and for what is
    empty.
    """
    if not (title and source and says and link.startswith("https://")):
        raise ValueError(
            "a claim needs a title, a source, a link (https://…) and what it says, "
            f"not {title!r}, {source!r}, {link!r}, {says!r}"
        )

    def enter(run: Callable[..., Observation]) -> Claim:
        entry = Claim(title, source, link, says, run, slack)
        there = BOOK.get(entry.name)
        if there is not None and there.run.__module__ != run.__module__:
            raise ValueError(
                f"there is a claim {entry.name!r} in {there.run.__module__}: call yours otherwise"
            )
        bare = [name for name, value in entry.assumes().items() if value is inspect.Parameter.empty]
        if bare:
            raise ValueError(
                f"give {bare[0]} of {run.__name__} a default: the ledger runs a claim as it stands"
            )
        BOOK[entry.name] = entry
        return entry

    return enter
