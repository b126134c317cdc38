"""Make what README shows from what exists: the picture on its first screen, and the table of notebooks.

    make readme

The picture is drawn by lib. A row of the table takes its words from the notebook's own title table, its seconds from
the recording that `make run RECORD=1` leaves.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat

from support import recordings
from tools.project import ROOT, notebooks

PICTURE = Path("docs/first_screen.png")
BEGIN, END = "<!-- notebooks: made by `make readme` -->", "<!-- /notebooks -->"


def title_table(path: Path) -> tuple[str, dict[str, str]]:
    """Return a notebook's title and the columns of its title table."""
    text = nbformat.read(path, as_version=4).cells[0].source
    title = re.match(r"# (.+)", text)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    if title is None or len(rows) < 3:
        raise ValueError(f"{path.name} does not begin with a title and a table")
    return title[1], dict(zip(rows[0], rows[2], strict=True))


def table(root: Path = ROOT) -> str:
    """Return the table of notebooks in Markdown, with the seconds that were recordings."""
    record = recordings.load("seconds")
    lines = ["| Notebook | You will | CPU seconds | Needs |", "|---|---|---|---|"]
    for path in notebooks(root):
        if path.parent.name == "notebooks":
            title, columns = title_table(path)
            seconds = record["seconds"].get(path.name)
            shown = "–" if seconds is None else f"{seconds:.0f}"
            needs = re.sub(r"\]\((?=\d\d_)", "](notebooks/", columns["Needs"])  # links as seen from README
            lines.append(f"| [{title}](notebooks/{path.name}) | {columns['You will']} | {shown} | {needs} |")
    made = record["provenance"]
    return "\n".join([*lines, "", f"Seconds of a whole run on {made['machine']}, {made['date']}; no GPU needed."])


def with_table(text: str, rows: str) -> str:
    """Return README's text with the table between its two marks replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"README.md must hold {BEGIN!r} and {END!r} once each")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{rows}\n{END}{rest.split(END)[1]}"


def picture() -> tuple[bytes, str]:
    """Return README's picture as PNG, and its description."""
    from lib.show.style import alt_text, png
    from support.n03.figures import draw_mechanism

    figure = draw_mechanism()
    return png(figure), alt_text(figure)


def with_picture(text: str, alt: str) -> str:
    """Return README's text with the picture's description in its place."""
    return re.sub(
        r"!\[[^\]]*\]\(" + re.escape(PICTURE.as_posix()) + r"\)", lambda _: f"![{alt}]({PICTURE.as_posix()})", text
    )


def main() -> int:
    """Write the picture and README."""
    readme, (image, alt) = ROOT / "README.md", picture()
    (ROOT / PICTURE).parent.mkdir(exist_ok=True)
    (ROOT / PICTURE).write_bytes(image)
    text = readme.read_text(encoding="utf-8")
    readme.write_text(with_table(with_picture(text, alt), table()), encoding="utf-8")
    print("README.md and its picture are made anew.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
