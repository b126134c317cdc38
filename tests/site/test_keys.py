"""A run of a notebook is kept by what it depends on: no page shows a stale picture, no change of text runs anything."""

from pathlib import Path

import pytest

from tools.site.keys import imported_files, key

FILES = {
    "lib/__init__.py": "",
    "lib/near.py": "from lib import far",
    "lib/far.py": "import math",
    "lib/other.py": "",
    "notebooks/support/n08/__init__.py": "",
    "notebooks/support/n08/figures.py": "def draw():\n    from lib.near import far\n    return far",
    "notebooks/support/n08/look.css": "",
    "notebooks/support/n08/started.py": "",
    "notebooks/recorded/run.json": "{}",
    "notebooks/08_train.py": "",
}
CELLS = [
    "%matplotlib inline\nfrom support.n08.figures import draw",
    "!ls\ncommand = ['python', '-m', 'support.n08.started']",
]


@pytest.fixture
def house(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_imports_are_followed_to_the_last_file_also_those_inside_of_functions(house: Path) -> None:
    found = {
        path.relative_to(house).as_posix() for path in imported_files("from support.n08.figures import draw", (), house)
    }
    assert found == {
        "lib/__init__.py",
        "lib/near.py",
        "lib/far.py",
        "notebooks/support/n08/__init__.py",
        "notebooks/support/n08/figures.py",
    }


@pytest.mark.parametrize("name", sorted({*FILES} - {"lib/other.py"}))
def test_a_change_in_any_of_the_sources_is_another_run(house: Path, name: str) -> None:
    before = key(CELLS, root=house)
    assert key(CELLS, root=house) == before
    (house / name).write_text("# changed")
    assert key(CELLS, root=house) != before


def test_a_change_of_code_is_another_run_and_a_file_that_nobody_imports_changes_nothing(house: Path) -> None:
    before = key(CELLS, root=house)
    (house / "lib" / "other.py").write_text("# changed")
    assert key(CELLS, root=house) == before
    assert key([*CELLS, "1"], root=house) != before
    assert key(CELLS, [house / "lib" / "other.py"], root=house) != before


def test_files_that_import_each_other_are_followed_once(house: Path) -> None:
    (house / "lib" / "far.py").write_text("import lib.near")
    assert len(imported_files("import lib.far", (), house)) == 3
