"""The guard's Unix socket: one order for each connection, one connection at a time."""

import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from discretion.clients import transport
from discretion.clients.messages import KEY, LONGEST_HEADER, SIGNATURE
from discretion.errors import InputError, MessageError
from discretion.files import locked
from discretion.guard.guard import Guard
from discretion.guard.policy import Policy

log = logging.getLogger("discretion.guard")

READING, WRITING = 60.0, 60.0  # seconds allowed for receiving an order and for sending its answer
LONGEST_PLAN = 2**26


def _listening(policy: Policy) -> socket.socket:
    """Open the socket; from its first moment only the guard's user, or the policy's group, may connect."""
    path = policy.socket_path
    if policy.group and path.parent == Path(policy.folder):
        raise InputError(
            f"group {policy.group} cannot reach {path}: only the guard's user may open its folder. Set a "
            'socket outside it in GUARD.toml, such as socket = "/run/discretion/guard.sock"'
        )
    if path.is_socket():
        path.unlink()  # left by a killed guard: the folder's lock says that no other is running
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        door.bind(str(path))
    except OSError as problem:
        door.close()
        raise InputError(f"cannot listen on {path}: {problem.strerror or problem}") from None
    finally:
        os.umask(before)
    if policy.group:
        shutil.chown(path, group=policy.group)
        path.chmod(0o660)
    door.listen(64)
    return door


def serve(policy: Policy, ready: Callable[[], None] = lambda: None) -> None:
    """Answer orders on the policy's socket until the process gets SIGTERM; call `ready` once it listens.

    Guarantees:
        Whatever bytes arrive, the sender gets an answer, a refusal or nothing, and the next order is served.
    """
    most = KEY + SIGNATURE + 4 + LONGEST_HEADER + max(4 * policy.ceilings.parameters, LONGEST_PLAN)

    def end(*_: object) -> None:
        raise SystemExit(0)

    folder = Path(policy.folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    in_use = f"{folder} is in use by another guard: end that one, or set another folder"
    with locked(folder / ".lock", in_use):
        guard = Guard(policy)
        signal.signal(signal.SIGTERM, end)
        try:
            with _listening(policy) as door:
                log.info("guard of %s listening on %s", policy.client, policy.socket_path)
                ready()
                while True:
                    connection, _ = door.accept()
                    with connection:
                        _serve_one(guard, connection, most)
        finally:
            policy.socket_path.unlink(missing_ok=True)
            guard.close()


def _serve_one(guard: Guard, connection: socket.socket, most: int) -> None:
    try:
        transport.send(connection, guard.answer(transport.receive(connection, most, READING)), WRITING)
    except (OSError, MessageError) as problem:
        log.info("connection dropped: %s", problem)
