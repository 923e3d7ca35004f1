"""Rounding of a round's sums: how far it can move a sum besides what one client adds.

Clipping spares a millionth of each clip (`training.clip.ROUNDING`) for rounding, 6e-7 of it for sums. A sum
of n updates in float64, one after the other, is off by less than n 2^-53 times the sum of their lengths; so
is the sum without one of them. Where clips in a sum are far apart, that is more than the shortest clip
spares: then it is charged for. Beside clips that are much longer still, or infinite, even the noise would be
lost by rounding, and the sum would show who is in it.
"""

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.plan.phase import Phase

SPARED = 6e-7  # share of a clip
UNLIKELY = (12.0, 100.0)  # standard deviations, and updates more: fewer coins than that come up but for 1e-30


def rounding(phase: Phase, merged: bool) -> Floats:
    """Return (N,) how far rounding can move the sum with each client's updates; 0 where its clip spares that.

    `merged`: pools of single clients are added up by their weights, into one sum. Then a client's entry is
    divided by its weight, as its update is multiplied by it.
    """
    taking = phase.expected > 0
    weight = np.abs(phase.weight[phase.pool]) if merged else np.ones(len(phase.clip))
    row = np.zeros_like(phase.pool) if merged else phase.pool
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        reach = np.where(taking & (weight > 0), weight * phase.clip, 0.0)
        off = 2.0**-52 * _most(phase, row, taking.astype(np.float64)) * _most(phase, row, reach)
        off = np.where(reach > 0, off[row] / weight, 0.0)
        return np.where(off > SPARED * phase.clip, off, 0.0)


def _most(phase: Phase, row: Ints, each: Floats) -> Floats:
    """Return what (N,) numbers of clients add up to in each sum of a round, but for a chance below 1e-30.

    By Bernstein's inequality, for sums of independent numbers that are not above the largest.
    """
    sums = int(row.max(initial=0)) + 1
    times = np.where(phase.expected > 0, np.maximum(phase.expected, 1.0), 0.0)  # if all coins come up
    largest = np.zeros(sums)
    np.maximum.at(largest, row, each)
    all_, mean = (np.bincount(row, np.where(each > 0, each * n, 0.0), sums) for n in (times, phase.expected))
    deviations, more = UNLIKELY
    return np.fmin(all_, mean + largest * (deviations * np.sqrt(mean / largest) + more))
