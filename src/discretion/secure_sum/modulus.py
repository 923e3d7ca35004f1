"""The modulus that a sum needs, so that no coordinate wraps around but for a probability of 2^-64.

Wrapping costs accuracy, never privacy: it is a function of the noisy sum.
"""

import math

from discretion.arrays import Floats
from discretion.errors import InputError
from discretion.secure_sum.terms import BITS

CHANCE_BITS = 64  # some coordinate of some sum wraps with probability 2^-CHANCE_BITS at most


def farthest(bounds: Floats, sigmas: Floats, size: int, sums: int = 1) -> int:
    """Return how far from 0 a sum's coordinates get, in steps, but for a probability of 2^-64.

    `bounds` has the largest coordinate of each client's update, in steps: the length of its clip is enough.
    `sigmas` has the standard deviations of the clients' discrete Gaussian noise, in steps. The probability is
    over all `size` coordinates of all `sums`, such as all rounds of a run.

    Guarantees:
        P(some coordinate of some sum is farther from 0) <= 2^-64, whichever clients survive.
        Proof: with w(c) = sum over whole x of exp(-(x - c)²/2sigma²), a discrete Gaussian X has
        E[exp(t X)] = exp(t² sigma²/2) w(t sigma²)/w(0), and w(c) <= w(0), as w has only positive Fourier
        coefficients. So independent ones of summed variance S have P(|sum| >= r) <= 2 exp(-r²/2S), and
        r = sqrt(2 S ln(2 size sums 2^64)) leaves 2^-64 for all coordinates of all sums together. Survivors
        have no larger bound and no larger S.
    """
    if not (len(bounds) == len(sigmas) and (bounds >= 0).all() and (sigmas >= 0).all()):
        raise InputError(
            "found bounds or noise below 0, or of different length, expected one for each client"
        )
    variance = math.fsum(sigma**2 for sigma in sigmas.tolist())
    noise = math.sqrt(2 * variance * (math.log(2 * size * sums) + CHANCE_BITS * math.log(2)))
    reach = (math.fsum(bounds.tolist()) + noise) * (1 + 2.0**-40)  # more than float64 errs by
    if not reach < 2.0 ** (max(BITS) - 1):
        raise InputError(
            f"the sum does not fit: it may get {reach:.3g} steps from 0, expected less than "
            f"2^{max(BITS) - 1}: choose a longer step"
        )
    return math.ceil(reach)


def modulus_bits(bounds: Floats, sigmas: Floats, size: int, sums: int = 1) -> int:
    """Return the bits of the smallest modulus that holds a sum, 32 or 64, by `farthest`."""
    reach = farthest(bounds, sigmas, size, sums)
    return next(bits for bits in BITS if reach < 2 ** (bits - 1))
