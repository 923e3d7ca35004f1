"""The guard's socket, in this process: orders are answered or dropped, and leftovers are cleared."""

import grp
import os
import signal
import socket
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discretion.clients import transport
from discretion.clients.messages import decode_answer
from discretion.errors import InputError
from discretion.guard import policy
from discretion.guard.serve import serve
from support.guarding import policy_of


def served(said: policy.Policy, visit: Callable[[socket.socket], Any]) -> Any:
    """What a visitor finds at the socket; then the process is told to end, as by systemd."""
    found: list[Any] = []

    def come() -> None:
        try:
            for _ in range(2):  # a second connection, when the first is over
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(str(said.socket_path))
                    found.append(visit(connection))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    visitor = threading.Thread(target=come)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as end:
            serve(said, visitor.start)
    finally:
        signal.signal(signal.SIGTERM, before)
        visitor.join()
    assert end.value.code == 0 and not said.socket_path.exists()
    return found[-1]


def asked(connection: socket.socket) -> str:
    transport.send(connection, b"no order", 5.0)
    return decode_answer(transport.receive(connection, 10_000, 5.0))[0].reason


def test_a_connection_that_breaks_off_leaves_the_next_one_served(tmp_path: Path) -> None:
    said, times = policy.read(policy_of(tmp_path, 1)), iter(range(2))

    def visit(connection: socket.socket) -> str:
        if next(times) == 0:
            connection.sendall(struct.pack(">Q", 100) + b"half")
            return ""
        return asked(connection)

    assert "signature" in served(said, visit)


def test_a_socket_of_a_guard_that_was_killed_is_replaced(tmp_path: Path) -> None:
    said = policy.read(policy_of(tmp_path, 1))
    said.socket_path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(said.socket_path))
    assert "signature" in served(said, asked)


def test_a_group_may_use_a_socket_that_it_can_reach(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    path = tmp_path / "run" / "guard.sock"
    path.parent.mkdir()
    said = policy.read(policy_of(tmp_path, 1, group=group, socket=str(path)))
    assert served(said, lambda _: stat.S_IMODE(path.stat().st_mode)) == 0o660


def test_a_place_that_cannot_be_listened_on_is_said(tmp_path: Path) -> None:
    said = policy.read(policy_of(tmp_path, 1, socket=str(tmp_path / "none" / "guard.sock")))
    with pytest.raises(InputError, match="cannot listen on .*: No such file"):
        serve(said)


def test_one_guard_for_a_folder(tmp_path: Path) -> None:
    said = policy.read(policy_of(tmp_path, 1))

    def second() -> None:
        with pytest.raises(InputError, match="in use by another guard"):
            serve(said)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        serve(said, second)
    signal.signal(signal.SIGTERM, before)
