"""Sampling without replacement: both bounds against exact sums, other libraries and the known epsilons."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.special import ndtr

from discretion.accounting import Pld, fixed_size
from discretion.methods.papers import xu_hu, xu_zhang
from discretion.plan.steps import Steps

DELTA = 1e-5


def one(value: float) -> np.ndarray:
    return np.array([value])


@pytest.mark.parametrize("multiplier", [0.4, 3.0, 40.0])
def test_moments_are_the_binomial_sums(multiplier: float) -> None:
    """E[(P/Q - 1)^j] = sum of (-1)^(j-i) C(j, i) exp(i (i - 1) / 2s²), which cancels in doubles."""
    found = fixed_size._log_moments(multiplier)
    with mpmath.workdps(900):
        for j in (2, 4, 16, 64, 256):
            terms = [
                (-1) ** (j - i)
                * mpmath.binomial(j, i)
                * mpmath.exp(i * (i - 1) / (2 * mpmath.mpf(multiplier) ** 2))
                for i in range(j + 1)
            ]
            assert found[j // 2 - 1] == pytest.approx(float(mpmath.log(mpmath.fsum(terms))), rel=1e-9)


@pytest.mark.parametrize(("drawn", "multiplier", "rounds"), [(10, 6.0, 40), (2, 1.5, 50), (21, 2.0, 1)])
def test_upper_bound_is_that_of_dp_accounting(drawn: int, multiplier: float, rounds: int) -> None:
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    theirs = RdpAccountant(list(range(2, 64)), relation)
    step = dp_accounting.GaussianDpEvent(multiplier / 2)
    theirs.compose(dp_accounting.SampledWithoutReplacementDpEvent(100, drawn, step), rounds)
    found = fixed_size.at_most(one(drawn / 100), one(multiplier), rounds, one(DELTA))
    assert found == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-6)


def test_lower_bound_is_what_the_worst_data_give() -> None:
    """One round in closed form: delta of (1 - q) N(0) + q N(2) against N(0)."""
    rate, multiplier = 0.1, 1.3

    def delta(epsilon: float) -> float:
        x = (
            multiplier**2 / 2 * math.log((math.exp(epsilon) - 1 + rate) / rate) + 1
        )  # where the loss is epsilon
        tails = ndtr(-x / multiplier), ndtr((2 - x) / multiplier)
        return float((1 - rate) * tails[0] + rate * tails[1] - math.exp(epsilon) * tails[0])

    exact = brentq(lambda epsilon: delta(epsilon) - DELTA, 0.1, 50)
    assert fixed_size.at_least(one(rate), one(multiplier), 1, one(DELTA)) == pytest.approx(exact, rel=2e-3)


def test_the_bounds_are_in_order_and_meet_without_sampling() -> None:
    rate, multiplier, delta = (
        np.array([0.01, 0.1, 0.5, 1.0]),
        np.array([1.0, 5.0, 20.0, 3.0]),
        np.full(4, DELTA),
    )
    low = fixed_size.at_least(rate, multiplier, 20, delta)
    high = fixed_size.at_most(rate, multiplier, 20, delta)
    assert (low < high).all()
    assert high[3] < 1.1 * low[3]  # only the conversion is lost


@pytest.mark.parametrize(
    ("rate", "steps", "epsilon", "known"),
    [
        (0.213, 50, 0.5, 0.217),
        (0.213, 50, 1, 0.35),
        (0.213, 50, 10, 2.16),
        (0.1, 1, 12, 12.28),
        (0.1, 1, 14, 14.94),
        (1.0, 1, 14, 14.09),
    ],
)
def test_paper_000_is_broken_by_single_large_steps_only(
    rate: float, steps: int, epsilon: float, known: float
) -> None:
    noise = xu_zhang.multiplier(one(epsilon), one(DELTA), one(rate), steps)
    assert fixed_size.at_least(one(rate), noise, steps, one(DELTA)) == pytest.approx(known, rel=3e-3)


@pytest.mark.parametrize(
    ("rate", "steps", "epsilon", "known"),
    [
        (0.1, 10, 0.1, 0.116),
        (0.213, 50, 0.1, 0.147),
        (0.213, 50, 0.5, 0.52),
        (0.1, 1, 10, 11.4),
        (0.213, 1, 10, 10.9),
    ],
)
def test_paper_000_is_not_proved_either(rate: float, steps: int, epsilon: float, known: float) -> None:
    noise = xu_zhang.multiplier(one(epsilon), one(DELTA), one(rate), steps)
    found = fixed_size.at_most(one(rate), noise, steps, one(DELTA))
    assert found == pytest.approx(known, rel=8e-3)
    assert found > epsilon


KNOWN = {
    "FMNIST": ([2.04, 7.54, 15.4], [2.06, 7.65, 14.5]),
    "CIFAR-10": ([5.5, 24.3, 55.8], [9.6, 24.8, 46.6]),
}


@pytest.mark.parametrize("name", KNOWN)
def test_paper_004_spends_several_times_its_budgets(name: str) -> None:
    setting = xu_hu.TABLE_1[name]
    for rates, variance, known in zip(
        (setting.equal_rates, setting.rates), xu_hu.TABLE_3[name], KNOWN[name], strict=True
    ):
        noise = np.sqrt(variance)
        found = fixed_size.at_least(rates, noise, setting.rounds, setting.delta)
        assert found == pytest.approx(known, rel=6e-3)
        coins = Pld().epsilon(Steps.same(rates, noise, setting.rounds), setting.delta)
        assert (coins < setting.epsilon).all()  # as promised, had the clients tossed coins
