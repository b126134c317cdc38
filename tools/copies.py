"""Copy the notebooks into a folder of your own, so that what you write and run there is no change of the project.

    make copy

The folder is `mine`, beside `notebooks`: links, scripts and the set-up cell work there as they do here. What lies in it
already stays as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.project import ROOT

FOLDER = "mine"
#: What a notebook is, links or starts, as seen from the folder of notebooks.
COPIED = ("*.ipynb", "*.py", "*.md", "solutions/*.ipynb")


def copy_for_reader(root: Path = ROOT) -> tuple[list[Path], list[Path]]:
    """Copy what is not there yet; return the files that are new and those that were there and differ."""
    new = []
    own = []
    for pattern in COPIED:
        for source in sorted((root / "notebooks").glob(pattern)):
            target = root / FOLDER / source.relative_to(root / "notebooks")
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
                new.append(target)
            elif target.read_bytes() != source.read_bytes():
                own.append(target)
    rooms = root / FOLDER / "support"
    if not rooms.exists():
        with contextlib.suppress(OSError):  # Windows may not: some links then lead nowhere, all else works
            rooms.symlink_to(Path("..", "notebooks", "support"), target_is_directory=True)
    return new, own


def main(arguments: Sequence[str] | None = None) -> int:
    """Copy, and say what was done."""
    description = (__doc__ or "").splitlines()[0]
    argparse.ArgumentParser(prog="make copy", description=description).parse_args(arguments)
    new, own = copy_for_reader()
    print(f"{len(new)} files are new in {FOLDER}/: write there, `git status` stays empty. `make lab` opens it.")
    if own:
        print("Left as they are, for they differ from those of the project (move one away to have it anew):")
        print(*(f"  {path.relative_to(ROOT).as_posix()}" for path in own), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
