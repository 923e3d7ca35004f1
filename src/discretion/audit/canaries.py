"""The canary game: play a plan with clients whose updates an attacker knows, and write down what it sees.

A canary is a client of the plan that sends nothing but its own direction, much longer than its clip. Whether
it is in the game is decided by a fair coin; a canary that is out sends zeros, which is the same to every sum
as not being there. Directions are random and orthogonal, so that canaries do not disturb each other. The plan
is executed by the real loop, with the real sampler, clipping and noise, on a model that has just enough
parameters; no data is needed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from discretion.arrays import Floats, Ints
from discretion.audit.chance_checks import CELLS, NOTHING, Heads, Noise
from discretion.plan.grid import Grid
from discretion.plan.phase import Phase
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
SPARE = 8  # parameters of each layer beyond the number of canaries
ROTATION = 2**32 - 2  # number of the stream of directions, which no game has
FEATURES = POOLS + 2  # numbers that an attacker learns from, for each stretch
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Canaries:
    """The clients of a plan that play canaries, and the direction of each."""

    client: Ints  # (C,) numbers in the plan
    group: Ints  # (C,) budget class
    direction: Floats  # (C, size) orthogonal, of length 1, and as long in every layer

    @classmethod
    def of(cls, plan: Plan, epsilon: Floats, member: Ints, seed: int) -> "Canaries":
        """Choose canaries in each class of (N,) `member`, those of the largest (N,) `epsilon` first."""
        chosen = []
        for k in np.unique(member):
            mine = np.flatnonzero((member == k) & np.isfinite(epsilon) & (epsilon > 0))
            mine = mine[np.argsort(-epsilon[mine], kind="stable")]
            kind = plan.classes[mine]
            first = np.sort(np.unique(kind, return_index=True)[1])[:MOST_KINDS]
            chosen.append(mine[np.isin(kind, kind[first])][:MOST_CANARIES])
        client = np.concatenate(chosen)
        layers = max(len(plan.clipping.layers), 1)
        return cls(client, member[client], directions(len(client), layers, seed))

    @property
    def size(self) -> int:
        """Number of parameters of the model."""
        return int(self.direction.shape[1])

    def along(self, vectors: Floats) -> Floats:
        """Return (…, C) the components of (…, size) vectors along the canaries' directions."""
        return np.asarray(vectors @ self.direction.T)

    def played(self, plan: Plan) -> Plan:
        """Return the plan for a model of `size` parameters, which changes neither rates, clips nor noise."""
        layers = (len(self.client) + SPARE,) * len(plan.clipping.layers)
        grid = Grid(plan.grid.step, self.size) if plan.grid else None
        return replace(plan, clipping=replace(plan.clipping, layers=layers), grid=grid)


def directions(count: int, layers: int, seed: int) -> Floats:
    """Return (count, layers * (count + SPARE)) random orthogonal directions of length 1.

    Each has the same length in every layer, so that no layer's clip leaves more of it than another's.
    """
    draw, width = stream(seed, Purpose.AUDIT, ROTATION), count + SPARE
    each = [np.linalg.qr(ndtri(draw.uniform(1e-9, 1, (width, count))))[0].T for _ in range(layers)]
    return np.asarray(np.concatenate(each, axis=1) / np.sqrt(layers))


class _CanaryClients:
    """The clients of one game: canaries send their directions, the others zeros."""

    def __init__(self, canaries: Canaries, clients: int, inside: Bools, exchanged: bool) -> None:
        self._canaries = canaries
        self._number = np.full(clients, -1)
        self._number[canaries.client] = np.arange(len(canaries.client))
        # under replace adjacency a canary that is out is another one in its place, with the opposite update
        self.sent = np.where(inside, 1.0, -1.0 if exchanged else 0.0)
        self.length = 0.0  # of an update, with the sign of this round
        self.asked = np.zeros(0, dtype=np.int64)

    def updates(self, order: Order) -> Iterator[Updates]:
        self.asked = order.clients
        number = self._number[order.clients]
        row = np.flatnonzero(number >= 0)
        change = np.zeros((len(number), self._canaries.size), np.float32)
        sent = self.length * self.sent[number[row]]
        change[row] = sent[:, None] * self._canaries.direction[number[row]]
        yield Updates(order.clients, change)

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        raise AssertionError("a game of canaries has no data to be read")


@dataclass(frozen=True)
class Trials:
    """What was seen of canaries, with a row for each canary and game (n) or for each game (g)."""

    game: Ints  # (n,)
    group: Ints  # (n,) the canary's budget class
    inside: Bools  # (n,) whether the canary was in the game
    likelihood: Floats  # (n,) log-likelihood ratio of what was released, if all is as planned
    seen: Floats  # (n, F) everything else that may tell, by stretches of rounds
    releases: Ints  # (n,) number of releases that had noise
    quiet: Ints  # (n,) number of those that had nothing but noise
    squares: Floats  # (n,) squares of that noise over its planned variance, summed up
    loudest: (
        Floats  # (n,) most that a sum moved beyond the canary's clip, in standard deviations of the noise
    )
    asked: Ints  # (n,) how often the canary was asked, beyond its public turns
    flips: Ints  # (n,) number of secret coins that decided it
    expected: Floats  # (n,) how often by the plan
    turns: Floats  # (n, CELLS) the cell of that number; zeros where there is nothing to look at
    turns_planned: Floats  # (n, CELLS) chance of each cell by the plan
    crowds: Floats  # (g, CELLS) rounds by the cell of the number of clients asked
    crowds_planned: Floats  # (g, CELLS) how many by the plan

    @classmethod
    def together(cls, games: Iterable["Trials"]) -> "Trials":
        found = list(games)
        return cls(*(np.concatenate([getattr(each, f.name) for each in found]) for f in fields(cls)))

    def of(self, group: int) -> "Trials":
        """Return the rows of one budget class."""
        mine = self.group == group
        rows = {f.name: getattr(self, f.name) for f in fields(self)}
        return Trials(**{name: x[mine] if len(x) == len(mine) else x for name, x in rows.items()})


@dataclass(frozen=True)
class CanaryRelease:
    """What a round of one phase releases about each of the C canaries, by the plan and at scale 1."""

    row: Ints  # (C,) the sum that has the canary's updates
    reach: Floats  # (C,) how far one update moves that sum
    std: Floats  # (C,) of the noise of that sum; 0: nothing is released
    known: Floats  # (C,) share of the noise's variance that the adversary knows
    turns: Ints  # (C,) public turns
    rate: Floats  # (C,) of a secret coin; 0 where turns are public
    surprise: Bools  # (C,) whether the adversary does not know whom the coins chose
    others: Ints  # (POOLS - 1, C) other sums to look at
    crowd: Heads  # number of clients asked

    @classmethod
    def of(cls, plan: Plan, phase: Phase, who: Ints, adversary: Adversary) -> "CanaryRelease":
        one = plan.merges(phase)
        row = np.zeros_like(who) if one else phase.pool[who]
        noise = phase.noise * np.sqrt(phase.pool_releases)
        std = np.full(len(who), np.linalg.norm(phase.weight * noise)) if one else noise[row]
        reach = phase.clip[who] * (phase.weight[phase.pool[who]] if one else 1.0)
        plain = replace(plan, clipping=replace(plan.clipping, quantile=None))
        rate, multiplier = (column[who] for column in plain.view(phase, adversary))
        with np.errstate(divide="ignore", invalid="ignore"):
            secret = (multiplier * plain.sensitivity(phase)[who] / phase.noise[phase.pool[who]]) ** 2
        moves = (reach != 0) & (std > 0) & (phase.expected[who] > 0)
        known = np.where(moves, np.clip(1 - np.where(moves, secret, 0.0), 0.0, 1.0), 0.0)
        coins = phase.rate if phase.turns is None else np.zeros(len(phase.rate))
        sums = 1 if one else len(phase.noise)
        return cls(
            row=row,
            reach=reach,
            std=np.where(moves, std, 0.0),
            known=known,
            turns=(np.zeros_like(phase.pool) if phase.turns is None else phase.turns)[who],
            rate=coins[who],
            surprise=(rate < 1) | (plan.sampling == "fixed_size"),
            others=(row + np.arange(1, POOLS)[:, None]) % sums,
            crowd=Heads.of(coins) if plan.sampling == "poisson" else NOTHING,
        )

    def log_ratio(self, value: Floats, asked: Ints, spread: Floats, exchanged: bool) -> Floats:
        """Return (…, C) log-likelihood ratios, in against out, of values with noise of (C,) `spread`."""
        if exchanged:
            return 2 * asked * value / spread**2
        known = asked * (value - asked / 2) / spread**2
        with np.errstate(divide="ignore"):
            coin = np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + (value - 0.5) / spread**2)
        return np.where(self.surprise & (self.rate > 0) & (self.rate < 1), coin, known)


def sign_of(round_: int) -> float:
    """Return the sign of all canaries in a round: if two rounds had the same noise, it would cancel out."""
    return float((-1.0) ** round_.bit_count())


@dataclass(frozen=True)
class ClientGame:
    """A plan, its canaries, and the adversary that looks."""

    plan: Plan
    canaries: Canaries
    adversary: Adversary
    server: Server = PLAIN
    each: ClassVar[int] = 1  # trials of each client that plays
    enough: ClassVar[int] = 30_000  # trials of a class that usually suffice

    @property
    def client(self) -> Ints:
        return self.canaries.client

    @property
    def group(self) -> Ints:
        return self.canaries.group

    @property
    def size(self) -> int:
        return self.canaries.size

    def play(self, number: int, seed: int, noise: Noise) -> Trials:
        """Play the plan once, and return what was seen; add the noise of all directions to `noise`."""
        plan, canaries = self._played, self.canaries
        coins = stream(seed, Purpose.AUDIT, number)
        inside = coins.random(len(canaries.client)) < 0.5
        clients = _CanaryClients(canaries, len(plan.clients), inside, plan.adjacency == "replace")
        state, tape = State.start(np.zeros(canaries.size, np.float32)), _Tape(len(inside), plan.rounds)
        released: list[Floats] = []
        run, own_seed = f"audit {number}", seed if plan.randomness == "seeded" else None
        for round_ in range(1, plan.rounds + 1):
            before, phase = state, plan.phase_of(round_)
            sign = sign_of(round_)
            clients.length = sign * FAR * self._longest * before.scale
            state = next_state(
                plan, clients, before, run=run, seed=own_seed, server=self.server, observe=released.append
            )
            sums = sign / before.scale * released.pop()
            moved = (
                sign * canaries.along((state.model - before.model).astype(np.float64)) * self._each_by_itself
            )
            asked = np.bincount(clients.asked, minlength=len(plan.clients))[canaries.client]
            release, luck = self._releases[phase], coins.random(len(inside))
            self._look(tape, release, clients, asked, canaries.along(sums), moved, luck)
            self._listen(noise, release, clients.sent * asked, sums, before.scale)
        return tape.trials(number, canaries.group, inside, plan.adjacency == "replace", self._turns)

    @cached_property
    def _played(self) -> Plan:
        return self.canaries.played(self.plan)

    @cached_property
    def _releases(self) -> list[CanaryRelease]:
        return [
            CanaryRelease.of(self._played, p, self.canaries.client, self.adversary) for p in self.plan.phases
        ]

    @cached_property
    def _longest(self) -> float:
        return float(max(phase.clip[self.canaries.client].max() for phase in self.plan.phases))

    @cached_property
    def _turns(self) -> list[Heads]:
        """By canary: number of turns by coins in a game."""
        if self.plan.sampling != "poisson":  # then the turns of different canaries are not independent
            return [NOTHING] * len(self.client)
        rounds = [phase.rounds for phase in self.plan.phases]
        rate = np.stack([np.where(each.rate < 1, each.rate, 0.0) for each in self._releases], axis=1)
        different, kind = np.unique(rate, axis=0, return_inverse=True)
        found = [Heads.of(np.repeat(each, rounds)) for each in different]
        return [found[k] for k in kind.ravel()]

    def _listen(
        self, noise: Noise, release: CanaryRelease, pushed: Floats, sums: Floats, scale: float
    ) -> None:
        """Add to `noise` that of all sums that canaries are in.

        (C,) `pushed` is how many clips each canary has in its sum, which is among the (P, size) `sums`.
        """
        shown = np.flatnonzero(release.std > 0)
        rows, first, place = np.unique(release.row[shown], return_index=True, return_inverse=True)
        signal = np.zeros((len(rows), len(pushed)))
        signal[place, shown] = pushed[shown] * release.reach[shown]
        std = release.std[shown[first], None]
        step = self.plan.grid.step / scale if self.plan.grid else 0.0
        noise.add((sums[rows] - signal @ self.canaries.direction) / std, step / std)

    @property
    def _each_by_itself(self) -> bool:
        """Whether the model's moves are linear in the sums: otherwise canaries are not independent."""
        plain = self.plan.combine.rule == "sum" and self.plan.clipping.quantile is None
        return plain and self.server.adaptive == 0

    def _look(
        self,
        tape: "_Tape",
        release: CanaryRelease,
        clients: _CanaryClients,
        asked: Ints,
        sums: Floats,
        moved: Floats,
        luck: Floats,
    ) -> None:
        """Write down one round: (C,) how often canaries were asked, and what was seen along their directions.

        That is (P, C) sums and (C,) moves of the model; (C,) `luck` decides what the adversary knows.
        """
        every, shown = np.arange(len(luck)), release.std > 0
        reach, std = np.where(shown, release.reach, 1.0), np.where(shown, release.std, 1.0)
        value = sums[release.row, every] / reach
        noise = (value - clients.sent * asked) * reach / std
        # what the adversary knows of the noise, drawn given all of it, is taken away
        known = release.known
        value -= (known * noise + np.sqrt(known * (1 - known)) * ndtri(luck)) * std / reach
        spread = std / np.abs(reach) * np.sqrt(1 - known)
        ratio = release.log_ratio(value, asked, spread, self.plan.adjacency == "replace")
        others = sums[release.others, every] / reach
        tape.write(release, np.stack([value, ratio, *others, moved], axis=1), noise, asked)
        tape.loudest = np.maximum(tape.loudest, noise * clients.sent * np.sign(reach) * shown)
        tape.crowds += release.crowd.cells(len(clients.asked))


class _Tape:
    """What was seen of one game so far, added up."""

    def __init__(self, canaries: int, rounds: int) -> None:
        self._round, self._rounds, self._blocks = 0, rounds, min(BLOCKS, rounds)
        self.seen = np.zeros((canaries, self._blocks, FEATURES))
        self.likelihood, self.squares, self.expected = (np.zeros(canaries) for _ in range(3))
        self.releases, self.asked, self.flips = (np.zeros(canaries, dtype=np.int64) for _ in range(3))
        self.loudest = np.zeros(canaries)
        self.crowds, self.crowds_planned = np.zeros(CELLS), np.zeros(CELLS)

    def write(self, release: CanaryRelease, columns: Floats, noise: Floats, asked: Ints) -> None:
        """Add a round: (C, FEATURES) numbers to learn from, (C,) noise, and (C,) how often who was asked."""
        shown, by_coin = release.std > 0, (release.rate > 0) & (release.rate < 1)
        self.seen[:, self._round * self._blocks // self._rounds] += columns * shown[:, None]
        self.likelihood += columns[:, 1] * shown
        self.squares += np.square(noise) * shown
        self.releases += shown
        self.asked += asked - release.turns - (release.rate == 1)
        self.flips += by_coin
        self.expected += release.rate * by_coin
        self.crowds_planned += release.crowd.chance
        self._round += 1

    def trials(self, game: int, group: Ints, inside: Bools, exchanged: bool, turns: list[Heads]) -> Trials:
        """Return all that was seen, beside what numbers of turns each canary should have."""
        # of a canary that sends nothing, what is seen is noise, whatever is wrong
        alone = ~inside | exchanged
        return Trials(
            game=np.full(len(inside), game),
            group=group,
            inside=inside,
            likelihood=self.likelihood,
            seen=self.seen.reshape(len(inside), -1),
            releases=self.releases,
            quiet=self.releases * alone,
            squares=self.squares * alone,
            loudest=self.loudest,
            asked=self.asked,
            flips=self.flips,
            expected=self.expected,
            turns=np.stack([each.cells(n) for each, n in zip(turns, self.asked.tolist(), strict=True)]),
            turns_planned=np.stack([each.chance for each in turns]),
            crowds=self.crowds[None],
            crowds_planned=self.crowds_planned[None],
        )
