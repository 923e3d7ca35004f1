"""One monotone root-finder for all clients at once, which ends on the safe side of every budget."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from discretion.errors import PlanError
from discretion.population import Floats, Ints

AIM = 0.9998  # of the budget: close enough, and on the safe side of what rounding does
ENOUGH = 0.9995  # stop once this much of the budget is used
CLOSE = 1e-6  # relative distance at which the search ends, whatever was used
LONGEST = 2.0  # step, in logarithms
FLATTEST, STEEPEST = 0.1, 100.0  # slopes that are believed
APART = 1e-5  # in logarithms; points that are closer say nothing about the slope
PATIENCE = 12  # tries after which every second one halves what is left
TRIES = 100

Cost = Callable[[Floats, Ints], Floats]  # of x, for the clients with these numbers


@dataclass(frozen=True, eq=False)
class Found:
    x: Floats  # (K,) nan where even the least x costs too much
    cost: Floats  # (K,) at x
    slope: Floats  # (K,) about how many per cent the cost grows with one per cent more x


def most(
    budget: Floats,
    low: float | Floats,
    high: float | Floats,
    guess: Floats,
    slope: Floats,
    cost: Cost,
    whole: bool = False,
) -> Found:
    """The largest x in [low, high] whose cost, growing in x, is within the budget.

    Newton's steps on logarithms with the guessed slope, then secants, kept between the largest x that
    is known to fit (`under`) and the smallest that is known not to (`over`).

    Guarantees:
        The cost at x is within the budget. Where x is below `high`, at least 0.9995 of the budget is used
        or a value within a millionth of x does not fit; of whole numbers, x fits and x + 1 does not.
        An infinite budget gets `high` without a look at its cost.
    """
    low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), budget.shape) for end in (low, high))
    under, over = np.where(np.isinf(budget), high, np.nan), np.full(len(budget), np.nan)
    kept = np.full(len(budget), np.nan)  # the cost at `under`
    x, at, slope = np.clip(guess, low, high), np.full(len(budget), np.nan), slope.copy()
    if whole:
        x = np.floor(x)
    todo = np.flatnonzero(np.isfinite(budget))
    for attempt in range(TRIES):
        if not len(todo):
            return Found(under, kept, slope)
        before, at_before = x[todo], at[todo]
        if attempt:
            wished = _wish(before, at_before, budget[todo], slope[todo])
            wished = np.clip(np.floor(wished) if whole else wished, low[todo], high[todo])
            x[todo] = _between(wished, under[todo], over[todo], attempt, whole)
        at[todo] = cost(x[todo], todo)
        with np.errstate(divide="ignore", invalid="ignore"):
            length = np.log(x[todo] / before)
            secant = np.log(at[todo] / at_before) / length
        believed = (np.abs(length) > APART) & (secant > FLATTEST) & (secant < STEEPEST)
        # where the cost did not change, longer steps
        flat = np.maximum(slope[todo] / 2, FLATTEST)
        slope[todo] = np.where(believed, secant, np.where(secant <= FLATTEST, flat, slope[todo]))
        safe = at[todo] <= budget[todo]
        under[todo] = np.where(safe, x[todo], under[todo])
        kept[todo] = np.where(safe, at[todo], kept[todo])
        over[todo] = np.where(safe, over[todo], x[todo])
        settled = (safe & (x[todo] >= high[todo])) | (over[todo] <= low[todo])
        if whole:
            settled |= over[todo] - under[todo] <= 1
        else:
            settled |= safe & (at[todo] >= ENOUGH * budget[todo])
            settled |= over[todo] / under[todo] - 1 < CLOSE
        todo = todo[~settled]
    if whole or np.isnan(under[todo]).any():
        raise PlanError("the search for a plan within this budget found no end: try other settings")
    return Found(under, kept, slope)


def _wish(x: Floats, at: Floats, budget: Floats, slope: Floats) -> Floats:
    """On the line towards the aim."""
    with np.errstate(divide="ignore"):
        step = np.log(AIM * budget / at) / slope
    wished: Floats = x * np.exp(np.clip(np.where(np.isinf(at), -1.0, step), -LONGEST, LONGEST))
    return wished


def _between(wished: Floats, under: Floats, over: Floats, attempt: int, whole: bool) -> Floats:
    """The wish, or halfway where that leaves what is known; a whole number that was not tried yet."""
    known = np.isfinite(over) & np.isfinite(under)
    halve = attempt % 4 == 3 or (attempt > PATIENCE and attempt % 2 == 1)
    outside = known & ((wished <= under) | (wished >= over) | halve)
    if not whole:
        return np.where(outside, np.sqrt(over * under), wished)
    # near its end the wish is off by a few: the nearest that is left, not halfway
    wished = np.fmin(np.fmax(wished, under + 1), over - 1)
    return np.where(known & halve, np.floor((under + over) / 2), wished)
