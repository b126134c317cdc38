"""Every exercise of a built site done in its page: solution, stub and famous mistakes are told what the notebook says.

Then code that nobody should write, by hand: it must be told a sentence with its line, and the page must live on.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.kit.verdict import Verdict
from tools.site import in_page, practice
from tools.site.page import field_text, solved
from tools.site.practice import Practice
from tools.site.report import Report

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

FOUND = re.compile(r'data-practice="([^"]*)"')
#: From Python to Python an exception is worded differently: its kind is compared, and what follows its place.
RAISED = re.compile(r"(your code raised \w+).*?(\(in \w+, line \d+)", re.DOTALL)
JUDGE = "(job) => window.course.judge(job)"
SHOWN = """(box) => {
  const status = box.querySelector('.practice-verdict').dataset.status;
  return status && status !== 'busy';
}"""


def practices(page: Path) -> list[Practice]:
    """Return the exercises that have an editor on a page."""
    found = [json.loads(html.unescape(data)) for data in FOUND.findall(page.read_text(encoding="utf-8"))]
    return [Practice(**each) for each in found]


def codes(one: Practice, solutions: Path, every: int = 1) -> Iterator[tuple[str, str, Verdict]]:
    """Yield what is tried: in words, as code, and what the notebook's own check says of it.

    every: of the famous mistakes the first, and so many further on the next.
    """
    found = practice.exercise_of(*one.check.split("."))
    assert found is not None
    notebook = json.loads(solutions.read_text(encoding="utf-8"))
    cells = solved(notebook)[int(one.key.partition("/")[2])]
    mine, whole = (
        [field_text(cell["source"]) for cell in some if cell["cell_type"] == "code"]
        for some in (cells, notebook["cells"])
    )
    yield "the solution", practice.solution_of(one, mine, whole), found(*found.references)
    nothing = Verdict("open", f"Not attempted yet: {found.name or found.what}.")
    yield "the stub", one.stub, nothing
    for number in range(0, len(found.famous), every):
        mistake = found.famous[number]
        answers = mistake.answer if found.answers > 1 else (mistake.answer,)
        yield f"mistake {number}", practice.mistake_of(one, number), found(*answers)


def differs(said: dict[str, Any], wanted: Verdict) -> str:
    """Say in which way a page's verdict is not the notebook's; "" if it is."""
    here = (said["status"], RAISED.sub(r"\1 \2", said["message"]))
    there = (wanted.status, RAISED.sub(r"\1 \2", wanted.message.removesuffix(in_page.CELLS)))
    return "" if here == there else f"the page says {here}, the notebook {there}"


def practise_all(page: Page, folder: Path, name: str, report: Report) -> None:
    """Ask the Python of an opened page about everything that is known of its exercises."""
    solutions = folder / "notebooks" / "solutions" / name.replace(".html", ".ipynb")
    own = practices(folder / name)
    if own:  # nothing that is tried here is endless, and a busy machine gives no sign of life for a while
        page.evaluate("window.course.patience = 60_000")
    for one in own:
        report.counts["exercises in pages"] += 1
        for what, code, wanted in codes(one, solutions):
            said = page.evaluate(JUDGE, practice.job_of(one, code))
            report.counts["verdicts in pages"] += 1
            fault = differs(said, wanted)
            report.faults += [f"{name}, {one.check}, {what}: {fault}"] if fault else []


def verdict_by_hand(page: Page, box: Locator, code: str) -> tuple[str, str]:
    """Type code into an editor, run it by its key; return status and text of the verdict."""
    box.evaluate("(box, code) => box.practice.write(code)", code)
    box.locator(".practice-verdict").evaluate("(verdict) => { verdict.dataset.status = 'busy'; }")
    box.locator(".cm-content").press("Control+Enter")
    page.wait_for_function(SHOWN, arg=box.element_handle(), timeout=60_000)
    verdict = box.locator(".practice-verdict")
    return verdict.get_attribute("data-status") or "", verdict.inner_text()


#: What nobody should write, and what must be said of it.
ODD = {
    "def f(:\n    pass": "Python can't read line 1",
    "while True:\n    pass": "it was stopped in line 1",
    "import torch": "This page's Python lacks torch",
    "f = [0] * 10**9": "more memory than a page has (in line 1",
    "def f():\n    f()\n\n\nf()": "RecursionError",
    "1 / 0": "ZeroDivisionError: division by zero (in line 1",
}


def by_hand(page: Page, report: Report) -> None:
    """Type into the first editor of an opened page what nobody should write; the editor must go on after each."""
    box = page.locator(".practice").first
    box.scroll_into_view_if_needed()
    box.locator(".cm-content").wait_for()
    for code, words in ODD.items():
        status, said = verdict_by_hand(page, box, code)
        report.counts["odd codes"] += 1
        if words not in said or status not in ("failed", "lacks"):
            report.faults.append(f"{Path(page.url).name}: of {code!r} the page says {said!r}")
