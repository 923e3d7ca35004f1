"""A first GUARD.toml for one client of a plan, which allows just what that plan asks for."""

from typing import Any

import tomli_w

from discretion.plan.plan import Plan
from discretion.plan.population import Population


def new_policy(
    plan: Plan,
    population: Population,
    client: int,
    *,
    operator: str,
    model: tuple[str, str],
    data: str,
    epochs: int,
    steps: int,
    rule: str,
    seed: int | None,
) -> str:
    """Return the TOML text of a policy for trying out a run on one machine.

    `operator` is a public key in hex; `model` a name and the digest of its parameters' shapes; `data` the
    name of a data set, of which records.txt beside the policy lists the client's own records; `epochs` and
    `steps` those of local training; `rule` that of the ledger; `seed` the run's, used if the plan is seeded.
    """
    trusting = plan.promise != "server" or plan.noise_at == "secure_sum"
    against = "clients" if plan.promise == "server" and trusting else plan.promise
    turns = max(1 if p.turns is None else int(p.turns[client]) for p in plan.phases)
    record: dict[str, Any] = {
        "client": population.client[client],
        "epsilon": float(population.epsilon[client]),
        "delta": float(population.delta[client]),
        "unit": plan.unit,
        "adjacency": plan.adjacency,
        "against": against,
        "colluding": plan.colluding,
        "trust_server": trusting,
        "size": int(population.size[client]),
        "operators": {"here": operator},
        "models": dict([model]),
        "statistics": [plan.reading.rule] if plan.reading else [],
        "rule": rule,
        "data": {"name": data, "records": "records.txt"},
        "ceilings": {
            "rounds": plan.rounds,
            "turns": max(turns, 1),
            "epochs": max(epochs, 1),
            "steps": max(steps, *(phase.steps for phase in plan.phases)),
        },
    }
    if plan.randomness == "seeded":
        record["test_seed"] = seed
    return tomli_w.dumps(record)
