"""The one line that every notebook begins with: the style of figures, their alt text, and the machine card."""

from __future__ import annotations

import base64
import re
from importlib import import_module
from typing import Any

#: As in requirements.txt: the oldest torch that the tests pass with.
OLDEST_TORCH = (2, 11)


def setup(version: str | None = None) -> None:
    """Style figures, give each an alt text, and print what this machine is.

    version: of the project that the notebook was written for; where the one around it has another, that is said.
    Works in JupyterLab, Colab and VS Code; in a plain Python session it only prints. It changes matplotlib's
    settings (the house style for your own plots too) and nothing else: no seed, no thread count, no CUDA.
    Raises ImportError, with the way out, if torch is missing or too old.
    """
    require_torch()
    import matplotlib

    from lib.machine import machine_card
    from lib.show.style import STYLE

    matplotlib.rcParams.update(STYLE)
    _register_figures()
    print(machine_card())
    if version is not None:
        print(other_version(version), end="")


def other_version(notebook: str) -> str:
    """Return what to say to a notebook of this version: nothing where it is lib's own."""
    import lib

    if notebook == lib.__version__:
        return ""
    return (
        f"This notebook was written for version {notebook}, and the project around it has version {lib.__version__}: "
        "a cell may fail, or say what is no longer so.\nTake both from one version. "
        "A copy of your own: move it away, then `make copy` makes a new one.\n"
    )


def require_torch() -> None:
    """Raise ImportError, with what to do about it, unless torch is here and not older than OLDEST_TORCH."""
    oldest = ".".join(map(str, OLDEST_TORCH))
    way_out = f"Run `%pip install 'torch>={oldest}'` in a cell, then restart the kernel."
    try:
        version = str(import_module("torch").__version__)
    except ModuleNotFoundError:
        raise ImportError(f"This course needs torch {oldest} or newer, and here is none. {way_out}") from None
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < OLDEST_TORCH:
        raise ImportError(f"This course needs torch {oldest} or newer, and here is {version}. {way_out}")


def _register_figures() -> None:
    from IPython.core.getipython import get_ipython
    from matplotlib.figure import Figure

    shell: Any = get_ipython()
    if shell is not None:
        shell.display_formatter.mimebundle_formatter.for_type(Figure, figure_bundle)


def figure_bundle(
    figure: Any, include: Any = None, exclude: Any = None
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return (data, metadata) as which Jupyter shows and stores a figure: the picture, and its description in words.

    The description is the alt text of the picture where a page supports that, and the plain text of the output
    everywhere: there nbval compares it, so a figure whose data changed is noticed although pictures are not compared.
    """
    from lib.show.style import alt_text, png, shown_size

    alt = alt_text(figure)
    width, height = shown_size(figure)
    data = {"image/png": base64.b64encode(png(figure)).decode(), "text/plain": alt}
    return data, {"image/png": {"alt": alt, "width": width, "height": height}}
