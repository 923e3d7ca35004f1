"""The test vectors are what the code makes, byte for byte, and what a second reading of the document makes.

The second reading is written here from docs/secure-sum.md with the standard library's HMAC and whole numbers,
and shares no code with the package.
"""

import hashlib
import hmac
import json
import struct
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from support.secure_sum_vectors import FILE, SURVIVORS, vectors

GIVEN = json.loads(FILE.read_text(encoding="utf-8"))
PROTOCOL = "discretion secure sum 1"


def test_the_vectors_are_made_again_byte_for_byte() -> None:
    assert vectors() == FILE.read_text(encoding="utf-8"), "run: python tests/support/secure_sum_vectors.py"


# a second reading of the document


def framed(*parts: Any) -> bytes:
    found = b""
    for part in parts:
        raw = struct.pack("<Q", part) if isinstance(part, int) else part
        raw = raw.encode() if isinstance(raw, str) else raw
        found += struct.pack("<Q", len(raw)) + raw
    return found


def digest(*parts: Any) -> bytes:
    return hashlib.sha256(framed(PROTOCOL, *parts)).digest()


def hkdf(secret: bytes, *parts: Any) -> bytes:
    key = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(key, framed(PROTOCOL, *parts) + b"\1", "sha256")


def key_stream(key: bytes, size: int, bits: int) -> list[int]:
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(size * bits // 8))
    width = bits // 8
    return [int.from_bytes(stream[i : i + width], "little") for i in range(0, len(stream), width)]


def public(private: str) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(private)).public_key().public_bytes_raw()


IDENTITIES = {name: public(private) for name, private in GIVEN["identity keys"].items()}
AGREEMENTS = {
    name: X25519PrivateKey.from_private_bytes(bytes.fromhex(private))
    for name, private in GIVEN["agreement keys"].items()
}


def agreement(name: str) -> bytes:
    return AGREEMENTS[name].public_key().public_bytes_raw()


def signs(name: str, signature: bytes, *parts: Any) -> None:
    Ed25519PublicKey.from_public_bytes(IDENTITIES[name]).verify(signature, framed(PROTOCOL, *parts))


def test_the_roster_is_signed_as_described() -> None:
    parts: list[Any] = [len(IDENTITIES)]
    for name in sorted(IDENTITIES):
        entry = GIVEN["roster"]["clients"][name]
        signature = bytes.fromhex(entry["signature"])
        assert entry["identity"] == IDENTITIES[name].hex() and entry["agreement"] == agreement(name).hex()
        signs(name, signature, "agreement key", name, IDENTITIES[name], agreement(name), "")
        parts += [name, IDENTITIES[name], agreement(name), "", signature]
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(GIVEN["consortium key"]))
    assert GIVEN["roster"]["signed"]["signature"] == key.sign(framed(PROTOCOL, "roster", *parts)).hex()


@pytest.mark.parametrize("given", GIVEN["sums"], ids=lambda given: f"{given['facts']['bits']} bits")
def test_a_second_reading_comes_to_the_same_bytes(given: dict[str, Any]) -> None:
    facts, committee, names = given["facts"], given["committee"], sorted(IDENTITIES)
    plan, size, bits = bytes.fromhex(facts["plan"]), facts["size"], facts["bits"]
    place = facts["run"], plan, facts["round"], facts["pool"]
    ranked = sorted(names, key=lambda name: digest("committee", *place, name, IDENTITIES[name]))
    assert committee == sorted(ranked[: facts["colluding"] + 1])
    senders = [part for name in names for part in (name, IDENTITIES[name])]
    members = [part for name in committee for part in (name, IDENTITIES[name], agreement(name))]
    counts = size, bits, facts["colluding"], facts["least"], len(names), len(committee)
    terms = digest("terms", *place, *counts, *senders, *members)
    assert terms.hex() == given["terms"]

    statements, total = {}, [0] * size
    masks = {member: [0] * size for member in committee}
    for name in names:
        drawn = [bytes.fromhex(each) for each in given["random"][name]]
        seeds, fresh = drawn[: len(committee)], drawn[len(committee) :]
        masked = [number % 2**bits for number in given["whole"][name]]
        for member, seed in zip(committee, seeds, strict=True):
            mask = key_stream(hkdf(seed, "mask", terms, name, member), size, bits)
            masked = [(y + m) % 2**bits for y, m in zip(masked, mask, strict=True)]
            if name in names[:SURVIVORS]:
                masks[member] = [(a + b) % 2**bits for a, b in zip(masks[member], mask, strict=True)]
        raw = b"".join(number.to_bytes(bits // 8, "little") for number in masked)
        vector, envelopes = hashlib.sha256(raw).digest(), []
        for member, seed, private in zip(committee, seeds, fresh, strict=True):
            once = X25519PrivateKey.from_private_bytes(private)
            secret = once.exchange(X25519PublicKey.from_public_bytes(agreement(member)))
            shown = once.public_key().public_bytes_raw()
            key = hkdf(secret, "envelope", terms, name, member, shown, agreement(member))
            bound = framed(terms, name, member, vector)
            envelopes.append(shown + ChaCha20Poly1305(key).encrypt(bytes(12), seed, bound))
        key = bytes.fromhex(GIVEN["identity keys"][name])
        parts = terms, name, vector, *envelopes
        signature = Ed25519PrivateKey.from_private_bytes(key).sign(framed(PROTOCOL, "letter", *parts))
        letter = (
            struct.pack("<I", len(name)) + name.encode() + terms + vector + b"".join(envelopes) + signature
        )
        assert given["contributions"][name] == (letter + raw).hex()
        if name in names[:SURVIVORS]:
            statements[name] = letter, digest("letter", *parts)
            total = [a + b for a, b in zip(total, given["whole"][name], strict=True)]

    request = struct.pack("<I", SURVIVORS) + b"".join(letter for letter, _ in statements.values())
    assert given["request"] == request.hex()
    survivors = digest("survivors", terms, SURVIVORS, *(hashed for _, hashed in statements.values()))
    for member in committee:
        raw = b"".join(number.to_bytes(bits // 8, "little") for number in masks[member])
        reply = bytes.fromhex(given["answers"][member])
        assert reply.startswith(struct.pack("<I", len(member)) + member.encode() + survivors)
        assert reply.endswith(raw)
        signature = reply[len(reply) - len(raw) - 64 : len(reply) - len(raw)]
        signs(member, signature, "answer", terms, member, survivors, hashlib.sha256(raw).digest())
    assert given["sum"] == total
