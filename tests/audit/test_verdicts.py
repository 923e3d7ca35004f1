"""The sentence that decides: budgets kept or not, against whom, simulation or not, and who answered."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discretion import jsonfile
from discretion.audit.verdicts import answering, decided
from discretion.clients.turnout import SECRET, Turnout
from discretion.errors import AnswersError, InputError
from discretion.export.nist import answers
from discretion.ledger.ledger import Ledger
from discretion.report.wording import turnout_mark
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
    assert answering([asked(tmp_path / "all", {}, {})]) == "8 of 8 orders were answered"
    some = answering([asked(tmp_path / "some", {}, REFUSED)])
    assert some == "7 of 8 orders were answered; the guard of 1 client refused"
    none = answering([asked(tmp_path / "none", NOBODY, NOBODY)])
    assert none.startswith("nobody trained: 8 orders were sent and none was answered; the guards of 4")
    idle = {"asked": 0, "answered": 0}
    assert answering([asked(tmp_path / "idle", idle)]) == "nobody trained: no order was sent"
    assert answering([asked(tmp_path / "unknown")]) == "who answered is not on record"
    new = read_run(make_run(tmp_path / "new", settings=GUARDS, accuracy=(), finished=False))
    assert answering([new]) == "nobody has been asked yet"
    here = read_run(make_run(tmp_path / "here"))
    assert answering([here]) == answering([here, here]) == "one program played every client, so all answered"
    both = answering([here, new])
    assert both == f"in here {answering([here])}, in new nobody has been asked yet"


def test_where_coins_are_secret_the_number_of_orders_is_not_told(tmp_path: Path) -> None:
    run = asked(tmp_path / "secret", {}, {**REFUSED, "answered": 2, "lost": 1}, secret=True)
    failed = "2 orders failed, where the plan expects 12 to be sent"  # 6 of 12 clients in each round
    assert answering([run]) == f"the guard of 1 client refused; {failed}; {SECRET}"


THERE = {"expected": 12, "there": 11, "clients": 12}


@pytest.mark.parametrize("failing", [{}, {"refused": {"c1": "over budget"}}])
def test_no_secret_coin_of_a_client_that_answers_changes_what_is_said(
    tmp_path: Path, failing: dict[str, Any]
) -> None:
    """Whether all of those that answer were asked, or none of them: c1 refused either way, or nobody."""
    failed = len(failing)
    said = set()
    for asked_of_them in (0, 1, 9):
        some = {"asked": asked_of_them + failed, "answered": asked_of_them, **failing, **THERE}
        run = asked(tmp_path / f"of{asked_of_them}" / "run", some, some, secret=True)
        (nist,) = [text for title, text in answers(run) if title == "What decides"]
        said.add((answering([run]), run.answered, nist))
        assert not run.nobody_trained and SECRET in answering([run])
    assert len(said) == 1


def test_refused_join_orders_are_not_taken_for_nobody_asked(tmp_path: Path) -> None:
    """The line that `begin` leaves: nobody was sent an order of a round."""
    stop = {"asked": 0, "answered": 0, "refused": dict.fromkeys("abc", "no"), "expected": 3, "enough": False}
    said = answering([asked(tmp_path / "run", stop)])
    assert said.startswith("0 of 3 clients were there at round 1, too few: the run stopped before the model")
    assert said.endswith("the guards of 3 clients refused")


def test_only_where_all_are_asked_orders_of_a_deployment_are_told(tmp_path: Path) -> None:
    run = asked(tmp_path / "run", {}, secret=True)
    (phase,) = run.plan.phases
    often = replace(run.plan, phases=(replace(phase, rate=np.ones_like(phase.rate)),))
    assert not run.tells_orders and replace(run, plan=often).tells_orders
    assert answering([replace(run, plan=often)]) == "4 of 4 orders were answered"
    own_coins = replace(run.plan, noise_at="secure_sum")
    assert replace(run, plan=own_coins).tells_orders  # every client is asked, and flips its own coin


@pytest.mark.parametrize("secret", [True, False])
def test_only_the_operator_is_told_that_nobody_trained_where_coins_are_secret(
    tmp_path: Path, secret: bool
) -> None:
    run = asked(tmp_path / "run", {**NOBODY, **THERE}, secret=secret)
    with pytest.raises(AnswersError, match="^nobody trained: 4 orders were sent.*'no such operator'") as no:
        run.require_trained()
    assert ("do not pass this on" in str(no.value)) == secret == (not run.nobody_trained)
    assert run.answered.startswith("Nobody trained: 4 orders") != secret
    assert turnout_mark(Turnout(11, 12, 1), run.nobody_trained)[0] == ("warn" if secret else "bad")
    asked(tmp_path / "some", {**REFUSED, **THERE}, secret=secret).require_trained()


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


def test_whether_budgets_are_kept_is_said_first_but_of_a_simulation_that_it_was_one(tmp_path: Path) -> None:
    alone = ", counted in this run alone: other runs have ledgers of their own"
    first = decided([on_ledger(tmp_path / "kept")])
    assert first[0] == "It was a simulation, and protects nobody from whoever knows the seed"
    assert first[1] == f"every budget was kept{alone}"
    beside = decided([on_ledger(tmp_path / "shared", others=2)])[1]
    assert beside == "every budget was kept by this run, beside 2 more that spend from the same budgets"
    some = decided([on_ledger(tmp_path / "some", finished=False)])[1]
    assert some == f"every budget is kept so far (6 of 6 rounds are done){alone}"
    assert "no ledger can be read" in decided([read_run(make_run(tmp_path / "without"))])[1]
    new = decided([read_run(make_run(tmp_path / "new", accuracy=(), finished=False))])[1]
    assert new == f"every budget is kept so far (0 of 6 rounds are done){alone}"
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
