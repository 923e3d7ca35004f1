"""Checks of a guard's policy and ledger of requests against an order.

Each check raises a Refusal, or yields all that there are. The server reads the text of each, so it names only
the order, the plan and the policy, which the operator knows or may know, and never the client's records or
what was spent of its budget.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from scipy import signal, stats

from discretion.arrays import Floats
from discretion.clients.messages import Check, Join, Read, Train
from discretion.errors import Refusal
from discretion.guard.policy import Ceilings, Policy
from discretion.plan.plan import ADVERSARIES, Plan
from discretion.tasks.schema import Schema, differences

ROUNDING = 1e-9  # of a budget that was changed
IMPLAUSIBLE = 1e-9  # requests that honest sampling would produce with a smaller chance are refused


def require(problems: Iterable[Refusal]) -> None:
    """Raise the first of these refusals, if there is one."""
    for problem in problems:
        raise problem


def plan_problems(policy: Policy, plan: Plan, me: int) -> Iterator[Refusal]:
    """Yield why the policy does not allow such a plan, whatever its privacy cost.

    Guarantees:
        A plan that promises protection against a weaker adversary than the policy's is refused.
        A plan by which the server sees updates without the client's own noise, or with a share of noise that
        does not protect the client alone, is refused unless the policy trusts the server. To plans for a
        secure sum that promise against the server, guards answer by `OwnSums` alone.
        A plan that protects another unit, or holds against fewer colluding clients, is refused.
        The privacy cost of the plan's noise is checked by the ledger, not here.
    """
    if (plan.unit, plan.adjacency) != (policy.unit, policy.adjacency):
        mine, theirs = (f"a {of.unit} ({of.adjacency})" for of in (policy, plan))
        yield Refusal(f"the policy's budget protects {mine}, this plan protects {theirs}", "unit")
    yield from _adversary_problems(policy, plan)
    if plan.clipping.quantile is not None:
        yield Refusal(
            "this plan adapts clips to whether updates were within them, which guards do not release", "plan"
        )
    seeded = "seeded" if policy.test_seed is not None else "cryptographic"
    if plan.randomness != seeded:
        said = f"this plan's randomness is {plan.randomness}, this guard's is {seeded}"
        yield Refusal(said, "randomness")
    if plan.reading is not None and plan.reading.rule not in policy.statistics:
        said = f"this plan reads {plan.reads}, which the policy's statistics do not list"
        yield Refusal(said, "statistics")
    yield from _ceiling_problems(policy.ceilings, plan, me)


def _adversary_problems(policy: Policy, plan: Plan) -> Iterator[Refusal]:
    what = "adversary"
    if ADVERSARIES.index(plan.promise) < ADVERSARIES.index(policy.against):
        said = f"this plan promises against {plan.promise}, the policy asks for {policy.against}"
        yield Refusal(said, what)
    if plan.promise != "server" and not policy.trust_server:
        said = "this plan promises nothing against the server, which the policy does not trust"
        yield Refusal(said, what)
    shared = plan.has_shares and policy.against != "public"
    if shared and plan.colluding < policy.colluding:
        said = (
            f"this plan holds against {plan.colluding} colluding clients, not the policy's {policy.colluding}"
        )
        yield Refusal(said, what)


def _ceiling_problems(most: Ceilings, plan: Plan, me: int) -> Iterator[Refusal]:
    turns = [1 if phase.turns is None else int(phase.turns[me]) for phase in plan.phases]
    dealt = sum(p.rounds for p in plan.phases if p.turns is not None and p.turns[me] > 0)
    rates = [float(phase.rate[me]) for phase in plan.phases if phase.turns is None]
    asked: list[tuple[str, float, float]] = [
        ("rounds", most.rounds, plan.rounds),
        ("share of rounds with turns", most.rate, dealt / plan.rounds),
        ("sampling rate", most.rate, max(rates, default=0.0)),
        ("turns in a round", most.turns, max(turns)),
        ("steps in a turn", most.steps, max(phase.steps for phase in plan.phases)),
    ]
    for what, ceiling, found in asked:
        if found > ceiling:
            yield Refusal(f"{what}: this plan has {found}, the policy allows at most {ceiling}", "ceilings")


def size_problems(plan: Plan, parameters: int) -> Iterator[Refusal]:
    """Yield why a plan is not one for a model with this number of parameters."""
    for what, size in (("layers", sum(plan.clipping.layers)), ("grid", plan.grid.size if plan.grid else 0)):
        if size not in (0, parameters):
            said = f"the plan's {what} have {size} parameters, the model has {parameters}"
            yield Refusal(said, "model")


def join_problems(policy: Policy, records: Schema, order: Join) -> Iterator[Refusal]:
    """Yield why the policy does not allow the order's model, records, local training or declared size.

    `records` says what the client's records mean, as its owner declared it.

    Guarantees:
        Reads none of the client's data, not even the number of its records: no budget is spent on that.
    """
    for found in differences(order.records, records):
        yield Refusal(found.said, found.what)
    if order.model not in policy.models:
        yield Refusal(f"model {order.model!r} not listed in this guard's [models]", "model")
    if policy.size is not None and order.size != policy.size:
        said = f"the order counts this client with {order.size} records, the policy says {policy.size}"
        yield Refusal(said, "size")
    local, most = order.local, policy.ceilings
    if not (0 <= local.epochs <= most.epochs and 0 <= local.steps <= most.steps):
        said = (
            f"the order has {local.epochs} epochs or {local.steps} steps of local training, the policy "
            f"allows at most {most.epochs} epochs or {most.steps} steps"
        )
        yield Refusal(said, "ceilings")
    if (local.epochs == 0) == (local.steps == 0) or local.batch_size < 1:
        said = "local training must have either epochs or steps, and at least 1 record in a batch"
        yield Refusal(said, "local training")
    numbers = (local.learning_rate, local.momentum, local.weight_decay)
    if not all(np.isfinite(numbers)) or min(numbers) < 0 or not 0 < local.schedule.factor <= 1:
        said = (
            "learning rate, momentum and weight decay must be finite and at least 0, and a schedule's factor "
            "above 0 and at most 1"
        )
        yield Refusal(said, "local training")


def budget_problems(policy: Policy, allowed: float, order: Check) -> Iterator[Refusal]:
    """Yield why a server counts with a larger budget than the client has; `allowed` is its epsilon now."""
    if order.epsilon > allowed * (1 + ROUNDING) or order.delta > policy.delta:
        yield Refusal(
            f"the server counts with epsilon {order.epsilon:g} at delta {order.delta:g}, this guard allows "
            f"{allowed:g} at {policy.delta:g}",
            "budget",
        )


def check_train(plan: Plan, me: int, join: Join, order: Train) -> None:
    """Raise a Refusal unless the order's clip, noise, turn and local training are those agreed on."""
    phase = plan.phases[plan.phase_of(order.round)]
    clip, noise = float(phase.clip[me]), float(plan.own_noise(phase)[me])
    if order.clip != clip:
        raise Refusal(f"the order has clip {order.clip:g}, the plan has {clip:g}")
    if order.noise != noise:
        raise Refusal(f"the order has noise {order.noise:g}, the plan has {noise:g}")
    if order.local != join.local:
        raise Refusal("the order's local training is not the one agreed on when joining")
    turns = (1 if phase.rate[me] > 0 else 0) if phase.turns is None else int(phase.turns[me])
    if not 0 <= order.turn < turns:
        raise Refusal(f"turn {order.turn + 1} of round {order.round} is not in the plan, which has {turns}")


def check_read(policy: Policy, plan: Plan, me: int, order: Read) -> None:
    """Raise a Refusal unless policy and plan name this statistic, with this bound and this noise."""
    phase = plan.phases[plan.phase_of(order.round)]
    if plan.reading is None or phase.read is None or order.rule not in policy.statistics:
        raise Refusal("this statistic is not in the plan, or not in the policy's statistics")
    noise = float(phase.read[me]) * plan.reading.sensitivity
    if (order.rule, order.bound, order.noise) != (plan.reading.rule, plan.reading.bound, noise):
        raise Refusal("the order's statistic, bound or noise is not the plan's")
    if not phase.expected[me] > 0:
        raise Refusal(f"the plan does not ask this client in round {order.round}")


def check_round(plan: Plan, me: int, round_: int, asked: list[int]) -> None:
    """Raise a Refusal if this client is asked more often than the plan's sampling rates can explain.

    `asked` has the rounds that were answered before.

    Guarantees:
        If the server samples honestly, each order is refused with a chance of at most 1e-9.
    """
    rate = coins(plan, me, round_)
    times = sum(number <= round_ for number in asked) + (round_ not in asked)
    if chance_of_at_least(times, rate) < IMPLAUSIBLE:
        raise Refusal(
            f"asked {times} times in {round_} rounds, where the plan's sampling rates expect {rate.sum():.1f}"
        )


def coins(plan: Plan, me: int, rounds: int) -> Floats:
    """Return (rounds,) the chance that the server asks this client, in each of the first rounds.

    The chance is 1 where turns are public. For a secure sum the server asks every client in every round, and
    clients flip their own coins.
    """
    rate = np.concatenate([np.full(p.rounds, p.rate[me]) for p in plan.phases])[:rounds]
    return np.ceil(rate) if plan.noise_at == "secure_sum" else rate


def chance_of_at_least(times: int, rate: Floats) -> float:
    """Return the chance of `times` or more heads of coins (Poisson binomial), exact to about 1e-14."""
    heads = np.ones(1)
    for each, count in zip(*np.unique(rate, return_counts=True), strict=True):
        heads = signal.convolve(heads, stats.binom.pmf(np.arange(count + 1), count, each))  # fast if long
    return float(heads[times:].sum())
