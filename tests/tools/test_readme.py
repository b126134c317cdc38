"""README shows what exists: its table is that of the notebooks, its picture is described by the data it draws."""

import re

import numpy as np
import pytest
from PIL import Image

from tools import readme
from tools.project import ROOT, chapters

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_make_readme_with_a_row_for_every_notebook_and_needs_its_marks():
    assert readme.with_table(TEXT, readme.notebook_table()) == TEXT, "run `make readme`"
    assert re.findall(r"(?m)^\| \[[^]]*\]\(notebooks/([^/)]+)\)", readme.notebook_table()) == [
        path.name for path in chapters()
    ]
    with pytest.raises(ValueError, match="once each"):
        readme.with_table("# Title", "| a |")


def test_the_picture_moves_is_light_and_its_words_say_what_it_shows():
    assert f"![{readme.description()}](docs/explorer.gif)" in TEXT, "run `make readme`"
    assert (ROOT / readme.PICTURE).stat().st_size <= 1_000_000
    with Image.open(ROOT / readme.PICTURE) as stored:
        assert stored.n_frames == len(readme.DRIVEN)
        for number in (0, 5):  # 64 colours, and letters of another matplotlib, are no other picture
            stored.seek(number)
            drawn = readme.readme_frame(*readme.DRIVEN[number])
            assert np.abs(np.asarray(stored.convert("RGB"), int) - np.asarray(drawn, int)).mean() < 4, "`make readme`"
