"""Look at a notebook as a reader sees it: run it in JupyterLab, save pictures of it and of every moved control.

    .venv/bin/python -m tools.look notebooks/03_distributed_sampler.ipynb --out DIR

The notebook itself is not touched: a copy of its folder is run. Ends with 1 when a cell or a figure failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # For `python tools/look.py`.

from tools.lab import Notebook, browser, copy_notebooks, copy_tree, serve
from tools.project import ROOT

#: What libtorch gave, recorded: notebook 04 reads it, as the tests do.
GOLDENS = ROOT / "tests" / "goldens"


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--stored", action="store_true", help="also show the stored outputs, before anything runs")
    parser.add_argument("--no-controls", action="store_true", help="only run and look, move nothing")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1600)
    parser.add_argument("--seconds", type=float, default=180, help="limit for running all cells")
    options = parser.parse_args()
    stem = options.notebook.stem
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="look-") as folder:
        root = Path(folder, "root")
        private = Path(folder, "private")
        root.mkdir()
        private.mkdir()
        copy = copy_notebooks(options.notebook, root)
        copy_tree(GOLDENS, root / GOLDENS.relative_to(ROOT))
        with serve(root, private) as server, browser() as chromium:
            page = chromium.new_page(viewport={"width": options.width, "height": options.height})
            notebook = Notebook(page, server, copy)
            if options.stored:
                print(*notebook.screenshots(options.out, f"{stem}-stored"), sep="\n")
            start = time.monotonic()
            try:
                notebook.run_all(options.seconds)
            except AssertionError as error:
                problems.append(str(error))
            print(f"ran in {time.monotonic() - start:.1f} s")
            print(*notebook.screenshots(options.out, f"{stem}-run"), sep="\n")
            problems += notebook.errors()
            for number, explorer in enumerate([] if options.no_controls else notebook.explorers(), start=1):
                print(f"explore{number}: {explorer.alt()}")
                problems += explorer.try_all(options.out, f"{stem}-explore{number}")
            print(*sorted(options.out.glob(f"{stem}-explore*.png")), sep="\n")
            for warning in dict.fromkeys(notebook.warnings() + notebook.console):
                print("warning:", warning)
    for problem in dict.fromkeys(problems):
        print("PROBLEM:", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
