"""Tight accounting by privacy loss distributions, with google's dp-accounting underneath."""

import math
from functools import lru_cache

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as distribution

from discretion.accounting import gaussian
from discretion.accounting.renyi import Renyi
from discretion.plan import Steps
from discretion.population import Floats

Step = tuple[float, float, int]  # rate, multiplier, count

BINS = 2500  # grid points up to the epsilon that the Rényi bound gives
FINEST, COARSEST = 1e-5, 5e-3
HOPELESS = 500.0  # beyond this epsilon the Rényi bound stands: nobody needs it tight


class Pld:
    """Every number is an upper bound: losses are rounded up to the grid (connect the dots)."""

    name = "PLD"

    def epsilon(self, steps: Steps, delta: Floats) -> Floats:
        """(N,) an upper bound on the epsilon at `delta` of all steps together, tight to about 1e-3."""
        columns = np.concatenate([steps.rate, steps.multiplier, delta[None]])
        distinct, where = np.unique(columns, axis=1, return_inverse=True)
        length = len(steps.count)
        spent = np.array(
            [
                _epsilon(
                    _sorted(column[:length], column[length:-1], steps.count), float(column[-1])
                )
                for column in distinct.T
            ]
        )
        return spent[where.reshape(-1)]


def _sorted(rate: Floats, multiplier: Floats, count: np.ndarray) -> tuple[Step, ...]:
    """The steps that cost anything, equal ones together: their order does not matter."""
    together: dict[tuple[float, float], int] = {}
    for q, s, c in zip(rate.tolist(), multiplier.tolist(), count.tolist(), strict=True):
        if q > 0 and c > 0 and not math.isinf(s):
            together[q, s] = together.get((q, s), 0) + c
    return tuple(sorted((q, s, c) for (q, s), c in together.items()))


@lru_cache(maxsize=100_000)
def _epsilon(steps: tuple[Step, ...], delta: float) -> float:
    if not steps:
        return 0.0
    if any(s == 0 for _, s, _ in steps):
        return math.inf
    if all(q == 1 for q, _, _ in steps):
        mu = math.sqrt(sum(c / s**2 for _, s, c in steps))
        return float(gaussian.epsilon_of(np.array(mu), np.array(delta)))
    rate, multiplier, count = (np.array(column) for column in zip(*steps, strict=True))
    bound = float(
        Renyi().epsilon(Steps(rate[:, None], multiplier[:, None], count), np.array([delta]))[0]
    )
    if bound > HOPELESS:
        return bound
    grid = min(max(bound / BINS, FINEST), COARSEST)
    total = None
    for q, s, c in steps:
        step = _step(q, s, grid).self_compose(c)
        total = step if total is None else total.compose(step)
    assert total is not None
    return min(bound, float(total.get_epsilon_for_delta(delta)))


def _step(rate: float, multiplier: float, grid: float) -> distribution.PrivacyLossDistribution:
    return distribution.from_gaussian_mechanism(
        multiplier,
        value_discretization_interval=grid,
        sampling_prob=rate,
        neighboring_relation=distribution.NeighborRel.ADD_OR_REMOVE_ONE,
    )
