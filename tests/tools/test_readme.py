"""README shows what exists: its table is that of the notebooks, its picture is described by the data it draws."""

import pytest

from tools import readme
from tools.project import ROOT, notebooks

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_the_one_that_make_readme_writes():
    assert readme.with_table(TEXT, readme.table()) == TEXT, "run `make readme`"


def test_every_notebook_has_a_row():
    names = [path.name for path in notebooks(ROOT) if path.parent.name == "notebooks"]
    assert [name for name in names if f"(notebooks/{name})" not in readme.table()] == []
    assert names


def test_the_picture_exists_and_says_in_words_what_it_shows():
    _, alt = readme.picture()
    assert (ROOT / readme.PICTURE).stat().st_size > 10_000
    assert f"![{alt}](docs/first_screen.png)" in TEXT, "run `make readme`"


def test_a_readme_without_the_marks_is_refused():
    with pytest.raises(ValueError, match="once each"):
        readme.with_table("# Title", "| a |")
