"""The exact cost of Gaussian steps without sampling: they compose to one Gaussian, in closed form."""

import numpy as np
from scipy.special import log_ndtr

from discretion.population import Floats

DOUBLINGS = 200
HALVINGS = 60


def delta_of(epsilon: Floats, mu: Floats) -> Floats:
    """The smallest delta at `epsilon` for a Gaussian of shift `mu` standard deviations."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        one = np.exp(log_ndtr(mu / 2 - epsilon / mu))
        two = np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
        delta = np.where(mu > 0, one - two, 0.0)
    return np.where(np.isinf(mu), 1.0, np.maximum(delta, 0.0))


def epsilon_of(mu: Floats, delta: Floats) -> Floats:
    """The smallest epsilon at `delta`, rounded up by bisection; infinite for an infinite shift."""
    mu, delta = np.broadcast_arrays(np.asarray(mu, float), np.asarray(delta, float))
    low = np.zeros(mu.shape)
    high = np.ones(mu.shape)
    for _ in range(DOUBLINGS):
        short = (delta_of(high, mu) > delta) & np.isfinite(mu)
        if not short.any():
            break
        low, high = np.where(short, high, low), np.where(short, 2 * high, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        safe = delta_of(middle, mu) <= delta
        low, high = np.where(safe, low, middle), np.where(safe, middle, high)
    free = delta_of(np.zeros(mu.shape), mu) <= delta
    return np.where(np.isinf(mu), np.inf, np.where(free, 0.0, high))


def shift_of(epsilon: Floats, delta: Floats) -> Floats:
    """The largest shift that stays within (epsilon, delta), rounded down by bisection."""
    epsilon, delta = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(delta, float))
    low, high = np.zeros(epsilon.shape), np.ones(epsilon.shape)
    for _ in range(DOUBLINGS):
        short = (delta_of(epsilon, high) <= delta) & np.isfinite(epsilon)
        if not short.any():
            break
        low, high = np.where(short, high, low), np.where(short, 2 * high, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        safe = delta_of(epsilon, middle) <= delta
        low, high = np.where(safe, middle, low), np.where(safe, high, middle)
    return np.where(np.isinf(epsilon), np.inf, low)
