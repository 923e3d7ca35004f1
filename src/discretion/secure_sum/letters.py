"""Letters: what a client signs for a sum, its envelopes included, all but the masked vector itself.

A letter is the sender's name (after its length), the digests of terms and masked vector (32 bytes each), an
envelope for each member of the committee in the order of their names (80 bytes each), and the signature (64
bytes). The server forwards whole letters, so that a member checks the very signature that the client made.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from struct import pack

from discretion.errors import MessageError
from discretion.secure_sum.envelopes import ENVELOPE
from discretion.secure_sum.framing import DIGEST, SIGNATURE, Fields, Part, digest_of, is_signed, named
from discretion.secure_sum.terms import Terms

LETTER = "letter"  # purpose of its signature


@dataclass(frozen=True)
class Letter:
    """What one client signed for one sum."""

    sender: str
    terms: bytes  # digest
    vector: bytes  # digest of the masked vector
    envelopes: tuple[bytes, ...]
    signature: bytes

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything that is signed."""
        return self.terms, self.sender, self.vector, *self.envelopes

    def to_bytes(self) -> bytes:
        return named(self.sender) + self.terms + self.vector + b"".join(self.envelopes) + self.signature


def read_letter(fields: Fields, terms: Terms) -> Letter:
    """Return the next letter of a message; raise `MessageError` where there is none."""
    sender, digests = fields.name(), tuple(fields.each(2, DIGEST))
    envelopes = tuple(fields.each(len(terms.committee), ENVELOPE))
    return Letter(sender, digests[0], digests[1], envelopes, bytes(fields.take(SIGNATURE)))


def fault_of(letter: Letter, terms: Terms) -> str:
    """Return why a letter does not count in a sum; empty if it does.

    Guarantees:
        A letter counts only if a client of the pool in the reader's own roster signed it for these terms: not
        for another run, plan, round or pool, nor for a committee or numbers that the reader does not expect.
    """
    if letter.sender not in terms.senders:
        return f"{letter.sender!r} is not a client of pool {terms.pool} in this roster"
    if not is_signed(terms.senders[letter.sender].identity, letter.signature, LETTER, *letter.parts):
        return f"the letter of {letter.sender!r} is not signed by its identity key"
    if letter.terms != terms.digest:
        return (
            f"{letter.sender!r} wrote for another run, plan, round or pool, or has another roster, "
            "committee, least or modulus"
        )
    return ""


def twice(letters: Iterable[Letter]) -> list[str]:
    """Return a sentence on each sender that comes more than once."""
    times = Counter(letter.sender for letter in letters)
    return [f"{name!r} comes {count} times, expected once" for name, count in times.items() if count > 1]


def survivors_digest(terms: Terms, letters: Iterable[Letter]) -> bytes:
    """Return the digest of a set of letters, whatever their order: who survived, and with what."""
    ordered = sorted(letters, key=lambda letter: letter.sender)
    parts = (digest_of(LETTER, *letter.parts) for letter in ordered)
    return digest_of("survivors", terms.digest, len(ordered), *parts)


def request_of(letters: Iterable[Letter]) -> bytes:
    """Return what a server sends to every member of the committee: all survivors' letters."""
    ordered = sorted(letters, key=lambda letter: letter.sender)
    return pack("<I", len(ordered)) + b"".join(letter.to_bytes() for letter in ordered)


def read_request(request: bytes, terms: Terms) -> list[Letter]:
    """Return the letters of a request; raise `MessageError` where it is none."""
    fields = Fields(request)
    if (count := fields.number()) > len(terms.senders):
        raise MessageError(
            f"found {count} letters, expected at most {len(terms.senders)}, one from each client"
        )
    letters = [read_letter(fields, terms) for _ in range(count)]
    fields.end()
    return letters
