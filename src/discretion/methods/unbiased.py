"""Unbiased selection: clients drawn by their share of the data, or weighted to make up for another draw.

The baselines of Xu, Zhang and Huang (2025): p = p^u, after Li et al., "On the convergence of FedAvg on
non-IID data", ICLR 2020 (`unbiased`); and importance compensation, any p with weights p^u / p, after Luo et
al., "Tackling system and statistical heterogeneity", INFOCOM 2022 (`unbiased_compensated`).
Departs from the paper where privacy-aware selection does, and for the same reasons.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from discretion.arrays import Floats
from discretion.methods.parameters import Accounting, Batch, DrawRate, RecordClip, Rounds, Seed, Steps
from discretion.methods.parts import draw, finite, shares
from discretion.methods.privacy_aware import PlannedDraws, selection_method
from discretion.methods.registry import Details
from discretion.plan import Plan, Population

By = Annotated[
    Literal["privacy", "epsilon", "uniform"],
    Field(description="draw as privacy-aware selection (privacy), in proportion to epsilon, or uniformly"),
]


@selection_method(
    title="Unbiased selection",
    idea="Clients are drawn by their share of the data.",
    explain=lambda population, _: Details(chance=shares(population)),
    order=401,
)
def unbiased(
    population: Population,
    rounds: Rounds,
    rate: DrawRate,
    clip: RecordClip,
    steps: Steps = 5,
    batch: Batch = 0.1,
    seed: Seed = 0,
    accounting: Accounting = "tight",
) -> Plan:
    made = PlannedDraws(population, rounds, rate, steps, batch, accounting)
    return made.plan(draw(shares(population), made.cohort, rounds, seed), clip)


@selection_method(
    title="Compensated selection",
    idea="Clients are drawn by privacy, and weighted so that each counts for its share of the data.",
    explain=lambda population, given: Details(
        chance=_chances(PlannedDraws.of(population, given), given["by"])
    ),
    order=402,
)
def unbiased_compensated(
    population: Population,
    rounds: Rounds,
    rate: DrawRate,
    clip: RecordClip,
    steps: Steps = 5,
    batch: Batch = 0.1,
    by: By = "privacy",
    seed: Seed = 0,
    accounting: Accounting = "tight",
) -> Plan:
    made = PlannedDraws(population, rounds, rate, steps, batch, accounting)
    p = _chances(made, by)
    return made.plan(draw(p, made.cohort, rounds, seed), clip, shares(population) / p / made.cohort)


def _chances(drawing: PlannedDraws, by: By) -> Floats:
    """Return each client's chance (N,) in one draw."""
    clients = drawing.population
    if by == "privacy":  # no chance is 0: weights divide by it
        p = np.maximum(drawing.probabilities(0.0), 1e-3 * shares(clients))
    elif by == "epsilon":  # where nobody has a finite budget, all count alike
        p = finite(clients.epsilon, 1.0)
    else:
        p = np.ones(len(clients))
    return np.asarray(p / p.sum())
