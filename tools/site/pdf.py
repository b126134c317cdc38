"""The whole course as one PDF: all pages one after the other, printed by chromium without a script."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tools.site.frame import NAME

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tools.site.build import Site

FILE = "inside-distributed-training.pdf"
HOOKS = re.compile(r'(?<=\s)(?:(?:id|for|aria-labelledby)="|href="#)')
CENTRED = "font: 8px sans-serif; width: 100%; text-align: center; color: #555"
FOOTER = f'<div style="{CENTRED}"><span class="pageNumber"></span></div>'


def whole_site(site: Site) -> str:
    """Return all pages as one HTML file: anchors are told apart by their page, nothing is folded, no script."""
    names = {page.name: page.name.removesuffix(".html") for page in site.pages}
    articles = []
    for page in site.pages:
        prefix = names[page.name]
        body = re.sub(r"(?s)<script\b.*?</script>", "", page.body)
        body = re.sub(r"<[^>]+>", lambda tag: HOOKS.sub(rf"\g<0>{prefix}--", tag[0]), body)  # noqa: B023 (used at once)
        for name, other in names.items():
            body = body.replace(f'href="{name}#', f'href="#{other}--').replace(f'href="{name}"', f'href="#{other}"')
        body = body.replace("<details", "<details open")
        articles.append(f'<article id="{prefix}" class="leaf">\n{body}\n</article>')
    listed = "".join(f'<li><a href="#{names[page.name]}">{html.escape(page.title)}</a></li>' for page in site.pages)
    front = f'<h1>{NAME}</h1><ol class="leaves">{listed}</ol>'
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{NAME}</title>
<link rel="stylesheet" href="static/site.css"></head><body><main>{front}{"".join(articles)}</main></body></html>"""


def make_pdf(site: Site, browser: Browser) -> Path:
    """Print the site into a PDF in its folder; return the file."""
    source = site.folder / "print.html"
    file = site.folder / FILE
    source.write_text(whole_site(site), encoding="utf-8")
    try:
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto(source.resolve().as_uri())
        page.pdf(
            path=file,
            prefer_css_page_size=True,
            print_background=True,
            tagged=True,
            outline=True,
            display_header_footer=True,
            header_template="<span></span>",
            footer_template=FOOTER,
        )
        page.context.close()
    finally:
        source.unlink()
    return file
