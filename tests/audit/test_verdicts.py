"""The sentence that decides: budgets kept or not, against whom, simulation or not, and who answered."""

from pathlib import Path
from typing import Any

import pytest

from discretion import jsonfile
from discretion.audit.verdicts import answering, decided
from discretion.errors import InputError
from discretion.ledger.ledger import Ledger
from discretion.runs.read import Run, read_run
from support.run_folders import BARE, keep_secret, make_run, people, planned, run_of, seal

GUARDS = {"clients.where": "guards"}


def asked(path: Path, *rounds: dict[str, Any], secret: bool = False) -> Run:
    """Return a run on guards, with one line of answers for each of `rounds`."""
    make_run(path, settings=GUARDS)
    usual = {"asked": 4, "answered": 4, "refused": {}, "lost": 0}
    lines = [jsonfile.line({"round": t, **usual, **each}) for t, each in enumerate(rounds, 1)]
    (path / "answers.jsonl").write_text("".join(lines), encoding="utf-8")
    seal(path)
    return read_run(keep_secret(path) if secret else path)


REFUSED = {"answered": 3, "refused": {"c1": "over budget"}}
NOBODY = {"answered": 0, "refused": {f"c{i}": "no such operator" for i in range(4)}}


def test_who_answered_is_said(tmp_path: Path) -> None:
    assert answering([asked(tmp_path / "all", {}, {})]) == "every order was answered"
    assert answering([asked(tmp_path / "some", {}, REFUSED)]) == "7 of 8 orders were answered"
    assert answering([asked(tmp_path / "none", NOBODY, NOBODY)]) == "nobody answered: no client trained"
    assert answering([asked(tmp_path / "unknown")]) == "who answered is not on record"
    new = read_run(make_run(tmp_path / "new", settings=GUARDS, accuracy=(), finished=False))
    assert answering([new]) == "nobody has been asked yet"
    here = read_run(make_run(tmp_path / "here"))
    assert answering([here]) == answering([here, here]) == "one program played every client, so all answered"
    both = answering([here, new])
    assert both == f"in here {answering([here])}, in new nobody has been asked yet"


def test_where_coins_are_secret_the_number_of_orders_is_not_told(tmp_path: Path) -> None:
    run = asked(tmp_path / "secret", {}, {**REFUSED, "answered": 2, "lost": 1}, secret=True)
    said = "1 client refused and 1 order was lost, of about 36 that the plan expects"
    assert answering([run]) == said  # 6 of 12 clients in each of 6 rounds, whoever was drawn


def test_damaged_answers_are_not_taken_for_none(tmp_path: Path) -> None:
    run = asked(tmp_path / "run", {})
    (tmp_path / "run" / "answers.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(InputError, match="cannot read .*answers.jsonl"):
        answering([run])


def on_ledger(path: Path, finished: bool = True, others: int = 0) -> Run:
    run = read_run(make_run(path, finished=finished))
    with Ledger(path / "ledger.sqlite", people()) as ledger:
        for number in range(others):
            ledger.admit(f"other-{number}", planned("other", people(), noise=200.0))
        ledger.admit(run.about.id, run.plan)
        for number in range(1, run.plan.rounds + 1):
            ledger.reserve(run.about.id, number)
            ledger.commit(run.about.id, number)
    return run.refreshed()


def test_whether_budgets_are_kept_is_said_first(tmp_path: Path) -> None:
    assert decided([on_ledger(tmp_path / "kept")])[0] == "Every budget was kept"
    beside = decided([on_ledger(tmp_path / "shared", others=2)])[0]
    assert beside == "Every budget was kept by this run, beside 2 more that spend from the same budgets"
    some = decided([on_ledger(tmp_path / "some", finished=False)])[0]
    assert some == "Every budget is kept so far, after 6 of 6 rounds"
    assert "no ledger can be read" in decided([read_run(make_run(tmp_path / "without"))])[0]
    new = decided([read_run(make_run(tmp_path / "new", accuracy=(), finished=False))])[0]
    assert new == "Every budget is kept so far, after 0 of 6 rounds"
    over = decided([read_run(make_run(tmp_path / "over", noise=3.0))])[0]
    assert over == "Not every budget is kept: 8 of 12 clients overspend"
    bare = read_run(make_run(tmp_path / "bare", BARE))
    assert decided([bare])[0] == "No budget is kept: protects nobody"
    odd = run_of(tmp_path / "odd", "dp_fedavg")
    (odd / "certificate.json").write_bytes((tmp_path / "kept" / "certificate.json").read_bytes())
    seal(odd)
    assert decided([read_run(odd)])[0] == "Nothing is proved: the certificate is of another plan"
    assert decided([on_ledger(tmp_path / "again"), bare])[0] == "No budget is kept: protects nobody"


def test_a_deployment_of_one_operator_says_so(tmp_path: Path) -> None:
    run = read_run(keep_secret(make_run(tmp_path / "here")))
    assert "it was no simulation, but programs of one operator played every party" in decided([run])
    assert "it was no simulation" in decided([asked(tmp_path / "guards", {}, secret=True)])
