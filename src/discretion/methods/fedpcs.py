"""FedPCS: a game of rewards sets each client's privacy level, and clients are drawn by their levels.

Yuan and Wang, "A game-theoretic framework for privacy-aware client sampling in federated learning" (2025):
Algorithms 1 and 2 (`fedpcs`), and its baseline of uniform draws (`random`). A level is the rho, of
zero-concentrated privacy, of one upload.
Departs from the paper: gradients are clipped record by record, because otherwise a level bounds nothing;
clients have a budget for life, and their levels are scaled so that the uploads drawn for them spend it; the
equilibrium is found by dynamic programming, because the printed conditions have none; turns are drawn when
planning; updates count alike, because weights by 1/level amplify noise, or with `weighted` by true
inclusion chances. In paper mode: levels as played, draws without replacement with weights theta / (K x), no
budget for life.
"""

from functools import partial
from typing import Annotated

import numpy as np
from pydantic import Field

from discretion.arrays import Floats, Ints
from discretion.methods.levels import explain, first_levels, levels, lifetime
from discretion.methods.parameters import Accounting, CohortRate, RecordClip, Reward, Rounds, Seed
from discretion.methods.parts import cohort_of, own_phases, shares
from discretion.methods.registry import record_method, record_plan
from discretion.methods.solvers import cohorts
from discretion.plan import Plan, Population
from discretion.plan.steps import Adjacency
from discretion.randomness.streams import Purpose, stream

level_method = partial(
    record_method, paper="Yuan and Wang 2025", reads="budgets, sizes, and traits rho and privacy_weight"
)


@level_method(
    title="FedPCS",
    idea="A game of rewards sets each client's privacy level, and clients are drawn by their levels.",
    note="Traits of the population: rho (first level), privacy_weight.",
    explain=explain,
    order=500,
)
def fedpcs(
    population: Population,
    rounds: Rounds,
    rate: CohortRate,
    clip: RecordClip,
    reward: Reward = 5.0,
    weighted: Annotated[
        bool, Field(description="weight updates so that the draw does not bias the model")
    ] = False,
    seed: Seed = 0,
    accounting: Accounting = "tight",
) -> Plan:
    rho = levels(population, rounds, rate, reward)
    x = rho / rho.sum(axis=-1, keepdims=True)
    return _drawn(population, rho, x, rate, clip, weighted, seed, accounting)


@level_method(
    title="Random",
    idea="Every client is as likely as any other to be drawn.",
    note="Traits of the population: rho.",
    order=502,
)
def random(
    population: Population,
    rounds: Rounds,
    rate: CohortRate,
    clip: RecordClip,
    seed: Seed = 0,
    accounting: Accounting = "tight",
) -> Plan:
    rho = np.tile(first_levels(population, rounds, rate), (rounds, 1))
    x = np.ones_like(rho) / len(population)
    return _drawn(population, rho, x, rate, clip, False, seed, accounting)


def _drawn(
    population: Population,
    rho: Floats,
    x: Floats,
    rate: float,
    clip: float,
    weighted: bool,
    seed: int,
    accounting: Accounting,
) -> Plan:
    """Return the plan of cohorts of one size, drawn from (T, N) chances x."""
    cohort, coins = min(cohort_of(population, rate), len(population)), stream(seed, Purpose.TURNS)
    weight = np.full(rho.shape, 1 / cohort)
    if accounting == "paper":
        drawn = [coins.choice(rho.shape[1], cohort, replace=False, p=row) for row in x]
        turns = np.stack([np.isin(np.arange(rho.shape[1]), row) for row in drawn])
        # theta / (K x) is unbiased with replacement only: here these weights sum to more than 1 on average
        weight = shares(population) / (cohort * x)
    else:
        chances = cohorts.inclusion(x, cohort)
        turns = np.stack([cohorts.systematic(row, float(coins.random())) for row in chances])
        if weighted:
            weight = cohorts.unbiased_weights(shares(population), chances)
    return plan_of_levels(population, rho, turns.astype(np.int64), clip, weight, accounting)


def plan_of_levels(
    population: Population, rho: Floats, turns: Ints, clip: float, weight: Floats, accounting: Accounting
) -> Plan:
    """Return the plan: in each turn one noisy gradient of all records, of multiplier 1 / sqrt(2 rho)."""
    if accounting == "paper":
        sigma = np.sqrt(2 / rho)  # Proposition 1: for 2W, where a record is replaced by another
    else:
        drawn = np.where(turns > 0, rho, 0.0).sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(drawn > 0, lifetime(population) / drawn, 1.0)
            sigma = 1 / np.sqrt(2 * rho * scale)
    phases = own_phases(turns, clip, clip * sigma, weight, batch=1.0)
    adjacency: Adjacency = "replace" if accounting == "paper" else "add_remove"
    return record_plan("fedpcs", population.client, phases, adjacency=adjacency, accounting=accounting)
