"""A recording without its provenance is not shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lib import recorded


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder with notebooks/recorded in it, away from the repository."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "notebooks" / "recorded"


def test_what_is_saved_is_loaded_with_the_versions_it_was_measured_with(here: Path) -> None:
    import numpy as np
    import torch

    recorded.save(
        "probe", {"rows": [{"who": "ours", "seconds": 0.5}]}, command="python -m probe", folder=here
    )
    record = recorded.load("probe")
    assert record["rows"] == [{"who": "ours", "seconds": 0.5}]
    assert record["provenance"]["torch"] == torch.__version__
    assert record["provenance"]["numpy"] == np.__version__
    assert record["provenance"]["command"] == "python -m probe"


def test_the_lines_under_a_table_name_machine_date_versions_and_command(here: Path) -> None:
    recorded.save("probe", {}, command="python -m probe", folder=here, gpu="GPU of the test", driver="1.2")
    record = recorded.load("probe")
    lines = recorded.provenance(record)
    assert "GPU of the test" in lines
    for name in recorded.PROVENANCE:
        assert record["provenance"][name] in lines


@pytest.mark.parametrize("missing", recorded.PROVENANCE)
def test_a_recording_with_a_gap_in_its_provenance_is_refused(here: Path, missing: str) -> None:
    file = recorded.save("probe", {}, command="python -m probe", folder=here)
    record = json.loads(file.read_text())
    record["provenance"][missing] = " "
    file.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=missing):
        recorded.load("probe")


@pytest.mark.parametrize("content", ["[]", "{}", '{"provenance": "somewhere"}'])
def test_a_file_without_any_provenance_is_refused(here: Path, content: str) -> None:
    here.mkdir(parents=True)
    (here / "probe.json").write_text(content)
    with pytest.raises(ValueError, match="provenance"):
        recorded.load("probe")


@pytest.mark.parametrize("name", ["../secret", "samplers.json", "", "a/b"])
def test_a_name_is_a_bare_name_and_no_path(name: str) -> None:
    with pytest.raises(ValueError, match="bare name"):
        recorded.load(name)


def test_a_recording_that_nobody_made_is_a_missing_file(here: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nobody_made_this"):
        recorded.load("nobody_made_this")


@pytest.mark.parametrize("data", [{"seconds": float("nan")}, {"seconds": object()}])
def test_a_recording_that_fails_leaves_the_old_one_and_no_rubbish(here: Path, data: dict[str, Any]) -> None:
    recorded.save("probe", {"seconds": 1.0}, command="python -m probe", folder=here)
    with pytest.raises((TypeError, ValueError)):
        recorded.save("probe", data, command="python -m probe", folder=here)
    assert recorded.load("probe")["seconds"] == 1.0
    assert [file.name for file in here.iterdir()] == ["probe.json"]


def test_data_cannot_bring_its_own_provenance(here: Path) -> None:
    with pytest.raises(ValueError, match="provenance"):
        recorded.save("probe", {"provenance": {}}, command="python -m probe", folder=here)


def test_a_measurement_names_the_command_that_repeats_it(here: Path) -> None:
    with pytest.raises(ValueError, match="command"):
        recorded.save("probe", {}, command="", folder=here)
