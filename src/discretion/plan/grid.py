"""Integer grid for updates: sums as whole numbers of steps, with noise that is sampled exactly."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discretion.arrays import Floats, Ints
from discretion.errors import InputError
from discretion.plan.phase import Phase, Rule
from discretion.randomness.discrete import LARGEST

MOST_SIZE = 2**53  # the largest whole number up to which floats have all
ROUNDING = 2.0**-40  # more than float64 can be wrong by in the length of an update
MODULUS = 2**32  # sums of shares are taken modulo this, in steps, and read as -2^31 to 2^31 - 1
SMOOTHING = 8.0  # steps: standard deviation of the rounding that makes integer noise of Gaussian noise
LEAST_SHARE = 12.0  # steps: standard deviation of a share; sums of smaller ones are no discrete Gaussian
UNLIKELY = 2.0**64 * 10**6  # a sum leaves its reach in one round in so many, at most


@dataclass(frozen=True)
class Grid:
    """Every coordinate of an update of `size` coordinates is a whole number of `step`s."""

    step: float
    size: int

    def __post_init__(self) -> None:
        if not (1 <= self.size <= MOST_SIZE and self.size % 1 == 0):
            raise InputError(
                f"invalid grid: found size {self.size}, expected a whole number of coordinates from 1 to 2^53"
            )
        if not (0 < self.step < math.inf and math.frexp(self.step)[0] == 0.5):
            raise InputError(
                f"invalid grid: found step {self.step}, expected a power of two, so that scaling is exact"
            )
        object.__setattr__(self, "size", int(self.size))

    @property
    def most_noise(self) -> float:
        """Largest standard deviation of noise that can be drawn on the grid."""
        return LARGEST * self.step

    def continuous(self, noise: Floats) -> Floats:
        """Return the standard deviation of Gaussian noise that sums of integer shares count as.

        `noise` is that of the sum, where every share is a discrete Gaussian of at least LEAST_SHARE steps.

        Guarantees:
            Adding the sum of the shares is the Gaussian mechanism with the noise returned, rounded at random,
            up to a factor of 1 ± 1e-500 on every probability: proved in docs/integer-noise.md. So what is
            proved of the Gaussian mechanism holds, by any accountant, under sampling and adaptive choices.
        """
        return self.step * np.sqrt(np.maximum(np.square(noise / self.step) - SMOOTHING**2, 0.0))

    def made_up(self, noise: Floats, pool: Ints, shares: Ints) -> Floats:
        """Return (P,) noise of pools whose (N,) numbers of shares count as `noise`, whoever knows the others.

        Each share gets what any sum of shares counts less than it is; a pool without noise gets none.
        """
        most = np.zeros(len(noise))
        np.maximum.at(most, pool, shares)
        with np.errstate(over="ignore"):
            steps = np.sqrt(np.square(noise / self.step) + SMOOTHING**2 * most) * (1 + ROUNDING)
        return np.where(noise > 0, self.step * steps, 0.0)

    def rules_of_shares(self, phase: Phase, own: Floats) -> list[Rule]:
        """Return what must hold of a phase whose clients add shares of (N,) standard deviations `own`."""
        taking = phase.expected > 0
        with np.errstate(over="ignore"):
            steps = own / self.step
            reach = self.reach(phase.clip[taking], steps[taking], phase.pool[taking])
        return [
            (
                f"shares of the noise on a grid must be 0 or at least {LEAST_SHARE:g} steps",
                (steps == 0) | (steps >= LEAST_SHARE),
                steps,
            ),
            (
                "sums of shares on a grid must stay within 2^31 steps, with all clips and noise: choose a "
                "longer step",
                reach < MODULUS // 2,
                reach,
            ),
        ]

    def reach(self, clip: Floats, own: Floats, pool: Ints) -> Floats:
        """Return (P,) how many steps each pool's sum can lie from 0, but for a chance of 1 / UNLIKELY.

        (N,) `own` is the standard deviation, in steps, of the share that each client adds to its update. A
        coordinate of a rounded update is within its clip and half a step; noise is no longer than a Gaussian.
        """
        pools = int(pool.max(initial=0)) + 1
        deviations = math.sqrt(2 * math.log(2 * UNLIKELY * pools * self.size))
        updates, noise = (np.bincount(pool, x, pools) for x in (clip / self.step + 0.5, np.square(own)))
        return np.asarray(updates + deviations * np.sqrt(noise))

    def lifted(self, whole: Ints) -> Ints:
        """Return sums of steps as they are read modulo MODULUS: from -2^31 to 2^31 - 1."""
        return (whole + MODULUS // 2) % MODULUS - MODULUS // 2

    def sensitivity(self, clip: Floats) -> Floats:
        """Return (N,) how far a client can move a sum on the grid: its clip, and what rounding adds."""
        return self.norm_bound(clip) * self.step

    def norm_bound(self, clip: Floats) -> Floats:
        """Return (k,) the largest L2 norm, in steps, of a clipped update after `rounded`.

        This norm, and not clip / step, is the sensitivity that a client has to be charged for.
        """
        with np.errstate(over="ignore"):
            steps, root = np.asarray(clip, dtype=np.float64) / self.step, math.sqrt(self.size)
        if not ((steps >= 0) & (steps + root < 2**30)).all():
            raise InputError(
                f"clips do not fit the grid: found clips up to {np.max(clip)} on steps of {self.step}, "
                "expected clips between 0 and 2^30 steps. Choose a longer step."
            )
        # rounding moves a coordinate by half a step at most, and at most doubles one that does not become 0
        return np.minimum(steps + root / 2, 2 * steps) * (1 + ROUNDING)

    def rounded(self, update: NDArray[np.floating[Any]], clip: Floats) -> Ints:
        """Return (k, d) clipped updates in whole steps, each coordinate rounded to the nearest.

        Guarantees:
            No update is longer than `norm_bound`: that is checked on the whole numbers.
        """
        limit = self.norm_bound(clip) * (1 - ROUNDING / 4)
        with np.errstate(over="ignore"):
            exact = update.astype(np.float64, order="C") / self.step  # by rows: norms are summed pairwise
            long = _longer(exact, clip / self.step * (1 + ROUNDING / 4))
        if not long.any():
            whole = np.rint(exact).astype(np.int64)
            long = _longer(whole, limit)
        if long.any():
            raise InputError(
                f"found {int(long.sum())} of {len(update)} updates longer than their clips or not finite: "
                "clip them before they go to a grid"
            )
        return whole


def _longer(rows: Floats | Ints, limit: Floats) -> NDArray[np.bool_]:
    squares: Floats = np.square(rows).sum(axis=1)
    return ~(squares <= np.square(limit))  # NaN counts as longer
