"""Tight accountant by privacy loss distributions (PLD), vectorised over clients.

This module chooses grids and windows. That no epsilon is too small rests on `losses` alone: no choice made
here can understate an epsilon.
"""

import hashlib
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import erf

from discretion.accounting import gaussian, losses, reference, saddle
from discretion.accounting.losses import LossView
from discretion.accounting.saddle import Compositions, Look
from discretion.arrays import Floats, Ints, chunks, distinct
from discretion.errors import PlanError
from discretion.plan.steps import Steps

Bools = npt.NDArray[np.bool_]
Result = TypeVar("Result")

STEEPEST = 500.0  # largest range of a single step's loss: exp() must stay finite
SMALLEST = 1e-100  # smallest probability that is used; normal tails underflow at 1e-308
LARGEST = 1e9  # largest multiplier that is worth a grid
ALIKE = 1.25  # single steps whose grid lengths differ by a smaller factor are computed together
MISS = 0.05  # share of epsilon by which a first estimate may miss it
CLOSER = (1, 4, 16, 64, 256)  # refinements of the grid where the estimate missed
SETTLED = 3e-3  # share of epsilon: a bound that changes less under refinement is tight
LONGEST = 2.0**22  # points of the grid of a single step: several arrays of them are in memory at once
WIDEST = 16.0  # spacing of that grid, which may reach beyond STEEPEST by several points
AT_ONCE = 32  # clients whose windows are found together
TOGETHER = 2**16  # array elements computed at once
THREADS = min(os.cpu_count() or 1, 8)
REMEMBERED = 100_000  # answers kept
REFERRED = 1e6  # grid points up to which dp-accounting is asked, which takes seconds


@dataclass(frozen=True)
class Pld:
    """The epsilon of composed, sampled Gaussian steps, tight to about 1e-3.

    Guarantees:
        Never below the true epsilon in either direction of add/remove adjacency (see `losses`).
        Steps with rate 0, count 0 or an infinite multiplier cost nothing; multiplier 0 with a rate above
        0 costs infinity.
        Where every rate is 1, the exact epsilon of a Gaussian.
        Where a single step may lose more than STEEPEST (a multiplier below about 0.05), where a
        multiplier, rate or delta is beyond what doubles can hold on a grid, where a grid would have more
        than LONGEST points (as for billions of steps), or where finer and finer grids still changed the
        answer, `tight` says no. Then the answer is the least of three bounds: what was found,
        dp-accounting's (see `reference`) where that can be had, and the exact epsilon of the same steps
        without sampling.
        No client's epsilon depends on the clients computed beside it, or on the number of threads.
    """

    name = "PLD"

    def epsilon(self, steps: Steps, delta: Floats) -> Floats:
        """Return (N,) an upper bound on the epsilon at `delta` of all steps together."""
        return np.asarray(_answers(steps, delta)[0])

    def tight(self, steps: Steps, delta: Floats) -> Bools:
        """Return (N,) whether that epsilon is close to the true one; if not, it is only an upper bound."""
        return np.asarray(_answers(steps, delta)[1] == 1)


_known: dict[bytes, tuple[float, float]] = {}  # steps and delta: epsilon, and 1 where it is tight


def _answers(steps: Steps, delta: Floats) -> Floats:
    """Return (2, N): epsilon, and 1 where it is tight."""
    if not (sound := (delta >= 0) & (delta <= 1)).all():
        raise PlanError(f"invalid delta: found {delta[~sound][0]:g}, expected a number between 0 and 1")
    merged = np.concatenate([*_merged(steps), delta[None]])  # (3 S + 1, N)
    kinds, where = distinct(merged)
    columns = np.moveaxis(kinds[:-1].reshape(3, len(steps), kinds.shape[1]), 2, 0)  # (K, 3, S)
    lengths = (columns[:, 2] > 0).sum(axis=1)
    if len(_known) > REMEMBERED:
        _known.clear()
    names = [
        hashlib.blake2b(column[:, len(steps) - length :].tobytes() + end.tobytes()).digest()
        for column, length, end in zip(columns, lengths.tolist(), kinds[-1], strict=True)
    ]
    unknown = np.array([name not in _known for name in names], dtype=bool)
    # clients with the same number of different steps are computed together
    for length in np.unique(lengths[unknown]).tolist():
        who = np.flatnonzero(unknown & (lengths == length))
        rate, multiplier, count = np.moveaxis(columns[who, :, len(steps) - length :], 1, 0)
        found = _composed(Compositions(rate, multiplier, count, kinds[-1, who]))
        _known.update({names[k]: (e, t) for k, e, t in zip(who.tolist(), *found.tolist(), strict=True)})
    answers: Floats = np.array([_known[name] for name in names]).reshape(-1, 2)
    return answers.T[:, where]


def _merged(steps: Steps) -> Floats:
    """Return (3, S, N) rate, multiplier and count of the steps that cost anything, merged and sorted.

    Equal steps are merged. Unused rows come first, as zeros, so that the order of steps does not matter.
    """
    table = np.array([steps.rate, steps.multiplier, steps.count], dtype=np.float64)
    costs = (steps.rate > 0) & (steps.count > 0) & (steps.multiplier < math.inf)
    table = _in_order(np.where(costs, table, 0.0))
    last = np.ones(costs.shape, dtype=bool)  # whether a row is the last of equal steps
    last[:-1] = (table[:2, 1:] != table[:2, :-1]).any(axis=0)
    if last.all():
        return table
    so_far = np.cumsum(table[2], axis=0)
    before = np.maximum.accumulate(np.where(last, so_far, 0.0), axis=0)  # of the last of each kind
    table[2, 1:] = so_far[1:] - before[:-1]
    return _in_order(np.where(last, table, 0.0))


def _in_order(table: Floats) -> Floats:
    order = np.lexsort((table[1], table[0]), axis=0)
    return np.take_along_axis(table, order[None], axis=1)


def _composed(steps: Compositions) -> Floats:
    """Return (2, K): epsilon of steps that all cost something, and 1 where it is tight."""
    spent, tight = np.full(len(steps.delta), math.inf), np.zeros(len(steps.delta))
    # the total variation of a step, rate (2 Phi(1/2s) - 1), bounds the delta at epsilon 0 and adds up
    with np.errstate(divide="ignore", over="ignore"):
        distance = steps.rate * erf(math.sqrt(0.125) / steps.multiplier)
    up = 1 + (steps.rate.shape[1] + 16) * gaussian.UNIT  # more than sums over the steps are rounded down by
    never = (steps.count * distance).sum(axis=1) * up <= steps.delta
    spent[never] = 0.0
    unsampled = (steps.rate == 1).all(axis=1)
    tight[never | unsampled] = 1
    sampled = np.flatnonzero(tight == 0)
    sampled = sampled[~_beyond(steps.of(sampled))]
    if len(sampled):
        spent[sampled], tight[sampled] = _sampled(steps.of(sampled))
    plain = np.flatnonzero(((tight == 0) | (unsampled & ~never)) & (steps.delta > 0))
    with np.errstate(divide="ignore", over="ignore"):
        shifts = np.sqrt(steps.count[plain]) / steps.multiplier[plain]
        shift = np.sqrt((shifts**2).sum(axis=1))
    shift = np.where(shift > SMALLEST, shift, shifts.sum(axis=1)) * up  # squares may underflow, sums do not
    spent[plain] = np.minimum(spent[plain], gaussian.epsilon_of(shift, steps.delta[plain]))
    grid = np.clip(spent[plain] / reference.STEPS_PER_EPSILON, 1e-5, reference.COARSEST)
    with np.errstate(divide="ignore", over="ignore"):  # points of dp-accounting's grids of single steps
        points = (0.5 / steps.multiplier[plain] ** 2 + 10 / steps.multiplier[plain]).sum(axis=1) / grid
    for k in plain[(tight[plain] == 0) & (points <= REFERRED)]:
        rate, multiplier, count = (x[k, :, None] for x in (steps.rate, steps.multiplier, steps.count))
        one = Steps(rate, multiplier, count.astype(np.int64))
        with suppress(ArithmeticError, ValueError, PlanError):  # beyond dp-accounting's range, too
            spent[k] = np.fmin(spent[k], reference.Reference().epsilon(one, steps.delta[[k]])[0])
    return np.stack([spent, tight])


def _beyond(steps: Compositions) -> Bools:
    """Return (K,) whether a client's losses are beyond what a grid of doubles can hold."""
    low, high = steps.range()
    steep = ~((high - np.minimum(low, 0.0)).max(axis=1, initial=0.0) < STEEPEST)
    rare = (steps.tail[:, 0] < SMALLEST) | (steps.rate < SMALLEST).any(axis=1)
    return np.asarray(steep | rare | (steps.multiplier > LARGEST).any(axis=1))


def _sampled(steps: Compositions) -> Floats:
    """Return (2, K): the least of several bounds, and 1 where it is tight.

    Where a first estimate missed epsilon, finer grids follow. The error of connecting the dots is
    proportional to spacing², so once a grid four times finer changes little, little error is left.
    """
    looks = _looks(steps, np.arange(len(steps.delta)))
    found = _evaluate(steps, looks)
    spent: Floats = found.max(axis=1)
    missed = (np.abs(found - looks.aim) > MISS * spent[:, None]) & (found > 0.9 * spent[:, None])
    tight = np.isfinite(spent).astype(np.float64)
    todo = np.flatnonzero(missed.any(axis=1) & (tight == 1))
    for finer in CLOSER:
        if not len(todo):
            break
        looks = _looks(steps, todo, found, finer)
        found[todo] = _evaluate(steps.of(todo), looks)
        before, now = spent[todo], found[todo].max(axis=1)
        spent[todo] = np.minimum(before, now)
        tight[todo[np.isinf(now)]] = 0  # no longer grid is tried
        todo = todo[now < (1 - SETTLED) * before]
    tight[todo] = 0
    return np.stack([spent, tight])


def _looks(steps: Compositions, who: Ints, known: Floats | None = None, finer: int = 1) -> Look:
    def work(k: Ints) -> Look:
        return saddle.look(steps.of(k), None if known is None else known[k], finer)

    looks = _shared(work, chunks(who, AT_ONCE))
    return Look(*(np.concatenate([getattr(x, f.name) for x in looks]) for f in fields(Look)))


def _evaluate(steps: Compositions, looks: Look) -> Floats:
    """Return (K, 2) epsilon, at least 0, with the client removed and with it added.

    Clients with few steps and grids of similar size are computed together.
    """
    spacing = looks.spacing[:, None]
    low, high = steps.range()
    short = (((high - low) / spacing < LONGEST) & (spacing < WIDEST)).all(axis=1)
    if not short.all():  # no bound by grids that would take too much memory, or leave what exp() can hold
        found = np.full((len(steps.delta), 2), math.inf)
        if short.any():
            kept = Look(*(getattr(looks, f.name)[short] for f in fields(Look)))
            found[short] = _evaluate(steps.of(np.flatnonzero(short)), kept)
        return found
    first = np.floor(low / spacing).astype(np.int64)
    bins = np.ceil(high / spacing).astype(np.int64) - first + 1
    # A client's own grids decide the length of its arrays, so its epsilon does not depend on other clients.
    columns = np.maximum(np.ceil(ALIKE ** np.ceil(np.log(bins) / math.log(ALIKE))).astype(np.int64), bins)
    few = steps.rate.shape[1] < losses.MANY
    kinds, kind = np.unique(np.column_stack([looks.size, columns]), axis=0, return_inverse=True)
    jobs = []
    for number, most in enumerate(kinds.max(axis=1).tolist()):
        who = np.flatnonzero(kind.reshape(-1) == number)
        jobs += chunks(who, TOGETHER // most if few else 1)

    def work(k: Ints) -> Floats:
        parts = []
        for s in np.arange(len(columns[0]))[:, None] if few else _alike(columns[k[0]]):
            at = (*np.ix_(k, s), None)  # (K, S, 1)
            grid = spacing[k, :, None], first[at], bins[at], int(columns[k[0], s[0]])
            parts.append((losses.discretise(steps.rate[at], steps.multiplier[at], *grid), steps.count[at]))
        found = []
        for way in (0, 1):
            tilt, bottom, aim = (x[k, way, None] for x in (looks.tilt, looks.bottom, looks.aim))
            view = LossView(tilt, bottom, aim, spacing[k], int(looks.size[k[0]]))
            counted = [(both[way], count) for both, count in parts]
            found.append(losses.epsilon(counted, steps.delta[k, None], view))
        return np.concatenate(found, axis=1)

    found = np.empty((len(steps.delta), 2))
    for k, answer in zip(jobs, _shared(work, jobs), strict=True):
        found[k] = answer
    return np.maximum(found, 0.0)


def _alike(columns: Ints) -> list[Ints]:
    """Return groups of a client's steps that have grids of one size, each small enough to compute at once."""
    groups = (np.flatnonzero(columns == length) for length in np.unique(columns))
    return [chunk for group in groups for chunk in chunks(group, TOGETHER // int(columns[group[0]]))]


def _shared(work: Callable[[Ints], Result], jobs: list[Ints]) -> list[Result]:
    """Return the results of all jobs, each computed by itself: the number of threads does not matter."""
    if len(jobs) < 2:
        return [work(k) for k in jobs]
    with ThreadPoolExecutor(min(THREADS, len(jobs))) as pool:
        return list(pool.map(work, jobs))
