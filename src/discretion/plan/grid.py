"""Updates in whole steps of a grid, for sums that travel as integers and noise that is drawn exactly."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discretion import discrete
from discretion.discrete import Draw
from discretion.errors import InputError
from discretion.population import Floats, Ints

ROUNDING = 2.0**-40  # more than float64 can be wrong by in the length of an update


@dataclass(frozen=True)
class Grid:
    """Every coordinate of an update of `size` coordinates is a whole number of `step`s."""

    step: float
    size: int

    def __post_init__(self) -> None:
        if not (self.size >= 1 and self.size % 1 == 0):
            raise InputError(f"an update has a whole number of coordinates, at least 1; found {self.size}")
        _check_step(self.step)
        object.__setattr__(self, "size", int(self.size))

    def sensitivity(self, clip: Floats) -> Floats:
        """(N,) how far a client can move a sum on the grid: rounding makes that more than its clip."""
        return norm_bound(clip, self.step, self.size) * self.step


def _check_step(step: float) -> None:
    if not (0 < step < math.inf and math.frexp(step)[0] == 0.5):
        raise InputError(f"the step of a grid must be a power of two, so that scaling is exact; found {step}")


def norm_bound(clip: Floats, step: float, size: int, *, stochastic: bool = False) -> Floats:
    """(k,) how long, in steps, a clipped update of `size` coordinates is at most after `to_grid`.

    This, and not clip / step, is what a client can change a sum by and has to be charged for.
    """
    _check_step(step)
    with np.errstate(over="ignore"):
        steps, root = np.asarray(clip, dtype=np.float64) / step, math.sqrt(size)
    if not ((steps >= 0) & (steps + root < 2**30)).all():
        raise InputError(
            f"a clip must be between 0 and 2^30 steps of the grid; found clips up to {np.max(clip)} "
            f"and a step of {step}. Choose a longer step."
        )
    if stochastic:
        # Kairouz, Liu and Steinke 2021, with beta = exp(-1/2); never more than one step for each coordinate
        squared = np.minimum((steps + root) ** 2, steps**2 + size / 4 + steps + root / 2)
        bound = np.where(steps > 0, np.sqrt(squared), 0.0)
    else:
        # a coordinate moves by half a step at most, and one that does not become 0 at most doubles
        bound = np.minimum(steps + root / 2, 2 * steps)
    return bound * (1 + ROUNDING)


def multiplier(noise: float, clip: Floats, step: float, size: int, *, stochastic: bool = False) -> Floats:
    """(k,) noise, whose sigma on the grid is noise / step, over what each client can change the sum by."""
    bound = norm_bound(clip, step, size, stochastic=stochastic)
    return np.divide(noise / step, bound, out=np.full_like(bound, math.inf), where=bound > 0)


def to_grid(update: NDArray[np.floating[Any]], clip: Floats, step: float, draw: Draw | None = None) -> Ints:
    """(k, d) clipped updates in whole steps: the nearest or, given words, at random.

    At random a coordinate goes up or down so that its mean is right, and an update that came out too long
    is drawn again (conditional rounding, Kairouz, Liu and Steinke 2021), which happens to fewer than 2 in 3.

    Guarantees:
        No update is longer than `norm_bound` says: that is checked on the whole numbers.
    """
    limit = norm_bound(clip, step, update.shape[1], stochastic=draw is not None) * (1 - ROUNDING / 4)
    with np.errstate(over="ignore"):
        exact = update.astype(np.float64, order="C") / step  # in rows, whose sums are then pairwise
        long = _longer(exact, clip / step * (1 + ROUNDING / 4))
    if not long.any():
        whole = np.rint(exact).astype(np.int64) if draw is None else _at_random(exact, limit, draw)
        long = _longer(whole, limit)
    if long.any():
        raise InputError("an update is longer than its clip, or not finite: clip it before it goes to a grid")
    return whole


def _at_random(exact: Floats, limit: Floats, draw: Draw) -> Ints:
    below = np.floor(exact)
    whole = np.empty(exact.shape, dtype=np.int64)
    left = np.arange(len(exact))
    while len(left):
        share = discrete.uniform(whole[left].size, draw).reshape(len(left), -1)
        whole[left] = below[left] + (share < exact[left] - below[left])
        left = left[_longer(whole[left], limit[left])]
    return whole


def _longer(rows: Floats | Ints, limit: Floats) -> NDArray[np.bool_]:
    squares: Floats = np.square(rows).sum(axis=1)
    return ~(squares <= np.square(limit))  # what is not a number is longer
