"""GDPFed and GDPFed+: clients of like budgets form groups, each summed under a noise of its own.

Xu, Hu and Kotevska, "Optimal client sampling in federated learning with client-level heterogeneous
differential privacy" (2025), Algorithms 1 and 2: `plan` asks every group equally often, `plan_opc` as often
as Problem 1 finds best, `plan_plus` keeps the largest coordinates of each group's sum, too.
Departs from the paper: an independent coin decides for each client, where the paper draws a fixed number
but charges for coins; every client of a group holds a share of its noise, so that the sum is noisy enough
whoever takes part; noise is calibrated by PLD; sums are weighted by inverse variance; and which coordinates
are kept is decided by the model's last step, because picking the largest after the noise keeps the noise.
In paper mode: fixed numbers, noise by Opacus, its weights, the largest coordinates. What that truly costs
is certified.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from discretion.accounting import noise_multiplier
from discretion.accounting.papers import groups as paper
from discretion.combine import By, Combine
from discretion.methods.parts import ACCOUNTANTS, finite
from discretion.phase import Phase
from discretion.plan import Accounting, Plan
from discretion.population import Floats, Population
from discretion.problems import groups as problem

KEPT = (0.7, 0.9)  # k / d of the strictest and of the most generous group, in the paper's experiments


def _method(name: str, optimal: bool) -> Callable[..., Plan]:
    """The variant of that name: with rates by Problem 1 or equal ones."""

    def plan(
        population: Population,
        rounds: int,
        rate: float,
        clip: float,
        groups: int = 3,
        accounting: Accounting = "tight",
    ) -> Plan:
        """rounds: how many; rate: mean chance of taking part; clip: bound on an update; groups: how many at
        most; accounting: tight or paper."""
        paper_mode = accounting == "paper"
        found = problem.group(finite_budgets(population), groups)
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
            noise = (
                clip * sigma / np.sqrt(1 - np.minimum(1, found.size - 1) / found.size)
            )  # one share may be known
        everyone = np.ones(len(population))
        return Plan(
            method=name,
            clients=population.client,
            phases=(Phase(rounds, rates[found.member], clip * everyone, noise, found.member, weight),),
            noise_at="secure_sum",
            promise="server",
            sampling="fixed_size" if paper_mode else "poisson",
            accounting=accounting,
        )

    return plan


plan = _method("gdpfed", optimal=False)
plan_opc = _method("gdpfed_opc", optimal=True)


def plan_plus(
    population: Population,
    rounds: int,
    rate: float,
    clip: float,
    groups: int = 3,
    kept_low: float = KEPT[0],
    kept_high: float = KEPT[1],
    accounting: Accounting = "tight",
) -> Plan:
    """rounds: how many; rate: mean chance of taking part; clip: bound on an update; groups: how many at
    most; kept_low, kept_high: share of the coordinates that is kept of the sums of the strictest and of the
    most generous group, k / d; accounting: tight or paper."""
    made = plan_opc(population, rounds, rate, clip, groups, accounting)
    kept = np.linspace(kept_low, kept_high, len(made.phases[0].noise))
    by: By = "largest" if accounting == "paper" else "last_step"
    return replace(made, method="gdpfed_plus", combine=Combine("top_k", tuple(kept.tolist()), by=by))


def finite_budgets(population: Population) -> Floats:
    """(N,) budgets, those of public clients as large as the largest other; any where all are public."""
    epsilon = finite(population.epsilon)
    return np.where(np.isinf(epsilon), 1.0, epsilon) if math.isinf(epsilon.max()) else epsilon
