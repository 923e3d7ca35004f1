"""Spend as you go: clients save budget in early rounds and spend it in later ones.

Kiani, Kulkarni, Dziedzic, Draper and Boenisch, "Differentially private federated learning with
time-adaptive privacy spending", ICLR 2025, Algorithms 1 and 2. Until its transition round a client takes
part at a lower, saving rate; the saved budget lowers its noise, and raises its clip, later on. The
strictest clients save most (Theorem 3: saving rates are handed out in the order of the clips). Each client
that takes part adds a share of the noise, and the server adds the shares of the others.
Departs from the paper: noise follows the shape of the paper's recursion, counted by Rényi divergence of
order 2, and one factor for each client makes the whole schedule cost the budget by PLD, because the paper
leaves a sixth of the budget unspent; the noise also allows for one other client that knows its own share.
In paper mode: SetPrivacyParams of Algorithm 1.
"""

import math
from typing import Annotated

import numpy as np
from pydantic import Field

from discretion.accounting import noise_multiplier
from discretion.arrays import distinct
from discretion.errors import ConfigError
from discretion.methods.papers.kiani import Saving, clips, common_multiplier, set_privacy_params
from discretion.methods.parameters import Accounting, Count, Part, Positive, Rounds, Share
from discretion.methods.parts import finite, schedule_scale
from discretion.methods.registry import method
from discretion.methods.solvers.groups import group
from discretion.methods.solvers.time_adaptive import assign, noise_shape
from discretion.plan import Phase, Plan, Population
from discretion.plan.steps import Steps


@method(
    title="Spend as you go",
    idea="Clients save budget in early rounds and spend it in later ones, the strictest most of all.",
    paper="Kiani et al., ICLR 2025",
    reads="budgets",
    unit="client",
    noise_at="clients",
    promise="clients",
    order=204,
)
def spend_as_you_go(
    population: Population,
    rounds: Rounds,
    rate: Annotated[Share, Field(description="chance of taking part in a spending round")],
    clip: Annotated[Positive, Field(description="mean of the clients' clips in a round (clipping norms)")],
    saving_low: Annotated[
        Share, Field(description="saving rate of the strictest group, as a share of rate")
    ] = 5 / 9,
    saving_high: Annotated[
        Share, Field(description="saving rate of the most generous group, as a share of rate")
    ] = 7 / 9,
    transition_low: Annotated[
        Part, Field(description="share of the rounds in which the strictest group saves")
    ] = 0.5,
    transition_high: Annotated[
        Part, Field(description="share of the rounds in which the most generous group saves")
    ] = 0.5,
    groups: Annotated[Count, Field(description="groups of budgets that save alike, at most")] = 3,
    accounting: Accounting = "tight",
) -> Plan:
    if saving_low > saving_high:
        raise ConfigError(
            f"spend_as_you_go: saving_low is {saving_low:g} and saving_high {saving_high:g}; "
            "expected saving_low <= saving_high"
        )
    # one client of each budget, and the (N,) number of each client's budget among them
    every = np.stack([finite(population.epsilon, otherwise=1.0), population.delta])
    (epsilon, delta), where = distinct(every)
    # groups from the strictest to the most generous: saving rates and first spending rounds
    found = group(epsilon, groups)
    rates = np.linspace(saving_low, saving_high, len(found.size)) * rate
    start = np.linspace(transition_low, transition_high, len(found.size)) * rounds
    saving = Saving(
        rounds,
        np.full(len(epsilon), rate),
        assign(rates[found.member], epsilon),
        np.minimum(start, rounds - 1).astype(np.int64)[found.member] + 1,
    )
    if accounting == "paper":
        sigma = set_privacy_params(saving, epsilon, delta).multiplier
        shared = 1.0
    else:
        shape = noise_shape(saving, noise_multiplier(epsilon, delta, saving.rate, rounds))
        schedule = Steps(saving.rates(), shape, np.ones(rounds, dtype=np.int64))
        _, kind = distinct(np.stack([saving.saving_rate, saving.spend_from]))
        sigma = shape * schedule_scale(epsilon, delta, kind, schedule.of)
        others = min(1, len(population) - 1)
        shared = 1 / math.sqrt(1 - others / len(population))  # one share may be known
    phases = tuple(
        Phase.one_pool(1, rates, clips(mine, clip), clip * float(common_multiplier(mine)) * shared)
        for rates, mine in zip(saving.rates()[:, where], sigma[:, where], strict=True)
    )
    return Plan("spend_as_you_go", population.client, phases, noise_at="clients", accounting=accounting)
