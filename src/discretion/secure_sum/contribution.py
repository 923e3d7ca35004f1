"""A client's part of a sum: its integers under one mask for each member of the committee, and a letter."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from discretion.arrays import Ints
from discretion.errors import InputError, MessageError
from discretion.secure_sum.envelopes import seal
from discretion.secure_sum.framing import KEY, Fields, sign
from discretion.secure_sum.letters import LETTER, Letter, fault_of, read_letter
from discretion.secure_sum.masks import SEED, add_masks, mask_key
from discretion.secure_sum.terms import Residues, Terms

Random = Callable[[int], bytes]  # returns this many fresh bytes


@dataclass(frozen=True, eq=False)
class Contribution:
    """A client's letter, and its (d,) masked vector."""

    letter: Letter
    masked: Residues

    def to_bytes(self) -> bytes:
        return self.letter.to_bytes() + self.masked.tobytes()


def contribute(
    terms: Terms, client: str, identity: Ed25519PrivateKey, whole: Ints, random: Random = os.urandom
) -> Contribution:
    """Return what a client sends for its (d,) whole numbers, which already have its noise.

    Call it once for a run, round and pool, put the bytes on record before they leave, and send these bytes
    whenever they are asked for again.

    Guarantees:
        Each member's mask has a fresh seed of 32 random bytes, sealed to that member, so that whoever lacks
        one seed sees a vector that is uniform whatever the numbers are.
        Numbers that the modulus does not hold are an error, and not taken for others.
    """
    if (
        client not in terms.senders
        or terms.senders[client].identity != identity.public_key().public_bytes_raw()
    ):
        raise InputError(f"{client!r} is not a sender of {terms.place} with this identity key")
    masked = _residues(terms, whole)
    seeds = [random(SEED) for _ in terms.committee]
    names = [member.client for member in terms.committee]
    add_masks(masked, (mask_key(seed, terms, client, name) for seed, name in zip(seeds, names, strict=True)))
    vector = vector_digest(masked)
    envelopes = tuple(
        seal(seed, terms, client, member, vector, X25519PrivateKey.from_private_bytes(random(KEY)))
        for seed, member in zip(seeds, terms.committee, strict=True)
    )
    unsigned = Letter(client, terms.digest, vector, envelopes, b"")
    signature = sign(identity, LETTER, *unsigned.parts)
    return Contribution(Letter(client, terms.digest, vector, envelopes, signature), masked)


def _residues(terms: Terms, whole: Ints) -> Residues:
    if whole.dtype != np.int64 or whole.shape != (terms.size,):
        raise InputError(
            f"found an array of {whole.dtype} and shape {whole.shape}, expected int64 and ({terms.size},)"
        )
    limit = 2 ** (terms.bits - 1)
    if terms.bits < 64 and not (-limit <= int(whole.min()) and int(whole.max()) < limit):
        raise InputError(
            f"found whole numbers from {whole.min()} to {whole.max()}, expected {-limit} to {limit - 1}: "
            "choose a modulus of 64 bits or a longer step of the grid"
        )
    return whole.astype(terms.dtype)  # negative numbers modulo 2^bits


def vector_digest(masked: Residues) -> bytes:
    """Return the digest of a masked vector."""
    return hashlib.sha256(masked.data).digest()


def read_contribution(message: bytes, terms: Terms) -> Contribution:
    """Return what a client sent; raise `MessageError` where it does not count in this sum.

    Guarantees:
        Letter and masked vector are signed by the client, for these terms.
    """
    fields = Fields(message)
    letter, content = read_letter(fields, terms), fields.take(terms.width)
    fields.end()
    if fault := fault_of(letter, terms):
        raise MessageError(fault)
    masked: Residues = np.frombuffer(content, dtype=terms.dtype)
    if vector_digest(masked) != letter.vector:
        raise MessageError(f"the masked vector is not the one that {letter.sender!r} signed")
    return Contribution(letter, masked)
