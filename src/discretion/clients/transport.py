"""How orders reach clients and answers come back: bytes by a client's name."""

import queue
import socket
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from discretion import frames
from discretion.errors import ConfigError, MessageError

LONGEST_ANSWER = 2**31
AT_ONCE = 64  # sockets that are open at the same time


class Transport(Protocol):
    def exchange(self, orders: Sequence[tuple[str, bytes]], timeout: float) -> Iterator[tuple[int, bytes]]:
        """Send each order to its client; yield answers as they come, each with its order's number.

        What has not come within `timeout` seconds, or cannot be reached, is left out.
        """


def read_addresses(path: Path) -> dict[str, Path]:
    """From a TOML file with a line for each client: its name, and the socket of its guard."""
    try:
        record = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read the guards' sockets from {path}: {problem}") from None
    if not record or not all(isinstance(where, str) for where in record.values()):
        raise ConfigError(f'{path}: expected lines such as hospital-a = "/run/hospital-a/guard.sock"')
    return {client: path.absolute().parent / where for client, where in record.items()}


class Sockets:
    """Straight to the sockets of guards on this machine."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = dict(paths)

    def exchange(self, orders: Sequence[tuple[str, bytes]], timeout: float) -> Iterator[tuple[int, bytes]]:
        deadline = time.monotonic() + timeout
        waiting = queue.SimpleQueue[int]()
        for number in range(len(orders)):
            waiting.put(number)
        found = queue.SimpleQueue[tuple[int, bytes | None]]()

        def work() -> None:
            while True:
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                found.put((number, self._ask(*orders[number], deadline)))

        for _ in range(min(AT_ONCE, len(orders))):
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
                frames.send(connection, order, left)
                return frames.receive(connection, LONGEST_ANSWER, max(deadline - time.monotonic(), 0.001))
        except (OSError, MessageError):
            return None
