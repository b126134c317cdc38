"""The folder of the site: pages, pictures, notebooks to download, index, glossary, what the search reads."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.site import frame, index, search
from tools.site.links import Links
from tools.site.page import Page, Pictures, Writer
from tools.site.run import Executed

STATIC = Path(__file__).with_name("static")


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
    pictures = Pictures(new / "pictures")
    pages = []
    for path in paths:
        start = time.monotonic()
        done = run(path)
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
