"""Envelopes: a mask's seed, sealed to one member of the committee.

An envelope is a fresh X25519 key (32 bytes) and the seed under ChaCha20-Poly1305 (48 bytes), whose key HKDF
makes of what the fresh key and the member's agreement key agree on. Each key encrypts once: the nonce is 0.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from discretion.errors import MessageError
from discretion.secure_sum.framing import KEY, encoded
from discretion.secure_sum.masks import SEED, derived
from discretion.secure_sum.roster import Contact
from discretion.secure_sum.terms import Terms

TAG = 16
ENVELOPE = KEY + SEED + TAG  # bytes
_NONCE = bytes(12)


def seal(
    seed: bytes, terms: Terms, sender: str, receiver: Contact, vector: bytes, fresh: X25519PrivateKey
) -> bytes:
    """Return the seed sealed to a member; `vector` is the digest of the masked vector that it belongs to."""
    public = fresh.public_key().public_bytes_raw()
    secret = fresh.exchange(X25519PublicKey.from_public_bytes(receiver.agreement))
    cipher = _cipher(secret, public, terms, sender, receiver)
    return public + cipher.encrypt(_NONCE, seed, _bound(terms, sender, receiver, vector))


def unseal(
    envelope: bytes,
    terms: Terms,
    sender: str,
    receiver: Contact,
    vector: bytes,
    agreement: X25519PrivateKey,
) -> bytes:
    """Return the seed in an envelope to this member; raise `MessageError` where it is for anything else.

    Guarantees:
        The envelope was made for these terms, this sender, this receiver and this vector, and no bit of it
        has changed.
        A fresh key of low order, with which the secret would be known to all, is refused.
    """
    public = envelope[:KEY]
    try:
        secret = agreement.exchange(X25519PublicKey.from_public_bytes(public))
        cipher = _cipher(secret, public, terms, sender, receiver)
        return cipher.decrypt(_NONCE, envelope[KEY:], _bound(terms, sender, receiver, vector))
    except (InvalidTag, ValueError):
        raise MessageError("the envelope is not for this member, sender, vector and sum") from None


def _cipher(secret: bytes, public: bytes, terms: Terms, sender: str, receiver: Contact) -> ChaCha20Poly1305:
    parts = terms.digest, sender, receiver.client, public, receiver.agreement
    return ChaCha20Poly1305(derived(secret, "envelope", *parts))


def _bound(terms: Terms, sender: str, receiver: Contact, vector: bytes) -> bytes:
    return encoded(terms.digest, sender, receiver.client, vector)
