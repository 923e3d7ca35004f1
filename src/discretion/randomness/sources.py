"""Where the noise and the coins of a release come from."""

import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from discretion import discrete
from discretion.errors import InputError
from discretion.population import Floats
from discretion.streams import Words


class Source(Protocol):
    """Gives the random numbers of one release."""

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

    def words(self, count: int) -> Words:
        return self.rng.integers(2**64, size=count, dtype=np.uint64)

    def uniform(self, size: int) -> Floats:
        return self.rng.random(size)

    def gaussian(self, size: int, std: float) -> Floats:
        numbers = self.rng.standard_normal(size)
        numbers *= std  # in place: the largest array of a round is not made twice
        return numbers


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
