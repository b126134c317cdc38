"""`make copy`: a folder of one's own, in which the notebooks run and link as in theirs, and which git does not see."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import copies, setup_cell
from tools.hygiene import StoredNotebook, has_working_links
from tools.project import ROOT, address, chapters


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that shares all folders with this one but the copy."""
    folder = tmp_path_factory.mktemp("project")
    for path in ROOT.iterdir():
        if path.name not in {".git", ".venv", "mine"}:
            (folder / path.name).symlink_to(path)
    copies.copy_for_reader(folder)
    return folder


def test_all_notebooks_and_what_they_start_are_copied_once_and_what_was_written_there_stays(tmp_path: Path) -> None:
    (tmp_path / "notebooks" / "solutions").mkdir(parents=True)
    for name in ("00_x.ipynb", "00_x.py", "glossary.md", "ruff.toml", "solutions/00_x.ipynb"):
        (tmp_path / "notebooks" / name).write_text(name)
    new, own = copies.copy_for_reader(tmp_path)
    names = ["mine/00_x.ipynb", "mine/00_x.py", "mine/glossary.md", "mine/solutions/00_x.ipynb"]
    assert [path.relative_to(tmp_path).as_posix() for path in new] == names
    assert own == []
    new[0].write_text("my answer")
    new[1].unlink()
    assert copies.copy_for_reader(tmp_path) == ([new[1]], [new[0]])
    assert new[0].read_text() == "my answer"


def test_who_asks_for_help_gets_help_and_no_copy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(copies, "copy_for_reader", lambda: pytest.fail("it copied"))
    for argument, code in (("--help", 0), ("03", 2)):
        with pytest.raises(SystemExit) as ended:
            copies.main([argument])
        assert ended.value.code == code
    assert "make copy" in capsys.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="links to the rooms need a symbolic link")
def test_links_lead_as_far_from_the_copy(root: Path) -> None:
    pages = sorted((root / "mine").glob("*.ipynb"))
    assert [page.name for page in pages] == [chapter.name for chapter in chapters()]
    faults = {page.name: has_working_links(StoredNotebook.read(page, root)) for page in pages}
    assert {name: said for name, said in faults.items() if said} == {}


@pytest.mark.parametrize("folder", [pytest.param("mine", marks=pytest.mark.costly), "mine/solutions"])
def test_the_set_up_cell_finds_the_project_from_the_copy(root: Path, folder: str) -> None:
    code = f"{setup_cell.text(address())}\nimport support\nprint(root, support.__file__)"
    lines = [line for line in code.splitlines() if not line.strip().startswith("!")]
    lines[next(n for n, line in enumerate(lines) if "if not root.exists()" in line)] = "    pass"
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=root / folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()[-1]
    assert found == f"{root.resolve()} {root.resolve() / 'notebooks' / 'support' / '__init__.py'}"


def test_git_looks_past_it() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert f"/{copies.FOLDER}/" in ignored
