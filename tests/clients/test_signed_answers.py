"""Signed answers: only a client's own guard answers for it, by the first key seen or the roster's."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.clients import messages
from discretion.clients.exchange import Exchange, Unanswered
from discretion.clients.messages import Answer, Declare, decode_answer, encode, sign_answer, signer
from discretion.clients.readiness import ask_all
from discretion.errors import MessageError
from discretion.ledger.heads import KnownHeads
from support.guarding import KEY, STRANGER

OWN = Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34)))
ORDER = Declare(client="c0", run="r", plan="0" * 64)


class Relay:
    """A line whose answers are signed by these keys, one answer for each."""

    def __init__(self, *keys: Ed25519PrivateKey) -> None:
        self.keys = keys

    def exchange(self, orders: Sequence[tuple[str, bytes]], timeout: float) -> Iterator[tuple[int, bytes]]:
        for number, (_, order) in enumerate(orders):
            asked = messages.digest(messages.verified(order).message)
            for key in self.keys:
                yield number, sign_answer(encode(Answer(kind="done", order=asked), signer_name(key)), key)


def signer_name(key: Ed25519PrivateKey) -> bytes:
    return messages.public_bytes(key)


def heard(exchange: Exchange) -> tuple[list[bytes], Unanswered]:
    failed = Unanswered()
    return [body for _, body in exchange.send([ORDER], b"", failed)], failed


def test_every_byte_of_an_answer_is_signed() -> None:
    whole = sign_answer(encode(Answer(kind="done", order="1" * 64, reason=""), b"body"), OWN)
    assert decode_answer(whole)[1] == b"body" and signer(whole) == messages.public_bytes(OWN).hex()
    for place in range(len(whole)):
        with pytest.raises(MessageError):
            decode_answer(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    for other in (b"", whole[:95], whole[:-1], messages.sign(encode(ORDER), OWN)):
        with pytest.raises(MessageError):
            decode_answer(other)
    with pytest.raises(MessageError):  # nor is an answer an order
        messages.verified(whole)


def test_after_the_first_answer_nobody_else_answers_for_a_client(tmp_path: Path) -> None:
    path = tmp_path / "operator.key.heads"
    first = Exchange(Relay(OWN), KEY, 5.0, KnownHeads(path))
    assert heard(first)[0] == [signer_name(OWN)]
    again = Exchange(Relay(STRANGER), KEY, 5.0, KnownHeads(path))  # another process, later
    bodies, failed = heard(again)
    assert bodies == [] and failed.lost == {0} and failed.strange == {0: signer_name(STRANGER).hex()}
    both = Exchange(Relay(STRANGER, OWN), KEY, 5.0, KnownHeads(path))
    bodies, failed = heard(both)
    assert bodies == [signer_name(OWN)] and not failed.lost and not failed.strange


def test_the_roster_says_whose_answers_count_from_the_first_on(tmp_path: Path) -> None:
    path = tmp_path / "heads"
    known = {"c0": signer_name(OWN).hex()}
    assert heard(Exchange(Relay(STRANGER), KEY, 5.0, KnownHeads(path), known))[0] == []
    assert KnownHeads(path).identity("c0") is None
    assert heard(Exchange(Relay(OWN), KEY, 5.0, KnownHeads(path), known))[0] == [signer_name(OWN)]
    assert heard(Exchange(Relay(STRANGER), KEY, 5.0))[0] == [signer_name(STRANGER)]  # known to nobody
    new = {"c0": signer_name(STRANGER).hex()}  # an owner that made a new key
    assert heard(Exchange(Relay(STRANGER), KEY, 5.0, KnownHeads(path), new))[0] == [signer_name(STRANGER)]


def test_preflight_names_an_answer_by_another_key() -> None:
    line = Exchange(Relay(STRANGER), KEY, 5.0, identities={"c0": signer_name(OWN).hex()})
    (found,) = ask_all(line, [ORDER], b"", 5.0)  # type: ignore[list-item]
    assert not found.ready and found.differs[0][0] == "key"
    assert signer_name(STRANGER).hex()[:8] in found.differs[0][1]
