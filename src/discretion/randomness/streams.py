"""Reproducible random streams, determined by a seed, a purpose and a counter.

For simulation only: whoever knows the seed can subtract the noise.
"""

import hashlib
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from discretion.errors import InputError

Words = NDArray[np.uint64]


class Purpose(IntEnum):
    """What a stream is used for; each purpose has its own key, so that no stream repeats another."""

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
    AUDIT = 11


def stream(seed: int, purpose: Purpose, *counter: int) -> np.random.Generator:
    """Return the generator of a seed, a purpose and a counter: SFC64, the fastest that numpy has.

    Guarantees:
        Streams of different seeds, purposes or counters are seeded with different words, hashed to 128 bits.
        Two streams of different states never meet within 2^64 draws: every stream counts its draws from 1,
        and each step of the generator is a bijection.
    """
    if not 0 <= seed < 2**128 or not all(0 <= number < 2**32 for number in counter):
        raise InputError(  # numpy would split longer numbers into several, which another stream may have
            f"invalid stream: found seed {seed} and counter {counter}, expected a seed from 0 to below 2^128 "
            "and counters from 0 to below 2^32"
        )
    sequence = np.random.SeedSequence(seed, spawn_key=(purpose, *counter))
    return np.random.Generator(np.random.SFC64(sequence))


def run_stream(
    seed: int, purpose: Purpose, run: str, plan: str, round_: int, *counter: int
) -> np.random.Generator:
    """Return the generator for one round of a run, by the run's name and the plan's digest.

    Under one seed, two runs or two plans never share coins or noise: otherwise an observer could subtract the
    noise of one release from another.
    """
    key = hashlib.sha256(repr((run, plan)).encode()).digest()
    words = (int.from_bytes(key[i : i + 4]) for i in range(0, 16, 4))
    return stream(seed, purpose, *words, round_, *counter)


def fingerprint(seed: int | None) -> str:
    """Return the name of a source of random numbers; it tells seeds apart without revealing them."""
    if seed is None:
        return "the operating system"
    return "a seed of fingerprint " + hashlib.sha256(f"discretion {seed}".encode()).hexdigest()[:12]


def shuffle_keys(key: int, epoch: int, client: NDArray[np.int64], length: int) -> Words:
    """Return (k, length) random words, one for each record of each client; sorting them shuffles the records.

    A client's words do not depend on the other clients of the round, so a client makes the same batches
    wherever it runs. The key belongs to one round and reveals nothing about the round's coins or noise.
    """
    start = _mix(np.array([key, epoch], dtype=np.uint64))
    own = _mix(client.astype(np.uint64) ^ start[0] ^ _mix(start[1:])[0])
    record = np.arange(length, dtype=np.uint64)
    return _mix(np.add(own[:, None], record, dtype=np.uint64))


def _mix(word: Words) -> Words:
    """Apply the finaliser of SplitMix64 (Steele, Lea and Flood 2014), a bijection of 64-bit words."""
    with np.errstate(over="ignore"):
        word = word + np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return word ^ (word >> np.uint64(31))
