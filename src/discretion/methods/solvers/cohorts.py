"""Who takes part in a round: drawing by privacy level, weights without bias, budgets of round and life."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from discretion.errors import InputError
from discretion.population import Floats, Ints

ROUNDING = 1e-12  # so that sums stay within a budget to the last digit


def by_level(rho: Floats) -> Floats:
    """(…, N) the paper's distribution: a client is drawn in proportion to its privacy level."""
    return np.asarray(rho / rho.sum(axis=-1, keepdims=True))


def by_noise(theta: Floats, rho: Floats) -> Floats:
    """(N,) the distribution with least noise under `importance_weights`: x ~ theta sigma, sigma² ~ 1/rho."""
    return by_level(theta / np.sqrt(rho))


def importance_weights(theta: Floats, x: Floats, cohort: int) -> Floats:
    """(N,) theta/(K x): without bias if clients are drawn from x with replacement, and only then.

    Defect of the paper: it draws without replacement, where these weights sum to more than 1 in
    expectation. For such draws see `inclusion` and `unbiased_weights`.
    """
    return np.asarray(theta / (cohort * x))


def noise_variance(weights: Floats, x: Floats, rho: Floats, cohort: int) -> float:
    """Expected variance of the weighted sum's noise, in units of a client's at rho = 1, K draws from x."""
    return float(np.sum(cohort * x * weights**2 / rho))


def inclusion(x: Floats, cohort: int) -> Floats:
    """(…, N) probability that each client is in: min(1, c x), with c such that they sum to `cohort`.

    Guarantees: within [0, 1]; the sum is `cohort`.
    """
    x = np.asarray(x, dtype=np.float64)
    if not 1 <= cohort <= x.shape[-1] or not np.all(x > 0):
        raise InputError(
            f"a cohort of {cohort} from {x.shape[-1]} clients cannot be drawn: expected a cohort of 1 to "
            f"{x.shape[-1]} and weights above 0, the smallest is {x.min():g}"
        )
    down = -np.sort(-x, axis=-1)
    rest = np.cumsum(down[..., ::-1], axis=-1)[..., ::-1]  # sum from each client on, largest first
    certain = np.arange(x.shape[-1])  # so many are in for sure, if the next one is not
    scale = np.maximum(cohort - certain, 0) / rest
    first = np.argmax(scale * down <= 1, axis=-1)[..., None]
    return np.minimum(1.0, x * np.take_along_axis(scale, first, axis=-1))


def unbiased_weights(theta: Floats, drawn: Floats) -> Floats:
    """(N,) Horvitz and Thompson: theta/pi, for any way to draw with inclusion probabilities pi.

    Guarantees: the expected sum over the clients drawn is the sum of theta.
    """
    return np.asarray(theta / drawn)


def systematic(drawn: Floats, start: float) -> NDArray[np.bool_]:
    """(N,) who is in, for one uniform number `start` in [0, 1): client i with probability drawn[i].

    Guarantees: as many clients as the probabilities sum to, if that is a whole number.
    """
    ends = np.cumsum(drawn)
    if np.isclose(ends[-1], np.rint(ends[-1])):
        ends[-1] = np.rint(ends[-1])  # rounding must not cost a client
    marks = np.floor(ends - start)
    return np.diff(marks, prepend=np.floor(-start)) > 0


def within_round(
    rho: Floats, budget: float, reward: float, gamma: float = 0.5, accuracy_weight: float = 1.0
) -> tuple[NDArray[np.bool_], float]:
    """Who is in, (N,), and the server's cost, where the levels of those in must sum to at most `budget`.

    The cost of K clients is gamma accuracy_weight (1/K - 1/N + sum 1/rho / K²) + (1-gamma) reward sum rho:
    the sampling variance falls in K, without which the cheapest cohort would be empty. For each K the
    candidates are the K neighbours in rho that cost least among those that fit: the best of all cohorts
    of K where the budget does not bind, a good one where it does.

    Guarantees: the levels of those in sum to at most `budget`; nobody is in if nobody fits.
    """
    order = np.argsort(rho, kind="stable")
    level = rho[order]
    total, inverse = np.append(0.0, np.cumsum(level)), np.append(0.0, np.cumsum(1 / level))
    limit = budget * (1 - ROUNDING)
    many = np.arange(1, len(rho) + 1)
    many = many[total[many] <= limit]
    if not len(many):
        return np.zeros(len(rho), dtype=np.bool_), float("inf")

    def share(place: Ints) -> Floats:  # of the cost, by the client at this place
        return gamma * accuracy_weight / (many**2 * level[place]) + (1 - gamma) * reward * level[place]

    low, high = np.zeros(len(many), dtype=np.int64), len(rho) - many  # place of the lowest neighbour
    while np.any(low < high):
        middle = (low + high + 1) // 2
        fits = total[middle + many] - total[middle] <= limit
        leaves, joins = np.maximum(middle - 1, 0), np.minimum(middle - 1 + many, len(rho) - 1)
        up = fits & (share(joins) <= share(leaves))
        low, high = np.where(up, middle, low), np.where(up, high, middle - 1)
    variance = 1 / many - 1 / len(rho) + (inverse[low + many] - inverse[low]) / many**2
    cost = gamma * accuracy_weight * variance + (1 - gamma) * reward * (total[low + many] - total[low])
    best = int(np.argmin(cost))
    chosen = np.zeros(len(rho), dtype=np.bool_)
    chosen[order[low[best] : low[best] + many[best]]] = True
    return chosen, float(cost[best])


def printed_ratio(
    line: float, start: float, budget: float, v: float, gamma: float
) -> tuple[float, float, float]:
    """Theorem 7: reward R*, cohort K* and multiplier delta, for clients that all answer by line R + start.

    Defect: the cost falls in nothing but rho, so the condition on K gives delta = -(v/rho² + (1-gamma) R),
    and delta >= 0 forces a negative reward; K* knows no upper end at N.
    """
    level = (2 * line * v / (1 - gamma)) ** (1 / 3)
    reward = (level - start) / line
    return reward, budget / level, -(v / level**2 + (1 - gamma) * reward)


def within_budget(
    rho: Floats, total: Floats, takes_part: NDArray[np.bool_], how: Literal["stop", "scale"]
) -> Floats:
    """(T, N) levels that a client may spend in the rounds it takes part in; 0 elsewhere.

    "stop" refuses a round that would pass the client's total (N,), and takes the later ones that fit;
    it needs no knowledge of later rounds. "scale" lowers all levels of a client by one factor.

    Guarantees: no client's levels sum to more than its total; no level is raised.
    """
    asked = np.where(takes_part, rho, 0.0)
    if how == "scale":
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.nan_to_num(total * (1 - ROUNDING) / asked.sum(axis=0), nan=1.0, posinf=1.0)
        return np.asarray(asked * np.minimum(factor, 1.0))
    spent = np.zeros(asked.shape[1])
    granted = np.zeros_like(asked)
    for t in range(len(asked)):
        fits = spent + asked[t] <= total
        granted[t] = np.where(fits, asked[t], 0.0)
        spent = spent + granted[t]
    return granted
