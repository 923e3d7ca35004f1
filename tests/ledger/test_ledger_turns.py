"""Turns that budgets allow: what admission, guards and the dashboard go by is what rounds then get."""

from pathlib import Path

import numpy as np
import pytest

from discretion.errors import BudgetError
from discretion.ledger.ledger import Ledger
from discretion.ledger.lifetime import read_lifetime
from discretion.ledger.store import Rule
from discretion.ledger.turns import Turns
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population


def people(*epsilon: float) -> Population:
    return Population.of(list(epsilon), 1e-5)


def with_turns(population: Population, turns: list[list[int]], noise: float = 4.0) -> Plan:
    """A plan with a round for each row, in which clients take these public turns."""
    everyone, own = np.ones(len(population)), np.arange(len(population))
    columns = (everyone, everyone, noise * everyone, own, everyone)
    phases = (Phase(1, *columns, turns=np.array(row, dtype=np.int64)) for row in turns)
    return Plan("made", population.client, tuple(phases))


LATER = [[1, 0], [1, 0], [0, 1], [0, 1], [1, 1]]  # c1 has no turn in the first two rounds


def take(ledger: Ledger, run: str, plan: Plan) -> np.ndarray:
    """(T, N) who took part in each round if asked."""
    ledger.admit(run, plan)
    found = []
    for number in range(1, plan.rounds + 1):
        found.append(ledger.reserve(run, number))
        ledger.commit(run, number)
    ledger.finish(run)
    return np.array(found)


def test_turns_add_up_to_the_plan_in_the_same_rows() -> None:
    population = people(1.0, 2.0)
    everyone = np.ones(2)
    sampled = Phase.one_pool(7, 0.3 * everyone, everyone, noise=2.0)
    dearer = Phase.one_pool(3, np.array([0.5, 0.0]), everyone, noise=2.0)
    for plan in (
        with_turns(population, LATER),
        Plan("made", population.client, (sampled, dearer, sampled, sampled)),
    ):
        turns = Turns.of(plan, np.arange(2))
        whole = plan.steps()
        costing = np.where(whole.rate > 0, whole.count, 0)
        assert np.array_equal(turns.first(turns.count).count, costing) and costing.any()
        assert not turns.first(np.zeros(2, dtype=np.int64)).count.any()
    assert Turns.of(plan, np.arange(2)).count.tolist() == [24, 21]


@pytest.mark.parametrize("rule", ["planned", "adaptive"])
@pytest.mark.parametrize("budgets", [(1.0, 1.0), (2.0, 1.0), (1.5, 4.0), (9.0, 9.0)])
def test_the_turns_that_are_told_are_those_that_rounds_get(
    rule: Rule, budgets: tuple[float, ...], tmp_path: Path
) -> None:
    path, population = tmp_path / "ledger.sqlite", people(*budgets)
    plan = with_turns(population, LATER)
    asked = np.array(LATER)
    with Ledger(path, population, rule) as ledger:
        for run in "abc":
            allowed, planned = ledger.turns(plan)
            assert planned.tolist() == asked.sum(axis=0).tolist()
            try:
                ledger.consider(plan)
            except BudgetError:
                assert not allowed.any() if rule == "adaptive" else (allowed < planned).any()
                return
            assert (take(ledger, run, plan) * asked).sum(axis=0).tolist() == allowed.tolist()
            again = read_lifetime(path)
            assert again.turns.tolist() == ledger.turns(plan)[0].tolist()
            assert again.turns_planned.tolist() == planned.tolist()


def test_who_has_nothing_left_for_its_first_turn_does_not_join(tmp_path: Path) -> None:
    """Though its first turn comes late, and the rounds before cost it nothing: a guard has one client."""
    me, both = people(1.0), people(1.0, 1.0)
    path = tmp_path / "ledger.sqlite"
    with Ledger(path, me, "adaptive") as ledger:
        dear = Plan("made", me.client, (Phase.one_pool(40, np.ones(1), np.ones(1), noise=4.0),))
        take(ledger, "before", dear)
        late = with_turns(me, [[0], [0], [1]])
        assert ledger.turns(late)[0].tolist() == [0]
        with pytest.raises(BudgetError, match="for its first turn in this plan"):
            ledger.admit("late", late)
        ledger.consider(with_turns(me, [[0], [0]]))  # never asked: it costs nothing
    with Ledger(tmp_path / "both.sqlite", both, "adaptive") as ledger:
        once = with_turns(both, [[1, 0]] * 40)
        take(ledger, "before", once)
        found = read_lifetime(tmp_path / "both.sqlite")
        assert found.room[0] == "none" and not found.admits_again  # c1 was in no round, and says nothing
