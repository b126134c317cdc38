"""Build the course as a folder of pages that need no kernel and no network.

make site              what lives in each notebook is run and drawn (20 to 25 CPU minutes once, then what has changed)
make site NB=08        that of this notebook only, the others show their stored pictures
make site PDF=1        and one PDF of it all, printed by chromium
make site CHECK=1      and everything on it tried in chromium
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tools import lab
from tools.execute import FAILURES
from tools.project import ROOT, chapters, find
from tools.site.build import build, cpu_seconds, stored
from tools.site.run import Executed, executed

OUT = ROOT / "build" / "site"
CACHE = ROOT / "build" / "cache"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NB", help="run these only; the others show what is stored")
    parser.add_argument("--stored", action="store_true", help="run nothing: a look at the pages in seconds")
    parser.add_argument("--pdf", action="store_true", help="print it all as one PDF")
    parser.add_argument("--check", action="store_true", help="try everything in chromium")
    parser.add_argument("--sample", type=int, metavar="K", help="only K frames of each explorer")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    every = chapters()
    fresh = [] if options.stored else [path for path in find(options.names) if path in every] or every
    start = time.monotonic()

    def run(path: Path) -> Executed:
        return executed(path, cache=CACHE, sample=options.sample) if path in fresh else stored(path)

    try:
        site = build(options.out, every, run, say=True)
    except (*FAILURES, ValueError) as error:
        print(f"The site is not built: {error}")
        return 1
    seconds = time.monotonic() - start
    size = f"{len(site.pages) + 1} pages, {site.settings:,} frames, {site.size / 1e6:.1f} MB"
    print(f"{site.folder}: {size}, {seconds:.0f} s, {cpu_seconds():.0f} CPU s; open index.html")
    code = 0
    if options.pdf:
        from tools.site import pdf

        with lab.browser() as browser:
            file = pdf.make_pdf(site, browser)
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")
    if options.check:
        from tools.site import check

        code = check.report(site)
    return code


if __name__ == "__main__":
    sys.exit(main())
