"""README shows what exists: its table is that of the notebooks, its picture is described by the data it draws."""

import pytest

from tools import readme
from tools.project import ROOT, notebooks

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_make_readme_with_a_row_for_every_notebook_and_needs_its_marks():
    assert readme.with_table(TEXT, readme.table()) == TEXT, "run `make readme`"
    names = [path.name for path in notebooks(ROOT) if path.parent.name == "notebooks"]
    assert [name for name in names if f"(notebooks/{name})" not in readme.table()] == []
    assert names
    with pytest.raises(ValueError, match="once each"):
        readme.with_table("# Title", "| a |")


def test_the_picture_exists_and_says_in_words_what_it_shows():
    _, alt = readme.picture()
    assert (ROOT / readme.PICTURE).stat().st_size > 10_000
    assert f"![{alt}](docs/first_screen.png)" in TEXT, "run `make readme`"
