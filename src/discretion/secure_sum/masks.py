"""Masks: vectors of residues from a seed of 32 bytes, uniform over the whole range modulo 2^bits.

A mask is the key stream of AES-256 in counter mode, from block 0, under a key that HKDF makes of the seed and
of everything that the mask is for; its bytes, low byte first, are the residues.
"""

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from discretion.secure_sum.framing import KEY, PROTOCOL, Part, encoded
from discretion.secure_sum.terms import Residues, Terms

SEED = 32  # bytes
_CHUNK = 2**18  # bytes of key stream made at once: they stay in the processor's cache
_ZEROS = bytes(_CHUNK)


def derived(secret: bytes, purpose: str, *parts: Part) -> bytes:
    """Return the key of 32 bytes that HKDF-SHA256 makes of a secret for one purpose and these parts."""
    return HKDF(SHA256(), KEY, None, encoded(PROTOCOL, purpose, *parts)).derive(secret)


def mask_key(seed: bytes, terms: Terms, sender: str, receiver: str) -> bytes:
    """Return the key of the mask that a sender shares with a member of the committee."""
    return derived(seed, "mask", terms.digest, sender, receiver)


def add_masks(total: Residues, keys: Iterable[bytes]) -> None:
    """Add the masks of all keys to (d,) residues, in place.

    Guarantees:
        Beside the residues, memory holds a piece of one mask only.
    """
    most = _CHUNK // total.itemsize
    buffer = bytearray(_CHUNK + 15)  # older versions of the library ask for a block more
    stream = np.frombuffer(buffer, dtype=total.dtype, count=most)
    for key in keys:
        encryptor = Cipher(AES256(key), CTR(bytes(16))).encryptor()
        for start in range(0, len(total), most):
            part = total[start : start + most]
            encryptor.update_into(memoryview(_ZEROS)[: part.nbytes], buffer)
            np.add(part, stream[: len(part)], out=part)
