"""Lower bounds from one run hold however canaries interfere, and agree with what is known."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import ndtr, ndtri

from discretion.accounting import gaussian
from discretion.arrays import Floats
from discretion.audit.lower_bound import DELTAS, Claim
from discretion.audit.one_run import Guesses, any_mechanism, contradicts, planned_kind, refuted
from discretion.plan.steps import Steps

DELTA = 1e-5

# by jax-privacy 2.0.0: python tests/support/jax_privacy_vectors.py says how
JAX_PRIVACY = [
    ((95, 100, 1000, 0.0, 0.05), 2.172434020),
    ((100, 100, 100, 1e-05, 0.05), 3.490215868),
    ((700, 1000, 1000, 1e-05, 0.01), 0.684954964),
    ((180, 200, 2000, 1e-06, 0.001), 1.495237368),
    ((52, 100, 100, 1e-05, 0.05), 0.0),
    ((900, 1000, 20000, 0.0001, 0.05), 1.674780641),
]
JAX_PRIVACY_CURVES = [
    ((95, 100, 1000, 1e-05, 0.05), 3.323300490),
    ((100, 100, 100, 1e-05, 0.05), 8.216186104),
    ((700, 1000, 1000, 1e-05, 0.01), 1.075945029),
    ((180, 200, 2000, 1e-06, 0.001), 2.042589876),
    ((52, 100, 100, 1e-05, 0.05), 0.0),
    ((900, 1000, 20000, 0.0001, 0.05), 2.247400500),
]
Case = tuple[int, int, int, float, float]


def claim(multiplier: float, rate: float = 1.0, count: int = 1) -> Claim:
    return Claim(Steps.same(np.array([rate]), np.array([multiplier]), count))


def curve(mu: float, hits: float) -> float:
    """Return the least rate of false alarms under Gaussian privacy."""
    return float(ndtr(ndtri(min(hits, 1.0)) - mu))


def most_shift(guesses: Guesses, chance: float) -> float:
    """Return the largest mu that is refuted, by bisection: without supporting lines and levels of noise."""
    low, high = 0.0, 12.0
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(guesses, partial(curve, middle), chance) else (low, middle)
    return low


@pytest.mark.parametrize(("case", "bound"), JAX_PRIVACY)
def test_bounds_for_any_mechanism_are_those_of_jax_privacy(case: Case, bound: float) -> None:
    assert any_mechanism(Guesses(*case[:3]), *case[3:]) == pytest.approx(bound, abs=2e-6)


@pytest.mark.parametrize(("case", "bound"), JAX_PRIVACY_CURVES)
def test_bounds_by_gaussian_curves_are_those_of_jax_privacy(case: Case, bound: float) -> None:
    mu = most_shift(Guesses(*case[:3]), case[4])
    assert float(gaussian.epsilon_of(np.array(mu), np.array(case[3]))) == pytest.approx(bound, abs=1e-5)


def test_one_run_in_which_every_guess_is_right() -> None:
    """At delta 0 the chance is that of a coin with odds exp(epsilon), tossed as often as was guessed."""
    right = 0.05 ** (1 / 100)
    sure = Guesses(100, 100, 1000)
    assert any_mechanism(sure, 0.0, 0.05) == pytest.approx(math.log(right / (1 - right)))
    assert any_mechanism(sure, 1e-3, 0.05) < any_mechanism(sure, 1e-5, 0.05)


@pytest.mark.parametrize("guesses", [Guesses(0, 0, 1000), Guesses(0, 10, 10), Guesses(50, 100, 100)])
def test_guesses_by_chance_show_nothing(guesses: Guesses) -> None:
    assert any_mechanism(guesses, DELTA, 0.05) == planned_kind(guesses, claim(1.0), DELTA, 0.05) == 0.0


def most_likely(guesses: Guesses, epsilon: Floats, delta: Floats) -> float:
    """Return the largest chance of so many correct guesses by a linear program over all p(0), …, p(n)."""
    n, j = guesses.made, np.arange(guesses.made + 1)
    right, wrong = j / guesses.canaries, (n - j) / guesses.canaries
    rows, most = [], []
    for i in range(n):
        for e, d in zip(epsilon.tolist(), delta.tolist(), strict=True):
            rows += [right * (j > i) - math.exp(e) * wrong * (j >= i)]
            most += [d]
            rows += [math.exp(e) * right * (j > i) - wrong * (j >= i)]
            most += [math.exp(e) - 1 + d]
    found = optimize.linprog(-1.0 * (j >= guesses.correct), rows, most, [np.ones(n + 1)], [1.0])
    assert found.fun is not None
    return float(-found.fun)


@pytest.mark.parametrize(
    "guesses", [Guesses(5, 5, 5), Guesses(4, 6, 12), Guesses(9, 10, 10), Guesses(7, 8, 40)]
)
@pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.0])
def test_the_steps_find_the_largest_chance_that_constraints_allow(
    guesses: Guesses, multiplier: float
) -> None:
    """A linear program with the same constraints, solved by another algorithm, agrees."""
    mine = claim(multiplier)
    chance = most_likely(guesses, mine.curve(), DELTAS)
    assert not refuted(guesses, mine.alarms, chance * (1 - 1e-5))
    assert chance > 0.999 or refuted(guesses, mine.alarms, chance * (1 + 1e-5))


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_what_a_gaussian_attack_achieves_is_never_refuted(mu: float) -> None:
    """Without abstaining, independent canaries are told apart with a chance of Phi(mu/2) each."""
    for canaries in (1, 2, 5, 30, 200):
        for correct in range(canaries // 2, canaries + 1):
            exact = stats.binom.sf(correct - 1, canaries, ndtr(mu / 2))
            assert not refuted(Guesses(correct, canaries, canaries), partial(curve, mu), exact)


def apart(draw: np.random.Generator, inside: Floats, mu: float) -> Floats:
    """Score canaries that have noise of their own."""
    return mu * inside + draw.standard_normal(len(inside))


def in_pairs(draw: np.random.Generator, inside: Floats, mu: float) -> Floats:
    """Score canaries of which two at a time share a sum and its noise."""
    sums = inside.reshape(-1, 2).sum(axis=1)
    return np.repeat(mu * sums + draw.standard_normal(len(sums)), 2)


def in_one_sum(draw: np.random.Generator, inside: Floats, mu: float) -> Floats:
    """Score canaries by their sum alone: they are guessed alike."""
    return np.full(len(inside), mu * inside.sum() + draw.standard_normal())


@pytest.mark.parametrize("scores", [apart, in_pairs, in_one_sum])
@pytest.mark.parametrize(("canaries", "sure"), [(60, 30), (200, 20)])
def test_bounds_hold_as_often_as_promised(
    scores: Callable[[np.random.Generator, Floats, float], Floats], canaries: int, sure: int
) -> None:
    """In 300 runs of a Gaussian mechanism, at a chance of 5 %, the true mu is refuted at most so often."""
    draw, mu, chance = np.random.default_rng(1), 1.5, 0.05
    true, wrong = partial(curve, mu), 0
    for _ in range(300):
        inside = draw.random(canaries) < 0.5
        order = np.argsort(scores(draw, inside.astype(float), mu), kind="stable")
        correct = int((~inside[order[:sure]]).sum() + inside[order[canaries - sure :]].sum())
        wrong += refuted(Guesses(correct, 2 * sure, canaries), true, chance)
    assert wrong <= stats.binom.isf(1e-3, 300, chance)


def test_the_bound_holds_where_one_rare_event_gives_all_away() -> None:
    """With a chance of delta everything is told, else nothing: (0, delta) holds, and just is not refuted."""
    delta = 0.01
    told = partial(lambda hits: max(hits - delta, 0.0))
    assert not refuted(Guesses(50, 50, 50), told, delta)
    assert refuted(Guesses(50, 50, 50), told, 3 * delta)


def test_the_bound_by_curves_is_the_tighter_one() -> None:
    """Except near 0, where the theorem for any mechanism gives the exact chance."""
    for canaries in (20, 100, 1000):
        for made in (canaries // 5, canaries // 2, canaries):
            for share in (0.6, 0.75, 0.9, 1.0):
                guesses = Guesses(round(share * made), made, canaries)
                anyway = any_mechanism(guesses, DELTA, 0.01)
                epsilon = gaussian.epsilon_of(np.array(most_shift(guesses, 0.01)), np.array(DELTA))
                assert float(epsilon) >= anyway or anyway < 0.1


@pytest.mark.parametrize(("rate", "count"), [(1.0, 1), (0.2, 20)])
def test_the_bound_of_the_planned_kind_is_the_least_noise_that_is_refuted(rate: float, count: int) -> None:
    mine, guesses, chance = claim(1.0, rate, count), Guesses(190, 200, 300), 0.01
    found = planned_kind(guesses, mine, DELTA, chance)
    assert found > any_mechanism(guesses, DELTA, chance) > 1
    if rate == 1:
        exact = gaussian.epsilon_of(np.array(most_shift(guesses, chance)), np.array(DELTA))
        assert 0.94 * float(exact) < found < float(exact)


def test_a_false_claim_is_contradicted_and_a_true_one_is_not() -> None:
    guesses = Guesses(190, 200, 300)
    assert contradicts(guesses, claim(2.0), 0.01) and not contradicts(guesses, claim(0.3), 0.01)
    assert not contradicts(guesses, claim(2.0), 1e-30)
