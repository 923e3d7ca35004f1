"""Monotone root finder for all clients at once, which ends on the safe side of every budget.

For thousands of different clients, some are solved and the others interpolated (`interpolated`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.spatial import KDTree

from discretion.arrays import Floats, Ints
from discretion.errors import PlanError

AIM = 0.9998  # share of the budget to aim at: close to all of it, with room for rounding
ENOUGH = 0.9995  # share of the budget at which the search stops
CLOSE = 1e-6  # relative distance of the bounds at which the search stops in any case
LONGEST = 2.0  # longest step, in logarithms
FLATTEST, STEEPEST = 0.1, 100.0  # slopes outside are ignored
APART = 1e-5  # in logarithms: closer points give no slope
PATIENCE = 12  # tries after which every second try bisects
TRIES = 100

MARGIN = 3e-3  # share of its budget that a client leaves unspent if its answer is interpolated
TOLERATED = MARGIN / 4  # error that solved clients may have when interpolated from the others
FIRST = 600  # clients solved at first
WAYS = 200  # random directions in which the outermost client is solved
FEW = 0.01  # share of the clients: if no more are in doubt, all of them are solved
STENCIL = 50  # solved clients that an answer is interpolated from
NEAR = 8  # nearest solved clients whose errors put a client in doubt
CHECKED = 500  # interpolated answers that the accountant checks at a time
AT_ONCE = 100  # clients interpolated at once
RIDGE = 1e-10  # keeps the linear system of a flat stencil solvable

Reals = float | Floats  # of every client, or (N,) of each
Cost = Callable[[Floats, Ints], Floats]  # (k,) costs of (k,) x, for the clients with these numbers


@dataclass(frozen=True, eq=False)
class Found:
    x: Floats  # (K,) NaN where even the least x costs too much
    cost: Floats  # (K,) at x
    slope: Floats  # (K,) about how many per cent the cost grows with one per cent more x


def most(
    budget: Floats, low: Reals, high: Reals, guess: Floats, slope: Floats, cost: Cost, whole: bool = False
) -> Found:
    """Return the largest x in [low, high] whose cost, which grows with x, is within the budget.

    Newton steps on logarithms with the guessed slope, then secant steps, kept between the largest x known to
    be within budget (`under`) and the smallest x known to exceed it (`over`).

    Guarantees:
        The cost at x is within the budget. Where x is below `high`, at least 0.9995 of the budget is used
        or a value within a millionth of x exceeds it; of `whole` numbers, x + 1 exceeds the budget.
        An infinite budget gets `high`, without a call of `cost`.
    """
    low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), budget.shape) for end in (low, high))
    over, kept, at = np.full((3, len(budget)), np.nan)  # `kept`: the cost at `under`; `at`: the cost at x
    under, x, slope = np.where(np.isinf(budget), high, np.nan), np.clip(guess, low, high), slope.copy()
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
        # where the cost hardly changed, take longer steps
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
        raise PlanError(f"found no answer within budget after {TRIES} tries: change budget, rounds or noise")
    return Found(under, kept, slope)


def _wish(x: Floats, at: Floats, budget: Floats, slope: Floats) -> Floats:
    """Return the next x on the line, in logarithms, towards the aim."""
    with np.errstate(divide="ignore"):
        step = np.log(AIM * budget / at) / slope
    return np.asarray(x * np.exp(np.clip(np.where(np.isinf(at), -1.0, step), -LONGEST, LONGEST)))


def _between(wished: Floats, under: Floats, over: Floats, attempt: int, whole: bool) -> Floats:
    """Return the wish or, where it is outside the known bounds, their middle; of integers, an untried one."""
    known = np.isfinite(over) & np.isfinite(under)
    halve = attempt % 4 == 3 or (attempt > PATIENCE and attempt % 2 == 1)
    outside = known & ((wished <= under) | (wished >= over) | halve)
    if not whole:
        return np.where(outside, np.sqrt(over * under), wished)
    # near the end the wish is off by a few: take the nearest number left, not the middle
    wished = np.fmin(np.fmax(wished, under + 1), over - 1)
    return np.where(known & halve, np.floor((under + over) / 2), wished)


Search = Callable[[Ints, Floats | None, Floats | None], Found]  # for clients, from guesses and slopes


def interpolated(points: Floats, budget: Floats, high: float, search: Search, cost: Cost) -> Floats:
    """Return (K,) about the largest x, at most `high`, whose cost is within budget, for all (K, D) points.

    A random sample of the clients and the outermost clients are solved. Each of them is also interpolated
    from its solved neighbours; where that misses by more than a quarter of the margin, more are solved.
    All other clients get interpolated answers for a budget less the margin. The accountant then checks a
    random sample of those answers: while one is off by half the margin, more clients are solved and the
    tolerance is lowered. In the end the accountant checks every answer, and clients over budget are solved.

    Guarantees:
        Every answer is within budget, by the accountant.
        The same clients get the same answers, in whichever order they come.
    """
    random = np.random.default_rng(0)
    order = random.permutation(len(points))
    surface = _Surface(points, budget, high, search)
    # the outermost clients in many directions, so that hardly any answer is extrapolated
    outermost = [np.argmax(points @ way) for way in random.uniform(-1, 1, (WAYS, points.shape[1]))]
    surface.solve(np.union1d(order[:FIRST], outermost))
    tolerated, few = TOLERATED, int(FEW * len(points))
    while len(rest := order[np.isnan(surface.x[order])]):
        doubt = rest[surface.error_near(rest) > tolerated]
        if len(doubt) > few:
            solved = len(order) - len(rest)
            surface.solve(doubt[: max(few, min(len(doubt) // 3, solved // 2))])
            continue
        surface.solve(doubt)
        rest = rest[np.isnan(surface.x[rest])]
        sample = random.permutation(rest)[:CHECKED]
        x = surface.read_off(sample)
        share = cost(x, sample) / budget[sample]
        missed = share > np.where(x < high, 1 - MARGIN / 2, 1.0)
        missed |= (share < 1 - 1.5 * MARGIN) & (x < high)
        if not missed.any():
            surface.x[rest] = surface.read_off(rest)
            over = rest[~(cost(surface.x[rest], rest) <= budget[rest])]
            surface.x[over] = np.nan
            surface.solve(over)
        else:
            surface.solve(sample[missed])
            tolerated *= 0.7
    return surface.x


class _Surface:
    """The answers solved so far, and interpolation between them."""

    def __init__(self, points: Floats, budget: Floats, high: float, search: Search) -> None:
        self.points, self.budget, self.search = points, budget, search
        self.end = np.log(high)
        self.x, self.slope = np.full((2, len(points)), np.nan)
        # log x at which the whole budget is used, also beyond `high`: this surface has no kink
        self.y = np.full(len(points), np.nan)
        self.solved: Ints = np.zeros(0, dtype=np.int64)
        self.tree = KDTree(points[:0])

    def solve(self, who: Ints) -> None:
        if not len(who):
            return
        guess, slope = None, None
        if len(self.solved) > STENCIL:
            slope = self.slope[self.solved[self._near(self.points[who], NEAR)]].mean(axis=1)
            guess = np.exp(self._y_at(self.points[who]))
        found = self.search(who, guess, slope)
        self.x[who], self.slope[who] = found.x, found.slope
        with np.errstate(divide="ignore"):
            left = np.log(self.budget[who] / found.cost) / found.slope
        self.y[who] = np.log(found.x) + np.minimum(left, 1.0)
        self.solved = np.append(self.solved, who)
        self.tree = KDTree(self.points[self.solved])

    def read_off(self, who: Ints) -> Floats:
        near = self.solved[self._near(self.points[who], NEAR)]
        y = self._y_at(self.points[who]) - MARGIN / self.slope[near].mean(axis=1)
        return np.asarray(np.exp(np.minimum(y, self.end)))

    def error_near(self, who: Ints) -> Floats:
        """Return (K,) the largest interpolation error, as a share of the budget, of solved clients nearby."""
        values = self.y[self.solved]
        others = self._near(self.tree.data, STENCIL + 1)[:, 1:]
        read = interpolate(self.tree.data, values, self.tree.data, others)
        error = np.minimum(read, self.end) - np.minimum(values, self.end)
        error = np.abs(error) * self.slope[self.solved]
        return np.asarray(error[self._near(self.points[who], NEAR)].max(axis=1))

    def _y_at(self, places: Floats) -> Floats:
        around = self._near(places, STENCIL)
        return interpolate(self.tree.data, self.y[self.solved], places, around)

    def _near(self, places: Floats, many: int) -> Ints:
        """Return (K, many) the nearest solved clients, as numbers among the solved."""
        return np.asarray(self.tree.query(places, np.arange(1, many + 1))[1], dtype=np.int64)


def interpolate(points: Floats, values: Floats, places: Floats, around: Ints) -> Floats:
    """Return (K,) values at the (K, D) places, interpolated from the (K, S) points `around` each.

    A polyharmonic spline: a sum of fifth powers of distances and a polynomial of degree two, with the place
    as origin and the distance to the farthest point as unit.
    """
    found = np.empty(len(places))
    for k in np.array_split(np.arange(len(places)), 1 + len(places) // AT_ONCE):
        away = points[around[k]] - places[k, None]  # (K, S, D)
        away /= np.sqrt((away**2).sum(axis=2).max(axis=1))[:, None, None]
        square = (away**2).sum(axis=2)
        between = square[:, :, None] + square[:, None] - 2 * away @ np.swapaxes(away, 1, 2)
        one, two = np.triu_indices(away.shape[2])
        tail = np.concatenate([np.ones_like(away[..., :1]), away, away[..., one] * away[..., two]], axis=2)
        size, more = tail.shape[1:]  # of (K, S, M)
        ridge = np.broadcast_to(-RIDGE * np.eye(more), (len(k), more, more))
        system = np.block([[-_fifth(np.maximum(between, 0.0)), tail], [np.swapaxes(tail, 1, 2), ridge]])
        known = np.concatenate([values[around[k]], np.zeros((len(k), more))], axis=1)
        weight = np.linalg.solve(system, known[..., None])[..., 0]
        found[k] = weight[:, size] - (weight[:, :size] * _fifth(square)).sum(axis=1)
    return found


def _fifth(square: Floats) -> Floats:
    return square * square * np.sqrt(square)
