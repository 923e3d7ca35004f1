"""Accounts over all runs: what the ledger itself counts and would admit, read without a trace."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from discretion.accounting import spent
from discretion.errors import BudgetError, LedgerError
from discretion.ledger.guard_ledger import GuardLedger
from discretion.ledger.ledger import Ledger
from discretion.ledger.lifetime import read_lifetime
from discretion.ledger.store import Rule
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population

BUDGETS = (1.0, 2.0, 4.0)


def people(*epsilon: float) -> Population:
    return Population.of(list(epsilon or BUDGETS), 1e-5)


def plan_for(population: Population, rounds: int = 4, noise: float = 12.0) -> Plan:
    everyone = np.ones(len(population))
    return Plan("made", population.client, (Phase.one_pool(rounds, everyone, everyone, noise),))


def take(ledger: Ledger, run: str, plan: Plan, rounds: int) -> None:
    ledger.admit(run, plan)
    for number in range(1, rounds + 1):
        ledger.reserve(run, number)
        ledger.commit(run, number)


def test_an_open_run_is_promised_what_it_may_still_spend(tmp_path: Path) -> None:
    path, population = tmp_path / "ledger.sqlite", people()
    plan = plan_for(population)
    with Ledger(path, population) as ledger:
        take(ledger, "closed", plan, 4)
        ledger.finish("closed")
        take(ledger, "open", plan, 1)
        found = read_lifetime(path)  # while it is in use
        assert np.array_equal(found.spent, ledger.spent())
        assert np.allclose(found.spent + found.promised, ledger.total()) and (found.promised > 0).all()
        assert np.allclose(found.left, ledger.budget - ledger.total())
        ledger.finish("open")
        assert not read_lifetime(path).promised.any()
    assert np.allclose(found.share, found.spent / BUDGETS)
    assert [each.run.id for each in found.runs] == ["closed", "open"]
    alone = [each.spent for each in found.runs]
    assert np.allclose(alone, [spent(plan, 1e-5, rounds) for rounds in (4, 1)])
    assert np.allclose(found.runs[1].planned, spent(plan, 1e-5))
    assert (sum(alone) > found.spent).all()  # costs of runs do not add up


def test_nothing_is_written_while_a_ledger_is_read(tmp_path: Path) -> None:
    path, population = tmp_path / "ledger.sqlite", people()
    with Ledger(path, population) as ledger:
        take(ledger, "run", plan_for(population), 1)
        before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
        assert list(before) == ["ledger.sqlite"]
        script = (
            "import sys; from discretion.ledger.lifetime import read_lifetime; read_lifetime(sys.argv[1])"
        )
        subprocess.run([sys.executable, "-c", script, str(path)], check=True)  # as another process would
        assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


@pytest.mark.parametrize("rule", ["planned", "adaptive"])
@pytest.mark.parametrize("budgets", [(1.0, 2.0, 4.0), (2.0, 2.0, 4.0), (0.9, 0.9, 0.9), (9.0, 9.0, 9.0)])
@pytest.mark.parametrize("rounds", [1, 4])
def test_room_is_what_the_ledger_would_say(
    rule: Rule, budgets: tuple[float, ...], rounds: int, tmp_path: Path
) -> None:
    path, population = tmp_path / "ledger.sqlite", people(*budgets)
    plan = plan_for(population)
    with Ledger(path, population, rule) as ledger:
        take(ledger, "run", plan, rounds)
        found, admitted = read_lifetime(path), True
        try:
            ledger.consider(plan)
        except BudgetError:
            admitted = False
        assert found.admits_again is admitted
        if rule == "planned":
            fits = ledger.total(plan) <= np.array(budgets)
            assert found.room == tuple("whole" if each else "none" for each in fits)
            return
        ledger.finish("run")  # who has room for the whole plan refuses none of its rounds, and so on
        rooms = read_lifetime(path).room
        if admitted:
            ledger.admit("again", plan)
            taking = []
            for number in range(1, plan.rounds + 1):
                taking.append(ledger.reserve("again", number))
                ledger.commit("again", number)
            for room, mine in zip(rooms, np.array(taking).T, strict=True):
                assert room == ("whole" if mine.all() else "part" if mine[0] else "none")


def test_clients_of_other_runs_are_not_in_the_last(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path, people()) as ledger:
        take(ledger, "first", plan_for(people()), 4)
        ledger.finish("first")
    everybody = people()
    some = Population(("c1",), everybody.epsilon[1:2], everybody.delta[1:2], everybody.size[1:2])
    with Ledger(path, some) as ledger:
        take(ledger, "second", plan_for(some), 1)
    found = read_lifetime(path)
    assert found.room == ("not in it", "whole", "not in it") and found.admits_again
    assert found.runs[1].member.tolist() == [False, True, False]
    assert not found.runs[1].spent[[0, 2]].any()


def test_without_a_run_there_is_none_to_repeat(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.sqlite", people()).close()
    found = read_lifetime(tmp_path / "ledger.sqlite")
    assert (found.kind, found.runs, found.admits_again) == (None, (), None)
    assert found.left.tolist() == list(BUDGETS) and set(found.room) == {"not in it"}


def test_withdrawn_and_boundless_budgets(tmp_path: Path) -> None:
    path, population = tmp_path / "ledger.sqlite", people(2.0, math.inf)
    with Ledger(path, population) as ledger:
        take(ledger, "run", plan_for(population), 2)
        ledger.change_budget("c0", -2.0)
    found = read_lifetime(path)
    assert found.share.tolist() == [math.inf, 0.0] and found.left.tolist() == [0.0, math.inf]
    assert found.promised[0] == 0 < found.promised[1] and found.room == ("none", "whole")


def test_an_unprotected_run_leaves_nothing(tmp_path: Path) -> None:
    path, population = tmp_path / "ledger.sqlite", people(2.0)
    with Ledger(path, population) as ledger:
        plan = plan_for(population, noise=0.0)
        ledger.admit("run", plan, accept_no_privacy=True)
        ledger.reserve("run", 1)
    found = read_lifetime(path)
    assert found.spent[0] == math.inf and found.promised[0] == found.left[0] == 0
    assert found.admits_again is False


def test_a_guards_runs_are_counted_by_operator(tmp_path: Path) -> None:
    path, population = tmp_path / "ledger.sqlite", people(8.0)
    plan = plan_for(population)
    with GuardLedger(path, population, "adaptive", "new") as ledger:
        for run, operator in (("a", "11" * 32), ("b", "22" * 32), ("c", "11" * 32)):
            take(ledger, run, plan, 4)
            ledger.join(run, operator, b"order")
    found = read_lifetime(path)
    assert [each.operator[:2] for each in found.runs] == ["11", "22", "11"]
    one, other = found.operators["11" * 32], found.operators["22" * 32]
    assert other == pytest.approx(found.runs[1].spent[0])
    assert other < one < 2 * other  # composed, not added up


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"no ledger at all, but long enough to be looked at" * 20)
    for name in ("missing", "other"):
        with pytest.raises(LedgerError):
            read_lifetime(tmp_path / name)
