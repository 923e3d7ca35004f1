"""V_k and what it is worth, against the numbers worked out by hand."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from discretion.accounting import Pld, Renyi, gaussian, noise_multiplier
from discretion.methods.papers import xu_zhang
from discretion.plan.steps import Steps
from support import formulas

DELTA = 1e-5


def hundred() -> tuple[np.ndarray, np.ndarray]:
    """Budgets and sizes of a hundred clients: epsilon ~ U(0.001, 1), sizes as in the paper's section VI-A."""
    rng = np.random.default_rng(0)
    spread = rng.uniform(0.5, 1.5, 100)
    return rng.uniform(0.001, 1, 100), 60_000 * spread / spread.sum()


def test_variances_of_a_hundred_clients() -> None:
    epsilon, size = hundred()
    found = xu_zhang.variance(epsilon, np.full(100, DELTA), np.full(100, 0.1), size)
    known = [1.38e-3, 6.84e-3, 7.43]
    assert [found.min(), np.median(found), found.max()] == pytest.approx(known, rel=3e-3)
    share = size / size.sum()
    spread = np.ptp(found * share)
    assert 4 * (found * share**2).sum() / spread**2 == pytest.approx(1.20, abs=0.005)  # p = u up to here


def test_exact_variances_are_a_fraction_of_the_papers() -> None:
    """Known as 10.6 to 69.7, median 43, without the number of steps: 10.06 to 69.7 and 42.9 in many steps."""
    epsilon, size = hundred()
    delta, rate, steps = np.full(100, DELTA), np.full(100, 0.1), 5000
    exact = (noise_multiplier(epsilon, delta, rate, steps) / (rate * size)) ** 2 / steps
    ratio = xu_zhang.variance(epsilon, delta, rate, size) / exact
    known = [10.06, 42.85, 69.7]
    assert [ratio.min(), np.median(ratio), ratio.max()] == pytest.approx(known, rel=5e-3)


def test_standard_deviation_is_equation_6() -> None:
    """One client by hand: 600 records, batches of 128, drawn 10 times for 5 steps, clip 2."""
    rate, larger = 128 / 600, math.log(1 + (math.e - 1) * 600 / 128)
    variance = 8 * math.log(math.e + rate * larger / DELTA) / (128 * larger) ** 2
    one = np.ones(1)
    found = xu_zhang.variance(one, DELTA * one, rate * one, 600 * one)
    assert found == pytest.approx(variance)
    std = xu_zhang.noise_std(found, 10 * one, 5, 2.0)
    assert std == pytest.approx(2 * math.sqrt(50 * variance))
    assert std * 128 / 2 == pytest.approx(xu_zhang.multiplier(one, DELTA * one, rate * one, 50))


def test_public_data_get_no_noise_and_large_budgets_do_not_overflow() -> None:
    epsilon = np.array([np.inf, 5000.0])
    found = xu_zhang.variance(epsilon, np.full(2, DELTA), np.full(2, 0.1), np.full(2, 600.0))
    assert found[0] == 0
    assert 0 < found[1] < 1e-6


@pytest.mark.parametrize(
    ("rate", "epsilon", "steps", "paper", "by_renyi", "by_pld"),
    [(0.213, 0.5, 50, 45.9, 11.8, 10.8), (0.1, 1, 50, 22.1, 3.19, 2.93), (0.1, 10, 250, 12.4, 1.12, 1.07)],
)
def test_noise_is_many_times_what_is_needed(
    rate: float, epsilon: float, steps: int, paper: float, by_renyi: float, by_pld: float
) -> None:
    budget = np.array([epsilon]), np.array([DELTA]), np.array([rate])
    assert xu_zhang.multiplier(*budget, steps) == pytest.approx(paper, rel=5e-3)
    assert noise_multiplier(*budget, steps, Renyi()) == pytest.approx(by_renyi, rel=5e-3)
    assert noise_multiplier(*budget, steps) == pytest.approx(by_pld, rel=5e-3)


def test_with_poisson_batches_a_tenth_of_the_budget_is_spent() -> None:
    one = np.ones(1)
    noise = xu_zhang.multiplier(one, DELTA * one, 0.1 * one, 50)
    assert Pld().epsilon(Steps.same(0.1 * one, noise, 50), DELTA * one) == pytest.approx(0.10, abs=0.005)


def test_needed_variance_is_affine_in_the_number_of_steps() -> None:
    """Which is why the paper's proportional one asks everybody to take part (Proposition 2)."""
    one = np.ones(1)
    found = [noise_multiplier(one, DELTA * one, 0.1 * one, t)[0] ** 2 for t in (1, 10, 50, 250)]
    assert found == pytest.approx([1.587, 3.032, 8.585, 36.48], rel=2e-3)
    slopes = np.diff(found) / np.diff([1, 10, 50, 250])
    assert slopes[1:] == pytest.approx(0.139, rel=5e-3)


def crossing(delta: float, clips: int, low: float, high: float) -> float:
    """The epsilon from which the noise of Lemma 2 is too little where one record moves the sum by `clips`."""

    def excess(epsilon: float) -> float:
        noise = formulas.composition(np.array([epsilon]), np.array([delta]), 7) / math.sqrt(7)
        return float(gaussian.epsilon_of(clips / noise, np.array([delta]))[0]) - epsilon

    return float(brentq(excess, low, high))


@pytest.mark.parametrize(("delta", "known"), [(1e-3, 129.8), (1e-5, 169.5), (1e-7, 208.6)])
def test_lemma_2_fails_for_large_budgets(delta: float, known: float) -> None:
    """To the root they are 129.69, 169.26 and 208.51."""
    assert crossing(delta, 1, 20, 1000) == pytest.approx(known, rel=2e-3)


def test_without_sampling_twice_the_clip_fails_from_13_6() -> None:
    assert crossing(DELTA, 2, 2, 100) == pytest.approx(13.6, abs=0.05)


def test_lemma_2_is_too_much_noise_for_usual_budgets() -> None:
    """Between 2.1 times (epsilon 10) and 2.8 times (epsilon 0.1)."""
    epsilon, delta = np.geomspace(0.1, 10, 9), np.full(9, DELTA)
    ratio = formulas.composition(epsilon, delta, 1) * gaussian.shift_of(epsilon, delta)
    assert (ratio[0], ratio[-1]) == pytest.approx((2.8, 2.1), rel=5e-3)
    assert (np.diff(ratio) < 0).all()
