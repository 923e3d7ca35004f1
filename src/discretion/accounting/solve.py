"""Noise or rate from a budget: one monotone root-finder that ends on the safe side."""

import math
from collections.abc import Callable

import numpy as np

from discretion.accounting import gaussian
from discretion.accounting.spent import TIGHT, Accountant
from discretion.errors import PlanError
from discretion.plan import Steps
from discretion.population import Floats, Ints

AIM = 0.9998  # of the budget: close enough, and on the safe side of what rounding does
ENOUGH = 0.9995  # stop once this much of the budget is used
SMALLEST, LARGEST = 0.05, 1e6  # noise multipliers
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
    _, first, where = np.unique(
        np.stack([epsilon, delta, rate]), axis=1, return_index=True, return_inverse=True
    )
    epsilon, delta, rate = epsilon[first], delta[first], rate[first]

    def cost(multiplier: Floats, who: Ints) -> Floats:
        return accountant.epsilon(Steps.same(rate[who], multiplier, rounds), delta[who])

    # many sampled steps are about one Gaussian of shift q sqrt(T (exp(1/s²) - 1)): Bu et al. 2020
    with np.errstate(divide="ignore"):
        shift = gaussian.shift_of(epsilon, delta) / (rate * math.sqrt(rounds))
        guess = 1 / np.sqrt(np.log1p(shift**2))
    return _least(epsilon, SMALLEST, LARGEST, guess, cost)[where.reshape(-1)]


def sampling_rate(
    epsilon: Floats, delta: Floats, multiplier: Floats, rounds: int, accountant: Accountant = TIGHT
) -> Floats:
    """(N,) the largest rate, at most 1, with which `rounds` rounds stay within the budget."""
    _, first, where = np.unique(
        np.stack([epsilon, delta, multiplier]), axis=1, return_index=True, return_inverse=True
    )
    epsilon, delta, multiplier = epsilon[first], delta[first], multiplier[first]

    def cost(inverse: Floats, who: Ints) -> Floats:
        return accountant.epsilon(Steps.same(1 / inverse, multiplier[who], rounds), delta[who])

    with np.errstate(divide="ignore", over="ignore"):
        guess = np.sqrt(rounds * np.expm1(1 / multiplier**2)) / gaussian.shift_of(epsilon, delta)
    return 1 / _least(epsilon, 1.0, RAREST, guess, cost)[where.reshape(-1)]


Cost = Callable[[Floats, Ints], Floats]  # of x, for the clients with these numbers


def _least(budget: Floats, low: float, high: float, guess: Floats, cost: Cost) -> Floats:
    """The least x in [low, high] whose cost, falling in x, is within the budget."""
    if not (budget > 0).all():
        raise PlanError("a budget is a number above 0")
    start = np.clip(np.where(np.isfinite(guess), guess, high), low, high)
    return _narrow(budget, cost, *_bracket(budget, low, high, cost, start, 1.25), 1e-6)


def _bracket(
    budget: Floats, low: float, high: float, cost: Cost, start: Floats, factor: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """x that costs too much and x that does not, with their costs; both `low` if even that is cheap.

    Each step away from the start is longer than the one before.
    """
    over, under = start.copy(), start.copy()
    at_over = cost(start, np.arange(len(budget)))
    at_under = at_over.copy()
    stride = np.full(len(budget), factor)
    while len(todo := np.flatnonzero(at_under > budget)):
        if (under[todo] >= high).any():
            raise PlanError("no noise is large enough for this budget: allow more epsilon or delta")
        over[todo], at_over[todo] = under[todo], at_under[todo]
        under[todo] = np.minimum(under[todo] * stride[todo], high)
        at_under[todo] = cost(under[todo], todo)
        stride[todo] **= 2
    while len(todo := np.flatnonzero((at_over <= budget) & (over > low))):
        under[todo], at_under[todo] = over[todo], at_over[todo]
        over[todo] = np.maximum(over[todo] / stride[todo], low)
        at_over[todo] = cost(over[todo], todo)
        stride[todo] **= 2
    cheap = at_over <= budget
    return over, np.where(cheap, over, under), at_over, np.where(cheap, at_over, at_under)


def _narrow(
    budget: Floats,
    cost: Cost,
    over: Floats,
    under: Floats,
    at_over: Floats,
    at_under: Floats,
    tolerance: float,
) -> Floats:
    """Shrink the bracket by secants on logarithms; `under` stays within the budget and is returned."""
    for attempt in range(TRIES):
        todo = np.flatnonzero((at_under < ENOUGH * budget) & (under / over - 1 > tolerance))
        if not len(todo):
            break
        x = _secant(budget[todo], over[todo], under[todo], at_over[todo], at_under[todo], attempt)
        found = cost(x, todo)
        safe = found <= budget[todo]
        under[todo[safe]], at_under[todo[safe]] = x[safe], found[safe]
        over[todo[~safe]], at_over[todo[~safe]] = x[~safe], found[~safe]
    return under


def _secant(
    budget: Floats, low: Floats, high: Floats, at_low: Floats, at_high: Floats, attempt: int
) -> Floats:
    """Between low and high: where the line through both ends meets the aim; each third time halfway."""
    a, b = np.log(low), np.log(high)
    with np.errstate(divide="ignore", invalid="ignore"):
        above = np.log(at_low) - np.log(AIM * budget)
        below = np.log(AIM * budget) - np.log(at_high)
        share = above / (above + below)
    halfway = ~np.isfinite(share) | (share <= 0) | (share >= 1) | (attempt % 3 == 2)
    x: Floats = np.exp(a + (b - a) * np.where(halfway, 0.5, np.clip(share, 1e-3, 1 - 1e-3)))
    return x
