"""The gate of branch coverage lets a folder through at its floor, and not below."""

import json
from pathlib import Path

import coverage_gate
import pytest


@pytest.mark.parametrize(("taken", "code"), [(4, 0), (3, 1)])
def test_a_folder_below_its_floor_fails(
    taken: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = [[12, -7]] * (4 - taken)
    files = {
        f"src/discretion/plan/{name}.py": {
            "summary": {"covered_branches": branches, "num_branches": 4},
            "missing_branches": missing if branches < 4 else [],
        }
        for name, branches in (("plan", taken), ("phase", 4))
    }
    (tmp_path / "coverage.json").write_text(json.dumps({"files": files}))
    monkeypatch.setattr(coverage_gate, "FLOORS", {"plan": 100.0})
    assert coverage_gate.main(tmp_path / "coverage.json") == code
    said = capsys.readouterr().out
    assert ("BELOW" in said) == ("not taken: plan/plan.py:12->7" in said) == bool(code)


def test_a_folder_without_a_floor_needs_all_and_one_that_was_not_measured_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = {"covered_branches": 3, "num_branches": 4}
    new = {"src/discretion/new/x.py": {"summary": summary, "missing_branches": [[1, 2]]}}
    (tmp_path / "coverage.json").write_text(json.dumps({"files": new}))
    monkeypatch.setattr(coverage_gate, "FLOORS", {})
    assert coverage_gate.main(tmp_path / "coverage.json") == 1
    (tmp_path / "coverage.json").write_text(json.dumps({"files": {}}))
    monkeypatch.setattr(coverage_gate, "FLOORS", {"guard": 0.0})
    assert coverage_gate.main(tmp_path / "coverage.json") == 1
