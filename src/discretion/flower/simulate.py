"""Simulation on Flower's engine (Ray): the guards of all clients, each in whichever process is free.

One operator starts everything and sees everything: a simulation tries plans on many cores or machines, and
protects no client from that operator. Guards decide as in a deployment, on ledgers in the run folder.
"""

import fcntl
from functools import lru_cache, partial
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from discretion.clients.messages import decode_order, verified
from discretion.errors import InputError
from discretion.flower.client_app import packed, unpacked
from discretion.flower.flower_transport import FlowerTransport
from discretion.guard import policy
from discretion.guard.guard import Guard
from discretion.runs import preflight
from discretion.runs.execute import OnRound, execute
from discretion.runs.guard_folders import ROSTER
from discretion.runs.read import Run

MOST_GUARDS = 256  # kept open in a process


@lru_cache(MOST_GUARDS)
def _guard(path: Path) -> Guard:
    return Guard(policy.read(path))


def answer(guards: Path, signed: bytes) -> bytes:
    """Return the answer of the addressed client's guard; a lock keeps other processes from running it."""
    order, _ = decode_order(verified(signed)[1])
    home = guards / order.client
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _guard(home / "GUARD.toml").answer(signed)


def simulate(run: Run, guards: Path, on_round: OnRound) -> None:
    """Run the remaining rounds of a run, with all clients' policies and an operator's key in `guards`."""
    clients = run.population.client
    here = guards.absolute()

    def play(message: Message, context: Context) -> Message:
        return Message(packed(answer(here, unpacked(message))), reply_to=message)

    def serve(grid: Grid, context: Context) -> None:
        given = [f"clients.key={here / 'operator.key'}"]
        if (here / ROSTER).exists():
            given.append(f"secure_sum.roster={here / ROSTER}")
        transport, tell = FlowerTransport(grid, simulated=clients), partial(preflight.write, run.files)
        execute(run, on_round, transport=transport, overrides=given, tell=tell)

    nodes, server = ClientApp(), ServerApp()
    nodes.train()(play)
    server.main()(serve)
    run_simulation(server, nodes, len(clients), backend_config={"client_resources": {"num_cpus": 1}})
    if not run.finished:
        if (found := preflight.read(run.files)) is not None:
            found.require()
        run.refreshed().require_answers()
        raise InputError(f"the simulation did not finish the run in {run.folder}; continue it with --resume")
