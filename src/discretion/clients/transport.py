"""Transports of orders and answers as bytes, by the client's name; length-prefixed over sockets."""

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from discretion.errors import ConfigError, MessageError, listed
from discretion.files import read_toml
from discretion.plan.names import bad_names

LONGEST_ANSWER = 2**31
AT_ONCE = 64  # open sockets
CHUNK = 2**20


class Transport(Protocol):
    def exchange(self, orders: Sequence[tuple[str, bytes]], timeout: float) -> Iterator[tuple[int, bytes]]:
        """Send each order to its client; yield each answer as it arrives, with its order's number.

        Clients that cannot be reached or do not answer within `timeout` seconds are left out.
        """


def read_addresses(path: Path) -> dict[str, Path]:
    """Read a TOML file with a line for each client: its name and the path of its guard's socket."""
    record = read_toml(path)
    if not record or not all(isinstance(where, str) for where in record.values()):
        raise ConfigError(f'{path}: expected lines such as hospital-a = "/run/hospital-a/guard.sock"')
    if bad := bad_names(record):
        raise ConfigError("\n  ".join([f"{path}: {len(bad)} names that no client can have", *listed(bad)]))
    return {client: path.absolute().parent / where for client, where in record.items()}


def send(connection: socket.socket, content: bytes, timeout: float) -> None:
    connection.settimeout(timeout)
    connection.sendall(struct.pack(">Q", len(content)))
    connection.sendall(content)


def receive(
    connection: socket.socket, most: int, timeout: float, came: Callable[[int], None] = lambda size: None
) -> bytes:
    """Receive one message of at most `most` bytes within `timeout` seconds, or raise a MessageError.

    `came` is told how many bytes came, each time that some did.

    Guarantees:
        Memory grows with the bytes received, not with the announced length.
    """
    deadline = time.monotonic() + timeout
    (length,) = struct.unpack(">Q", _exactly(connection, 8, deadline, came))
    if length > most:
        raise MessageError(f"message of {length} bytes is longer than the {most} allowed")
    return _exactly(connection, length, deadline, came)


def _exactly(connection: socket.socket, length: int, deadline: float, came: Callable[[int], None]) -> bytes:
    content = bytearray()
    while len(content) < length:
        left = deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
            part = connection.recv(min(CHUNK, length - len(content)))
        except TimeoutError:
            raise MessageError(f"timed out after {len(content)} of {length} bytes") from None
        if not part:
            raise MessageError(f"connection closed after {len(content)} of {length} bytes")
        content += part
        came(len(part))
    return bytes(content)


class Sockets:
    """Transport to Unix sockets of guards on this machine."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = dict(paths)

    def exchange(self, orders: Sequence[tuple[str, bytes]], timeout: float) -> Iterator[tuple[int, bytes]]:
        deadline = time.monotonic() + timeout
        waiting, found = queue.SimpleQueue[int | None](), queue.SimpleQueue[tuple[int, bytes | None]]()

        def work() -> None:
            while (number := waiting.get()) is not None:
                found.put((number, self._ask(*orders[number], deadline)))

        for number in range(len(orders)):
            waiting.put(number)
        for _ in range(min(AT_ONCE, len(orders))):
            waiting.put(None)  # ends one thread
            threading.Thread(target=work, daemon=True).start()
        for _ in orders:
            number, answer = found.get()
            if answer is not None:
                yield number, answer

    def _ask(self, client: str, order: bytes, deadline: float) -> bytes | None:
        path, left = self._paths.get(client), deadline - time.monotonic()
        if path is None or left <= 0:
            return None
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(left)
                connection.connect(str(path))
                send(connection, order, left)
                return receive(connection, LONGEST_ANSWER, max(deadline - time.monotonic(), 0.001))
        except (OSError, MessageError):
            return None
