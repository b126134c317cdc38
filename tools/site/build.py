"""The folder of the site: pages, pictures, notebooks to download, index, ledger, glossary, what the search reads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.site import chinese, frame, index, runtime, search
from tools.site.ledger import ledger_page
from tools.site.links import GLOSSARY_IN_CHINESE, Links
from tools.site.page import Page, Pictures, Writer
from tools.site.run import Executed
from tools.site.terms import glossary_terms

STATIC = Path(__file__).with_name("static")
#: Frames of all explorers together, and bytes of all files: more would make pages heavy and a build long.
MOST_SETTINGS = 12_000
MOST_BYTES = 45_000_000
#: What of STATIC goes into python.js.
PACKED = ("*.gz", "*.zip", "practice_worker.js")


@dataclass(frozen=True)
class Site:
    """A built site: its folder, its pages in order, the ledger and the glossary last, its explorers' frames."""

    folder: Path
    pages: list[Page]
    settings: int = 0

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
    shutil.copytree(STATIC, new / "static", ignore=shutil.ignore_patterns(*PACKED))
    (new / "static" / "python.js").write_text(runtime.python_script(), encoding="utf-8")
    links = Links([path.stem for path in paths], paths[0].parents[1])
    pictures = Pictures(new / "pictures")
    terms = glossary_terms(links.root)
    pages: list[Page] = []
    settings = 0
    for path in paths:
        began = cpu_seconds()
        done = run(path)
        settings += done.settings
        solution = path.parent / "solutions" / path.name
        solutions = json.loads(solution.read_text(encoding="utf-8"))
        pages.append(Writer(path.stem, done, solutions, links, pictures, index.glance(path, links), terms).page())
        for source, folder in ((path, new / "notebooks"), (solution, new / "notebooks" / "solutions")):
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder)
        if say:
            explorers = sum(map(len, done.atlases.values()))
            took = f"{cpu_seconds() - began:.0f} CPU s"
            print(f"{path.name}: {explorers} explorers in {done.settings} settings, {took}", flush=True)
            for kept in done.kept:
                print(f"    the text names a setting that would have been left out: {kept}")
    lists = [ledger_page(links), index.glossary(links)]
    write_pages(new, pages, lists, links)
    if (links.root / GLOSSARY_IN_CHINESE).exists():
        write_in_chinese(new, pages, links)
    # The pages are in their place before we complain: they have taken half an hour, and they work.
    shutil.rmtree(out, ignore_errors=True)
    new.rename(out)
    site = Site(out, [*pages, *lists], settings)
    if settings > MOST_SETTINGS:
        raise ValueError(f"{settings} settings are drawn, {MOST_SETTINGS} may be: fewer stops, or fewer named in texts")
    if site.size > MOST_BYTES:
        raise ValueError(
            f"the site has {site.size / 1e6:.1f} MB, {MOST_BYTES / 1e6:.0f} may be: see which pages are large"
        )
    return site


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all its children that have ended: kernels and what they started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def stored(path: Path) -> Executed:
    """Return a notebook as it is stored, as if it had just been run."""
    return Executed(json.loads(path.read_text(encoding="utf-8")), {}, {})


def write_pages(folder: Path, pages: Sequence[Page], lists: Sequence[Page], links: Links) -> None:
    """Write the pages, the index, the lists (ledger and glossary) and what the search reads."""
    repository = links.project.repository
    for place, page in enumerate(pages):
        main = f"<article>\n{page.body}\n</article>\n{frame.turn(pages, place)}"
        whole = frame.document(
            page.title, main, contents=frame.beside_the_text(page, pages), number=page.stem[:2], repository=repository
        )
        (folder / page.name).write_text(whole, encoding="utf-8")
    in_chinese = {"index.html", "glossary.html"} if (links.root / GLOSSARY_IN_CHINESE).exists() else set()

    def write(name: str, title: str, main: str, listed: str = "") -> None:
        elsewhere = name.replace(".html", ".zh.html") if name in in_chinese else ""
        whole = frame.document(
            title, main, contents=listed, scripts=["site.js"], repository=repository, elsewhere=elsewhere
        )
        (folder / name).write_text(whole, encoding="utf-8")

    write("index.html", frame.NAME, index.index(pages, links))
    for page in lists:
        beside = frame.beside_the_text(page, pages)
        write(page.name, page.title, f"<article>\n{page.body}\n</article>", beside)
    (folder / "static" / "sections.js").write_text(search.script([*pages, *lists]), encoding="utf-8")


def write_in_chinese(folder: Path, pages: Sequence[Page], links: Links) -> None:
    """Write the first page and the glossary in Chinese; all other pages are English."""
    drawn = index.picture(index.entries(pages, links), chinese.MAP)
    words = chinese.glossary_in_chinese(links)
    beside = frame.beside_the_text(words, pages, chinese.CHINESE)
    for name, title, body, listed in (
        (chinese.CHINESE.home, chinese.CHINESE.name, chinese.index_in_chinese(pages, drawn), ""),
        (words.name, words.title, f"<article>\n{words.body}\n</article>", beside),
    ):
        whole = frame.document(
            title,
            body,
            contents=listed,
            scripts=["site.js"],
            repository=links.project.repository,
            said=chinese.CHINESE,
            elsewhere=name.replace(".zh.html", ".html"),
        )
        (folder / name).write_text(whole, encoding="utf-8")
