"""What coins and noise look like if all is as planned: numbers of heads, noise by direction and by size."""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from discretion.arrays import Floats, Ints

MOST_RATES = 512  # different rates of coins for which the number of heads is looked at
EDGES = np.arange(-3.0, 3.25, 0.5)  # of the cells, in standard deviations from the mean
CELLS = len(EDGES) + 1
LIMITS = np.geomspace(0.02, 4.0, 24)  # below which noise is counted, in standard deviations
BELOW = 2 * ndtr(LIMITS) - 1  # chance of Gaussian noise to be below each


@dataclass(frozen=True, eq=False)
class Heads:
    """Number of heads of independent coins, in cells of half a standard deviation."""

    mean: float
    std: float
    chance: Floats  # (CELLS,) of each cell; all 0: there is nothing to look at

    @classmethod
    def of(cls, rate: Floats) -> "Heads":
        """Return the number of heads of coins with (N,) rates.

        There is nothing to look at where no coin can fall either way, or where rates are too many.
        """
        different, count = np.unique(rate, return_counts=True)
        mean, std = float(rate.sum()), float(np.sqrt((rate * (1 - rate)).sum()))
        if std == 0 or len(different) > MOST_RATES:
            return NOTHING
        turn = np.exp(-2j * np.pi * np.arange(len(rate) + 1) / (len(rate) + 1))
        spectrum = np.ones_like(turn)
        for value, times in zip(different, count.tolist(), strict=True):
            spectrum *= (1 + value * (turn - 1)) ** times
        chance = np.maximum(np.fft.ifft(spectrum).real, 0.0)
        found = cls(mean, std, np.ones(CELLS))
        return cls(mean, std, chance / chance.sum() @ found.cells(np.arange(len(chance))))

    def cells(self, heads: Ints | int) -> Floats:
        """Return (…, CELLS) ones in the cells of these numbers; zeros where there is nothing to look at."""
        cell = np.searchsorted(EDGES, (heads - self.mean) / self.std)
        return np.asarray(np.eye(CELLS)[cell] * self.chance.any())


NOTHING = Heads(0.0, 1.0, np.zeros(CELLS))


class Noise:
    """Noise vectors in planned standard deviations: squares and products, and how many numbers are small."""

    def __init__(self, size: int) -> None:
        self.squares = np.zeros((size, size))
        self.vectors = 0
        self.below = np.zeros(len(LIMITS), dtype=np.int64)  # numbers below each limit

    def add(self, noise: Floats, step: Floats | float = 0.0) -> None:
        """Add (k, size) noise vectors; where they are on a grid, with its (k, 1) `step`.

        Noise that was rounded to the grid was half a step longer at most: so long it is taken to be.
        """
        self.squares += noise.T @ noise
        self.vectors += len(noise)
        first = np.searchsorted(LIMITS, np.abs(noise) + step / 2, side="right").ravel()
        self.below += np.cumsum(np.bincount(first, minlength=len(LIMITS) + 1)[:-1])

    @property
    def numbers(self) -> int:
        return self.vectors * len(self.squares)

    def along(self, direction: Floats) -> float:
        """Return the sum of squares of the noise along a (size,) direction of length 1."""
        return float(direction @ self.squares @ direction)

    def quietest(self) -> Floats:
        """Return (size,) the direction of length 1 along which there was the least noise."""
        return np.asarray(np.linalg.eigh(self.squares)[1][:, 0])

    def crowded(self) -> int:
        """Return the number of the limit below which too many numbers are, by standard deviations."""
        return int(np.argmax((self.below - self.numbers * BELOW) / np.sqrt(BELOW * (1 - BELOW))))
