"""Build the course as a folder of pages that need no kernel and no network.

make site              every notebook is run once (tens of minutes the first time, then what has changed)
make site NB=08        that notebook is run, the others show their stored outputs
make site PDF=1        and one PDF of it all, printed by chromium
make site CHECK=1      and everything on it tried in chromium
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import lab
from tools.project import ROOT, find, notebooks
from tools.site import frame, index, search
from tools.site.links import Links
from tools.site.page import Page, Pictures, Writer
from tools.site.run import Executed, executed

STATIC = Path(__file__).with_name("static")
OUT, CACHE = ROOT / "build" / "site", ROOT / "build" / "cache"


@dataclass(frozen=True)
class Site:
    """A built site: its folder, its pages in order, the glossary last."""

    folder: Path
    pages: list[Page]

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


def build(out: Path, paths: Sequence[Path], run: Callable[[Path], Executed], say: bool = False) -> Site:
    """Build the pages of the notebooks `paths` in the folder `out`, which is replaced when all is done.

    run: gives the outputs of a notebook, fresh or stored. Raises ValueError for what a page cannot show.
    """
    new = out.with_name(f"{out.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(STATIC, new / "static")
    links = Links([path.stem for path in paths], paths[0].parents[1])
    pictures, pages = Pictures(new / "pictures"), []
    for path in paths:
        start, done = time.monotonic(), run(path)
        solution = path.parent / "solutions" / path.name
        solutions = json.loads(solution.read_text(encoding="utf-8"))
        pages.append(Writer(path.stem, done, solutions, links, pictures, index.glance(path, links)).page())
        for source, folder in ((path, new / "notebooks"), (solution, new / "notebooks" / "solutions")):
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder)
        if say:
            explorers = sum(map(len, done.atlases.values()))
            print(f"{path.name}: {explorers} explorers, {time.monotonic() - start:.1f} s", flush=True)
    words = index.glossary(links)
    write(new, pages, words, links)
    shutil.rmtree(out, ignore_errors=True)
    new.rename(out)
    return Site(out, [*pages, words])


def stored(path: Path) -> Executed:
    """Return a notebook as it is stored, as if it had just been run."""
    return Executed(json.loads(path.read_text(encoding="utf-8")), {}, {})


def write(folder: Path, pages: Sequence[Page], words: Page, links: Links) -> None:
    """Write the pages, the index, the glossary and what the search reads."""
    repository = links.project.repository
    for place, page in enumerate(pages):
        main = f"<article>\n{page.body}\n</article>\n{frame.turn(pages, place)}"
        whole = frame.document(
            page.title, main, contents=frame.contents(page), number=page.stem[:2], repository=repository
        )
        (folder / page.name).write_text(whole, encoding="utf-8")
    for name, title, body in (
        ("index.html", frame.NAME, index.index(pages, links)),
        (words.name, words.title, f"<article>\n{words.body}\n</article>"),
    ):
        (folder / name).write_text(
            frame.document(title, body, scripts=["site.js"], repository=repository), encoding="utf-8"
        )
    (folder / "static" / "sections.js").write_text(search.script([*pages, words]), encoding="utf-8")


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
    every = [path for path in notebooks() if path.parent.name == "notebooks"]
    fresh = [] if options.stored else [path for path in find(options.names) if path in every] or every
    start = time.monotonic()

    def run(path: Path) -> Executed:
        return executed(path, cache=CACHE, sample=options.sample) if path in fresh else stored(path)

    try:
        site = build(options.out, every, run, say=True)
    except ValueError as error:
        print(f"The site is not built: {error}")
        return 1
    seconds = time.monotonic() - start
    print(f"{site.folder}: {len(site.pages) + 1} pages, {site.size / 1e6:.1f} MB, {seconds:.0f} s; open index.html")
    code = 0
    if options.pdf:
        from tools.site import pdf

        with lab.browser() as browser:
            file = pdf.make(site, browser)
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")
    if options.check:
        from tools.site import check

        code = check.report(site)
    return code


if __name__ == "__main__":
    sys.exit(main())
