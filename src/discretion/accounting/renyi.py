"""Rényi accountant (RDP), vectorised over clients: a fast upper bound."""

import math

import numpy as np
from scipy.special import binom, gammaln

from discretion.arrays import Floats, chunks, distinct
from discretion.plan.steps import Steps

ORDERS = np.concatenate(
    [np.arange(11, 30) / 10, np.arange(3.0, 11.0, 0.5), np.arange(11.0, 64.0), 2.0 ** np.arange(6, 11)]
)
WHOLE = np.flatnonzero(ORDERS % 1 == 0)
BETWEEN = np.flatnonzero(ORDERS % 1 != 0)
LITTLE, MUCH = 0.05, 1e9  # multipliers between which amplification by sampling is counted
RAREST = 1e-100  # smallest rate; lower rates are raised to it, as their squares would underflow
ROUNDING_UP = 1e-10  # share of a divergence that is added: many times all rounding and quadrature errors
TAIL_SIGMAS = 9.5
ALIKE = 1.25  # multipliers below 1 that differ by less share a grid
SERIES, TERMS = 0.1, 14  # excess of the likelihood ratio up to which that many powers of it are summed
STEEP = 600.0  # logarithm of a moment from which on it is kept as a logarithm; exp() has to stay finite
TOGETHER = 2**18  # array elements that are worked on at once


class Renyi:
    """Rényi accountant: a fast upper bound on epsilon."""

    name = "Rényi"

    def epsilon(self, steps: Steps, delta: Floats) -> Floats:
        """Return (N,) an upper bound on the epsilon at `delta` of all steps together."""
        return convert(divergence(steps), delta)


def divergence(steps: Steps) -> Floats:
    """Return (N, orders) the Rényi divergence of all steps together, which is a sum over the steps."""
    total = np.zeros((steps.rate.shape[1], len(ORDERS)))
    for rate, multiplier, count in zip(steps.rate, steps.multiplier, steps.count, strict=True):
        taken = np.flatnonzero(count)
        total[taken] += count[taken, None] * curve(rate[taken], multiplier[taken])
    return total


def convert(divergence: Floats, delta: Floats, orders: Floats = ORDERS) -> Floats:
    """Return (N,) epsilon at `delta` from (N, orders) Rényi divergences: Canonne, Kamath and Steinke 2020."""
    log_delta = np.log(delta)[:, None]
    bound = divergence + np.log1p(-1 / orders) - (log_delta + np.log(orders)) / (orders - 1)
    spent = np.maximum(np.min(bound, axis=1), 0.0)
    return np.where((divergence == 0).all(axis=1), 0.0, spent)


def curve(rate: Floats, multiplier: Floats) -> Floats:
    """Return (N, orders) the Rényi divergence of one Poisson-sampled Gaussian step.

    The direction in which the client is removed dominates (Mironov, Talwar and Zhang 2019). There
    exp((a-1) D_a) = E[(1 + y)^a], where 1 + y = 1 - q + q exp(u/s - 1/2s²) is the likelihood ratio at
    u ~ N(0, 1). As E[y] = 0, what this is above 1 is the mean of (1 + y)^a - 1 - a y, which is never
    negative: sums of it lose no digits, however little is spent.

    Guarantees:
        Never below the true divergence, and above it by 1e-9 of it at most.
        Where the multiplier is not between LITTLE and MUCH, the divergence without sampling, which is
        never less; rates below RAREST count as RAREST.
        A client's divergences do not depend, in any digit, on the other clients.
    """
    pairs, where = distinct(np.stack([rate, multiplier]))
    q, s = pairs
    with np.errstate(divide="ignore", over="ignore"):
        out = np.where(q[:, None] > 0, ORDERS / 2 / s[:, None] / s[:, None], 0.0)
    sampled = np.flatnonzero((q > 0) & (q < 1) & (s > LITTLE) & (s < MUCH))
    grid = np.maximum(np.ceil(-np.log(s[sampled]) / math.log(ALIKE)), 0.0).astype(np.int64)
    for number in np.unique(grid).tolist():
        finest = ALIKE**-number
        nodes = np.arange(-TAIL_SIGMAS, ORDERS[BETWEEN[-1]] / finest + TAIL_SIGMAS, finest / 2)
        for k in chunks(sampled[grid == number], TOGETHER // len(nodes)):
            out[k[:, None], BETWEEN] = _between(np.maximum(q[k], RAREST), s[k], nodes, finest)
    for k in chunks(sampled, int(TOGETHER // ORDERS[-1])):
        out[k[:, None], WHOLE] = _whole(np.maximum(q[k], RAREST), s[k])
    return out[where.reshape(-1)]


def _whole(rate: Floats, multiplier: Floats) -> Floats:
    """Return (N, integer orders), by E[(1 + y)^a] - 1 = sum_k P(B = k) (exp(k (k-1) / 2s²) - 1).

    B ~ Binomial(a, q); the terms of k = 0 and 1 are zero.
    """
    orders = ORDERS[WHOLE]
    k = np.arange(2, orders[-1] + 1)
    power = k * (k - 1) / 2 / multiplier[:, None] ** 2
    log_without = np.log1p(-rate)
    terms = power + np.log(-np.expm1(-power)) + k * (np.log(rate) - log_without)[:, None]
    terms -= gammaln(k + 1)
    out = np.empty((len(rate), len(orders)))
    for at, order in enumerate(orders):
        used = int(order) - 1
        logs = terms[:, :used] - gammaln(order - k[:used] + 1)
        most = logs.max(axis=1)
        mass = np.exp(logs - most[:, None]).sum(axis=1)
        excess = np.log(mass) + most + gammaln(order + 1) + order * log_without
        out[:, at] = np.logaddexp(0.0, excess)
    return _rounded_up(out, multiplier, orders)


def _between(rate: Floats, multiplier: Floats, nodes: Floats, finest: float) -> Floats:
    """Return (N, other orders), by the trapezoidal rule over the `nodes` u; no multiplier is below `finest`.

    The integrand is analytic but for 1 + y = 0, a distance of pi s off the real line. So the rule errs by
    exp(-2 pi² s / step) or less, e^-39 for a step of s / 2, times a factor of e^5 at most for what the
    normal density grows by on the way there. It is cut off where it is within e^-40 of nothing: it falls
    at least like a Gaussian below 0 and above max(a, 2) / s.

    Small y are summed by powers of y, one sum for all orders, because (1 + y)^a - 1 - a y would cancel.
    """
    orders = ORDERS[BETWEEN]
    q, s = rate[:, None], multiplier[:, None]
    weight = (nodes[1] - nodes[0]) / math.sqrt(2 * math.pi)
    density = weight * np.exp(-(nodes**2) / 2)
    log_ratio = nodes / s - 0.5 / s**2
    y = q * np.expm1(np.minimum(log_ratio, STEEP))
    small = np.abs(y) < SERIES
    mass = np.where(small, 0.0, density)
    shifted = np.where(small, 0.0, weight * np.exp(-((nodes - 1 / s) ** 2) / 2))
    zeroth, first = mass.sum(axis=1), rate * (shifted - mass).sum(axis=1)  # of y, where it is not small
    loss = np.where(small, -np.inf, np.logaddexp(np.log1p(-q), np.log(q) + log_ratio))

    y[~small] = 0.0
    power, series = density * y, np.zeros((len(rate), len(orders)))
    for k in range(2, TERMS + 1):
        power *= y
        series += power.sum(axis=1)[:, None] * binom(orders, k)

    out = np.empty((len(rate), len(orders)))
    for at, order in enumerate(orders):
        used = int(np.searchsorted(nodes, max(order, 2.0) / finest + TAIL_SIGMAS))
        height = order * np.log(rate) + order * (order - 1) / 2 / multiplier**2
        height = np.where(height > STEEP, height, 0.0)
        logs = order * loss[:, :used]
        logs -= nodes[:used] ** 2 / 2
        logs -= height[:, None]
        moment = weight * np.exp(logs, out=logs).sum(axis=1)
        excess = moment - zeroth - order * first + series[:, at]
        with np.errstate(divide="ignore", invalid="ignore"):
            out[:, at] = np.where(height > 0, height + np.log(moment), np.log1p(excess))
    return _rounded_up(out, multiplier, orders)


def _rounded_up(log_moment: Floats, multiplier: Floats, orders: Floats) -> Floats:
    found = log_moment / (orders - 1) * (1 + ROUNDING_UP)
    return np.minimum(found, orders / 2 / multiplier[:, None] ** 2)
