"""Messages between servers and guards: JSON headers, raw numbers, signed orders. No pickle.

An order is a public key (32 bytes), its signature (64 bytes), the heads of the guard's ledger that the server
knows (their length in 4 bytes, then JSON), and a message; an answer is the guard's public identity key (32
bytes), its signature (64 bytes) and a message. A message is the length of its header (4 bytes), the header in
JSON, and a body: a plan, numbers of 4 bytes each, or what `secure_sum` makes. An order that is sent again is
the same message, whatever heads are known by then.
"""

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, TypeAdapter

from discretion.arrays import Ints
from discretion.errors import InputError, MessageError
from discretion.files import write_private
from discretion.jsonfile import Record, dump, read
from discretion.ledger.heads import MOST_HEADS
from discretion.ledger.keys import Head
from discretion.plan.grid import MODULUS
from discretion.plan.names import allowed
from discretion.plan.phase import MOST
from discretion.plan.selection_rules import Rule
from discretion.tasks.schema import Schema

KEY, SIGNATURE = 32, 64
LONGEST_HEADER = 2**20  # names of a table's columns included
LONGEST_HEADS = 2**14
CONTEXT = b"discretion order 2\n"  # a signature made for another purpose is not valid for an order
ANSWERED = b"discretion answer 1\n"  # nor for an answer

Name = Annotated[str, AfterValidator(allowed)]
ModelName = Annotated[str, Field(min_length=1, max_length=256)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Whole = Annotated[int, Field(ge=-MOST, le=MOST)]  # that arrays and SQLite hold; its meaning is checked later


class ScheduleMessage(Record):
    kind: Literal["constant", "decay", "cosine"]
    factor: float


class Local(Record):
    """Local training of a round: the fields of `LocalTraining`."""

    epochs: Whole
    batch_size: Whole
    learning_rate: float
    momentum: float
    weight_decay: float
    schedule: ScheduleMessage
    steps: Whole
    order: Literal["shuffled", "sequential"]


class OrderHeader(Record):
    """The client an order is for, its run and its plan."""

    client: Name
    run: Name
    plan: Digest


class Joining(OrderHeader):
    """All that a client agrees to when it joins a run, besides the plan."""

    size: Whole  # number of records that the plan assumes of the client
    model: ModelName
    shapes: Digest  # of the model's parameters
    records: Schema  # what the server takes the client's records for
    local: Local
    roster: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""  # digest; empty: no secure sum


class Join(Joining):
    """Asks a client to join a run; the body is the whole plan."""

    kind: Literal["join"] = "join"


class Check(Joining):
    """Asks whether a client would join a run, and why not; the body is the whole plan.

    Nothing is joined, charged or put on record.
    """

    kind: Literal["check"] = "check"
    epsilon: float  # the client's budget, as the server knows it
    delta: float

    def joining(self) -> Join:
        """Return the order by which the client would be asked to join."""
        return Join(**self.model_dump(exclude={"kind", "epsilon", "delta"}))


class Train(OrderHeader):
    """Asks for an update of the model in the body."""

    kind: Literal["train"] = "train"
    round: Whole
    turn: Whole
    key: Annotated[int, Field(ge=0, lt=2**64)]
    clip: float
    noise: float  # standard deviation of the client's noise, in the update or in every step
    local: Local


class Read(OrderHeader):
    """Asks for a statistic of the client's data under the model in the body."""

    kind: Literal["read"] = "read"
    round: Whole
    rule: Rule
    bound: float
    noise: float  # standard deviation of the client's noise


class Survivors(OrderHeader):
    """Asks a member of a secure sum's committee for the masks of clients, whose letters are the body."""

    kind: Literal["survivors"] = "survivors"
    round: Whole
    pool: Whole


class Finish(OrderHeader):
    """Says that a run is finished after `rounds` rounds."""

    kind: Literal["finish"] = "finish"
    rounds: Whole


class Declare(OrderHeader):
    """Asks for a signed statement of what the client has charged itself."""

    kind: Literal["declare"] = "declare"


class Differs(Record):
    """One thing that server and guard disagree on."""

    what: Annotated[str, Field(max_length=100)]
    said: str


class Differences(Record):
    """All that keeps a guard from joining a run; empty: it is ready."""

    differs: list[Differs]


class Answer(Record):
    """Answer of a guard.

    The body has the numbers of an update or a statistic; a contribution to a secure sum, or the sum of masks;
    what was found, of a check; a statement, of a declare order; or it is empty.
    """

    kind: Literal["done", "refused"]
    order: Digest  # of the order's message
    reason: str = ""
    head: Head | None = None  # of the guard's ledger, once the order is done


AnyOrder = Join | Check | Train | Read | Survivors | Finish | Declare
_ORDER: TypeAdapter[AnyOrder] = TypeAdapter(Annotated[AnyOrder, Field(discriminator="kind")])
_ANSWER = TypeAdapter(Answer)
_HEADS = TypeAdapter(Annotated[list[Head], Field(max_length=MOST_HEADS)])


def encode(header: Record, body: bytes = b"") -> bytes:
    text = dump(header.model_dump()).encode()
    return struct.pack(">I", len(text)) + text + body


def decode_order(message: bytes) -> tuple[AnyOrder, bytes]:
    return _framed(message, LONGEST_HEADER, _ORDER, "an order of Discretion")


def sign_answer(message: bytes, identity: Ed25519PrivateKey) -> bytes:
    return public_bytes(identity) + identity.sign(ANSWERED + message) + message


def signer(answer: bytes) -> str:
    """Return the public key, in hex, by which `decode_answer` finds an answer signed."""
    return answer[:KEY].hex()


def decode_answer(signed: bytes) -> tuple[Answer, bytes]:
    """Return a guard's answer and its body; raise where the key in front did not sign them.

    Guarantees:
        Order, kind, reason, head and body are all signed; no other signature of a guard is one of an answer.
    """
    message = _content(signed, ANSWERED)
    return _framed(message, LONGEST_HEADER, _ANSWER, "a guard's answer")


def _framed(message: bytes, longest: int, kind: TypeAdapter[Any], what: str) -> tuple[Any, bytes]:
    """Return the JSON at the beginning of a message, after its length, and what follows it."""
    if len(message) < 4:
        raise MessageError("message too short for a header")
    (length,) = struct.unpack(">I", message[:4])
    if length > longest or 4 + length > len(message):
        raise MessageError(f"header of {length} bytes is too long, or longer than its message")
    try:
        return read(message[4 : 4 + length], kind), message[4 + length :]
    except ValueError as problem:
        raise MessageError(f"not {what}: {problem}") from None


def digest(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()


def to_bytes(numbers: NDArray[np.float32] | Ints) -> bytes:
    """Return numbers in 4 bytes each: as float32 or, of whole steps of a grid, modulo 2^32."""
    if numbers.dtype.kind == "i":
        return (numbers % MODULUS).astype("<u4").tobytes()
    return np.ascontiguousarray(numbers, dtype="<f4").tobytes()


def from_bytes(body: bytes, size: int) -> NDArray[np.float32]:
    return _words(body, size).view("<f4").astype(np.float32)


def whole_from_bytes(body: bytes, size: int) -> Ints:
    """Return (size,) whole steps of a grid, from -2^31 to 2^31 - 1."""
    return _words(body, size).view("<i4").astype(np.int64)


def _words(body: bytes, size: int) -> NDArray[np.uint32]:
    if len(body) != 4 * size:
        raise MessageError(f"expected {size} numbers in {4 * size} bytes, found {len(body)} bytes")
    return np.frombuffer(body, dtype="<u4")


class SignedOrder(NamedTuple):
    operator: str  # public key, in hex
    message: bytes
    heads: list[Head]  # of the guard's ledger, as far as the server knows


def sign(message: bytes, key: Ed25519PrivateKey, heads: Sequence[Head] = ()) -> bytes:
    text = _HEADS.dump_json(list(heads))
    content = struct.pack(">I", len(text)) + text + message
    return public_bytes(key) + key.sign(CONTEXT + content) + content


def verified(signed: bytes) -> SignedOrder:
    """Return who signed an order, its message and the heads that came with it; raise if nobody did.

    Guarantees:
        Every byte of message and heads is signed, and a signature made for another purpose is not accepted.
    """
    heads, message = _framed(_content(signed, CONTEXT), LONGEST_HEADS, _HEADS, "a list of heads")
    return SignedOrder(signed[:KEY].hex(), message, heads)


def _content(signed: bytes, context: bytes) -> bytes:
    """Return what follows key and signature; raise unless it is what the key signed, for this purpose."""
    key, signature, content = signed[:KEY], signed[KEY : KEY + SIGNATURE], signed[KEY + SIGNATURE :]
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, context + content)
    except (InvalidSignature, ValueError):
        raise MessageError("the signature does not match message and key") from None
    return content


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def write_key(path: Path) -> str:
    """Write a new operator's key, readable by its owner only; return the public key in hex."""
    key = Ed25519PrivateKey.generate()
    write_private(path, key.private_bytes_raw().hex().encode() + b"\n")
    return public_bytes(key).hex()


def read_key(path: Path) -> Ed25519PrivateKey:
    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text(encoding="ascii").strip()))
    except (OSError, ValueError):
        raise InputError(
            f"{path} is no operator's key: expected 64 hexadecimal digits, as `discretion key` writes them"
        ) from None
