"""Spend as you go: clients save budget in early rounds and spend it in later ones.

Kiani, Kulkarni, Dziedzic, Draper and Boenisch, "Differentially private federated learning with
time-adaptive privacy spending", ICLR 2025, Algorithms 1 and 2. Until its transition round a client comes at
a lower, saving rate; what it saved lowers its noise, and raises its clip, later on. The strictest save most
(Theorem 3: saving rates are handed out in the order of the clips). Each client adds a share of the noise,
and the server the shares of those who do not take part.
Departs from the paper: noise follows the shape of its recursion, counted by Rényi divergence of order 2,
and one factor for each client makes the whole schedule cost the budget by PLD, where the paper leaves a
sixth of it; it also covers that any one other client knows its own share. In paper mode: SetPrivacyParams
of Algorithm 1.
"""

import math

import numpy as np

from discretion.accounting import noise_multiplier
from discretion.accounting.papers.time_adaptive import Saving, clips, common_multiplier, set_privacy_params
from discretion.errors import ConfigError
from discretion.kinds import distinct
from discretion.methods.parts import finite, schedule_scale
from discretion.phase import Phase
from discretion.plan import Accounting, Plan
from discretion.population import Floats, Ints, Population
from discretion.problems import groups, time_adaptive
from discretion.steps import Steps


def plan(
    population: Population,
    rounds: int,
    rate: float,
    clip: float,
    saving_low: float = 5 / 9,
    saving_high: float = 7 / 9,
    transition_low: float = 0.5,
    transition_high: float = 0.5,
    groups: int = 3,
    accounting: Accounting = "tight",
) -> Plan:
    """rounds: how many; rate: chance of taking part in spending rounds; clip: mean of the clips in a round;
    saving_low, saving_high: saving rates of the strictest and the most generous group, as shares of rate;
    transition_low, transition_high: shares of the rounds in which they save; groups: of budgets, for saving;
    accounting: tight or paper."""
    if not 0 < saving_low <= saving_high <= 1:
        raise ConfigError("expected 0 < saving_low <= saving_high <= 1")
    if not (0 <= transition_low < 1 and 0 <= transition_high < 1):
        raise ConfigError("expected transition_low and transition_high, each from 0 to below 1")
    epsilon = finite(population.epsilon)
    if math.isinf(epsilon.max()):
        epsilon = np.ones(len(population))
    first, where = _kinds(epsilon, population.delta)
    spans = (saving_low, saving_high), (transition_low, transition_high)
    saving = _saving(epsilon[first], rounds, rate, *spans, groups)
    budget = epsilon[first], population.delta[first]
    if accounting == "paper":
        sigma = set_privacy_params(saving, *budget).multiplier
        shared = 1.0
    else:
        equal = noise_multiplier(*budget, saving.rate, rounds)
        shape = time_adaptive.shape(saving, equal)
        once = np.ones(rounds, dtype=np.int64)
        _, kind = distinct(np.stack([saving.saving_rate, saving.spend_from]))
        rates = saving.rates()
        sigma = shape * schedule_scale(*budget, kind, lambda who: Steps(rates[:, who], shape[:, who], once))
        others = min(1, len(population) - 1)
        shared = 1 / math.sqrt(1 - others / len(population))  # one share may be known
    phases = []
    for rates, each in zip(saving.rates(), sigma, strict=True):
        mine = each[where]
        phases.append(
            Phase.one_pool(1, rates[where], clips(mine, clip), clip * float(common_multiplier(mine)) * shared)
        )
    return Plan(
        method="spend_as_you_go",
        clients=population.client,
        phases=tuple(phases),
        noise_at="clients",
        promise="clients",
        accounting=accounting,
    )


def _kinds(epsilon: Floats, delta: Floats) -> tuple[Ints, Ints]:
    """A client of each budget, and the kind of each client."""
    _, first, where = np.unique(np.stack([epsilon, delta]), axis=1, return_index=True, return_inverse=True)
    return first, where.reshape(-1)


def _saving(
    epsilon: Floats,
    rounds: int,
    rate: float,
    share: tuple[float, float],
    transition: tuple[float, float],
    most: int,
) -> Saving:
    """Saving rates and first rounds of spending by group, from the strictest to the most generous."""
    found = groups.group(epsilon, most)
    rates = np.linspace(*share, len(found.size)) * rate
    start = np.minimum(np.linspace(*transition, len(found.size)) * rounds, rounds - 1).astype(np.int64) + 1
    return time_adaptive.saving(
        rounds,
        np.full(len(epsilon), rate),
        time_adaptive.assign(rates[found.member], epsilon),
        start[found.member],
    )
