"""`discretion budgets`: accounts in the terminal, as JSON and as pages, alerts, and no names for others."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from discretion.ledger.ledger import Ledger
from discretion.plan.population import Population
from support.commands import Cli
from support.guarding import guard_of, policy_of
from support.run_folders import OWN, planned


def ledger_at(path: Path, count: int = 6, rounds: int = 4) -> Path:
    """A ledger of one open run in which clients of budget 1 have spent most of it."""
    names = tuple(f"site-{k}" for k in range(count))
    population = replace(Population.of(np.resize([1.0, 8.0], count)), client=names)
    with Ledger(path, population) as ledger:
        ledger.admit("trial", planned(OWN, population, 5, 5.0))
        for number in range(1, rounds + 1):
            ledger.reserve("trial", number)
            ledger.commit("trial", number)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return ledger_at(tmp_path / "ledger.sqlite")


def test_every_account_fits_a_terminal(discretion: Cli, path: Path, tmp_path: Path) -> None:
    done = discretion("budgets", str(path), "--out", "budgets.html")
    assert done.code == 0 and "Wrote budgets.html" in done.err
    assert (
        "site-5" in done.out and "4 of 5, open" in done.out and "cannot join it" in " ".join(done.out.split())
    )
    assert max(map(len, done.out.splitlines())) <= 80
    assert "site-5" in (tmp_path / "budgets.html").read_text(encoding="utf-8")
    many = discretion("budgets", str(ledger_at(tmp_path / "many.sqlite", 40)))
    assert "20 more with --out or --json" in many.out and "at 90 %" in many.out


def test_accounts_for_machines(discretion: Cli, path: Path) -> None:
    found = json.loads(discretion("budgets", str(path), "--json").out)
    (part,) = found["ledgers"]
    assert part["last_run"] == "trial" and part["admits_last_again"] is False and found["alerts"] == []
    one = part["clients"][0]
    assert one["client"] == "site-0" and one["room"] == "none" and one["by_run"][0]["run"] == "trial"
    with Ledger.existing(path) as ledger:
        assert [each["spent"] for each in part["clients"]] == ledger.spent().tolist()
    (alone,) = json.loads(discretion("budgets", str(path), "--client", "site-1", "--json").out)["ledgers"]
    assert [each["client"] for each in alone["clients"]] == ["site-1"] and "runs" not in alone


def test_one_client_run_by_run(discretion: Cli, path: Path) -> None:
    done = discretion("budgets", str(path), "--client", "site-1")
    assert done.code == 0 and "trial" in done.out and "site-2" not in done.out
    missing = discretion("budgets", str(path), "--client", "site-99")
    assert missing.code == 4 and "Did you mean" in missing.err


def test_a_ledger_that_is_named_twice_counts_once(discretion: Cli, small_run: Path, path: Path) -> None:
    found = json.loads(discretion("budgets", str(path), str(path), str(small_run), "--json").out)
    assert [part["ledger"] for part in found["ledgers"]] == [str(path), str(small_run)]


def test_alerts_have_an_exit_code_a_file_and_a_command(discretion: Cli, path: Path, tmp_path: Path) -> None:
    heard = tmp_path / "heard.json"
    script = f"import sys; open({str(heard)!r}, 'w').write(sys.stdin.read())"
    told = ("--alert-file", "alerts.json", "--alert-command", f'{sys.executable} -c "{script}"')
    done = discretion("budgets", str(path), "--alert", "0.75", *told, "--json")
    assert done.code == 6 and "3 clients spent 75 %" in done.err
    alerts = json.loads((tmp_path / "alerts.json").read_text(encoding="utf-8"))
    assert [each["client"] for each in alerts["alerts"]] == ["site-0", "site-2", "site-4"]
    assert json.loads(heard.read_text(encoding="utf-8")) == alerts
    assert json.loads(done.out)["alerts"] == alerts["alerts"]
    heard.unlink()
    quiet = discretion("budgets", str(path), "--alert", "1", *told)
    assert quiet.code == 0 and not heard.exists()
    assert json.loads((tmp_path / "alerts.json").read_text(encoding="utf-8"))["alerts"] == []
    one = discretion("budgets", str(path), "--alert", "0.75", "--client", "site-1")
    assert one.code == 0  # it was asked about this client alone


@pytest.mark.parametrize(
    ("command", "said"),
    [("false", "ended with code 1"), ("no-such-program", "cannot be run"), ("'", "cannot")],
)
def test_an_alert_stays_one_where_its_command_fails(
    command: str, said: str, discretion: Cli, path: Path
) -> None:
    done = discretion("budgets", str(path), "--alert", "0.75", "--alert-command", command)
    assert done.code == 6 and said in done.err


def test_for_others(discretion: Cli, path: Path, tmp_path: Path) -> None:
    record = discretion("budgets", str(path), "--public", "--json")
    page = discretion("budgets", str(path), "--public", "-o", "public.html")
    assert record.code == page.code == 0
    for text in (record.out, page.out, (tmp_path / "public.html").read_text(encoding="utf-8")):
        assert "site-" not in text and "ledger.sqlite" not in text and "trial" not in text
    assert [cell["clients"] for cell in json.loads(record.out)["cells"]] == [6]
    few = discretion("budgets", str(path), "--public", "--least", "7")
    assert "nothing is shown" in few.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--public", "--client", "site-1"], "names nobody"),
        (["--public", "--alert", "0.9"], "names nobody"),
        (["--alert-file", "x"], "say which share"),
        (["--alert", "nan"], "above 0 and at most 1"),
        (["--alert", "90"], "above 0 and at most 1"),
        (["--public", "other.sqlite"], "subtracted"),
        (["--public", "--least", "1"], "--least"),
    ],
)
def test_what_would_mislead_is_refused(words: list[str], said: str, discretion: Cli, path: Path) -> None:
    ledger_at(path.with_name("other.sqlite"))
    done = discretion("budgets", str(path), *words)
    assert done.code == 2 and said in done.err


def test_a_guard_looks_at_its_own_budget(discretion: Cli, tmp_path: Path) -> None:
    guard_of(tmp_path, 1).close()
    policy = policy_of(tmp_path, 1)
    population = replace(Population.of([4.0]), client=("c1",))
    with Ledger.existing(tmp_path / "c1" / "guard" / "ledger.sqlite") as ledger:
        ledger.admit("trial", planned(OWN, population, 5, 20.0))
    done = discretion("budgets", str(policy))
    assert done.code == 0 and "rule adaptive" in done.out and "trial" in done.out
    missing = discretion("budgets", str(policy_of(tmp_path, 2)))
    assert missing.code == 4 and "there is no ledger" in missing.err
