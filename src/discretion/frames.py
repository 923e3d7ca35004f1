"""Bytes over a stream socket, with their length before them."""

import socket
import struct
import time

from discretion.errors import MessageError

CHUNK = 2**20


def send(connection: socket.socket, content: bytes, timeout: float) -> None:
    connection.settimeout(timeout)
    connection.sendall(struct.pack(">Q", len(content)))
    connection.sendall(content)


def receive(connection: socket.socket, most: int, timeout: float) -> bytes:
    """What was sent, if it is no longer than `most` and all of it comes within `timeout` seconds.

    Guarantees:
        Memory grows with what came, not with what was announced.
    """
    deadline = time.monotonic() + timeout
    (length,) = struct.unpack(">Q", _exactly(connection, 8, deadline))
    if length > most:
        raise MessageError(f"a message of {length} bytes is longer than the {most} that are taken")
    return _exactly(connection, length, deadline)


def _exactly(connection: socket.socket, length: int, deadline: float) -> bytes:
    content = bytearray()
    while len(content) < length:
        left = deadline - time.monotonic()
        if left <= 0:
            raise MessageError("a message did not come in time")
        connection.settimeout(left)
        try:
            part = connection.recv(min(CHUNK, length - len(content)))
        except TimeoutError:
            raise MessageError("a message did not come in time") from None
        if not part:
            raise MessageError(f"a message broke off after {len(content)} of {length} bytes")
        content += part
    return bytes(content)
