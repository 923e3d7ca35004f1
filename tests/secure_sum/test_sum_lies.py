"""Every lie about a sum is a refusal, whoever tells it: the server, a colluding client, or a stranger."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as some

from discretion.errors import MessageError, Refusal
from discretion.secure_sum.committee import open_request
from discretion.secure_sum.contribution import contribute, read_contribution
from discretion.secure_sum.framing import sign
from discretion.secure_sum.letters import LETTER, Letter, request_of
from discretion.secure_sum.roster import Contact, Roster
from discretion.secure_sum.terms import Terms
from discretion.secure_sum.unmasking import survivors_request
from support.secure_sums import Party, answers, contributions, numbers, parties, party, terms

ORDER = 2**252 + 27742317777372353535851937790883648493  # of the group of Ed25519
LOW = [bytes(32), (1).to_bytes(32, "little"), (2**255 - 19).to_bytes(32, "little")]  # X25519 points


NAMELESS = b"\3\0\0\0" + b"\1\0\0\0\xff" + bytes(400)  # the first letter's name is no text


def letters(of: Terms) -> list[Letter]:
    return [each.letter for each in contributions(of, numbers(of))]


def member_of(of: Terms) -> Party:
    return party(of.committee[0].client)


def asked(of: Terms, of_letters: Sequence[Letter]) -> None:
    member = member_of(of)
    open_request(of, member.name, member.agreement, request_of(of_letters))


def refused(of: Terms, of_letters: Sequence[Letter], why: str) -> None:
    """Check that every member refuses these letters."""
    for contact in of.committee:
        member = party(contact.client)
        with pytest.raises(Refusal, match=why):
            open_request(of, member.name, member.agreement, request_of(of_letters))


def signed(letter: Letter, key: Ed25519PrivateKey) -> Letter:
    return replace(letter, signature=sign(key, LETTER, *letter.parts))


@pytest.mark.parametrize(
    "other",
    [
        lambda: terms(run="other"),
        lambda: terms(plan=bytes(32)),
        lambda: terms(round_=4),
        lambda: terms(pool=1),
        lambda: terms(bits=64),
        lambda: terms(size=6),
        lambda: terms(least=4),
        lambda: terms(colluding=0, members=2),
        lambda: terms(7),
        lambda: replace(terms(), committee=terms().committee[::-1]),
        lambda: replace(terms(), committee=tuple(_rotated(contact) for contact in terms().committee)),
    ],
    ids=[*("run", "plan", "round", "pool", "bits", "size", "least"), "colluding", "roster", "order", "keys"],
)
def test_letters_for_other_terms_are_refused(other: Callable[[], Terms]) -> None:
    """A replay, or a client that was told something else: one such letter among honest ones is enough."""
    of, elsewhere = terms(), other()
    assert elsewhere.digest != of.digest
    strange = contribute(elsewhere, "client-0", party("client-0").identity, numbers(elsewhere)["client-0"])
    refused(of, [strange.letter, *letters(of)[1:]], "'client-0' wrote for another run, plan, round or pool")
    with pytest.raises(MessageError, match="wrote for another|goes on|ends early"):
        read_contribution(strange.to_bytes(), of)


def _rotated(contact: Contact) -> Contact:
    return replace(contact, agreement=party(f"new {contact.client}").contact().agreement)


@settings(max_examples=150)
@given(some.data())
def test_no_changed_bit_of_a_request_is_overlooked(data: some.DataObject) -> None:
    of = terms()
    request = bytearray(request_of(letters(of)))
    bit = data.draw(some.integers(0, 8 * len(request) - 1))
    request[bit // 8] ^= 1 << bit % 8
    member = member_of(of)
    with pytest.raises(Refusal):
        open_request(of, member.name, member.agreement, bytes(request))


@settings(max_examples=60)
@given(some.data())
def test_no_changed_bit_of_a_contribution_is_overlooked(data: some.DataObject) -> None:
    of = terms()
    message = bytearray(contributions(of, numbers(of))[0].to_bytes())
    bit = data.draw(some.integers(0, 8 * len(message) - 1))
    message[bit // 8] ^= 1 << bit % 8
    with pytest.raises(MessageError):
        read_contribution(bytes(message), of)


@settings(max_examples=60)
@given(some.binary(max_size=400))
def test_noise_is_no_request(request: bytes) -> None:
    of = terms()
    member = member_of(of)
    with pytest.raises(Refusal, match="not a request|expected at least 3"):
        open_request(of, member.name, member.agreement, request)


def test_requests_that_end_early_or_go_on_are_refused() -> None:
    of = terms()
    member, request = member_of(of), request_of(letters(of))
    for wrong in (request[:-1], request + b"\0", (7).to_bytes(4, "little") + request[4:], b"\0", NAMELESS):
        with pytest.raises(Refusal, match="not a request for run 'run', round 3, pool 0"):
            open_request(of, member.name, member.agreement, wrong)


def test_too_few_survivors_are_not_summed() -> None:
    of = terms(least=4)
    found = letters(of)
    asked(of, found[:4])
    for few in range(4):
        refused(of, found[:few], f"found {few} survivors .* expected at least 4")


def test_nobody_counts_twice() -> None:
    """Neither the same letter, nor two letters of a client with different vectors."""
    of = terms()
    found, again = letters(of), letters(of)
    refused(of, [found[0], found[0], found[1]], "'client-0' comes 2 times")
    refused(of, [found[0], again[0], found[1]], "'client-0' comes 2 times")
    refused(of, [found[0]] * 3, "'client-0' comes 3 times")


def test_invented_clients_count_for_nothing() -> None:
    """A server may put anybody in its plan, but not into the roster of an honest member."""
    of = terms()
    friends = [party(f"invented-{i}") for i in range(6)]
    wide = Roster({one.name: one.contact() for one in [*parties(6), *friends]})
    lying = replace(of, senders=wide.contacts)
    invented = contributions(lying, {one.name: numbers(lying)[one.name] for one in friends})
    refused(of, [letters(of)[0], *(each.letter for each in invented[:4])], "not a client of pool 0")
    # a letter for the right terms by an invented key, under an invented name and under a true one
    honest = letters(of)
    for name in ("invented-0", "client-1"):
        forged = signed(replace(honest[1], sender=name), friends[0].identity)
        why = "not a client of pool 0" if name == "invented-0" else "not signed by its identity key"
        refused(of, [honest[0], forged, *honest[2:]], why)


def test_a_colluding_client_cannot_use_the_envelope_of_another() -> None:
    """Else its mask would be the other's, and the difference of two masked vectors that of the numbers."""
    of = terms()
    found = letters(of)
    victim, thief = found[0], found[1]
    for stolen in (
        replace(thief, envelopes=victim.envelopes),
        replace(thief, envelopes=victim.envelopes, vector=victim.vector),
        replace(thief, envelopes=thief.envelopes[::-1]),
        replace(thief, vector=victim.vector),
    ):
        letter = signed(stolen, party(thief.sender).identity)
        refused(of, [victim, letter, *found[2:]], f"'{thief.sender}': the envelope is not for this member")


@pytest.mark.parametrize("point", LOW, ids=["0", "1", "p"])
def test_envelopes_with_keys_of_low_order_are_refused(point: bytes) -> None:
    of = terms()
    found = letters(of)
    bad = replace(found[0], envelopes=tuple(point + e[32:] for e in found[0].envelopes))
    refused(of, [signed(bad, party("client-0").identity), *found[1:]], "'client-0': the envelope is not")


def test_a_signature_has_one_form() -> None:
    """S + L verifies in libraries that do not compare S with the order L of the group."""
    of = terms()
    found = letters(of)
    number = int.from_bytes(found[0].signature[32:], "little") + ORDER
    second = replace(found[0], signature=found[0].signature[:32] + number.to_bytes(32, "little"))
    refused(of, [second, *found[1:]], "not signed by its identity key")


def test_every_fault_is_named() -> None:
    of = terms()
    found = letters(of)
    wrong = [replace(letter, signature=bytes(64)) for letter in found[:3]]
    with pytest.raises(Refusal) as caught:
        asked(of, [*wrong, *found[3:]])
    assert all(f"'client-{i}'" in str(caught.value) for i in range(3))
    assert "'client-3'" not in str(caught.value)


def test_members_told_of_different_survivors_give_noise_and_no_difference() -> None:
    """The server gets neither sum if it takes each member's answer for another set, nor their difference."""
    of = terms(size=2000)
    whole = {name: np.zeros(of.size, dtype=np.int64) for name in of.senders}
    sent = contributions(of, whole)
    first, second = (answers(of, survivors_request(of, s)) for s in (sent, sent[:5]))
    a, b = (contact.client for contact in of.committee)
    masked = np.sum([each.masked for each in sent], axis=0, dtype=np.uint32)
    total = masked.copy()
    for message in (first[a], second[b]):
        total -= np.frombuffer(message[-of.width :], dtype=np.uint32)
    assert abs(total.astype(np.float64).mean() / 2**31 - 1) < 0.1 and len(np.unique(total)) > 1990
