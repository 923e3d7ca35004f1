"""Accountants round up, and keep within memory whatever they are asked."""

import math
import tracemalloc

import mpmath
import numpy as np
import pytest

from discretion.accounting import Pld, certify, gaussian, pld
from discretion.plan.phase import MOST_RELEASES, Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.steps import Steps

mpmath.mp.dps = 60


def true_delta(epsilon: float, mu: float) -> mpmath.mpf:
    e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)

    def below(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

    return below(m / 2 - e / m) - mpmath.exp(e) * below(-m / 2 - e / m)


def test_the_closed_form_is_rounded_up() -> None:
    """To 60 digits, for shifts from 1e-9 to a million and deltas down to 1e-290."""
    rng = np.random.default_rng(0)
    mu, delta = 10 ** rng.uniform(-9, 6, 600), 10 ** rng.uniform(-290, -0.01, 600)
    delta[::2] = 10 ** rng.uniform(-15, -0.01, 300)
    epsilon = gaussian.epsilon_of(mu, delta)
    short = gaussian.delta_of(epsilon, mu) * 0
    for i, (e, m, d) in enumerate(zip(epsilon.tolist(), mu.tolist(), delta.tolist(), strict=True)):
        assert true_delta(e, m) <= d
        short[i] = float(true_delta(e * 0.7, m) / mpmath.mpf(float(gaussian.delta_at_most(e * 0.7, m))))
    assert short.max() <= 1


@pytest.mark.parametrize("mu", [0.3, 1.0, 30.0, 1e5])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-30])
def test_the_closed_form_is_rounded_up_by_very_little(mu: float, delta: float) -> None:
    found = float(gaussian.epsilon_of(np.array(mu), np.array(delta)))
    assert true_delta(found, mu) <= delta < true_delta(found * (1 - 1e-12), mu)


def test_no_shift_and_endless_shifts() -> None:
    mu = np.array([0.0, math.inf])
    np.testing.assert_array_equal(gaussian.delta_at_most(np.ones(2), mu), [0, 1])


@pytest.mark.parametrize("rate", [0.5, 0.01, 1.0])
def test_steps_without_number_are_counted_in_little_memory(rate: float) -> None:
    """2^40 steps used to ask for 52 TiB, a billion rounds took 3 GB."""
    steps = Steps.same(np.array([rate]), np.array([0.5]), MOST_RELEASES)
    tracemalloc.start()
    found = Pld().epsilon(steps, np.array([1e-5]))[0]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1e9 and math.isfinite(found)
    assert found <= gaussian.epsilon_of(np.array(math.sqrt(MOST_RELEASES) / 0.5), np.array(1e-5)) * (1 + 1e-9)
    assert Pld().tight(steps, np.array([1e-5]))[0] == (rate == 1)


def test_a_grid_that_is_too_long_for_one_client_is_not_for_another() -> None:
    rate, multiplier = np.full(2, 0.5), np.array([0.5, 2.0])
    steps = Steps(rate[None], multiplier[None], np.array([[MOST_RELEASES, 10]]))
    together = Pld().epsilon(steps, np.full(2, 3e-5))[1]
    pld._known.clear()
    assert together == Pld().epsilon(Steps.same(rate[1:], multiplier[1:], 10), np.array([3e-5]))[0]


def test_the_longest_plan_is_certified() -> None:
    plan = Plan("made", ("c0",), (Phase.one_pool(10**6, np.array([0.01]), np.ones(1), 1.0),))
    certificate = certify(plan, Population.of([1e9]))
    assert 139 < certificate.spent[0] < 139.5
