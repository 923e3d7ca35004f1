"""Warnings reach whoever looks, in terminal, JSON, live page and report; exit codes stay 0."""

import io
import json
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from discretion.cli import output
from discretion.runs.config import read
from discretion.runs.prepare import prepare
from discretion.watch.follow import Follow
from discretion.watch.live_page import view_of
from support.commands import Cli

HOPELESS = (
    *("-c", "population.budgets=groups:0.05", "-c", "population.delta=0.1"),
    *("-c", "plan.rounds=3", "-c", "train.server_learning_rate=100"),
)


def flat(text: str) -> str:
    return " ".join(text.split())


def people(discretion: Cli, folder: Path, *words: str) -> str:
    path = folder / "population.csv"
    path.write_text(discretion("population", *words).out)
    return str(path)


def test_plan_and_check_warn_and_plan_advises_by_itself(discretion: Cli, tmp_path: Path) -> None:
    hospitals = people(discretion, tmp_path, "groups:1", "--clients", "12", "--delta", "0.9", "--size", "250")
    words = ("plan", "idp_fedavg", hospitals, "--out", "plan.json")
    for done in (discretion(*words), discretion("check", "plan.json", hospitals)):
        assert done.code == 0 and "Unit of privacy: a whole client" in done.out
        assert "Warning: Delta is 0.9 for 12 of 12 clients" in done.err and "Each of 12 clients" in done.err
    record = json.loads(discretion(*words, "--json").out)
    assert [each["kind"] for each in record["warnings"]] == ["delta", "unit", "empty"]
    assert all(each["found"] and each["why"] and each["change"] for each in record["warnings"])
    assert "advice" not in record
    hospitals = people(discretion, tmp_path, "groups:1", "--clients", "12", "--size", "250")
    done = discretion("plan", "idp_fedavg", hospitals)
    assert "the noise in each parameter" in done.err and "noise over signal" in done.out
    record = json.loads(discretion("plan", "idp_fedavg", hospitals, "--json").out)
    assert record["advice"]["options"] and record["advice"]["recommended"]


def test_a_sound_plan_is_not_warned_of(discretion: Cli, tmp_path: Path) -> None:
    clinics = people(discretion, tmp_path, "groups:2,4,8", "--clients", "140", "--size", "10")
    words = ("plan", "idp_fedavg", clinics, "--rate", "0.5")
    done = discretion(*words)
    assert "Warning" not in done.err and "noise over signal" not in done.out
    assert json.loads(discretion(*words, "--json").out)["warnings"] == []


def test_a_hopeless_run_says_so_wherever_it_is_shown(discretion: Cli, small_config: Path) -> None:
    done = discretion("run", str(small_config), "--out", "run", *HOPELESS)
    assert done.code == 0
    before, after = done.err.split("round 1 of 3")
    assert "Warning: Delta is 0.1" in before and "The loss" not in before
    for told in ("Delta is 0.1", "The loss is", "train.server_learning_rate"):
        assert told in after and told in flat(discretion("show", "run").out)
        assert told in discretion("compare", "run").err
    for command in (("run", "run", "--resume"), ("show", "run"), ("compare", "run")):
        kinds = [each["kind"] for each in json.loads(discretion(*command, "--json").out)["warnings"]]
        assert kinds[0] == "diverged" and {"delta", "noise"} <= set(kinds)
    page = Path("run/report.html").read_text()
    top = page[: page.index('id="methods"')]
    assert '<span class="badge warn">diverged</span>' in top and "delta too large" in top
    assert 'class="badge good">finished<' not in page and "finished: diverged" in page
    live = view_of(Follow(Path("run")).look()).parts
    assert "diverged" in live["warnings"] and '<span class="badge warn">finished</span>' in live["marks"]


def test_a_run_that_has_not_begun_is_warned_of_for_its_plan(small_config: Path, tmp_path: Path) -> None:
    prepare(read(small_config, ["population.delta=0.9"]), tmp_path / "run")
    live = view_of(Follow(tmp_path / "run").look()).parts
    assert "Delta is 0.9" in live["warnings"] and "The loss" not in live["warnings"]


def method(path: str) -> str:
    return str(tomllib.loads(Path(path).read_text())["plan"]["method"])


def test_init_says_what_is_protected_and_takes_records(discretion: Cli) -> None:
    done = discretion("init")
    assert "a whole client" in done.err and "--protect record" in done.err
    assert method("config.toml") == "idp_fedavg"
    assert "each record (concert_records" in Path("config.toml").read_text()
    done = discretion("init", "other.toml", "--protect", "record", "--json")
    assert json.loads(done.out) == {"config": "other.toml", "unit": "record"}
    assert method("other.toml") == "concert_records"


def test_init_asks_on_a_terminal(discretion: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("patients\nrecord\n"))
    monkeypatch.setattr(output, "err", Console(stderr=True, force_terminal=True, color_system=None))
    done = discretion("init")
    assert done.code == 0 and "expected client or record" in done.err
    assert method("config.toml") == "concert_records"
