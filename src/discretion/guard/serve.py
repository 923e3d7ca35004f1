"""The guard's Unix socket: one order for each connection."""

import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from discretion.clients.messages import KEY, LONGEST_HEADER, SIGNATURE
from discretion.clients.prometheus import MetricsServer, port_of
from discretion.errors import InputError
from discretion.files import locked, make_folder
from discretion.guard.guard import Guard
from discretion.guard.metrics import OwnBudget
from discretion.guard.own_ledger import ledger_path
from discretion.guard.policy import Policy
from discretion.guard.reception import Reception

log = logging.getLogger("discretion.guard")

BACKLOG = 1024  # connections that wait to be taken: one that comes when it is full is refused at once


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
    door.listen(BACKLOG)
    return door


def _metrics(policy: Policy, guard: Guard) -> AbstractContextManager[object]:
    """Serve metrics where the policy says so. Their thread reads counts and the ledger's file alone."""
    if not policy.metrics:
        return nullcontext()
    budget = OwnBudget(ledger_path(policy))
    return MetricsServer(port_of(policy.metrics), lambda: [*guard.tally.metrics(), *budget.metrics()])


def serve(policy: Policy, ready: Callable[[], None] = lambda: None) -> None:
    """Answer orders on the policy's socket until the process gets SIGTERM; call `ready` once it listens.

    Guarantees:
        Whatever bytes arrive, or do not, the sender gets an answer, a refusal or nothing, and other orders
        are served meanwhile. Only this thread uses the guard.
    """
    body = max(4 * policy.ceilings.parameters, policy.ceilings.plan_bytes)
    most = KEY + SIGNATURE + 4 + LONGEST_HEADER + body

    def end(*_: object) -> None:
        raise SystemExit(0)

    folder = Path(policy.folder)
    make_folder(folder, 0o700)
    in_use = f"{folder} is in use by another guard: end that one, or set another folder"
    with locked(folder / ".lock", in_use):
        guard = Guard(policy)
        signal.signal(signal.SIGTERM, end)
        try:
            with _metrics(policy, guard), _listening(policy) as door, Reception(door, most) as reception:
                log.info("guard of %s listening on %s", policy.client, policy.socket_path)
                ready()
                reception.answer_with(guard.answer)
        finally:
            policy.socket_path.unlink(missing_ok=True)
            guard.close()
