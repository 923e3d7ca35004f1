"""Sources of coins and noise: seeded for simulation, cryptographic for deployment."""

import os
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from discretion.arrays import Floats
from discretion.errors import InputError
from discretion.randomness import discrete
from discretion.randomness.streams import Purpose, Words, run_stream

RESOLUTION = 2.0**-53  # of coins: `uniform` returns its multiples


@dataclass(frozen=True)
class Seeded:
    """Reproducible noise for simulation, from a generator of `streams.run_stream`."""

    rng: np.random.Generator

    def words(self, count: int) -> Words:
        """Return `count` fresh 64-bit words, every bit a fair coin."""
        return self.rng.integers(2**64, size=count, dtype=np.uint64)

    def uniform(self, size: int) -> Floats:
        """Return (size,) uniform multiples of `RESOLUTION` from 0 to below 1, for coins."""
        return self.rng.random(size)

    def gaussian(self, size: int, std: float) -> Floats:
        """Return (size,) Gaussian numbers of standard deviation `std`, in floating point."""
        numbers = self.rng.standard_normal(size)
        numbers *= std  # in place: this may be the largest array of a round
        return numbers


@dataclass(frozen=True)
class Cryptographic:
    """Noise for deployment.

    Guarantees:
        No seed exists: each call for words takes a new key of 256 bits from the operating system and does not
        keep the key.
        Nobody can tell this noise from noise of truly random words without breaking ChaCha20, so the privacy
        guarantee holds against every adversary that cannot. Python does not wipe memory: an adversary that
        reads this process's memory is not covered, but such an adversary has the updates anyway.
    """

    def words(self, count: int) -> Words:
        return keystream(os.urandom(32), bytes(16), count)

    def uniform(self, size: int) -> Floats:
        return discrete.uniform(size, self.words)

    def gaussian(self, size: int, std: float) -> Floats:
        return discrete.gaussian(size, std, self.words)


Source = Seeded | Cryptographic  # random numbers of one release


def run_source(seed: int | None, run: str, plan: str, round_: int, purpose: Purpose, *counter: int) -> Source:
    """Return the source for one purpose in a round of a run: seeded or, without a seed, cryptographic."""
    if seed is None:
        return Cryptographic()
    return Seeded(run_stream(seed, purpose, run, plan, round_, *counter))


def heads(coins: Floats, rate: Floats | float) -> NDArray[np.bool_]:
    """Return (k,) which of the coins, drawn by `uniform`, come up heads.

    Guarantees:
        A coin comes up heads with its rate, rounded down to a multiple of 2^-53: never more often than is
        charged for, always at rate 1, and never at rates below 2^-53.
        Proof: coins are c 2^-53 with c uniform in 0, …, 2^53 - 1, and (c + 1) 2^-53 is exact in float64. It
        is at most the rate for floor(2^53 rate) of the c. A lower rate costs no more: what is released with
        and without the client becomes that of the lower rate if a further coin replaces it by a release
        without the client.
    """
    return np.asarray(coins + RESOLUTION <= rate)


def keystream(key: bytes, start: bytes, count: int) -> Words:
    """Return `count` words of ChaCha20 (RFC 8439); `start` is block number (4 bytes) and nonce (12 bytes)."""
    if count > 2**32:
        raise InputError(
            f"too many words from one key: found {count}, expected at most 2^32 words, so that none repeats"
        )
    zeros = bytes(8 * count)
    return np.frombuffer(Cipher(ChaCha20(key, start), mode=None).encryptor().update(zeros), dtype="<u8")
