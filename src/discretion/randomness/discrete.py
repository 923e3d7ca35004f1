"""Exact Gaussian samplers from random words: floats, Gaussian rounded to integers, and discrete Gaussian.

One sampler serves all three. A number of standard deviation s·2^b is ± (k + x)·2^b with a step k = 0, 1, 2, …
and a fraction 0 <= x < 1; b is chosen so that s lies between 64 and 128 (or, where x is 0, below).

1. Draw k with probability proportional to exp(-k²/2s²), from a table of cumulative probabilities.
2. Draw x uniformly: with unlimited bits for a Gaussian number, with b bits for a discrete Gaussian one.
3. Accept the pair with probability exp(-(2kx + x²)/2s²), which is above 0.99 on average, so that an accepted
   pair has probability proportional to exp(-(k + x)²/2s²).
4. Draw the sign as a fair coin; draw again a discrete Gaussian number that came out as minus zero.

Steps 1 and 3 ask whether a uniform number of unlimited bits lies below a real number. The first 64 bits, or
63, nearly always decide. Where they do not, decimal arithmetic draws as many more bits as the decision takes.
Floating point decides step 3 only where it cannot err: where the coin is farther than `MARGIN` from the
acceptance probability, 500 times the error of float64 if exp is accurate to 4 units in the last place.

So each whole number has exactly its probability if the words are uniform: there is no statistical distance to
bound. Running time depends on the numbers drawn; an adversary that measures time is not covered.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from discretion.arrays import Floats, Ints
from discretion.errors import InputError
from discretion.randomness.streams import Words

Draw = Callable[[int], Words]  # returns this many fresh words, every bit a fair coin
Number = TypeVar("Number", np.float64, np.int64)

BATCH = 2**14  # numbers sampled at once: they stay in the processor's cache
MARGIN = 2.0**-40
SPLIT = 7  # a standard deviation is at most 2^SPLIT steps
LARGEST = 2.0**50  # standard deviation of a whole number


def gaussian(size: int, std: float, draw: Draw) -> Floats:
    """Return (size,) Gaussian numbers as floats, with 63 bits after the step, so that no tail is cut off."""
    if std != 0 and not np.finfo(np.float64).tiny <= std * 2.0**-SPLIT < math.inf:
        raise InputError(
            f"noise cannot be drawn: found standard deviation {std:g}, expected 0 or a number from 3e-306 on "
            "that float64 holds"
        )
    table = _table(2.0**SPLIT)

    def batch(count: int) -> Floats:
        step, fraction, negative = _pairs(count, table, 64, draw)
        distance = (step + _unit(fraction)) * (std * 2.0**-SPLIT)
        return np.where(negative, -distance, distance)

    return _fill(np.empty(size), batch)


def rounded_gaussian(size: int, sigma: float, draw: Draw) -> Ints:
    """Return (size,) Gaussian numbers of standard deviation `sigma`, each rounded to the nearest integer.

    Guarantees:
        y has exactly the probability that N(0, sigma²) lies between y - 1/2 and y + 1/2.
        Added to a sum of integers, this noise gives the output of the Gaussian mechanism, rounded afterwards,
        because z + round(n) = round(z + n). So everything that is proved for the Gaussian mechanism with
        noise multiplier sigma / sensitivity holds, by any accountant, and under Poisson sampling too.
        The variance is about sigma² + 1/12.
    """
    exponent = math.frexp(sigma)[1] - SPLIT

    def batch(count: int) -> Ints:
        step, fraction, negative = _pairs(count, _table(math.ldexp(sigma, -exponent)), 64, draw)
        if exponent >= 0:
            half_units = (fraction >> np.uint64(63 - exponent)).view(np.int64)
            whole = (step << exponent) + ((half_units + 1) >> 1)
        else:
            shift = min(-exponent, 62)
            whole = (step + (1 << (shift - 1))) >> shift
        return np.where(negative, -whole, whole)

    return _integers(size, sigma, batch)


def discrete_gaussian(size: int, sigma: float, draw: Draw) -> Ints:
    """Return (size,) integers y with probability proportional to exp(-y²/2sigma²).

    The discrete Gaussian of Canonne, Kamath and Steinke 2020.

    Guarantees:
        The probabilities are exact. Let a client change the sum of integers by at most d in L2 norm.
        Proved: d²/2sigma² concentrated privacy, as for the Gaussian (their theorem 4; coordinates add up).
        Proved: with a secret coin of probability q (Poisson sampling), the Rényi divergence of every integer
        order a >= 2 is at most that of the sampled Gaussian with noise multiplier sigma / d.
            Removing: let r be the ratio of the densities with and without the client. E[(1 - q + q r)^a]
            is a sum of E[r^l] with positive factors, and E[r^l] <= exp(l (l - 1) d²/2sigma²) by their
            theorem, where the Gaussian has equality.
            Adding is no worse: y -> change - y swaps the two densities. Taking y and its image together, it
            is enough that F(a) >= F(1 - a) for r > 1 and 0 < q < 1, where F(t) = A^t + r B^t,
            A = 1 - q + q r and B = 1 - q + q / r. As A B > 1, F(t) - F(1 - t) is a sum of four exponentials
            whose factors, in order of their rates, change sign three times. So it has at most three zeros
            (Descartes), which are 0, 1/2 and 1, and it is positive beyond 1, as its fastest exponential is.
        False: that the privacy loss distribution of the Gaussian dominates. Already the total variation
        distance under a change of 1 is larger: it is P(0) here, which exceeds the P(0) of
        `rounded_gaussian`. An accountant that uses privacy loss distributions of the Gaussian must not be
        used for this sampler with its own sigma; for `rounded_gaussian` it may.
        Proved in docs/integer-noise.md: with sqrt(sigma² - 64) in place of sigma it may, and for sums of
        several such numbers, too, if each has a sigma of at least 12 (`plan.grid.Grid.continuous`).
    """
    exponent = max(0, math.frexp(sigma)[1] - SPLIT)

    def batch(count: int) -> Ints:
        step, fraction, negative = _pairs(count, _table(math.ldexp(sigma, -exponent)), exponent, draw)
        whole = step
        if exponent > 0:
            whole = (step << exponent) + (fraction >> np.uint64(64 - exponent)).view(np.int64)
        return np.asarray(np.where(negative, -whole, whole)[~negative | (whole != 0)])

    return _integers(size, sigma, batch)


def uniform(size: int, draw: Draw) -> Floats:
    """Return (size,) uniform multiples of 2^-53 from 0 to below 1."""
    return (draw(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53


# the sampler


@dataclass(frozen=True, eq=False)
class _Table:
    """Table that turns a random word into a step."""

    scale: float  # standard deviation in steps
    floors: Words  # (K,) cumulative probabilities, rounded down to multiples of 2^-64
    guide: NDArray[np.int16]  # (2^16,) the step, by a word's first 16 bits; -1 where they do not decide


@lru_cache(maxsize=64)
def _table(scale: float) -> _Table:
    floors = np.array(_floors(scale, 64), dtype=np.uint64)
    first = np.arange(2**16, dtype=np.uint64) << np.uint64(48)
    last = first + np.uint64(2**48 - 1)
    before = np.searchsorted(floors, first, side="left")
    after = np.searchsorted(floors, last, side="right")
    return _Table(scale, floors, np.where(before == after, before, -1).astype(np.int16))


def _floors(scale: float, bits: int) -> list[int]:
    """Return floor(2^bits P(step <= k)) for k = 0, 1, … up to the first that is 2^bits - 1."""
    digits = bits // 3 + 20
    while True:
        with localcontext(Context(prec=digits)):
            ulp = Decimal(10) ** (1 - digits)
            rate = _decimal(1 / (2 * Fraction(scale) ** 2))
            cumulated, weight, k = [Decimal(1)], Decimal(1), 0
            while weight > ulp:
                k += 1
                weight = (-k * k * rate).exp()
                cumulated.append(cumulated[-1] + weight)
            # errors: 3 ulp at most in a weight, (k + 2)² ulp in a sum of k weights, (k + 1) ulp for all
            # weights left out, and both sums' errors in a quotient, as the total is at least 1
            error = 8 * (k + 2) ** 2 * ulp
            shares = [weight / cumulated[-1] for weight in cumulated]
            low = [int((share - error) * 2**bits) for share in shares]
            high = [min(int((share + error) * 2**bits), 2**bits - 1) for share in shares]
        end = bisect_right(low, 2**bits - 2) + 1
        if low[:end] == high[:end]:
            return low[:end]
        digits += 20


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def _pairs(count: int, table: _Table, bits: int, draw: Draw) -> tuple[Ints, Words, NDArray[np.bool_]]:
    """Return at most `count` accepted steps, fractions of `bits` bits (as 64-bit words) and signs."""
    words = draw((3 if bits else 2) * count).reshape(-1, count)
    step = _steps(words[0], table, draw)
    negative = (words[1] & np.uint64(1)).astype(np.bool_)
    if bits == 0:
        return step, words[1], negative
    fraction = words[2] & np.uint64(2**64 - 2 ** (64 - bits))
    x = _unit(fraction)
    chance = np.exp(x * (step + x / 2) * (-1 / table.scale**2))
    distance = _unit(words[1]) - chance
    kept = distance < 0
    for i in np.flatnonzero(np.abs(distance) <= MARGIN):
        coin = int(words[1, i]) >> 1
        kept[i] = _kept(table.scale, int(step[i]), int(fraction[i]), bits == 64, coin, draw)
    return step[kept], fraction[kept], negative[kept]


def _steps(words: Words, table: _Table, draw: Draw) -> Ints:
    step = table.guide.take((words >> np.uint64(48)).view(np.int64)).astype(np.int64)
    left = np.flatnonzero(step < 0)
    step[left] = np.searchsorted(table.floors, words[left], side="right")
    for i in left[table.floors[step[left] - 1] == words[left]]:
        step[i] = _step(table.scale, int(words[i]), draw)
    return step


def _step(scale: float, prefix: int, draw: Draw) -> int:
    """Return the step of a uniform number whose first 64 bits do not decide it, by drawing more bits."""
    bits = 64
    while True:
        floors = _floors(scale, bits)
        if prefix not in floors:
            return bisect_right(floors, prefix)
        prefix, bits = prefix << 64 | int(draw(1)[0]), bits + 64


def _kept(scale: float, step: int, fraction: int, endless: bool, coin: int, draw: Draw) -> bool:
    """Return whether a uniform number, given by its first 63 bits, is below exp(-(2kx + x²)/2s²).

    x is given by its first 64 bits; if x is `endless`, more bits follow.
    """
    coin_bits, bits = 63, 64
    while True:
        with localcontext(Context(prec=coin_bits // 3 + 20)) as context:
            error = 4 * Fraction(10) ** (1 - context.prec)
            ends = [Fraction(fraction, 2**bits), Fraction(fraction + endless, 2**bits)]
            most, least = (
                Fraction((-_decimal((2 * step + x) * x / (2 * Fraction(scale) ** 2))).exp()) for x in ends
            )
        if Fraction(coin + 1, 2**coin_bits) <= least - error:
            return True
        if Fraction(coin, 2**coin_bits) >= most + error:
            return False
        coin, coin_bits = coin << 64 | int(draw(1)[0]), coin_bits + 64
        if endless:
            fraction, bits = fraction << 64 | int(draw(1)[0]), bits + 64


def _unit(words: Words) -> Floats:
    """Return words as numbers from 0 to 1, to the precision of a float."""
    return (words >> np.uint64(1)).view(np.int64).astype(np.float64) * 2.0**-63


def _fill(out: NDArray[Number], batch: Callable[[int], NDArray[Number]]) -> NDArray[Number]:
    done = 0
    while done < len(out):
        drawn = batch(min(BATCH, len(out) - done))
        out[done : done + len(drawn)] = drawn
        done += len(drawn)
    return out


def _integers(size: int, sigma: float, batch: Callable[[int], Ints]) -> Ints:
    if not 0 <= sigma <= LARGEST:
        raise InputError(
            f"noise on a grid cannot be drawn: found standard deviation {sigma}, expected 0 to 2^50 steps"
        )
    out = np.zeros(size, dtype=np.int64)
    return out if sigma == 0 else _fill(out, batch)
