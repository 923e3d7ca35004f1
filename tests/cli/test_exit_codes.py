"""Commands by bad outcomes: what is printed and the exit code never say different things."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from discretion.audit import receipts
from discretion.clients.messages import read_key, write_key
from discretion.ledger.ledger import Ledger
from discretion.report.receipt_page import render
from support.commands import Cli
from support.forging import forge
from support.run_folders import seal, trained

READING = {  # commands that read a run folder, with what else they need
    "check": (),
    "verify": (),
    "show": (),
    "report": (),
    "compare": (),
    "export": (),
    "ledger": (),
    "audit": ("--games", "10"),
    "receipt": ("--client", "c4", "--key", "operator.key"),
    "run": ("--resume",),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("codes") / "run")


@pytest.fixture
def folder(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_key(tmp_path / "operator.key")
    return Path(shutil.copytree(original, tmp_path / "run"))


def lower_epsilons(run: Path) -> None:
    """As whoever wants a promise to look stronger would change a certificate."""
    path = run / "certificate.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record["spent"] = [value / 2 for value in record["spent"]]
    path.write_text(json.dumps(record), encoding="utf-8")


@pytest.mark.parametrize("command", READING)
def test_a_changed_certificate_is_refused_by_whatever_reads_the_run(
    discretion: Cli, folder: Path, command: str
) -> None:
    lower_epsilons(folder)
    done = discretion(command, "run", *READING[command])
    assert done.code == 4 and "certificate.json is damaged or was changed" in done.err
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("command", ["check", "verify"])
def test_a_changed_certificate_is_found_though_the_manifest_lists_it(
    discretion: Cli, folder: Path, command: str
) -> None:
    assert discretion(command, "run").code == 0
    lower_epsilons(folder)
    seal(folder)
    done = discretion(command, "run")
    assert done.code == 4 and "spent" in done.err
    assert discretion("check", "run", "--accountant", "renyi").code == 4


def withdrawn(run: Path) -> None:
    with Ledger.existing(run / "ledger.sqlite") as ledger:
        ledger.change_budget("c4", -float(ledger.budget[4]))


def charged_after_all(run: Path) -> None:
    withdrawn(run)
    forge(run / "ledger.sqlite", "UPDATE round SET changes = 1 WHERE round = 4")


def half_budgets(run: Path) -> None:
    path = run / "population.csv"
    lines = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    rows = [",".join([name, repr(float(epsilon) / 2), *rest]) for name, epsilon, *rest in lines]
    Path("stricter.csv").write_text("\n".join(["client,epsilon,delta,size", *rows]), encoding="utf-8")


def forged_ledger(run: Path) -> None:
    forge(run / "ledger.sqlite", "DELETE FROM round WHERE round = 4")


def unchanged(run: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("outcome", "words", "code", "said"),
    [
        (unchanged, "check run", 0, ""),
        (half_budgets, "check run stricter.csv", 3, "12 of 12 clients would overspend"),
        (half_budgets, "check run/plan.json stricter.csv", 3, "would overspend"),
        (unchanged, "plan fedavg run/population.csv", 3, "gives no privacy"),
        (unchanged, "plan gdpfed run/population.csv --rate 0.5 --accounting paper", 3, "would overspend"),
        (
            unchanged,
            "plan gdpfed run/population.csv --rate 0.5 --accounting paper --json",
            3,
            "would overspend",
        ),
        (withdrawn, "verify run", 0, ""),
        (withdrawn, "ledger run", 0, ""),
        (charged_after_all, "verify run", 3, "budgets, over all runs: client c4"),
        (forged_ledger, "verify run", 4, "Verdict: contradicted"),
        (unchanged, "ledger run --client c4 --change -100", 4, "at most the whole budget can be withdrawn"),
        (unchanged, "receipt run --client c99 --key operator.key", 2, "there is no client 'c99'"),
        (unchanged, "run run", 2, "give a config.toml, or --resume"),
        (unchanged, "compare .", 0, ""),
        (unchanged, "compare run/nothing", 2, "there is no run"),
    ],
)
def test_what_is_said_and_the_exit_code_agree(
    discretion: Cli, folder: Path, outcome: Callable[[Path], None], words: str, code: int, said: str
) -> None:
    outcome(folder)
    done = discretion(*words.split())
    assert (done.code, said in done.err) == (code, True), done.err
    assert bool(done.err.count("discretion: ") or '{"error"' in done.err) == (code != 0)


def test_a_receipt_is_verified_only_by_its_operators_key(discretion: Cli, folder: Path) -> None:
    signed = receipts.issue(folder, "c4", read_key(Path("operator.key")))
    Path("receipt.html").write_text(render(signed), encoding="utf-8")
    known = discretion("receipt", "--verify", "receipt.html", "--operator", signed.key)
    assert known.code == 0 and "Verified" in known.err
    unknown = discretion("receipt", "--verify", "receipt.html")
    assert unknown.code == 7 and "NOT VERIFIED" in unknown.err
    machine = discretion("receipt", "--verify", "receipt.html", "--json")
    assert machine.code == 7 and json.loads(machine.out)["verified"] is False
    assert discretion("receipt", "--verify", "receipt.html", "--operator", "00" * 32).code == 4
    plain = receipts.to_json(signed)
    assert '"client": "c4"' in plain
    Path("receipt.json").write_text(plain.replace('"client": "c4"', '"client": "c5"'), encoding="utf-8")
    for options in (["--operator", signed.key], []):
        changed = discretion("receipt", "--verify", "receipt.json", *options)
        assert changed.code == 4 and "something in it was changed" in " ".join(changed.err.split())
    forged_ledger(folder)
    assert discretion("receipt", "run", "--verify", "receipt.html", "--operator", signed.key).code == 4


def test_a_ledger_names_budgets_that_were_lowered_too_late(discretion: Cli, folder: Path) -> None:
    assert "lowered" not in discretion("ledger", "run").out
    withdrawn(folder)
    assert "Budgets of 1 client were lowered below what was spent" in " ".join(
        discretion("ledger", "run").out.split()
    )
    assert json.loads(discretion("ledger", "run", "--json").out)["lowered"] == ["c4"]
