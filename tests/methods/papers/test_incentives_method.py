"""Yuan and Wang: the game's figures through `fedpcs`, and what its levels cost over a life."""

from functools import cache

import numpy as np
import pytest

from discretion.accounting import certify, gaussian
from discretion.methods import levels as game
from discretion.methods import make_plan
from discretion.methods.papers import yuan_wang as paper
from discretion.methods.solvers import cohorts
from discretion.methods.solvers.incentives import equilibrium
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from support.formulas import by_level

N, ROUNDS, COHORT = 100, 30, 20
RNG = np.random.default_rng(1)
TRAITS = {"rho": RNG.uniform(0.01, 12, N), "privacy_weight": RNG.uniform(0, 1, N)}
CLIENTS = Population.of(np.full(N, 20.0), 1e-5, 600, TRAITS)
SETTINGS = {"rounds": ROUNDS, "rate": COHORT / N, "clip": 2.0}


def planned(method: str, **more: object) -> Plan:
    return make_plan(method, CLIENTS, {**SETTINGS, **more})


@cache
def levels() -> np.ndarray:
    """(T, N) at the default reward of 5."""
    return game.levels(CLIENTS, ROUNDS, COHORT / N, 5.0)


def asked(plan: Plan) -> np.ndarray:
    """(T, N) public turns."""
    return np.array([phase.turns for phase in plan.phases])


@pytest.mark.parametrize(("reward", "last"), [(1.0, 3.11), (5.0, 6.59), (10.0, 8.93), (20.0, 11.243)])
def test_the_mean_level_follows_the_reward(reward: float, last: float) -> None:
    """Section 3: from 6.16 to about 3 to 4, 6.6 to 6.9, 9 to 10, and 11.2."""
    played, player = game.game_of(CLIENTS, ROUNDS, COHORT / N)
    found = equilibrium(played, reward)
    assert (found.phi[0], found.phi[-1]) == pytest.approx((6.1617, last), abs=0.02)
    assert found.converged and found.exploitable == 0
    assert sorted(player) == list(range(N))  # so few clients play for themselves
    assert found.rho[0, player] == pytest.approx(TRAITS["rho"])


def test_levels_are_drawn_by_and_noised_by_in_paper_mode() -> None:
    """Proposition 1: sigma = sqrt(2 / rho) W / |D| on the mean, for twice the clip; x ~ rho; weights."""
    plan, rho = planned("fedpcs", accounting="paper"), levels()
    x = by_level(rho)
    for t, phase in enumerate(plan.phases):
        assert phase.noise / 600 == pytest.approx(paper.noise_std(rho[t], np.full(N, 600.0), 2.0))
        assert phase.weight == pytest.approx(1 / N / (COHORT * x[t]))
    assert (asked(plan).sum(axis=1) == COHORT).all() and asked(plan).max() == 1
    drawn = asked(plan).sum(axis=0)
    assert np.corrcoef(drawn, rho.mean(axis=0))[0, 1] > 0.3


def test_levels_of_a_round_pass_a_budget_for_life_in_paper_mode() -> None:
    """1.2: rho adds up, and there is no total. A record is replaced by another, as in the paper."""
    plan, rho = planned("fedpcs", accounting="paper"), levels()
    certificate = certify(plan, CLIENTS)
    whole = (asked(plan) * rho).sum(axis=0)
    exact = gaussian.epsilon_of(np.sqrt(2 * whole), CLIENTS.delta)
    assert certificate.spent == pytest.approx(exact, rel=1e-3, abs=1e-9)
    assert len(certificate.overspent) > N / 2
    assert certificate.spent.max() > 2 * 20


@pytest.mark.parametrize("method", ["fedpcs", "random", "fedpcs_adaptive"])
def test_in_tight_mode_levels_are_scaled_to_the_budget_for_life(method: str) -> None:
    plan = planned(method)
    certificate = certify(plan, CLIENTS)
    certificate.require(plan)
    drawn = asked(plan).sum(axis=0) > 0
    assert certificate.share[drawn].min() > 0.999
    rho = np.array([(2.0 / phase.noise) ** 2 / 2 for phase in plan.phases])
    if method == "fedpcs":  # and keep their shape
        assert rho / rho[0] == pytest.approx(levels() / levels()[0])


def test_weights_for_replacement_sum_to_more_than_one_without_it() -> None:
    """1.8: 1.334 on average at K = 80. With weights by inclusion chances it is 1, exactly."""
    one = {"rounds": 1, "rate": 0.8, "clip": 1.0}
    sums = []
    for seed in range(40):
        (phase,) = make_plan("fedpcs", CLIENTS, {**one, "accounting": "paper", "seed": seed}).phases
        assert phase.turns is not None
        sums.append(float(phase.weight @ phase.turns))
    assert np.mean(sums) == pytest.approx(1.334, abs=0.08)
    (phase,) = make_plan("fedpcs", CLIENTS, {**one, "weighted": True}).phases
    chances = cohorts.inclusion(by_level(TRAITS["rho"]), 80)
    assert phase.weight * chances == pytest.approx(1 / N)


def test_cohorts_follow_the_budget_of_a_round() -> None:
    """Algorithm 3: with a budget that grows, levels of a cohort sum to at most as much."""
    plan = planned("fedpcs_adaptive", budget_start=0.2, budget_end=1.0)
    rho = levels()
    spent = (asked(plan) * rho).sum(axis=1)
    assert (spent <= np.linspace(0.2, 1.0, ROUNDS) * COHORT * rho.mean(axis=1)).all()
    assert asked(plan)[-1].sum() > 1.5 * asked(plan)[0].sum() > 0
