"""A course of two notebooks that has everything a page must show, and its site."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from unittest import mock

from matplotlib.figure import Figure

from lib.show.explore import Explorer, switch, whole
from lib.show.style import describe, png
from support import course
from support.kit.exact import exact_number
from tools.site.atlas import fragment, frames_of, stops_of
from tools.site.build import Site, build, stored
from tools.site.guesses import exported
from tools.site.run import Executed

PYPROJECT = (
    '[project]\nversion = "1"\n[project.urls]\nRepository = "https://github.com/some/where"\n[tool.idt]\nref = "v1"\n'
)
TITLE = """# {number:02d} · {name}

What is the *question*?

[![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/x)

| You will | Needs | CPU time | Previous / next |
|---|---|---|---|
| write `f`, and see | {needs} | 3 s | – |"""
PROSE = r"""## One idea & its `name`

A share of $\frac{n - 1}{m}$, [explained there](01_other.ipynb#A-second-idea), by [code](../lib/code.py); see the
[glossary](glossary.md#rank-r). ![two squares](attachment:squares.png)

$$T_{\text{all}} = \Big\lceil \frac NW \Big\rceil + \mathtt{except\_last}$$

| | right |
|---|--:|
| a `cell` | 1 |

```python
x = [n for n in range(3)]  # a line that is wider than a telephone, so that it has to scroll inside of itself
```

**Predict.** How many?"""
EXERCISE = """Then this.

### Exercise 1: write f

Write it.

<details><summary>Hint</summary>

Begin with **one**.

</details>"""
PRACTICE = "### Exercise 2: the idle share\n\nWrite it."
SOLUTION = "## Exercise 1: write f\n\nIt doubles, see [the notebook](../00_small.ipynb)."
IDLE_SHARE = """def my_idle_share(spans, lanes):
    makespan = max(end for _, _, end in spans) - min(start for _, start, _ in spans)
    worked = sum(end - start for _, start, end in spans)
    return 1 - worked / (len(lanes) * makespan)"""
OPEN = '<div role="status">○ Not attempted yet: f. Fill in the stub above.</div>'
RIGHT = '<div role="status" style="background:#e8f2f9;color:#22272e">✓ right</div>'
TABLE = "<table><thead><tr><th></th></tr></thead><tbody><tr><td>7</td></tr></tbody></table>"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"><rect width="20" height="20"/></svg>'
GLOSSARY = (
    "# Glossary\n\nThe words.\n\n| Term | Meaning | 中文 |\n|---|---|---|\n| rank *r* | a process (01) | 进程 |\n"
)


def draw(n: int, on: bool) -> Figure:
    figure = Figure(figsize=(3, 2 if n == 3 else 1))
    figure.suptitle(f"{n} squares are {'on' if on else 'off'}")
    for place in (0.1, 0.6):
        figure.add_axes((place, 0.2, 0.3, 0.4)).set_axis_off()
        figure.axes[-1].plot(range(n))
    return describe(figure, f"{n} squares, {'on' if on else 'off'}")


def text(source: str, **more: Any) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": f"m{len(source)}", "metadata": {}, "source": source, **more}


def code(name: str, source: str, *outputs: dict[str, Any], tags: tuple[str, ...] = ()) -> dict[str, Any]:
    cell = {"cell_type": "code", "id": name, "execution_count": 1, "metadata": {}, "source": source}
    return cell | {"outputs": list(outputs), "metadata": {"tags": list(tags)} if tags else {}}


def printed(said: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": said}


def shown(kind: str, content: str, **metadata: Any) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {kind: content}, "metadata": metadata}


def picture() -> str:
    return base64.b64encode(png(draw(2, True))).decode()


def cells() -> list[dict[str, Any]]:
    square = {"squares.png": {"image/png": picture()}}
    failed = {"output_type": "error", "ename": "E", "evalue": "", "traceback": ["\x1b[31mE\x1b[39m", "  <here>"]}
    return [
        text(TITLE.format(number=0, name="Small", needs="nothing")),
        code("setup", "import os", printed("cpu 2 cores\n"), tags=("setup",)),
        text(PROSE, attachments=square),
        code("ask", "my_guess = None\nchecks.guess_it(my_guess)", shown("text/html", "note", guess=0)),
        text(EXERCISE),
        code("stub", "def f(x): ..."),
        code("check", "checks.check_f(f)", shown("text/html", OPEN)),
        text("From here on the lesson goes on."),
        text(PRACTICE),
        code("stub-2", "def my_idle_share(spans, lanes): ..."),
        code("check-2", "checks.check_idle_share(my_idle_share)", shown("text/html", OPEN)),
        code("explore", "explore(draw)", shown("image/png", picture(), atlas=0)),
        code("still", "draw(2)", shown("image/png", picture(), **{"image/png": {"alt": "2 squares", "width": 300}})),
        code(
            "say",
            "print(1)",
            printed("\x1b[1;32mgreen\x1b[0m <b>\n10 %\r100 %\n"),
            printed("a warning", "stderr"),
            failed,
        ),
        code(
            "more", "table", shown("text/html", TABLE), shown("image/svg+xml", SVG, **{"image/svg+xml": {"alt": "dot"}})
        ),
        code("tex", "tex", shown("text/latex", r"$\alpha$"), shown("text/plain", "'plain'")),
    ]


def executed() -> Executed:
    explorer = Explorer(draw, {"n": whole(1, 3, 2, "n · squares"), "on": switch(True, "on")})
    stops = stops_of(explorer)
    atlas = fragment(explorer, stops, frames_of(explorer, stops), "atlas-explore-0")
    guess = exported(exact_number("the number of squares", lambda: 4, said={5: "one too many"}))
    return Executed({"cells": cells()}, {"explore": [atlas]}, {"ask": [guess]})


def notebook(content: list[dict[str, Any]]) -> str:
    return json.dumps({"cells": content, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def project(root: Path) -> list[Path]:
    """Write the course; return its notebooks."""
    folder = root / "notebooks"
    (folder / "solutions").mkdir(parents=True)
    (root / "lib").mkdir()
    (root / "lib" / "code.py").write_text("")
    (root / "pyproject.toml").write_text(PYPROJECT)
    (folder / "glossary.md").write_text(GLOSSARY)
    other = [
        text(TITLE.format(number=1, name="Other", needs="[00](00_small.ipynb)")),
        text("## A second idea\n\nWords."),
    ]
    solution = [
        text("# Solutions"),
        text(SOLUTION),
        code("s", "def f(x):\n    return 2 * x", shown("text/html", RIGHT)),
        text("## Exercise 2: the idle share"),
        code("s-2", IDLE_SHARE, shown("text/html", RIGHT)),
    ]
    for name, content in (("00_small", cells()), ("01_other", other)):
        (folder / f"{name}.ipynb").write_text(notebook(content))
        own = solution if name == "00_small" else solution[:1]
        (folder / "solutions" / f"{name}.ipynb").write_text(notebook(own))
    return sorted(folder.glob("*.ipynb"))


COURSE = (
    course.Chapter("00_small", "Small", course.START, (), "small"),
    course.Chapter("01_other", "Other", course.DATA, (0,), "other"),
)


def site(root: Path) -> Site:
    """Build the site of the small course, which has a map of its own."""
    with mock.patch.object(course, "COURSE", COURSE):
        return build(root / "site", project(root), lambda path: executed() if path.stem == "00_small" else stored(path))
