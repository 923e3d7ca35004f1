"""A guard's own keys, in its folder: an identity for life, and an agreement key for secure sums."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from discretion.errors import InputError
from discretion.files import make_folder, read_bytes, sync, trying_to
from discretion.ledger.keys import write_draft
from discretion.secure_sum.roster import Contact, contact_of

IDENTITY, AGREEMENT = "identity.key", "agreement.key"


@dataclass(frozen=True)
class OwnKeys:
    """Private keys of a guard: one signs its answers and letters, to the other envelopes are sealed."""

    identity: Ed25519PrivateKey
    agreement: X25519PrivateKey

    def contact(self, client: str) -> Contact:
        """Return what other owners have to know of this client."""
        return contact_of(client, self.identity, self.agreement)


def own_keys(folder: Path) -> OwnKeys:
    """Return the keys in a guard's folder; make those that are not there.

    Guarantees:
        A key, once made, is never replaced. From its first moment only its owner may read it, and whatever
        interrupts this, there is a whole key or none.
    """
    make_folder(folder, 0o700)
    identity = _kept(folder / IDENTITY, lambda: Ed25519PrivateKey.generate().private_bytes_raw())
    agreement = _kept(folder / AGREEMENT, lambda: X25519PrivateKey.generate().private_bytes_raw())
    return OwnKeys(
        Ed25519PrivateKey.from_private_bytes(identity), X25519PrivateKey.from_private_bytes(agreement)
    )


def _kept(path: Path, new: Callable[[], bytes]) -> bytes:
    found = read_bytes(path)
    if found is None:
        found = new().hex().encode() + b"\n"
        draft = path.with_name(path.name + ".new")
        with trying_to("write", path):
            write_draft(draft, found.decode())
            draft.replace(path)
            sync(path.parent)
    try:
        key = bytes.fromhex(found.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InputError(
            f"{path} is no key: expected 64 hexadecimal digits. Put a copy of it back; if there is none, "
            "delete it, and give the other owners the new contact (discretion guard GUARD.toml --contact)"
        )
    return key


def forget_agreement(folder: Path) -> None:
    """Delete the agreement key: envelopes that were sealed to it are never opened again."""
    path = folder / AGREEMENT
    with trying_to("remove", path):
        path.unlink(missing_ok=True)
        sync(folder)
