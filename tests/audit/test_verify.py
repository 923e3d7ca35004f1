"""A run that is what it says passes; one that was changed, in any of its records, does not."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from discretion.accounting import Certificate, Pld, Reference
from discretion.accounting.cross_check import precision
from discretion.arrays import Floats
from discretion.audit.ledger_check import Finding
from discretion.audit.verdicts import verdict
from discretion.audit.verify import Verification, verify
from discretion.cli import main
from discretion.errors import BudgetError, FolderError, LedgerError, UnverifiedError
from discretion.ledger.ledger import Ledger
from discretion.plan.steps import Steps
from discretion.runs.folder import RunFolder, write_checkpoint
from discretion.runs.history import Journal
from discretion.training.loop import State
from support.forging import forge
from support.run_folders import seal, trained

Record = dict[str, Any]


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


def change(path: Path, edit: Callable[[Record], None]) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    edit(record)
    path.write_text(json.dumps(record), encoding="utf-8")


def sql(run: Path, statement: str) -> None:
    forge(run / "ledger.sqlite", statement)


def by_hand(run: Path, statement: str) -> None:
    """Change the ledger and leave its chain alone."""
    with closing(sqlite3.connect(run / "ledger.sqlite")) as db, db:
        db.execute(statement)


def less_noise(record: Record) -> None:
    for phase in record["phases"]:
        phase["noise"] = [0.5 * value for value in phase["noise"]]


def smaller(record: Record) -> None:
    record["spent"] = [0.5 * value for value in record["spent"]]


def lower_curve(record: Record) -> None:
    curve = record["spending"]
    curve["epsilon"] = [[value / 10 for value in row] for row in curve["epsilon"]]


def settings(run: Path, old: str, new: str) -> None:
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))


def checkpoint(run: Path, number: int) -> None:
    folder, state = RunFolder(run), replace(State.start(np.zeros(1, np.float32)), round=number)
    journals = (Journal(path, number) for path in (folder.history, folder.answers))
    write_checkpoint(folder, state, {each.path.name: each.digest for each in journals})


Tampering = tuple[Callable[[Path], object], str]  # what is done to a run, and the finding that tells of it


def in_certificate(how: Callable[[Record], None], found: str = "certificate") -> Tampering:
    return lambda run: change(run / "certificate.json", how), found


TAMPERED: dict[str, Tampering] = {
    "less noise in the plan": (lambda run: change(run / "plan.json", less_noise), "plan"),
    "a smaller epsilon in the certificate": in_certificate(smaller, "certificate, again"),
    "another adversary in the certificate": in_certificate(lambda record: record.update(promise="server")),
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
    "prices of nothing": (lambda run: sql(run, f"UPDATE price SET rate = '{[0.0] * 3}'"), "plan on record"),
    "noise in the ledger times 100": (
        lambda run: sql(run, "UPDATE price SET multiplier = REPLACE(multiplier, '[', '[100')"),
        "plan on record",
    ),
    "no releases": (lambda run: sql(run, "UPDATE phase SET releases = '0'"), "plan on record"),
    "everybody refused": (lambda run: sql(run, f"UPDATE round SET refused = '{[*range(12)]}'"), "refusals"),
    "rounds beyond the plan": (
        lambda run: sql(run, "UPDATE round SET round = round + 10"),
        "rounds, one by one",
    ),
    "rounds of no phase": (lambda run: sql(run, "UPDATE round SET phase = 7"), "rounds, one by one"),
    "one client only in the run": (
        lambda run: sql(run, "DELETE FROM member WHERE place > 0"),
        "plan on record",
    ),
    "larger budgets in the ledger": (
        lambda run: sql(run, "UPDATE client SET epsilon = 1000"),
        "budgets on record",
    ),
    "a larger delta in the ledger": (
        lambda run: sql(run, "UPDATE client SET delta = 0.1"),
        "budgets on record",
    ),
    "no clients in the ledger": (lambda run: sql(run, "DELETE FROM client"), "budgets on record"),
    "another rule in the ledger": (lambda run: sql(run, "UPDATE about SET rule = 'adaptive'"), "refusals"),
    "a promise against the server": in_certificate(
        lambda record: record["epsilon"].update(server=record["spent"])
    ),
    "a lower curve in the certificate": in_certificate(lower_curve),
    "better noise in the certificate": in_certificate(
        lambda record: record.update(randomness="cryptographic")
    ),
    "another accountant in the certificate": in_certificate(
        lambda record: record.update(accountant="an oracle")
    ),
    "exact noise in the certificate": in_certificate(lambda record: record.update(grid=True)),
    "a checkpoint of a later round": (lambda run: checkpoint(run, 5), "checkpoint"),
    "other rounds in the settings": (lambda run: settings(run, "rounds = 4", "rounds = 3"), "settings"),
    "another clip in the settings": (lambda run: settings(run, "clip = 0.5", "clip = 0.25"), "settings"),
    "no such run in the ledger": (lambda run: sql(run, "UPDATE run SET id = 'other'"), "ledger"),
    "no ledger": (lambda run: (run / "ledger.sqlite").unlink(), "ledger"),
    "costlier rounds in the ledger": (
        lambda run: sql(run, "UPDATE price SET rate = REPLACE(rate, '0.5', '0.9')"),
        "budgets, by the ledger",
    ),
    "a row in the ledger that is not as it was written": (
        lambda run: by_hand(run, "UPDATE run SET admitted = 'earlier'"),
        "ledger, row by row",
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
    seal(run)
    assert finding in failing(verify(run, Forgiving()))


def test_a_checkpoint_that_is_none_or_gone_is_found(run: Path) -> None:
    (run / "checkpoint.safetensors").write_bytes(b"nothing")
    with pytest.raises(FolderError, match=r"checkpoint\.safetensors is damaged"):
        verify(run, Forgiving())
    (run / "checkpoint.safetensors").unlink()
    (run / "model.safetensors").unlink()
    seal(run)
    assert "checkpoint" in failing(verify(run, Forgiving()))


def test_other_data_is_found(run: Path) -> None:
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("seed = 0", "seed = 1"))
    seal(run)
    assert failing(verify(run, Forgiving(), data=True)) == ["data"]


def test_an_unfinished_run_is_counted_as_far_as_it_is(run: Path) -> None:
    lines = (run / "history.jsonl").read_text().splitlines(keepends=True)
    (run / "history.jsonl").write_text("".join(lines[:2]))
    sql(run, "DELETE FROM round WHERE round > 3")
    sql(run, "UPDATE round SET state = 'reserved' WHERE round = 3")
    checkpoint(run, 2)
    (run / "model.safetensors").unlink()
    seal(run)
    found = verify(run, Forgiving())
    assert found.whole and found.kept
    assert all(0 < each.recorded < each.planned for each in found.classes)


def test_runs_that_share_a_ledger_are_counted_together(tmp_path: Path) -> None:
    shared = [f"ledger={tmp_path / 'shared.sqlite'}", "plan.share=0.5"]
    trained(tmp_path / "a", *shared)
    trained(tmp_path / "b", *shared, "seed=0", "train.learning_rate=0.2")
    found = verify(tmp_path / "b", Forgiving())
    assert found.whole and found.kept and found.budgets[-1].what == "budgets, over all runs"
    assert all(each.life and each.recorded < each.life <= each.budget for each in found.classes)
    forge(tmp_path / "shared.sqlite", "UPDATE client SET epsilon = 0.5 * epsilon")
    assert failing(verify(tmp_path / "b", Forgiving())) == ["budgets on record", "budgets, over all runs"]


def test_budgets_that_were_changed_by_entries_are_no_contradiction(run: Path) -> None:
    with Ledger.existing(run / "ledger.sqlite") as ledger:
        ledger.change_budget("c4", 1.5)
        ledger.change_budget("c5", -2.0)
    found = verify(run, Forgiving())
    assert found.whole and found.kept
    sql(run, "UPDATE round SET refused = '[5]', changes = 2 WHERE round = 4")  # as after the withdrawal
    assert verify(run, Forgiving()).whole
    sql(run, "UPDATE round SET refused = '[4]' WHERE round = 4")  # and c5 is charged for more than it allows
    assert failing(verify(run, Forgiving())) == ["refusals", "budgets, over all runs"]


def test_a_budget_lowered_below_what_was_spent_is_named(run: Path) -> None:
    with Ledger.existing(run / "ledger.sqlite") as ledger:
        budget, spent = ledger.budget[5], ledger.spent()[5]
        ledger.change_budget("c5", -budget)
    found = verify(run, Forgiving())
    said = {each.what: each.said for each in found.budgets}
    assert found.kept and said["budgets, over all runs"] == "no budget was passed when it was charged"
    assert f"such as client c5: 0, spent {spent:.6g}" in said["budgets, lowered since"]
    assert "no client’s budget is passed" not in said.values()


def test_many_kinds_of_clients_are_counted_by_the_most_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path / "many", "population.clients=20", "population.budgets=uniform:4,16")
    monkeypatch.setattr("discretion.accounting.cross_check.MOST_KINDS", 1)
    some, every = Forgiving(), Forgiving()
    found = verify(run, some)
    assert found.kinds == 20 and len(found.classes) <= found.counted < found.kinds
    assert verify(run, every, every=True).counted == 20 and every.clients > some.clients > 0
    change(run / "certificate.json", reverse_order)  # who is counted, it does not decide
    seal(run)
    assert verify(run, Forgiving()).counted == found.counted
    by_class = [each.planned for each in verify(run, Forgiving()).classes]
    assert by_class == [each.planned for each in found.classes]


def reverse_order(record: Record) -> None:
    """Whoever uses most of its budget seems to use least."""
    largest = max(record["spent"])
    record["spent"] = [largest - 0.9 * value for value in record["spent"]]


FIXED = ("plan.method=gdpfed", "plan.options.accounting=paper", "train.accept_no_privacy=true")


def test_what_cannot_be_counted_is_not_said_to_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path / "fixed", *FIXED)
    found = verify(run, Forgiving())
    unknown = [each.what for each in found.budgets if each.holds is None]
    assert "certificate, again" in unknown and found.whole and not found.kept
    monkeypatch.setattr("discretion.audit.verify.Reference", Forgiving)
    shown = CliRunner().invoke(main.app, ["verify", str(run)])
    row = next(line for line in shown.stdout.splitlines() if "certificate, again" in line)
    assert "unknown" in row and "yes" not in row


def test_noise_too_small_for_the_second_accountant_is_not_said_to_hold(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dp-accounting would end with an OverflowError, or not at all."""
    monkeypatch.setattr("discretion.accounting.reference.MOST", 10.0)  # epsilon: as if that were beyond
    found = verify(run)
    assert 0 < found.counted < found.kinds and found.whole and found.kept is None
    unknown = {each.what: each.said for each in found.budgets if each.holds is None}
    assert "kinds of clients have so little noise" in unknown["certificate, again"]
    assert any(each.planned == np.inf for each in found.classes)
    done = CliRunner().invoke(main.app, ["verify", str(run), "--json"])
    record = json.loads(done.stdout)
    assert isinstance(done.exception, UnverifiedError) and UnverifiedError.exit_code == 7
    assert record["kept"] is record["verified"] is None and record["verdict"].startswith("Verdict: open.")


def test_how_far_a_second_count_may_lie_above_a_budget_is_a_number(run: Path) -> None:
    """It is the one with which budgets are compared: above it, a budget is not kept."""
    found = verify(run)
    largest = np.array([max(each.budget for each in found.classes)])
    assert precision(largest)[0] <= found.tolerance <= precision(largest)[0] + 1e-4
    told = f"counted again (the second accountant is pessimistic by up to {found.tolerance:g})"
    assert told in verdict([found], "run")[1]
    shown = CliRunner().invoke(main.app, ["verify", str(run)]).stdout
    assert f"pessimistic, by up to {found.tolerance:g} for" in " ".join(shown.split())


def test_the_command_says_so_and_ends_with_a_code(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discretion.audit.verify.Reference", Forgiving)
    done = CliRunner().invoke(main.app, ["verify", str(run), "--json"])
    record = json.loads(done.stdout)
    assert done.exit_code == 0 and record["kept"] and record["whole"] and record["verified"]
    assert {"plan", "ledger", "history"} <= {each["what"] for each in record["findings"]}
    shown = CliRunner().invoke(main.app, ["verify", str(run)])
    assert " ".join(shown.stdout.split()).endswith(record["verdict"])
    assert record["verdict"].startswith("Verdict: verified.") and "every budget was kept" in record["verdict"]
    assert "counted again" in shown.stdout and max(map(len, shown.stdout.splitlines())) <= 80
    sql(run, "DELETE FROM round WHERE round = 4")
    assert isinstance(CliRunner().invoke(main.app, ["verify", str(run)]).exception, LedgerError)


def test_no_privacy_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path / "bare", "plan.method=fedavg", "train.accept_no_privacy=true")
    found = verify(run, Forgiving())
    assert found.whole and failing(found) == ["budgets, by the plan"]
    monkeypatch.setattr("discretion.audit.verify.Reference", Forgiving)
    assert isinstance(CliRunner().invoke(main.app, ["verify", str(run)]).exception, BudgetError)


def test_findings_are_of_the_client_that_is_furthest_beyond() -> None:
    from discretion.audit.verify import _bounded

    again, limit = np.array([1.0, 3.0, 9.0]), np.array([1.0, 1.0, 8.0])
    assert _bounded("x", again, limit, "fine", "abc") == Finding("x", False, "client b: 3, not 1")
    assert _bounded("x", limit, limit, "fine", "abc").holds
    assert _bounded("x", again * np.inf, limit * np.inf, "fine", "abc").holds
    small = np.array([0.001])
    assert not _bounded("x", 3 * small, small, "fine", "a").holds
    assert _bounded("x", 1.02 * small, small, "fine", "a").holds
