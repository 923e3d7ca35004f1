"""Cost of an upload where clients are drawn with replacement, by the online appendix.

Of T = K R draws, each hits client i with probability q_i. Who was drawn is seen, so sampling hides nothing:
only the number of uploads is uncertain. The factor s_i, which the appendix does not define, is taken as 1.
"""

import math

import numpy as np
from scipy.special import gammaln

from discretion.accounting import gaussian, renyi
from discretion.arrays import Floats, Ints

SLOPE = 0.9 * math.sqrt(math.pi)  # k of Waissi and Rossin 1996; the appendix leaves it open
HALVINGS = 60
MOST_EPSILON = 1e5


def turns_bound(rate: Floats, draws: int, delta: Floats, slope: float = SLOPE) -> Floats:
    """Return (N,) T_i* of Lemma 1: supposed to be passed with probability at most `delta` (delta''').

    Defect: the inequality is printed the wrong way round, and a logistic curve in place of a binomial tail
    is no bound: rare clients pass it more than ten thousand times as often.
    """
    margin = np.log((1 - delta) / delta) / slope
    return draws * rate + margin * np.sqrt(draws * rate * (1 - rate))


def output_multiplier(epsilon: Floats, delta: Floats, turns: Floats) -> Floats:
    """Return (N,) noise multipliers of output perturbation: Theorem 1, with the constants below (46).

    Defect: sqrt(2 log(1.25 / delta)) / epsilon holds for epsilon below 1 only, and the sensitivity 2C/m for
    convex losses only.
    """
    return np.sqrt(2 * np.log(1.25 / delta) * turns) / epsilon


def gradient_multiplier(epsilon: Floats, delta: Floats, slack: Floats, turns: Floats, steps: int) -> Floats:
    """Return (N,) noise multipliers of gradient perturbation, Theorem 3: `slack` is delta'', E the steps.

    Defect: printed up to a constant; it is taken from output perturbation.
    """
    return np.asarray(output_multiplier(epsilon, delta, turns) * np.sqrt(steps * np.log(1 / slack)))


def total_delta(delta: Floats, exceeded: Floats) -> Floats:
    """Return the (N,) delta of Theorem 1: delta' and delta''' together."""
    return delta + exceeded - delta * exceeded


def epsilon_exact(rate: Floats, draws: Ints, multiplier: Floats, delta: Floats) -> Floats:
    """Return the true (N,) epsilon: delta is a Gaussian's, averaged over the number of uploads seen."""
    turns = np.arange(draws.max() + 1)
    n = draws[:, None].astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_chance = gammaln(n + 1) - gammaln(turns + 1) - gammaln(n - turns + 1)
        log_chance += turns * np.log(rate)[:, None] + (n - turns) * np.log1p(-rate)[:, None]
    chance = np.where(turns <= n, np.exp(log_chance), 0.0)
    shift = np.sqrt(turns) / multiplier[:, None]

    def safe(epsilon: Floats) -> np.ndarray:
        found = gaussian.delta_of(np.broadcast_to(epsilon[:, None], shift.shape), shift)
        return np.asarray((chance * found).sum(axis=1) <= delta)

    low, high = np.zeros(len(rate)), np.full(len(rate), MOST_EPSILON)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        within = safe(middle)
        low, high = np.where(within, low, middle), np.where(within, middle, high)
    return np.where(safe(np.zeros(len(rate))), 0.0, high)


def epsilon_renyi(rate: Floats, draws: Ints, multiplier: Floats, delta: Floats) -> Floats:
    """Return (N,) upper bounds by Rényi divergences, whose exponentials are averaged over the uploads."""
    orders = renyi.ORDERS
    with np.errstate(divide="ignore"):
        once = np.log(rate)[:, None] + orders * (orders - 1) / 2 / multiplier[:, None] ** 2
        log_mean = np.logaddexp(np.log1p(-rate)[:, None], once)
    return renyi.convert(draws[:, None] * log_mean / (orders - 1), delta)
