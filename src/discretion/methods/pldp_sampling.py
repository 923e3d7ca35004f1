"""Personalised local privacy with adaptive sampling: how often a client is drawn follows from its noise.

The online appendix of a paper on personalised local differential privacy with adaptive client sampling (its
main text could not be had), Theorems 1 and 3 and problem (47). Each round has K draws with replacement; an
update counts p_n / q_n, with p_n the client's share of the data, so that the draw does not bias the model.
Noise is added to every local step (gradient perturbation) or to the update (output perturbation).
Departs from the paper: turns are drawn when planning, so that noise is calibrated for exactly their number
and no tail bound is needed; then a client that needs more noise is drawn less, not more. Output
perturbation clips the update, because its sensitivity is not 2C/m where losses are not convex: it protects
all of a client's data. In paper mode: noise for the bound T* of Lemma 1 and q of the printed (47); of the
appendix's factor s_i nothing is known but its name, and it is taken as 1.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from discretion.arrays import Floats
from discretion.methods.papers import appendix as paper
from discretion.methods.parameters import Accounting, Count, DrawRate, Positive, Rounds, Seed, Share
from discretion.methods.parts import cohort_of, draw, finite, multipliers, own_phases, shares, whole_gaussian
from discretion.methods.registry import Details, record_method, record_plan
from discretion.methods.solvers import adaptive_sampling as problem
from discretion.plan import Plan, Population

UPDATE = 1.0  # mean square of an update, in units of the clip: not known before training, and at most this
SLACK = 0.5  # delta'' and delta''' of the paper, as shares of delta

Perturb = Literal["gradient", "output"]
output_plan = partial(Plan, adjacency="replace", noise_at="clients", promise="server")


def explain(population: Population, parameters: Mapping[str, Any]) -> Details:
    """Return the chances of a draw."""
    cohort, paper_mode = cohort_of(population, parameters["rate"]), parameters["accounting"] == "paper"
    return Details(chance=probabilities(population, cohort, parameters["rounds"], paper_mode))


@record_method(
    title="PLDP with adaptive sampling",
    idea="How often a client is drawn follows from the noise it needs.",
    paper="online appendix, no authors named",
    reads="budgets and sizes",
    explain=explain,
    order=600,
)
def pldp_sampling(
    population: Population,
    rounds: Rounds,
    rate: DrawRate,
    clip: Annotated[
        Positive, Field(description="bound on the norm of one record's gradient, or of the update (output)")
    ],
    perturb: Annotated[
        Perturb, Field(description="add noise to every step's gradient, or to the update (output)")
    ] = "gradient",
    steps: Annotated[Count, Field(description="noisy steps in a turn (gradient)")] = 5,
    batch: Annotated[Share, Field(description="chance of a record to be in a step's batch (gradient)")] = 1.0,
    seed: Seed = 0,
    accounting: Accounting = "tight",
) -> Plan:
    paper_mode, by_step = accounting == "paper", perturb == "gradient"
    epsilon, delta, cohort = population.epsilon, population.delta, cohort_of(population, rate)
    q = probabilities(population, cohort, rounds, paper_mode)
    turns = draw(q, cohort, rounds, seed)
    # (N,) noise over what one unit can change: another data set moves the update by two clips
    if paper_mode:
        exceeded = SLACK * delta
        bound = paper.turns_bound(q, cohort * rounds, exceeded)
        if by_step:
            sigma = paper.gradient_multiplier(epsilon, delta - exceeded, exceeded, bound, steps)
        else:
            sigma = 2 * paper.output_multiplier(epsilon, delta - exceeded, bound)
    elif by_step:
        sigma = multipliers(population, turns.sum(axis=0) * steps, batch)
    else:
        sigma = 2 * whole_gaussian(epsilon, delta, turns.sum(axis=0))
    weight = shares(population) / q / cohort
    if by_step:
        phases = own_phases(turns, clip, clip * sigma, weight, batch, steps)
        return record_plan("pldp_sampling", population.client, phases, accounting=accounting)
    phases = own_phases(turns, clip, clip * sigma, weight)
    return output_plan("pldp_sampling", population.client, phases, accounting=accounting)


def probabilities(population: Population, cohort: int, rounds: int, paper_mode: bool) -> Floats:
    """Return each client's chance q_n (N,) in one draw, a distribution."""
    epsilon, share = finite(population.epsilon), shares(population)
    if np.isinf(epsilon).all():
        return share
    if paper_mode:
        slack = SLACK * population.delta
        weight = problem.noise_weights(share, epsilon, population.delta - slack, slack)
        return problem.printed_rates(weight, min(cohort, len(population) ** 2))
    once = whole_gaussian(epsilon, population.delta, np.ones(len(population), dtype=np.int64))
    update = np.full(len(population), UPDATE)
    return problem.planned_rates(*problem.planned_terms(share, update, once, cohort, rounds))
