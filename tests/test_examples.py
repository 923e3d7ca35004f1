"""The folder examples: what its README shows is what happens, and its settings are those of its figures."""

import math
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from console import Shell, blocks, differs, exchanges

from discretion.runs import config
from support.heart_stand_in import EXAMPLE, README, copy_example, write_stand_in


def test_the_simulation_does_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCRETION_DATA", str(tmp_path))
    write_stand_in(tmp_path)
    copy_example(tmp_path)
    shell = Shell(tmp_path)
    shown = [exchange for block in blocks(README) if not block.why for exchange in exchanges(block)]
    assert len(shown) == 3
    for command, output in shown:
        done = shell.run(command)
        assert done.code == 0 and differs(output, done.said) is None, f"{command}\n{done.said}"


def test_who_gives_no_place_asks_the_guards() -> None:
    """`doctor` and `run` alike: without this setting doctor would ask nobody, and run would simulate."""
    clients = config.read(EXAMPLE / "config.toml").clients
    assert clients.elsewhere and clients.where == "flower"
    assert all(word in README for word in ("$ discretion doctor config.toml\n", "run config.toml --on here"))


def test_figures_are_of_the_settings_that_are_run() -> None:
    compared = tomllib.loads((EXAMPLE / "accuracy.toml").read_text(encoding="utf-8"))
    own = compared["variation"][0]["setting"]
    row = compared["row"][0]
    record = {name: compared[name] for name in ("data", "model", "plan", "train")} | own
    record["plan"] |= {"method": row["method"], "options": row["options"]}
    simulated, run = config.make(record), config.read(EXAMPLE / "config.toml")
    assert (simulated.population, simulated.data, simulated.model) == (run.population, run.data, run.model)
    assert simulated.plan == run.plan
    changed = {"randomness": "seeded", "evaluate_every": simulated.train.evaluate_every}
    assert simulated.train == run.train.model_copy(update=changed)


def test_the_uncertainty_of_the_gain_is_that_of_a_difference_on_the_same_records() -> None:
    said = " ".join(README.split())
    found = re.search(
        r"gain of (\d+) on the same (\d+) records has a standard error of ([\d.]+) points if no record is "
        r"lost in exchange, and of ([\d.]+) or more, the gain itself, from (\d+) records on",
        said,
    )
    assert found
    gain, records, least, own, differing = map(float, found.groups())

    def error(judged_differently: float) -> float:  # of a mean of differences of +1, 0 and -1, in points
        return 100 * math.sqrt(judged_differently - gain**2 / records) / records

    assert round(error(gain), 1) == least
    assert error(differing - 1) < 100 * gain / records <= error(differing) + 0.05
    assert f"{own} points, with a standard error of" in said


def test_the_comparison_runs_with_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCRETION_DATA", str(tmp_path))
    write_stand_in(tmp_path)
    copy_example(tmp_path)
    # a process of its own: workers of an earlier test's would look for the data elsewhere
    words = [
        "-m",
        "discretion",
        "experiment",
        "accuracy.toml",
        "--out",
        "accuracy",
        "--seeds",
        "1",
        "--jobs",
        "1",
    ]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "accuracy" / "table.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in table for name in ("own budgets", "strictest for all", "no privacy"))
    assert "3 of 60 cells are finished" in table
