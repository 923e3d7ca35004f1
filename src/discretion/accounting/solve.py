"""Solvers for what a budget allows: noise multiplier, sampling rate, clipping norm or number of rounds.

Every argument is one number or one entry for each client, and numbers stand for every client. The answer has
the shape that the arguments have together: a plain number where all of them are numbers.
Clients with equal arguments are solved once. For thousands of different clients only some are solved, and the
others are interpolated with a safety margin and then checked (see `search`). No promise rests on a solver:
`certify` computes every client's epsilon from the finished plan.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import overload

import numpy as np

from discretion.accounting import gaussian
from discretion.accounting.accountant import TIGHT, Accountant
from discretion.accounting.search import Cost, Found, Reals, interpolated, most
from discretion.arrays import Floats, Ints, distinct
from discretion.errors import PlanError
from discretion.plan.steps import Steps

Counts = int | Ints  # of every client, or (N,) of each

SMALLEST, LARGEST = 0.05, 1e6  # noise multipliers that are looked at
RAREST = 1e-9  # smallest sampling rate that is looked at
MOST_ROUNDS = 10**9
MANY = 3000  # different clients, from which on answers are interpolated

NO_NOISE = (
    "no noise multiplier up to a million keeps this budget: raise epsilon or delta, or lower rate or rounds"
)
NO_RATE = (
    "no sampling rate down to a billionth keeps this budget: raise epsilon or delta, or the noise multiplier"
)


@overload
def noise_multiplier(  # type: ignore[overload-overlap]  # numbers give a number
    epsilon: float, delta: float, rate: float, rounds: int, accountant: Accountant = TIGHT
) -> float: ...
@overload
def noise_multiplier(
    epsilon: Reals, delta: Reals, rate: Reals, rounds: Counts, accountant: Accountant = TIGHT
) -> Floats: ...
def noise_multiplier(
    epsilon: Reals, delta: Reals, rate: Reals, rounds: Counts, accountant: Accountant = TIGHT
) -> Reals:
    """Return the least noise multiplier that keeps `rounds` rounds at sampling rate `rate` within budget.

    Guarantees:
        The accountant's epsilon at the result is at most the budget, and at least 0.9995 of the budget
        wherever the result lies between 0.05 and a million. Clients with an infinite budget, and clients
        that spend nothing (rate 0 or no rounds), get 0.05.
        From 3000 different clients on, most answers are interpolated: they use about 0.997 of the budget.
    """
    (epsilon, delta, rate, count), where = _distinct(epsilon, delta, rate, _whole(rounds))

    def cost(inverse: Floats, who: Ints) -> Floats:
        return accountant.epsilon(Steps.same(rate[who], 1 / inverse, count[who].astype(np.int64)), delta[who])

    def start(who: Ints) -> tuple[Floats, Floats]:
        # Bu et al. 2020: many sampled steps are about one Gaussian of shift q sqrt(T (exp(1/s²) - 1))
        shift = gaussian.shift_of(epsilon[who], delta[who])
        with np.errstate(divide="ignore", over="ignore"):
            guess = np.sqrt(np.log1p((shift / (rate[who] * np.sqrt(count[who]))) ** 2))
        guess = np.clip(guess, 1 / LARGEST, 1 / SMALLEST)
        return guess, _slope(shift, delta[who]) * guess**2 / -np.expm1(-(guess**2))

    columns = [epsilon, delta, rate, count]
    return _number((1 / _answers(columns, 1 / LARGEST, 1 / SMALLEST, start, cost, NO_NOISE))[where])


@overload
def sampling_rate(  # type: ignore[overload-overlap]
    epsilon: float, delta: float, multiplier: float, rounds: int, accountant: Accountant = TIGHT
) -> float: ...
@overload
def sampling_rate(
    epsilon: Reals, delta: Reals, multiplier: Reals, rounds: Counts, accountant: Accountant = TIGHT
) -> Floats: ...
def sampling_rate(
    epsilon: Reals, delta: Reals, multiplier: Reals, rounds: Counts, accountant: Accountant = TIGHT
) -> Reals:
    """Return the largest sampling rate, at most 1, that keeps `rounds` rounds within budget.

    Guarantees:
        As for `noise_multiplier`, wherever the result lies between a billionth and 1.
    """
    (epsilon, delta, multiplier, count), where = _distinct(epsilon, delta, multiplier, _whole(rounds))

    def cost(rate: Floats, who: Ints) -> Floats:
        return accountant.epsilon(Steps.same(rate, multiplier[who], count[who].astype(np.int64)), delta[who])

    def start(who: Ints) -> tuple[Floats, Floats]:
        shift = gaussian.shift_of(epsilon[who], delta[who])
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            guess = shift / np.sqrt(count[who] * np.expm1(multiplier[who] ** -2))
        return np.fmax(np.fmin(guess, 1.0), RAREST), _slope(shift, delta[who])

    columns = [epsilon, delta, multiplier, count]
    return _number(_answers(columns, RAREST, 1.0, start, cost, NO_RATE)[where])


@overload
def clip_bound(  # type: ignore[overload-overlap]
    epsilon: float, delta: float, rate: float, rounds: int, noise: float, accountant: Accountant = TIGHT
) -> float: ...
@overload
def clip_bound(
    epsilon: Reals, delta: Reals, rate: Reals, rounds: Counts, noise: Reals, accountant: Accountant = TIGHT
) -> Floats: ...
def clip_bound(
    epsilon: Reals, delta: Reals, rate: Reals, rounds: Counts, noise: Reals, accountant: Accountant = TIGHT
) -> Reals:
    """Return the largest clip (clipping norm) under noise of standard deviation `noise` on the sum.

    Guarantees:
        The noise divided by the clip is the `noise_multiplier` or, by rounding, a little more; so a finite
        clip is at most 20 times the noise. Infinite where the budget is infinite or nothing is spent.
    """
    budget, chance, std, count = np.broadcast_arrays(epsilon, rate, noise, _whole(rounds))
    if not (sound := np.isfinite(std) & (std >= 0)).all():
        raise PlanError(
            f"invalid noise: found standard deviation {std[~sound][0]:g}, expected 0 or more, finite"
        )
    multiplier = noise_multiplier(budget, delta, chance, count, accountant)
    clip = std / multiplier
    with np.errstate(divide="ignore", invalid="ignore"):
        clip = np.where(std / clip < multiplier, np.nextafter(clip, 0.0), clip)
    unbound = np.isinf(budget) | (chance == 0) | (count == 0)
    return _number(np.where(unbound, math.inf, clip))


@overload
def most_rounds(  # type: ignore[overload-overlap]
    epsilon: float, delta: float, rate: float, multiplier: float, accountant: Accountant = TIGHT
) -> int: ...
@overload
def most_rounds(
    epsilon: Reals, delta: Reals, rate: Reals, multiplier: Reals, accountant: Accountant = TIGHT
) -> Ints: ...
def most_rounds(
    epsilon: Reals, delta: Reals, rate: Reals, multiplier: Reals, accountant: Accountant = TIGHT
) -> Counts:
    """Return the largest number of rounds within budget; 0 if not even one round is.

    Guarantees:
        By the accountant, that number of rounds is within budget and one round more is not. The search ends
        at a billion, which clients with infinite budgets get, too.
    """
    (epsilon, delta, rate, multiplier), where = _distinct(epsilon, delta, rate, multiplier)

    def cost(count: Floats, who: Ints) -> Floats:
        return accountant.epsilon(Steps.same(rate[who], multiplier[who], count.astype(np.int64)), delta[who])

    shift = gaussian.shift_of(epsilon, delta)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        guess = (shift / rate) ** 2 / np.expm1(multiplier**-2)
    guess = np.fmin(np.fmax(guess, 1.0), MOST_ROUNDS)
    found = most(epsilon, 1.0, MOST_ROUNDS, guess, _slope(shift, delta) / 2, cost, whole=True)
    rounds: Ints = np.nan_to_num(found.x, nan=0.0).astype(np.int64)[where]
    return int(rounds) if np.ndim(rounds) == 0 else rounds


def noise_scale(steps: Steps, epsilon: Reals, delta: Reals, accountant: Accountant = TIGHT) -> Floats:
    """Return (N,) the least factor on each client's noise multipliers that keeps its steps within budget.

    The factor keeps the shape of a client's noise schedule and spends the whole budget.

    Guarantees:
        With all multipliers scaled by the factor, the accountant's epsilon is at most the budget, and at
        least 0.9995 of the budget wherever the client's smallest multiplier then lies between 0.05 and a
        million. An infinite budget brings that multiplier to 0.05; a client that spends nothing gets 1.
    """
    columns, where = _distinct(
        np.broadcast_to(epsilon, steps.rate.shape[1:]), delta, *steps.rate, *steps.multiplier, *steps.count
    )
    budgets, deltas = columns[:2]
    rate, multiplier, count = np.array(columns[2:]).reshape(3, len(steps), len(budgets))
    kinds = Steps(rate, multiplier, count.astype(np.int64), steps.unit, steps.adjacency)
    spending = (rate > 0) & (count > 0) & np.isfinite(multiplier)
    least = np.where(spending, multiplier, math.inf).min(axis=0, initial=math.inf)
    if (least == 0).any():
        raise PlanError(
            "cannot scale the noise of a step without noise: found multiplier 0, expected multipliers above 0"
        )
    factor = np.ones(len(budgets))
    spends = np.flatnonzero(np.isfinite(least))
    least, budget = least[spends], budgets[spends]

    def cost(inverse: Floats, who: Ints) -> Floats:
        part = kinds.of(spends[who])
        scaled = replace(part, multiplier=part.multiplier * (1 / inverse))
        return accountant.epsilon(scaled, deltas[spends[who]])

    shift = gaussian.shift_of(budget, deltas[spends])
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        variance = np.where(spending, count * rate**2 * np.expm1(multiplier**-2), 0.0).sum(axis=0)[spends]
    low, high = least / LARGEST, least / SMALLEST
    guess = np.clip(shift / np.sqrt(variance), low, high)
    found = most(budget, low, high, guess, _slope(shift, deltas[spends]), cost)
    if np.isnan(found.x).any():
        raise PlanError(NO_NOISE)
    factor[spends] = 1 / found.x
    return factor[where]


def _whole(rounds: Counts) -> Ints:
    found = np.asarray(rounds)
    sound = (found >= 0) & (found % 1 == 0)
    if not sound.all():
        raise PlanError(
            f"invalid number of rounds: found {found[~sound][0]}, expected a whole number from 0 on"
        )
    return found.astype(np.int64)


def _distinct(*columns: Reals | Ints) -> tuple[list[Floats], Ints]:
    """Return the (K,) columns of the K different clients, and each client's number among them.

    The first column is the budget. The numbers have the shape that the columns have together.
    """
    table = np.stack(np.broadcast_arrays(*columns)).astype(np.float64)
    if not (sound := table[0] > 0).all():
        raise PlanError(f"invalid budget: found epsilon {table[0][~sound][0]:g}, expected a number above 0")
    kinds, where = distinct(table.reshape(len(table), -1))
    return list(kinds), where.reshape(table.shape[1:])


def _number(found: Floats) -> Reals:
    """Return the array, or the plain number where all arguments were numbers."""
    return float(found) if np.ndim(found) == 0 else found


def _slope(shift: Floats, delta: Floats) -> Floats:
    """Return about how many per cent epsilon grows with one per cent more shift: between 1 and 2."""
    with np.errstate(divide="ignore", invalid="ignore"):
        wide = np.sqrt(-2 * np.log(delta)) / shift
        slope = (1 + wide) / (0.5 + wide)
    return np.where(np.isfinite(slope) & (shift > 0), slope, 2.0)


Start = Callable[[Ints], tuple[Floats, Floats]]  # first guesses and slopes, of clients by number


def _answers(
    columns: list[Floats], low: float, high: float, start: Start, cost: Cost, hopeless: str
) -> Floats:
    """Return (K,) the largest x within budget, which is the first column, for K different clients."""
    budget = columns[0]

    def search(who: Ints, guess: Floats | None, slope: Floats | None) -> Found:
        if guess is None or slope is None:
            guess, slope = start(who)
        found = most(budget[who], low, high, guess, slope, lambda x, k: cost(x, who[k]))
        if np.isnan(found.x).any():
            raise PlanError(hopeless)
        return found

    with np.errstate(divide="ignore"):
        # epsilon follows the number of digits of delta
        points = np.log(np.stack([columns[0], -np.log(columns[1]), *columns[2:]], axis=1))
    inner = np.flatnonzero(np.isfinite(points).all(axis=1))
    if len(inner) < MANY:
        return search(np.arange(len(budget)), None, None).x
    x = np.full(len(budget), np.nan)
    x[inner] = interpolated(
        points[inner][:, np.ptp(points[inner], axis=0) > 0],
        budget[inner],
        high,
        lambda k, guess, slope: search(inner[k], guess, slope),
        lambda x, k: cost(x, inner[k]),
    )
    outer = np.flatnonzero(np.isnan(x))
    x[outer] = search(outer, None, None).x
    return x
