"""Tight accounting by privacy loss distributions: what to compute, and where to look.

That an epsilon is never too small rests on `losses` alone: nothing chosen here can make it so.
"""

import math
from dataclasses import fields

import numpy as np
from scipy.special import erf

from discretion.accounting import gaussian, losses, saddle
from discretion.accounting.losses import View
from discretion.accounting.saddle import Compositions, Look
from discretion.errors import PlanError
from discretion.population import Floats, Ints
from discretion.steps import Steps

Step = tuple[float, float, int]  # rate, multiplier, count
Problem = tuple[tuple[Step, ...], float]  # steps and delta

STEEPEST = 500.0  # largest range of a single step's loss; exp() has to stay finite
SMALLEST = 1e-100  # probability that is worked with; tails of the normal distribution end at 1e-308
LARGEST = 1e9  # multiplier that is worth a grid
ALIKE = 1.25  # grids of single steps that differ by less are worked on together
MISS = 0.05  # share of epsilon by which a first look may be beside it
CLOSER = (1, 4, 16, 64)  # times finer grids for those
SETTLED = 3e-3  # share of epsilon; a bound that changes less is tight
AT_ONCE = 32  # clients whose looks are found together
TOGETHER = 2**17  # array elements that are worked on at once
REMEMBERED = 100_000


class Pld:
    """The epsilon of composed, sampled Gaussian steps, tight to about 1e-3.

    Guarantees:
        Never below the true epsilon in either direction of add/remove adjacency (see `losses`).
        Steps with rate 0, count 0 or an infinite multiplier cost nothing; multiplier 0 with a rate above
        0 costs infinity.
        Where every rate is 1, the exact epsilon of a Gaussian.
        Where a single step may lose more than STEEPEST (a multiplier below about 0.05), or a multiplier,
        rate or delta is beyond what doubles can hold on a grid, the exact epsilon of the same steps
        without sampling, which is never less.
    """

    name = "PLD"

    def epsilon(self, steps: Steps, delta: Floats) -> Floats:
        """(N,) an upper bound on the epsilon at `delta` of all steps together."""
        _check(steps, delta)
        columns = np.concatenate([steps.rate, steps.multiplier, steps.count, delta[None]])
        distinct, where = np.unique(columns, axis=1, return_inverse=True)
        problems: list[Problem] = [
            (_merged(*np.split(column[:-1], 3)), float(column[-1])) for column in distinct.T
        ]
        if len(_known) > REMEMBERED:
            _known.clear()
        unknown = list({problem for problem in problems if problem not in _known})
        _known.update(zip(unknown, _solve(unknown).tolist(), strict=True))
        return np.array([_known[problem] for problem in problems])[where.reshape(-1)]


_known: dict[Problem, float] = {}


def _check(steps: Steps, delta: Floats) -> None:
    rules = {
        "a rate lies between 0 and 1": (steps.rate >= 0) & (steps.rate <= 1),
        "a multiplier is at least 0": steps.multiplier >= 0,
        "a count is at least 0": steps.count >= 0,
        "a delta lies between 0 and 1": (delta >= 0) & (delta <= 1),
    }
    broken = [rule for rule, holds in rules.items() if not holds.all()]
    if broken:
        raise PlanError("these steps cannot be accounted for: " + "; ".join(broken))


def _merged(rate: Floats, multiplier: Floats, count: Floats) -> tuple[Step, ...]:
    """The steps that cost anything, equal ones together: their order does not matter."""
    together: dict[tuple[float, float], int] = {}
    for q, s, c in zip(rate.tolist(), multiplier.tolist(), count.tolist(), strict=True):
        if q > 0 and c > 0 and s < math.inf:
            together[q, s] = together.get((q, s), 0) + int(c)
    return tuple(sorted((q, s, c) for (q, s), c in together.items()))


def _solve(problems: list[Problem]) -> Floats:
    """Problems with equally many different steps are computed together."""
    spent = np.zeros(len(problems))
    lengths = np.array([len(steps) for steps, _ in problems], dtype=np.int64)
    for length in set(lengths[lengths > 0].tolist()):
        who = np.flatnonzero(lengths == length)
        rate, multiplier, count = np.moveaxis(np.array([problems[i][0] for i in who], float), 2, 0)
        delta = np.array([problems[i][1] for i in who])
        spent[who] = _composed(Compositions(rate, multiplier, count, delta))
    return spent


def _composed(steps: Compositions) -> Floats:
    """(K,) epsilon of steps that all cost something."""
    spent = np.full(len(steps.delta), math.inf)
    low, high = steps.range()
    steep = ~((high - np.minimum(low, 0.0)).max(axis=1) < STEEPEST)
    extreme = (steps.tail[:, 0] < SMALLEST) | (steps.rate < SMALLEST).any(axis=1)
    extreme |= (steps.multiplier > LARGEST).any(axis=1)
    # the total variation of a step, rate (2 Phi(1/2s) - 1), bounds the delta at epsilon 0 and adds up
    with np.errstate(divide="ignore", over="ignore"):
        distance = steps.rate * erf(math.sqrt(0.125) / steps.multiplier)
    never = (steps.count * distance).sum(axis=1) <= steps.delta
    spent[never] = 0.0
    sampled = np.flatnonzero(~(never | steep | extreme | (steps.rate == 1).all(axis=1)))
    if len(sampled):
        spent[sampled] = _sampled(steps.of(sampled))
    plain = np.isinf(spent) & (steps.delta > 0)
    if plain.any():
        with np.errstate(divide="ignore", over="ignore"):
            shifts = np.sqrt(steps.count[plain]) / steps.multiplier[plain]
            shift = np.sqrt((shifts**2).sum(axis=1))
        shift = np.where(shift > SMALLEST, shift, shifts.sum(axis=1))  # squares may vanish, sums do not
        spent[plain] = gaussian.epsilon_of(shift, steps.delta[plain])
    return spent


def _sampled(steps: Compositions) -> Floats:
    """(K,) the least of several bounds: where a first look was beside epsilon, closer ones follow.

    Connecting the dots errs in proportion to spacing², so once a grid four times finer changes little,
    little is left.
    """
    everyone = np.arange(len(steps.delta))
    looks = _joined([saddle.look(steps.of(k)) for k in _chunks(everyone, AT_ONCE)])
    found = _evaluate(steps, looks)
    spent: Floats = found.max(axis=1)
    missed = (np.abs(found - looks.aim) > MISS * spent[:, None]) & (found > 0.9 * spent[:, None])
    todo = np.flatnonzero(missed.any(axis=1) & np.isfinite(spent))
    for finer in CLOSER:
        if not len(todo):
            break
        looks = _joined([saddle.look(steps.of(k), found[k], finer) for k in _chunks(todo, AT_ONCE)])
        found[todo] = _evaluate(steps.of(todo), looks)
        before, now = spent[todo], found[todo].max(axis=1)
        spent[todo] = np.minimum(before, now)
        todo = todo[now < (1 - SETTLED) * before]
    return spent


def _evaluate(steps: Compositions, looks: Look) -> Floats:
    """(K, 2) epsilon, at least 0, when the client is removed and when it is added.

    Clients with grids of like size are computed together.
    """
    spacing = looks.spacing[:, None]
    low, high = steps.range()
    first = np.floor(low / spacing).astype(np.int64)
    bins = np.ceil(high / spacing).astype(np.int64) - first + 1
    # A client's arrays are as long as its own grids ask for, so its epsilon does not depend on the others.
    columns = np.ceil(ALIKE ** np.ceil(np.log(bins) / math.log(ALIKE))).astype(np.int64)
    columns = np.maximum(columns, bins)
    kinds, kind = np.unique(np.column_stack([looks.size, columns]), axis=0, return_inverse=True)
    found = np.empty((len(steps.delta), 2))
    for number, (size, *lengths) in enumerate(kinds.tolist()):
        who = np.flatnonzero(kind.reshape(-1) == number)
        for k in _chunks(who, TOGETHER // max(size, *lengths)):
            parts = [
                losses.discretise(
                    steps.rate[k, s, None],
                    steps.multiplier[k, s, None],
                    spacing[k],
                    first[k, s, None],
                    bins[k, s, None],
                    length,
                )
                for s, length in enumerate(lengths)
            ]
            for way in (0, 1):
                view = View(
                    looks.tilt[k, way, None],
                    looks.bottom[k, way, None],
                    looks.aim[k, way, None],
                    spacing[k],
                    size,
                )
                counted = [(part[way], steps.count[k, s, None]) for s, part in enumerate(parts)]
                found[k, way] = losses.epsilon(counted, steps.delta[k, None], view)[:, 0]
    return np.maximum(found, 0.0)


def _chunks(who: Ints, length: int) -> list[Ints]:
    return np.array_split(who, math.ceil(len(who) / max(length, 1)))


def _joined(looks: list[Look]) -> Look:
    return Look(*(np.concatenate([getattr(x, f.name) for x in looks]) for f in fields(Look)))
