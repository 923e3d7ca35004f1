"""Cost of a record by Xu, Zhang and Huang, "Tackling privacy heterogeneity" (2025).

A client that is drawn T_k times takes T_k T^l steps, each on a batch of a fixed number of its records.
"""

import math

import numpy as np

from discretion.arrays import Floats


def variance(epsilon: Floats, delta: Floats, rate: Floats, size: Floats) -> Floats:
    """Return (N,) V_k of (7): variance of the noise on a mean gradient, for one step and clip 1.

    Defect: amplification is applied to all steps together, as if the batch were drawn once; and a record
    that is replaced moves the mean by 2C/B, not C/B. Together that is too much noise, or in one large step
    too little.
    """
    # Lemma 1: before sampling, epsilon may be log(1 + (e^epsilon - 1) / r)
    larger = np.logaddexp(0.0, epsilon + np.log(-np.expm1(-epsilon)) - np.log(rate))
    with np.errstate(invalid="ignore"):
        per_step = 8 * np.log(math.e + rate * larger / delta) / (size * rate * larger) ** 2
    return np.where(np.isinf(epsilon), 0.0, per_step)


def noise_std(variance: Floats, turns: Floats, local_steps: int, clip: float) -> Floats:
    """Return (N,) sigma_k of (6), added to every mean gradient of a client drawn `turns` times."""
    return clip * np.sqrt(variance * turns * local_steps)


def multiplier(epsilon: Floats, delta: Floats, rate: Floats, steps: int) -> Floats:
    """Return (N,) noise multipliers sigma_k B_k / C: the size cancels."""
    one = np.ones_like(epsilon)
    return rate * noise_std(variance(epsilon, delta, rate, one), one * steps, 1, 1.0)
