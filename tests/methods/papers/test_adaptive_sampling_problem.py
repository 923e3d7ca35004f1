"""How often clients are drawn: the printed problem, the exact one and ours, against other solvers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import softmax

from discretion.accounting import gaussian
from discretion.arrays import Floats
from discretion.errors import PlanError
from discretion.methods.papers.appendix import turns_bound
from discretion.methods.solvers.adaptive_sampling import (
    noise_weights,
    planned_rates,
    planned_terms,
    printed_rates,
)
from support.formulas import MINMAX_SLOPE, exact_objective, planned_objective, printed_objective

CLIENTS, DRAWS, ROUNDS = 100, 10, 100
EPSILON = np.random.default_rng(3).uniform(0.5, 5, CLIENTS)
WEIGHT = EPSILON**-2 / np.mean(EPSILON**-2)
DELTA = np.full(CLIENTS, 1e-5)
UNIFORM = np.full(CLIENTS, 1 / CLIENTS)


def found_by_descent(objective: Callable[[Floats], float], start: Floats) -> tuple[float, np.ndarray]:
    """L-BFGS on the logarithms, with differences for gradients."""
    options: Any = {"maxfun": 10**6, "maxiter": 2000, "ftol": 1e-15}

    def value(logarithms: Floats) -> float:
        return objective(softmax(logarithms))

    begin: Floats = np.log(start)
    found = minimize(value, begin, method="L-BFGS-B", options=options)
    return float(found.fun), softmax(found.x)


def exact(rate: np.ndarray) -> float:
    return exact_objective(rate, WEIGHT, DRAWS, ROUNDS, DELTA, MINMAX_SLOPE)


def test_the_printed_problem_is_solved() -> None:
    rate = printed_rates(WEIGHT, DRAWS)
    assert rate.sum() == pytest.approx(1, abs=1e-14)
    assert printed_objective(rate, WEIGHT, DRAWS) == pytest.approx(259.836796, abs=5e-7)
    assert printed_objective(UNIFORM, WEIGHT, DRAWS) == pytest.approx(326.23, abs=5e-3)
    value, other = found_by_descent(lambda q: printed_objective(q, WEIGHT, DRAWS), UNIFORM)
    assert value == pytest.approx(259.836796, abs=1e-6)
    assert np.abs(rate - other).max() < 1e-7


def test_the_printed_advice_is_to_draw_the_noisiest_most() -> None:
    rate = printed_rates(WEIGHT, DRAWS)
    assert np.corrcoef(rate, EPSILON)[0, 1] == pytest.approx(-0.82, abs=5e-3)
    assert np.polyfit(np.log(WEIGHT), np.log(rate), 1)[0] == pytest.approx(0.649, abs=5e-4)
    many = 10**6 * np.ones(2) / np.array([1, 8])  # the power 2/3 is the limit of many clients
    spread = printed_rates(np.tile(many, 5000), DRAWS)[:2]
    assert spread[0] / spread[1] == pytest.approx(8 ** (2 / 3), rel=1e-2)


@pytest.mark.parametrize(("clients", "draws"), [(1, 1), (2, 4), (3, 9), (4, 16), (5, 20), (30, 1), (30, 900)])
def test_no_distribution_is_better_though_the_problem_is_not_convex(clients: int, draws: int) -> None:
    rng = np.random.default_rng(clients)
    weight = np.exp(2 * rng.standard_normal(clients))
    rate = printed_rates(weight, draws)
    assert rate.sum() == pytest.approx(1)
    assert (rate <= draws**-0.5 * (1 + 1e-12)).all()
    others = rng.dirichlet(np.full(clients, 0.3), 500) + 1e-9
    near = rate * np.exp(0.1 * rng.standard_normal((500, clients)))
    best = printed_objective(rate, weight, draws)
    for other in np.concatenate([others, near]):
        assert printed_objective(other / other.sum(), weight, draws) >= best * (1 - 1e-12)


def test_equal_clients_are_drawn_equally() -> None:
    assert printed_rates(np.ones(7), 3) == pytest.approx(1 / 7)
    assert planned_rates(np.ones(7), np.ones(7)) == pytest.approx(1 / 7)
    assert planned_rates(np.ones(1), np.zeros(1)) == 1


def test_the_exact_expression() -> None:
    """100 rounds, delta''' = 1e-5, k = 1.702: the printed problem's solution is 1 % beside the optimum."""
    printed = printed_rates(WEIGHT, DRAWS)
    value, _ = found_by_descent(lambda q: exact(q) / 1e4, printed)
    by_budget = EPSILON / EPSILON.sum()
    found = [1e4 * value, exact(printed), exact(UNIFORM), exact(by_budget)]
    assert found == pytest.approx([31122, 31427, 34099, 46090], abs=0.7)


def test_where_the_margin_rules_the_exact_expression_is_the_printed_one_but_for_a_root() -> None:
    """sqrt(K R) / K ((K - 1) sqrt(q) + 1 / sqrt(q)): the first term of (47) lacks about sqrt(K)."""
    rate, one = np.array([1e-7]), np.ones(1)
    margin = np.log((1 - DELTA[:1]) / DELTA[:1]) / MINMAX_SLOPE
    limit = margin * np.sqrt(DRAWS * ROUNDS) / DRAWS * ((DRAWS - 1) * np.sqrt(rate) + 1 / np.sqrt(rate))
    assert exact_objective(rate, one, DRAWS, ROUNDS, DELTA[:1], MINMAX_SLOPE) == pytest.approx(
        limit[0], rel=2e-3
    )


def test_counting_uploads_when_planning_leaves_a_third_of_the_noise() -> None:
    expected = DRAWS * ROUNDS * UNIFORM
    bound = turns_bound(UNIFORM, DRAWS * ROUNDS, DELTA, MINMAX_SLOPE)
    assert expected / bound == pytest.approx(0.32, abs=5e-4)


def planned_with(update: float) -> np.ndarray:
    once = 1 / gaussian.shift_of(EPSILON, DELTA)
    return planned_rates(*planned_terms(UNIFORM, np.full(CLIENTS, update), once, DRAWS, ROUNDS))


def test_then_the_generous_are_drawn_most() -> None:
    """With updates that fill the clip .955; where they are far smaller, the most generous stand out."""
    assert np.corrcoef(planned_with(1.0), EPSILON)[0, 1] == pytest.approx(0.95, abs=6e-3)
    for update in (0.01, 1.0, 100.0):
        assert (np.diff(planned_with(update)[np.argsort(EPSILON)]) > 0).all()
    assert planned_with(1e9) == pytest.approx(UNIFORM, rel=1e-4)


def test_planned_terms_are_the_variance() -> None:
    """(K - 1 + 1/q) / K p² (G² + K R q sigma²), but for what does not depend on q."""
    share, update, once = np.array([0.3, 0.7]), np.array([0.5, 2.0]), np.array([3.0, 1.5])

    def whole(q: np.ndarray) -> float:
        theta = (DRAWS - 1 + 1 / q) / DRAWS
        return float((theta * share**2 * (update + DRAWS * ROUNDS * q * once**2)).sum())

    terms = planned_terms(share, update, once, DRAWS, ROUNDS)
    one, two = np.array([0.2, 0.8]), np.array([0.6, 0.4])
    differ = planned_objective(one, *terms) - planned_objective(two, *terms)
    assert whole(one) - whole(two) == pytest.approx(differ)


@pytest.mark.parametrize("noise", [0.0, 1.0, 1e6])
def test_the_planned_problem_is_solved(noise: float) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.uniform(0.1, 3, 8), noise * rng.uniform(0, 2, 8)
    rate = planned_rates(a, b)
    assert rate.sum() == pytest.approx(1)
    price = a / rate**2 - b  # nu, the same for all
    assert price == pytest.approx(price[0], rel=1e-6, abs=1e-6 * noise)
    best = planned_objective(rate, a, b)
    for other in rng.dirichlet(np.ones(8), 500):
        assert planned_objective(other, a, b) >= best


def test_very_different_clients() -> None:
    """Each still has a rate, and the price of a rate is the same for all."""
    weight = 10.0 ** np.arange(-15.0, 15.0, 3.0)
    rate = printed_rates(weight, 16)
    price = weight * (rate**-1.5 / 4 - rate**-0.5) / 2
    assert price[:-2] == pytest.approx(price[0], rel=1e-6)  # of the last two, at 1 / sqrt(K), it is a rest
    assert rate[-2:] == pytest.approx(0.25, rel=1e-6)
    rate = planned_rates(weight[::-1], weight)
    assert (rate > 0).all() and rate.sum() == pytest.approx(1)
    assert rate[0] > 0.9
    assert planned_rates(np.array([1.0, 4.0]), np.full(2, 1e20)) == pytest.approx([1 / 3, 2 / 3])


def test_weights_follow_share_and_budget() -> None:
    share = np.array([0.2, 0.2, 0.4])
    found = noise_weights(share, np.array([1.0, 2.0, 1.0]), np.full(3, 1e-5), np.full(3, 1e-6))
    assert found / found[0] == pytest.approx([1, 0.25, 4])
    assert found[0] == pytest.approx(np.log(1e5) * np.log(1e6) * 0.04)


def test_what_cannot_be_solved_is_refused() -> None:
    with pytest.raises(PlanError, match="never be drawn"):
        printed_rates(np.array([1.0, 0.0]), 1)
    with pytest.raises(PlanError, match="between 1 and 4"):
        printed_rates(np.ones(2), 5)
    with pytest.raises(PlanError, match="never be drawn"):
        planned_rates(np.array([1.0, np.inf]), np.ones(2))
    with pytest.raises(PlanError, match="infinite variance"):
        planned_rates(np.ones(2), np.array([1.0, np.inf]))
