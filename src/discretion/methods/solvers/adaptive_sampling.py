"""Chances of clients in draws with replacement, where a client that is drawn rarely needs less noise.

In each of R rounds K clients are drawn; q_n is the chance of client n in a draw, a distribution. An update
is weighted by p_n / q_n, p_n the client's share of the data, so that its mean does not depend on q. Variance
of the noise adds up to (K - 1 + 1/q_n) / K times that of an upload, which grows with the number of uploads
expected. The personalised local privacy appendix bounds that number, with a tail; we draw it when planning.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from discretion.arrays import Floats
from discretion.errors import PlanError

CLOSE = 1e-14  # relative distance at which the search for nu ends
TRIES = 1000


def noise_weights(share: Floats, epsilon: Floats, delta: Floats, slack: Floats) -> Floats:
    """Return (N,) B_n below (47), up to a factor, from delta' and, as `slack`, delta''."""
    return np.asarray(np.log(1 / delta) * np.log(1 / slack) * (share / epsilon) ** 2)


def printed_rates(weight: Floats, draws: int) -> Floats:
    """Return the (N,) distribution q that minimises (47), the sum of B_n (sqrt(q_n) + 1 / sqrt(K q_n)).

    Where the sum's derivatives are equal, y = q^(-1/2) solves y³ / sqrt(K) - y = 2 nu / B_n, in closed form;
    one search finds the nu at which q sums to 1.

    Guarantees:
        The least value on the simplex, though the objective is convex for q < 3 / sqrt(K) only: with K at
        most N², moving chance from a client above 1 / sqrt(K) to one below makes both terms smaller, so no
        q_n is above 1 / sqrt(K).
    """
    _check(weight)
    count, root = len(weight), np.sqrt(draws)
    if not 1 <= draws <= count**2:
        raise PlanError(f"{draws} draws in a round of {count} clients: expected between 1 and {count**2}")

    def rates(nu: float) -> Floats:
        y = 2 * np.sqrt(root / 3) * _third(nu / weight * np.sqrt(27 / root))
        return np.asarray(y**-2)

    # with this nu nobody's rate is above 1 / N, and at 0 everybody's is 1 / sqrt(K)
    most = float(weight.max()) * (count**1.5 / root - count**0.5) / 2
    return _distribution(rates, 0.0, most)


def planned_terms(
    share: Floats, update: Floats, multiplier: Floats, draws: int, rounds: int
) -> tuple[Floats, Floats]:
    """Return (N,) a_n and (N,) b_n of `planned_rates`.

    `update` is the mean square G_n² of a client's update, `multiplier` what it needs for a single upload,
    both in units of the clip. Noise of K R q_n uploads has K R q_n times the variance, and the constant that
    this leaves in (K - 1 + 1/q_n) / K does not change the minimum.
    """
    return share**2 * update / draws, (draws - 1) * rounds * (share * multiplier) ** 2


def planned_rates(variance: Floats, noise: Floats) -> Floats:
    """Return the (N,) distribution q of clients with the least sum of a_n / q_n + b_n q_n.

    a_n is the variance of being drawn or not, b_n that of the noise. The minimum is
    q_n = sqrt(a_n / (b_n + nu)), with the nu at which they sum to 1: who needs more noise is drawn less.

    Guarantees:
        The least value on the simplex: the objective is convex.
    """
    _check(variance)
    if not (np.isfinite(noise) & (noise >= 0)).all():
        raise PlanError("noise that adds a negative or infinite variance: expected numbers of at least 0")

    beyond = noise - noise.min()  # the rest goes into nu, which is then above 0

    def rates(nu: float) -> Floats:
        return np.asarray(np.sqrt(variance / (beyond + nu)))

    # at the first somebody's rate is 1, at the second nobody's is above 1 / N
    least, most = (variance - beyond).max(), (variance * len(variance) ** 2 - beyond).max()
    return _distribution(rates, float(least), float(most))


def _distribution(rates: Callable[[float], Floats], least: float, most: float) -> Floats:
    """Return (N,) `rates` at the nu where they sum to 1; rates fall as nu grows."""
    if most <= least or rates(most).sum() >= 1:
        nu = most
    elif rates(least).sum() <= 1:
        nu = least
    else:
        tiny = np.finfo(float).tiny
        nu = brentq(lambda nu: rates(nu).sum() - 1, least, most, xtol=tiny, rtol=CLOSE, maxiter=TRIES)
    found = rates(nu)
    return np.asarray(found / found.sum())


def _third(x: Floats) -> Floats:
    """Return (N,) the largest z with 4 z³ - 3 z = x, for x >= 0: a third of an angle, or of an area."""
    return np.where(x < 1, np.cos(np.arccos(np.minimum(x, 1)) / 3), np.cosh(np.arccosh(np.maximum(x, 1)) / 3))


def _check(weight: Floats) -> None:
    if not (np.isfinite(weight) & (weight > 0)).all():
        raise PlanError("a client without weight would never be drawn: expected finite numbers above 0")
