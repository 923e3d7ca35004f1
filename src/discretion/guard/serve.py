"""The guard's door: a Unix socket, one order at a time, one order to a connection."""

import fcntl
import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from discretion import frames
from discretion.errors import InputError, MessageError
from discretion.guard.keeper import Guard
from discretion.guard.policy import Policy
from discretion.messages import KEY, LONGEST_HEADER, SIGNATURE

log = logging.getLogger("discretion.guard")

READING, WRITING = 60.0, 60.0  # seconds that an order may take to come, and an answer to be taken
LONGEST_PLAN = 2**26


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Only one guard for a folder; the lock goes with the process, however it ends."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another guard is using {folder}") from None
        yield


def _listening(policy: Policy) -> socket.socket:
    """A socket that only its own user, or a group that the policy names, may use from its first moment."""
    path = policy.socket_path
    if policy.group and path.parent == Path(policy.folder):
        raise InputError(
            f"the group {policy.group} cannot reach {path}: its folder is the guard's alone. Name another "
            'place in GUARD.toml, such as socket = "/run/discretion/guard.sock"'
        )
    if path.is_socket():
        path.unlink()  # of a guard that ended without notice: the folder is ours alone
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        door.bind(str(path))
    except OSError as problem:
        raise InputError(f"cannot listen on {path}: {problem.strerror or problem}") from None
    finally:
        os.umask(before)
    if policy.group:
        shutil.chown(path, group=policy.group)
        path.chmod(0o660)
    door.listen(64)
    return door


def serve(policy: Policy, ready: Callable[[], None] = lambda: None) -> None:
    """Answer orders until the process is told to end.

    Guarantees:
        Whatever comes, a clean refusal or nothing goes back, and the next order is served.
    """
    most = KEY + SIGNATURE + 4 + LONGEST_HEADER + max(4 * policy.ceilings.parameters, LONGEST_PLAN)

    def end(*_: object) -> None:
        raise SystemExit(0)

    with _alone(Path(policy.folder)):
        guard = Guard(policy)
        signal.signal(signal.SIGTERM, end)
        try:
            with _listening(policy) as door:
                log.info("the guard of %s listens on %s", policy.client, policy.socket_path)
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
        frames.send(connection, guard.answer(frames.receive(connection, most, READING)), WRITING)
    except (OSError, MessageError) as problem:
        log.info("a connection came to nothing: %s", problem)
