"""Where a link in a notebook leads on the site: to a page, to a heading of one, or to the file in the repository."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from tools.project import ROOT, Address, address
from tools.site.text import slug

GLOSSARY = "notebooks/glossary.md"
GLOSSARY_IN_CHINESE = "notebooks/glossary.zh.md"


@dataclass(frozen=True)
class Links:
    """The pages of a site by the stems of their notebooks; whatever else is linked lies in the repository."""

    stems: Collection[str]
    root: Path = ROOT

    @property
    def project(self) -> Address:
        """The repository's address, from the one place that has it."""
        return address(self.root)

    def seen_from(self, folder: str) -> Callable[[str], str]:
        """Return the function that turns a target, written in a file of `folder`, into an address.

        It raises ValueError for a target that does not exist.
        """

        def link(target: str) -> str:
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                return target
            name, _, anchor = unquote(target).partition("#")
            hook = f"#{slug(anchor)}" if anchor else ""
            if not name:
                return hook
            path = (self.root / folder / name).resolve()
            if not path.exists() or not path.is_relative_to(self.root):
                raise ValueError(f"the link {target} leads nowhere")
            place = path.relative_to(self.root)
            if path.suffix == ".ipynb" and path.stem in self.stems:
                return f"{path.stem}.html{hook}"
            if place.as_posix() == GLOSSARY:
                return f"glossary.html{hook}"
            if place.as_posix() == GLOSSARY_IN_CHINESE:
                return f"glossary.zh.html{hook}"
            return self.file(place)

        return link

    def file(self, place: Path) -> str:
        """Return the address of a file or folder of the repository."""
        kind = "tree" if (self.root / place).is_dir() else "blob"
        return f"{self.project.repository}/{kind}/{self.project.ref}/{place.as_posix()}"

    def colab(self, stem: str) -> str:
        """Return the address that opens a notebook in Colab."""
        return self.project.badge(self.root / "notebooks" / f"{stem}.ipynb", self.root)
