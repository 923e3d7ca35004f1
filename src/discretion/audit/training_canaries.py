"""The one-run audit: a whole training run with canaries among its clients (Steinke, Nasr, Jagielski 2023).

A canary sends a random direction of its own in place of what it would learn, if its fair coin says that it is
in, and zeros otherwise. All other clients train as usual, and the attacker knows what they send. From the
released sums it guesses which canaries were in, and leaves out those of which it is least sure.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from discretion.accounting import Certificate
from discretion.arrays import Floats, Ints
from discretion.audit.attack import CHANCE
from discretion.audit.canaries import FAR, Bools
from discretion.audit.lower_bound import one_run
from discretion.errors import PlanError
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.selection_rules import Reading
from discretion.randomness.sources import Source
from discretion.randomness.streams import Purpose, stream
from discretion.training.loop import State, next_state
from discretion.training.orders import Clients, Order, Statistics, Updates
from discretion.training.release import clipped_sums, merged
from discretion.training.server_update import Server, Vector

SHARE = 2  # every second client of a class is a canary
MOST = 256  # canaries of a class
MOST_NUMBERS = 2**26  # in all of their directions
SURE = 1 / 3  # of a class's canaries are guessed to be in, and as many to be out
GAME = 2**32 - 1  # number of the stream of coins and directions, which no other game has


@dataclass(frozen=True)
class Guessed:
    """What the attacker guessed of one budget class, against whoever sees the models."""

    name: str  # of the class
    canaries: int
    guesses: int
    correct: int
    certified: float  # largest epsilon of the canaries
    at_least: float  # of any mechanism, from this one run

    @property
    def contradicted(self) -> bool:
        return self.at_least > self.certified


class _AmongOthers:
    """Clients of which some are canaries; what the others send is known to the attacker."""

    def __init__(self, clients: Clients, canary: Ints, inside: Bools, direction: Vector) -> None:
        self._clients, self._canary, self._inside, self._direction = clients, canary, inside, direction
        self.length = 0.0  # of a canary's update, with the sign of this round
        self.known: list[Updates] = []  # of this round

    def updates(self, order: Order) -> Iterator[Updates]:
        ours = np.isin(order.clients, self._canary)
        others = replace(order, clients=order.clients[~ours], turn=order.turn[~ours])
        self.known = []
        for part in self._clients.updates(others):
            self.known.append(part)
            yield part
        place = np.searchsorted(self._canary, order.clients[ours])
        sent = self.length * self._inside[place, None] * self._direction[place]
        yield Updates(order.clients[ours], sent.astype(np.float32))

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        raise AssertionError("plans that protect clients read no statistics")


def audit_training(
    plan: Plan,
    population: Population,
    certificate: Certificate,
    clients: Clients,
    state: State,
    *,
    run: str,
    seed: int,
    server: Server,
    progress: Callable[[float], None] = lambda done: None,
) -> list[Guessed]:
    """Train once, with canaries, and return a lower bound on epsilon for each budget class.

    Guarantees:
        If the whole run is as private as certified, the chance that any bound exceeds its epsilon is at most
        `CHANCE`, however canaries and other clients interfere: which guesses are made is fixed beforehand but
        for the order of the scores, and the classes share `CHANCE`.
    """
    if plan.unit != "client":
        raise PlanError(
            "found a plan that protects records; a training run is audited only where clients are protected: "
            "leave out --train"
        )
    names, member = population.classes()
    epsilon = certificate.epsilon["public"]
    fine = np.flatnonzero(np.isfinite(epsilon) & (epsilon > 0))
    classes = np.unique(member[fine])
    size = len(state.model)
    most = max(min(MOST, size // (4 * len(classes)), MOST_NUMBERS // (size * len(classes))), 1)
    canary = np.sort(np.concatenate([fine[member[fine] == k][::SHARE][:most] for k in classes]))
    coins = stream(seed, Purpose.AUDIT, GAME)
    inside = coins.random(len(canary)) < 0.5
    direction = (2 * coins.integers(2, size=(len(canary), size), dtype=np.int8) - 1).astype(np.float32)
    direction /= np.sqrt(size)
    apart = np.linalg.pinv(direction @ direction.T)  # so that a canary is not taken for another one
    among, score = _AmongOthers(clients, canary, inside, direction), np.zeros(len(canary))
    longest = float(max(phase.clip[canary].max() for phase in plan.phases))
    released: list[Floats] = []
    for round_ in range(1, plan.rounds + 1):
        phase, scale = plan.phases[plan.phase_of(round_)], state.scale
        among.length = FAR * longest * scale
        state = next_state(plan, among, state, run=run, seed=seed, server=server, observe=released.append)
        left = released.pop() - _known(plan, phase, scale, among.known, size)
        along = (left.astype(np.float32) @ direction.T @ apart).astype(np.float64)
        score += _surety(plan, phase, canary, along / scale)
        progress(round_ / plan.rounds)
    found = []
    for k in classes:
        mine = member[canary] == k
        certified, delta = float(epsilon[canary[mine]].max()), float(population.delta[canary[mine]].max())
        chance = CHANCE / len(classes)
        found.append(_guessed(names[k], inside[mine], score[mine], certified, delta, chance))
    return found


def _known(plan: Plan, phase: Phase, scale: float, parts: Sequence[Updates], size: int) -> Floats:
    """Return what the sums of a round would be without canaries and noise."""
    plain = replace(plan, noise_at="server", dropout=0.0, grid=None)
    asked = np.concatenate([part.clients for part in parts]) if parts else np.zeros(0, dtype=np.int64)

    def nobody(client: int, turn: int) -> Source:
        raise AssertionError("here no client adds noise")

    return clipped_sums(plain, phase, scale, iter(parts), asked, size, nobody)[0]


def _surety(plan: Plan, phase: Phase, canary: Ints, along: Floats) -> Floats:
    """Return (C,) the canaries' components of the (P, C) sums, weighted by how much they tell."""
    one, pool = merged(plan, phase), phase.pool[canary]
    noise = phase.noise * np.sqrt(phase.pool_releases)
    std = np.full(len(pool), np.linalg.norm(phase.weight * noise)) if one else noise[pool]
    reach = phase.clip[canary] * (phase.weight[pool] if one else 1.0)
    value = along[np.zeros_like(pool) if one else pool, np.arange(len(pool))] * reach
    return np.asarray(np.divide(value, np.square(std), out=np.zeros(len(pool)), where=std > 0))


def _guessed(
    name: str, inside: Bools, score: Floats, certified: float, delta: float, chance: float
) -> Guessed:
    """Guess that the canaries of the highest scores were in, and those of the lowest out."""
    sure = max(int(SURE * len(score)), min(1, len(score) // 2))
    order = np.argsort(score)
    correct = int((~inside[order[:sure]]).sum() + inside[order[len(order) - sure :]].sum())
    bound = one_run(correct, 2 * sure, len(score), delta, chance)
    return Guessed(name, len(score), 2 * sure, correct, certified, bound)
