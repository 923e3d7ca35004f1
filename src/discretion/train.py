"""The one training loop: select, update, clip, sum, noise, combine. The only place where noise is drawn."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from discretion.accounting import Certificate
from discretion.errors import LedgerError, PlanError
from discretion.ledger import Ledger
from discretion.noise import Cryptographic, Seeded, Source
from discretion.plan import Phase, Plan
from discretion.population import Floats, Ints
from discretion.streams import Purpose, run_stream

Vector = NDArray[np.float32]  # (d,) all trainable parameters, one after the other
Matrix = NDArray[np.float32]  # (k, d)

ROUNDING = 1e-6  # a clipped update ends this much below its bound, so rounding cannot lift it above


@dataclass(frozen=True)
class Order:
    """What is asked of the clients of one round."""

    round: int
    key: int  # of the order of batches: neither coins nor noise follow from it
    model: Vector
    clients: Ints  # (k,) their numbers in the population


@dataclass(frozen=True)
class Updates:
    """How far some of these clients would move the model, before clipping."""

    clients: Ints  # (k,)
    change: Matrix  # (k, d)


class Clients(Protocol):
    """Where updates come from: in this process or from elsewhere. Each client asked answers once."""

    def updates(self, order: Order) -> Iterator[Updates]: ...


@dataclass(frozen=True)
class Server:
    """What the server does with the noisy sums: post-processing, which costs no privacy."""

    learning_rate: float = 1.0
    momentum: float = 0.0


PLAIN = Server()


@dataclass(frozen=True)
class State:
    round: int  # rounds done
    model: Vector
    velocity: Vector

    @classmethod
    def start(cls, model: Vector) -> "State":
        return cls(0, model, np.zeros_like(model))


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
        that was killed and resumed ends with the same model. Without a seed it ends with another one:
        what was not made durable was not released.
    """
    certificate.require(plan, accept_no_privacy)
    if certificate.population != ledger.population.digest():
        raise PlanError("this certificate is of another population than the ledger's: certify again")
    ledger.admit(run, plan, _fingerprint(seed), accept_no_privacy)
    on_record = ledger.states(run)
    if not state.round <= len(on_record) <= state.round + 1:
        raise LedgerError(
            f"the ledger has {len(on_record)} rounds of run {run} and the model has {state.round}: the same "
            "run was done before, or its folder changed or restored. Start a new run."
        )
    for number, status in on_record:
        if status == "reserved" and number <= state.round:
            ledger.commit(run, number)
    while state.round < plan.rounds:
        ledger.reserve(run, state.round + 1)
        state = next_state(plan, clients, state, run=run, seed=seed, server=server)
        yield state
        ledger.commit(run, state.round)
    ledger.finish(run)


def _fingerprint(seed: int | None) -> str:
    """Tells one seed from another without saying which it is."""
    if seed is None:
        return "the operating system"
    return "a seed of fingerprint " + hashlib.sha256(f"discretion {seed}".encode()).hexdigest()[:12]


def next_state(
    plan: Plan, clients: Clients, state: State, *, run: str, seed: int | None, server: Server = PLAIN
) -> State:
    """One round."""
    number = state.round + 1
    phase = plan.phases[plan.phase_of(number)]

    def source(purpose: Purpose, pool: int = 0) -> Source:
        if seed is None:
            return Cryptographic()
        return Seeded(run_stream(seed, purpose, run, plan.digest(), number, pool))

    chosen = select(phase, source(Purpose.COINS))
    key = int(source(Purpose.BATCHES).words(1)[0])
    updates = clients.updates(Order(number, key, state.model, chosen))
    sums = clipped_sums(phase, updates, chosen, len(state.model))
    for pool, std in enumerate(phase.noise):
        if std > 0:
            sums[pool] += source(Purpose.NOISE, pool).gaussian(len(state.model), float(std))
    step = phase.weight @ sums
    velocity = (server.momentum * state.velocity + step).astype(np.float32)
    model = (state.model + server.learning_rate * velocity).astype(np.float32)
    return State(number, model, velocity)


def select(phase: Phase, source: Source) -> Ints:
    """The clients of a round: an independent coin for each, of the probability that is accounted for."""
    return np.flatnonzero(source.uniform(len(phase.rate)) < phase.rate)


def clipped_sums(phase: Phase, updates: Iterator[Updates], asked: Ints, size: int) -> Floats:
    """(P, d) the sum of the clipped updates of each pool.

    Guarantees:
        A client enters once at most, only if it was asked, and with an update no longer than its clip.
        An update with a number that is not finite counts as zero.
    """
    sums = np.zeros((len(phase.noise), size))
    waiting = np.zeros(len(phase.rate), dtype=bool)
    waiting[asked] = True
    for part in updates:
        who = np.asarray(part.clients)
        if who.dtype.kind not in "iu" or part.change.shape != (len(who), size):
            raise LedgerError(f"updates of {len(who)} clients must be numbered and {len(who)} rows of {size}")
        if ((who < 0) | (who >= len(waiting))).any() or not waiting[who].all() or len(set(who)) != len(who):
            raise LedgerError("an update came from a client that was not asked, or came twice")
        waiting[part.clients] = False
        factor = clip_factor(part.change, phase.clip[part.clients])
        change = part.change
        if not factor.all():  # zero times infinity is not zero
            change = np.where(factor[:, None] > 0, change, np.float32(0))
        for pool in np.unique(phase.pool[part.clients]):
            weight = np.where(phase.pool[part.clients] == pool, factor, 0.0)
            sums[pool] += weight.astype(np.float32) @ change
    return sums


def clip_factor(change: Matrix, clip: Floats) -> Floats:
    """(k,) what to multiply each update by, so that its L2 norm is at most its clip; 0 if not finite."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        norm = np.sqrt(np.einsum("kd,kd->k", change, change, dtype=np.float64))
        factor = np.where(norm > clip * (1 - ROUNDING), clip * (1 - ROUNDING) / norm, 1.0)
    return np.where(np.isfinite(norm), factor, 0.0)
