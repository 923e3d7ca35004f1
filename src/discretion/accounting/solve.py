"""Noise, rate, clip or rounds from a budget: what a client may do and stay within it.

Every solver takes one entry for each client, (N,), and gives one. Equal clients are solved once. Of
noise and rates for thousands of different clients only some are solved and the others are read off
between them, with a margin, and each is looked at in the end (see `surface`). `certify` computes
the epsilon of each client all the same, and that is the gate.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from discretion.accounting import gaussian, surface
from discretion.accounting.search import Cost, Found, most
from discretion.accounting.spent import TIGHT, Accountant
from discretion.errors import PlanError
from discretion.kinds import distinct
from discretion.population import Floats, Ints
from discretion.steps import Steps

SMALLEST, LARGEST = 0.05, 1e6  # noise multipliers
RAREST = 1e-9  # the smallest rate
MOST_ROUNDS = 10**9
MANY = 3000  # different clients; from here on answers are read off between them

NO_NOISE = "no noise is large enough for this budget: allow more epsilon or delta"
NO_RATE = "no rate is small enough for this budget: allow more epsilon or delta, or more noise"


def noise_multiplier(
    epsilon: Floats, delta: Floats, rate: Floats, rounds: int | Ints, accountant: Accountant = TIGHT
) -> Floats:
    """(N,) the least noise multiplier with which `rounds` rounds at `rate` stay within the budget.

    Guarantees:
        The accountant's epsilon at the result is at most the budget, and at least 0.9995 of it
        wherever that takes a multiplier between 0.05 and a million. An infinite budget, and a client
        that spends nothing (rate 0 or no rounds), gets 0.05.
        From 3000 different clients on, most are read off: they spend about 0.997 of the budget.
    """
    (epsilon, delta, rate, count), where = _distinct(epsilon, delta, rate, _whole(rounds))

    def cost(inverse: Floats, who: Ints) -> Floats:
        return _cost(accountant, rate[who], 1 / inverse, count[who], delta[who])

    def start(who: Ints) -> tuple[Floats, Floats]:
        # many sampled steps are about one Gaussian of shift q sqrt(T (exp(1/s²) - 1)): Bu et al. 2020
        shift = gaussian.shift_of(epsilon[who], delta[who])
        with np.errstate(divide="ignore", over="ignore"):
            guess = np.sqrt(np.log1p((shift / (rate[who] * np.sqrt(count[who]))) ** 2))
        guess = np.clip(guess, 1 / LARGEST, 1 / SMALLEST)
        return guess, _slope(shift, delta[who]) * guess**2 / -np.expm1(-(guess**2))

    columns = [epsilon, delta, rate, count]
    return 1 / _answers(columns, 1 / LARGEST, 1 / SMALLEST, start, cost, NO_NOISE)[where]


def sampling_rate(
    epsilon: Floats, delta: Floats, multiplier: Floats, rounds: int | Ints, accountant: Accountant = TIGHT
) -> Floats:
    """(N,) the largest rate, at most 1, with which `rounds` rounds stay within the budget.

    Guarantees:
        As of `noise_multiplier`, wherever that takes a rate between a billionth and 1.
    """
    (epsilon, delta, multiplier, count), where = _distinct(epsilon, delta, multiplier, _whole(rounds))

    def cost(rate: Floats, who: Ints) -> Floats:
        return _cost(accountant, rate, multiplier[who], count[who], delta[who])

    def start(who: Ints) -> tuple[Floats, Floats]:
        shift = gaussian.shift_of(epsilon[who], delta[who])
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            guess = shift / np.sqrt(count[who] * np.expm1(multiplier[who] ** -2))
        return np.fmax(np.fmin(guess, 1.0), RAREST), _slope(shift, delta[who])

    columns = [epsilon, delta, multiplier, count]
    return _answers(columns, RAREST, 1.0, start, cost, NO_RATE)[where]


def clip_bound(
    epsilon: Floats,
    delta: Floats,
    rate: Floats,
    rounds: int | Ints,
    noise: float | Floats,
    accountant: Accountant = TIGHT,
) -> Floats:
    """(N,) the largest clip under noise of standard deviation `noise` on the sum.

    Guarantees:
        The noise divided by the clip is the `noise_multiplier` or, by rounding, a little more; so a finite
        clip is at most 20 times the noise. Infinite where the budget is infinite or nothing is spent.
    """
    std = np.broadcast_to(np.asarray(noise, dtype=np.float64), epsilon.shape)
    if not (np.isfinite(std) & (std >= 0)).all():
        raise PlanError("noise is finite and at least 0")
    multiplier = noise_multiplier(epsilon, delta, rate, rounds, accountant)
    clip = std / multiplier
    with np.errstate(divide="ignore", invalid="ignore"):
        clip = np.where(std / clip < multiplier, np.nextafter(clip, 0.0), clip)
    unbound = np.isinf(epsilon) | (rate == 0) | (_whole(rounds) == 0)
    return np.where(unbound, math.inf, clip)


def most_rounds(
    epsilon: Floats, delta: Floats, rate: Floats, multiplier: Floats, accountant: Accountant = TIGHT
) -> Ints:
    """(N,) the largest number of rounds within the budget, 0 if there is none.

    Guarantees:
        So many rounds fit by the accountant and one more does not, up to a billion: those who could take
        part for longer, and infinite budgets, get a billion.
    """
    (epsilon, delta, rate, multiplier), where = _distinct(epsilon, delta, rate, multiplier)

    def cost(count: Floats, who: Ints) -> Floats:
        return _cost(accountant, rate[who], multiplier[who], count, delta[who])

    shift = gaussian.shift_of(epsilon, delta)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        guess = (shift / rate) ** 2 / np.expm1(multiplier**-2)
    guess = np.fmin(np.fmax(guess, 1.0), MOST_ROUNDS)
    found = most(epsilon, 1.0, MOST_ROUNDS, guess, _slope(shift, delta) / 2, cost, whole=True)
    return np.nan_to_num(found.x, nan=0.0).astype(np.int64)[where]


def noise_scale(steps: Steps, epsilon: Floats, delta: Floats, accountant: Accountant = TIGHT) -> Floats:
    """(N,) the least factor on all multipliers of a client's steps that keeps them within its budget.

    It keeps the shape of a schedule and spends the whole budget.

    Guarantees:
        With multipliers times the factor, the accountant's epsilon is at most the budget, and at least
        0.9995 of it wherever the client's smallest multiplier then lies between 0.05 and a million. An
        infinite budget brings that one to 0.05; a client that spends nothing gets factor 1.
    """
    size = len(steps)
    columns, where = _distinct(epsilon, delta, *steps.rate, *steps.multiplier, *steps.count)
    epsilon, delta = columns[:2]
    rate, multiplier, count = np.array(columns[2:]).reshape(3, size, len(epsilon))
    kinds = Steps(rate, multiplier, count.astype(np.int64), steps.unit, steps.adjacency)
    spending = (rate > 0) & (count > 0) & np.isfinite(multiplier)
    least = np.where(spending, multiplier, math.inf).min(axis=0, initial=math.inf)
    if (least == 0).any():
        raise PlanError("a step without noise stays so at any scale: give each step a multiplier above 0")
    factor = np.ones(len(epsilon))
    spends = np.flatnonzero(np.isfinite(least))
    least, budget = least[spends], epsilon[spends]

    def cost(inverse: Floats, who: Ints) -> Floats:
        part = kinds.of(spends[who])
        scaled = Steps(part.rate, part.multiplier * (1 / inverse), part.count, part.unit, part.adjacency)
        return accountant.epsilon(scaled, delta[spends[who]])

    shift = gaussian.shift_of(budget, delta[spends])
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        variance = np.where(spending, count * rate**2 * np.expm1(multiplier**-2), 0.0).sum(axis=0)[spends]
    low, high = least / LARGEST, least / SMALLEST
    guess = np.clip(shift / np.sqrt(variance), low, high)
    found = most(budget, low, high, guess, _slope(shift, delta[spends]), cost)
    if np.isnan(found.x).any():
        raise PlanError(NO_NOISE)
    factor[spends] = 1 / found.x
    return factor[where]


def _cost(accountant: Accountant, rate: Floats, multiplier: Floats, count: Floats, delta: Floats) -> Floats:
    return accountant.epsilon(Steps.same(rate, multiplier, count.astype(np.int64)), delta)


def _whole(rounds: int | Ints) -> Ints:
    found = np.asarray(rounds)
    if not ((found >= 0) & (found % 1 == 0)).all():
        raise PlanError("a number of rounds is whole and at least 0")
    return found.astype(np.int64)


def _distinct(*columns: ArrayLike) -> tuple[list[Floats], Ints]:
    """The columns of one client of each kind, and the kind of each client. The first is the budget."""
    table = np.stack(np.broadcast_arrays(*columns)).astype(np.float64)
    if not (table[0] > 0).all():
        raise PlanError("a budget is a number above 0")
    kinds, where = distinct(table)
    return list(kinds), where


def _slope(shift: Floats, delta: Floats) -> Floats:
    """About how many per cent epsilon grows with one per cent more shift: between 1 and 2."""
    with np.errstate(divide="ignore", invalid="ignore"):
        wide = np.sqrt(-2 * np.log(delta)) / shift
        slope = (1 + wide) / (0.5 + wide)
    return np.where(np.isfinite(slope) & (shift > 0), slope, 2.0)


Start = Callable[[Ints], tuple[Floats, Floats]]  # guesses and slopes for these clients


def _answers(
    columns: list[Floats], low: float, high: float, start: Start, cost: Cost, hopeless: str
) -> Floats:
    """(K,) the largest x within the budget, the first column, of clients that are all different."""
    budget = columns[0]

    def search(who: Ints, guess: Floats | None, slope: Floats | None) -> Found:
        if guess is None or slope is None:
            guess, slope = start(who)
        found = most(budget[who], low, high, guess, slope, lambda x, k: cost(x, who[k]))
        if np.isnan(found.x).any():
            raise PlanError(hopeless)
        return found

    with np.errstate(divide="ignore"):
        # what delta does goes by its number of digits
        points = np.log(np.stack([columns[0], -np.log(columns[1]), *columns[2:]], axis=1))
    inner = np.flatnonzero(np.isfinite(points).all(axis=1))
    if len(inner) < MANY:
        return search(np.arange(len(budget)), None, None).x
    x = np.full(len(budget), np.nan)
    x[inner] = surface.answers(
        points[inner][:, np.ptp(points[inner], axis=0) > 0],
        budget[inner],
        high,
        lambda k, guess, slope: search(inner[k], guess, slope),
        lambda x, k: cost(x, inner[k]),
    )
    outer = np.flatnonzero(np.isnan(x))
    x[outer] = search(outer, None, None).x
    return x
