"""Answers for very many different clients: some are solved, the others are read off between them."""

from collections.abc import Callable

import numpy as np
from scipy.spatial import KDTree

from discretion.accounting.search import Cost, Found
from discretion.population import Floats, Ints

MARGIN = 3e-3  # share of its budget that a client leaves unspent if its answer is read off
TOLERATED = MARGIN / 4  # error that solved clients may have when read off from the others
FIRST = 600  # clients that are solved to begin with
WAYS = 200  # directions in which the outermost client is solved
FEW = 0.01  # of the clients: if no more are in doubt, they are solved without ado
STENCIL = 50  # solved clients that an answer is read off from
NEAR = 8  # solved clients whose errors put a client in doubt
CHECKED = 500  # answers that the accountant looks at
AT_ONCE = 100  # clients
RIDGE = 1e-10  # keeps a stencil solvable that lies in a plane

Search = Callable[[Ints, Floats | None, Floats | None], Found]  # for clients, from guesses and slopes


def answers(points: Floats, budget: Floats, high: float, search: Search, cost: Cost) -> Floats:
    """(K,) about the largest x, at most `high`, whose cost is within the budget, for all points (K, D).

    A random part of the clients, and the outermost, are solved. Each of them is also read off from its
    solved neighbours, and where that misses by more than a quarter of the margin more clients are solved.
    Everybody else gets what is read off for a budget less the margin. The accountant then looks at a
    random sample of those: while one of them is off by half the margin, more are solved, and less is
    tolerated. In the end it looks at everybody, and whoever is over its budget is solved.

    Guarantees:
        Everybody keeps its budget, by the accountant.
        The same clients get the same answers, in whichever order they come.
    """
    random = np.random.default_rng(0)
    order = random.permutation(len(points))
    surface = _Surface(points, budget, high, search)
    # with the outermost clients in many directions, so that hardly anything is read off beyond them
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
    """What is solved so far, and what can be read off from it."""

    def __init__(self, points: Floats, budget: Floats, high: float, search: Search) -> None:
        self.points, self.budget, self.search = points, budget, search
        self.end = np.log(high)
        self.x, self.slope = np.full((2, len(points)), np.nan)
        # log x where the whole budget is used, past the end too: there the answers have no kink
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
        """(K,) the largest error, as a share of the budget, of the solved clients around each of these."""
        values = self.y[self.solved]
        others = self._near(self.tree.data, STENCIL + 1)[:, 1:]
        read = interpolate(self.tree.data, values, self.tree.data, others)
        error = np.minimum(read, self.end) - np.minimum(values, self.end)
        error = np.abs(error) * self.slope[self.solved]
        worst: Floats = error[self._near(self.points[who], NEAR)].max(axis=1)
        return worst

    def _y_at(self, places: Floats) -> Floats:
        around = self._near(places, STENCIL)
        return interpolate(self.tree.data, self.y[self.solved], places, around)

    def _near(self, places: Floats, many: int) -> Ints:
        """(K, many) the nearest solved clients, by their place among the solved."""
        return np.asarray(self.tree.query(places, np.arange(1, many + 1))[1], dtype=np.int64)


def interpolate(points: Floats, values: Floats, places: Floats, around: Ints) -> Floats:
    """(K,) the value at each of the places (K, D), from those of the points `around` it (K, S).

    A sum of fifth powers of distances and a polynomial of degree two (a polyharmonic spline), with the
    place as origin and the farthest point as unit.
    """
    found = np.empty(len(places))
    for k in np.array_split(np.arange(len(places)), 1 + len(places) // AT_ONCE):
        away = points[around[k]] - places[k, None]  # (K, S, D)
        away /= np.sqrt((away**2).sum(axis=2).max(axis=1))[:, None, None]
        square = (away**2).sum(axis=2)
        between = square[:, :, None] + square[:, None] - 2 * away @ np.swapaxes(away, 1, 2)
        one, two = np.triu_indices(away.shape[2])
        tail = np.concatenate(
            [np.ones_like(away[..., :1]), away, away[..., one] * away[..., two]], axis=2
        )  # (K, S, M)
        size, more = tail.shape[1:]
        system = np.empty((len(k), size + more, size + more))
        system[:, :size, :size] = -_fifth(np.maximum(between, 0.0))
        system[:, :size, size:] = tail
        system[:, size:, :size] = np.swapaxes(tail, 1, 2)
        system[:, size:, size:] = -RIDGE * np.eye(more)
        known = np.concatenate([values[around[k]], np.zeros((len(k), more))], axis=1)
        weight = np.linalg.solve(system, known[..., None])[..., 0]
        found[k] = weight[:, size] - (weight[:, :size] * _fifth(square)).sum(axis=1)
    return found


def _fifth(square: Floats) -> Floats:
    return square * square * np.sqrt(square)
