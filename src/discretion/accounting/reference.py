"""Google's dp-accounting as an accountant: slower than `Pld`, and written by others."""

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from discretion.accounting.renyi import Renyi
from discretion.arrays import Floats
from discretion.errors import PlanError
from discretion.plan.steps import Steps

COARSEST = 1e-3  # spacing of the grid of privacy losses
STEPS_PER_EPSILON = 5000
LONGEST = 1e6  # points of the grid of one step: beyond, counting takes minutes and gigabytes
MOST = 1e4  # epsilon, by Rényi accounting: beyond, the grid of all steps together is as long

Kinds = tuple[tuple[tuple[float, float], int], ...]  # rate and multiplier of steps, and how many there are


@dataclass(frozen=True)
class Reference:
    """Pessimistic privacy loss distributions by dp-accounting; tight to about a thousandth.

    Guarantees:
        Upper bounds by code that shares nothing with `Pld`. Steps with rate 0, count 0 or an infinite
        multiplier cost nothing; multiplier 0 with a rate above 0 costs infinity.
        Raises `PlanError` for clients that are not `countable`, before any work.
    """

    name = "PLD by dp-accounting"

    def epsilon(self, steps: Steps, delta: Floats, enough: Floats | None = None) -> Floats:
        """Return (N,) an upper bound on the epsilon at `delta` of all steps together.

        Clients whose epsilon on the coarsest grid is at most (N,) `enough` get no finer grid.
        """
        if not (can := countable(steps, delta)).all():
            raise PlanError(
                f"dp-accounting cannot count {int((~can).sum())} of {len(can)} clients: found so little "
                f"noise, or so many steps, that a grid would have more than {LONGEST:,.0f} points or epsilon "
                f"would exceed {MOST:,.0f}. Use the accountant pld."
            )
        wanted = np.full(len(delta), -math.inf) if enough is None else enough
        columns = np.concatenate([steps.rate, steps.multiplier, steps.count, [delta], [wanted]])
        distinct, where = np.unique(columns, axis=1, return_inverse=True)
        spent = []
        for column in distinct.T:
            rate, multiplier, count = np.split(column[:-2], 3)
            spent.append(_epsilon(rate, multiplier, count, *column[-2:].tolist()))
        return np.array(spent)[where.reshape(-1)]


def countable(steps: Steps, delta: Floats) -> npt.NDArray[np.bool_]:
    """Return (N,) whether dp-accounting counts the steps in seconds; true, too, where they cost infinity."""
    with np.errstate(divide="ignore", over="ignore"):
        points = (0.5 / steps.multiplier**2 + 10 / steps.multiplier) / COARSEST
    costs = (steps.rate > 0) & (steps.count > 0)
    boundless = (costs & (steps.multiplier == 0)).any(axis=0)
    short = np.where(costs, points, 0.0).max(axis=0, initial=0.0) <= LONGEST
    few = np.flatnonzero(short & ~boundless)
    short[few] = Renyi().epsilon(steps.of(few), delta[few]) <= MOST
    return np.asarray(short | boundless)


def _epsilon(rate: Floats, multiplier: Floats, count: Floats, delta: float, enough: float) -> float:
    taken = (rate > 0) & (count > 0) & np.isfinite(multiplier)
    if not taken.any():
        return 0.0
    if (multiplier[taken] == 0).any():
        return math.inf
    together: dict[tuple[float, float], int] = {}
    for q, s, c in zip(rate[taken], multiplier[taken], count[taken], strict=True):
        together[float(q), float(s)] = together.get((float(q), float(s)), 0) + int(c)
    kinds = tuple(together.items())
    coarse = _composed(kinds, delta, COARSEST)
    if coarse <= max(enough, 0.0):  # no grid is so fine that it gives less than 0
        return coarse
    return min(coarse, _composed(kinds, delta, min(COARSEST, max(coarse / STEPS_PER_EPSILON, 1e-5))))


@functools.lru_cache(maxsize=4096)  # a run is counted when it is certified, verified and reported
def _composed(steps: Kinds, delta: float, grid: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution as distribution  # takes a second to import

    total = distribution.identity(grid)
    for (rate, multiplier), count in steps:
        step = distribution.from_gaussian_mechanism(
            multiplier,
            value_discretization_interval=grid,
            sampling_prob=rate,
            neighboring_relation=distribution.NeighborRel.ADD_OR_REMOVE_ONE,
        )
        total = total.compose(step.self_compose(count))
    return float(total.get_epsilon_for_delta(delta))
