"""Markdown, formulas, code and printed text as HTML: all made while the site is built, nothing in the browser.

Markdown is CommonMark with GitHub's tables (markdown-it), formulas become MathML (latex2mathml), code is coloured by
Pygments into classes whose colours site.css knows. What cannot be shown as it was meant is an error of the build.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbconvert.filters.ansi import ansi2html
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

#: latex2mathml knows these signs by themselves, not after \Big.
FENCES = {r"\lceil": "⌈", r"\rceil": "⌉", r"\lfloor": "⌊", r"\rfloor": "⌋"}
#: Browsers know no `mathvariant` but "normal", which is a word here: as text its letters stand together.
VARIANT = re.compile(r'(?:<mi mathvariant="(?P<name>monospace|sans-serif|normal)">[^<]*</mi>)+')
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")


def mathml(formula: str, display: bool = False) -> str:
    """Return a formula in LaTeX as MathML; raises ValueError where it cannot be converted whole."""
    plain = re.sub(r"\\[{}]", "", formula)
    if plain.count("{") != plain.count("}"):
        raise ValueError(f"the formula {formula!r} has a brace without its partner")
    source = re.sub(r"(?<=[bB]ig)(?:gl|gr|l|r)?\s*(\\[lr](?:ceil|floor))", lambda sign: FENCES[sign[1]], formula)
    if display:  # latex2mathml sets what stands below them beside them
        source = re.sub(r"\\(max|min)_", r"\\\1\\limits_", source)
    try:
        made = convert(source, display="block" if display else "inline")
    except Exception as error:  # the package has one exception for each fault, and a few IndexErrors
        raise ValueError(f"the formula {formula!r} cannot be converted: {type(error).__name__} {error}") from None
    if unknown := re.search(r"\\[A-Za-z]+", made):
        raise ValueError(f"the formula {formula!r} has {unknown[0]}, which latex2mathml does not know")
    made = made.replace("<math ", f'<math alttext="{html.escape(formula)}" ', 1)
    return VARIANT.sub(lambda run: f'<mtext class="{run["name"]}">{re.sub("<[^>]*>", "", run[0])}</mtext>', made)


@lru_cache(maxsize=4096)
def code(source: str, language: str = "ipython3") -> str:
    """Return source text as HTML whose parts have Pygments' classes; raises ValueError for an unknown language."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        raise ValueError(f"Pygments knows no language {language!r}") from None
    coloured = str(highlight(source, lexer, HtmlFormatter(nowrap=True))).rstrip("\n")
    return f'<pre class="code"><code>{coloured}</code></pre>'


def printed(text: str, kind: str = "") -> str:
    """Return what a cell printed as HTML: terminal colours as classes, a line that was written over left out."""
    last = re.sub(r"[^\n]*\r(?!\n)", "", text).rstrip("\n")
    if not last:
        return ""
    classes = f"printed {kind}" if kind else "printed"
    return f'<pre class="{classes}">{ansi2html(last)}</pre>'


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it; JupyterLab's anchor gives the same."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@dataclass(frozen=True)
class Part:
    """A heading, or what stands between two headings: its HTML, and its words for the search."""

    html: str
    words: str
    level: int = 0
    id: str = ""


@dataclass
class Markdown:
    """A renderer for the cells of one page, whose headings get anchors that differ.

    link         turns the target of a link into an address; raises ValueError where it leads nowhere
    attachments  of the cell at work: name → address of the picture
    """

    link: Callable[[str], str]
    attachments: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.taken: set[str] = set()
        self._parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
        self._parser.use(dollarmath_plugin, double_inline=True, allow_space=False)
        rules: dict[str, Callable[[Token], str]] = {
            "math_inline": lambda token: mathml(token.content),
            "math_inline_double": lambda token: _block(token.content),
            "math_block": lambda token: _block(token.content),
            "math_block_label": lambda token: _block(token.content),
            "fence": lambda token: code(token.content, token.info.split()[0] if token.info.strip() else "text"),
            "code_block": lambda token: code(token.content, "text"),
            "table_open": lambda token: '<div class="scroll"><table>',
            "table_close": lambda token: "</table></div>",
            "image": self._image,
        }
        for name, rule in rules.items():
            self._parser.add_render_rule(name, _rule(rule))

    def parts(self, source: str, attachments: Mapping[str, str] | None = None) -> list[Part]:
        """Return the text of a cell, cut before and after each heading."""
        self.attachments = attachments or {}
        tokens = self._parser.parse(source)
        for token in tokens:
            self._prepare(token)
        cuts = [place for place, token in enumerate(tokens) if token.type == "heading_open" and token.level == 0]
        edges = sorted({0, *cuts, *(cut + 3 for cut in cuts), len(tokens)})
        pieces = [tokens[start:end] for start, end in pairwise(edges)]
        return [self._part(piece) for piece in pieces]

    def inline(self, source: str) -> str:
        """Return a line of Markdown as HTML without a paragraph around it."""
        tokens = self._parser.parseInline(source)
        for token in tokens:
            self._prepare(token)
        return str(self._parser.renderer.render(tokens, self._parser.options, {}))

    def _part(self, tokens: Sequence[Token]) -> Part:
        level = 0
        anchor = ""
        words = " ".join(" ".join(map(said, tokens)).split())
        if tokens[0].type == "heading_open":
            level = HEADINGS.index(tokens[0].tag) + 1
            anchor = plain = slug(heading_text(tokens[1]))
            number = 1
            while anchor in self.taken:
                anchor = f"{plain}-{number}"
                number = number + 1
            self.taken.add(anchor)
            tokens[0].attrSet("id", anchor)
            words = heading_text(tokens[1])
        else:
            for before, token in pairwise(tokens):
                if before.type == "paragraph_open" and _begins(token, "Predict"):
                    before.attrJoin("class", "predict")
        shown = str(self._parser.renderer.render(list(tokens), self._parser.options, {}))
        return Part(without_empty_heads(shown), words, level, anchor)

    def _prepare(self, token: Token) -> None:
        if token.type == "link_open":
            target = self.link(str(token.attrs["href"]))
            token.attrSet("href", target)
        for child in token.children or []:
            self._prepare(child)

    def _image(self, token: Token) -> str:
        source = str(token.attrs["src"])
        alt = token.content.strip()
        if not alt:
            raise ValueError(f"the picture {source} has no alt text")
        if source.startswith("attachment:"):
            name = source.removeprefix("attachment:")
            if name not in self.attachments:
                raise ValueError(f"the picture {name} is not attached to its cell")
            source = self.attachments[name]
        elif re.match(r"[a-z]+:|//", source):
            raise ValueError(f"the picture {source} lies outside: a page must open without a network")
        else:
            source = self.link(source)
        return f'<img class="card" src="{html.escape(source)}" alt="{html.escape(alt)}">'


def _rule(rule: Callable[[Token], str]) -> Callable[..., str]:
    def render(renderer: Any, tokens: Sequence[Token], place: int, options: Any, env: Any) -> str:
        return rule(tokens[place])

    return render


def _block(formula: str) -> str:
    return f'<div class="scroll formula">{mathml(formula.strip(), display=True)}</div>'


def _begins(token: Token, word: str) -> bool:
    children = [child for child in token.children or [] if child.type != "text" or child.content]
    return len(children) > 1 and children[0].type == "strong_open" and children[1].content.startswith(word)


def without_empty_heads(markup: str) -> str:
    """Return HTML whose tables have no head without words: the corner of a table names nothing."""
    return re.sub(r"<th\b([^>]*)>\s*</th>", r"<td\1></td>", markup)


def heading_text(token: Token) -> str:
    """Return the words of a heading."""
    kinds = {"text", "code_inline", "math_inline"}
    return "".join(child.content for child in token.children or [] if child.type in kinds)


def said(token: Token) -> str:
    """Return the words of a token, for the search."""
    if token.children is not None:
        return "".join(map(said, token.children))
    if token.type in {"softbreak", "hardbreak"}:
        return " "
    if token.type in {"html_block", "html_inline"}:
        return html.unescape(re.sub(r"<[^>]*>", " ", token.content))
    return "" if token.type == "image" else token.content
