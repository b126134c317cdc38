"""Run the ledger of published claims, and say what has flipped since it was stored.

make ledger             run all claims; exit code 1 if a verdict or a number is another than the stored one
make ledger UPDATE=1    and store what they say now, with versions and machine
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from support import recordings
from support.ledger import Claim
from support.ledger.entries import LedgerEntry, flipped, ledger_claims, store_ledger, stored_ledger, try_all


def show(claim: Claim, entry: LedgerEntry) -> None:
    """Print a row of the table."""
    print(f"{claim.title:<58}{entry.seconds:5.1f} s  {entry.verdict}", flush=True)


def main(arguments: list[str] | None = None, folder: Path | None = None) -> int:
    """Run the command line; return the exit code. folder: where an update is stored, instead of notebooks/recorded."""
    parser = argparse.ArgumentParser(prog="python -m tools.ledger", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="run these claims only, and tell all of them")
    parser.add_argument("--update", action="store_true", help="store what they say")
    options = parser.parse_args(arguments)
    claims = ledger_claims()
    unknown = [name for name in options.names if name not in claims]
    if unknown:
        parser.error(f"there is no claim {unknown[0]!r}; there are {', '.join(claims)}")
    if options.update and options.names:
        parser.error("only a run of all claims is stored")
    chosen = [claims[name] for name in options.names or claims]
    began = time.monotonic()
    entries = try_all(chosen, show)
    print(f"{len(entries)} claims in {time.monotonic() - began:.0f} s")
    if options.update:
        print(f"stored in {store_ledger(entries, folder).name}")
        return 0
    try:
        record = recordings.load("ledger")
    except FileNotFoundError:
        print("Nothing is stored yet: make ledger UPDATE=1")
        return 1
    changes = flipped(claims, stored_ledger(record), entries)
    origin = record["provenance"]
    told = f"stored on {origin['date']} with torch {origin['torch']}, Python {origin['python']}"
    print("\n".join(changes) or f"Nothing has flipped since it was {told}.")
    if changes:
        print(f"({told}; if it is right so: make ledger UPDATE=1)")
    return int(bool(changes))


if __name__ == "__main__":
    sys.exit(main())
