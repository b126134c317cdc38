"""Make what README shows from what exists: the moving picture on its first screen, and the table of notebooks.

    make readme

The picture is an explorer of notebook 08, driven as a reader would. The table has a row for each notebook of the map,
support/course.py: its words are those of the notebook's own title table, its hours those of the map. README.zh.md has
the same table in Chinese, whose words stand in tools/chinese.py.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from support import course
from tools import chinese
from tools.project import ROOT
from tools.title import title_table

if TYPE_CHECKING:
    from PIL.Image import Image

    from lib.show.explore import Slider

PICTURE = Path("docs/explorer.gif")
WIDE = 900  # pixels
MILLISECONDS = 650  # of a frame
LONGER = 2_000  # of the first and of the last one
#: (micro-batches, partitions) one after another: one control moves at a time.
DRIVEN = [*((m, 4) for m in range(1, 13)), (12, 3), (12, 2), (12, 3), (12, 4)]
BEGIN = "<!-- notebooks: made by `make readme` -->"
END = "<!-- /notebooks -->"


@dataclass(frozen=True)
class Words:
    """What a table of notebooks says in one language, beside the notebooks' own words."""

    head: tuple[str, str, str, str]
    hours: str
    encores: str
    total: str
    tracks: str
    comma: str
    last: str


ENGLISH = Words(
    head=("Notebook", "You will", "Your time", "Goes on from"),
    hours="{} h",
    encores=" + {} min",
    total="Your time is that of a whole notebook with its exercises, and behind the plus that of its encores, "
    "which nothing builds on: {} hours in all, and {} of encores.",
    tracks="Both tracks start at {begin}: data {data}, pipeline {pipeline}. They meet in {meet}.",
    comma=", ",
    last=" and ",
)
CHINESE = Words(
    head=("Notebook", "你将", "所需时间", "承接"),
    hours="{} 小时",
    encores=" + {} 分钟",
    total="所需时间包括做完全部练习；加号后面是选做内容，后续笔记本不依赖它们。共 {} 小时，另有选做 {} 小时。",
    tracks="两条路线都从 {begin} 开始：数据路线 {data}，流水线路线 {pipeline}，最后在 {meet} 汇合。",
    comma="、",
    last="、",
)
#: The files that have the table, and in which words.
FILES = {"README.md": ENGLISH, "README.zh.md": CHINESE}


def notebook_table(root: Path = ROOT, words: Words = ENGLISH) -> str:
    """Return the table of notebooks in Markdown, with a reader's hours."""
    lines = [f"| {' | '.join(words.head)} |", "|---|---|---|---|"]
    for chapter in course.COURSE:
        lines.append(f"| {' | '.join(_row(chapter, root, words))} |")
    return "\n".join([*lines, "", total(words), "", tracks(words)])


def _row(chapter: course.Chapter, root: Path, words: Words) -> tuple[str, str, str, str]:
    file = f"{chapter.stem}.ipynb"
    _, columns = title_table(root / "notebooks" / file)
    will = columns["You will"]
    if words is CHINESE:
        will = chinese.WILL.get(chapter.stem, will)
    time = words.hours.format(course.SITTING // 60)
    if chapter.encores:
        time += words.encores.format(chapter.encores)
    stems = {each.number: each.stem for each in course.COURSE}
    needs = words.comma.join(f"[{number:02}](notebooks/{stems[number]}.ipynb)" for number in chapter.needs)
    return f"[{chapter.name}](notebooks/{file})", will, time, needs or "PyTorch"


def total(words: Words = ENGLISH) -> str:
    """Return the sentence that says what the hours count, and how many they are."""
    required = course.SITTING * len(course.COURSE) / 60
    encores = sum(chapter.encores for chapter in course.COURSE) / 60
    return words.total.format(f"{required:g}", f"{encores:.0f}")


def tracks(words: Words = ENGLISH) -> str:
    """Return the sentence that says which notebooks lie on which track."""
    start = course.on(course.START)

    def numbers(chapters: Sequence[course.Chapter]) -> str:
        return course.numbers(chapters, "–").replace(", ", words.comma).replace(" and ", words.last)

    return words.tracks.format(
        begin=numbers(start),
        data=numbers([*start, *course.on(course.DATA)]),
        pipeline=numbers([*start, *course.on(course.PIPELINE)]),
        meet=numbers(course.on(course.TOGETHER)),
    )


def with_table(text: str, rows: str) -> str:
    """Return README's text with the table between its two marks replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"README.md must hold {BEGIN!r} and {END!r} once each")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{rows}\n{END}{rest.split(END)[1]}"


def readme_frame(micro_batches: int, partitions: int) -> Image:
    """Draw the explorer at one setting, with its sliders."""
    from PIL import Image

    from lib.pipeline.pipeline import clock_cycles
    from lib.show.style import png
    from support.n08.figures import BUBBLE_CONTROLS, draw_bubble

    drawn = png(draw_bubble(clock_cycles, micro_batches, partitions), colors=None)
    figure = Image.open(io.BytesIO(drawn)).convert("RGB")
    figure = figure.resize((WIDE, round(WIDE * figure.height / figure.width)), Image.Resampling.LANCZOS)
    return with_sliders(figure, BUBBLE_CONTROLS, dict(zip(BUBBLE_CONTROLS, (micro_batches, partitions), strict=True)))


def moving_picture() -> bytes:
    """Return README's picture, a GIF that moves."""
    from PIL import Image

    frames = [readme_frame(*settings) for settings in DRIVEN]
    # One palette for all, or every frame would bring its own, and greys would flicker.
    both = Image.new("RGB", (WIDE, 2 * frames[0].height))
    both.paste(frames[0])
    both.paste(frames[-1], (0, frames[0].height))
    palette = both.quantize(64, method=Image.Quantize.MAXCOVERAGE)
    few = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in frames]
    file = io.BytesIO()
    shown = [LONGER, *[MILLISECONDS] * (len(few) - 2), LONGER]
    few[0].save(file, format="GIF", save_all=True, append_images=few[1:], duration=shown, loop=0, optimize=False)
    return file.getvalue()


def description(words: Words = ENGLISH) -> str:
    """Return what README's picture shows, in words."""
    from lib.pipeline.pipeline import clock_cycles
    from support.n08.figures import idle_share

    first, last = (f"{100 * idle_share(clock_cycles, *settings):.0f} %" for settings in (DRIVEN[0], DRIVEN[-1]))
    if words is CHINESE:
        return chinese.PICTURE.format(first=first, last=last, partitions=DRIVEN[0][1], most=DRIVEN[-1][0])
    return (
        "An explorer of notebook 08, driven: its sliders set the number of micro-batches and of partitions, and the "
        f"clock table of a pipeline follows. On {DRIVEN[0][1]} partitions {first} of the cells are idle with "
        f"{DRIVEN[0][0]} micro-batch, {last} with {DRIVEN[-1][0]}; beside it the idle share as a curve."
    )


def with_sliders(figure: Image, controls: Mapping[str, Slider], values: Mapping[str, int]) -> Image:
    """Return the picture of a figure below a row of its sliders, set to these values."""
    from matplotlib import font_manager
    from PIL import Image, ImageDraw, ImageFont

    from lib.show.style import BLUE, INK

    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), 15)
    whole = Image.new("RGB", (figure.width, figure.height + 48), "white")
    whole.paste(figure, (0, 48))
    pen = ImageDraw.Draw(whole)
    left = 24
    for name, control in controls.items():
        pen.text((left, 24), control.label, INK, font, anchor="lm")
        start = left + 12 + pen.textlength(control.label, font)
        low = control.options[0]
        high = control.options[-1]
        knob = start + 180 * (values[name] - low) / (high - low)
        pen.rounded_rectangle((start, 22, start + 180, 26), 2, "#d0d5da")
        pen.rounded_rectangle((start, 22, knob, 26), 2, BLUE)
        pen.ellipse((knob - 8, 16, knob + 8, 32), "white", BLUE, 3)
        pen.text((start + 200, 24), str(values[name]), INK, font, anchor="lm")
        left = round(start) + 260
    return whole


def with_picture(text: str, alt: str) -> str:
    """Return README's text with the picture's description in its place."""
    return re.sub(
        r"!\[[^\]]*\]\(" + re.escape(PICTURE.as_posix()) + r"\)", lambda _: f"![{alt}]({PICTURE.as_posix()})", text
    )


def main() -> int:
    """Write the picture and the files that show it."""
    (ROOT / PICTURE).parent.mkdir(exist_ok=True)
    (ROOT / PICTURE).write_bytes(moving_picture())
    for name, words in FILES.items():
        file = ROOT / name
        text = file.read_text(encoding="utf-8")
        text = with_picture(text, description(words))
        file.write_text(with_table(text, notebook_table(words=words)), encoding="utf-8")
    print(f"{' and '.join(FILES)} and their picture are made anew.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
