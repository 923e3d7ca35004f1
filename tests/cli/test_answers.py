"""Runs on guards in which nobody trains: they stop with a code of their own, and every page says so first."""

import json
from pathlib import Path

import pytest

from discretion.errors import AnswersError, ConfigError
from discretion.ledger.ledger import Ledger
from discretion.runs.config import read
from discretion.runs.history import read_answers
from discretion.runs.preflight import Preflight
from discretion.runs.read import read_run
from discretion.watch.follow import Follow
from discretion.watch.live_page import view_of
from support.commands import Cli, runner
from support.guard_process import Process

SETTINGS = """
seed = 5
[population]
clients = 4
budgets = "groups:8,16"
[data]
name = "digits"
records = 30
[model]
name = "linear"
[plan]
method = "spend_as_you_go"
rounds = 3
rate = 0.6
clip = 0.5
[train]
threads = 1
[clients]
where = "guards"
addresses = "guards/addresses.toml"
key = "guards/operator.key"
"""
NOBODY = "0 of 4 clients answered at round 1"
STOPPED = f"{NOBODY}, too few: the run stopped before the model moved."


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text(SETTINGS)
    return tmp_path


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if guards had ended, or policies had changed, right after all were ready."""
    monkeypatch.setattr(Preflight, "require", lambda found: None)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return runner(monkeypatch, capsys)


def test_a_run_without_guards_stops_says_so_first_and_goes_on_when_they_are_there(
    here: Path, cli: Cli, gone: None
) -> None:
    assert cli("guards", "config.toml").code == 0
    done = cli("run", "config.toml", "--out", "run")
    assert done.code == 5 and NOBODY in done.err and "spent" not in done.err.split(NOBODY)[1]
    assert not read_run("run").finished and read_run("run").history.done == 0
    with Ledger.existing(here / "run" / "ledger.sqlite") as ledger:
        assert not ledger.runs and not ledger.spent().any()  # nothing is charged
    with pytest.raises(AnswersError, match="Go on with `discretion run run --resume`"):
        read_run("run").require_answers()
    said_first(cli)
    guards = [Process(here / "guards" / f"c{i}" / "GUARD.toml") for i in range(4)]
    try:
        for guard in guards:
            guard.ready()
        done = cli("run", "run", "--resume")
    finally:
        for guard in guards:
            guard.end()
    assert done.code == 0 and "4 of 4 clients answered when last asked." in done.err
    assert "round 3 of 3: 4 of 4 clients answered" in done.err or "3/3 4 of 4 clients answered" in done.err
    assert [heard.answering for heard in read_answers(here / "run" / "answers.jsonl")] == [4] * 3
    assert cli("verify", "run").out.startswith("4 of 4 clients answered when last asked.")


def said_first(cli: Cli) -> None:
    """Headline, terminal, show, watch, report and verify begin with who answered."""
    assert cli("show", "run").out.splitlines()[1].startswith(NOBODY)
    assert json.loads(cli("show", "run", "--json").out)["turnout"] == {
        "answering": 0,
        "expected": 4,
        "round": 1,
        "enough": False,
    }
    view = view_of(Follow(Path("run")).look())
    assert view.parts["lead"].startswith(STOPPED)
    assert view.parts["marks"].startswith('<span class="badge bad">0 of 4 clients answered</span>')
    assert cli("report", "run").code == 0
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert f'<p class="lead">{STOPPED}' in page
    assert '<p class="marks"><span class="badge bad">0 of 4 clients answered</span>' in page
    assert "Who answered in run." in page
    assert json.loads(cli("compare", "run", "--json").out)["methods"][0]["remarks"][0] == f"run: {STOPPED}"
    assert cli("verify", "run").out.startswith(NOBODY)
    assert json.loads(cli("verify", "run", "--json").out)["answered"] == STOPPED


def test_a_run_that_all_guards_refuse_stops_and_verify_does_not_say_that_nobody_refused(
    here: Path, cli: Cli, gone: None
) -> None:
    assert cli("guards", "config.toml").code == 0
    policies = [here / "guards" / f"c{i}" / "GUARD.toml" for i in range(4)]
    for policy in policies:
        policy.write_text(policy.read_text().replace("rounds = 3", "rounds = 2"))
    guards = [Process(policy).ready() for policy in policies]
    try:
        done = cli("run", "config.toml", "--out", "run")
    finally:
        for guard in guards:
            guard.end()
    assert done.code == 5 and f"{NOBODY}, and 3 must" in done.err
    assert (
        "4 refused (most often: 'rounds: this plan has 3 or more, [ceilings] of the policy allow" in done.err
    )
    said_first(cli)
    (found,) = [
        each
        for each in json.loads(cli("verify", "run", "--json").out)["findings"]
        if each["what"] == "answers"
    ]
    assert found["holds"] and found["said"] == STOPPED


@pytest.mark.parametrize("share", ["0", "1.01", "nan", '"all"'])
def test_the_least_share_is_one(here: Path, share: str) -> None:
    assert read(here / "config.toml").clients.least_answers == 0.51
    with pytest.raises(ConfigError, match="clients.least_answers"):
        read(here / "config.toml", [f"clients.least_answers={share}"])
