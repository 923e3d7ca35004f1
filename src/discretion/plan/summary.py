"""What a plan does to each client, summed up over its rounds: for tables and figures."""

from dataclasses import dataclass

import numpy as np

from discretion.plan import Plan, Sampling
from discretion.population import Floats

COMING: dict[Sampling, str] = {
    "poisson": "a secret coin for each client and round",
    "fixed_size": "a fixed number, drawn in secret for each round",
}


@dataclass(frozen=True)
class Treatment:
    """Least and most over the rounds are the rows of (2, N) arrays; NaN for who never takes part."""

    public: bool  # turns were drawn when planning; else they are secret
    coming: str  # who takes part, in words
    turns: Floats  # (N,) rounds that a client is expected to take part in, or turns that it has
    rate: Floats  # (2, N) chance of taking part in a round; turns for each round where they are public
    clip: Floats  # (2, N)
    multiplier: Floats  # (2, N) noise over clip, as charged
    batch: Floats | None  # (2, N) chance of a record to be in a batch
    steps: tuple[int, int]  # of a turn, each on a batch; least and most


def treatment(plan: Plan) -> Treatment:
    """Clips and multipliers are of the rounds in which a client may take part."""
    clients = len(plan.clients)
    turns = np.zeros(clients)
    found = {name: _nothing(clients) for name in ("rate", "clip", "multiplier", "batch")}
    for phase in plan.phases:
        turns += phase.rounds * phase.expected
        taking = phase.expected > 0
        columns = {"rate": phase.expected, "clip": phase.clip, "multiplier": plan.release(phase)[1]}
        if phase.batch is not None:
            columns["batch"] = phase.batch
        for name, column in columns.items():
            low, high = found[name]
            mine = taking | (name == "rate")
            np.fmin(low, column, out=low, where=mine)
            np.fmax(high, column, out=high, where=mine)
    public = all(phase.turns is not None for phase in plan.phases)
    steps = [phase.steps for phase in plan.phases]
    return Treatment(
        public=public,
        coming="drawn in advance, and public" if public else COMING[plan.sampling],
        turns=turns,
        rate=np.stack([turns, turns]) / plan.rounds if public else found["rate"],
        clip=found["clip"],
        multiplier=found["multiplier"],
        batch=None if all(phase.batch is None for phase in plan.phases) else found["batch"],
        steps=(min(steps), max(steps)),
    )


def _nothing(clients: int) -> Floats:
    return np.full((2, clients), np.nan)


def ends(column: Floats) -> tuple[float, float] | None:
    """Least and most of a column, of some clients; nothing where none of them ever takes part."""
    known = column[~np.isnan(column)]
    return (float(known.min()), float(known.max())) if known.size else None
