"""The key of a guard's ledger, in a file beside it, and the heads that it signs."""

import os
from pathlib import Path
from typing import Annotated

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field

from discretion.errors import LedgerError
from discretion.files import sync
from discretion.jsonfile import Record

CONTEXT = b"discretion ledger 1\n"  # a signature made for another purpose is not valid for a head

PUT_BACK = (
    "Put the newest ledger back with its key and its head, or say what was lost with "
    "`discretion guard GUARD.toml --recover`; docs/operating.md says how."
)


class Head(Record):
    """Hash of the last entry of a guard's ledger, signed; all in hex."""

    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]

    @classmethod
    def signed(cls, key: Ed25519PrivateKey, link: str) -> "Head":
        return cls(key=public_of(key), hash=link, signature=sign(key, bytes.fromhex(link)).hex())

    def is_genuine(self) -> bool:
        return is_signed(self.key, bytes.fromhex(self.hash), bytes.fromhex(self.signature))


def sign(key: Ed25519PrivateKey, content: bytes, context: bytes = CONTEXT) -> bytes:
    return key.sign(context + content)


def is_signed(public: str, content: bytes, signature: bytes, context: bytes = CONTEXT) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, context + content)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_of(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def key_file(ledger: str) -> Path:
    return Path(ledger).with_suffix(".key")


def _draft_file(ledger: str) -> Path:
    return Path(ledger).with_suffix(".key.new")


def draft(ledger: str) -> Ed25519PrivateKey:
    """Make a new key, which `settled` puts in force once the ledger names it.

    Guarantees:
        From its first moment only its owner may read the file.
    """
    key = Ed25519PrivateKey.generate()
    write_draft(_draft_file(ledger), key.private_bytes_raw().hex() + "\n")
    return key


def write_draft(path: Path, text: str) -> None:
    """Write a file anew, flushed to disk; its name is made durable by whoever puts it in its place."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def settled(ledger: str, public: str) -> Ed25519PrivateKey:
    """Return the private key that belongs to the public one in a ledger, or raise if it is not there.

    A crash may have left the new key in its draft: it is in force if the ledger names it.
    """
    path, new = key_file(ledger), _draft_file(ledger)
    key = read(new)
    if key is not None and public_of(key) == public:
        new.replace(path)
        sync(path.parent)
        return key
    key = read(path)
    if key is None or public_of(key) != public:
        raise LedgerError(
            f"the key of the ledger {ledger} is not in {path}: the ledger is a copy from a backup, or one of "
            f"the two was replaced. {PUT_BACK}"
        )
    return key


def read(path: Path) -> Ed25519PrivateKey | None:
    """Return the key in a file; None if there is none in it, or no file."""
    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text(encoding="ascii").strip()))
    except (FileNotFoundError, ValueError):
        return None
