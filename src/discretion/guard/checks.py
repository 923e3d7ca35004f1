"""What a guard looks at before it says yes. Each check raises a Refusal in words that may leave the guard."""

import numpy as np
from scipy import stats

from discretion.errors import Refusal
from discretion.guard.policy import Policy
from discretion.messages import Join, Read, Train
from discretion.plan import ADVERSARIES, Plan
from discretion.population import Floats

IMPLAUSIBLE = 1e-9  # chance of being asked so often by the plan's coins, below which they are not believed


def check_plan(policy: Policy, plan: Plan, me: int, parameters: int) -> None:
    """Raise unless the owner would have its client take part in such a plan, whatever it costs.

    Guarantees:
        A plan whose promise is weaker than the policy's adversary is refused. Where a plan needs a secure sum
        and the policy names none, it promises nothing against the server.
        A plan by which the server sees more than it promises to hide from it, be it updates without the
        client's own noise or with a share that protects nothing on its own, is refused unless the policy
        trusts the server, or has a secure sum where that is what is missing.
        A plan that protects another unit, or holds against fewer colluding clients, is refused.
        What the plan's noise costs is looked at by the ledger, not here.
    """
    most = policy.ceilings
    if (plan.unit, plan.adjacency) != (policy.unit, policy.adjacency):
        mine, theirs = (f"a {of.unit} ({of.adjacency})" for of in (policy, plan))
        raise Refusal(f"its budget protects {mine}, this plan {theirs}")
    if ADVERSARIES.index(plan.promise) < ADVERSARIES.index(policy.against):
        raise Refusal(
            f"its budget must hold against {policy.against}, this plan promises against {plan.promise}"
        )
    if plan.noise_at == "secure_sum" and not policy.secure_sum:
        if policy.against == "server":
            raise Refusal("this plan needs a secure sum: without one it promises nothing against the server")
        if not policy.trust_server:
            raise Refusal("this plan needs a secure sum, it has none, and it trusts no server without one")
    if plan.promise != "server" and not policy.trust_server:
        raise Refusal("this plan promises nothing against the server, and it trusts no server")
    shared = plan.noise_at in ("clients", "secure_sum") and policy.against != "public"
    if shared and plan.colluding < policy.colluding:
        raise Refusal(f"this plan holds against {plan.colluding} clients together, not {policy.colluding}")
    if plan.clipping.quantile is not None:
        raise Refusal("this plan reads whether updates were within their clips, which it does not tell")
    seeded = "seeded" if policy.test_seed is not None else "cryptographic"
    if plan.randomness != seeded:
        raise Refusal(f"this plan's randomness is {plan.randomness}, its own is {seeded}")
    if plan.reading is not None and plan.reading.rule not in policy.statistics:
        raise Refusal(f"this plan reads {plan.reads}, which it does not tell")
    if plan.rounds > most.rounds:
        raise Refusal(f"this plan has {plan.rounds} rounds, it takes at most {most.rounds}")
    dealt = sum(p.rounds for p in plan.phases if p.turns is not None and p.turns[me] > 0)
    if dealt > most.rate * plan.rounds:
        raise Refusal(f"it has turns in {dealt} of {plan.rounds} rounds, it takes at most {most.rate:.0%}")
    for phase in plan.phases:
        turns = 1 if phase.turns is None else int(phase.turns[me])
        if phase.turns is None and phase.rate[me] > most.rate:
            raise Refusal(f"this plan has rate {phase.rate[me]:g}, it takes at most {most.rate:g}")
        if turns > most.turns:
            raise Refusal(f"this plan has {turns} turns in a round, it takes at most {most.turns}")
        if phase.steps > most.steps:
            raise Refusal(f"this plan has {phase.steps} steps in a turn, it takes at most {most.steps}")
    for what, size in (("layers", sum(plan.clipping.layers)), ("grid", plan.grid.size if plan.grid else 0)):
        if size not in (0, parameters):
            raise Refusal(f"the plan's {what} have {size} parameters, the model has {parameters}")


def check_join(policy: Policy, order: Join) -> None:
    """Raise unless model, local training and the number of records are what the policy names.

    Guarantees:
        Looks at no data: not even at how many records there are, which nobody has paid for.
    """
    if order.model not in policy.models:
        raise Refusal(f"the model {order.model!r} is not approved here")
    if policy.size is not None and order.size != policy.size:
        raise Refusal(f"it is counted with {order.size} records, and says that it has {policy.size}")
    local, most = order.local, policy.ceilings
    if not (0 <= local.epochs <= most.epochs and 0 <= local.steps <= most.steps):
        raise Refusal(
            f"{local.epochs} epochs or {local.steps} steps of local training: it takes at most "
            f"{most.epochs} epochs or {most.steps} steps"
        )
    if (local.epochs == 0) == (local.steps == 0) or local.batch_size < 1:
        raise Refusal("local training is for epochs or for steps, with at least 1 record in a batch")
    numbers = (local.learning_rate, local.momentum, local.weight_decay)
    if not all(np.isfinite(numbers)) or min(numbers) < 0 or not 0 < local.schedule.factor <= 1:
        raise Refusal("rates of local training must be finite and at least 0, a schedule's factor 0 to 1")


def check_train(plan: Plan, me: int, join: Join, order: Train) -> None:
    """Raise unless the order asks for just what the plan says: clip, noise, turn and local training."""
    phase = plan.phases[plan.phase_of(order.round)]
    clip, noise = float(phase.clip[me]), float(plan.own_noise(phase)[me])
    if order.clip != clip:
        raise Refusal(f"the order has clip {order.clip:g}, the plan {clip:g}")
    if order.noise != noise:
        raise Refusal(f"the order has noise {order.noise:g}, the plan {noise:g}")
    if order.local != join.local:
        raise Refusal("the order has other local training than was agreed on")
    turns = (1 if phase.rate[me] > 0 else 0) if phase.turns is None else int(phase.turns[me])
    if not 0 <= order.turn < turns:
        raise Refusal(f"turn {order.turn + 1} of round {order.round} is not in the plan: it has {turns}")


def check_read(policy: Policy, plan: Plan, me: int, order: Read) -> None:
    """Raise unless the statistic is one that policy and plan name, with the noise that is paid for."""
    phase = plan.phases[plan.phase_of(order.round)]
    if plan.reading is None or phase.read is None or order.rule not in policy.statistics:
        raise Refusal("no statistic is handed out in this run")
    noise = float(phase.read[me]) * plan.reading.sensitivity
    if (order.rule, order.bound, order.noise) != (plan.reading.rule, plan.reading.bound, noise):
        raise Refusal("the order asks for another statistic, or other noise, than the plan")
    if not phase.expected[me] > 0:
        raise Refusal(f"it is not asked in round {order.round} by the plan")


def check_round(plan: Plan, me: int, round_: int, asked: list[int]) -> None:
    """Raise where it would be asked, in this round, more often than the plan's coins can explain.

    Guarantees:
        With honest coins each order is refused with a chance of at most 1e-9.
    """
    rate = coins(plan, me, round_)
    times = sum(number <= round_ for number in asked) + (round_ not in asked)
    if chance_of_at_least(times, rate) < IMPLAUSIBLE:
        raise Refusal(
            f"asked {times} times in {round_} rounds, where the plan's coins would ask {rate.sum():.1f} times"
        )


def coins(plan: Plan, me: int, rounds: int) -> Floats:
    """(rounds,) the chance of being asked in each of the first rounds; 1 where turns are public.

    For a secure sum all are asked in every round, and flip their coins themselves.
    """
    rate = np.concatenate([np.full(p.rounds, p.rate[me]) for p in plan.phases])[:rounds]
    return np.ceil(rate) if plan.noise_at == "secure_sum" else rate


def chance_of_at_least(times: int, rate: Floats) -> float:
    """Of so many heads among independent coins of these rates: exact, but for rounding."""
    heads = np.ones(1)
    for each, count in zip(*np.unique(rate, return_counts=True), strict=True):
        heads = np.convolve(heads, stats.binom.pmf(np.arange(count + 1), count, each))
    return float(heads[times:].sum())
