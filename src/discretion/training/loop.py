"""The training loop: select clients, get updates, clip, sum, add noise, combine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from discretion.accounting import Certificate
from discretion.arrays import Floats, Ints
from discretion.errors import LedgerError, PlanError
from discretion.ledger.ledger import Ledger
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.selection_rules import Reading
from discretion.randomness.sources import Source, heads, run_source
from discretion.randomness.streams import Purpose, fingerprint
from discretion.timing import Profile
from discretion.training.clip import Matrix
from discretion.training.orders import Clients, NoisySteps, Order, Shares
from discretion.training.release import hand_out_statistic, release
from discretion.training.server_update import NONE, PLAIN, Server, Vector, mean_model


@dataclass(frozen=True)
class State:
    """Everything that later rounds depend on: released, or derived from what was released."""

    round: int  # rounds done
    model: Vector
    velocity: Vector
    step: Vector  # weighted sum of the last round's noisy sums, before any other combination
    memory: Matrix  # (W, d) earlier noisy sums that `Combine` projects on
    scale: float = 1.0  # of clips and noise, under adaptive clipping
    square: Vector = field(default_factory=NONE.copy)  # Adam-style mean square of steps, if adaptive
    mean: Vector = field(default_factory=NONE.copy)  # average of the models so far, if averaging

    @property
    def result(self) -> Vector:
        """The model to use: the average where there is one, else the last model."""
        return self.mean if len(self.mean) else self.model

    @classmethod
    def start(cls, model: Vector) -> "State":
        nothing = np.zeros_like(model)
        return cls(0, model, nothing, nothing, np.zeros((0, len(model)), np.float32))


def train(
    plan: Plan,
    certificate: Certificate,
    clients: Clients,
    ledger: Ledger,
    state: State,
    *,
    run: str,
    seed: int | None,
    server: Server = PLAIN,
    accept_no_privacy: bool = False,
    profile: Profile | None = None,
    shares: Shares = "here",
) -> Iterator[State]:
    """Run the remaining rounds, and yield the state after each.

    With a seed this is a simulation; with None, coins and noise come from the operating system.
    A caller that must survive a crash makes each state durable before asking for the next one: only then is
    the round committed. `shares` says who adds the noise of a secure sum; where a round with too few shares
    is discarded, the round is charged and leaves the model as it is.

    Guarantees:
        Nothing starts unless the certificate is of exactly this plan and the ledger admits it.
        A round is reserved in the ledger before any client is asked.
        The state after a round depends only on the state before it, the run's name, the plan, the seed, the
        server and the clients' answers to the same order; where these are equal, a run that was killed and
        resumed ends with the same model. Without a seed an interrupted round is not repeated, because the
        server may have seen answers to it: the round is charged and leaves the model as it is.
    """
    certificate.require(plan, accept_no_privacy)
    if (seed is None) != (plan.randomness == "cryptographic"):
        raise PlanError(
            f"the plan's randomness is {plan.randomness}, found {'no seed' if seed is None else 'a seed'}: "
            "give a seed to a seeded plan only"
        )
    if certificate.population != ledger.population.digest():
        raise PlanError("found a certificate of another population than the ledger's: certify again")
    profile = profile or Profile()
    with profile("admit"):
        ledger.admit(run, plan, fingerprint(seed), accept_no_privacy)
    on_record = ledger.states(run)
    if not state.round <= len(on_record) <= state.round + 1:
        raise LedgerError(
            f"found {len(on_record)} rounds of run {run} in the ledger and {state.round} in the model: this "
            "run was done before, or its folder was changed or restored. Start a new run."
        )
    for number, status in on_record:
        if status == "reserved":
            if number > state.round and seed is None:
                state = replace(state, round=number)
                yield state
            if number <= state.round:
                ledger.commit(run, number)
    next_round = partial(
        next_state, plan, clients, run=run, seed=seed, server=server, profile=profile, shares=shares
    )
    kept: int | None = None
    while state.round < plan.rounds:
        with profile("ledger"):
            willing = ledger.reserve(run, state.round + 1, kept)
        state = next_round(state, willing=willing, size=ledger.population.size)
        yield state
        kept = state.round
    with profile("ledger"):
        ledger.finish(run, kept)


def next_state(
    plan: Plan,
    clients: Clients,
    state: State,
    *,
    run: str,
    seed: int | None,
    server: Server = PLAIN,
    willing: NDArray[np.bool_] | None = None,
    size: Ints | None = None,
    profile: Profile | None = None,
    shares: Shares = "here",
    observe: Callable[[Floats], None] | None = None,
) -> State:
    """Run one round and return the state after it.

    Clients that are not `willing` are not asked; the divisor and the noise stay as planned. `size` is each
    client's public number of records, which rules that read data need. `observe` is shown the (P, d) noisy
    sums, which the accountant takes for public.
    """
    number, profile = state.round + 1, profile or Profile()
    phase = plan.phases[plan.phase_of(number)]
    source = partial(run_source, seed, run, plan.digest(), number)
    with profile("select"):
        own_coins = plan.noise_at == "secure_sum" and shares != "here"
        coins = None if own_coins else source(Purpose.COINS)
        asked, turn = select(phase, coins, willing, plan.sampling == "fixed_size")
        counts = np.ones(len(asked))  # how much each update counts
        if plan.reading is not None and phase.read is not None:
            order = Order(number, 0, state.model, asked, turn)
            records = np.ones(len(phase.rate), dtype=np.int64) if size is None else size
            asked, turn, counts = picked(plan.reading, phase.read, clients, order, records, source)
    noisy = None
    if phase.batch is not None:
        noisy = NoisySteps(
            phase.steps,
            phase.batch[asked],
            phase.clip[asked],
            phase.noise[asked],
            plan.clipping.layers,
            lambda i: source(Purpose.STEPS, int(asked[i]), int(turn[i])),
        )
    key = int(source(Purpose.BATCHES).words(1)[0])
    order = Order(number, key, state.model, asked, turn, noisy, plan.rounds)
    updates = profile.each("train", clients.updates(order))
    count = np.zeros(len(phase.rate))
    count[asked] = counts
    with profile("noise"):
        drawn, own = partial(source, Purpose.NOISE), partial(source, Purpose.SHARES)
        now = (len(state.model), state.scale)
        top_up = shares != "discard"
        sums, scale = release(plan, phase, *now, asked, updates, drawn, own, count, profile, top_up)
    if sums is None:
        return replace(state, round=number)
    if observe is not None:
        observe(sums.copy())
    with profile("combine"):
        weight = np.ones(1) if plan.merges(phase) else phase.weight
        last, memory = (x.astype(np.float64) for x in (state.step, state.memory))
        step, memory = plan.combine.step(sums, weight, last, memory)
        model, velocity, square = server.move(state.model, state.velocity, state.square, step, number)
        average = max(server.average, plan.combine.average)
        mean = mean_model(average, state.mean, model, number)
        whole = (weight @ sums).astype(np.float32)
        return State(number, model, velocity, whole, memory.astype(np.float32), scale, square, mean)


def picked(
    reading: Reading, read: Floats, clients: Clients, order: Order, size: Ints, source: Callable[..., Source]
) -> tuple[Ints, Ints, Floats]:
    """Select the clients that train; return (k,) client numbers, (k,) turn numbers and (k,) weights.

    Guarantees:
        The selection depends on the clients' data only through statistics with the noise charged for.
        A number that is not finite counts as 0.
    """
    found = clients.statistics(order, reading)
    place, value = np.asarray(found.place), np.array(found.value, dtype=np.float64)
    if value.shape[:1] != place.shape or (len(value) and value.ndim != 2):
        raise LedgerError(
            f"found statistics of {len(place)} clients of shape {value.shape}, expected a row each"
        )
    if len(np.unique(place)) < len(place) or ((place < 0) | (place >= len(order.clients))).any():
        raise LedgerError(
            "found a statistic that was not asked for, or came twice; expected one of each client"
        )
    who = order.clients[place]
    std = np.zeros(len(who)) if found.handed_out else read[who] * reading.sensitivity
    for i, client in enumerate(who.tolist()):
        value[i] = hand_out_statistic(value[i], float(std[i]), source(Purpose.STATISTICS, client))
    mean = value / (reading.bound * size[who, None])
    chosen, counts = reading.pick(mean, source(Purpose.COINS, 1).uniform(len(mean)))
    return who[chosen], order.turn[place][chosen], counts


def select(
    phase: Phase, source: Source | None, willing: NDArray[np.bool_] | None = None, fixed_size: bool = False
) -> tuple[Ints, Ints]:
    """Select this round's clients; return (k,) client numbers and (k,) turn numbers.

    By public turns; or by an independent coin for each client, with the sampling rate accounted for; or,
    under fixed-size sampling, the planned number of each pool. Without a source of coins, every client that
    may take part is asked, and each flips its own coin.
    """
    turns = phase.turns
    if source is None:
        turns = (phase.rate > 0).astype(np.int64) if turns is None else turns
    elif turns is None:
        coins = source.uniform(len(phase.rate))
        if fixed_size:
            while len(np.unique(coins)) < len(coins):  # equal coins would favour the first client
                coins = source.uniform(len(phase.rate))
            rank = np.lexsort([coins, phase.pool])
            start = np.searchsorted(phase.pool[rank], phase.pool[rank])
            turns = np.zeros(len(coins), dtype=np.int64)
            turns[rank] = np.arange(len(coins)) - start < phase.drawn[phase.pool[rank]]
        else:
            turns = heads(coins, phase.rate).astype(np.int64)
    if willing is not None:
        turns = np.where(willing, turns, 0)
    asked = np.repeat(np.arange(len(turns)), turns)
    first = np.cumsum(turns) - turns
    return asked, np.arange(len(asked)) - first[asked]
