"""The canary game: play a plan with clients whose updates an attacker knows, and write down what it sees.

A canary is a client of the plan that sends nothing but its own direction, much longer than its clip. Whether
it is in the game is decided by a fair coin. The plan is executed by the real loop, with the real sampler,
clipping and noise, on a model that has just enough parameters; no data is needed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from discretion.accounting.certificate import Certificate
from discretion.arrays import Floats, Ints
from discretion.plan.plan import Adversary, Plan
from discretion.plan.selection_rules import Reading
from discretion.randomness.streams import Purpose, stream
from discretion.training.loop import State, next_state
from discretion.training.orders import Order, Statistics, Updates
from discretion.training.server_update import PLAIN, Server

FAR = 100.0  # length of a canary's update, in clips
MOST_CANARIES = 64  # of a budget class
MOST_KINDS = 8  # clients of a class that a plan treats differently
BLOCKS = 24  # stretches of rounds that an attacker sums up
POOLS = 3  # sums that an attacker looks at, those of the canary's own pool included
FEATURES = POOLS + 3  # numbers that an attacker learns from, for each stretch
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Canaries:
    """The clients of a plan that play canaries, and the coordinates that carry the direction of each."""

    client: Ints  # (C,) numbers in the plan
    group: Ints  # (C,) budget class
    kinds: tuple[Ints, ...]  # by class: one client of each kind
    place: Ints  # (C, L) coordinates of the direction, one for each layer
    size: int  # parameters of the model

    @classmethod
    def of(cls, plan: Plan, certificate: Certificate, member: Ints) -> "Canaries":
        """Choose canaries in each class of (N,) `member`: clients that spend the most of their budgets."""
        chosen, groups, kinds = [], [], []
        for k in range(int(member.max()) + 1):
            mine = np.flatnonzero((member == k) & np.isfinite(certificate.spent) & (certificate.spent > 0))
            mine = mine[np.argsort(-certificate.share[mine], kind="stable")]
            kind, first = plan.classes[mine], np.zeros(0, dtype=np.int64)
            if len(mine):
                first = np.sort(np.unique(kind, return_index=True)[1])[:MOST_KINDS]
            mine_now = mine[np.isin(kind, kind[first])][:MOST_CANARIES]
            chosen.append(mine_now)
            groups.append(np.full(len(mine_now), k))
            kinds.append(mine[first])
        client, group = np.concatenate(chosen), np.concatenate(groups)
        layers = np.array(plan.clipping.layers or [plan.grid.size if plan.grid else max(len(client), 1)])
        wide = layers >= len(client)
        start = (np.cumsum(layers) - layers)[wide]
        place = start[None, :] + np.arange(len(client))[:, None]
        return cls(client, group, tuple(kinds), place, int(layers.sum()))

    @property
    def direction(self) -> float:
        """The entry of each direction, which has length 1, at its coordinates."""
        return float(self.place.shape[1] ** -0.5)

    def along(self, vectors: Floats) -> Floats:
        """Return (…, C) the vectors' components along the canaries' directions."""
        return np.asarray(vectors[..., self.place].sum(axis=-1) * self.direction)


class _CanaryClients:
    """The clients of one game: canaries send their directions, with a sign that changes; others nothing."""

    def __init__(self, canaries: Canaries, clients: int, length: float, inside: Bools, replace: bool) -> None:
        self._canaries, self._length = canaries, length
        self._number = np.full(clients, -1)
        self._number[canaries.client] = np.arange(len(canaries.client))
        # under replace adjacency a canary that is out is another one in its place, with the opposite update
        self.sent = np.where(inside, 1.0, -1.0 if replace else 0.0)
        self.sign = 1.0
        self.asked = np.zeros(0, dtype=np.int64)

    def updates(self, order: Order) -> Iterator[Updates]:
        self.asked = order.clients
        number = self._number[order.clients]
        row = np.flatnonzero(number >= 0)
        change = np.zeros((len(number), len(order.model)), np.float32)
        entry = self.sign * self._length * self._canaries.direction * self.sent[number[row]]
        change[row[:, None], self._canaries.place[number[row]]] = entry[:, None]
        yield Updates(order.clients, change)

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        raise AssertionError("a game of canaries has no data to be read")


@dataclass(frozen=True)
class Trials:
    """What was seen of canaries: a row for each canary and game."""

    inside: Bools  # (n,) whether the canary was in the game
    group: Ints  # (n,) its budget class
    likelihood: Floats  # (n,) log-likelihood ratio of what was released, if all is as planned
    seen: Floats  # (n, F) everything else that may tell, by stretches of rounds
    squares: Floats  # (n,) squares of released noise over its planned variance, summed over releases
    releases: Ints  # (n,) number of releases that were seen
    asked: Ints  # (n,) how often a secret coin chose the canary; 0 where coins cannot be seen
    expected: Floats  # (n,) how often by the plan

    @classmethod
    def together(cls, games: Iterable["Trials"]) -> "Trials":
        found = list(games)
        return cls(*(np.concatenate([getattr(each, f.name) for each in found]) for f in fields(cls)))


@dataclass(frozen=True)
class Game:
    """A plan, its canaries, and the adversary that looks."""

    plan: Plan
    canaries: Canaries
    adversary: Adversary
    server: Server = PLAIN

    @property
    def kinds(self) -> tuple[Ints, ...]:
        """By budget class: one client of each kind that plays canaries."""
        return self.canaries.kinds

    def play(self, games: int, seed: int) -> Iterator[Trials]:
        """Play the plan `games` times, and yield what was seen of each game."""
        return (self._play(number, seed) for number in range(games))

    def _play(self, number: int, seed: int) -> Trials:
        plan, canaries = self.plan, self.canaries
        coins = stream(seed, Purpose.AUDIT, number)
        inside = coins.random(len(canaries.client)) < 0.5
        length = FAR * float(max(phase.clip[canaries.client].max(initial=0.0) for phase in plan.phases))
        clients = _CanaryClients(canaries, len(plan.clients), length, inside, plan.adjacency == "replace")
        state, sums = State.start(np.zeros(canaries.size, np.float32)), np.zeros(0)
        blocks = min(BLOCKS, plan.rounds)
        seen = np.zeros((len(inside), blocks, FEATURES))
        likelihood, squares = np.zeros(len(inside)), np.zeros(len(inside))
        asked, expected = np.zeros(len(inside), dtype=np.int64), np.zeros(len(inside))

        def observe(released: Floats) -> None:
            nonlocal sums
            sums = canaries.along(released)

        for round_ in range(1, plan.rounds + 1):
            clients.sign, before = float(coins.choice([-1.0, 1.0])), state
            state = next_state(
                plan, clients, before, run=f"audit {number}", seed=seed, server=self.server, observe=observe
            )
            look = self._look(round_, clients, before.scale, clients.sign * sums, coins)
            moved = clients.sign * canaries.along(state.model - before.model)
            columns = [look.value, look.ratio, *look.other_pools, moved, look.value * look.absent]
            seen[:, (round_ - 1) * blocks // plan.rounds] += np.stack(columns, axis=1)
            likelihood += look.ratio
            squares += look.noise**2
            asked += look.asked
            expected += plan.phases[plan.phase_of(round_)].rate[canaries.client]
        releases = np.full(len(inside), plan.rounds)
        flat = seen.reshape(len(inside), -1)
        return Trials(inside, canaries.group, likelihood, flat, squares, releases, asked, expected)

    def _look(
        self, round_: int, clients: "_CanaryClients", scale: float, sums: Floats, coins: np.random.Generator
    ) -> "_Look":
        """Look at one round's (P, C) sums along the canaries' directions, with the round's sign undone."""
        plan, who = self.plan, self.canaries.client
        phase = plan.phases[plan.phase_of(round_)]
        merged, every = len(sums) < len(phase.noise), np.arange(len(who))
        pool = np.zeros_like(who) if merged else phase.pool[who]
        reach = phase.clip[who] * scale * (phase.weight[who] if merged else 1.0)
        noise = phase.noise * scale
        std = np.linalg.norm(phase.weight * noise) if merged else noise[phase.pool[who]]
        asked = np.bincount(clients.asked, minlength=len(phase.rate))[who]
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.nan_to_num(sums[pool, every] / reach)
            noisy = np.nan_to_num((value - clients.sent * (asked > 0)) * reach / std)
            rate, multiplier = (column[who] for column in plan.view(phase, self.adversary))
            planned = phase.noise[phase.pool[who]] / plan.sensitivity(phase)[who]
            known = np.clip(1 - np.nan_to_num(multiplier / planned, nan=1.0) ** 2, 0.0, 1.0)
        # what the adversary knows of the noise, drawn given all of it, is taken away
        drawn = coins.standard_normal(len(who))
        value = value - np.nan_to_num(known * noisy + np.sqrt(known * (1 - known)) * drawn) * std / reach
        others = [np.nan_to_num(sums[(pool + k) % len(sums), every] / reach) for k in range(1, POOLS)]
        absent = phase.expected.sum() - (len(clients.asked) - asked)
        ratio = _log_ratio(value, rate, multiplier, plan.adjacency == "replace")
        return _Look(value, ratio, others, noisy, asked, absent)


@dataclass(frozen=True)
class _Look:
    """What one round tells of each of the C canaries."""

    value: Floats  # (C,) its component of its pool's sum, in clips, as the adversary sees it
    ratio: Floats  # (C,) log-likelihood ratio of that
    other_pools: list[Floats]  # (C,) the same component of other pools' sums
    noise: Floats  # (C,) all of the noise, over its planned standard deviation
    asked: Ints  # (C,) how often the sampler chose the canary
    absent: Floats  # (C,) how many fewer other clients took part than expected


def _log_ratio(value: Floats, rate: Floats, multiplier: Floats, replaced: bool) -> Floats:
    """Return (C,) log-likelihood ratios of one release, in units of the clip: in the game against out."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if replaced:  # rate 1: means +1 and -1, and the noise is twice the multiplier
            return np.nan_to_num(rate * value / (2 * multiplier**2))
        grown = (value - 0.5) / multiplier**2
        ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + grown)
    return np.where((rate > 0) & np.isfinite(multiplier), ratio, 0.0)
