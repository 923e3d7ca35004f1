"""A committee member's part of a sum: check the survivors, put them on record, and reveal their masks' sum.

opened = open_request(terms, name, agreement, request)
choice = decide(opened.choice, on_record)    # what the store has for this run, round and pool, or None
…                                            # the caller stores the choice, durably
reply = answer(opened, stored, identity)     # what the store has now, read again
"""

from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from discretion.errors import InputError, MessageError, Refusal, listed
from discretion.secure_sum.contribution import vector_digest
from discretion.secure_sum.envelopes import unseal
from discretion.secure_sum.framing import DIGEST, SIGNATURE, Fields, is_signed, named, sign
from discretion.secure_sum.letters import Letter, fault_of, read_request, survivors_digest, twice
from discretion.secure_sum.masks import add_masks, mask_key
from discretion.secure_sum.roster import Contact
from discretion.secure_sum.terms import Residues, Terms

ANSWER = "answer"  # purpose of its signature


@dataclass(frozen=True)
class Choice:
    """The one set of survivors that a member answers for in a run, round and pool: what its store keeps."""

    run: str
    round: int
    pool: int
    survivors: str  # digest of terms, names, vectors and envelopes, in hex


@dataclass(frozen=True)
class Opened:
    """A request that a member has checked and may answer, once its choice is on record."""

    terms: Terms
    member: Contact
    choice: Choice
    survivors: tuple[str, ...]  # names
    _keys: tuple[bytes, ...] = field(repr=False)  # of their masks


def open_request(terms: Terms, member: str, agreement: X25519PrivateKey, request: bytes) -> Opened:
    """Check all survivors' letters and open their envelopes; raise `Refusal` with the names at fault.

    Nothing is revealed or decided yet: a server may ask all members whether they would answer, first.

    Guarantees:
        All survivors are different clients of the pool in this member's own roster, at least `least` of them.
        Each letter is signed by its client, for these terms; each envelope was made by its sender for this
        member, this sum and this vector.
    """
    own = terms.member(member)
    if agreement.public_key().public_bytes_raw() != own.agreement:
        raise InputError(f"this agreement key is not the one that {terms.place} has for {member!r}")
    try:
        letters = read_request(request, terms)
    except MessageError as problem:
        raise Refusal(f"not a request for {terms.place}: {problem}", "request") from None
    _check_senders(terms, letters)
    keys, problems = [], []
    for letter in letters:
        try:
            keys.append(_mask_key(letter, terms, own, agreement))
        except MessageError as problem:
            problems.append(f"{letter.sender!r}: {problem}")
    if problems:
        raise Refusal("survivors refused: " + "; ".join(listed(problems)), "survivors")
    choice = Choice(terms.run, terms.round, terms.pool, survivors_digest(terms, letters).hex())
    return Opened(terms, own, choice, tuple(letter.sender for letter in letters), tuple(keys))


def _check_senders(terms: Terms, letters: list[Letter]) -> None:
    problems = [fault for letter in letters if (fault := fault_of(letter, terms))] + twice(letters)
    if problems:
        raise Refusal("survivors refused: " + "; ".join(listed(problems)), "survivors")
    if len(letters) < terms.least:
        raise Refusal(
            f"found {len(letters)} survivors of {terms.place}, expected at least {terms.least}: the sum of "
            "fewer is not revealed",
            "survivors",
        )


def _mask_key(letter: Letter, terms: Terms, own: Contact, agreement: X25519PrivateKey) -> bytes:
    envelope = letter.envelopes[terms.committee.index(own)]
    seed = unseal(envelope, terms, letter.sender, own, letter.vector, agreement)
    return mask_key(seed, terms, letter.sender, own.client)


def decide(asked: Choice, on_record: Choice | None) -> Choice:
    """Return the choice that is to be on record before a member answers; raise `Refusal` for another set.

    `on_record` is what the member's store has for the same run, round and pool, None if it has nothing.

    Guarantees:
        What is on record stays: a second set of survivors, however small the difference, is refused for ever.
    """
    if on_record is None:
        return asked
    place, kept = ((choice.run, choice.round, choice.pool) for choice in (asked, on_record))
    if place != kept:
        raise InputError(f"the store gave the record of {kept} for {place}: look records up by these three")
    if asked != on_record:
        raise Refusal(
            f"run {asked.run!r}, round {asked.round}, pool {asked.pool} has other survivors on record: no "
            "second set is ever answered for, as two sums reveal their difference",
            "survivors",
        )
    return on_record


def answer(opened: Opened, on_record: Choice | None, identity: Ed25519PrivateKey) -> bytes:
    """Return the signed sum of the survivors' masks, once their set is on record.

    `on_record` is what the store has now: read it after the choice was made durable.

    Guarantees:
        Without the very set of survivors on record nothing is summed.
        The same request gets the same bytes, whenever it is answered again.
    """
    if on_record is None:
        raise InputError("nothing is on record for this sum: make the choice durable before answering")
    decide(opened.choice, on_record)
    terms, name = opened.terms, opened.member.client
    if identity.public_key().public_bytes_raw() != opened.member.identity:
        raise InputError(f"this identity key is not the one that {terms.place} has for {name!r}")
    total: Residues = np.zeros(terms.size, dtype=terms.dtype)
    add_masks(total, opened._keys)
    survivors = bytes.fromhex(opened.choice.survivors)
    signature = sign(identity, ANSWER, terms.digest, name, survivors, vector_digest(total))
    return named(name) + survivors + signature + total.tobytes()


@dataclass(frozen=True, eq=False)
class MaskSum:
    """A member's answer: the (d,) sum of the masks of one set of survivors."""

    member: str
    survivors: bytes  # digest
    total: Residues


def read_answer(message: bytes, terms: Terms) -> MaskSum:
    """Return a member's answer; raise `MessageError` where no member signed it for these terms."""
    fields = Fields(message)
    name, survivors = fields.name(), bytes(fields.take(DIGEST))
    signature, content = bytes(fields.take(SIGNATURE)), fields.take(terms.width)
    fields.end()
    total: Residues = np.frombuffer(content, dtype=terms.dtype)
    member = next((contact for contact in terms.committee if contact.client == name), None)
    if member is None:
        raise MessageError(f"{name!r} is not in the committee")
    parts = terms.digest, name, survivors, vector_digest(total)
    if not is_signed(member.identity, signature, ANSWER, *parts):
        raise MessageError(f"not signed by {name!r} for this sum")
    return MaskSum(name, survivors, total)
