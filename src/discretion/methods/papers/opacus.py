"""Rényi accounting as two of the papers do it: at the orders of Opacus, each a tenth apart."""

import math

import numpy as np

from discretion.accounting.renyi import convert
from discretion.arrays import Floats, distinct
from discretion.plan.steps import Steps

ORDERS = np.concatenate([np.arange(11, 110) / 10, np.arange(12.0, 64.0)])
STEP = 1 / 8  # of the quadrature, in standard deviations
TAIL_SIGMAS = 14
LITTLE = 0.1  # multiplier from which on sampling is taken into account


class Opacus:
    """Accountant that the papers call GetNoise and get_privacy_spent, by quadrature."""

    name = "Rényi at the orders of Opacus"

    def epsilon(self, steps: Steps, delta: Floats) -> Floats:
        """Return (N,) upper bounds on the epsilon at `delta` of all steps together."""
        total = np.zeros((steps.rate.shape[1], len(ORDERS)))
        for rate, multiplier, count in zip(steps.rate, steps.multiplier, steps.count, strict=True):
            pairs, where = distinct(np.stack([rate, multiplier]))
            total += count[:, None] * curve(*pairs)[where]
        return convert(total, delta, ORDERS)


def curve(rate: Floats, multiplier: Floats) -> Floats:
    """Return (N, orders) Rényi divergences of one Poisson-sampled step; Opacus' compute_rdp."""
    return np.array([_curve(float(q), float(s)) for q, s in zip(rate, multiplier, strict=True)])


def _curve(rate: float, multiplier: float) -> Floats:
    if rate == 0 or math.isinf(multiplier):
        return np.zeros(len(ORDERS))
    if rate == 1 or multiplier < LITTLE:
        with np.errstate(divide="ignore"):
            return np.asarray(ORDERS / 2 / np.float64(multiplier) ** 2)
    step = min(STEP, multiplier / 4)
    grid = np.arange(-TAIL_SIGMAS, ORDERS[-1] / multiplier + TAIL_SIGMAS, step)
    loss = np.logaddexp(math.log1p(-rate), math.log(rate) + grid / multiplier - 0.5 / multiplier**2)
    exponent = ORDERS[:, None] * loss - grid**2 / 2
    most = exponent.max(axis=1)
    mass = np.exp(exponent - most[:, None]).sum(axis=1) * step / math.sqrt(2 * math.pi)
    return np.asarray(np.maximum((np.log(mass) + most) / (ORDERS - 1), 0.0))
