"""Rényi accounting, vectorised over clients: a fast upper bound, for search and as a second opinion."""

import numpy as np
from scipy.special import logsumexp

from discretion.population import Floats
from discretion.steps import Steps

ORDERS = np.concatenate(
    [
        np.arange(1.1, 3.0, 0.1),
        np.arange(3.0, 11.0, 0.5),
        np.arange(11.0, 64.0),
        2.0 ** np.arange(6, 11),
    ]
)
STEP = 1 / 8  # of the quadrature, in standard deviations
TAIL_SIGMAS = 14
LITTLE, MUCH = 0.05, 1e9  # multipliers between which sampling is taken into account


class Renyi:
    name = "Rényi"

    def epsilon(self, steps: Steps, delta: Floats) -> Floats:
        """(N,) an upper bound on the epsilon at `delta` of all steps together."""
        return convert(divergence(steps), delta)


def divergence(steps: Steps) -> Floats:
    """(N, orders) Rényi divergence of all steps together: it adds up, whatever each step depended on."""
    total = np.zeros((steps.rate.shape[1], len(ORDERS)))
    for rate, multiplier, count in zip(steps.rate, steps.multiplier, steps.count, strict=True):
        taken = np.flatnonzero(count)
        pairs, where = np.unique(np.stack([rate, multiplier])[:, taken], axis=1, return_inverse=True)
        total[taken] += count[taken, None] * curve(pairs[0], pairs[1])[where.reshape(-1)]
    return total


def convert(divergence: Floats, delta: Floats, orders: Floats = ORDERS) -> Floats:
    """(N,) epsilon at `delta` from Rényi divergences (N, orders): Canonne, Kamath and Steinke 2020."""
    log_delta = np.log(delta)[:, None]
    bound = divergence + np.log1p(-1 / orders) - (log_delta + np.log(orders)) / (orders - 1)
    spent = np.maximum(np.min(bound, axis=1), 0.0)
    return np.where((divergence == 0).all(axis=1), 0.0, spent)


def curve(rate: Floats, multiplier: Floats) -> Floats:
    """(N, orders) Rényi divergence of one Poisson-sampled Gaussian step.

    The direction in which the client is removed dominates (Mironov, Talwar and Zhang 2019):
    exp((a-1) D_a) = E[(1 - q + q exp((2x - 1) / 2s²))^a] for x ~ N(0, s²), here by the trapezoidal
    rule, whose error on such an integrand falls faster than any power of the step.
    """
    out = np.zeros((len(rate), len(ORDERS)))
    sampled = (rate > 0) & (rate < 1) & (multiplier > LITTLE) & (multiplier < MUCH)
    whole = (rate > 0) & ~sampled  # without sampling it is never less
    with np.errstate(divide="ignore", over="ignore"):
        out[whole] = ORDERS / 2 / multiplier[whole, None] / multiplier[whole, None]
    for i in np.flatnonzero(sampled):
        out[i] = _sampled(float(rate[i]), float(multiplier[i]))
    return out


def _sampled(rate: float, multiplier: float) -> Floats:
    """(orders,) in units of the standard deviation: x = s u, loss = log(1 - q + q e^(u/s - 1/2s²))."""
    out = np.empty(len(ORDERS))
    log_without, log_with = np.log1p(-rate), np.log(rate)
    step = min(STEP, multiplier / 4)  # the loss bends over a length of `multiplier`
    for k, order in enumerate(ORDERS):
        # the integrand is a mixture of Gaussians with means between 0 and order / s
        grid = np.arange(-TAIL_SIGMAS, order / multiplier + TAIL_SIGMAS, step)
        loss = np.logaddexp(log_without, log_with + grid / multiplier - 0.5 / multiplier**2)
        log_mass = logsumexp(order * loss - grid**2 / 2) - 0.5 * np.log(2 * np.pi)
        out[k] = (log_mass + np.log(step)) / (order - 1)
    return np.maximum(out, 0.0)
