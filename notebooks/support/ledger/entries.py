"""What a run of the whole ledger says, what the stored one says, and what has flipped between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from support import recordings
from support.ledger.book import BOOK, Claim

STORED = "ledger"
COMMAND = "make ledger UPDATE=1"
#: The modules of the ledger's claims, and what each is about; real ranks come last.
THEMES = {
    "pipelines": "Pipelines: the bubble, and what a rank holds",
    "memory": "Memory and recompute",
    "gradients": "Gradients in one process",
    "text": "Padding and packing, on our own text",
    "data": "Rows, random numbers, rings",
    "crew": "On two real ranks",
}


@dataclass(frozen=True)
class LedgerEntry:
    """What the ledger keeps of a claim that was tried: verdict, what it saw, its numbers, the seconds that it took."""

    verdict: str
    saw: str
    numbers: Mapping[str, float]
    seconds: float


def ledger_claims() -> dict[str, Claim]:
    """Return the claims of the ledger by name, theme by theme; what a notebook has added is not among them."""
    modules = [f"{__package__}.{theme}" for theme in THEMES]
    for module in modules:
        import_module(module)
    ours = [claim for claim in BOOK.values() if claim.run.__module__ in modules]
    return {
        claim.name: claim for claim in sorted(ours, key=lambda claim: modules.index(claim.run.__module__))
    }


def tried(claim: Claim) -> LedgerEntry:
    """Run a claim as it stands."""
    began = time.perf_counter()
    seen = claim()
    numbers = {name: float(f"{value:.6g}") for name, value in seen.numbers.items()}
    return LedgerEntry(seen.verdict, seen.saw, numbers, round(time.perf_counter() - began, 1))


def try_all(claims: Iterable[Claim], tell: Callable[[Claim, LedgerEntry], None]) -> dict[str, LedgerEntry]:
    """Run claims in turn and tell of each; the real ranks end with it, whatever happens."""
    from support.ledger.crew import end_two_ranks

    entries = {}
    try:
        for claim in claims:
            entries[claim.name] = tried(claim)
            tell(claim, entries[claim.name])
    finally:
        end_two_ranks()
    return entries


def store_ledger(entries: Mapping[str, LedgerEntry], folder: Path | None = None) -> Path:
    """Write what a run of all claims said, with the versions and the machine it ran on; return the file."""
    data = {"claims": {name: vars(entry) for name, entry in entries.items()}}
    return recordings.save_recording(STORED, data, command=COMMAND, folder=folder)


def stored_ledger(record: Mapping[str, Any] | None = None) -> dict[str, LedgerEntry]:
    """Return what is stored in notebooks/recorded, or in a record that was loaded from there."""
    loaded = recordings.load(STORED) if record is None else record
    return {name: LedgerEntry(**entry) for name, entry in loaded["claims"].items()}


def flipped(
    claims: Mapping[str, Claim], before: Mapping[str, LedgerEntry], now: Mapping[str, LedgerEntry]
) -> list[str]:
    """Return a sentence for each claim of `now` whose verdict is another than before, or whose numbers have moved.

    Numbers may differ by the claim's slack. A claim that is not stored yet, and one of `before` that is no claim any
    more, are told, too.
    """
    said = []
    for name, entry in now.items():
        old = before.get(name)
        if old is None:
            said.append(f"{name} is new: {entry.verdict}")
        elif entry.verdict != old.verdict:
            said.append(f"{name} flipped: it was “{old.verdict}”, and is “{entry.verdict}”")
        else:
            moved = _moved(old.numbers, entry.numbers, claims[name].slack)
            said += [f"{name} still {entry.verdict}, but {change}" for change in moved]
    return said + [f"{name} is stored, and no claim has that name" for name in before if name not in claims]


def _moved(before: Mapping[str, float], now: Mapping[str, float], slack: float) -> list[str]:
    if set(before) != set(now):
        return [f"it has the numbers {', '.join(now) or 'none'}, and had {', '.join(before) or 'none'}"]
    return [
        f"“{name}” is {value:g}, and was {before[name]:g}"
        for name, value in now.items()
        if abs(value - before[name]) > slack * abs(before[name]) + 1e-9
    ]
