"""Settings of nbconvert and of JupyterLab's export, copied into `.venv` by tools/environment.py: pictures keep their words.

nbconvert's default template has no place for the alt text of a picture in an output, and writes "No description has been
provided for this image". So a page is exported with each picture as an <img> of our own; the notebook stays as it is.
"""

from __future__ import annotations

import html
from typing import Any


def describe(cell: Any, resources: Any, index: int) -> tuple[Any, Any]:
    """Show each picture of a cell that has an alt text as HTML (nbconvert calls it for every cell)."""
    for output in cell.get("outputs", []):
        data, words = output.get("data", {}), output.get("metadata", {}).get("image/png", {})
        if "image/png" in data and "text/html" not in data and words.get("alt"):
            size = "".join(f' {side}="{words[side]}"' for side in ("width", "height") if side in words)
            alt = html.escape(words["alt"], quote=True)
            data["text/html"] = f'<img alt="{alt}"{size} src="data:image/png;base64,{data.pop("image/png").strip()}">'
    return cell, resources


def preprocess(notebook: Any, resources: Any) -> tuple[Any, Any]:
    """Apply `describe` to a notebook."""
    for index, cell in enumerate(notebook.cells):
        describe(cell, resources, index)
    return notebook, resources


if "get_config" in globals():  # read as a settings file
    get_config().HTMLExporter.preprocessors = [preprocess]  # type: ignore[name-defined]  # noqa: F821
