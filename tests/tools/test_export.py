"""`jupyter nbconvert --to html` keeps the words of every picture with its default template, by `.venv`'s settings."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools import environment
from tools.project import ROOT

ALT = 'A bar of height 3 & one of "5".'
PICTURE = "iVBORw0KGgo="


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    data = {"image/png": PICTURE, "text/plain": ALT}
    size = {"image/png": {"alt": ALT, "width": 300, "height": 200}}
    output = nbformat.v4.new_output("display_data", data, metadata=size)
    cells = [nbformat.v4.new_code_cell("figure", outputs=[output], execution_count=1)]
    path = tmp_path / "small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def exported(notebook: Path, settings: Path) -> str:
    command = [sys.executable, "-m", "nbconvert", "--to", "html", notebook.name]
    variables = {**os.environ, "JUPYTER_CONFIG_DIR": str(settings)}
    subprocess.run(command, cwd=notebook.parent, env=variables, check=True, capture_output=True)
    return notebook.with_suffix(".html").read_text(encoding="utf-8")


def test_the_exported_page_has_the_alt_text_and_the_picture_once(notebook: Path) -> None:
    settings = notebook.parent / "settings"
    settings.mkdir()
    shutil.copy(ROOT / "tools/nbconvert_config.py", settings / "jupyter_nbconvert_config.py")
    before = notebook.read_bytes()
    page = exported(notebook, settings)
    assert "No description has been provided" not in page
    assert 'alt="A bar of height 3 &amp; one of &quot;5&quot;."' in page or f"alt='{ALT.replace('&', '&amp;')}'" in page
    assert page.count(PICTURE) == 1
    assert 'width="300"' in page
    assert 'height="200"' in page
    assert notebook.read_bytes() == before


def test_the_environment_has_the_settings_of_both_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "VENV", tmp_path)
    environment.set_up_jupyter()
    wanted = (ROOT / "tools/nbconvert_config.py").read_text()
    for program in ("nbconvert", "server"):
        assert (tmp_path / f"etc/jupyter/jupyter_{program}_config.py").read_text() == wanted
