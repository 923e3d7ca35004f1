"""The one training loop: select, update, clip, sum, noise, combine. The only place where noise is drawn."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from discretion.accounting import Certificate
from discretion.clip import Matrix, add_layers, finite_and_factor, layers_of
from discretion.discrete import rounded_gaussian
from discretion.errors import LedgerError, PlanError
from discretion.grid import Grid, to_grid
from discretion.ledger import Ledger
from discretion.noise import Cryptographic, Seeded, Source
from discretion.phase import Phase
from discretion.pick import Reading
from discretion.plan import Plan
from discretion.population import Floats, Ints
from discretion.profile import Profile
from discretion.server import NONE, PLAIN, Server, Vector, mean_model
from discretion.streams import Purpose, run_stream

LARGEST_SCALE = 2.0**40


@dataclass(frozen=True)
class NoisySteps:
    """For plans that protect records: how each of the clients asked trains, with noise in every step."""

    steps: int
    batch: Floats  # (k,) chance of each of its records to be in the batch of a step
    clip: Floats  # (k,) bound on the norm of one record's gradient
    noise: Floats  # (k,) standard deviation, added to the sum of a batch's gradients
    layers: tuple[int, ...]  # of parameters that are clipped together; none: all of them
    source: Callable[[int], Source]  # of the coins and the noise of the i-th client asked


@dataclass(frozen=True)
class Order:
    """What is asked of the clients of one round."""

    round: int
    key: int  # of the order of batches: neither coins nor noise follow from it
    model: Vector
    clients: Ints  # (k,) their numbers in the population; one may be asked several times
    turn: Ints  # (k,) which time of this round it is, from 0
    noisy: NoisySteps | None = None
    rounds: int | None = None  # of the whole plan, for who plans its learning rate by it


@dataclass(frozen=True)
class Updates:
    """How far some of these clients would move the model, before clipping."""

    clients: Ints  # (k,)
    change: Matrix  # (k, d)


class Clients(Protocol):
    """Where updates come from: in this process or from elsewhere. Each client answers once a turn."""

    def updates(self, order: Order) -> Iterator[Updates]: ...

    def statistics(self, order: Order, reading: Reading) -> Floats:
        """(k, m) what the rule reads of each client asked: a sum over its records, each bounded."""


@dataclass(frozen=True)
class State:
    """All that a later round depends on: released, or made from what was released."""

    round: int  # rounds done
    model: Vector
    velocity: Vector
    step: Vector  # the weighted sum of the last round, before it was combined otherwise
    memory: Matrix  # (W, d) earlier noisy sums that later steps look back on
    scale: float = 1.0  # of clips and noise, where they follow a quantile
    square: Vector = field(default_factory=NONE.copy)  # mean square of steps, where the server adapts to it
    mean: Vector = field(default_factory=NONE.copy)  # of the models after each round, where that is wanted

    @property
    def result(self) -> Vector:
        """The model to use: the mean where there is one, else the last."""
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
) -> Iterator[State]:
    """Do the rounds that are left, and yield the state after each.

    With a seed this is a simulation; without (None), coins and noise come from the operating system.
    A caller that wants to survive a crash makes the state durable before it asks for the next: only then
    is the round committed.

    Guarantees:
        Nothing starts unless the certificate is of this very plan and the ledger admits it.
        A round is reserved in the ledger before a client is asked for anything.
        The state after a round depends on nothing but the state before it, the run's name, the plan, the
        seed, the server and what the clients answer to the same order; where these are the same, a run
        that was killed and resumed ends with the same model. Without a seed a round that was interrupted is
        not done again, because the server may have seen answers to it: it counts, and moves nothing.
    """
    certificate.require(plan, accept_no_privacy)
    if (seed is None) != (plan.randomness == "cryptographic"):
        raise PlanError(
            f"the plan says that randomness is {plan.randomness}: give a seed exactly if it is seeded"
        )
    if certificate.population != ledger.population.digest():
        raise PlanError("this certificate is of another population than the ledger's: certify again")
    profile = profile or Profile()
    with profile("admit"):
        ledger.admit(run, plan, _fingerprint(seed), accept_no_privacy)
    on_record = ledger.states(run)
    if not state.round <= len(on_record) <= state.round + 1:
        raise LedgerError(
            f"the ledger has {len(on_record)} rounds of run {run} and the model has {state.round}: the same "
            "run was done before, or its folder changed or restored. Start a new run."
        )
    for number, status in on_record:
        if status == "reserved":
            if number > state.round and seed is None:
                state = replace(state, round=number)
                yield state
            if number <= state.round:
                ledger.commit(run, number)
    kept: int | None = None
    while state.round < plan.rounds:
        with profile("ledger"):
            willing = ledger.reserve(run, state.round + 1, kept)
        state = next_state(
            plan,
            clients,
            state,
            run=run,
            seed=seed,
            server=server,
            willing=willing,
            size=ledger.population.size,
            profile=profile,
        )
        yield state
        kept = state.round
    with profile("ledger"):
        ledger.finish(run, kept)


def _fingerprint(seed: int | None) -> str:
    """Tells one seed from another without saying which it is."""
    if seed is None:
        return "the operating system"
    return "a seed of fingerprint " + hashlib.sha256(f"discretion {seed}".encode()).hexdigest()[:12]


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
) -> State:
    """One round. Who is not `willing` is not asked; the divisor and the noise stay as they are.

    `size` is each client's public number of records, which rules that read data need.
    """
    number, profile = state.round + 1, profile or Profile()
    phase = plan.phases[plan.phase_of(number)]

    def source(purpose: Purpose, *counter: int) -> Source:
        if seed is None:
            return Cryptographic()
        return Seeded(run_stream(seed, purpose, run, plan.digest(), number, *counter))

    with profile("select"):
        asked, turn = select(phase, source(Purpose.COINS), willing, plan.sampling == "fixed_size")
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
        drawn = partial(source, Purpose.NOISE)
        sums, scale = release(plan, phase, state, asked, updates, drawn, count, profile)
    with profile("combine"):
        weight = np.ones(1) if merged(plan, phase) else phase.weight
        last, memory = (x.astype(np.float64) for x in (state.step, state.memory))
        step, memory = plan.combine.step(sums, weight, last, memory)
        moved = server.move(state.model, state.velocity, state.square, step, number)
        model, velocity, square = moved
        average = max(server.average, plan.combine.average)
        mean = mean_model(average, state.mean, model, number)
        whole = (weight @ sums).astype(np.float32)
        return State(number, model, velocity, whole, memory.astype(np.float32), scale, square, mean)


def picked(
    reading: Reading,
    read: Floats,
    clients: Clients,
    order: Order,
    size: Ints,
    source: Callable[..., Source],
) -> tuple[Ints, Ints, Floats]:
    """(k,) who of those asked trains, which time it is, and how much each counts.

    Guarantees:
        Nothing of the clients' data decides but their statistics with the noise that they pay for.
        A number that is not finite counts as 0.
    """
    statistic = np.array(clients.statistics(order, reading), dtype=np.float64)
    if statistic.shape[:1] != order.clients.shape or (len(statistic) and statistic.ndim != 2):
        raise LedgerError(f"statistics of {len(order.clients)} clients need a row each: {statistic.shape}")
    statistic[~np.isfinite(statistic)] = 0.0
    for i, client in enumerate(order.clients.tolist()):
        if read[client] > 0:
            std = float(read[client]) * reading.sensitivity
            statistic[i] += source(Purpose.STATISTICS, client).gaussian(statistic.shape[1], std)
    mean = statistic / (reading.bound * size[order.clients, None])
    chosen, counts = reading.pick(mean, source(Purpose.COINS, 1).uniform(len(mean)))
    return order.clients[chosen], order.turn[chosen], counts


def select(
    phase: Phase, source: Source, willing: NDArray[np.bool_] | None = None, fixed_size: bool = False
) -> tuple[Ints, Ints]:
    """(k,) who is asked in a round and (k,) which time: by public turns, or by an independent coin for each
    client, of the probability that is accounted for; or as many of each pool as the mean would be."""
    turns = phase.turns
    if turns is None:
        coins = source.uniform(len(phase.rate))
        if fixed_size:
            rank = np.lexsort([coins, phase.pool])
            start = np.searchsorted(phase.pool[rank], phase.pool[rank])
            turns = np.zeros(len(coins), dtype=np.int64)
            turns[rank] = np.arange(len(coins)) - start < phase.drawn[phase.pool[rank]]
        else:
            turns = (coins < phase.rate).astype(np.int64)
    if willing is not None:
        turns = np.where(willing, turns, 0)
    asked = np.repeat(np.arange(len(turns)), turns)
    first = np.cumsum(turns) - turns
    return asked, np.arange(len(asked)) - first[asked]


def merged(plan: Plan, phase: Phase) -> bool:
    """Whether pools of single clients become one sum: nothing is asked of each but to be added."""
    return phase.own_pools and plan.combine.rule == "sum"


def release(
    plan: Plan,
    phase: Phase,
    state: State,
    asked: Ints,
    updates: Iterator[Updates],
    source: Callable[[int], Source],
    count: Floats | None = None,
    profile: Profile | None = None,
) -> tuple[Floats, float]:
    """(P, d) the pools' noisy sums, and the scale of later clips: nothing else leaves a round.

    (N,) `count` is how much each client's updates count: where their steps were noisy, else 1.

    Guarantees:
        Each pool's sum of clipped updates gets noise of the planned standard deviation, whoever took part.
        Pools in which nobody can take part release nothing.
        Where each client has a pool of its own and pools are just added up, only their weighted sum is made,
        (1, d), with the noise that all of theirs add up to.
        Each update moves the sum of the bits by 1/2.
    """
    size = len(state.model)
    with (profile or Profile())("clip"):
        sums, within = clipped_sums(plan, phase, state.scale, updates, asked, size, count)
    # (P,) releases of each pool in this round: a public number
    releases = phase.turns if phase.turns is not None and phase.own_pools else phase.open_pools
    noise = phase.noise * np.sqrt(releases) * state.scale
    if merged(plan, phase):
        noise = np.sqrt(np.square(phase.weight * noise).sum(keepdims=True))
    if plan.noise_at != "steps":  # there every step was noisy
        for pool in np.flatnonzero(noise > 0):
            sums[pool] += _noise(source(int(pool)), size, float(noise[pool]), plan.grid)
    scale = state.scale
    quantile = plan.clipping.quantile
    if quantile is not None:
        bits = within - len(asked) / 2 + source(len(phase.noise)).gaussian(1, quantile.noise)[0]
        share = bits / max(phase.expected.sum(), 1.0) + 0.5
        scale = rescaled(scale, -quantile.learning_rate * (share - quantile.target))
    return sums, scale


def rescaled(scale: float, power: float) -> float:
    """scale · exp(power), but never so far from 1 that clips or noise would leave floating point."""
    most = math.log(LARGEST_SCALE)
    return math.exp(min(max(math.log(scale) + power, -most), most))


def _noise(source: Source, size: int, std: float, grid: Grid | None) -> Floats:
    if grid is None:
        return source.gaussian(size, std)
    return np.asarray(grid.step * rounded_gaussian(size, std / grid.step, source.words), dtype=np.float64)


def clipped_sums(
    plan: Plan,
    phase: Phase,
    scale: float,
    updates: Iterator[Updates],
    asked: Ints,
    size: int,
    count: Floats | None = None,
) -> tuple[Floats, int]:
    """(P, d) the sum of the clipped updates of each pool, and how many updates were within their clips.

    Where pools of single clients are `merged`: (1, d) the weighted sum.

    Guarantees:
        A client enters as often as it was asked at most, and with updates no longer than its clip.
        An update with a number that is not finite counts as zero.
    """
    if plan.grid is not None and plan.grid.size != size:  # rounding more coordinates would cost more
        raise PlanError(f"the plan's grid is of {plan.grid.size} parameters, the model has {size}")
    own, layers = merged(plan, phase), layers_of(plan.clipping.layers, size)
    sums = np.zeros((1 if own else len(phase.noise), size))
    waiting = np.bincount(asked, minlength=len(phase.rate))
    within = 0
    for part in updates:
        who = np.asarray(part.clients)
        if who.dtype.kind not in "iu" or part.change.shape != (len(who), size):
            raise LedgerError(f"updates of {len(who)} clients must be numbered and {len(who)} rows of {size}")
        if part.change.dtype != np.float32:  # clipping is proved for its rounding
            raise LedgerError(f"updates must be float32, found {part.change.dtype}")
        if ((who < 0) | (who >= len(waiting))).any():
            raise LedgerError("an update came from a client that does not exist")
        np.subtract.at(waiting, who, 1)
        if (waiting[who] < 0).any():
            raise LedgerError("an update came from a client that was not asked, or came twice")
        clip = np.full(len(who), math.inf) if plan.noise_at == "steps" else phase.clip[who] * scale
        change, factor = finite_and_factor(part.change, clip, layers)
        within += int((factor == 1).all(axis=1).sum())
        if plan.grid is not None:
            whole = to_grid(factor * change, clip, plan.grid.step)
            change, factor = plan.grid.step * whole, np.ones_like(factor)  # float64: their sums are exact
        share = np.ones(len(who)) if count is None else count[who]
        if own:
            add_layers(sums[0], phase.weight[who] * share, change, factor, layers)
        else:
            for pool in np.unique(phase.pool[who]):
                add_layers(sums[pool], share * (phase.pool[who] == pool), change, factor, layers)
    return sums, within


def noisy_sum(total: Floats, std: float, source: Source) -> Floats:
    """(d,) the sum of a batch's clipped gradients with noise: a step of a plan for records.

    Guarantees:
        The noise is drawn even where the batch is empty, and does not depend on who was in it.
    """
    noise = source.gaussian(len(total), std)
    noise += total
    return noise
