"""What servers and guards send each other: a JSON header, raw numbers, and a signature on orders. No pickle.

An order is a public key (32 bytes), a signature by it (64 bytes) and a message; an answer is a message. A
message is the length of its header (4 bytes), the header in JSON and a body: a plan, or float32 numbers.
"""

import hashlib
import struct
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from discretion.errors import InputError, MessageError
from discretion.pick import Rule
from discretion.records import Record, dump

KEY, SIGNATURE = 32, 64
LONGEST_HEADER = 2**16
CONTEXT = b"discretion order 1\n"  # so that a signature made for something else is none of an order

Name = Annotated[str, Field(min_length=1, max_length=256)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Schedule(Record):
    kind: Literal["constant", "decay", "cosine"]
    factor: float


class Local(Record):
    """What a client does with the model in a round: as `LocalTraining` has it."""

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float
    weight_decay: float
    schedule: Schedule
    steps: int
    order: Literal["shuffled", "sequential"]


class About(Record):
    """Whom an order is for, and of what."""

    client: Name
    run: Name
    plan: Digest


class Join(About):
    """Asks a client into a run; the body is the whole plan."""

    kind: Literal["join"] = "join"
    size: int  # records that the client is counted with
    model: Name
    shapes: Digest  # of the model's parameters
    local: Local


class Train(About):
    """Asks for an update of the model in the body."""

    kind: Literal["train"] = "train"
    round: int
    turn: int
    key: Annotated[int, Field(ge=0, lt=2**64)]
    clip: float
    noise: float  # that the client adds, to the update or in every step
    local: Local


class Read(About):
    """Asks for a statistic of the client's data under the model in the body."""

    kind: Literal["read"] = "read"
    round: int
    rule: Rule
    bound: float
    noise: float  # that the client adds


class Finish(About):
    """Says that a run is over after so many rounds."""

    kind: Literal["finish"] = "finish"
    rounds: int


class Answer(Record):
    """The body is what was asked for: numbers of an update or a statistic; else it is empty."""

    kind: Literal["done", "refused"]
    order: Digest  # of the message that is answered
    reason: str = ""


AnyOrder = Join | Train | Read | Finish
_ORDERS: TypeAdapter[AnyOrder] = TypeAdapter(Annotated[AnyOrder, Field(discriminator="kind")])


def encode(header: Record, body: bytes = b"") -> bytes:
    text = dump(header.model_dump()).encode()
    return struct.pack(">I", len(text)) + text + body


def _divided(message: bytes) -> tuple[bytes, bytes]:
    if len(message) < 4:
        raise MessageError("a message is too short to have a header")
    (length,) = struct.unpack(">I", message[:4])
    if length > LONGEST_HEADER or 4 + length > len(message):
        raise MessageError(f"a header of {length} bytes is too long, or longer than its message")
    return message[4 : 4 + length], message[4 + length :]


def decode_order(message: bytes) -> tuple[AnyOrder, bytes]:
    text, body = _divided(message)
    try:
        return _ORDERS.validate_json(text), body
    except ValidationError as problem:
        where = "; ".join(".".join(map(str, error["loc"])) or "header" for error in problem.errors()[:5])
        raise MessageError(f"not an order of Discretion: {where} cannot be read") from None


def decode_answer(message: bytes) -> tuple[Answer, bytes]:
    text, body = _divided(message)
    try:
        return Answer.model_validate_json(text), body
    except ValidationError:
        raise MessageError("not an answer of a guard") from None


def digest(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()


def to_bytes(numbers: NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(numbers, dtype="<f4").tobytes()


def from_bytes(body: bytes, size: int) -> NDArray[np.float32]:
    if len(body) != 4 * size:
        raise MessageError(f"expected {size} numbers in {4 * size} bytes, found {len(body)} bytes")
    return np.frombuffer(body, dtype="<f4").astype(np.float32)


def sign(message: bytes, key: Ed25519PrivateKey) -> bytes:
    return public_bytes(key) + key.sign(CONTEXT + message) + message


def verified(signed: bytes) -> tuple[str, bytes]:
    """The key, in hex, by which a message was signed, and the message; raises if it was not.

    Guarantees:
        Every byte of the message is signed, and a signature for another purpose is no signature.
    """
    key, signature, message = signed[:KEY], signed[KEY : KEY + SIGNATURE], signed[KEY + SIGNATURE :]
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, CONTEXT + message)
    except (InvalidSignature, ValueError):
        raise MessageError("the signature is not of this message and key") from None
    return key.hex(), message


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def write_key(path: Path) -> str:
    """Make a new key of an operator, for its eyes only; returns the public part, in hex."""
    key = Ed25519PrivateKey.generate()
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(key.private_bytes_raw().hex() + "\n", encoding="ascii")
    return public_bytes(key).hex()


def read_key(path: Path) -> Ed25519PrivateKey:
    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text(encoding="ascii").strip()))
    except (OSError, ValueError):
        raise InputError(
            f"{path} is no operator's key: expected 64 hexadecimal digits, as `discretion key` writes them"
        ) from None
