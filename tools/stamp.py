"""Write the repository's address into every badge (Colab, mybinder), set-up cell and link to the site.

Each notebook's links to its neighbours are written, too, from the map of the course.

    make stamp                                    as pyproject.toml says
    make stamp REPO=owner/name REF=v1.0.0         write it into pyproject.toml first

A ref that is a version (v1.0.0) becomes the project's version as well: in pyproject.toml, lib and CITATION.cff.
A notebook without a set-up cell gets one after its title, folded; the links in README and its like follow too.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import nbformat

from support import course
from tools import setup_cell
from tools.kept import what_was_run
from tools.project import ROOT, Address, address, notebooks
from tools.save import write_notebook
from tools.title import with_neighbours

BINDER = re.compile(r"https://mybinder\.org/v2/gh/[^\s)\"'>]+")
VERSION = re.compile(r"v(\d+\.\d+\.\d+)")
#: What tells the version, beside pyproject.toml: the line's beginning and its end in each file.
VERSIONED = {"lib/__init__.py": ('__version__ = "', '"'), "CITATION.cff": ("version: ", "")}
COLAB = re.compile(r"https://colab\.research\.google\.com/github/[^/\s]+/[^/\s]+/blob/[^/\s]+/[^\s)\"'>]+\.ipynb")


def set_address(root: Path, repository: str | None, ref: str | None) -> tuple[Address, Address]:
    """Write a new address into pyproject.toml; return the old address and the new one.

    repository: "owner/name" (on GitHub) or a full https address. Raises ValueError for anything else.
    """
    old = address(root)
    if repository is None:
        repository = old.repository
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        repository = f"https://github.com/{repository}"
    repository = repository.removesuffix("/").removesuffix(".git")
    if not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", repository):
        raise ValueError(f"repository {repository!r} is neither owner/name nor https://github.com/owner/name")
    ref = ref or old.ref
    if not re.fullmatch(r"[\w.-]+", ref):
        raise ValueError(f"ref {ref!r} must be a tag or branch of letters, digits, dots and dashes")
    file = root / "pyproject.toml"
    text = re.sub(r'(?m)^Repository = ".*"$', f'Repository = "{repository}"', file.read_text(encoding="utf-8"))
    text = re.sub(r'(?m)^ref = ".*"$', f'ref = "{ref}"', text)
    version = old.version
    if named := VERSION.fullmatch(ref):
        version = named[1]
        text = re.sub(r'(?m)^version = ".*"$', f'version = "{version}"', text, count=1)
        set_version(root, version)
    file.write_text(text, encoding="utf-8")
    return old, Address(repository, ref, version)


def set_version(root: Path, version: str) -> None:
    """Write the version into the files that tell it beside pyproject.toml, those of them that there are."""
    for name, (begin, end) in VERSIONED.items():
        file = root / name
        if file.exists():
            text = file.read_text(encoding="utf-8")
            line = re.compile(rf"(?m)^{re.escape(begin)}[\d.]+{re.escape(end)}$")
            file.write_text(line.sub(f"{begin}{version}{end}", text), encoding="utf-8")


def stamp_text(text: str, old: Address, new: Address, root: Path) -> str:
    """Return Markdown text with its addresses renewed: Colab's, mybinder's, the repository's, the site's."""

    def renewed(match: re.Match[str]) -> str:
        path = match[0].split("/blob/", 1)[1].split("/", 1)[1]
        return new.badge(root / path, root)

    text = text.replace(old.repository, new.repository).replace(old.site, new.site)
    return COLAB.sub(renewed, BINDER.sub(lambda _: new.binder, text))


def stamp_notebook(notebook: Any, path: Path, old: Address, new: Address, root: Path) -> None:
    """Renew the addresses and the set-up cell of one notebook, in place; the first cell's badge opens this notebook."""
    unchanged = notebook.metadata.get("idt") == what_was_run(notebook)
    tagged = [cell for cell in notebook.cells if "setup" in cell.metadata.get("tags", [])]
    if not tagged:
        cell = nbformat.v4.new_code_cell(metadata={"tags": ["setup"]})
        cell["id"] = "setup"
        after_title = 1 if notebook.cells and notebook.cells[0].cell_type == "markdown" else 0
        notebook.cells.insert(after_title, cell)
        tagged = [cell]
    for cell in tagged:
        cell.source = setup_cell.text(new)
        cell.metadata["jupyter"] = {"source_hidden": True}  # what you came for stands below it
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = stamp_text(cell.source, old, new, root)
    first = notebook.cells[0]
    if first.cell_type == "markdown":
        first.source = COLAB.sub(lambda _: new.badge(path, root), first.source)
        if path.parent.name == "notebooks" and path.stem in {chapter.stem for chapter in course.COURSE}:
            first.source = with_neighbours(first.source, path.stem)
    if unchanged:  # Another address changes no output: the stored ones still belong to these cells.
        notebook.metadata["idt"] = what_was_run(notebook)


def stamp(root: Path = ROOT, repository: str | None = None, ref: str | None = None) -> list[Path]:
    """Renew every address below `root`; return the files that changed."""
    old, new = set_address(root, repository, ref)
    changed = []
    for path in notebooks(root):
        before = path.read_text(encoding="utf-8")
        notebook = nbformat.read(path, as_version=4)
        stamp_notebook(notebook, path, old, new, root)
        write_notebook(notebook, path)
        changed += [path] if path.read_text(encoding="utf-8") != before else []
    for path in [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("*.cff")]:
        before = path.read_text(encoding="utf-8")
        path.write_text(after := stamp_text(before, old, new, root), encoding="utf-8")
        changed += [path] if after != before else []
    return changed


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repository")
    parser.add_argument("--ref")
    options = parser.parse_args()
    try:
        changed = stamp(ROOT, options.repository, options.ref)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    now = address()
    print(f"{now.repository} at {now.ref}: {len(changed)} files changed")
    print(*(f"  {path.relative_to(ROOT)}" for path in changed), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
