"""README shows what exists, in both languages: its table is that of the notebooks, its picture told by its data."""

import re

import numpy as np
import pytest
from PIL import Image

from tools import readme
from tools.project import ROOT, chapters

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", readme.FILES)
def test_table_and_description_are_those_of_make_readme(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    words = readme.FILES[name]
    assert readme.with_table(text, readme.notebook_table(words=words)) == text, "run `make readme`"
    assert f"![{readme.description(words)}](docs/explorer.gif)" in text, "run `make readme`"


def test_the_table_has_a_row_for_every_notebook_and_needs_its_marks():
    assert re.findall(r"(?m)^\| \[[^]]*\]\(notebooks/([^/)]+)\)", readme.notebook_table()) == [
        path.name for path in chapters()
    ]
    with pytest.raises(ValueError, match="once each"):
        readme.with_table("# Title", "| a |")


def test_a_stranger_reads_a_thousand_words_before_the_table_is_through():
    plain = re.sub(r"```.*?```|<!--.*?-->|!\[[^\]]*\]|\]\([^)]*\)", "", TEXT, flags=re.DOTALL)
    table = [line for line in plain.splitlines() if line.startswith("|")]
    assert len(plain.split()) - len(" ".join(table).split()) <= 600


def test_the_picture_moves_and_is_light():
    assert (ROOT / readme.PICTURE).stat().st_size <= 1_000_000
    with Image.open(ROOT / readme.PICTURE) as stored:
        assert stored.n_frames == len(readme.DRIVEN)
        for number in (0, 5):  # 64 colours, and letters of another matplotlib, are no other picture
            stored.seek(number)
            drawn = readme.readme_frame(*readme.DRIVEN[number])
            assert np.abs(np.asarray(stored.convert("RGB"), int) - np.asarray(drawn, int)).mean() < 4, "`make readme`"
