"""Lower bounds on epsilon hold with the chance that they name, and agree with what is known."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr, ndtri

from discretion.accounting import Pld
from discretion.audit.lower_bound import (
    Claim,
    Tally,
    any_mechanism,
    contradicts,
    planned_kind,
)
from discretion.plan.steps import Steps

DELTA = 1e-5

# by jax-privacy 2.0.0: python tests/support/jax_privacy_vectors.py says how
JAX_PRIVACY = [
    ((90, 100, 5, 100, 0.0, 0.05), 1.987974564),
    ((100, 100, 0, 100, 1e-05, 0.01), 2.911161798),
    ((1000, 5000, 200, 5200, 1e-05, 0.0001), 1.275043302),
    ((4900, 5000, 2500, 5000, 0.001, 0.01), 0.630147759),
    ((7, 3000, 0, 3000, 0.0, 0.05), 0.0),
    ((10, 100, 30, 100, 0.0, 0.05), 0.0),
]


def gaussian(multiplier: float, rate: float = 1.0, count: int = 1) -> Claim:
    return Claim(Steps.same(np.array([rate]), np.array([multiplier]), count))


def guessed(draw: np.random.Generator, multiplier: float, trials: int, threshold: float = 0.5) -> Tally:
    """Guess by the threshold who was in a sum of sensitivity 1 with Gaussian noise."""
    inside = draw.random(trials) < 0.5
    said = inside + multiplier * draw.standard_normal(trials) > threshold
    there = int(inside.sum())
    return Tally(int((said & inside).sum()), there, int((said & ~inside).sum()), trials - there)


@pytest.mark.parametrize(("case", "bound"), JAX_PRIVACY)
def test_bounds_from_counts_are_those_of_jax_privacy(case: tuple[float, ...], bound: float) -> None:
    hits, there, alarms, not_there, delta, chance = case
    tally = Tally(int(hits), int(there), int(alarms), int(not_there))
    assert any_mechanism(tally, delta, chance) == pytest.approx(bound, abs=2e-9)


@pytest.mark.parametrize("rate", [0.0, 0.003, 0.2, 0.97, 1.0])
def test_both_rates_lie_within_their_bounds_as_often_as_promised(rate: float) -> None:
    draw, chance, tries = np.random.default_rng(1), 0.2, 2000
    missed = 0
    for hits, alarms in draw.binomial(100, rate, size=(tries, 2)).tolist():
        least, most = Tally(hits, 100, alarms, 100).bounds(chance)
        missed += not least <= rate <= most
    assert stats.binom.sf(missed - 1, tries, chance) > 1e-6


def test_bounds_on_unlike_trials_hold_on_average() -> None:
    """Of independent trials of different rates, the bounds hold for the mean rate (Hoeffding 1956)."""
    draw, chance, tries = np.random.default_rng(2), 0.2, 2000
    rates = np.linspace(0.0, 0.3, 100)
    hits = (draw.random((tries, 100)) < rates).sum(axis=1)
    missed = sum(Tally(h, 100, 0, 100).bounds(chance)[0] > rates.mean() for h in hits.tolist())
    assert missed / tries < chance / 2


def test_a_turned_tally_is_the_attack_that_says_no() -> None:
    tally = Tally(hits=80, there=100, false_alarms=30, not_there=90)
    assert tally.turned == Tally(hits=60, there=90, false_alarms=20, not_there=100)
    assert tally.turned.turned == tally


@pytest.mark.parametrize("threshold", [-0.5, 0.5, 1.5])
def test_true_claims_are_seldom_contradicted(threshold: float) -> None:
    draw, chance, claim = np.random.default_rng(3), 0.2, gaussian(1.0)
    epsilon = float(Pld().epsilon(claim.kinds, np.array([DELTA]))[0])
    tallies = [guessed(draw, 1.0, 400, threshold) for _ in range(400)]
    wrong = sum(contradicts(tally, claim, chance) for tally in tallies)
    assert wrong <= stats.binom.isf(1e-6, 400, chance)
    over = sum(any_mechanism(tally, DELTA, chance) > epsilon for tally in tallies)
    assert over <= wrong


def test_false_claims_are_contradicted() -> None:
    draw = np.random.default_rng(4)
    tally = guessed(draw, 0.5, 4000)
    assert contradicts(tally, gaussian(1.0), 1e-3)
    assert not contradicts(tally, gaussian(0.5), 1e-3)
    two = Claim(Steps(np.ones((1, 2)), np.array([[1.0, 0.5]]), np.ones((1, 2), dtype=np.int64)))
    assert not contradicts(tally, two, 1e-3)  # what is true of one kind may be true of those guessed about


def test_the_bound_of_the_planned_kind_comes_near_to_epsilon_and_stays_below() -> None:
    draw, claim = np.random.default_rng(5), gaussian(1.0)
    epsilon = float(Pld().epsilon(claim.kinds, np.array([DELTA]))[0])
    bounds = [planned_kind(guessed(draw, 1.0, 20_000), claim, DELTA, 1e-3) for _ in range(5)]
    assert all(0.8 * epsilon < bound < epsilon for bound in bounds)
    # with half of the noise, the bound follows what is true, above what is claimed
    half = float(Pld().epsilon(gaussian(0.5).kinds, np.array([DELTA]))[0])
    assert epsilon < planned_kind(guessed(draw, 0.5, 20_000), claim, DELTA, 1e-3) < half


def test_guesses_by_chance_show_nothing() -> None:
    tally = Tally(500, 1000, 500, 1000)
    assert planned_kind(tally, gaussian(1.0), DELTA, 0.01) == 0.0
    assert any_mechanism(tally, DELTA, 0.01) == 0.0
    assert any_mechanism(Tally(0, 10, 0, 10), DELTA, 0.01) == 0.0


@pytest.mark.parametrize("multiplier", [0.25, 0.5, 1.0, 4.0])
def test_the_claimed_curve_of_a_gaussian_is_its_trade_off_on_both_sides(multiplier: float) -> None:
    """Supporting lines lie below the curve, and near to it, whatever the rate of hits."""
    claim = gaussian(multiplier)
    for hits in (1e-4, 0.01, 0.1, 0.5, 0.9, 0.99, 0.9999):
        exact = float(ndtr(ndtri(hits) - 1 / multiplier))
        found = claim.alarms(hits)
        assert found <= exact * (1 + 1e-9)
        assert ndtri(hits) - ndtri(max(found, 1e-300)) == pytest.approx(1 / multiplier, rel=0.03)
    assert claim.alarms(0.0) == 0 and claim.alarms(1.0) == pytest.approx(1)
    assert gaussian(0.0).alarms(1.0) == 0.0  # where nothing is claimed, everything is allowed


def test_what_is_certain_is_bounded_all_the_same() -> None:
    tally = Tally(1000, 1000, 0, 1000)
    assert 4 < any_mechanism(tally, DELTA, 0.01) < 8
    assert planned_kind(tally, gaussian(1.0), DELTA, 0.01) > 10
