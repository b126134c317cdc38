"""Everything on a built site tried, with the network off: `make site CHECK=1`.

The files are read first (links, anchors, ids, nothing from outside, alt texts, also of all frames: no two pictures of
an explorer share theirs), then every page is opened in chromium: no script may fail and nothing be fetched, axe finds
nothing in light, dark and on a phone, every explorer, every prediction and every exercise answers as Python does, the
search finds, what was done is remembered, shown, saved and forgotten.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tools import lab
from tools.site import atlas, check_practice
from tools.site.report import Report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page
    from playwright.sync_api import Request as Asked

    from tools.site.build import Site

FETCHED = {"script": "src", "img": "src", "link": "href", "source": "src", "iframe": "src", "object": "data"}
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
GUESS = "3.7"
HEAVIEST = 45  # MB, without the PDF
#: Where, how, and what axe looks for: in the dark only colours differ, on a phone all but colours.
VIEWS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("light", {"color_scheme": "light"}, {}),
    ("dark", {"color_scheme": "dark"}, {"runOnly": ["color-contrast"]}),
    ("phone", {"viewport": PHONE}, {"rules": {"color-contrast": {"enabled": False}}}),
]


class Reader(HTMLParser):
    """Notes what a file links, fetches, names and shows."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.tags: Counter[str] = Counter()
        self.undescribed: list[str] = []
        self.styles: list[str] = []
        self.atlases: list[str] = []
        self._in_atlas = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        found = {name: value or "" for name, value in attributes}
        self.tags[tag] += 1
        if "id" in found:
            self.ids[found["id"]] += 1
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in FETCHED and FETCHED[tag] in found:
            self.fetched.append(found[FETCHED[tag]])
        if tag == "img" and not found.get("alt", "").strip():
            self.undescribed.append(found.get("src", "")[:60])
        self.styles += re.findall(r"url\(([^)]*)\)", found.get("style", ""))
        self._in_atlas = tag == "script" and found.get("type") == "application/x-atlas"
        if self._in_atlas:
            self.atlases.append("")

    def handle_data(self, data: str) -> None:
        """Note the frames of an explorer."""
        if self._in_atlas:
            self.atlases[-1] += data

    def handle_endtag(self, tag: str) -> None:
        """Note that a script is over."""
        self._in_atlas = False


def read_pages(folder: Path) -> dict[str, Reader]:
    """Read all pages of a site."""
    found = {}
    for file in sorted(folder.glob("*.html")):
        found[file.name] = Reader()
        found[file.name].feed(file.read_text(encoding="utf-8"))
    return found


def check_files(folder: Path, report: Report) -> None:
    """Try all that can be seen without a browser."""
    pages = read_pages(folder)
    for name, page in pages.items():
        report.counts["pages"] += 1
        report.counts["pictures"] += page.tags["img"]
        faults = [f"the id {hook!r} stands there {times} times" for hook, times in page.ids.items() if times > 1]
        faults += [f"the picture {source} has no alt text" for source in page.undescribed]
        alike = [words for text in page.atlases for words in atlas.told_alike(atlas.unpacked(text))]
        faults += [f"different pictures have the same alt text: {words}" for words in alike]
        faults += [] if page.tags["h1"] == 1 else [f"{page.tags['h1']} headings of the first order"]
        for source in [*page.fetched, *page.styles]:
            if re.match(r"(https?:)?//", source):
                faults.append(f"it fetches {source} from outside")
            elif not source.startswith(("data:", "#")) and not (folder / unquote(source)).exists():
                faults.append(f"the file {source} is not there")
        for link in page.links:
            report.counts["links"] += 1
            faults += broken_link(link, name, folder, pages)
        report.faults += [f"{name}: {fault}" for fault in faults]
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.suffix != ".pdf")
    report.counts["MB"] = math.ceil(size / 1e6)
    report.faults += [f"the site has {size / 1e6:.0f} MB, more than {HEAVIEST}"] if size > HEAVIEST * 1e6 else []
    for sheet in folder.glob("static/*.css"):
        outside = re.findall(r"url\(|@import", sheet.read_text(encoding="utf-8"))
        report.faults += [f"{sheet.name}: {word} fetches something" for word in outside]


def broken_link(link: str, name: str, folder: Path, pages: dict[str, Reader]) -> list[str]:
    """Return what is wrong with a link on page `name`; one that leads outside is only looked at."""
    if re.match(r"[a-z][a-z0-9+.-]*:", link):
        return (
            [] if link.startswith(("https://", "mailto:", "data:")) else [f"the link {link} is neither https nor ours"]
        )
    file, _, hook = unquote(link).partition("#")
    target = file or name
    if not (folder / target).is_file():
        return [f"the link {link} leads nowhere"]
    if hook and hook not in pages[target].ids:
        return [f"the link {link} names a heading that is not there"]
    return []


@contextmanager
def opened(browser: Browser, report: Report, **options: Any) -> Iterator[Page]:
    """Open an empty page without a network; what it asks for, and what its scripts throw, are faults."""
    context = browser.new_context(**{"viewport": DESK, "reduced_motion": "reduce", **options})
    page = context.new_page()

    def asked(request: Asked) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            report.faults.append(f"{Path(page.url).name}: asks for {request.url}")

    def complained(said: ConsoleMessage) -> None:
        if said.type == "error":
            report.faults.append(f"{Path(page.url).name}: {said.text}")

    context.route(re.compile(r"^(?!file:|data:|blob:)"), lambda route: route.abort())
    context.on("request", asked)
    page.on("pageerror", lambda error: report.faults.append(f"{Path(page.url).name}: a script failed: {error}"))
    page.on("console", complained)
    try:
        yield page
    finally:
        context.close()


def axe(page: Page, report: Report, where: str, rules: dict[str, Any]) -> None:
    """Let axe look at the page as it stands. rules: which of its rules, in its own words; empty for all."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options={"resultTypes": ["violations"], "preload": False, **rules}).response["violations"]
    report.counts["looks of axe"] += 1
    for rule in found:
        first = rule["nodes"][0]
        more = f" and {len(rule['nodes']) - 1} more" if len(rule["nodes"]) > 1 else ""
        message = f"{rule['help']}: {first['html'][:160]} ({first['target']}){more}"
        report.faults.append(f"{Path(page.url).name}, {where}: {rule['id']}, {message}")


def look(browser: Browser, folder: Path, names: Iterable[str], report: Report) -> None:
    """Open every page in light, in dark and on a phone: axe, nothing wider than the phone."""
    for where, options, rules in VIEWS:
        with opened(browser, report, **options) as page:
            for name in names:
                start = time.monotonic()
                page.goto((folder / name).resolve().as_uri(), wait_until="domcontentloaded")
                report.slowest = max(report.slowest, time.monotonic() - start)
                page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
                page.evaluate("window.course.editors?.()")
                page.wait_for_timeout(150)  # the toggles are told later
                axe(page, report, where, rules)
                wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                if wide > 0:
                    report.faults.append(f"{name}, {where}: {wide} pixels wider than the window")


def explorers(page: Page, report: Report, patience: int = 30_000) -> None:
    """Move every control of every explorer on the page through all its stops; picture and words must follow."""
    for figure in page.locator("figure.atlas").all():
        moved = figure.evaluate(MOVE, patience)
        report.counts["explorers"] += 1
        report.counts["controls"] += moved["controls"]
        report.counts["frames shown"] += moved["shown"]
        report.faults += [f"{Path(page.url).name}, {moved['id']}: {fault}" for fault in moved["faults"][:5]]


#: Each control through all its stops from the start, the others at rest; what is shown is compared with the payload.
MOVE = r"""async (figure, patience) => {
  const bytes = Uint8Array.from(atob(figure.querySelector("script").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = JSON.parse(await new Response(stream).text());
  const inputs = [...figure.querySelectorAll(".atlas-controls input, .atlas-controls select")];
  const picture = figure.querySelector(".atlas-picture"), faults = [];
  const size = (input) => input.disabled ? 1 : input.type === "checkbox" ? 2 : input.options?.length ?? +input.max + 1;
  const get = (input) => input.type === "checkbox" ? +input.checked : input.selectedIndex ?? +input.value;
  const set = (input, stop) => {
    if (input.type === "checkbox") input.checked = Boolean(stop);
    else if (input.options) input.selectedIndex = stop;
    else input.value = stop;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const wanted = () => {
    let setting = 0;
    for (const input of inputs) setting = setting * size(input) + (input.disabled ? 0 : get(input));
    return data.f[data.s[setting]][1];
  };
  const settled = async () => {
    const until = performance.now() + patience;
    while (picture.alt !== wanted() && performance.now() < until) await new Promise((go) => setTimeout(go, 5));
    const shows = () => picture.decode().then(() => true, () => false); // false too when the next frame came meanwhile
    if (!(await shows()) && !(await shows())) faults.push(`a frame cannot be shown: ${wanted().slice(0, 80)}`);
    if (picture.alt !== wanted()) faults.push(`it says ${picture.alt.slice(0, 80)}, not ${wanted().slice(0, 80)}`);
  };
  let shown = 0;
  for (const input of inputs) {
    const start = get(input);
    for (let stop = 0; stop < size(input); stop += 1) {
      set(input, stop);
      await settled();
      shown += 1;
      if (input.type === "range") {
        const said = JSON.parse(input.dataset.stops)[stop];
        if (input.getAttribute("aria-valuetext") !== said) faults.push(`the control says ${said} otherwise`);
      }
    }
    set(input, start);
    await settled();
  }
  return { id: figure.id, controls: inputs.length, shown, faults };
}"""


OFFERED = """(target) => [...document.querySelectorAll("#found a")]
  .some((link) => link.getAttribute("href") === target)"""


def searches(browser: Browser, folder: Path, report: Report) -> None:
    """Look for the title of every section of every page: the search must offer it."""
    rows = searched_sections(folder)
    with opened(browser, report) as page:
        page.goto((folder / "index.html").resolve().as_uri())
        page.locator("#search").focus()
        page.wait_for_function("window.course.found.length > 0")
        for name, hook, _, title, _ in rows:
            page.locator("#search").fill(title)
            target = f"{name}#{hook}" if hook else name
            try:
                page.wait_for_function(
                    OFFERED,
                    arg=target,
                    timeout=3000,
                )
            except Exception:
                report.faults.append(f"the search for {title!r} does not offer {target}")
            report.counts["searches"] += 1


def searched_sections(folder: Path) -> list[list[str]]:
    """Return what the search knows."""
    script = (folder / "static" / "sections.js").read_text(encoding="utf-8")
    rows: list[list[str]] = json.loads(script[script.index("(") + 1 : script.rindex(")")])
    return rows


def check_memory(browser: Browser, folder: Path, names: Iterable[str], report: Report) -> None:
    """Guess, open the solutions, mark the exercises: the index must count them, save them, and forget them."""
    with opened(browser, report) as page:
        guessed = done = 0
        for name in names:
            page.goto((folder / name).resolve().as_uri())
            for guess in page.locator(".guess").all():
                guess.locator("input").fill(GUESS)
                guess.locator("button").click()
                said = guess.locator(".guess-answer").inner_text()
                if len(said) < 10:
                    report.faults.append(f"{name}: a guess is answered by {said!r}")
                guessed += 1
            for exercise in page.locator("section.exercise").all():
                # By key: an editor that opens above it may move it from under a pointer.
                exercise.locator("details.solution > summary").press("Enter")
                exercise.locator("input[data-done]").check()
                done += 1
            # A page hears of a solution that opens a moment later, and of none once it is left.
            page.wait_for_function("count => Object.keys(course.all().opened || {}).length === count", arg=done)
        page.goto((folder / "index.html").resolve().as_uri())
        report.counts["predictions"] = guessed
        report.counts["solutions"] = done
        if guessed + done == 0:
            return
        said = page.locator("#progress-said").inner_text()
        if not re.match(rf"{guessed} of \d+ predictions? made, {done} of ", said):
            report.faults.append(f"index.html: {guessed} guesses and {done} exercises were made, it says {said!r}")
        with page.expect_download() as download:
            page.locator("#progress-save").click()
        saved = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
        found = [len(saved.get(kind, {})) for kind in ("guess", "opened", "done")]
        if found != [guessed, done, done]:
            report.faults.append(f"the saved file has {found} of {[guessed, done, done]} guesses, solutions, exercises")
        page.once("dialog", lambda dialog: dialog.accept())
        page.locator("#progress-forget").click()
        page.reload()
        if page.evaluate("Object.keys(window.course.all()).length") or page.locator("#progress").is_visible():
            report.faults.append("index.html: what was done is not forgotten")


def check_site(folder: Path, browser: Browser) -> Report:
    """Try everything on the site in a folder."""
    report = Report()
    check_files(folder, report)
    names = sorted(file.name for file in folder.glob("*.html"))
    look(browser, folder, names, report)
    with opened(browser, report) as page:
        for name in names:
            page.goto((folder / name).resolve().as_uri())
            explorers(page, report)
            check_practice.practise_all(page, folder, name, report)
        with_editor = [name for name in names if check_practice.practices(folder / name)]
        for name in with_editor[:1]:
            page.goto((folder / name).resolve().as_uri())
            check_practice.by_hand(page, report)
    searches(browser, folder, report)
    check_memory(browser, folder, [name for name in names if name[:1].isdigit()], report)
    return report


def report(site: Site) -> int:
    """Try a whole site and print what came out; return the exit code."""
    start = time.monotonic()
    with lab.browser() as browser:
        found = check_site(site.folder, browser)
    print(found.said())
    print(f"checked in {time.monotonic() - start:.0f} s", flush=True)
    return 1 if found.faults else 0
