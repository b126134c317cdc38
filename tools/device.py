"""Build the simulated device before somebody waits for it: `make lab` does so while JupyterLab opens.

It says what it builds, and in one line why it can't; a notebook then shows a recording. It never fails.
"""

from __future__ import annotations

from lib.simulated import BuildError
from lib.simulated.build import build_library


def main() -> None:
    """Build the library, unless it is there."""
    try:
        build_library()
    except BuildError as error:
        print(f"No simulated GPU, so notebook 13 shows a recording in its place: {error}", flush=True)


if __name__ == "__main__":
    main()
