"""Concert: all clients in one sum under one noise, each as often and as loudly as its own budget allows.

Discretion's own method; see docs/method.md. The noise of a sum is paid once, however many clients are in
it, so the best that a generous budget can buy is to be in the sum more often: amplification makes rates
cheaper than clips. `concert` solves for one noise and a rate for each client, with the mean rate as asked;
a client whose budget would allow more than every round gets a larger clip instead, so that every budget is
used up. All clients add shares of the noise to a secure sum, so that the server needs no trust.
`concert_records` is for clients whose own noisy work the server sees, where each record is protected and no
two clients can share a noise. A client that needs much noise is heard less, by the exact cost of a turn,
and turns are dealt out instead of drawn, so that no budget is spread over more turns than the mean. The
result is a mean of the released models.
"""

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from discretion.accounting import noise_multiplier
from discretion.methods import parameters as given
from discretion.methods.parts import finite, unknown_noise
from discretion.methods.privacy_aware import PlannedDraws, explain
from discretion.methods.registry import record_method, secure_sum_method, secure_sum_plan
from discretion.methods.solvers.cohorts import even_turns
from discretion.methods.solvers.groups import shared_noise_rates
from discretion.plan import Phase, Plan, Population
from discretion.plan.combine import Combine

OURS = "Discretion's own: docs/method.md"


@secure_sum_method(
    title="Concert",
    idea="All in one sum under one noise; each client as often, then as loudly, as its own budget allows.",
    paper=OURS,
    reads="budgets",
    order=100,
)
def concert(
    population: Population,
    rounds: given.Rounds,
    rate: given.MeanRate,
    clip: Annotated[
        given.Positive, Field(description="mean clip of the clients that take part (clipping norm)")
    ],
    average: given.Average = 0.8,
    dropout: given.Dropout = 0.0,
) -> Plan:
    epsilon = finite(population.epsilon)
    rates, _ = shared_noise_rates(epsilon, population.delta, rounds, rate)
    # (N,) what each budget needs at that rate: the same for all but those who come in every round
    sigmas = noise_multiplier(epsilon, population.delta, rates, rounds)
    clips = clip / sigmas * (rates.sum() / (rates / sigmas).sum())
    phase = Phase.one_pool(rounds, rates, clips, noise=float((clips * sigmas).max()))
    combine = Combine(average=average)
    made = secure_sum_plan("concert", population.client, (phase,), dropout=dropout, combine=combine)
    shared = 1 / np.sqrt(unknown_noise(made))
    return replace(made, phases=(replace(phase, noise=phase.noise * shared),))


@record_method(
    title="Concert (records)",
    idea="Who needs much noise is heard less, by its exact cost; turns are dealt out, not drawn.",
    paper=OURS,
    reads="budgets and sizes",
    explain=explain,
    order=101,
)
def concert_records(
    population: Population,
    rounds: given.Rounds,
    rate: Annotated[given.Share, Field(description="turns in a round, as a share of the clients")],
    clip: given.RecordClip,
    steps: given.Steps = 5,
    batch: given.Batch = 0.1,
    tradeoff: given.Tradeoff = 0.0,
    average: given.Average = 0.8,
    seed: Annotated[given.Seed, Field(description="seed of the order of turns")] = 0,
) -> Plan:
    drawing = PlannedDraws(population, rounds, rate, steps, batch)
    turns = even_turns(drawing.probabilities(tradeoff), drawing.cohort, rounds, seed)
    return replace(drawing.plan(turns, clip), combine=Combine(average=average))
