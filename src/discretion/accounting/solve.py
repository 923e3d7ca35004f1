"""Noise or rate from a budget: one monotone root-finder that ends on the safe side."""

import math
from collections.abc import Callable

import numpy as np

from discretion.accounting import gaussian
from discretion.accounting.spent import TIGHT, Accountant
from discretion.errors import PlanError
from discretion.population import Floats, Ints
from discretion.steps import Steps

AIM = 0.9998  # of the budget: close enough, and on the safe side of what rounding does
ENOUGH = 0.9995  # stop once this much of the budget is used
SMALLEST, LARGEST = 0.05, 1e6  # noise multipliers
CLOSE = 1e-6  # relative distance at which the search ends, whatever was used
LONGEST = 2.0  # step, in logarithms
RAREST = 1e9  # one over the smallest rate
TRIES = 60


def noise_multiplier(
    epsilon: Floats, delta: Floats, rate: Floats, rounds: int, accountant: Accountant = TIGHT
) -> Floats:
    """(N,) the least noise multiplier with which `rounds` rounds at `rate` stay within the budget.

    Guarantees:
        The accountant's epsilon at the result is at most the budget, and at least 0.9995 of it
        wherever that takes a multiplier between 0.05 and a million.
    """
    first, where = _distinct(epsilon, delta, rate)
    epsilon, delta, rate = epsilon[first], delta[first], rate[first]

    def cost(multiplier: Floats, who: Ints) -> Floats:
        return accountant.epsilon(Steps.same(rate[who], multiplier, rounds), delta[who])

    # many sampled steps are about one Gaussian of shift q sqrt(T (exp(1/s²) - 1)): Bu et al. 2020
    shift = gaussian.shift_of(epsilon, delta)
    with np.errstate(divide="ignore"):
        guess = 1 / np.sqrt(np.log1p((shift / (rate * math.sqrt(rounds))) ** 2))
    guess = np.clip(guess, SMALLEST, LARGEST)
    slope = _slope(shift, delta) / guess**2 / -np.expm1(-1 / guess**2)
    return _least(epsilon, SMALLEST, LARGEST, guess, slope, cost)[where]


def sampling_rate(
    epsilon: Floats, delta: Floats, multiplier: Floats, rounds: int, accountant: Accountant = TIGHT
) -> Floats:
    """(N,) the largest rate, at most 1, with which `rounds` rounds stay within the budget."""
    first, where = _distinct(epsilon, delta, multiplier)
    epsilon, delta, multiplier = epsilon[first], delta[first], multiplier[first]

    def cost(inverse: Floats, who: Ints) -> Floats:
        return accountant.epsilon(Steps.same(1 / inverse, multiplier[who], rounds), delta[who])

    shift = gaussian.shift_of(epsilon, delta)
    with np.errstate(divide="ignore", over="ignore"):
        guess = np.clip(np.sqrt(rounds * np.expm1(1 / multiplier**2)) / shift, 1.0, RAREST)
    return 1 / _least(epsilon, 1.0, RAREST, guess, _slope(shift, delta), cost)[where]


def _distinct(epsilon: Floats, *others: Floats) -> tuple[Ints, Ints]:
    """A client of each kind, and the kind of each client: equal problems are solved once."""
    if not (epsilon > 0).all():
        raise PlanError("a budget is a number above 0")
    columns = np.stack([epsilon, *others])
    _, first, where = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    return first, where.reshape(-1)


def _slope(shift: Floats, delta: Floats) -> Floats:
    """About how many per cent epsilon grows with one per cent more shift: between 1 and 2."""
    with np.errstate(invalid="ignore"):
        wide = np.sqrt(-2 * np.log(delta)) / shift
    return np.where(np.isfinite(shift) & (shift > 0), (1 + wide) / (0.5 + wide), 2.0)


Cost = Callable[[Floats, Ints], Floats]  # of x, for the clients with these numbers


def _least(budget: Floats, low: float, high: float, guess: Floats, slope: Floats, cost: Cost) -> Floats:
    """The least x in [low, high] whose cost, falling in x, is within the budget.

    Newton's steps on logarithms with the guessed slope, then secants, kept between the largest x that
    is known to cost too much (`over`) and the smallest that is known not to (`under`).
    """
    over, under = np.full(len(budget), np.nan), np.full(len(budget), np.nan)
    x, at = guess.copy(), np.full(len(budget), np.nan)
    slope = slope.copy()
    todo = np.arange(len(budget))
    for attempt in range(TRIES):
        before, at_before = x[todo], at[todo]
        if attempt:
            x[todo] = _next(
                before, at_before, budget[todo], over[todo], under[todo], slope[todo], low, high, attempt
            )
        at[todo] = cost(x[todo], todo)
        with np.errstate(divide="ignore", invalid="ignore"):
            secant = -np.log(at[todo] / at_before) / np.log(x[todo] / before)
        steep = np.isfinite(secant) & (secant > 0.1) & (secant < 100)
        slope[todo] = np.where(steep, secant, slope[todo])
        safe = at[todo] <= budget[todo]
        under[todo] = np.where(safe, x[todo], under[todo])
        over[todo] = np.where(safe, over[todo], x[todo])
        if (over[todo] >= high).any():
            raise PlanError("no noise is large enough for this budget: allow more epsilon or delta")
        settled = safe & ((at[todo] >= ENOUGH * budget[todo]) | (x[todo] <= low))
        settled |= under[todo] / over[todo] - 1 < CLOSE
        todo = todo[~settled]
        if not len(todo):
            break
    if np.isnan(under).any():
        raise PlanError("the search for a plan within this budget found no end: try other settings")
    return under


def _next(
    x: Floats,
    at: Floats,
    budget: Floats,
    over: Floats,
    under: Floats,
    slope: Floats,
    low: float,
    high: float,
    attempt: int,
) -> Floats:
    """Where to look next: on the line towards the aim, or halfway if that leaves what is known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        step = np.log(at / (AIM * budget)) / slope
    step = np.where(np.isnan(step), 0.0, step)  # of an infinite budget
    step = np.clip(np.where(np.isinf(at), 1.0, step), -LONGEST, LONGEST)
    wished = np.clip(x * np.exp(step), low, high)
    known = np.isfinite(over) & np.isfinite(under)
    outside = known & ((wished <= over) | (wished >= under) | (attempt % 4 == 3))
    return np.where(outside, np.sqrt(over * under), wished)
