"""Keep the words of pictures in exported pages: settings of nbconvert and of JupyterLab, which lie in `.venv`.

The default template has no place for the alt text of a picture in an output: it writes "No description has been
provided for this image". So each picture is exported as an <img> of our own; the notebook stays as it is.
tools/environment.py copies this file into `.venv`, where both programs look for it.
"""

from __future__ import annotations

import html
from typing import Any


def show_alt_texts(notebook: Any, resources: Any) -> tuple[Any, Any]:
    """Show each picture that has an alt text as HTML, the kind of output that the template prefers."""
    for output in [output for cell in notebook.cells for output in cell.get("outputs", [])]:
        data = output.get("data", {})
        words = output.get("metadata", {}).get("image/png", {})
        if "image/png" in data and "text/html" not in data and words.get("alt"):
            size = "".join(f'{side}="{words[side]}" ' for side in ("width", "height") if side in words)
            source = f"data:image/png;base64,{data.pop('image/png').strip()}"
            data["text/html"] = f'<img alt="{html.escape(words["alt"])}" {size}src="{source}">'
    return notebook, resources


if "get_config" in globals():  # this file is read as settings
    globals()["get_config"]().HTMLExporter.preprocessors = [show_alt_texts]
