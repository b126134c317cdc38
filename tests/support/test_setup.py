"""setup() refuses a torch that the course does not run with, and says what to do."""

import re

import pytest
import torch
from packaging.version import Version

import lib
from support import setup
from tests.tools.pinned import requirements

WAY_OUT = "Run `%pip install 'torch>=2.11'` in a cell, then restart the kernel."


def test_the_oldest_torch_is_that_of_the_requirements():
    (bound,) = requirements("requirements.txt")["torch"][0].specifier
    assert Version(bound.version).release == setup.OLDEST_TORCH


@pytest.mark.parametrize("version", ["2.11.0", "2.11.1+cu128", "2.13.0+cpu", "3.0.0", "2.12.0a0+git1234", "unknown"])
def test_a_torch_that_is_new_enough_or_of_an_unknown_version_is_taken(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    setup.require_torch()


@pytest.mark.parametrize("version", ["2.10.1", "2.9.0+cu126", "1.13.1"])
def test_an_older_torch_is_named_with_the_way_out_before_anything_is_changed(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(setup, "_register_figures", lambda: pytest.fail("it went on"))
    with pytest.raises(ImportError) as raised:
        setup.setup()
    assert str(raised.value) == f"This course needs torch 2.11 or newer, and here is {version}. {WAY_OUT}"


def test_a_notebook_of_another_version_than_the_project_around_it_is_told_and_no_other(capsys):
    setup.setup(lib.__version__)
    silent = capsys.readouterr().out
    setup.setup("0.0.1")
    said = capsys.readouterr().out.removeprefix(silent)
    both = rf"for version 0\.0\.1, and the project around it has version {re.escape(lib.__version__)}:"
    assert re.search(both, said)
    assert "make copy" in said
    setup.setup()
    assert capsys.readouterr().out == silent


def test_without_torch_the_way_out_is_said(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(setup, "import_module", missing)
    with pytest.raises(ImportError) as raised:
        setup.require_torch()
    assert str(raised.value) == f"This course needs torch 2.11 or newer, and here is none. {WAY_OUT}"
