"""Parties of secure sums, with the same keys in every run of the tests, and sums played by them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from discretion.arrays import Ints
from discretion.secure_sum.committee import answer, decide, open_request
from discretion.secure_sum.contribution import Contribution, Random, contribute, read_contribution
from discretion.secure_sum.roster import Contact, Roster, contact_of
from discretion.secure_sum.terms import Terms, agreed_terms
from discretion.secure_sum.unmasking import survivors_request, unmask

PLAN = hashlib.sha256(b"plan").digest()


def bytes_from(text: str) -> Random:
    """Return a source of bytes that a test can repeat: SHA-256 of the text and a counter."""
    numbers = count()
    return lambda size: hashlib.sha256(f"{text} {next(numbers)}".encode()).digest()[:size]


@dataclass(frozen=True)
class Party:
    """A client with its private keys."""

    name: str
    identity: Ed25519PrivateKey
    agreement: X25519PrivateKey

    def contact(self, run: str = "") -> Contact:
        return contact_of(self.name, self.identity, self.agreement, run)


@lru_cache
def party(name: str) -> Party:
    random = bytes_from(f"keys of {name}")
    identity = Ed25519PrivateKey.from_private_bytes(random(32))
    return Party(name, identity, X25519PrivateKey.from_private_bytes(random(32)))


@lru_cache
def parties(number: int) -> tuple[Party, ...]:
    return tuple(party(f"client-{i}") for i in range(number))


@lru_cache
def roster(number: int) -> Roster:
    return Roster({one.name: one.contact() for one in parties(number)})


def terms(
    number: int = 6,
    *,
    known: Roster | None = None,
    run: str = "run",
    plan: bytes = PLAN,
    round_: int = 3,
    pool: int = 0,
    size: int = 5,
    bits: int = 32,
    colluding: int = 1,
    least: int = 3,
    members: int | None = None,
) -> Terms:
    """Return the terms of a pool of the first clients."""
    return agreed_terms(
        known or roster(number),
        [one.name for one in parties(number)],
        run=run,
        plan=plan,
        round_=round_,
        pool=pool,
        size=size,
        bits=bits,
        colluding=colluding,
        least=least,
        members=members,
    )


def numbers(of: Terms, seed: int = 0, far: int = 1000) -> dict[str, Ints]:
    """Return (d,) whole numbers of every sender."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-far, far, of.size) for name in of.senders}


def contributions(of: Terms, whole: Mapping[str, Ints]) -> list[Contribution]:
    """Return what clients send, as a server reads it."""
    sent = (contribute(of, name, party(name).identity, row) for name, row in whole.items())
    return [read_contribution(each.to_bytes(), of) for each in sent]


def answers(of: Terms, request: bytes) -> dict[str, bytes]:
    """Return what all members of the committee answer to a request, each with nothing on record before."""
    found = {}
    for contact in of.committee:
        member = party(contact.client)
        opened = open_request(of, member.name, member.agreement, request)
        found[member.name] = answer(opened, decide(opened.choice, None), member.identity)
    return found


def play(of: Terms, sent: Sequence[Contribution]) -> Ints:
    """Return the sum that the server gets of the survivors' contributions."""
    return unmask(of, sent, answers(of, survivors_request(of, sent)))
