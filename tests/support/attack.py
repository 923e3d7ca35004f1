"""Empirical lower bounds on epsilon, from the scores of an attack."""

import numpy as np
from scipy import stats


def lower_bound(present: np.ndarray, absent: np.ndarray, delta: float) -> float:
    """On epsilon, from scores of equally many trials with and without a canary (Clopper-Pearson, 99.9 %)."""
    found, trials = 0.0, len(present)
    for threshold in np.quantile(np.concatenate([present, absent]), np.linspace(0.02, 0.98, 49)):
        for inside, outside in ((present, absent), (-absent, -present)):
            cut = threshold if inside is present else -threshold
            hits = stats.binomtest(int((inside > cut).sum()), trials).proportion_ci(0.998).low
            false = stats.binomtest(int((outside > cut).sum()), trials).proportion_ci(0.998).high
            found = max(found, np.log(max(hits - delta, 1e-12) / false))
    return found
