"""Schedules of saving and spending, and how noise falls over them: shapes, to be scaled to the budget.

Nothing here depends on data, and nothing certifies: a shape becomes noise once one factor for each client
makes its whole schedule cost the budget.
"""

import numpy as np

from discretion.arrays import Floats
from discretion.errors import PlanError
from discretion.methods.papers.kiani import Saving

STEEP = 40.0  # from here on exp(x) - 1 is exp(x) in doubles, and soon too large for them


def assign(saving_rate: Floats, clip: Floats) -> Floats:
    """Return the given (N,) rates, handed out in the order of the clips.

    Guarantees:
        No other way to hand them out has a larger sum of rate times clip (Theorem 3: rearrangement).
    """
    out = np.empty(len(saving_rate))
    out[np.argsort(clip, kind="stable")] = np.sort(saving_rate)
    return out


def noise_shape(saving: Saving, multiplier: Floats) -> Floats:
    """Return (T, N) noise multipliers by the algorithm's recursion; (N,) `multiplier` is for equal rounds.

    In each round a client gets the noise with which the rounds that are left, this one included, would at
    its spending rate use up evenly what is left. What it then spends depends on its true rate. What is left
    is counted as Rényi divergence of order 2, log(1 + q² (exp(1/sigma²) - 1)), which adds up and is exact at
    any rate. The paper subtracts epsilons, which do not add up, and divides by one round less.

    Guarantees:
        By order 2 all is spent, and in no round more than in the next.
        Who does not save has the noise of equal rounds.
    """
    rate, start = saving.rate, saving.spend_from
    if not ((saving.saving_rate >= 0) & (saving.saving_rate <= rate) & (rate > 0) & (rate <= 1)).all():
        raise PlanError("expected 0 <= saving rate <= rate <= 1 and a rate above 0 for every client")
    if not ((start >= 1) & (start <= saving.rounds)).all():
        raise PlanError(f"every client starts to spend in one of the {saving.rounds} rounds, counted from 1")
    left = saving.rounds * _divergence(saving.rate, multiplier)
    out = []
    for t, rate in enumerate(saving.rates()):
        out.append(_order_2_multiplier(saving.rate, left / (saving.rounds - t)))
        left = left - _divergence(rate, out[-1])
    return np.array(out)


def _divergence(rate: Floats, multiplier: Floats) -> Floats:
    """Return (N,) Rényi divergences of order 2 of one Poisson-sampled Gaussian round."""
    x = multiplier**-2.0
    with np.errstate(divide="ignore"):
        large = np.logaddexp(np.log1p(-(rate**2)), 2 * np.log(rate) + x)
    return np.where(x > STEEP, large, np.log1p(rate**2 * np.expm1(np.minimum(x, STEEP))))


def _order_2_multiplier(rate: Floats, divergence: Floats) -> Floats:
    """Return (N,) noise multipliers: the inverse of `_divergence`."""
    x = np.log1p(np.expm1(np.minimum(divergence, STEEP)) / rate**2)
    return np.where(divergence > STEEP, divergence - 2 * np.log(rate), x) ** -0.5
