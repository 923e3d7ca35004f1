"""FedPCS under a budget for each round: as many clients as their privacy levels together allow.

Yuan and Wang, "A game-theoretic framework for privacy-aware client sampling in federated learning" (2025),
Algorithm 3 and Theorem 7: the sampling ratio follows a budget B_t that changes over time.
Departs from the paper: the server's cost has a term that falls with the number of clients, the variance of
the draw, because without it Theorem 7 asks nobody, or pays a negative reward; clients are filled in by level.
Otherwise as FedPCS.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from discretion.methods.fedpcs import level_method, plan_of_levels
from discretion.methods.levels import explain, levels
from discretion.methods.parameters import Accounting, Positive, RecordClip, Reward, Rounds, Seed, Share
from discretion.methods.parts import cohort_of
from discretion.methods.solvers import cohorts
from discretion.plan import Plan, Population
from discretion.randomness.streams import Purpose, stream


@level_method(
    title="FedPCS (adaptive)",
    idea="FedPCS, with as many clients in a round as a budget for that round allows.",
    note="Traits of the population: rho, privacy_weight.",
    explain=explain,
    order=501,
)
def fedpcs_adaptive(
    population: Population,
    rounds: Rounds,
    rate: Annotated[Share, Field(description="cohort of a mean round, as a share of the clients")],
    clip: RecordClip,
    reward: Reward = 5.0,
    budget_start: Annotated[
        Positive, Field(description="sum of the levels in the first round, over that of a mean cohort")
    ] = 0.5,
    budget_end: Annotated[
        Positive, Field(description="sum of the levels in the last round, over that of a mean cohort")
    ] = 1.5,
    seed: Annotated[Seed, Field(description="seed of the order among equal levels")] = 0,
    accounting: Accounting = "tight",
) -> Plan:
    rho = levels(population, rounds, rate, reward)
    cohort, random = cohort_of(population, rate), stream(seed, Purpose.TURNS)
    turns = np.zeros(rho.shape, dtype=np.int64)
    for t, part in enumerate(np.linspace(budget_start, budget_end, rounds)):
        order = random.permutation(len(population))  # among equals chance decides
        level = rho[t][order]
        # the server's cost in units in which a mean cohort would be the best where the budget does not bind
        weight = reward * level.mean() * cohort**2
        chosen, _ = cohorts.within_round(level, float(part * cohort * level.mean()), reward, 0.5, weight)
        turns[t, order[chosen]] = 1
    counts = np.maximum(turns.sum(axis=1, keepdims=True), 1)
    return plan_of_levels(population, rho, turns, clip, np.ones_like(rho) / counts, accounting)
