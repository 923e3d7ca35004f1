"""Terms of one sum: its run, round and pool, its numbers, who may send, and who is in the committee.

Every client works the terms out for itself, from the plan and its own roster. Their digest is in everything
that is hashed, sealed or signed for the sum, so that parties whose terms differ refuse each other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discretion.errors import Refusal
from discretion.secure_sum.framing import Part, digest_of
from discretion.secure_sum.roster import Contact, Roster

Residues = NDArray[np.unsignedinteger[Any]]  # uint32 or uint64

BITS = (32, 64)
MOST_SIZE = 2**36  # coordinates, far below what one key of AES-CTR may encrypt
MOST = 2**63 - 1


@dataclass(frozen=True)
class Terms:
    """What all parties of a sum agree on; made by `agreed_terms`.

    Guarantees:
        Terms that could reveal one client's numbers to a server with `colluding` clients cannot be made: the
        committee has more members than that, and `least` leaves two clients that do not collude.
    """

    run: str
    plan: bytes  # digest
    round: int
    pool: int
    size: int  # coordinates
    bits: int  # the sum is taken modulo 2^bits
    colluding: int  # clients that may collude with the server
    least: int  # clients whose sum may be revealed
    senders: Mapping[str, Contact]  # clients of the pool that are in the roster, by name
    committee: tuple[Contact, ...]  # sorted by name

    def __post_init__(self) -> None:
        numbers = self.round, self.pool, self.size, self.bits, self.colluding, self.least
        _check_numbers(self.plan, *numbers, len(self.committee))
        if len(self.senders) < self.least:
            raise Refusal(
                f"found {len(self.senders)} clients of pool {self.pool} in this client's roster, expected "
                f"at least {self.least}: exchange identity keys with more owners",
                "roster",
            )

    @cached_property
    def digest(self) -> bytes:
        """Digest of all terms, keys of senders and members included."""
        senders: list[Part] = [p for name in sorted(self.senders) for p in _identity(self.senders[name])]
        members: list[Part] = [p for member in self.committee for p in (*_identity(member), member.agreement)]
        numbers = self.round, self.pool, self.size, self.bits, self.colluding, self.least
        counts = len(self.senders), len(self.committee)
        return digest_of("terms", self.run, self.plan, *numbers, *counts, *senders, *members)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Type of the residues, low byte first."""
        return np.dtype("<u4") if self.bits == 32 else np.dtype("<u8")

    @property
    def width(self) -> int:
        """Bytes of a vector of residues."""
        return self.size * self.bits // 8

    def member(self, name: str) -> Contact:
        """Return a member of the committee; raise `Refusal` for others."""
        for contact in self.committee:
            if contact.client == name:
                return contact
        names = ", ".join(repr(contact.client) for contact in self.committee)
        raise Refusal(f"{name!r} is not in the committee of {self.place}, which is {names}", "committee")

    @property
    def place(self) -> str:
        """Run, round and pool, for messages to people."""
        return f"run {self.run!r}, round {self.round}, pool {self.pool}"


def agreed_terms(
    roster: Roster,
    clients: Iterable[str],
    *,
    run: str,
    plan: bytes,
    round_: int,
    pool: int,
    size: int,
    bits: int,
    colluding: int,
    least: int,
    candidates: Iterable[str] | None = None,
    members: int | None = None,
) -> Terms:
    """Return the terms of a sum, from a plan's facts and a client's own roster.

    `clients` are those of the pool. The committee has `members`, or one more than may collude, among the
    `candidates`, who are those of the pool unless given: for small pools, the plan's clients.

    Guarantees:
        Only clients of the roster are senders or members, whatever a plan says: one that a server invents
        counts for nothing.
        At least `least` clients may send, or the terms are refused; `least` leaves two clients, at least,
        that do not collude.
        The committee has more members than clients that may collude, so that one is honest if the plan's
        assumption holds. Nobody chooses it: it follows from run, plan, round, pool and roster.
    """
    members = colluding + 1 if members is None else members
    _check_numbers(plan, round_, pool, size, bits, colluding, least, members)
    senders = {name: roster.contacts[name] for name in clients if name in roster.contacts}
    among = senders if candidates is None else candidates
    known = [roster.contacts[name] for name in sorted(set(among)) if name in roster.contacts]
    seated = [contact for contact in known if contact.run in ("", run)]
    if len(seated) < members:
        raise Refusal(
            f"found {len(seated)} clients with an agreement key for run {run!r}, expected {members} members "
            f"of a committee, so that not all of them are among {colluding} colluding clients",
            "committee",
        )
    seated.sort(key=lambda c: digest_of("committee", run, plan, round_, pool, c.client, c.identity))
    committee = tuple(sorted(seated[:members], key=lambda contact: contact.client))
    return Terms(run, plan, round_, pool, size, bits, colluding, least, senders, committee)


def _check_numbers(
    plan: bytes, round_: int, pool: int, size: int, bits: int, colluding: int, least: int, members: int
) -> None:
    expected = (
        ("a plan's digest of 32 bytes", len(plan) == 32, len(plan)),
        ("a round from 0 to 2^63 - 1", 0 <= round_ <= MOST, round_),
        ("a pool from 0 to 2^63 - 1", 0 <= pool <= MOST, pool),
        ("1 to 2^36 coordinates", 1 <= size <= MOST_SIZE, size),
        ("a modulus of 32 or 64 bits", bits in BITS, bits),
        ("0 to 2^53 colluding clients", 0 <= colluding <= 2**53, colluding),
        (f"at least {colluding + 2} survivors, two of whom do not collude", least >= colluding + 2, least),
        (f"at least {colluding + 1} members, one of whom does not collude", members > colluding, members),
    )
    for what, holds, found in expected:
        if not holds:
            raise Refusal(f"terms of a secure sum refused: expected {what}, found {found}", "terms")


def _identity(contact: Contact) -> tuple[Part, Part]:
    return contact.client, contact.identity
