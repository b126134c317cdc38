"""Fuzz the pipelines beside the plain model: `python -m tests.fuzz --hours 1`, or `--cases 1000 --seed 5`.

A case is drawn from its seed, so that a seed printed here fails again. Faults are shrunk and printed as lines that run.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time

from tests.fuzz.running import Tally, told, try_in_workers
from tests.fuzz.trial import FAULT

LIMIT = 120.0
"""Seconds a case may take: a thousand times the usual, as machines may be busy; compiling takes some."""


def main(arguments: list[str] | None = None) -> int:
    """Try cases until the time or their number is over; return 1 if there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=float, default=None, help="how long; by default 0.02 h, a good minute")
    parser.add_argument("--cases", type=int, default=None, help="how many, instead of how long")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next ones follow (default 0)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"seconds until a case hangs (default {LIMIT:g})")
    options = parser.parse_args(arguments)
    hours = options.hours
    if hours is None:
        hours = 0.02 if options.cases is None else float("inf")
    tally = Tally()
    start = time.monotonic()
    next_line = start + 60
    for tried in try_in_workers(itertools.count(options.seed), options.workers, options.limit):
        if tally.add(tried):
            print(f"\n{told(tried)}\n", flush=True)
        now = time.monotonic()
        if now > next_line:
            print(f"{(now - start) / 60:6.1f} min  {tally.cases} cases, {tally.share(FAULT):.2%} faults", flush=True)
            next_line = now + 60
        if now - start > 3600 * hours or tally.cases == options.cases:
            break
    print(f"\nseeds from {options.seed}, {(time.monotonic() - start) / 60:.1f} minutes, {options.workers} workers")
    print(tally)
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
