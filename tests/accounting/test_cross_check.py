"""No certificate passes where dp-accounting says that a budget is passed."""

import math
from dataclasses import replace

import numpy as np
import pytest

from discretion.accounting import Certificate, Reference, certify, cross_check, noise_multiplier, noise_scale
from discretion.accounting.cross_check import CrossCheck, precision
from discretion.errors import BudgetError
from discretion.methods import make_plan
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population

ROUNDS, RATE = 20, 0.3


def fitting(population: Population, less: float = 1.0) -> Plan:
    """A pool for each client, with just the noise that its budget asks for, or `less` times that."""
    sigma = noise_multiplier(population.epsilon, population.delta, RATE, ROUNDS)
    each = np.ones(len(population))
    phase = Phase(ROUNDS, RATE * each, each, sigma * less, np.arange(len(each)), each)
    return Plan("made", population.client, (phase,))


def check(plan: Plan, population: Population, certificate: Certificate | None = None) -> CrossCheck:
    return cross_check.cross_check(plan, population, certificate or certify(plan, population))


def test_dp_accounting_confirms_what_uses_the_whole_budget() -> None:
    population = Population.of([0.5, 2.0, 2.0, 5.0], [1e-5, 1e-5, 1e-5, 1e-6])
    found = check(fitting(population), population)
    assert (found.counted, found.kinds) == (3, 3)
    assert 0 < found.difference < 2e-3
    assert found.accountant.startswith("PLD by dp-accounting 0.")


def test_a_fast_accountant_that_errs_is_caught() -> None:
    population = Population.of([0.5, 2.0, 5.0])
    plan = fitting(population, less=0.95)
    honest = certify(plan, population)
    lying = replace(honest, spent=np.minimum(honest.spent, population.epsilon))
    assert not len(lying.overspent)
    with pytest.raises(BudgetError, match="3 of 3 kinds.*worst is client c[0-2]: found epsilon.*at most"):
        check(plan, population, lying)
    # said openly, it is no contradiction: `require` refuses it
    assert check(plan, population, honest).counted == 3


def test_one_client_that_overspends_is_named() -> None:
    population = Population.of([0.5, 2.0, 5.0])
    good, bad = fitting(population).phases[0], fitting(population, less=0.9).phases[0]
    plan = Plan("made", population.client, (replace(good, noise=np.where([0, 1, 0], bad.noise, good.noise)),))
    lying = replace(certify(plan, population), spent=population.epsilon)
    with pytest.raises(
        BudgetError, match=r"1 of 3 kinds of clients; worst is client c1: .* at most 2 at delta"
    ):
        check(plan, population, lying)


def test_nothing_is_counted_where_nothing_is_promised() -> None:
    population = Population.of([1.0, 2.0])
    raw = make_plan("fedavg", population, {"rounds": 3, "rate": 0.5})
    assert check(raw, population) == replace(check(raw, population), counted=0, kinds=0, difference=0.0)
    public = Population.of([math.inf, 2.0])
    found = check(fitting(public), public)
    assert (found.counted, found.kinds) == (1, 1)


def test_paper_mode_is_held_to_its_certificate() -> None:
    population = Population.of([1.0, 2.0, 4.0])
    plan = make_plan("random", population, {"rounds": 6, "rate": 0.5, "clip": 0.5, "accounting": "paper"})
    certificate = certify(plan, population)
    assert len(certificate.overspent)
    found = check(plan, population, certificate)
    assert found.counted == found.kinds > 0
    with pytest.raises(BudgetError, match="contradicts the certificate"):
        check(plan, population, replace(certificate, spent=certificate.spent * 0.9))


def test_a_fixed_number_is_not_compared() -> None:
    population = Population.of(np.full(10, 2.0))
    each = np.full(10, 0.5)
    phase = Phase.one_pool(4, each, np.ones(10), 3.0)
    plan = Plan("made", population.client, (phase,), sampling="fixed_size", accounting="paper")
    found = check(plan, population)
    assert (found.counted, found.kinds) == (0, 1)


def test_what_no_grid_holds_is_left_out_and_that_is_said() -> None:
    population = Population.of([1e7, 1.0])
    plan = fitting(population)
    (phase,) = plan.phases
    plan = replace(plan, phases=(replace(phase, noise=np.array([1e-3, phase.noise[1]])),))
    found = check(plan, population)
    assert (found.counted, found.kinds) == (1, 2)


def test_of_many_kinds_those_are_counted_that_use_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discretion.accounting.cross_check.MOST_KINDS", 2)
    population = Population.of(np.repeat([1.0, 2.0], 5))
    less = 1 + np.linspace(0.5, 0.0, 10)
    plan = fitting(population)
    (phase,) = plan.phases
    plan = replace(plan, phases=(replace(phase, noise=phase.noise * less),))
    asked: list[int] = []

    def counting(self: Reference, steps: object, delta: np.ndarray, enough: object = None) -> np.ndarray:
        asked.append(len(delta))
        return np.zeros(len(delta))

    certificate = certify(plan, population)
    monkeypatch.setattr(Reference, "epsilon", counting)
    found = check(plan, population, certificate)
    # the two worst, and the worst with budget 1
    assert (found.counted, found.kinds) == (3, 10) and asked == [3]
    chosen, kinds = cross_check.kinds_of([plan.steps()], population, certificate)
    assert (chosen.tolist(), kinds) == ([4, 8, 9], 10)
    chosen, _ = cross_check.kinds_of([plan.steps()], population, certificate, every=True)
    assert sorted(chosen.tolist()) == [*range(10)]


def varying(population: Population, rounds: int, less: float = 1.0) -> Plan:
    """Noise that falls from round to round, and uses the whole budgets."""
    each, pools = np.ones(len(population)), np.arange(len(population))

    def plan(scale: np.ndarray) -> Plan:
        phases = (Phase(1, RATE * each, each, scale * (2 - t / rounds), pools, each) for t in range(rounds))
        return Plan("made", population.client, tuple(phases))

    factor = noise_scale(plan(each).steps(), population.epsilon, population.delta)
    return plan(factor * less)


def test_rounding_saves_time_and_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discretion.accounting.cross_check.MANY", 4)
    population = Population.of([1.0, 4.0])
    plan = varying(population, 5)
    certificate = certify(plan, population)
    found = check(plan, population, certificate)
    assert (found.counted, found.kinds) == (2, 2) and found.difference < 8e-3
    monkeypatch.setattr(
        "discretion.accounting.cross_check.LEVEL", 1.5
    )  # far too coarse: counted exactly then
    exact = check(plan, population, certificate)
    assert exact.counted == 2 and exact.difference < 2e-3
    short = varying(population, 5, less=0.95)
    lying = replace(certify(short, population), spent=population.epsilon)
    with pytest.raises(BudgetError, match="2 of 2 kinds"):
        check(short, population, lying)


def test_the_precision_is_small_for_every_epsilon() -> None:
    limit = np.array([1e-3, 0.1, 1.0, 10.0])
    np.testing.assert_allclose(precision(limit), [2.5e-5, 2.5e-3, 7e-3, 0.052])
