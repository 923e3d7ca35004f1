"""Rényi privacy filter: the epsilon of steps that may be chosen in the light of earlier releases."""

import math

import numpy as np

from discretion.accounting.renyi import ORDERS
from discretion.arrays import Floats, Ints

RUNGS = np.array([0.5, 0.65, 0.8, 1.0])  # factors on the best (order - 1) of a Gaussian without sampling
BOUNDLESS = 8.0  # epsilon whose ladder is used for infinite budgets
NEWTON = 10  # steps; a bound on the error that they leave is added
ROUNDING_UP = 1e-9  # share of epsilon that is added: many times all rounding errors


def ladder(epsilon: Floats, delta: Floats) -> Ints:
    """Return (N, rungs) the Rényi orders of each client, as numbers in ORDERS: fixed by its budget alone.

    The orders lie at and below the best order of a Gaussian without sampling at (epsilon, delta): with
    sampling, lower orders are better. An order may occur twice, which does no harm.
    """
    budget = np.where(np.isinf(epsilon), BOUNDLESS, epsilon)[:, None]
    with np.errstate(divide="ignore"):
        log_delta = np.log(delta)[:, None]
    most = budget - np.log1p(-1 / ORDERS) + (log_delta + np.log(ORDERS)) / (ORDERS - 1)
    best = ORDERS[np.argmax(most / ORDERS, axis=1)]
    wanted = np.log(best - 1)[:, None] + np.log(RUNGS)
    middles = (np.log(ORDERS[1:] - 1) + np.log(ORDERS[:-1] - 1)) / 2
    return np.asarray(np.searchsorted(middles, wanted), dtype=np.int64)


def spent(divergence: Floats, delta: Floats, ladder: Ints) -> Floats:
    """Return (N,) the epsilon at `delta` of adaptively chosen steps, from (N, orders) sums of divergences.

    A step may be taken if the epsilon with the step is at most the client's budget. Rate, multiplier and
    number of steps may depend on everything released before and on the other clients, but not in any other
    way on the client's own data or coins. A refused step is not taken and not added; a smaller may follow.

    Proof (after Feldman and Zrnic 2021 and Lécuyer 2021, with a mixture in place of one order). Let L be
    the privacy loss log dP/dQ of all that was released so far, with and without the client or the other
    way round, S_j the sum of the divergences at order a_j of the steps taken, and M the number of rungs.
    Given what was released before, the next step is one fixed sampled Gaussian, so exp((a_j - 1) L) grows
    under P by a factor of at most exp((a_j - 1) its divergence) on average, in both directions, as `curve`
    bounds both. What it is divided by is known before the step. So each exp((a_j - 1) (L - S_j)) is a
    supermartingale that starts at 1, and so is their mean

        W(L, S) = 1/M sum_j exp((a_j - 1) (L - S_j)),    E_P[W] <= 1 after any number of rounds.

    The epsilon given here is the least for which 1 - exp(epsilon - l) <= delta W(l, S) at every l. If it
    was within the budget at the last step taken, then E_P[(1 - exp(budget - L))+] <= delta E_P[W] <= delta,
    and that is (budget, delta)-privacy. A client that took no step has L = 0 and nothing to prove.
    The orders have to be fixed before the first step: the best ones in hindsight are no such mean.

    A single order would give the conversion of Canonne, Kamath and Steinke 2020. The mean gives at most the
    least of their conversions over the rungs at delta / M each, and less where several rungs contribute.

    Guarantees:
        Never negative; 0 where nothing was spent; infinite where every rung is.
        Never above the least conversion over the rungs at delta / M.
        Never falls as divergences grow, and does not depend on the order of the steps.
        A filter, not an odometer: the guarantee is for a budget that was fixed beforehand.
    """
    rungs = ORDERS[ladder]
    total = np.take_along_axis(divergence, ladder, axis=1)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        share = np.log(delta)[:, None] - math.log(ladder.shape[1])
        # epsilon is the largest l + log(1 - delta W(l)), which is concave; there sum_j a_j delta / M
        # exp((a_j - 1) (l - S_j)) = 1, and Newton's steps for its logarithm, which is convex, start above
        start = np.min(total - (share + np.log(rungs)) / (rungs - 1), axis=1)
        loss = start
        for _ in range(NEWTON):
            height, slope, _ = _derivative(loss, total, share, rungs)
            loss = loss - height / slope
        height, _, reach = _derivative(loss, total, share, rungs)
        left = np.expm1(height) / (1 - reach) * height / (rungs.min(axis=1) - 1)  # by the tangent at `loss`
        found = (loss + np.log1p(-reach) + left) * (1 + ROUNDING_UP)
    found = np.where(np.isfinite(start), np.maximum(found, 0.0), np.inf)
    return np.where((total == 0).all(axis=1), 0.0, found)


def _derivative(loss: Floats, total: Floats, share: Floats, rungs: Floats) -> tuple[Floats, Floats, Floats]:
    """Return (N,) log of delta (W + dW/dl) at `loss`, (N,) its slope, and (N,) delta W."""
    logs = share + (rungs - 1) * (loss[:, None] - total)
    terms = np.exp(logs)
    weighed = rungs * terms
    together = weighed.sum(axis=1)
    return np.log(together), (weighed * (rungs - 1)).sum(axis=1) / together, terms.sum(axis=1)
