"""Personalised local privacy with adaptive sampling: how often a client is drawn follows from what it adds.

The online appendix of a paper on personalised local differential privacy with adaptive client sampling (its
main text could not be had), Theorems 1 and 3 and problem (47). K draws a round with replacement; an update
counts p_n / q_n, p_n the client's share of the data, so that the draw does not bias the model. Noise is
added to every local step (gradient perturbation) or to the update (output perturbation).
Departs from the paper: turns are drawn when planning, so that noise is for exactly as many and no tail has
to be allowed for; then who needs more noise is drawn less, not more. Output perturbation clips the update,
because its sensitivity is not 2C/m where losses are not convex: it protects all of a client's data. In
paper mode: noise for the bound T* of Lemma 1 and q of the printed (47); of the appendix's factor s_i
nothing is known but its name, and it is taken as 1.
"""

import numpy as np

from discretion.accounting.papers import adaptive_sampling as paper
from discretion.errors import ConfigError
from discretion.methods.details import Details
from discretion.methods.parts import (
    cohort_of,
    draw,
    finite,
    own_phases,
    shares,
    whole_gaussian,
)
from discretion.methods.privacy_aware import multipliers
from discretion.plan import Accounting, Plan
from discretion.population import Floats, Ints, Population
from discretion.problems import adaptive_sampling as problem

UPDATE = 1.0  # mean square of an update, in units of the clip: not known before training, and at most this
SLACK = 0.5  # delta'' and delta''' of the paper, as shares of delta


def plan(
    population: Population,
    rounds: int,
    rate: float,
    clip: float,
    perturb: str = "gradient",
    steps: int = 5,
    batch: float = 1.0,
    seed: int = 0,
    accounting: Accounting = "tight",
) -> Plan:
    """rounds: how many; rate: draws in a round, as a share of the clients; clip: bound on one record's
    gradient, or on the update; perturb: gradient or output; steps: noisy steps in a turn (gradient); batch:
    chance of a record to be in a step's batch (gradient); seed: of the draws; accounting: tight or paper."""
    if perturb not in ("gradient", "output"):
        raise ConfigError(f"perturb is {perturb!r}: expected gradient or output")
    paper_mode, cohort = accounting == "paper", cohort_of(population, rate)
    q = probabilities(population, cohort, rounds, paper_mode)
    turns = draw(q, cohort, rounds, seed)
    sigma = _multiplier(population, q, turns, cohort * rounds, steps, batch, perturb, paper_mode)
    weight = shares(population) / q / cohort
    by_step = perturb == "gradient"
    return Plan(
        method="pldp_sampling",
        clients=population.client,
        phases=own_phases(
            turns, clip, clip * sigma, weight, batch if by_step else None, steps if by_step else 1
        ),
        adjacency="add_remove" if by_step else "replace",
        noise_at="steps" if by_step else "clients",
        promise="server",
        accounting=accounting,
    )


def explain(population: Population, rounds: int, rate: float, accounting: Accounting) -> Details:
    """Chances of a draw."""
    return Details(
        chance=probabilities(population, cohort_of(population, rate), rounds, accounting == "paper")
    )


def probabilities(population: Population, cohort: int, rounds: int, paper_mode: bool) -> Floats:
    """(N,) the chance q_n of each client in a draw."""
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


def _multiplier(
    population: Population,
    q: Floats,
    turns: Ints,
    draws: int,
    steps: int,
    batch: float,
    perturb: str,
    paper_mode: bool,
) -> Floats:
    """(N,) noise over what one unit can change: none for public clients."""
    private = np.isfinite(population.epsilon)
    sigma = np.zeros(len(population))
    epsilon, delta = population.epsilon[private], population.delta[private]
    if paper_mode:
        exceeded = SLACK * delta
        bound = paper.turns_bound(q[private], draws, exceeded)
        if perturb == "output":
            sigma[private] = 2 * paper.output_multiplier(epsilon, delta - exceeded, bound)
        else:
            sigma[private] = paper.gradient_multiplier(epsilon, delta - exceeded, exceeded, bound, steps)
    elif perturb == "output":  # another data set in its place moves the update by two clips
        sigma[private] = 2 * whole_gaussian(epsilon, delta, turns.sum(axis=0)[private])
    else:
        sigma = multipliers(population, turns.sum(axis=0) * steps, batch)
    return sigma
