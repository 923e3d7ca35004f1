"""The rest of a run, planned anew: what was spent stays spent, and nobody passes its budget."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from discretion.accounting import Certificate
from discretion.errors import BudgetError, InputError, LedgerError
from discretion.ledger.ledger import Ledger
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.runs import config
from discretion.runs.config import ModelConfig
from discretion.runs.execute import Progress, execute
from discretion.runs.folder import RunFolder, read_checkpoint
from discretion.runs.prepare import prepare
from discretion.runs.replan import replan
from support.commands import discretion
from support.guarding import KEY, SEED, Direct, guard_of, ledger_of, spent_of

HEAD = "client,epsilon,delta,size\n"
ROUNDS, DONE = 6, 2
TRUSTING = {"trust_server": True, "against": "clients"}


class Killed(Exception):
    pass


def stop_after(rounds: int) -> Callable[[Progress], None]:
    def on_round(now: Progress) -> None:
        if now.round == rounds:
            raise Killed

    return on_round


def people(folder: Path, **epsilon: float) -> Path:
    path = folder / f"people{len(list(folder.glob('people*')))}.csv"
    path.write_text(HEAD + "".join(f"{name},{value},1e-05,40\n" for name, value in epsilon.items()))
    return path


def settings(folder: Path, csv: Path, where: str = "guards", **more: object) -> config.Config:
    (folder / "operator.key").write_text(KEY.private_bytes_raw().hex())
    record = {
        "seed": SEED,
        "population": {"csv": str(csv)},
        "data": {"name": "digits"},
        "model": {"name": "linear"},
        "plan": {"method": "concert", "rounds": ROUNDS, "rate": 0.5, "clip": 0.5} | more,
        "train": {"threads": 1},
        "clients": {"where": where, "key": str(folder / "operator.key")},
    }
    return config.make(record)


def stopped(folder: Path, wanted: config.Config, transport: Direct | None = None) -> RunFolder:
    """A run that was killed after some rounds."""
    run = RunFolder(folder / "first")
    prepare(wanted, run)
    with pytest.raises(Killed):
        execute(run, on_round=stop_after(DONE), transport=transport)
    return run


def budgets(ledger: Path) -> tuple[list[float], list[float]]:
    with Ledger.existing(ledger) as opened:
        return opened.spent().tolist(), opened.budget.tolist()


@pytest.mark.parametrize("rule", ["planned", "adaptive"])
def test_clients_join_leave_and_change_their_budgets(tmp_path: Path, rule: str) -> None:
    """The operator's ledger goes by the rule of the guards."""
    direct = Direct({f"c{i}": guard_of(tmp_path, i, **TRUSTING, rule=rule) for i in range(5)})
    wanted = settings(tmp_path, people(tmp_path, c0=2, c1=4, c2=8, c3=8))
    first = stopped(tmp_path, wanted.model_copy(update={"rule": rule}), direct)
    before = [spent_of(tmp_path, i) for i in range(5)]
    for i, by in ((1, 2.0), (2, -1.0)):  # the owners', in their own ledgers
        with ledger_of(tmp_path, i) as ledger:
            ledger.change_budget(f"c{i}", by)
    second = RunFolder(tmp_path / "second")
    made = replan(first, people(tmp_path, c1=6, c2=7, c3=8, c4=8), second)
    assert (made.rounds, made.joined, made.left) == (ROUNDS - DONE, ("c4",), ("c0",))
    assert made.changed == ("c1", "c2") and not made.exhausted
    np.testing.assert_allclose(made.before, [*before[1:4], 0])
    assert (made.total <= [6, 7, 8, 8]).all()
    assert (made.total > 0.97 * np.array([6, 7, 8, 8])).all()
    assert not second.checkpoint.exists()
    with pytest.raises(LedgerError, match="is closed"):
        execute(first, transport=direct)
    heard: list[int] = []
    execute(second, on_round=lambda now: heard.append(now.round), transport=direct)
    assert heard == [1, 2, 3, 4] and second.model.exists()
    answers = [json.loads(line) for line in second.answers.read_text().splitlines()]
    assert all(each["answered"] == 4 and not each["refused"] for each in answers)
    assert spent_of(tmp_path, 0) == before[0]  # who left spends no more
    np.testing.assert_allclose([spent_of(tmp_path, i) for i in range(1, 5)], made.total)
    spent, budget = budgets(first.ledger(config.read(first.config)))
    np.testing.assert_allclose(spent, [before[0], *made.total])
    assert budget == [2, 6, 7, 8, 8]


def test_the_new_run_starts_from_the_last_model(tmp_path: Path) -> None:
    csv = people(tmp_path, c0=2, c1=4, c2=8)
    first = stopped(tmp_path, settings(tmp_path, csv, "here"))
    second = RunFolder(tmp_path / "second")
    replan(first, people(tmp_path, c0=2, c1=6, c2=8), second)
    with pytest.raises(Killed):
        execute(second, on_round=stop_after(1))
    last, first_of_new = read_checkpoint(first), read_checkpoint(second)
    assert last is not None and first_of_new is not None
    np.testing.assert_allclose(first_of_new.model - first_of_new.velocity, last.model, atol=1e-6)
    plan = Plan.from_json(second.plan.read_text())
    Certificate.from_json(second.certificate.read_text()).require(plan)
    assert plan.rounds == ROUNDS - DONE and plan.clients == ("c0", "c1", "c2")


def test_records_that_are_dealt_out_here_do_not_change_hands(tmp_path: Path) -> None:
    first = stopped(tmp_path, settings(tmp_path, people(tmp_path, c0=2, c1=4, c2=8), "here"))
    for wanted in ({"c0": 2, "c2": 8}, {"c0": 2, "c1": 4, "c2": 8, "c3": 8}):
        with pytest.raises(InputError, match="not join, leave"):
            replan(first, people(tmp_path, **wanted), RunFolder(tmp_path / "second"))


def test_where_no_plan_is_found_the_run_may_go_on(tmp_path: Path) -> None:
    first = stopped(tmp_path, settings(tmp_path, people(tmp_path, c0=2, c1=4, c2=8), "here"))
    ledger = first.ledger(config.read(first.config))
    before = ledger.read_bytes()
    with pytest.raises(BudgetError, match="no client has anything left"):
        replan(first, people(tmp_path, c0=0.01, c1=0.01, c2=0.01), RunFolder(tmp_path / "second"))
    with pytest.raises(LedgerError, match="A budget holds for life"):
        odd = people(tmp_path)
        odd.write_text(HEAD + "c0,2,1e-06,40\nc1,4,1e-05,40\nc2,8,1e-05,40\n")
        replan(first, odd, RunFolder(tmp_path / "second"))
    assert ledger.read_bytes() == before and not (tmp_path / "second").exists()
    execute(first)
    assert first.model.exists()
    with pytest.raises(InputError, match="is finished"):
        replan(first, people(tmp_path, c0=2, c1=4, c2=8), RunFolder(tmp_path / "second"))


def test_a_run_without_a_round_done_or_left_is_not_planned_anew(tmp_path: Path) -> None:
    csv = people(tmp_path, c0=2, c1=4, c2=8)
    wanted, out = settings(tmp_path, csv, "here"), RunFolder(tmp_path / "second")
    new = RunFolder(tmp_path / "new")
    prepare(wanted, new)
    with pytest.raises(InputError, match="no round of .*new is done"):
        replan(new, csv, out)
    with pytest.raises(InputError, match="no model in .*new, from which this run starts"):
        prepare(wanted.model_copy(update={"after": str(new.path)}), out)
    with pytest.raises(Killed):
        execute(new, on_round=stop_after(ROUNDS))
    with pytest.raises(InputError, match="no round of .*new is left to plan"):
        replan(new, people(tmp_path, c0=4, c1=8, c2=16), out)
    other = wanted.model_copy(update={"after": str(new.path), "model": ModelConfig(name="mlp")})
    with pytest.raises(InputError, match="a run starts from a model of its own kind"):
        prepare(other, out)
    assert not out.path.exists()


def test_who_has_nothing_left_is_left_out(tmp_path: Path) -> None:
    direct = Direct({f"c{i}": guard_of(tmp_path, i, **TRUSTING) for i in range(5)})
    first = stopped(tmp_path, settings(tmp_path, people(tmp_path, c0=2, c1=4, c2=8)), direct)
    spent = spent_of(tmp_path, 0)
    made = replan(first, people(tmp_path, c0=spent, c1=4, c2=8), RunFolder(tmp_path / "second"))
    assert made.exhausted == ("c0",) and made.population.client == ("c1", "c2") and not made.left


def test_done_again_after_a_crash_it_changes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = stopped(tmp_path, settings(tmp_path, people(tmp_path, c0=2, c1=4, c2=8), "here"))
    wanted = people(tmp_path, c0=3, c1=4, c2=8)

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("discretion.runs.replan.prepare", killed)
        with pytest.raises(Killed):
            replan(first, wanted, RunFolder(tmp_path / "second"))
    ledger = first.ledger(config.read(first.config))
    with Ledger.existing(ledger) as opened:
        assert [change.by for change in opened.changes] == [1.0]
    made = replan(first, wanted, RunFolder(tmp_path / "second"))
    with Ledger.existing(ledger) as opened:
        assert [change.by for change in opened.changes] == [1.0]
    assert not made.changed and (made.total <= [3, 4, 8]).all()


def test_a_share_that_is_kept_stays_kept(tmp_path: Path) -> None:
    csv = people(tmp_path, c0=2, c1=4, c2=8)
    first = stopped(tmp_path, settings(tmp_path, csv, "here", share=0.5))
    made = replan(first, csv, RunFolder(tmp_path / "second"))
    assert (made.total <= [1, 2, 4]).all() and (made.total > [0.97, 1.94, 3.88]).all()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    csv = people(tmp_path, c0=2, c1=4, c2=8)
    first = stopped(tmp_path, settings(tmp_path, csv, "here"))
    again = people(tmp_path, c0=2, c1=5, c2=8)
    capsys.readouterr()
    words = ("replan", str(first.path), str(again), "--out", str(tmp_path / "second"), "--json")
    assert discretion(*words) == 0
    said = json.loads(capsys.readouterr().out)
    assert (
        said["rounds"] == 4
        and said["budget changed"] == ["c1"]
        and list(said["clients"]) == ["c0", "c1", "c2"]
    )
    assert said["clients"]["c1"]["spent"] < said["clients"]["c1"]["spent_in_the_end"] <= 5
    assert discretion("run", str(tmp_path / "second"), "--resume", "--no-report", "--json") == 0
    assert Population.from_csv(tmp_path / "second" / "population.csv").epsilon.tolist() == [2, 5, 8]
