"""The first page and the glossary in Chinese, and what the frame around a page says in each language."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from support import course
from tools.chinese import TRACKS, WILL
from tools.site.links import GLOSSARY_IN_CHINESE, Links
from tools.site.page import Page, Section
from tools.site.text import Markdown, slug


@dataclass(frozen=True)
class Said:
    """What the frame says, in one language: see tools/site/frame.py. home, glossary: the pages that it leads to."""

    lang: str
    name: str
    home: str
    glossary: str
    skip: str
    search: str
    placeholder: str
    dark: str
    course: str
    notebooks: str
    words: str
    ledger: str
    repository: str


ENGLISH = Said(
    lang="en",
    name="Inside distributed training",
    home="index.html",
    glossary="glossary.html",
    skip="Skip to the text",
    search="Search the course",
    placeholder="Search ( / )",
    dark="Dark",
    course="The course",
    notebooks="All notebooks",
    words="Glossary",
    ledger="Ledger",
    repository="Repository",
)
CHINESE = Said(
    lang="zh-CN",
    name="从内部理解分布式训练",
    home="index.zh.html",
    glossary="glossary.zh.html",
    skip="跳到正文",
    search="搜索课程",
    placeholder="搜索 ( / )",
    dark="深色",
    course="课程",
    notebooks="全部 notebook",
    words="术语表",
    ledger="论断复核",
    repository="代码仓库",
)
#: A line's end inside a Chinese sentence would be shown as a space.
LEAD = "训练数据如何到达众多 rank，一个模型如何在多块设备上运行：你来预测、编写、运行、观察、破坏、修复。不需要 GPU。"
ABOUT = (
    "这里不必安装任何东西就能读完整门课程：拖动图中的控件，先猜再看，展开提示和答案。"
    "有些机制可以直接在网页里动手<em>编写</em>，下面的列表写明是哪些页；"
    "要写出全部机制，请在 Colab 中打开 notebook，或者下载它。"
    "网页上的每个数都来自它的一次运行。notebook 为英文，课程用语的中文解释见"
)
#: What the map of the course is called, and its two tracks.
MAP = ("课程地图", "数据", "流水线")


def hours_in_chinese(chapter: course.Chapter) -> str:
    """Say how much of a reader's time a notebook takes."""
    encores = f"，选做 {chapter.encores} 分钟" if chapter.encores else ""
    return f"{course.SITTING // 60} 小时{encores}"


def index_in_chinese(pages: Sequence[Page], map_of_the_course: str) -> str:
    """Return the main part of the first page in Chinese. map_of_the_course: as on the English one."""
    tracks = []
    for track in course.TRACKS:
        cards = [_card(page, chapter) for page in pages if (chapter := course.chapter_of(page.stem)).track is track]
        if cards:
            title, about = TRACKS[track.title]
            head = f"<h2>{title}</h2>\n<p>{about}</p>"
            tracks.append(f'<section>{head}\n<ol class="cards">{"".join(cards)}</ol></section>')
    return f"""<div class="hero"><h1>{CHINESE.name}</h1>
<p class="lead">{LEAD}</p>
<p>{ABOUT}<a href="{CHINESE.glossary}">{CHINESE.words}</a>。</p></div>
{map_of_the_course}
{"".join(tracks)}"""


def _card(page: Page, chapter: course.Chapter) -> str:
    markdown = Markdown(lambda target: target)
    counts = [(page.predictions, "个预测"), (page.exercises, "个练习")]
    counted = "，".join(f"{number} {word}" for number, word in counts if number)
    stems = {each.number: each.stem for each in course.COURSE}
    needs = "、".join(f'<a href="{stems[number]}.html">{number:02}</a>' for number in chapter.needs) or "PyTorch"
    # A new notebook has a page before somebody has said in Chinese what its reader will do.
    will = f"<p>你将{markdown.inline(WILL[chapter.stem])}。</p>\n" if chapter.stem in WILL else ""
    here = f"<span>网页里可做 {page.editors} 个练习</span>" if page.editors else ""
    return f"""<li><h3><a href="{page.name}" lang="en">{html.escape(page.title)}</a></h3>
{will}<p class="quiet facts"><span>{hours_in_chinese(chapter)}</span><span>承接 {needs}</span>{here}</p>
<p class="progress">{counted}</p></li>"""


def glossary_in_chinese(links: Links) -> Page:
    """Return the page of the Chinese glossary; the anchors of its terms are those of the English one."""
    source = (links.root / GLOSSARY_IN_CHINESE).read_text(encoding="utf-8")
    rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in source.splitlines() if line.startswith("|")]
    markdown = Markdown(links.seen_from("notebooks"))
    head = "".join(part.html for part in markdown.parts(source[: source.index("\n|")]))
    stems = {stem[:2]: stem for stem in links.stems}
    terms = []
    sections = [Section(1, "", CHINESE.words, "")]
    for term, meaning, english in (map(str.strip, row) for row in rows[2:]):
        words = re.sub(r"[*`]", "", english)
        numbered = re.sub(r"\((?:\d\d(?:, )?)+\)", lambda place: linked(place[0], stems), markdown.inline(meaning))
        terms.append(
            f'<dt id="{slug(words)}">{markdown.inline(term)} <span lang="en">{markdown.inline(english)}</span></dt>'
            f"<dd>{numbered}</dd>"
        )
        plain = re.sub(r"<[^>]*>|[*`]", "", f"{meaning} {words}")
        sections.append(Section(3, slug(words), re.sub(r"[*`]", "", term), plain))
    return Page("glossary.zh", CHINESE.words, f'{head}<dl class="terms">{"".join(terms)}</dl>', sections)


def linked(text: str, stems: dict[str, str]) -> str:
    """Return the text with each notebook's number in it as a link to its page, where there is one."""

    def link(found: re.Match[str]) -> str:
        return f'<a href="{stems[found[0]]}.html">{found[0]}</a>' if found[0] in stems else found[0]

    return re.sub(r"\d\d", link, text)
