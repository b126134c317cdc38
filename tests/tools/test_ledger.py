"""`make ledger` runs claims, tells what flipped by its exit code, and stores only what was run whole."""

import json

import pytest

from support import recordings
from support.ledger.entries import LedgerEntry, ledger_claims, stored_ledger
from tools import ledger

ONE = "pp_plus_one_held"


def test_a_claim_as_it_is_stored_has_not_flipped(capsys):
    assert ledger.main([ONE]) == 0
    said = capsys.readouterr().out
    assert "DualPipeV holds PP + 1" in said
    assert "Nothing has flipped since it was stored on" in said


def test_a_flipped_claim_is_an_exit_code(capsys, monkeypatch):
    record = json.loads(json.dumps(recordings.load("ledger")))
    record["claims"][ONE]["verdict"] = "does not hold here"
    monkeypatch.setattr(recordings, "load", lambda name: record)
    assert ledger.main([ONE]) == 1
    assert f"{ONE} flipped: it was “does not hold here”, and is “holds”" in capsys.readouterr().out


def test_without_anything_stored_it_says_what_to_do(capsys, monkeypatch):
    def nothing(name: str) -> None:
        raise FileNotFoundError(name)

    monkeypatch.setattr(recordings, "load", nothing)
    assert ledger.main([ONE]) == 1
    assert "make ledger UPDATE=1" in capsys.readouterr().out


def test_an_update_is_stored_with_versions_and_only_of_all(tmp_path, monkeypatch, capsys):
    entry = LedgerEntry("holds", "seen.", {"x": 1.0}, 0.1)
    monkeypatch.setattr(ledger, "try_all", lambda claims, tell: {claim.name: entry for claim in claims})
    assert ledger.main(["--update"], tmp_path) == 0
    record = json.loads((tmp_path / "ledger.json").read_text(encoding="utf-8"))
    assert set(record["claims"]) == set(ledger_claims())
    assert {"torch", "python", "machine", "date"} <= set(record["provenance"])
    assert stored_ledger(record)[ONE] == entry
    for wrong in (["--update", ONE], ["no_such_claim"]):
        with pytest.raises(SystemExit):
            ledger.main(wrong)
    assert "only a run of all claims is stored" in capsys.readouterr().err
