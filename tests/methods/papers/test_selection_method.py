"""Xu, Zhang and Huang: what `privacy_aware` and its baselines plan for the paper's hundred clients."""

import numpy as np
import pytest

from discretion.accounting import certify
from discretion.methods import make_plan
from discretion.methods.papers import xu_zhang as paper
from discretion.methods.privacy_aware import PlannedDraws
from discretion.methods.solvers import selection as problem
from discretion.plan.plan import Accounting, Plan
from discretion.plan.population import Population
from support import formulas

ROUNDS, COHORT, STEPS, BATCH = 100, 10, 5, 0.1
SETTINGS = {"rounds": ROUNDS, "rate": 0.1, "clip": 1.0, "steps": STEPS, "batch": BATCH}


def hundred() -> Population:
    """60,000 records in whole numbers, budgets ~ U(0.001, 1), as in section VI-A."""
    rng = np.random.default_rng(0)
    spread = rng.uniform(0.5, 1.5, 100)
    return Population.of(rng.uniform(0.001, 1, 100), 1e-5, np.round(60_000 * spread / spread.sum()))


CLIENTS = hundred()
SHARE = CLIENTS.size / CLIENTS.size.sum()
V = paper.variance(CLIENTS.epsilon, CLIENTS.delta, np.full(100, BATCH), CLIENTS.size.astype(float))


def drawing(clients: Population = CLIENTS, accounting: Accounting = "tight") -> PlannedDraws:
    return PlannedDraws(clients, ROUNDS, COHORT / len(clients), STEPS, BATCH, accounting)


def probabilities(weight: float, accounting: Accounting, clients: Population = CLIENTS) -> np.ndarray:
    """The chances at this weight of the noise of one step."""
    return drawing(clients, accounting).probabilities(weight)


def planned(method: str, accounting: Accounting, **more: str | float) -> Plan:
    return make_plan(method, CLIENTS, {**SETTINGS, "accounting": accounting, **more})


def turns(plan: Plan) -> np.ndarray:
    result: np.ndarray = np.sum([phase.turns for phase in plan.phases if phase.turns is not None], axis=0)
    return result


def test_noise_in_paper_mode_is_equations_6_and_7() -> None:
    """V from 1.38e-3 over 6.84e-3 (median) to 7.43 is read off the plan's noise."""
    plan = planned("unbiased", "paper")
    multiplier, count = plan.phases[0].noise, np.maximum(turns(plan), 1)
    found = (multiplier / (BATCH * CLIENTS.size)) ** 2 / (count * STEPS)
    assert found == pytest.approx(V)
    known = [1.38e-3, 6.84e-3, 7.43]
    assert [found.min(), np.median(found), found.max()] == pytest.approx(known, rel=3e-3)


def test_up_to_the_threshold_selection_is_unbiased() -> None:
    """s0 = 1.20."""
    assert formulas.threshold(SHARE, V) == pytest.approx(1.20, abs=0.005)
    assert (probabilities(1.195, "paper") == SHARE).all()
    assert (probabilities(1.205, "paper") != SHARE).any()


@pytest.mark.parametrize("accounting", ["paper", "tight"])
@pytest.mark.parametrize("weight", [1e3, 1e4, 0.0])
def test_more_epsilon_or_more_records_is_never_drawn_less(accounting: Accounting, weight: float) -> None:
    """On a grid of 150 clients, in both modes and under the default weight (0)."""
    size, epsilon = np.meshgrid([300.0, 600.0, 900.0], np.linspace(0.05, 1, 50), indexing="ij")
    p = probabilities(weight, accounting, Population.of(epsilon.ravel(), 1e-5, size.ravel())).reshape(3, 50)
    assert (np.diff(p, axis=1) >= -1e-12).all()
    assert (np.diff(p, axis=0) >= -1e-12).all()
    assert p.min() > 0  # Proposition 2


def test_true_noise_keeps_selection_closer_to_unbiased() -> None:
    """At s = 1e4 the distance from the shares falls from .147 to .078, the objective from .976 to .311.

    Known as .075 and .305: of noise without its intercept in the number of steps, which gives .078 and .307.
    """
    by_paper, tight = probabilities(1e4, "paper"), probabilities(1e4, "tight")
    found = [np.abs(p - SHARE).sum() for p in (by_paper, tight)]
    assert found == pytest.approx([0.147, 0.0782], abs=5e-4)
    intercept, slope = drawing().noise_curve()
    assert problem.objective(by_paper, SHARE, V, 1e4) == pytest.approx(0.976, abs=5e-4)
    assert problem.objective(tight, SHARE, slope, 1e4, intercept) == pytest.approx(0.311, abs=1e-3)


def test_the_papers_variance_is_10_to_70_times_the_needed_one() -> None:
    _, slope = drawing().noise_curve()
    ratio = V / slope
    assert [ratio.min(), np.median(ratio), ratio.max()] == pytest.approx([10.06, 42.9, 69.9], rel=5e-3)


@pytest.mark.parametrize("method", ["privacy_aware", "unbiased", "unbiased_compensated"])
def test_a_quarter_of_the_budget_is_spent_in_paper_mode_and_all_of_it_in_tight_mode(method: str) -> None:
    """0.1, 0.2: with batches by coins, and noise for the turns that were drawn (0.6)."""
    spent = {}
    for accounting in ("paper", "tight"):
        plan = planned(method, accounting)
        certificate = certify(plan, CLIENTS)
        certificate.require(plan)
        assert turns(plan).sum() == COHORT * ROUNDS
        spent[accounting] = certificate.share[turns(plan) > 0]
        assert (certificate.spent[turns(plan) == 0] == 0).all()  # never drawn, nothing spent
    assert 0.2 < spent["paper"].max() < 0.3
    assert spent["tight"].min() > 0.995


def test_compensated_draws_count_for_their_share() -> None:
    """Weights u_k / p_k: the mean weight over many draws is the share of the data."""
    plan = planned("unbiased_compensated", "paper", by="uniform")
    assert plan.phases[0].weight * COHORT == pytest.approx(SHARE * len(CLIENTS))
    assert planned("privacy_aware", "paper").phases[0].weight == pytest.approx(1 / COHORT)


def test_selecting_is_weighting() -> None:
    """Section 2: draws by p with noise for so many turns are as noisy as draws by u weighted by p / u."""
    p = probabilities(1e4, "paper")
    drawn = (p * p * V * COHORT * ROUNDS).sum()  # a share p_k of the draws, each with variance V_k p_k N T
    weighted = (SHARE * (p / SHARE) ** 2 * V * SHARE * COHORT * ROUNDS).sum()
    assert drawn == pytest.approx(weighted)


@pytest.mark.parametrize(
    ("method", "reads"),
    [
        ("power_of_choice", "the loss of every record"),
        ("aocs", "the norm of the clients' gradients"),
        ("fed_cbs", "the labels"),
        ("delta", "the norm of the clients' gradients, and how much they vary"),
    ],
)
def test_baselines_that_read_data_say_so_and_pay(method: str, reads: str) -> None:
    """0.7 and section 1 of 001: raw, as published, epsilon is infinite; noised, the budget pays for it."""
    settings = {"rounds": 10, "rate": 0.1, "clip": 1.0}
    clients = Population.of([1.0] * 50 + [8.0] * 50, 1e-5, 600)
    for more, private in (
        ({}, False),
        ({"read_share": 0.1, "accounting": "paper"}, False),
        ({"read_share": 0.1}, True),
    ):
        plan = make_plan(method, clients, {**settings, **more})
        certificate = certify(plan, clients)
        assert plan.reads == certificate.reads == reads
        assert certificate.promises_nothing != private
        if private:
            asked = turns(plan) > 0
            assert (certificate.spent <= clients.epsilon).all()
            assert certificate.share[asked].min() > 0.99
    for other in ("privacy_aware", "unbiased"):
        assert planned(other, "tight").reads == "nothing"
