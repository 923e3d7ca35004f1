"""Rosters: the clients that an owner knows, by identity keys exchanged outside the operator's channel.

A client has an identity key (Ed25519) for its life, and an agreement key (X25519) that others seal envelopes
to. The identity key signs the agreement key for all runs, or for one run. A roster file is JSON:

{
"roster": 1,
"clients": {"name": {"identity": hex, "agreement": hex, "run": "", "signature": hex}, …},
"signed": {"key": hex, "signature": hex} or null
}
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from pydantic import Field, TypeAdapter

from discretion.errors import InputError, Refusal, listed
from discretion.jsonfile import Record, dump, read
from discretion.plan.names import bad_names
from discretion.secure_sum.framing import KEY, Part, digest_of, is_signed, sign

AGREEMENT, ROSTER = "agreement key", "roster"  # purposes of signatures
_PROBE = X25519PrivateKey.from_private_bytes(bytes(KEY))  # finds keys of low order, and has no other use

_Key = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_Signature = Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


@dataclass(frozen=True)
class Contact:
    """Public keys of a client, 32 bytes each; `run` is the only run of the agreement key, or empty: any."""

    client: str
    identity: bytes
    agreement: bytes
    run: str
    signature: bytes  # of the agreement key, by the identity key


def contact_of(
    client: str, identity: Ed25519PrivateKey, agreement: X25519PrivateKey, run: str = ""
) -> Contact:
    """Return what a client publishes: its keys, the agreement key signed for any run or for one."""
    keys = identity.public_key().public_bytes_raw(), agreement.public_key().public_bytes_raw()
    unsigned = Contact(client, *keys, run, b"")
    return replace(unsigned, signature=sign(identity, AGREEMENT, *_signed_parts(unsigned)))


def _signed_parts(contact: Contact) -> tuple[Part, ...]:
    return contact.client, contact.identity, contact.agreement, contact.run


@dataclass(frozen=True)
class Roster:
    """Clients and their keys, checked.

    Guarantees:
        Names are allowed names; no two clients have the same identity key or the same agreement key.
        Every agreement key is signed by its client's identity key, and has no low order: what two keys agree
        on depends on both.
    """

    contacts: Mapping[str, Contact]

    def __post_init__(self) -> None:
        if problems := _problems(self.contacts):
            raise InputError("invalid roster: " + "; ".join(listed(problems)))


def _problems(contacts: Mapping[str, Contact]) -> list[str]:
    problems = bad_names(contacts)
    for name, contact in contacts.items():
        if contact.client != name:
            problems.append(f"found the keys of {contact.client!r} under the name {name!r}")
        elif not is_signed(contact.identity, contact.signature, AGREEMENT, *_signed_parts(contact)):
            problems.append(
                f"the agreement key of {name!r} is not signed by its identity key: ask its owner for both"
            )
        elif _has_low_order(contact.agreement):
            problems.append(f"the agreement key of {name!r} is of low order and would protect nothing")
    problems += _shared(contacts, "identity", lambda contact: contact.identity)
    return problems + _shared(contacts, "agreement", lambda contact: contact.agreement)


def _shared(contacts: Mapping[str, Contact], what: str, key: Callable[[Contact], bytes]) -> list[str]:
    first: dict[bytes, str] = {}
    return [
        f"clients {first[key(contact)]!r} and {name!r} have the same {what} key, expected one client a key"
        for name, contact in contacts.items()
        if first.setdefault(key(contact), name) != name
    ]


def _has_low_order(agreement: bytes) -> bool:
    try:
        _PROBE.exchange(X25519PublicKey.from_public_bytes(agreement))
    except ValueError:  # all-zero, for every private key
        return True
    return False


# files


class _ContactRecord(Record):
    identity: _Key
    agreement: _Key
    run: str
    signature: _Signature


class _Consortium(Record):
    key: _Key
    signature: _Signature


class _RosterFile(Record):
    roster: Literal[1]
    clients: dict[str, _ContactRecord]
    signed: _Consortium | None


def roster_text(roster: Roster, consortium: Ed25519PrivateKey | None = None) -> str:
    """Return the text of a roster file, signed by a consortium's key if there is one."""
    clients = {
        name: {
            "identity": contact.identity.hex(),
            "agreement": contact.agreement.hex(),
            "run": contact.run,
            "signature": contact.signature.hex(),
        }
        for name, contact in roster.contacts.items()
    }
    signed: dict[str, Any] | None = None
    if consortium is not None:
        signature = sign(consortium, ROSTER, *_roster_parts(roster))
        signed = {"key": consortium.public_key().public_bytes_raw().hex(), "signature": signature.hex()}
    return dump({"roster": 1, "clients": clients, "signed": signed})


def read_roster(
    text: str | bytes, *, consortium: bytes | None = None, owners: Mapping[str, bytes] | None = None
) -> Roster:
    """Return the roster in a file's text, trusted because of a consortium's key, of owners' keys, or of both.

    `owners` has the identity keys that the reader got from the other owners themselves, by client.

    Guarantees:
        With `consortium`, the whole roster is signed by that key.
        With `owners`, every client of the roster is among them, with the same identity key.
        Without either nothing is read: a roster that nobody vouches for is no roster.
    """
    if consortium is None and owners is None:
        raise InputError(
            "nobody vouches for this roster: name the consortium's key, or the identity keys of the owners"
        )
    roster, found = _parsed(text)
    if consortium is not None:
        _check_consortium(roster, found.signed, consortium)
    if owners is not None:
        _check_owners(roster, owners)
    return roster


def operators_roster(text: str | bytes) -> Roster:
    """Return the roster in a file of the operator's own, which nobody has to vouch for.

    With other keys than the clients have, an operator gets refusals; guards never read rosters in this way.
    """
    return _parsed(text)[0]


def _parsed(text: str | bytes) -> tuple[Roster, _RosterFile]:
    try:
        found = read(text, TypeAdapter(_RosterFile))
    except ValueError as problem:
        raise InputError(f"not a roster: {problem}") from None
    return Roster({name: _contact(name, record) for name, record in found.clients.items()}), found


def roster_digest(roster: Roster, clients: Iterable[str]) -> str:
    """Return a digest, in hex, of the keys that a roster has of these clients."""
    known = [roster.contacts[name] for name in sorted(set(clients)) if name in roster.contacts]
    return digest_of(
        "clients of a plan", len(known), *(part for c in known for part in _signed_parts(c))
    ).hex()


def contact_text(contact: Contact) -> str:
    """Return the text of a contact file, by which an owner tells its keys to the others: a roster of one."""
    return roster_text(Roster({contact.client: contact}))


def _contact(name: str, record: _ContactRecord) -> Contact:
    keys = bytes.fromhex(record.identity), bytes.fromhex(record.agreement)
    return Contact(name, *keys, record.run, bytes.fromhex(record.signature))


def _check_consortium(roster: Roster, signed: _Consortium | None, key: bytes) -> None:
    if signed is None:
        raise InputError(
            f"the roster is not signed, expected a signature of the consortium's key {key.hex()}"
        )
    if signed.key != key.hex():
        raise InputError(f"the roster is signed by {signed.key}, expected the consortium's key {key.hex()}")
    if not is_signed(key, bytes.fromhex(signed.signature), ROSTER, *_roster_parts(roster)):
        raise InputError("the roster was changed after the consortium signed it: ask for the signed one")


def _check_owners(roster: Roster, owners: Mapping[str, bytes]) -> None:
    problems = [
        f"the identity key of {name!r} is {contact.identity.hex()}, expected its owner's {owners[name].hex()}"
        if name in owners
        else f"no identity key is known of {name!r}: ask its owner, or take it out of the roster"
        for name, contact in roster.contacts.items()
        if owners.get(name) != contact.identity
    ]
    if problems:
        raise InputError("the roster cannot be trusted: " + "; ".join(listed(problems)))


def _roster_parts(roster: Roster) -> list[Part]:
    contacts = sorted(roster.contacts.values(), key=lambda contact: contact.client)
    return [len(contacts), *(p for c in contacts for p in (*_signed_parts(c), c.signature))]


def with_agreements(roster: Roster, run: str, contacts: Iterable[Contact]) -> Roster:
    """Return the roster with agreement keys made for one run, which may come by the operator's channel.

    Guarantees:
        Identity keys stay the roster's; an agreement key not signed by its client for this run is refused.
    """
    new = {contact.client: contact for contact in contacts}
    for name, contact in new.items():
        if name not in roster.contacts or roster.contacts[name].identity != contact.identity:
            raise Refusal(f"{name!r} is not in this roster with this identity key", "roster")
        if contact.run != run:
            raise Refusal(f"the agreement key of {name!r} is for run {contact.run!r}, not {run!r}", "roster")
    if problems := _problems({**roster.contacts, **new}):
        raise Refusal("agreement keys refused: " + "; ".join(listed(problems)), "roster")
    return Roster({**roster.contacts, **new})
