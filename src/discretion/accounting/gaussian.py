"""Exact epsilon and delta of the Gaussian mechanism without sampling, in closed form."""

import numpy as np
from scipy.special import log_ndtr

from discretion.arrays import Floats

HALVINGS = 100
ENORMOUS = 1e6  # shift from which the bound by concentrated privacy is used, which is as good there


def delta_of(epsilon: Floats, mu: Floats) -> Floats:
    """Return the smallest delta at `epsilon` for a Gaussian that is shifted by `mu` standard deviations."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        one = np.exp(log_ndtr(mu / 2 - epsilon / mu))
        two = np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
        delta = np.where(mu > 0, one - two, 0.0)
    return np.where(np.isinf(mu), 1.0, np.maximum(delta, 0.0))


def epsilon_of(mu: Floats, delta: Floats) -> Floats:
    """Return the smallest epsilon at `delta`, rounded up by bisection; infinite for an infinite shift."""
    mu, delta = np.broadcast_arrays(np.asarray(mu, float), np.asarray(delta, float))
    with np.errstate(over="ignore", divide="ignore"):
        bound = mu**2 / 2 + mu * np.sqrt(-2 * np.log(delta))  # Bun and Steinke 2016
    enormous = mu >= ENORMOUS
    mu = np.where(enormous, 0.0, mu)
    low, high = np.zeros(mu.shape), np.where(enormous, 0.0, bound)
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        safe = delta_of(middle, mu) <= delta
        low, high = np.where(safe, low, middle), np.where(safe, middle, high)
    free = delta_of(np.zeros(mu.shape), mu) <= delta
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
