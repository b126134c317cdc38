"""Explorers and predictions of a page without a kernel, from a file, with the network off: as Python draws and says."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lib.show.explore import Explorer, choice, explore, steps, switch
from lib.show.style import alt_text, describe, new_figure
from tests.rooms import GUESSES
from tools.site import atlas, guesses
from tools.site.near import near_start

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

STATIC = Path(atlas.__file__).parent / "static"
CONTROLS = {
    "share": steps((0.25, 0.5, 2.0), 0.5, "share"),
    "name": choice(("a <b>", "c & d"), "a <b>", "name"),
    "tall": switch(False, "tall"),
}


def draw(share: float, name: str, tall: bool) -> Any:
    figure, axes = new_figure(3, 2 if tall else 1)
    axes.barh([0], [share])
    axes.set_title(name)
    return describe(figure, f"{share} of {name}, {'tall' if tall else 'flat'}")


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return explore(draw, **CONTROLS)


@pytest.fixture(scope="module")
def frames(explorer: Explorer) -> atlas.Atlas:
    return atlas.frames_of(explorer, explorer.grid(), processes=1)


def write(path: Path, *parts: str, scripts: tuple[str, ...] = ("atlas.js", "guess.js")) -> str:
    code = "".join(f"<script>{(STATIC / script).read_text(encoding='utf-8')}</script>" for script in scripts)
    text = f"<!doctype html><html lang=en><meta charset=utf-8><title>page</title>{''.join(parts)}{code}"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def offline(browser: Browser) -> Iterator[Page]:
    """A page that may load files only, and on which no script fails."""
    context = browser.new_context()
    context.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
    asked = []
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: asked.append(str(error)))
    yield page
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    context.close()


def complaints(page: Page, explorer: Explorer, stops: atlas.Stops) -> list[str]:
    """Move the controls through all settings, and say where words or picture are not those that Python gives."""
    picture = page.locator(".atlas-picture")
    found = []
    inputs = page.locator(".atlas-controls input, .atlas-controls select").all()
    for values in atlas.settings_of(stops):
        figure = explorer.draw(**values)
        for control, name in zip(inputs, values, strict=True):
            place = stops[name].index(values[name])
            if control.get_attribute("type") == "range":
                control.fill(str(place))
                said = control.get_attribute("aria-valuetext")
                found += [f"{name} = {values[name]} reads {said}"] if said != str(values[name]) else []
            elif control.get_attribute("type") == "checkbox":
                control.set_checked(bool(place))
            else:
                control.select_option(index=place)
        page.wait_for_function("document.querySelector('.atlas-picture').src.startsWith('blob:')")
        svg = picture.evaluate("async (picture) => (await fetch(picture.src)).text()")
        if picture.get_attribute("alt") != alt_text(figure):
            found.append(f"{values}: {picture.get_attribute('alt')}")
        if svg != "\n".join(atlas.cut(atlas.svg(figure))):
            found.append(f"{values}: another picture")
    return found


def test_every_setting_of_every_control_shows_what_python_draws_and_a_wrong_frame_is_noticed(
    tmp_path: Path, offline: Page, explorer: Explorer, frames: atlas.Atlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops = explorer.grid()
    offline.goto(write(tmp_path / "page.html", atlas.fragment(explorer, stops, frames, "one")))
    assert complaints(offline, explorer, stops) == []
    assert offline.locator(".atlas-picture").evaluate("picture => picture.complete && picture.naturalWidth > 0")
    slider = offline.get_by_role("slider", name="share", exact=True)
    slider.focus()
    for _ in range(3):
        offline.keyboard.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext") == "0.25"
    offline.get_by_text("0.25 of c & d, tall").wait_for(state="attached")  # read aloud when the controls rest
    monkeypatch.setattr(atlas, "payload", lambda *given, real=atlas.payload: {**real(*given), "s": [0] * 12})
    offline.goto(write(tmp_path / "page.html", atlas.fragment(explorer, stops, frames, "one")))
    assert len(complaints(offline, explorer, stops)) == 2 * 11


def test_a_slider_too_many_sends_back_the_one_that_was_moved_first_and_the_page_says_so(
    tmp_path: Path, offline: Page
) -> None:
    names = ("load", "pin", "copy", "step")
    controls = {name: steps((1, 2, 4), 2, f"{name} (ms)") for name in names}
    explorer = explore(lambda **values: describe(new_figure(2, 1)[0], f"{values}"), **controls)
    stops = explorer.grid()
    near = near_start(explorer, stops, {"step"}, 1)
    frames = atlas.frames_of(explorer, stops, 1, near)
    offline.goto(write(tmp_path / "page.html", atlas.fragment(explorer, stops, frames, "one", near)))
    back = offline.locator(".atlas-back")

    def move(name: str, place: int, expected: tuple[int, ...], said: str) -> None:
        offline.get_by_role("slider", name=f"{name} (ms)").fill(str(place))
        alt = str(dict(zip(names, expected, strict=True)))
        offline.get_by_role("img", name=alt, exact=True).wait_for()
        assert back.inner_text() == said
        shown = [each.inner_text() for each in offline.locator(".atlas-slider output").all()]
        assert shown == [str(value) for value in expected]

    move("copy", 2, (2, 2, 4, 2), "")
    move("load", 0, (1, 2, 4, 2), "")
    move("step", 0, (1, 2, 4, 1), "")
    move("pin", 2, (1, 4, 2, 1), "copy (ms) is back at 2.")
    move("load", 2, (4, 4, 2, 1), "")
    move("copy", 0, (4, 2, 1, 1), "pin (ms) is back at 2.")
    move("step", 2, (4, 2, 1, 4), "")


@pytest.mark.parametrize("without", ["DecompressionStream", "scripts"])
def test_what_cannot_move_stands_still_and_says_so(
    tmp_path: Path, browser: Browser, explorer: Explorer, frames: atlas.Atlas, without: str
) -> None:
    page = browser.new_page(java_script_enabled=without != "scripts")
    page.add_init_script("delete window.DecompressionStream")
    page.goto(write(tmp_path / "page.html", atlas.fragment(explorer, explorer.grid(), frames, "one")))
    assert page.get_by_role("img", name="0.5 of a <b>, flat").is_visible()
    assert page.get_by_role("slider").count() == 0, "no control that does nothing"
    assert page.get_by_text("stands still").count() == (without != "scripts")
    page.close()


#: Checks that read a guess in different ways.
ASKED = [
    *("n00.guess_weight", "n01.guess_pipeline", "n01.guess_who_gains", "n02.guess_loads", "n02.guess_handed_out"),
    *("n03.guess_harmful", "n03.guess_missed_percent", "n05.guess_peak_megabytes", "n07.guess_way", "n08.guess_held"),
    *("n08.guess_idle", "n09.guess_late", "n10.guess_flops", "n11.guess_ages", "n11.guess_first"),
    *("n14.guess_interleaved", "n15.guess_loss", "n15.guess_wrong_stage"),
]


def typed(data: dict[str, Any], right: object, wrong: object) -> list[str]:
    """Return guesses as a reader may type them: near the truth, far from it, words and lists."""
    lot = random.Random(data["name"])
    known = [value for kind in ("whole", "number") for value, _ in data[kind]["at"]]
    known += [cut * factor for cut in data["number"]["cuts"] for factor in (1, 0.999, 1.001)]
    numbers = [lot.uniform(0, 2) * 10 ** lot.randint(-2, 4) for _ in range(40)] + known
    lists = [[lot.randint(0, 9) for _ in range(length)] for length in range(6)]
    words = [*data["word"]["at"], *data["word"]["folded"], "B", "ab", "no idea", "it's so", "Zebra", "NONE"]
    return [str(each) for each in (*range(60), *numbers, *lists, *words, right, wrong, -3, 1e-7, 2.5e17)]


def read(text: str, kind: str) -> Any:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
    return {"list": list, "tuple": tuple}[kind](value) if isinstance(value, list | tuple | set) else value


def test_a_page_comments_on_a_guess_as_the_check_does(tmp_path: Path, offline: Page) -> None:
    offline.goto(write(tmp_path / "page.html"))
    for name in ASKED:
        check = GUESSES[name]
        known = check.tried.known
        with guesses.one_truth(check, known, {}):
            data = {"name": name.partition(".")[2], **guesses.exported(check, *known)}
            texts = typed(data, check.tried.right, check.tried.wrong)
            expected = [check(read(text, data["list"]["as"]), *known).message for text in texts]
        said = offline.evaluate("([data, texts]) => texts.map((text) => guessComment(data, text))", [data, texts])
        wrong_ones = [pair for pair in zip(texts, said, expected, strict=True) if pair[1] != pair[2]]
        assert wrong_ones == [], name


def test_the_answer_is_seen_after_the_guess_and_remembered(tmp_path: Path, offline: Page) -> None:
    data = {"name": "guess_held", **guesses.exported(GUESSES["n08.guess_held"], 8, 4)}
    memory = "remember: (kind, id, value) => { kept[kind + id] = value; }, recall: (kind, id) => kept[kind + id]"
    memory = f"<script>const kept = {{}}; window.course = {{{memory}}};</script>"
    offline.goto(
        write(tmp_path / "page.html", memory, guesses.prediction_fragment(data, "guess-08-x-0"), scripts=("guess.js",))
    )
    field = offline.get_by_role("textbox", name="Your guess: what rank 0 has to hold")
    answer = offline.locator(".guess-answer")
    assert answer.inner_text() == ""
    assert "4 activations" not in offline.locator("body").inner_text()
    field.press("Enter")
    assert "4 activations" not in answer.inner_text()
    field.fill(" 8 activations ")
    field.press("Enter")
    assert answer.inner_text() == f"→ {GUESSES['n08.guess_held'](8, 8, 4).message}"
    assert offline.evaluate("course.recall('guess', 'guess-08-x-0')") == "8 activations"
    offline.evaluate("delete kept['guessguess-08-x-0']; window.dispatchEvent(new Event('course:changed'))")
    assert answer.inner_text() == "" == field.input_value(), "forgotten"
