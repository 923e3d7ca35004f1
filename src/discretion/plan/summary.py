"""What a plan does to each client, summed up over its rounds: for tables and figures."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from discretion.arrays import Floats
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan

Coming = Literal["public", "poisson", "fixed_size"]  # turns drawn in advance; else secret coins, by sampling


@dataclass(frozen=True)
class Treatment:
    """What a plan does to each client; (2, N): least and most over its rounds, NaN if it never takes part."""

    public: bool  # turns were drawn when planning; else they are secret
    coming: Coming  # what decides who takes part
    turns: Floats  # (N,) expected number of rounds with the client, or its number of public turns
    rate: Floats  # (2, N) sampling rate; where turns are public, turns per round
    clip: Floats  # (2, N) clipping norm
    multiplier: Floats  # (2, N) noise that counts, over the clip
    batch: Floats | None  # (2, N) sampling rate of records
    steps: tuple[int, int]  # least and most noisy steps in a turn


def treatment(plan: Plan) -> Treatment:
    """Return the summary of a plan; clips and multipliers are of rounds in which a client may take part."""
    turns = np.zeros(len(plan.clients))
    found = {name: np.full((2, len(turns)), np.nan) for name in ("rate", "clip", "multiplier", "batch")}
    for phase in plan.phases:
        turns += phase.rounds * phase.expected
        taking = phase.expected > 0
        columns = {"rate": phase.expected, "clip": phase.clip, "multiplier": noise_over_clip(plan, phase)}
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
        coming="public" if public else plan.sampling,
        turns=turns,
        rate=np.stack([turns, turns]) / plan.rounds if public else found["rate"],
        clip=found["clip"],
        multiplier=found["multiplier"],
        batch=None if all(phase.batch is None for phase in plan.phases) else found["batch"],
        steps=(min(steps), max(steps)),
    )


def noise_over_clip(plan: Plan, phase: Phase) -> Floats:
    """Return (N,) the noise that no promised adversary knows, over the clip.

    What is charged is that noise over the sensitivity, which is twice the clip where a unit is replaced by
    another: half of what is returned here.
    """
    charged, reach = plan.release(phase)[1], plan.sensitivity(phase)
    clipped = (phase.clip > 0) & np.isfinite(phase.clip)
    ratio = np.divide(reach, phase.clip, out=np.ones_like(phase.clip), where=clipped)
    return np.asarray(charged * ratio)


def ends(column: Floats) -> tuple[float, float] | None:
    """Return the least and the most of a column; None where no client of the column ever takes part."""
    known = column[~np.isnan(column)]
    return (float(known.min()), float(known.max())) if known.size else None
