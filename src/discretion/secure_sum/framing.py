"""Bytes of the secure sum: encodings that cannot be confused, signatures for one purpose each, short fields.

Everything that is hashed or signed begins with the protocol's name and a purpose, so that bytes made for one
purpose mean nothing for another.
"""

import hashlib
import struct
from collections.abc import Iterator

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from discretion.errors import MessageError

PROTOCOL = "discretion secure sum 1"
KEY, DIGEST, SIGNATURE = 32, 32, 64  # bytes

Part = bytes | str | int


def encoded(*parts: Part) -> bytes:
    """Return the parts as bytes, each after its length in 8 bytes; whole numbers have 8 bytes.

    Guarantees:
        Lists of parts of the same types that differ have different encodings.
    """
    return b"".join(_framed(part) for part in parts)


def _framed(part: Part) -> bytes:
    if isinstance(part, int):
        return struct.pack("<QQ", 8, part)
    content = part.encode() if isinstance(part, str) else part
    return struct.pack("<Q", len(content)) + content


def digest_of(purpose: str, *parts: Part) -> bytes:
    """Return the SHA-256 digest of the parts, for one purpose."""
    return hashlib.sha256(encoded(PROTOCOL, purpose, *parts)).digest()


def sign(key: Ed25519PrivateKey, purpose: str, *parts: Part) -> bytes:
    """Return the signature of the parts, for one purpose: the same bytes whenever it is made again."""
    return key.sign(encoded(PROTOCOL, purpose, *parts))


def is_signed(public: bytes, signature: bytes, purpose: str, *parts: Part) -> bool:
    """Return whether the signature of the parts, for this purpose, was made by the key.

    Guarantees:
        A signature of another purpose, other parts or another key is none; nor is one that was altered so
        that its number exceeds the group's order, which some libraries accept.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, encoded(PROTOCOL, purpose, *parts))
    except (InvalidSignature, ValueError):
        return False
    return True


class Fields:
    """Reader of the fields of a message, from its first byte to its last."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._left = memoryview(content)

    def take(self, length: int) -> memoryview:
        """Return the next bytes; raise `MessageError` where the message has fewer."""
        if length > len(self._left):
            raise MessageError(f"the message ends early: expected {length} bytes, found {len(self._left)}")
        taken, self._left = self._left[:length], self._left[length:]
        return taken

    def number(self) -> int:
        """Return the next whole number, of 4 bytes."""
        return int.from_bytes(self.take(4), "little")

    def name(self) -> str:
        """Return the next name, after its length."""
        try:
            return bytes(self.take(self.number())).decode()
        except UnicodeDecodeError:
            raise MessageError("found a name that is no text in UTF-8") from None

    def each(self, count: int, length: int) -> Iterator[bytes]:
        """Yield the next fields of one length."""
        for _ in range(count):
            yield bytes(self.take(length))

    def end(self) -> None:
        """Raise `MessageError` where the message goes on."""
        if self._left:
            raise MessageError(f"the message goes on: found {len(self._left)} bytes after its end")


def named(name: str) -> bytes:
    """Return a name after its length, as `Fields.name` reads it."""
    content = name.encode()
    return struct.pack("<I", len(content)) + content
