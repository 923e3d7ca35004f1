"""Saddle-point estimates of where a composed privacy loss decides delta; no proof rests on them."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from discretion.accounting.losses import MANY
from discretion.arrays import Floats, Ints

TOLERANCE, LOOSEST = 2e-4, 8e-4  # share of epsilon that the grid may add; more where it gets long
COMFORTABLE = 8192  # points of a composed grid
SIZES = np.sort(np.concatenate([2 ** np.arange(8, 21), 3 * 2 ** np.arange(7, 19)]))
SHARE = 1e-4  # of delta, that each end of the view may add to it
NOISE = 6e-15  # rounding of a transform, as `losses` bounds it
COARSE = np.geomspace(1e-6, 30.0, 22)  # tilts, per standard deviation of the composed loss
FINE = np.linspace(0.0, 1.0, 18)  # tilts between two of them
NODES = 128  # of the quadrature
KINDS = (16, 4)  # by multiplier, then by rate: kinds of steps that stand for more steps than that
CUT = 1e-5  # share of delta, that the ends of the grids of single steps may add to it
TINY = 1e-300


@dataclass(frozen=True)
class Compositions:
    """S different steps of each of K clients, each taken `count` times."""

    rate: Floats  # (K, S)
    multiplier: Floats  # (K, S)
    count: Floats  # (K, S)
    delta: Floats  # (K,)

    def of(self, who: Ints) -> "Compositions":
        return Compositions(self.rate[who], self.multiplier[who], self.count[who], self.delta[who])

    @property
    def tail(self) -> Floats:
        """(K, 1) probability that a single step's loss lies beyond either end of its grid."""
        return np.asarray(CUT * self.delta / self.count.sum(axis=1))[:, None]

    def releases(self) -> tuple[Floats, Floats]:
        """Return (K, S) lower and upper ends of the grid of a single step, in standard deviations."""
        reach = -ndtri(self.tail)
        return np.broadcast_to(-reach, self.rate.shape), reach + 1 / self.multiplier

    def range(self) -> tuple[Floats, Floats]:
        """Return (K, S) the same ends as losses above log(1 - rate), or above 0 where the rate is 1."""
        with np.errstate(all="ignore"):
            least = np.where(self.rate < 1, np.log1p(-self.rate), 0.0)
            low, high = (loss_of(self.rate, self.multiplier, x) - least for x in self.releases())
        return np.where(self.rate < 1, np.maximum(low, 0.0), low), high

    def alike(self) -> "Compositions":
        """Return at most 64 different steps of about the same cost, each standing for similar steps."""
        length = self.rate.shape[1]
        if length <= math.prod(KINDS):
            return self
        ends = np.arange(length) * KINDS[0] // length
        order = np.argsort(self.multiplier, axis=1, kind="stable")
        rate = np.take_along_axis(self.rate, order, axis=1)
        order = np.take_along_axis(order, np.argsort(ends + rate / 2, axis=1, kind="stable"), axis=1)
        rate, multiplier, count = (
            np.take_along_axis(x, order, axis=1) for x in (self.rate, self.multiplier, self.count)
        )
        firsts = np.arange(math.prod(KINDS)) * length // math.prod(KINDS)
        total, squares, logs = (
            np.add.reduceat(x, firsts, axis=1) for x in (count, count * rate**2, count * np.log(multiplier))
        )
        return Compositions(np.sqrt(squares / total), np.exp(logs / total), total, self.delta)


def loss_of(rate: Floats, multiplier: Floats, release: Floats) -> Floats:
    """Return the privacy loss of a release, which is given in standard deviations of the noise."""
    return np.logaddexp(np.log1p(-rate), np.log(rate) + release / multiplier - 0.5 / multiplier**2)


@dataclass(frozen=True)
class Look:
    """Window of the composed loss: [:, 0] with the client removed, [:, 1] with it added."""

    tilt: Floats  # (K, 2)
    aim: Floats  # (K, 2) where epsilon is expected
    bottom: Floats  # (K, 2)
    spacing: Floats  # (K,)
    size: Ints  # (K,)


def look(steps: Compositions, known: Floats | None = None, finer: int = 1) -> Look:
    """Return the window in which the composed loss decides delta.

    With K(t) = log E[exp(t loss)], delta(epsilon) is the integral of exp(K(t) - t epsilon) / (t (1 + t))
    along any vertical line with t > 0, and is decided where that is least on the real axis: at the saddle
    point (Alghamdi et al. 2023). `known` are (K, 2) epsilons from an earlier window, used in place of
    estimates; the grid is `finer` times finer than estimated to suffice.
    """
    quadrature = _Quadrature(steps.alike())
    total = steps.count.sum(axis=1)[:, None, None]
    log_delta = np.log(steps.delta)[:, None, None]
    aim = None if known is None else known[..., None]
    coarse = quadrature.cumulants(np.repeat((COARSE / quadrature.deviation)[:, None], 2, axis=1))
    at = np.maximum(coarse.strong_enough(log_delta, aim), 2)
    ends = np.log(_pick(coarse.tilt, at - 2)), np.log(_pick(coarse.tilt, at))
    fine = quadrature.cumulants(np.exp(ends[0] + (ends[1] - ends[0]) * FINE))
    at = np.maximum(fine.strong_enough(log_delta, aim), 1)
    if aim is None:
        before, after = _pick(fine.log_delta, at - 1), _pick(fine.log_delta, at)
        part = np.clip((before - log_delta) / np.maximum(before - after, 1e-9), 0.0, 1.0)
        aim = (1 - part) * _pick(fine.epsilon, at - 1) + part * _pick(fine.epsilon, at)
        aim = np.maximum(aim, 0.0)
    saddle, middle, deviation = (_pick(x, at) for x in (fine.tilt, fine.mean, np.sqrt(fine.variance)))

    # How fine the grid has to be.
    # Connecting the dots a and b adds to K at most count (t + t²) / 2 times the mean of
    # (loss - a) (b - loss): about spacing² / 6, and at most spacing times the mean of loss - least.
    allowed = TOLERANCE * np.maximum(aim, 0.1 * middle) + (aim.max(axis=1, keepdims=True) - aim) / 4
    spacing = np.maximum(
        np.sqrt(12 * allowed / (total * (saddle + 1))),
        2 * allowed / np.maximum((saddle + 1) * np.abs(middle - quadrature.least), TINY),
    ).min(axis=1, keepdims=True)

    # How long the view has to be, for each tilt.
    tilt = np.concatenate([coarse.tilt, fine.tilt], axis=2)  # (K, 2, T)
    cumulant = np.concatenate([coarse.cumulant, fine.cumulant], axis=2)
    cumulant += total * spacing**2 * (tilt + tilt**2) / 8  # what the grid adds, and more for coarse ones
    chernoff = cumulant - tilt * aim
    small = log_delta + math.log(SHARE) - np.minimum(0.0, np.log(10 / tilt))
    above = (chernoff - small) / tilt  # what lies this far above the aim is a small share of delta
    from_below = -small / tilt  # the same of what comes round the circle of this length from below
    # and of what comes round from above, down to somewhat below the aim; where that was wrong, to 0
    lowest = 0.0 if known is not None else aim - np.minimum(0.2 * aim, deviation)
    stronger = tilt[:, :, None, :] - tilt[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        from_above = ((cumulant - tilt * lowest)[:, :, None, :] - small[..., None]) / stronger
    from_above = np.where(stronger > 0, from_above, np.inf).min(axis=3)
    length = np.maximum(np.maximum(above + 0.5 * deviation, from_below), from_above)

    # The tilt with the shortest view, unless rounding would show.
    variance = np.maximum(np.concatenate([coarse.variance, fine.variance], axis=2), TINY)
    points = np.sqrt(3.5 * spacing * np.sqrt(variance))
    noise = chernoff - log_delta + np.log(NOISE / SHARE * total / (1 + tilt)) - np.log(tilt * points)
    best = (np.log(length) + np.logaddexp(0.0, noise)).argmin(axis=2)[..., None]
    tilt, above, length = _pick(tilt, best), _pick(above, best), _pick(length, best)
    longest = length.max(axis=1)  # (K, 1)
    need = longest / spacing[:, 0]
    comfortable = COMFORTABLE if steps.rate.shape[1] < MANY else 0
    need = np.clip(need * math.sqrt(TOLERANCE / LOOSEST), np.minimum(need, comfortable), need)
    need *= finer
    size = SIZES[np.minimum(np.searchsorted(SIZES, need), len(SIZES) - 1)]
    bottom = aim + np.maximum(above, 0.0) - length
    return Look(tilt[..., 0], aim[..., 0], bottom[..., 0], (longest / size)[:, 0], size[:, 0])


@dataclass(frozen=True)
class _Cumulants:
    """(K, 2, T) of the composed loss under each tilt."""

    tilt: Floats
    cumulant: Floats
    mean: Floats
    variance: Floats

    @property
    def epsilon(self) -> Floats:
        """Epsilon whose saddle point the tilt is."""
        return self.mean - 1 / self.tilt - 1 / (1 + self.tilt)

    @property
    def log_delta(self) -> Floats:
        """Logarithm of delta at `epsilon`."""
        curvature = self.variance + self.tilt**-2 + (1 + self.tilt) ** -2
        front = np.log(self.tilt) + np.log1p(self.tilt) + 0.5 * np.log(2 * np.pi * curvature)
        return self.cumulant - self.tilt * self.epsilon - front

    def strong_enough(self, log_delta: Floats, epsilon: Floats | None) -> Ints:
        """Return (K, 2, 1) the first tilt that reaches epsilon or, without one, brings delta low enough."""
        enough = self.epsilon >= (0.0 if epsilon is None else epsilon)
        if epsilon is None:
            enough &= self.log_delta <= log_delta
        enough[..., -1] = True
        return np.asarray(enough.argmax(axis=2))[..., None]


def _pick(table: Floats, at: Ints) -> Floats:
    return np.take_along_axis(table, at, axis=2)


class _Quadrature:
    """Quadrature over the releases of each step: their losses and probabilities."""

    def __init__(self, steps: Compositions) -> None:
        low, high = (end[:, :, None] for end in steps.releases())
        release = low + (high - low) * np.linspace(0.0, 1.0, NODES)  # (K, S, X)
        with np.errstate(divide="ignore"):
            removed = loss_of(steps.rate[:, :, None], steps.multiplier[:, :, None], release)
            least = (steps.count * np.log1p(-steps.rate)).sum(axis=1)
        without = -(release**2) / 2
        without -= np.log(np.exp(without).sum(axis=2, keepdims=True))
        within = np.exp(without + removed)
        spread = (within * removed**2).sum(axis=2) - (within * removed).sum(axis=2) ** 2
        self.deviation = np.sqrt(np.maximum((steps.count * spread).sum(axis=1), TINY))[:, None]
        self.loss = np.stack([removed, -removed], axis=1)  # (K, 2, S, X)
        self.log_weight = np.stack([without + removed, without], axis=1)
        self.least = np.stack([least, -least], axis=1)[..., None]  # (K, 2, 1)
        self.count = steps.count

    def cumulants(self, tilt: Floats) -> _Cumulants:
        total = [np.zeros(tilt.shape) for _ in range(3)]
        for s in range(self.loss.shape[2]):
            loss, count = self.loss[:, :, s], self.count[:, s, None, None]
            each = tilt[..., None] * loss[:, :, None] + self.log_weight[:, :, None, s]
            most = each.max(axis=3, keepdims=True)
            np.exp(each - most, out=each)
            moment = each @ np.stack([np.ones_like(loss), loss, loss**2], axis=3)  # (K, 2, T, 3)
            mean = moment[..., 1] / moment[..., 0]
            total[0] += count * (np.log(moment[..., 0]) + most[..., 0])
            total[1] += count * mean
            total[2] += count * np.maximum(moment[..., 2] / moment[..., 0] - mean**2, 0.0)
        return _Cumulants(tilt, *total)
