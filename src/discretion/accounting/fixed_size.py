"""Fixed-size sampling without replacement, of clients or records: lower and upper bounds on epsilon.

Xu, Zhang and Huang (records) and Xu, Hu and Kotevska (clients) sample like this and charge for one clip, the
latter as if under Poisson sampling. But a client that is not drawn makes room for another client, which may
send the opposite update: the sensitivity is two clips.
"""

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from discretion.accounting.pld import Pld
from discretion.accounting.renyi import convert
from discretion.arrays import Floats
from discretion.plan.steps import Steps

ORDERS = np.arange(2.0, 257.0)
EVEN = np.arange(2.0, 258.0, 2.0)
STEP = 1 / 8  # of the quadrature, in standard deviations
TAIL_SIGMAS = 30  # x^256 exp(-x²/2) is largest at 16


def at_least(rate: Floats, multiplier: Floats, rounds: int, delta: Floats) -> Floats:
    """Return (N,) a lower bound on epsilon, up to the thousandth to which PLD is tight.

    If all the others send the opposite of a client's update, the sum is (1 - q) N(0) + q N(2C) with the
    client and N(0) without: a sampled Gaussian of half the multiplier. That holds whether a client is
    added, removed or replaced.
    """
    return Pld().epsilon(Steps.same(rate, multiplier / 2, rounds), delta)


def at_most(rate: Floats, multiplier: Floats, rounds: int, delta: Floats) -> Floats:
    """Return (N,) an upper bound on epsilon under replace adjacency, where the number of clients is public.

    Wang, Balle and Kasiviswanathan 2019, Theorem 27 (at integer orders), and never more than the epsilon
    without sampling.
    """
    divergence = np.array([_curve(q, s / 2) for q, s in zip(rate.tolist(), multiplier.tolist(), strict=True)])
    return convert(rounds * divergence, delta, ORDERS)


def _curve(rate: float, multiplier: float) -> Floats:
    """Return (orders,) the Rényi divergence of one round; `multiplier` is noise over two clips."""
    whole = ORDERS / 2 / multiplier**2
    if rate == 1:
        return whole
    j = ORDERS  # the summation index runs like the orders, from 2
    moment = _log_moments(multiplier)
    below, above = (moment[np.asarray(side(j / 2), int) - 1] for side in (np.floor, np.ceil))
    term = np.minimum(math.log(4) + (below + above) / 2, math.log(2) + j * (j - 1) / 2 / multiplier**2)
    order = ORDERS[:, None]
    with np.errstate(invalid="ignore"):
        choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    terms = np.where(j <= order, choose + j * math.log(rate) + term, -math.inf)
    return np.asarray(np.minimum(np.logaddexp(0.0, logsumexp(terms, axis=1)) / (ORDERS - 1), whole))


def _log_moments(multiplier: float) -> Floats:
    """Return (even,) log E[(P/Q - 1)^j] for j = 2, 4, ..., with P = N(1, s²) and Q = N(0, s²), under Q."""
    step = min(STEP, multiplier / 4)
    x = np.arange(-TAIL_SIGMAS, EVEN[-1] / multiplier + TAIL_SIGMAS, step)
    loss = x / multiplier - 0.5 / multiplier**2
    with np.errstate(divide="ignore"):
        log_distance = np.maximum(loss, 0.0) + np.log(-np.expm1(-np.abs(loss)))
    mass = logsumexp(EVEN[:, None] * log_distance - x**2 / 2, axis=1)
    return np.asarray(mass + math.log(step / math.sqrt(2 * math.pi)))
