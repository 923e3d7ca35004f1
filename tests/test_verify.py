"""A run that is what it says passes; one that was changed, in any of its records, does not."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from discretion import cli
from discretion.accounting import Certificate, Pld, Reference
from discretion.errors import BudgetError, LedgerError
from discretion.population import Floats
from discretion.steps import Steps
from discretion.verify import Finding, Verification, verify
from run_folders import trained


class Forgiving:
    """Counts like the first accountant, which is quick; what it is asked for is kept."""

    name = "the first again"

    def __init__(self) -> None:
        self.clients = 0

    def epsilon(self, steps: Steps, delta: Floats) -> Floats:
        self.clients += len(delta)
        return Pld().epsilon(steps, delta)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("verify") / "run")


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def failing(found: Verification) -> list[str]:
    return [each.what for each in (*found.records, *found.budgets) if not each.holds]


def test_an_honest_run_passes_by_the_second_accountant(run: Path) -> None:
    before = sorted((path.name, path.read_bytes()) for path in run.iterdir())
    found = verify(run, data=True)
    assert found.whole and found.kept and found.accountant == Reference().name
    assert found.counted == found.kinds == 3  # one of each budget
    certificate = Certificate.from_json((run / "certificate.json").read_text())
    for each in found.classes:
        assert each.planned == each.recorded == each.life
        assert each.planned == pytest.approx(each.certified, rel=2e-3)
        assert each.certified == certificate.spent[certificate.budget == each.budget].max()
    assert sorted((path.name, path.read_bytes()) for path in run.iterdir()) == before  # nothing is written


def change(path: Path, edit: Callable[[dict], None]) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    edit(record)
    path.write_text(json.dumps(record), encoding="utf-8")


def sql(run: Path, statement: str) -> None:
    with closing(sqlite3.connect(run / "ledger.sqlite")) as db, db:
        db.execute(statement)


def less_noise(record: dict) -> None:
    for phase in record["phases"]:
        phase["noise"] = [0.5 * value for value in phase["noise"]]


def smaller(record: dict) -> None:
    record["spent"] = [0.5 * value for value in record["spent"]]


TAMPERED: dict[str, tuple[Callable[[Path], None], str]] = {
    "less noise in the plan": (lambda run: change(run / "plan.json", less_noise), "plan"),
    "a smaller epsilon in the certificate": (
        lambda run: change(run / "certificate.json", smaller),
        "certificate, again",
    ),
    "another adversary in the certificate": (
        lambda run: change(run / "certificate.json", lambda record: record.update(promise="server")),
        "certificate",
    ),
    "a larger budget": (
        lambda run: (run / "population.csv").write_text(
            (run / "population.csv").read_text().replace(",4.0,", ",40.0,")
        ),
        "population",
    ),
    "a round less in the history": (
        lambda run: (run / "history.jsonl").write_text(
            "".join((run / "history.jsonl").read_text().splitlines(keepends=True)[:-1])
        ),
        "history",
    ),
    "a round twice in the history": (
        lambda run: (run / "history.jsonl").write_text(
            (run / "history.jsonl").read_text().splitlines(keepends=True)[0]
            + (run / "history.jsonl").read_text()
        ),
        "history",
    ),
    "a round less in the ledger": (
        lambda run: sql(run, "DELETE FROM round WHERE round = 4"),
        "rounds on record",
    ),
    "another plan in the ledger": (lambda run: sql(run, "UPDATE run SET plan = 'other'"), "ledger"),
    "no such run in the ledger": (lambda run: sql(run, "UPDATE run SET id = 'other'"), "ledger"),
    "no ledger": (lambda run: (run / "ledger.sqlite").unlink(), "ledger"),
    "costlier rounds in the ledger": (
        lambda run: sql(run, "UPDATE price SET rate = REPLACE(rate, '0.5', '0.9')"),
        "budgets, by the ledger",
    ),
    "prices in the ledger that make no sense": (
        lambda run: sql(run, "UPDATE price SET multiplier = '[]'"),
        "ledger, read",
    ),
    "another method in the settings": (
        lambda run: (run / "config.toml").write_text(
            (run / "config.toml").read_text().replace('method = "idp_fedavg"', 'method = "dp_fedavg"')
        ),
        "settings",
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_what_was_changed_is_found(what: str, run: Path) -> None:
    tamper, finding = TAMPERED[what]
    tamper(run)
    assert finding in failing(verify(run, Forgiving()))


def test_other_data_is_found(run: Path) -> None:
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("seed = 0", "seed = 1"))
    assert failing(verify(run, Forgiving(), data=True)) == ["data"]


def test_an_unfinished_run_is_counted_as_far_as_it_is(run: Path) -> None:
    lines = (run / "history.jsonl").read_text().splitlines(keepends=True)
    (run / "history.jsonl").write_text("".join(lines[:2]))
    sql(run, "DELETE FROM round WHERE round > 3")
    sql(run, "UPDATE round SET state = 'reserved' WHERE round = 3")
    (run / "model.safetensors").unlink()
    found = verify(run, Forgiving())
    assert found.whole and found.kept
    assert all(0 < each.recorded < each.planned for each in found.classes)


def test_runs_that_share_a_ledger_are_counted_together(tmp_path: Path) -> None:
    shared = [f"ledger={tmp_path / 'shared.sqlite'}", "plan.share=0.5"]
    trained(tmp_path / "a", *shared)
    trained(tmp_path / "b", *shared, "seed=0", "train.learning_rate=0.2")
    found = verify(tmp_path / "b", Forgiving())
    assert found.whole and found.kept and found.budgets[-1].what == "budgets, over all runs"
    assert all(each.recorded < each.life <= each.budget for each in found.classes)
    with closing(sqlite3.connect(tmp_path / "shared.sqlite")) as db, db:
        db.execute("UPDATE client SET epsilon = 0.5 * epsilon")
    assert failing(verify(tmp_path / "b", Forgiving())) == ["budgets, over all runs"]


def test_many_kinds_of_clients_are_counted_by_the_most_used(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("discretion.verify.MOST_KINDS", 1)
    some, every = Forgiving(), Forgiving()
    found = verify(run, some)
    assert (found.counted, found.kinds) == (3, 3)  # the worst of each class always
    verify(run, every, every=True)
    assert every.clients >= some.clients > 0


def test_the_command_says_so_and_ends_with_a_code(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discretion.verify.Reference", Forgiving)
    done = CliRunner().invoke(cli.app, ["verify", str(run), "--json"])
    record = json.loads(done.stdout)
    assert done.exit_code == 0 and record["kept"] and record["whole"]
    assert {"plan", "ledger", "history"} <= {each["what"] for each in record["findings"]}
    shown = CliRunner().invoke(cli.app, ["verify", str(run)])
    assert "counted again" in shown.stdout and max(map(len, shown.stdout.splitlines())) <= 80
    sql(run, "DELETE FROM round WHERE round = 4")
    assert isinstance(CliRunner().invoke(cli.app, ["verify", str(run)]).exception, LedgerError)


def test_no_privacy_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path / "bare", "plan.method=fedavg", "train.accept_no_privacy=true")
    found = verify(run, Forgiving())
    assert found.whole and failing(found) == ["budgets, by the plan"]
    monkeypatch.setattr("discretion.verify.Reference", Forgiving)
    assert isinstance(CliRunner().invoke(cli.app, ["verify", str(run)]).exception, BudgetError)


def test_findings_are_of_the_client_that_is_furthest_beyond() -> None:
    from discretion.verify import _bounded

    again, limit = np.array([1.0, 3.0, 9.0]), np.array([1.0, 1.0, 8.0])
    assert _bounded("x", again, limit, "fine", "abc") == Finding("x", False, "client b: 3, not 1")
    assert _bounded("x", limit, limit, "fine", "abc").holds
    assert _bounded("x", again * np.inf, limit * np.inf, "fine", "abc").holds
