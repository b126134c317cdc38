"""Look over all that is written: its spelling, its links, the descriptions of its pictures.

    python -m tools.prose              part of `make lint`
    python -m tools.prose --outside    list the addresses outside and who names them; none is fetched

The spelling is codespell's: a list of known mistakes, so that a rare word is no complaint. Of a notebook it reads the
cells, not the stored outputs. A mistake that is meant has `codespell:ignore` at the end of its line.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tools.hygiene import StoredNotebook, has_alt_text, has_working_links
from tools.project import ROOT, notebooks

FOLDERS = ("lib", "tools", "tests", "notebooks", "docs", ".github", ".ci")
WRITTEN = {".md", ".py", ".txt", ".toml", ".yml", ".js", ".css", ".cfg", ".ipynb"}
NAMES = {"Makefile", "LICENSE", "find_python", "postBuild", "run"}
#: What is downloaded, made, or not ours.
PASSED_OVER = {"data", "__pycache__", "screenshots", "recorded", "goldens", "vendored", ".ipynb_checkpoints"}
OUTSIDE = re.compile(r"https?://[^\s\"'`<>()\[\]{}\\]+")


def written_files(root: Path = ROOT) -> list[Path]:
    """Return every file of text that the project has written."""
    found = [path for path in root.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += [path for path in (root / folder).rglob("*") if path.is_file()]
    ours = (path for path in found if not PASSED_OVER & set(path.relative_to(root).parts))
    return sorted(path for path in ours if path.suffix in WRITTEN or path.name in NAMES)


def written_texts(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Yield each file with its text; of a notebook all that was written into its cells."""
    for path in written_files(root):
        if path.suffix == ".ipynb":
            page = StoredNotebook.read(path, root)
            cells = sorted([*page.cells("markdown"), *page.cells("code")], key=lambda cell: cell[0])
            yield path, "\n\n".join(source for _, _, source in cells)
        else:
            yield path, path.read_text(encoding="utf-8")


def misspelled(root: Path = ROOT) -> list[str]:
    """Return "file:line: wrong ==> right" for each known misspelling; in a notebook lines of its cells are counted."""
    with tempfile.TemporaryDirectory(prefix="idt-prose-") as folder:
        for path, text in written_texts(root):
            copy = Path(folder, path.relative_to(root))
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "codespell_lib", "--check-hidden", "."]
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8")
    if said.returncode not in (0, 65):  # 65: something is misspelled
        raise RuntimeError(f"codespell did not run: {said.stderr[-1000:]}")
    return sorted(line.removeprefix("./") for line in said.stdout.splitlines() if " ==> " in line)


def wrong_links(root: Path = ROOT) -> list[str]:
    """Return what is wrong with the links and pictures of Markdown files and of notebooks."""
    pages = [StoredNotebook.read(path, root) for path in notebooks(root)]
    for path in written_files(root):
        if path.suffix == ".md":
            cell = {"cell_type": "markdown", "source": path.read_text(encoding="utf-8")}
            pages.append(StoredNotebook(path, {"cells": [cell]}, root))
    return [
        f"{page.path.relative_to(root).as_posix()}: {fault.removeprefix('cell 0: ')}"
        for page in pages
        for rule in (has_working_links, has_alt_text)
        for fault in rule(page)
    ]


def outside(root: Path = ROOT) -> dict[str, list[str]]:
    """Return each address outside of the project with the files that name it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, text in written_texts(root):
        if not {"tests", "tools"} & set(path.relative_to(root).parts):  # their addresses are samples and patterns
            for address in OUTSIDE.findall(text):
                found[address.rstrip(".,;:!")].add(path.relative_to(root).as_posix())
    return {address: sorted(where) for address, where in sorted(found.items())}


def main(arguments: list[str] | None = None) -> int:
    """Print what is wrong, or with --outside the addresses; return 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--outside", action="store_true", help="list the addresses outside of the project")
    if parser.parse_args(arguments).outside:
        for address, where in outside().items():
            print(address, *where, sep="\n    ")
        return 0
    faults = misspelled() + wrong_links()
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
