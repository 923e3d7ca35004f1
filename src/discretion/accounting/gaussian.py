"""Exact epsilon and delta of the Gaussian mechanism without sampling, in closed form."""

import numpy as np
from scipy.special import log_ndtr

from discretion.arrays import Floats

HALVINGS = 100
ENORMOUS = 1e6  # shift from which the bound by concentrated privacy is used, which is as good there
UNIT = 2.0**-53  # relative rounding error of one operation
TINY = 1e-300  # no delta is taken for less: terms may underflow


def delta_of(epsilon: Floats, mu: Floats) -> Floats:
    """Return the smallest delta at `epsilon` for a Gaussian that is shifted by `mu` standard deviations."""
    one, two, _ = _terms(epsilon, mu)
    return np.where(np.isinf(mu), 1.0, np.maximum(one - two, 0.0))


def delta_at_most(epsilon: Floats, mu: Floats) -> Floats:
    """Return an upper bound on `delta_of`: the same, with a bound on all rounding errors added.

    Guarantees:
        Never below the true delta, if `log_ndtr` is accurate to 8 units in the last place of its parts, x²/2
        and the logarithm of what is left. Tests compare with 50 digits.
        An argument x = mu/2 - epsilon/mu is wrong by 2 UNIT (mu/2 + epsilon/mu) at most, and the logarithm of
        the normal distribution has a slope of at most 1 + |x| where x is negative, and 1 elsewhere.
    """
    one, two, slip = _terms(epsilon, mu)
    return np.where(np.isinf(mu), 1.0, np.where(mu > 0, np.clip(one - two + slip, TINY, 1.0), 0.0))


def _terms(epsilon: Floats, mu: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the two terms whose difference is delta, and a bound on the rounding error of the difference."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = epsilon / mu
        x, y, reach = mu / 2 - ratio, -mu / 2 - ratio, mu / 2 + ratio
        log_one, log_other = log_ndtr(x), log_ndtr(y)
        one, two = np.exp(log_one), np.exp(epsilon + log_other)
        wrong = 16 - 8 * log_one + 4 * (1 + np.maximum(-x, 0.0)) * reach  # units, in the exponent of one
        other = 16 + 8 * epsilon - 8 * log_other + 4 * (1 + reach) * reach
        slip = one * np.expm1(UNIT * wrong) + two * np.minimum(np.expm1(UNIT * other), 1.0)
    shifted = mu > 0
    return np.where(shifted, one, 0.0), np.where(shifted, two, 0.0), np.where(shifted, slip, 0.0)


def epsilon_of(mu: Floats, delta: Floats) -> Floats:
    """Return the smallest epsilon at `delta`, infinite for an infinite shift.

    Guarantees:
        Never below the true epsilon: `delta_at_most` is within delta at the result, or the result is the
        bound by concentrated privacy, rounded up.
    """
    mu, delta = np.broadcast_arrays(np.asarray(mu, float), np.asarray(delta, float))
    with np.errstate(over="ignore", divide="ignore"):
        bound = (mu**2 / 2 + mu * np.sqrt(-2 * np.log(delta))) * (1 + 8 * UNIT)  # Bun and Steinke 2016
    enormous = mu >= ENORMOUS
    mu = np.where(enormous, 0.0, mu)
    low, high = np.zeros(mu.shape), np.where(enormous, 0.0, bound)
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        safe = delta_at_most(middle, mu) <= delta
        low, high = np.where(safe, low, middle), np.where(safe, middle, high)
    free = delta_at_most(np.zeros(mu.shape), mu) <= delta
    return np.where(np.isnan(mu), np.inf, np.where(enormous, bound, np.where(free, 0.0, high)))


def shift_of(epsilon: Floats, delta: Floats) -> Floats:
    """Return about the largest shift that stays within (epsilon, delta)."""
    epsilon, delta = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(delta, float))
    low = np.zeros(epsilon.shape)
    high = 20 + np.sqrt(2 * np.maximum(epsilon, 0.0))  # there, delta is 1 to all digits
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        safe = delta_of(epsilon, middle) <= delta
        low, high = np.where(safe, middle, low), np.where(safe, high, middle)
    return np.where(np.isinf(epsilon), np.inf, low)
