"""An operator who chooses the second plan by what the first one released: what it reaches by either rule.

The operator knows everything but whether one client takes part. After the first plan it knows that plan's
privacy loss, and takes the second plan that is best at this loss. Each second plan would cost, together with
the first one, no more than the budget, had both been planned beforehand. What is reached is computed.
"""

import math
from pathlib import Path

import numpy as np
import pytest

from discretion.accounting import Pld, gaussian
from discretion.arrays import Floats
from discretion.errors import BudgetError
from discretion.ledger.ledger import Ledger
from discretion.ledger.store import Rule
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.steps import Steps

DELTA = 1e-5
Step = tuple[float, float]  # rate and multiplier
MULTIPLIERS = np.array([0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0])  # of second plans


def one_round(population: Population, step: Step) -> Plan:
    rate, multiplier = np.array([step[0]]), np.array([1 / step[1]])
    return Plan("made", population.client, (Phase.one_pool(1, rate, multiplier, 1.0),))


def seconds(first: Step, epsilon: float) -> list[Step]:
    """With each multiplier, the highest rate that PLD allows beside the first step, and lower ones."""
    each = np.ones(len(MULTIPLIERS))
    low, high = 1e-9 * each, each
    for _ in range(30):
        rate = np.sqrt(low * high)
        rates, multipliers = np.array([first[0] * each, rate]), np.array([first[1] * each, MULTIPLIERS])
        steps = Steps(rates, multipliers, np.ones((2, len(each)), dtype=np.int64))
        within = Pld().epsilon(steps, DELTA * each) <= epsilon
        low, high = np.where(within, rate, low), np.where(within, high, rate)
    highest = zip(low.tolist(), MULTIPLIERS.tolist(), strict=True)
    return [(rate * part, multiplier) for rate, multiplier in highest for part in (1.0, 0.5, 0.2, 0.05)]


def taken_by(path: Path, rule: Rule, epsilon: float, first: Step) -> list[Step]:
    """Second steps that a client takes after the first one."""
    population, found = Population.of([epsilon], DELTA), []
    with Ledger(path, population, rule) as ledger:
        ledger.admit("first", one_round(population, first))
        assert ledger.reserve("first", 1).all()
        ledger.commit("first", 1)
        ledger.finish("first")
        for step in seconds(first, epsilon):
            try:
                ledger.consider(one_round(population, step))
                found.append(step)
            except BudgetError:
                assert rule == "adaptive"
    return found


def delta_at(epsilon: float, step: Step, loss: Floats) -> Floats:
    """Mean of (1 - exp(epsilon - loss - the step's loss))+ over what the step releases."""
    rate, multiplier = step
    level = 1 + np.expm1(epsilon - loss) / rate
    with np.errstate(divide="ignore", invalid="ignore"):
        found = rate * gaussian.delta_of(np.log(level), np.full(len(loss), 1 / multiplier))
    return np.where(level > 0, found, -np.expm1(epsilon - loss))


def reached(epsilon: float, first: Step, choices: list[Step]) -> tuple[float, float]:
    """Return the delta at `epsilon`, and the epsilon at DELTA, of the best choice at every first loss."""
    rate, multiplier = first
    seen = np.linspace(-10, 10 + 1 / multiplier, 20_001)
    densities = [np.exp(-((seen - shift) ** 2) / 2) / math.sqrt(2 * math.pi) for shift in (0, 1 / multiplier)]
    weight = ((1 - rate) * densities[0] + rate * densities[1]) * (seen[1] - seen[0])
    loss = np.log1p(rate * np.expm1(seen / multiplier - 0.5 / multiplier**2))

    def delta(budget: float) -> float:
        nothing = -np.expm1(np.minimum(budget - loss, 0.0))
        return float(weight @ np.max([nothing, *(delta_at(budget, step, loss) for step in choices)], axis=0))

    low, high = 0.0, 3 * epsilon
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if delta(middle) <= DELTA else (middle, high)
    return delta(epsilon), high


# budget, first step, and the epsilon that is reached under the planned rule
CASES = [
    (2.0, (1.0, 2.85), 2.35),
    (8.0, (1.0, 0.86), 8.70),
    (2.0, (0.3, 2.0), 2.28),
]


@pytest.mark.parametrize(("epsilon", "first", "overspent"), CASES)
def test_the_planned_rule_is_overspent_and_the_adaptive_rule_is_not(
    tmp_path: Path, epsilon: float, first: Step, overspent: float
) -> None:
    planned = taken_by(tmp_path / "planned", "planned", epsilon, first)
    adaptive = taken_by(tmp_path / "adaptive", "adaptive", epsilon, first)
    assert len(planned) == 4 * len(MULTIPLIERS)
    alone = [reached(epsilon, first, [step])[0] for step in planned]
    assert max(alone) <= DELTA * (1 + 1e-9)  # each of the plans, chosen beforehand, is within the budget
    delta, most = reached(epsilon, first, planned)
    assert delta > 1.6 * DELTA and most == pytest.approx(overspent, rel=0.02)
    assert adaptive and set(adaptive) < set(planned)
    delta, most = reached(epsilon, first, adaptive)
    assert delta <= DELTA and most <= epsilon
