"""The ledger as a page: every claim with its source, what it says here and its verdict, stamped with versions."""

import re
from pathlib import Path

import pytest

from support import recordings
from support.ledger.entries import ledger_claims, stored_ledger
from tests.site import small
from tools.site import check
from tools.site.build import Site
from tools.site.ledger import ledger_page
from tools.site.links import Links


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return small.site(tmp_path_factory.mktemp("course"))


def text_of(site: Site, name: str) -> str:
    return (site.folder / name).read_text(encoding="utf-8")


def test_every_claim_stands_there_with_source_and_verdict(site: Site):
    shown = text_of(site, "ledger.html")
    words = re.sub(r"<[^>]*>", "", shown).replace("&#x27;", "'").replace("&amp;", "&")
    stored = stored_ledger()
    for name, claim in ledger_claims().items():
        entry = stored[name]
        assert f'<h3 id="{name}">' in shown
        for told in (claim.title, claim.says, claim.source, entry.saw, entry.verdict[1:]):
            assert told in words, told
        assert f'href="{claim.link}"' in shown
    assert shown.count('class="claim"') == len(stored)


def test_it_is_stamped_with_the_versions_that_said_so(site: Site):
    shown = text_of(site, "ledger.html")
    origin = recordings.load("ledger")["provenance"]
    for part in (f"torch {origin['torch']}", f"Python {origin['python']}", origin["date"], origin["machine"]):
        assert part in shown


def test_the_index_every_footer_and_the_search_lead_to_it(site: Site):
    index = text_of(site, "index.html")
    assert index[index.index('class="hero"') : index.index('class="map')].count('href="ledger.html"') == 1
    for page in site.folder.glob("*.html"):
        assert 'href="ledger.html"' in page.read_text(encoding="utf-8")
    rows = check.searched_sections(site.folder)
    assert any(row[:2] == ["ledger.html", "pp_plus_one_held"] for row in rows)
    assert 'aria-label="On this page"' in text_of(site, "ledger.html")


def test_a_stored_ledger_of_other_claims_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    record = recordings.load("ledger")
    claims = {name: entry for name, entry in record["claims"].items() if name != "pp_plus_one_held"}
    monkeypatch.setattr(recordings, "load", lambda name: {**record, "claims": claims})
    with pytest.raises(ValueError, match=r"pp_plus_one_held\): make ledger UPDATE=1"):
        ledger_page(Links([], tmp_path))
