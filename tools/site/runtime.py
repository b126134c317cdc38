"""The Python of the pages as one script that a page loads on first use: python.js, and what is in it.

Pyodide lies in static/vendored as it was published, packed; its worker and the sources that a check reads go with it.
A page from file:// may fetch nothing, so all of it is text: base64 of gzip.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.project import ROOT

HERE = Path(__file__).parent
PYODIDE = HERE / "static" / "vendored"
#: In the worker's folder tree the course lies as it does here, with what runs there beside it.
SOURCES = ((ROOT / "notebooks", "support"), (ROOT, "lib"))
READ = {".css", ".js", ".py", ".txt"}
WHEN = (1980, 1, 1, 0, 0, 0)  # the same files make the same bytes


def course_files() -> Iterator[tuple[str, Path]]:
    """Yield the files that the page's Python reads, by their names there."""
    for root, package in SOURCES:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in READ and "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix(), path
    yield "in_page.py", HERE / "in_page.py"


def course() -> bytes:
    """Return the course's sources as a zip."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in course_files():
            archive.writestr(zipfile.ZipInfo(name, WHEN), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


@cache
def python_script() -> str:
    """Return python.js: the files as base64, each packed by gzip, and the text of the worker that unpacks them."""
    files = {path.name.removesuffix(".gz"): path.read_bytes() for path in sorted(PYODIDE.glob("*.gz"))}
    files["python_stdlib.zip"] = gzip.compress((PYODIDE / "python_stdlib.zip").read_bytes(), 0, mtime=0)
    files["course.zip"] = gzip.compress(course(), 0, mtime=0)
    packed = ",\n".join(f'"{name}": "{base64.b64encode(content).decode()}"' for name, content in files.items())
    worker = (HERE / "static" / "practice_worker.js").read_text(encoding="utf-8")
    return f"window.pagePython({json.dumps(worker)}, {{\n{packed}\n}});\n"
