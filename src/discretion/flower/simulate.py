"""Flower's simulation engine (Ray) underneath: guards of all clients, each in whichever process has time.

One operator starts all of it, and sees everything: this is for trying plans on many cores or machines, and
protects nobody from whoever runs it. Guards decide as they do elsewhere, over ledgers in the run folder.
"""

import fcntl
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from discretion.errors import InputError
from discretion.flower.relay import packed, unpacked
from discretion.flower.transport import FlowerTransport
from discretion.guard import policy
from discretion.guard.keeper import Guard
from discretion.messages import decode_order, verified
from discretion.population import Population
from discretion.runs import Progress, RunFolder, execute

MOST_GUARDS = 256  # that a process keeps open


@lru_cache(MOST_GUARDS)
def _guard(path: Path) -> Guard:
    return Guard(policy.read(path))


def answer(guards: Path, signed: bytes) -> bytes:
    """What the guard of the client that is asked answers; no other process plays it at the same time."""
    order, _ = decode_order(verified(signed)[1])
    home = guards / order.client
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _guard(home / "GUARD.toml").answer(signed)


def simulate(folder: RunFolder, guards: Path, on_round: Callable[[Progress], None]) -> None:
    """Do what is left of a prepared run, with policies of all clients and an operator's key in `guards`."""
    clients = Population.from_csv(folder.population).client
    here = guards.absolute()

    def play(message: Message, context: Context) -> Message:
        return Message(packed(answer(here, unpacked(message))), reply_to=message)

    def serve(grid: Grid, context: Context) -> None:
        key = f"clients.key={here / 'operator.key'}"
        execute(folder, None, on_round, transport=FlowerTransport(grid, simulated=clients), overrides=[key])

    nodes, server = ClientApp(), ServerApp()
    nodes.train()(play)
    server.main()(serve)
    run_simulation(server, nodes, len(clients), backend_config={"client_resources": {"num_cpus": 1}})
    if not folder.model.exists():
        raise InputError(f"the simulation did not finish the run in {folder.path}; go on with --resume")
