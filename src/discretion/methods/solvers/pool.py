"""Sampling rates of clients in one sum under one noise, as their own budgets allow."""

import numpy as np
from scipy.optimize import brentq

from discretion.accounting import Accountant, noise_multiplier, sampling_rate
from discretion.accounting.accountant import TIGHT
from discretion.arrays import Floats, Ints
from discretion.errors import PlanError


def shared_noise_rates(
    epsilon: Floats, delta: Floats, rounds: int, rate: float, accountant: Accountant = TIGHT
) -> tuple[Floats, float]:
    """Return each client's rate (N,) under one noise for all clients, and that noise over the clip.

    More noise lets everybody come more often: the noise is looked for at which the mean rate is as asked,
    between what the most generous and what the strictest budget needs when all come equally often.

    Guarantees:
        The mean is at most `rate`, and no rate passes 1 or what the client's budget allows.
    """
    some = spread(epsilon)

    def allowed(sigma: float, who: Ints) -> Floats:
        return sampling_rate(epsilon[who], delta[who], np.full(len(who), sigma), rounds, accountant)

    def mean(sigma: float) -> float:
        try:
            return float(allowed(sigma, some).mean())
        except PlanError:  # so little noise that some could not come at all
            return 0.0

    ends = noise_multiplier(epsilon[some], delta[some], np.full(len(some), rate), rounds, accountant)
    low, high = ends.min() * 0.999, ends.max() * 1.001
    enough = mean(low) >= rate  # even there: budgets so large that hardly any noise is needed
    sigma = low if enough else float(brentq(lambda s: mean(s) - rate, low, high, rtol=1e-4))
    found = allowed(sigma, np.arange(len(epsilon)))
    return found * min(1.0, rate / found.mean()), sigma


def spread(epsilon: Floats, most: int = 64) -> Ints:
    """Return clients that stand for all: everybody if budgets are few, else evenly by sorted budget."""
    if len(np.unique(epsilon)) <= most:
        return np.arange(len(epsilon))
    order = np.argsort(epsilon, kind="stable")
    return np.asarray(order[np.linspace(0, len(order) - 1, most).round().astype(np.int64)])
