"""Random numbers that can be made again: they depend on the seed, what they are for, and a counter.

For simulation only: whoever knows the seed can take the noise off again.
"""

import hashlib
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from discretion.errors import InputError

Words = NDArray[np.uint64]


class Purpose(IntEnum):
    """Each has its own key, so that no stream repeats another."""

    COINS = 0
    NOISE = 1
    BATCHES = 2
    WEIGHTS = 3
    PARTITION = 4
    BUDGETS = 5
    SIZES = 6
    STEPS = 7
    TURNS = 8
    STATISTICS = 9
    SHARES = 10


def stream(seed: int, purpose: Purpose, *counter: int) -> np.random.Generator:
    """SFC64 is the fastest of numpy's generators: noise is a good part of a noisy step.

    Guarantees:
        Streams of different seeds, purposes or counters start from different words, that are hashed to 128
        bits. Two of different states never meet within 2^64 draws: all count their draws from 1, and a step
        is a bijection.
    """
    if not 0 <= seed < 2**128 or not all(0 <= number < 2**32 for number in counter):
        raise InputError(  # numpy would write longer numbers as several, and so like those of another stream
            f"a seed is from 0 to below 2^128, a counter to below 2^32; found {seed} and {counter}"
        )
    sequence = np.random.SeedSequence(seed, spawn_key=(purpose, *counter))
    return np.random.Generator(np.random.SFC64(sequence))


def run_stream(
    seed: int, purpose: Purpose, run: str, plan: str, round_: int, *counter: int
) -> np.random.Generator:
    """A stream of one round of one run of one plan, by their name and digest.

    Under the same seed, neither two runs nor two plans share coins or noise: otherwise the noise of one
    release could be taken off another one.
    """
    key = hashlib.sha256(repr((run, plan)).encode()).digest()
    words = (int.from_bytes(key[i : i + 4]) for i in range(0, 16, 4))
    return stream(seed, purpose, *words, round_, *counter)


def fingerprint(seed: int | None) -> str:
    """Where random numbers come from; tells one seed from another without saying which it is."""
    if seed is None:
        return "the operating system"
    return "a seed of fingerprint " + hashlib.sha256(f"discretion {seed}".encode()).hexdigest()[:12]


def shuffle_keys(key: int, epoch: int, client: NDArray[np.int64], length: int) -> Words:
    """(k, length) a random word for each record of each client; sorting them shuffles the records.

    A client's words do not depend on who else is in the round, so it makes the same batches wherever
    it runs. The key is of one round and says nothing about its coins or noise.
    """
    start = _mix(np.array([key, epoch], dtype=np.uint64))
    own = _mix(client.astype(np.uint64) ^ start[0] ^ _mix(start[1:])[0])
    record = np.arange(length, dtype=np.uint64)
    return _mix(np.add(own[:, None], record, dtype=np.uint64))


def _mix(word: Words) -> Words:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014), a bijection of 64-bit words."""
    with np.errstate(over="ignore"):
        word = word + np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return word ^ (word >> np.uint64(31))
