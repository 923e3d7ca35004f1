"""Where the noise of a release comes from, what a certificate says of it, and updates in whole numbers."""

import math
import os
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from discretion import discrete
from discretion.discrete import Draw
from discretion.errors import InputError
from discretion.population import Floats, Ints
from discretion.streams import Words

Shape = Literal["floating", "rounded", "discrete"]

SHAPES: dict[Shape, str] = {
    "floating": "Gaussian in floating point; what the last bits of a float tell (Mironov 2012) is not proved",
    "rounded": "Gaussian rounded to a grid, drawn exactly; every accountant of the Gaussian holds",
    "discrete": "discrete Gaussian on a grid, drawn exactly; Rényi accounting of whole orders holds",
}
ROUNDING = 2.0**-40  # more than float64 can be wrong by in the length of an update


class Source(Protocol):
    """Gives the noise of one release, and says in the certificate what it is worth."""

    @property
    def statement(self) -> str: ...

    def words(self, count: int) -> Words:
        """So many words that were not given before, every bit a fair coin."""

    def uniform(self, size: int) -> Floats:
        """Numbers from 0 to below 1, for coins."""

    def gaussian(self, size: int, std: float) -> Floats:
        """Normal numbers in floating point."""


@dataclass(frozen=True)
class Seeded:
    """Noise for simulation, the same again for the same generator: one of `streams.run_stream`."""

    rng: np.random.Generator

    @property
    def statement(self) -> str:
        name = type(self.rng.bit_generator).__name__
        return f"simulation: {name} from a seed; whoever knows the seed can take the noise off"

    def words(self, count: int) -> Words:
        return self.rng.integers(2**64, size=count, dtype=np.uint64)

    def uniform(self, size: int) -> Floats:
        return self.rng.random(size)

    def gaussian(self, size: int, std: float) -> Floats:
        return std * self.rng.standard_normal(size)


@dataclass(frozen=True)
class Cryptographic:
    """Noise for deployment.

    Guarantees:
        Nothing is kept: each call for words takes a new key of 256 bits from the operating system, and there
        is no seed to give, to store or to repeat.
        Noise differs from noise of truly random words by nothing that can be computed without breaking
        ChaCha20, so the guarantee holds against whoever cannot. Python does not wipe memory: who can read
        this process's memory is not covered, but such a reader has the updates anyway.
    """

    @property
    def statement(self) -> str:
        return "deployment: ChaCha20, keyed anew by the operating system for every block; no key is kept"

    def words(self, count: int) -> Words:
        return keystream(os.urandom(32), bytes(16), count)

    def uniform(self, size: int) -> Floats:
        return discrete.uniform(size, self.words)

    def gaussian(self, size: int, std: float) -> Floats:
        return discrete.gaussian(size, std, self.words)


def keystream(key: bytes, start: bytes, count: int) -> Words:
    """`count` words of ChaCha20 (RFC 8439); `start` is the block's number (4 bytes) and the nonce (12)."""
    if count > 2**32:
        raise InputError(f"at most 2^32 words come from one key, so that none comes twice; found {count}")
    zeros = bytes(8 * count)
    return np.frombuffer(Cipher(ChaCha20(key, start), mode=None).encryptor().update(zeros), dtype="<u8")


# updates in whole steps of a grid


def norm_bound(clip: Floats, step: float, size: int, *, stochastic: bool = False) -> Floats:
    """(k,) how long, in steps, a clipped update of `size` coordinates is at most after `to_grid`.

    This, and not clip / step, is what a client can change a sum by and has to be charged for.
    """
    if not (0 < step < math.inf and math.frexp(step)[0] == 0.5):
        raise InputError(f"the step of a grid must be a power of two, so that scaling is exact; found {step}")
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
