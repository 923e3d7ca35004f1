"""GDPFed and GDPFed+: clients of like budgets form groups, each summed under a noise of its own.

Xu, Hu and Kotevska, "Optimal client sampling in federated learning with client-level heterogeneous
differential privacy" (2025), Algorithms 1 and 2: `gdpfed` asks every group equally often, `gdpfed_opc` as
often as Problem 1 finds best, and `gdpfed_plus` also keeps only the largest coordinates of each group's sum.
Departs from the paper: an independent coin decides for each client, where the paper draws a fixed number
but charges for coins; every client of a group holds a share of its noise, so that the sum is noisy enough
whoever takes part; noise is calibrated by PLD; sums are weighted by inverse variance; and which coordinates
are kept is decided by the model's last step, because picking the largest after the noise keeps the noise.
In paper mode: fixed numbers of clients, noise by the accountant of Opacus, the paper's weights, the largest
coordinates; the true cost of that is certified.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated

import numpy as np
from pydantic import Field

from discretion.accounting import noise_multiplier
from discretion.methods.papers import xu_hu as paper
from discretion.methods.parameters import (
    Accounting,
    Groups,
    LateDropout,
    MeanRate,
    Rate,
    Rounds,
    Share,
    UpdateClip,
)
from discretion.methods.parts import ACCOUNTANTS, finite, unknown_noise
from discretion.methods.registry import secure_sum_method, secure_sum_plan
from discretion.methods.solvers import groups as problem
from discretion.plan import Phase, Population
from discretion.plan.combine import By, Combine
from discretion.plan.plan import Plan, Sampling

KEPT = (0.7, 0.9)  # k / d of the strictest and of the most generous group, in the paper's experiments
_registered = partial(secure_sum_method, paper="Xu, Hu and Kotevska 2025", reads="budgets")


def _grouped(
    population: Population,
    rounds: int,
    rate: float,
    clip: float,
    groups: int,
    accounting: Accounting,
    dropout: float,
    optimal: bool,
) -> Plan:
    """Return the plan of one sum for each group, with rates by Problem 1 (`optimal`) or equal ones."""
    paper_mode = accounting == "paper"
    found = problem.group(finite(population.epsilon, otherwise=1.0), groups)
    delta = found.least(population.delta)
    # q_m: how often each group is asked
    rates = np.full(len(found.size), rate)
    if optimal:
        rates = problem.capped_rates(found.epsilon, delta, found.size, rate)
    if paper_mode:  # r_m is a number of clients
        rates = np.maximum(np.round(rates * found.size), 1) / found.size
    drawn, cohort = rates * found.size.astype(float), rate * len(population)
    # sigma_m: noise of each group's sum, over the clip
    sigma = noise_multiplier(found.epsilon, delta, rates, rounds, ACCOUNTANTS[accounting])
    if paper_mode:
        weight, noise = paper.weights(drawn) / cohort, clip * sigma
    else:
        weight = problem.inverse_variance(drawn, sigma, cohort) / cohort
        noise = clip * sigma
    clips = np.full(len(population), clip)
    phase = Phase(rounds, rates[found.member], clips, noise, found.member, weight)
    sampling: Sampling = "fixed_size" if paper_mode else "poisson"
    made = secure_sum_plan(
        "gdpfed", population.client, (phase,), dropout=dropout, sampling=sampling, accounting=accounting
    )
    if paper_mode:
        return made
    return replace(made, phases=(replace(phase, noise=noise / np.sqrt(unknown_noise(made))),))


@_registered(
    title="GDPFed",
    idea="Clients of like budgets form groups, each summed under a noise of its own.",
    order=300,
)
def gdpfed(
    population: Population,
    rounds: Rounds,
    rate: Rate,
    clip: UpdateClip,
    groups: Groups = 3,
    accounting: Accounting = "tight",
    dropout: LateDropout = 0.0,
) -> Plan:
    return _grouped(population, rounds, rate, clip, groups, accounting, dropout, optimal=False)


@_registered(title="GDPFed-opc", idea="GDPFed, with generous groups asked more often.", order=301)
def gdpfed_opc(
    population: Population,
    rounds: Rounds,
    rate: MeanRate,
    clip: UpdateClip,
    groups: Groups = 3,
    accounting: Accounting = "tight",
    dropout: LateDropout = 0.0,
) -> Plan:
    return _grouped(population, rounds, rate, clip, groups, accounting, dropout, optimal=True)


@_registered(
    title="GDPFed+", idea="GDPFed-opc, keeping only some coordinates of each group's sum.", order=302
)
def gdpfed_plus(
    population: Population,
    rounds: Rounds,
    rate: MeanRate,
    clip: UpdateClip,
    groups: Groups = 3,
    kept_low: Annotated[
        Share, Field(description="share of the coordinates kept of the strictest group's sum, k / d")
    ] = KEPT[0],
    kept_high: Annotated[
        Share, Field(description="share of the coordinates kept of the most generous group's sum, k / d")
    ] = KEPT[1],
    accounting: Accounting = "tight",
    dropout: LateDropout = 0.0,
) -> Plan:
    made = _grouped(population, rounds, rate, clip, groups, accounting, dropout, optimal=True)
    kept = np.linspace(kept_low, kept_high, len(made.phases[0].noise))
    by: By = "largest" if accounting == "paper" else "last_step"
    return replace(made, combine=Combine("top_k", tuple(kept.tolist()), by=by))
