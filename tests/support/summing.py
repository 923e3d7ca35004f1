"""Five clients whose guards have each other's keys, and plans whose answers they sum securely."""

from pathlib import Path
from typing import Any

from discretion.clients.messages import public_bytes
from discretion.clients.remote import RemoteClients
from discretion.clients.transport import Transport
from discretion.guard import policy
from discretion.guard.guard import Guard
from discretion.guard.identity import own_keys
from discretion.plan.plan import Plan
from discretion.secure_sum.roster import Roster, roster_text
from support.guarding import (
    KEY,
    LOCAL,
    PEOPLE,
    RECORDS,
    SHAPES,
    STRANGER,
    one_pool,
    plan_of,
    policy_of,
)

CONSORTIUM = STRANGER
CLIENTS = tuple(f"c{i}" for i in range(5))


def summed(rounds: int = 2, rate: float = 1.0, noise: float = 20.0, **more: Any) -> Plan:
    """A plan of one pool, on a grid, that promises against the server."""
    return plan_of(one_pool(rounds, noise, rate), noise_at="secure_sum", **more).on_grid(2.0**-20, 650)


def roster_of(folder: Path, clients: tuple[str, ...] = CLIENTS) -> Roster:
    """The keys that the guards in a folder have, which are made if they have none."""
    return Roster({name: own_keys(folder / name / "guard").contact(name) for name in clients})


def policies(folder: Path, clients: tuple[str, ...] = CLIENTS, **more: Any) -> dict[str, Path]:
    """Write GUARD.toml of every client, with a roster that a consortium signs; keys are made once."""
    folder.mkdir(exist_ok=True)
    for name in CLIENTS:
        policy_of(folder, int(name[1:]))
    (folder / "roster.json").write_text(roster_text(roster_of(folder, clients), CONSORTIUM))
    section = {"roster": "../roster.json", "consortium": public_bytes(CONSORTIUM).hex()}
    settings = {"secure_sum": section, **more}
    return {name: policy_of(folder, int(name[1:]), **settings) for name in clients}


def summing_guards(folder: Path, clients: tuple[str, ...] = CLIENTS, **more: Any) -> dict[str, Guard]:
    return {name: Guard(policy.read(path)) for name, path in policies(folder, clients, **more).items()}


def summing(transport: Transport, plan: Plan, roster: Roster, run: str = "r", **more: Any) -> RemoteClients:
    """The server of all five clients, with a roster."""
    settings: dict[str, Any] = {"timeout": 60.0, "least_answers": 0.0}
    return RemoteClients(
        transport,
        KEY,
        plan,
        PEOPLE,
        run,
        model="linear",
        shapes=SHAPES,
        records=RECORDS,
        local=LOCAL,
        roster=roster,
        **(settings | more),
    )
