"""Masks are uniform over the whole range, no seed is used twice, and one honest member's mask hides all."""

import os
import tracemalloc
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from scipy import stats

from discretion.arrays import Ints
from discretion.secure_sum import contribution
from discretion.secure_sum.masks import add_masks, mask_key
from discretion.secure_sum.terms import Residues, Terms
from support.secure_sums import bytes_from, party, terms

LEAST_P = 1e-4  # of some fifty fixed draws


def masks(of: Terms, keys: list[bytes]) -> Residues:
    total: Residues = np.zeros(of.size, dtype=of.dtype)
    add_masks(total, keys)
    return total


def p_values(residues: Residues) -> list[float]:
    """Chi-square of every byte, of the top 16 bits and of the lowest 16; binomial test of the top 2^-16."""
    table = residues.view(np.uint8).reshape(len(residues), -1)
    often = [np.bincount(column, minlength=256) for column in table.T]
    ends = residues >> residues.dtype.type(8 * residues.itemsize - 16), residues & residues.dtype.type(0xFFFF)
    often += [np.bincount(end.astype(np.int64), minlength=2**16) for end in ends]
    assert all(len(counts) in (256, 2**16) for counts in often)
    top = stats.binomtest(int(often[-2][-1]), len(residues), 2.0**-16)
    return [*(float(stats.chisquare(counts).pvalue) for counts in often), float(top.pvalue)]


@pytest.mark.parametrize("bits", [32, 64])
def test_masks_are_uniform_over_the_whole_range(bits: int) -> None:
    of = terms(size=2**21, bits=bits)
    seed = bytes_from(f"uniform {bits}")
    one = masks(of, [mask_key(seed(32), of, "client-0", "client-1")])
    several = masks(of, [mask_key(seed(32), of, f"client-{i}", "client-1") for i in range(3)])
    for residues in (one, several):
        assert min(p_values(residues)) > LEAST_P
    neighbours = np.corrcoef(one[:-1].astype(np.float64), one[1:].astype(np.float64))[0, 1]
    assert abs(neighbours) < 4 / np.sqrt(of.size)


def test_a_range_that_lacks_its_top_or_a_bias_would_be_found() -> None:
    """The test above fails for masks whose range ends early, or that come by reduction of a wider number.

    A range that lacks nothing but the last residue is found by no such test; the next test excludes it.
    """
    rng = np.random.default_rng(1)
    short = rng.integers(0, 2**32 - 2**16, 2**21, dtype=np.uint64).astype(np.uint32)
    assert min(p_values(short)) < 1e-6
    reduced = (rng.integers(0, 2**34, 2**21, dtype=np.uint64) % (3 * 2**30)).astype(np.uint32)
    assert min(p_values(reduced)) < 1e-6


@pytest.mark.parametrize("bits", [32, 64])
def test_a_mask_is_the_key_stream_itself(bits: int) -> None:
    """So every residue, the top one included, has exactly the chance that the cipher's bytes give it."""
    of = terms(size=70_001, bits=bits)
    key = bytes(range(32))
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(of.width))
    assert masks(of, [key]).tobytes() == stream
    twice = masks(of, [key, key])
    assert (twice == np.frombuffer(stream, dtype=of.dtype) * of.dtype.type(2)).all()


def test_masks_of_many_need_no_memory_of_their_own() -> None:
    total = np.zeros(2**21, dtype=np.uint32)
    tracemalloc.start()
    add_masks(total, (bytes([i] * 32) for i in range(4)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < total.nbytes / 16


def test_a_seed_makes_another_mask_for_everything_that_differs() -> None:
    seed = bytes(32)
    keys = [
        mask_key(seed, terms(), "client-0", "client-1"),
        mask_key(seed, terms(), "client-1", "client-0"),
        mask_key(seed, terms(), "client-0", "client-2"),
        mask_key(seed, terms(round_=4), "client-0", "client-1"),
        mask_key(seed, terms(pool=1), "client-0", "client-1"),
        mask_key(seed, terms(run="other"), "client-0", "client-1"),
        mask_key(seed, terms(bits=64), "client-0", "client-1"),
        mask_key(bytes(31) + b"\1", terms(), "client-0", "client-1"),
    ]
    assert len(set(keys)) == len(keys)


def test_no_seed_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 10^5 envelopes: what is sealed is noted, and the sealing itself left out."""
    seeds: list[bytes] = []
    fresh: list[bytes] = []

    def noted(seed: bytes, *rest: object) -> bytes:
        seeds.append(seed)
        return bytes(80)

    of = terms(20, size=1, members=20)
    monkeypatch.setattr(contribution, "seal", noted)
    monkeypatch.setattr(contribution, "X25519PrivateKey", SimpleNamespace(from_private_bytes=fresh.append))
    whole = np.zeros(1, dtype=np.int64)
    for number in range(5000):
        name = f"client-{number % 20}"
        contribution.contribute(of, name, party(name).identity, whole)
    assert len(seeds) == len(fresh) == 100_000
    assert len({*seeds, *fresh}) == 200_000
    assert {len(seed) for seed in seeds} == {32}
    assert contribution.contribute.__defaults__ == (os.urandom,)


# what a server sees that has the seeds of all members but one


def seen(of: Terms, whole: Ints, honest: int) -> Residues:
    """Return a masked vector without the masks of all members but the honest one."""
    random, drawn = bytes_from("view"), list[bytes]()

    def noted(size: int) -> bytes:
        drawn.append(random(size))
        return drawn[-1]

    sent = contribution.contribute(of, "client-0", party("client-0").identity, whole, noted)
    names = [member.client for member in of.committee]
    known = [mask_key(drawn[i], of, "client-0", name) for i, name in enumerate(names) if i != honest]
    return sent.masked - masks(of, known)


@pytest.mark.parametrize("honest", [0, 1, 2])
def test_one_honest_member_makes_any_numbers_look_the_same(honest: int) -> None:
    of = terms(size=2**20, members=3)
    ramp = np.arange(of.size) - of.size // 2
    numbers = [np.zeros(of.size, dtype=np.int64), ramp, np.full(of.size, 2**31 - 1)]
    views = [seen(of, whole, honest) for whole in numbers]
    for whole, view in zip(numbers, views, strict=True):
        assert min(p_values(view)) > LEAST_P
        if whole.std() > 0:
            assert abs(np.corrcoef(view.astype(np.float64), whole)[0, 1]) < 4 / np.sqrt(of.size)
    for one, other in pairwise(views):
        assert stats.ks_2samp(one[::8], other[::8]).pvalue > LEAST_P
    # the seeds were the same, so that the views differ by the numbers and by nothing else: any numbers
    # fit any view, with exactly one mask
    assert ((views[1] - views[0]).view(np.int32) == ramp).all()


def test_without_an_honest_member_nothing_is_hidden() -> None:
    of = terms(size=2**12, members=3)
    ramp = np.arange(of.size) - of.size // 2
    assert (seen(of, ramp, honest=3).view(np.int32) == ramp).all()
