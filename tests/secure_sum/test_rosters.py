"""A roster says what owners or a consortium vouch for; terms come from it and from nothing a server says."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from discretion.errors import InputError, Refusal
from discretion.secure_sum.framing import encoded, is_signed, sign
from discretion.secure_sum.roster import (
    AGREEMENT,
    Contact,
    Roster,
    _signed_parts,
    contact_of,
    read_roster,
    roster_text,
    with_agreements,
)
from discretion.secure_sum.terms import agreed_terms
from support.secure_sums import PLAN, bytes_from, parties, party, roster, terms

CONSORTIUM = Ed25519PrivateKey.from_private_bytes(bytes_from("consortium")(32))
PUBLIC = CONSORTIUM.public_key().public_bytes_raw()
OWNERS = {name: contact.identity for name, contact in roster(4).contacts.items()}


def text(change: Callable[[dict[str, Any]], object] | None = None) -> str:
    """Return the text of a signed roster file of four clients, changed afterwards."""
    found = json.loads(roster_text(roster(4), CONSORTIUM))
    if change:
        change(found)
    return json.dumps(found)


def test_a_roster_is_read_as_it_was_written() -> None:
    written = roster_text(roster(4), CONSORTIUM)
    assert read_roster(written, consortium=PUBLIC) == roster(4)
    assert read_roster(written.encode(), owners=OWNERS) == roster(4)
    assert read_roster(written, consortium=PUBLIC, owners=OWNERS) == roster(4)
    assert read_roster(roster_text(roster(4)), owners=OWNERS) == roster(4)
    assert roster_text(read_roster(written, consortium=PUBLIC), CONSORTIUM) == written
    backwards = Roster(dict(sorted(roster(4).contacts.items(), reverse=True)))
    assert roster_text(backwards, CONSORTIUM).splitlines()[-2] == written.splitlines()[-2]


def test_somebody_has_to_vouch_for_a_roster() -> None:
    with pytest.raises(InputError, match="nobody vouches for this roster"):
        read_roster(text())
    with pytest.raises(InputError, match="is not signed, expected a signature of the consortium's key"):
        read_roster(roster_text(roster(4)), consortium=PUBLIC)
    with pytest.raises(InputError, match=f"signed by {PUBLIC.hex()}, expected the consortium's key 0000"):
        read_roster(text(), consortium=bytes(32))
    with pytest.raises(InputError, match="changed after the consortium signed"):
        read_roster(text(lambda found: found["clients"].popitem()), consortium=PUBLIC)
    with pytest.raises(InputError, match="changed after the consortium signed"):
        read_roster(text(lambda found: found["signed"].update(signature="0" * 128)), consortium=PUBLIC)
    wrong = {**OWNERS, "client-1": bytes(32)}
    del wrong["client-2"]
    with pytest.raises(InputError) as caught:
        read_roster(text(), owners=wrong)
    assert "the identity key of 'client-1' is " in str(caught.value)
    assert "no identity key is known of 'client-2': ask its owner" in str(caught.value)
    fewer = text(lambda found: found["clients"].pop("client-3"))
    assert set(read_roster(fewer, owners=OWNERS).contacts) == {"client-0", "client-1", "client-2"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda found: found.update(roster=2), "roster: input should be 1"),
        (lambda found: found.update(more=1), "more: extra inputs"),
        (lambda found: found.pop("signed"), "signed: field required"),
        (lambda found: found["clients"]["client-0"].update(identity="0"), "identity: string should match"),
        (lambda found: found["clients"]["client-0"].pop("run"), "run: field required"),
    ],
)
def test_a_file_that_is_no_roster_is_explained(change: Callable[[dict[str, Any]], object], why: str) -> None:
    with pytest.raises(InputError, match=f"not a roster: .*{why}"):
        read_roster(text(change), owners=OWNERS)


def forged(**fields: Any) -> dict[str, Contact]:
    return {**roster(4).contacts, "client-0": replace(roster(4).contacts["client-0"], **fields)}


def low_order(point: bytes) -> dict[str, Contact]:
    made = replace(roster(4).contacts["client-0"], agreement=point)
    return forged(
        agreement=point, signature=sign(party("client-0").identity, AGREEMENT, *_signed_parts(made))
    )


@pytest.mark.parametrize(
    ("contacts", "why"),
    [
        (forged(agreement=bytes(range(32))), "the agreement key of 'client-0' is not signed by its identity"),
        (forged(run="other"), "the agreement key of 'client-0' is not signed by its identity"),
        (forged(identity=roster(4).contacts["client-1"].identity), "have the same identity key"),
        (forged(identity=b""), "the agreement key of 'client-0' is not signed"),
        (forged(client="client-9"), "found the keys of 'client-9' under the name 'client-0'"),
        ({"../x": party("../x").contact()}, "found client name '../x', expected no slash"),
        (low_order(bytes(32)), "the agreement key of 'client-0' is of low order"),
        (low_order((1).to_bytes(32, "little")), "the agreement key of 'client-0' is of low order"),
        (low_order((2**255 - 20).to_bytes(32, "little")), "the agreement key of 'client-0' is of low order"),
        (
            {
                **roster(2).contacts,
                "copy": contact_of("copy", party("copy").identity, party("client-1").agreement),
            },
            "clients 'client-1' and 'copy' have the same agreement key",
        ),
    ],
)
def test_keys_that_protect_nothing_are_no_roster(contacts: dict[str, Contact], why: str) -> None:
    with pytest.raises(InputError, match=f"invalid roster: .*{why}"):
        Roster(contacts)


def test_agreement_keys_change_with_the_run_and_identity_keys_do_not() -> None:
    new = {
        one.name: replace(one, agreement=X25519PrivateKey.from_private_bytes(bytes_from(one.name)(32)))
        for one in parties(4)[:2]
    }
    changed = with_agreements(roster(4), "run", (one.contact("run") for one in new.values()))
    assert changed.contacts["client-0"].agreement != roster(4).contacts["client-0"].agreement
    assert changed.contacts["client-2"] == roster(4).contacts["client-2"]
    assert {name: contact.identity for name, contact in changed.contacts.items()} == OWNERS
    one = new["client-0"]
    with pytest.raises(Refusal, match="for run 'run', not 'other'"):
        with_agreements(roster(4), "other", [one.contact("run")])
    with pytest.raises(Refusal, match="for run '', not 'run'"):
        with_agreements(roster(4), "run", [one.contact()])
    with pytest.raises(Refusal, match="'client-9' is not in this roster"):
        with_agreements(roster(4), "run", [party("client-9").contact("run")])
    with pytest.raises(Refusal, match="'client-0' is not in this roster with this identity key"):
        with_agreements(roster(4), "run", [replace(one, identity=party("x").identity).contact("run")])
    with pytest.raises(Refusal, match="not signed by its identity key"):
        with_agreements(roster(4), "run", [replace(one.contact("run"), signature=bytes(64))])
    # a key that was signed for one run is not used in another one
    assert {m.client for m in terms(4, known=changed, run="other", members=2).committee} == {
        "client-2",
        "client-3",
    }
    with pytest.raises(Refusal, match="found 2 clients with an agreement key for run 'other', expected 3"):
        terms(4, known=changed, run="other", members=3)


def test_only_the_own_roster_makes_senders_and_members() -> None:
    """A plan with a hundred invented clients has the senders and the committee that it has without them."""
    names = [*roster(5).contacts, *(f"invented-{i}" for i in range(100))]
    facts: dict[str, Any] = {"run": "run", "plan": PLAN, "round_": 3, "pool": 0, "size": 5, "bits": 32}
    stacked = agreed_terms(roster(5), names, **facts, colluding=1, least=3)
    assert stacked == terms(5) and stacked.digest == terms(5).digest
    with pytest.raises(
        Refusal, match="found 5 clients of pool 0 in this client's roster, expected at least 6"
    ):
        agreed_terms(roster(5), names, **facts, colluding=1, least=6)
    small = agreed_terms(
        roster(5),
        ["client-0", "client-1", "client-2"],
        **facts,
        colluding=1,
        least=3,
        candidates=names,
        members=5,
    )
    assert len(small.senders) == 3 and len(small.committee) == 5


def test_everybody_finds_the_same_committee_and_it_changes_with_the_round() -> None:
    backwards = Roster(dict(sorted(roster(6).contacts.items(), reverse=True)))
    seen = set()
    for round_ in range(40):
        of, same = terms(round_=round_), terms(known=backwards, round_=round_)
        assert of.committee == same.committee and of.digest == same.digest
        assert len(of.committee) == 2 and set(of.committee) <= set(roster(6).contacts.values())
        seen.add(tuple(member.client for member in of.committee))
    assert len(seen) > 10  # of 15 pairs
    assert len(terms(colluding=3, least=5).committee) == 4


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"plan": b""}, "a plan's digest of 32 bytes, found 0"),
        ({"round_": -1}, "a round"),
        ({"pool": 2**63}, "a pool"),
        ({"size": 0}, "1 to 2\\^36 coordinates, found 0"),
        ({"bits": 16}, "a modulus of 32 or 64 bits, found 16"),
        ({"colluding": -1, "members": 1}, "0 to 2\\^53 colluding"),
        ({"colluding": 2}, "at least 4 survivors, two of whom do not collude, found 3"),
        ({"least": 1, "colluding": 0}, "at least 2 survivors"),
        ({"members": 1}, "at least 2 members, one of whom does not collude, found 1"),
    ],
)
def test_terms_that_protect_nothing_are_refused(facts: dict[str, Any], why: str) -> None:
    with pytest.raises(Refusal, match=why):
        terms(**facts)


def test_whose_identity_key_differs_has_other_terms_and_other_committees() -> None:
    """For a sender that is no member, too: who is asked and who is counted is the same to all."""
    impostor = replace(party("impostor"), name="client-5").contact()
    other = Roster({**roster(6).contacts, "client-5": impostor})
    rounds = [(terms(round_=i), terms(known=other, round_=i)) for i in range(40)]
    assert all(one.digest != two.digest for one, two in rounds)
    seated = [["client-5" in {m.client for m in of.committee} for of in pair] for pair in rounds]
    assert [False, False] in seated and [True, False] in seated and [False, True] in seated


def test_terms_are_checked_however_they_are_made() -> None:
    of = terms()
    for wrong in (
        {"committee": of.committee[:1]},
        {"least": 2},
        {"senders": roster(2).contacts},
        {"bits": 8},
    ):
        with pytest.raises(Refusal):
            replace(of, **wrong)


def test_encodings_cannot_be_confused() -> None:
    parts: list[tuple[str, ...]] = [("a", "b"), ("ab", ""), ("", "ab"), ("ab",), ("a", "b", ""), ()]
    assert len({encoded(*each) for each in parts}) == len(parts)
    key = party("x").identity
    public = key.public_key().public_bytes_raw()
    assert is_signed(public, sign(key, "one", "a"), "one", "a")
    assert not is_signed(public, sign(key, "one", "a"), "other", "a")
    assert not is_signed(public, sign(key, "one", "a", "b"), "one", "ab")
    assert not is_signed(public, b"", "one", "a")


def test_residues_have_their_width() -> None:
    assert (terms(bits=32).dtype, terms(bits=64).dtype) == (np.dtype("<u4"), np.dtype("<u8"))
    assert (terms(bits=32).width, terms(bits=64).width) == (20, 40)
